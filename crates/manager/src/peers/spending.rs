//! Publishes what tenants spend through this manager, so that it stays exact when managers die.
//!
//! A lease's cost only grows. Each growth is added to the tenant's sum once, by the manager that has the lease then.
//! The sum is stored in the same batch as the lease's own record, and before it. If a manager dies between the two, the
//! sum's record says how much of the lease is counted, and the manager that takes the lease over counts from there.

use std::collections::{BTreeMap, HashMap};

use prost::Message;
use sublet_proto::v1::{CountedLease, SpendRecord};

use crate::store::{Batch, StoreRecord, keys};

/// The sums of one manager.
#[derive(Debug)]
pub struct Spending {
    epoch: u64,
    tenants: BTreeMap<String, Spent>,
    /// Counted cost of each lease.
    counted: HashMap<String, u64>,
}

#[derive(Debug, Default)]
struct Spent {
    nano: u64,
    /// Costs of leases as counted since the last batch was put together, and in batches not known to be stored.
    fresh: BTreeMap<String, u64>,
    in_flight: BTreeMap<String, u64>,
}

impl Spending {
    /// Creates the sums of the manager of this epoch, without any spending.
    pub fn new(epoch: u64) -> Spending {
        Spending { epoch, tenants: BTreeMap::new(), counted: HashMap::new() }
    }

    /// Takes over a lease whose cost others have counted up to `counted_nano`: see
    /// [`Peers::counted`](super::Peers::counted).
    pub fn take_over(&mut self, lease: &str, counted_nano: u64) {
        self.counted.insert(lease.to_owned(), counted_nano);
    }

    /// Counts the growth of a lease's cost since the last count, given its total cost.
    pub fn count(&mut self, tenant: &str, lease: &str, cost_nano: u64) {
        let counted = self.counted.entry(lease.to_owned()).or_default();
        let growth_nano = cost_nano.saturating_sub(*counted);
        if growth_nano == 0 {
            return;
        }
        *counted = cost_nano;
        let spent = self.tenants.entry(tenant.to_owned()).or_default();
        spent.nano = spent.nano.saturating_add(growth_nano);
        spent.fresh.insert(lease.to_owned(), cost_nano);
    }

    /// Forgets a lease whose cost will not grow any more.
    pub fn forget(&mut self, lease: &str) {
        self.counted.remove(lease);
    }

    /// Returns a tenant's spending through this manager.
    pub fn spent_nano(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).map_or(0, |spent| spent.nano)
    }

    /// Puts the sums that have changed in front of a batch that holds the records of the leases.
    pub fn put_first(&mut self, batch: &mut Batch) {
        let mut puts = Vec::new();
        for (tenant, spent) in &mut self.tenants {
            spent.in_flight.append(&mut spent.fresh);
            if !spent.in_flight.is_empty() {
                let key = format!("{}{}/{tenant}", keys::SPEND, keys::epoch(self.epoch));
                puts.push(StoreRecord { key, value: spent.record().encode_to_vec() });
            }
        }
        batch.puts.splice(0..0, puts);
    }

    /// The last batch is in the store. One that failed is followed by another that says the same again.
    pub fn stored(&mut self) {
        for spent in self.tenants.values_mut() {
            spent.in_flight.clear();
        }
    }
}

impl Spent {
    fn record(&self) -> SpendRecord {
        let counted = self.in_flight.iter();
        let counted = counted.map(|(lease, &cost_nano)| CountedLease { lease: lease.clone(), cost_nano });
        SpendRecord { spent_nano: self.nano, counted: counted.collect(), through_epoch: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(batch: &Batch, place: usize) -> (String, u64, Vec<(String, u64)>) {
        let put = &batch.puts[place];
        let record = SpendRecord::decode(put.value.as_slice()).unwrap();
        let counted = record.counted.into_iter().map(|counted| (counted.lease, counted.cost_nano)).collect();
        (put.key.clone(), record.spent_nano, counted)
    }

    #[test]
    fn each_growth_of_a_cost_counts_once() {
        let mut spending = Spending::new(1);
        for cost_nano in [10, 10, 25, 20, 25] {
            spending.count("t", "l", cost_nano);
        }
        spending.take_over("m", 100);
        spending.count("t", "m", 130);
        assert_eq!(spending.spent_nano("t"), 55);
        assert_eq!(spending.spent_nano("other"), 0);
    }

    #[test]
    fn sum_precedes_the_leases_and_lists_their_counted_costs() {
        let mut spending = Spending::new(255);
        spending.count("t", "l", 10);
        let mut batch = Batch::default();
        batch.put("lease/l".into(), Vec::new());
        spending.put_first(&mut batch);
        assert_eq!(batch.puts.len(), 2);
        assert_eq!(stored(&batch, 0), ("spend/00000000000000ff/t".into(), 10, vec![("l".into(), 10)]));
    }

    #[test]
    fn a_sum_is_repeated_until_it_is_stored() {
        let mut spending = Spending::new(1);
        spending.count("t", "l", 10);
        spending.put_first(&mut Batch::default());
        spending.count("t", "m", 5);
        let mut batch = Batch::default();
        spending.put_first(&mut batch);
        assert_eq!(stored(&batch, 0).2, [("l".into(), 10), ("m".into(), 5)]);
        spending.count("t", "n", 1);
        spending.stored();
        let mut batch = Batch::default();
        spending.put_first(&mut batch);
        assert_eq!(stored(&batch, 0), ("spend/0000000000000001/t".into(), 16, vec![("n".into(), 1)]));
        spending.stored();
        let mut batch = Batch::default();
        spending.put_first(&mut batch);
        assert!(batch.puts.is_empty());
    }
}
