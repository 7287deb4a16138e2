//! Decides which managers are alive, and sums up tenants' use through the others. No I/O and no clock.

use std::collections::BTreeMap;

use sublet_proto::v1::{ManagerInfo, NodeGeneration, PeerRecord, TenantUse};

/// Time in milliseconds after which a manager whose record did not change is dead.
const SILENCE_MS: u64 = 5000;
/// The most that one look at the records adds to a manager's silence, in milliseconds: during a longer time between two
/// looks the other managers may have been unable to write.
const MAX_STEP_MS: u64 = 2000;

/// Spending of each tenant through one manager, in nano-units.
pub type SpentBy = BTreeMap<String, u64>;

/// The managers of one store, seen by one of them.
#[derive(Debug)]
pub struct PeerTable {
    own_epoch: u64,
    observed_ms: Option<u64>,
    /// Living managers, including this one.
    living: BTreeMap<u64, LivePeer>,
    /// Spending by the epochs of all managers but this one, including dead ones.
    spent: BTreeMap<u64, SpentBy>,
}

#[derive(Debug)]
struct LivePeer {
    record: PeerRecord,
    silent_ms: u64,
}

impl PeerTable {
    /// Creates the table of the manager of this epoch.
    pub fn new(own_epoch: u64) -> PeerTable {
        PeerTable { own_epoch, observed_ms: None, living: BTreeMap::new(), spent: BTreeMap::new() }
    }

    /// Takes in all existing records. Returns the epochs of managers that died, whose spending the caller is to settle
    /// by [`PeerTable::spent_for_good`].
    pub fn observe(&mut self, now_ms: u64, records: Vec<PeerRecord>) -> Vec<u64> {
        let step_ms = self.observed_ms.map_or(0, |last_ms| now_ms.saturating_sub(last_ms).min(MAX_STEP_MS));
        self.observed_ms = Some(now_ms);
        let mut before = std::mem::take(&mut self.living);
        let mut dead = Vec::new();
        for record in records {
            let epoch = record.epoch;
            let silent_ms = match before.remove(&epoch) {
                Some(known) if known.record.beat == record.beat => known.silent_ms + step_ms,
                _ => 0,
            };
            if silent_ms >= SILENCE_MS && epoch != self.own_epoch {
                dead.push(epoch);
            } else {
                self.take_in_spending(&record);
                self.living.insert(epoch, LivePeer { record, silent_ms });
            }
        }
        dead.extend(before.into_keys().filter(|&epoch| epoch != self.own_epoch));
        dead
    }

    /// Sets the spending of tenants through a manager, from the store.
    pub fn spent_for_good(&mut self, epoch: u64, spent: SpentBy) {
        if epoch != self.own_epoch {
            self.spent.insert(epoch, spent);
        }
    }

    /// Returns a tenant's use through the other living managers, and its spending through all other managers ever.
    pub fn elsewhere(&self, tenant: &str) -> TenantUse {
        let mut sum = TenantUse::default();
        for has in
            self.others().flat_map(|record| &record.holdings).filter(|holding| holding.tenant == tenant)
        {
            sum.add_resources(&has.r#use.unwrap_or_default());
        }
        let spent = self.spent.values().filter_map(|spent| spent.get(tenant));
        sum.spent_nano = spent.fold(0, |sum: u64, &spent| sum.saturating_add(spent));
        sum
    }

    /// Returns the tenants with any use or spending through others.
    pub fn tenants(&self) -> impl Iterator<Item = &str> {
        let has = self.others().flat_map(|record| &record.holdings).map(|holding| holding.tenant.as_str());
        let spent = self.spent.values().flat_map(BTreeMap::keys).map(String::as_str);
        let all: std::collections::BTreeSet<&str> = has.chain(spent).collect();
        all.into_iter()
    }

    /// Returns the nodes that other living managers miss, each once, by the earliest of their registrations: a manager
    /// with a later one has an answer.
    pub fn missing(&self) -> Vec<NodeGeneration> {
        each_once(self.others().flat_map(|record| &record.missing), u64::min)
    }

    /// The nodes that other living managers have found, each once, by the latest of their registrations.
    pub fn found(&self) -> Vec<NodeGeneration> {
        each_once(self.others().flat_map(|record| &record.found), u64::max)
    }

    /// Returns the living managers, including this one as soon as it has reported to the others.
    pub fn managers(&self) -> impl Iterator<Item = ManagerInfo> {
        self.living.values().map(|living| &living.record).map(|record| ManagerInfo {
            address: record.address.clone(),
            epoch: record.epoch,
            last_seen_unix_ms: record.last_seen_unix_ms,
            nodes: record.nodes,
            cores_free: record.cores_free,
            global: record.global,
            waiting: record.waiting,
        })
    }

    /// Returns the records of the other living managers that have nodes, or may have some.
    pub fn racks(&self) -> impl Iterator<Item = &PeerRecord> {
        self.others().filter(|record| !record.global)
    }

    fn others(&self) -> impl Iterator<Item = &PeerRecord> {
        let others = self.living.iter().filter(|&(&epoch, _)| epoch != self.own_epoch);
        others.map(|(_, living)| &living.record)
    }

    /// Takes a record's spending in. Spending only grows, so the largest sum reported so far is the latest.
    fn take_in_spending(&mut self, record: &PeerRecord) {
        if record.epoch == self.own_epoch {
            return;
        }
        let known = self.spent.entry(record.epoch).or_default();
        for holding in &record.holdings {
            let said = holding.r#use.map_or(0, |has| has.spent_nano);
            let spent = known.entry(holding.tenant.clone()).or_default();
            *spent = said.max(*spent);
        }
    }
}

fn each_once<'a>(
    nodes: impl Iterator<Item = &'a NodeGeneration>,
    choose: fn(u64, u64) -> u64,
) -> Vec<NodeGeneration> {
    let mut all = BTreeMap::<&str, u64>::new();
    for NodeGeneration { node, generation } in nodes {
        let known = all.entry(node).or_insert(*generation);
        *known = choose(*known, *generation);
    }
    let node = |(node, generation): (&str, u64)| NodeGeneration { node: node.to_owned(), generation };
    all.into_iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1::Holding;

    use super::*;

    fn record(epoch: u64, beat: u64, cores: u32, spent_nano: u64) -> PeerRecord {
        let memory_bytes = u64::from(cores) * 100;
        let has = TenantUse {
            cores,
            memory_bytes,
            memory_pool_bytes: memory_bytes,
            leases: 1,
            spent_nano,
            ..TenantUse::default()
        };
        let holdings = vec![Holding { tenant: "t".into(), r#use: Some(has) }];
        PeerRecord { epoch, beat, holdings, ..PeerRecord::default() }
    }

    #[test]
    fn sums_tenants_use_through_other_managers_only() {
        let mut table = PeerTable::new(1);
        assert!(
            table.observe(0, vec![record(1, 1, 50, 50), record(2, 1, 3, 30), record(3, 1, 4, 40)]).is_empty()
        );
        let has = table.elsewhere("t");
        assert_eq!((has.cores, has.memory_bytes, has.leases, has.spent_nano), (7, 700, 2, 70));
        assert_eq!((has.memory_pool_bytes, has.compute_pool_bytes), (700, 0));
        assert_eq!(table.elsewhere("other"), TenantUse::default());
        assert_eq!(table.tenants().collect::<Vec<_>>(), ["t"]);
        assert_eq!(table.managers().map(|manager| manager.epoch).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn each_missing_node_is_listed_once_and_found_once() {
        let node = |generation| vec![NodeGeneration { node: "n".into(), generation }];
        let missing = |epoch, generation| PeerRecord { missing: node(generation), ..record(epoch, 1, 0, 0) };
        let found = |epoch, generation| PeerRecord { found: node(generation), ..record(epoch, 1, 0, 0) };
        let mut table = PeerTable::new(1);
        table.observe(0, vec![missing(1, 1), missing(2, 5), missing(3, 4), found(4, 6), found(5, 7)]);
        assert_eq!((table.missing(), table.found()), (node(4), node(7)));
        table.observe(0, vec![missing(1, 1), found(1, 9)]);
        assert_eq!((table.missing(), table.found()), (Vec::new(), Vec::new()), "what it says itself");
    }

    #[test]
    fn only_a_record_that_stands_still_is_a_dead_managers() {
        let mut table = PeerTable::new(1);
        for second in 0..20 {
            let dead =
                table.observe(second * 1000, vec![record(2, second, 1, 0), record(3, second / 4, 1, 0)]);
            assert!(dead.is_empty(), "{dead:?} after {second} s");
        }
        let mut died_at_ms = None;
        for now_ms in (20_000..30_000).step_by(500) {
            if table.observe(now_ms, vec![record(2, now_ms, 1, 0), record(3, 4, 1, 0)]) == [3] {
                died_at_ms = Some(now_ms);
                break;
            }
        }
        assert_eq!(died_at_ms, Some(21_000), "5 s after its beat was seen to be 4, at 16 s");
        assert_eq!(table.elsewhere("t").cores, 1);
    }

    #[test]
    fn a_store_that_was_away_kills_nobody() {
        let mut table = PeerTable::new(1);
        table.observe(0, vec![record(2, 1, 1, 0)]);
        assert!(table.observe(3_600_000, vec![record(2, 1, 1, 0)]).is_empty());
        assert!(table.observe(3_601_000, vec![record(2, 2, 1, 0)]).is_empty());
        assert_eq!(table.elsewhere("t").cores, 1);
    }

    #[test]
    fn dead_managers_spending_is_its_sum_in_the_store() {
        let mut table = PeerTable::new(1);
        table.spent_for_good(7, SpentBy::from([("t".to_owned(), 5)]));
        table.spent_for_good(1, SpentBy::from([("t".to_owned(), 1000)]));
        table.observe(0, vec![record(2, 1, 3, 30)]);
        assert_eq!(table.elsewhere("t").spent_nano, 35);
        assert_eq!(table.observe(1000, Vec::new()), [2]);
        table.spent_for_good(2, SpentBy::from([("t".to_owned(), 28)]));
        let has = table.elsewhere("t");
        assert_eq!((has.cores, has.spent_nano), (0, 33));
    }

    #[test]
    fn a_tenant_that_is_no_longer_mentioned_has_still_spent() {
        let mut table = PeerTable::new(1);
        table.observe(0, vec![record(2, 1, 3, 30)]);
        table.observe(1000, vec![PeerRecord { epoch: 2, beat: 2, ..PeerRecord::default() }]);
        let has = table.elsewhere("t");
        assert_eq!((has.cores, has.spent_nano), (0, 30));
    }
}
