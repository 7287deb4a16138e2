//! The other managers of one store: which are alive, and what tenants use through them.
//!
//! Each manager writes a record under its epoch each second, or more often, and reads those of the others. A manager
//! whose record stands still is dead: only its own changes count, seen by this manager's clock while this manager could
//! read the store. So neither clocks that differ nor an unreachable store make a living manager count as dead.
//!
//! A tenant's current use goes with its manager. Its *spending* stays: each manager keeps its own sum for each tenant
//! in the store ([`Spending`]), and the tenant's spending is the total of all sums ever written. Sums of managers that
//! are gone are [merged](merge) later.
//!
//! An agent that goes from one manager to another tells only the latter. So each manager lists in its record the nodes
//! that it misses, and those of the nodes that others miss which it has by now: leases of a node count once.
//!
//! [`PeerTable`] decides without any I/O; [`Peers`] reads and writes for it.

mod merge;
mod spending;
mod table;

use std::collections::{BTreeMap, HashMap};

use prost::Message;
use sublet_proto::v1::{Holding, NodeGeneration, NodeGroup, PeerRecord, SpendRecord};
use sublet_proto::{Error, decode};

use self::merge::epoch_and_tenant;
pub(crate) use self::merge::{Spenders, merge, note};
pub use self::spending::Spending;
pub use self::table::{PeerTable, SpentBy};
use crate::store::{Batch, MAX_VALUE_BYTES, Store, each_record, keys};

/// Most managers of one store.
pub const MAX_PEERS: usize = 256;
/// Tenants that a manager lists in one record: those with most cores.
pub const MAX_HOLDINGS: usize = 4096;
/// Bytes of a message within another one beside its own encoding: its tag and its length.
const FRAME_BYTES: usize = 4;

/// A manager's report to the others.
#[derive(Clone, Debug, Default)]
pub struct ManagerReport {
    /// Address at which clients and agents reach it.
    pub address: String,
    /// Time by its own clock.
    pub now_unix_ms: u64,
    /// Nodes that are registered with it.
    pub nodes: u32,
    /// Cores that it could lease now.
    pub cores_free: u32,
    /// Use and spending through it, of tenants that have leases or had some within the last minute.
    pub holdings: Vec<Holding>,
    /// Nodes that have not reported to it lately.
    pub missing: Vec<NodeGeneration>,
    /// Nodes that others miss and that are registered with it.
    pub found: Vec<NodeGeneration>,
    /// Whether it is a global manager, which has no nodes.
    pub global: bool,
    /// Requests that wait with it.
    pub waiting: u32,
    /// Groups of its nodes, for a global manager.
    pub groups: Vec<NodeGroup>,
}

/// A manager's membership among the others.
#[derive(Debug)]
pub struct Peers {
    epoch: u64,
    beat: u64,
    table: PeerTable,
    /// Number of missing nodes that were listed so far; nodes that are listed again count again.
    missed: usize,
    /// Cost of each lease that others have counted, where its own record may not say so.
    counted: HashMap<String, u64>,
}

impl Peers {
    /// Joins under this epoch, and reads the tenants' spending so far.
    pub fn join(store: &dyn Store, epoch: u64) -> Result<Peers, Error> {
        let mut peers =
            Peers { epoch, beat: 0, table: PeerTable::new(epoch), missed: 0, counted: HashMap::new() };
        let merged = format!("{}{}/", keys::SPEND, keys::epoch(merge::MERGED));
        loop {
            let before = store.scan(&merged, None, usize::MAX)?;
            let spent = peers.read_spending(store, keys::SPEND)?;
            // Another manager may have merged records meanwhile.
            if store.scan(&merged, None, usize::MAX)? == before {
                spent.into_iter().for_each(|(of, spent)| peers.table.spent_for_good(of, spent));
                return Ok(peers);
            }
        }
    }

    /// Returns the living managers, and what tenants use through them.
    pub fn table(&self) -> &PeerTable {
        &self.table
    }

    /// Reports on this manager to the others, and reads their reports. Call it each second, or more often, with a clock
    /// that only goes forward.
    pub fn exchange(
        &mut self,
        store: &mut dyn Store,
        now_ms: u64,
        standing: ManagerReport,
    ) -> Result<(), Error> {
        self.beat += 1;
        let mut batch = Batch::default();
        batch.put(self.key(), self.record(standing).encode_to_vec());
        store.commit(&batch)?;
        let found = store.scan(keys::PEER, None, MAX_PEERS)?;
        let records: Result<Vec<PeerRecord>, Error> =
            found.iter().map(|found| decode("a manager's record", &found.value)).collect();
        for dead in self.table.observe(now_ms, records?) {
            self.bury(store, dead)?;
        }
        Ok(())
    }

    /// Returns the part of a lease's cost that was counted as spent before this manager took the lease over, given the
    /// cost by the lease's stored record.
    pub fn counted(&self, lease: &str, stored_cost_nano: u64) -> u64 {
        self.counted.get(lease).map_or(stored_cost_nano, |&counted| counted.max(stored_cost_nano))
    }

    /// Leaves: the others need not wait to see that this manager is gone.
    pub fn leave(&self, store: &mut dyn Store) -> Result<(), Error> {
        let mut batch = Batch::default();
        batch.remove(self.key());
        store.commit(&batch)
    }

    /// Replaces a dead manager's counts by its stored sums, and removes its record. A manager that lives after all
    /// writes itself anew.
    fn bury(&mut self, store: &mut dyn Store, dead: u64) -> Result<(), Error> {
        let prefix = format!("{}{}/", keys::SPEND, keys::epoch(dead));
        let spent = self.read_spending(store, &prefix)?.remove(&dead).unwrap_or_default();
        self.table.spent_for_good(dead, spent);
        let mut batch = Batch::default();
        batch.remove(format!("{}{}", keys::PEER, keys::epoch(dead)));
        store.commit(&batch)
    }

    fn read_spending(&mut self, store: &dyn Store, prefix: &str) -> Result<BTreeMap<u64, SpentBy>, Error> {
        let mut found: BTreeMap<u64, SpentBy> = BTreeMap::new();
        let mut through: HashMap<String, u64> = HashMap::new();
        each_record(store, prefix, |record| {
            let Some((epoch, tenant)) = epoch_and_tenant(&record.key) else { return Ok(()) };
            let spend: SpendRecord = decode("a record of spending", &record.value)?;
            if epoch == merge::MERGED {
                through.insert(tenant.to_owned(), spend.through_epoch);
            } else if through.get(tenant).is_some_and(|&through| epoch <= through) {
                return Ok(());
            }
            found.entry(epoch).or_default().insert(tenant.to_owned(), spend.spent_nano);
            for lease in spend.counted {
                let counted = self.counted.entry(lease.lease).or_default();
                *counted = lease.cost_nano.max(*counted);
            }
            Ok(())
        })?;
        Ok(found)
    }

    fn key(&self) -> String {
        format!("{}{}", keys::PEER, keys::epoch(self.epoch))
    }

    /// Builds the record, with no more nodes than its size allows. Nodes that are found are not missing any more, which
    /// frees space for others; nodes that stay missing take turns.
    fn record(&mut self, mut standing: ManagerReport) -> PeerRecord {
        let cores = |holding: &Holding| holding.r#use.map_or(0, |has| has.cores);
        standing.holdings.sort_by_key(|holding| std::cmp::Reverse(cores(holding)));
        standing.holdings.truncate(MAX_HOLDINGS);
        let mut record = PeerRecord {
            epoch: self.epoch,
            beat: self.beat,
            address: standing.address,
            last_seen_unix_ms: standing.now_unix_ms,
            nodes: standing.nodes,
            cores_free: standing.cores_free,
            holdings: standing.holdings,
            global: standing.global,
            waiting: standing.waiting,
            groups: standing.groups,
            ..PeerRecord::default()
        };
        let space_bytes = MAX_VALUE_BYTES.saturating_sub(record.encoded_len());
        record.found = fitting(standing.found, space_bytes / 2);
        let first = self.missed % standing.missing.len().max(1);
        standing.missing.rotate_left(first);
        record.missing = fitting(standing.missing, space_bytes / 2);
        self.missed = first + record.missing.len();
        record
    }
}

/// Returns the first nodes, up to `space_bytes` bytes of a record.
fn fitting(mut nodes: Vec<NodeGeneration>, mut space_bytes: usize) -> Vec<NodeGeneration> {
    let count = nodes.iter().take_while(|node| {
        let left_bytes = space_bytes.checked_sub(node.encoded_len() + FRAME_BYTES);
        space_bytes = left_bytes.unwrap_or_default();
        left_bytes.is_some()
    });
    let count = count.count();
    nodes.truncate(count);
    nodes
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1::TenantUse;

    use super::*;
    use crate::store::SqliteStore;

    fn store() -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        (folder, store)
    }

    fn with_cores(cores: u32) -> ManagerReport {
        let has = TenantUse { cores, ..TenantUse::default() };
        let holdings = vec![Holding { tenant: "t".into(), r#use: Some(has) }];
        ManagerReport { address: "https://a:1".into(), holdings, ..ManagerReport::default() }
    }

    #[test]
    fn silent_manager_is_dropped_and_its_spending_stays() {
        let (_folder, mut store) = store();
        let mut dying = Peers::join(&store, 1).unwrap();
        let mut spending = Spending::new(1);
        spending.count("t", "l", 70);
        let mut batch = Batch::default();
        spending.put_first(&mut batch);
        store.commit(&batch).unwrap();
        let mut living = Peers::join(&store, 2).unwrap();
        dying.exchange(&mut store, 0, with_cores(3)).unwrap();
        for second in 0..=4 {
            living.exchange(&mut store, 1000 * second, with_cores(1)).unwrap();
            assert_eq!(living.table().elsewhere("t").cores, 3, "after {second} s");
        }
        living.exchange(&mut store, 5000, with_cores(1)).unwrap();
        let left = living.table().elsewhere("t");
        assert_eq!((left.cores, left.spent_nano), (0, 70));
        assert_eq!(living.table().managers().count(), 1);
        assert_eq!(living.counted("l", 50), 70, "its lease's record was not written any more");
        dying.exchange(&mut store, 0, with_cores(3)).unwrap();
        living.exchange(&mut store, 6000, with_cores(1)).unwrap();
        assert_eq!(living.table().elsewhere("t").cores, 3, "it lived after all");
    }

    #[test]
    fn a_manager_that_leaves_is_gone_at_once() {
        let (_folder, mut store) = store();
        let mut leaving = Peers::join(&store, 1).unwrap();
        let mut staying = Peers::join(&store, 2).unwrap();
        leaving.exchange(&mut store, 0, with_cores(3)).unwrap();
        staying.exchange(&mut store, 0, with_cores(1)).unwrap();
        assert_eq!(staying.table().managers().count(), 2);
        leaving.leave(&mut store).unwrap();
        staying.exchange(&mut store, 1, with_cores(1)).unwrap();
        assert_eq!(staying.table().managers().count(), 1);
        assert_eq!(staying.table().elsewhere("t").cores, 0);
    }

    #[test]
    fn record_lists_the_nodes_that_fit_and_all_in_turn() {
        let (_folder, mut store) = store();
        let mut peers = Peers::join(&store, 1).unwrap();
        let node = |number: usize| NodeGeneration { node: format!("{number:0>64}"), generation: u64::MAX };
        let (nodes, tenants) = (20_000, MAX_HOLDINGS + 1);
        let most = TenantUse {
            cores: u32::MAX,
            memory_bytes: u64::MAX,
            leases: u32::MAX,
            spent_nano: u64::MAX,
            ..TenantUse::default()
        };
        let holding = |number| Holding { tenant: format!("{number:0>64}"), r#use: Some(most) };
        let mut seen = std::collections::BTreeSet::new();
        for beat in 0..100 {
            let holdings = if beat == 0 { (0..tenants).map(holding).collect() } else { Vec::new() };
            let (missing, found) = ((0..nodes).map(node).collect(), (0..nodes).map(node).collect());
            peers
                .exchange(
                    &mut store,
                    beat,
                    ManagerReport { holdings, missing, found, ..ManagerReport::default() },
                )
                .unwrap();
            let stored = store.get(&peers.key()).unwrap().unwrap();
            let record = PeerRecord::decode(stored.value.as_slice()).unwrap();
            assert!(record.found.len() > 500 && record.missing.len() > 500, "{}", record.found.len());
            seen.extend(record.missing.into_iter().map(|missing| missing.node));
        }
        assert_eq!(seen.len(), nodes);
    }

    #[test]
    fn a_manager_that_starts_knows_what_was_spent_before() {
        let (_folder, mut store) = store();
        for epoch in 1..=3 {
            let mut spending = Spending::new(epoch);
            spending.count("t", "l", 10 * epoch);
            spending.count("a/b", "m", 1);
            let mut batch = Batch::default();
            spending.put_first(&mut batch);
            store.commit(&batch).unwrap();
        }
        let peers = Peers::join(&store, 4).unwrap();
        assert_eq!(peers.table().elsewhere("t").spent_nano, 60);
        assert_eq!(peers.table().elsewhere("a/b").spent_nano, 3);
        assert_eq!(peers.counted("l", 7), 30);
    }
}
