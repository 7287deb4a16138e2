//! Prefers nodes for a lease among those where it fits: beside the nodes it communicates with, or where leases with the
//! same key have run (Scad 4.1.1, steps 1 to 4). If none of these has enough free, the lists by rank decide (step 5). A
//! pool that a request names is mandatory, and so is a node, for a program that a process spawns there.
//!
//! Leases with the same key begin to look at the same slot of a ring of nodes, so the same nodes have their environment
//! warm, and a node that comes or goes moves few of them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use sublet_proto::pool::Pool;
use sublet_proto::v1::LeaseRequest;
use sublet_proto::{Code, Error};

use super::ids::NodeKey;
use super::pools::Pools;

/// Most nodes that a request may name, and the longest name of one, in bytes.
pub const MAX_NEAR: usize = 16;
const MAX_NODE_NAME_BYTES: usize = 64;
/// Longest key, in bytes: an application's name and a component's.
const MAX_KEY_BYTES: usize = 192;
/// Most nodes of the ring that are examined, and most that are passed over to find those of a pool.
const LOOKS: usize = 8;
const PASSED_OVER: usize = 64;

/// A request's preferences and limits for its nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// Names of nodes, the best first.
    near: Vec<String>,
    /// The one node where the lease must be, if the request names it.
    pub(super) only: Option<Arc<str>>,
    /// Position in the ring at which the search begins.
    warm: Option<u64>,
    /// Pools in which the lease may be.
    pub(super) pools: Pools,
}

impl Default for Locality {
    fn default() -> Locality {
        Locality { near: Vec::new(), only: None, warm: None, pools: Pools::ALL }
    }
}

impl Locality {
    /// Requires this node.
    pub fn on(node: Arc<str>) -> Locality {
        Locality { only: Some(node), ..Locality::default() }
    }

    /// Reads the preferences of a request.
    ///
    /// # Errors
    /// `invalid_argument` with the limit, or for a pool that does not exist.
    pub fn of(asked: &LeaseRequest) -> Result<Locality, Error> {
        let invalid = |message: String| Err(Error::new(Code::InvalidArgument, message));
        let LeaseRequest { near, warm, pool, .. } = asked;
        if near.len() > MAX_NEAR {
            return invalid(format!("{} nodes to be near to, at most {MAX_NEAR} are taken", near.len()));
        }
        if let Some(long) = near.iter().find(|name| name.len() > MAX_NODE_NAME_BYTES) {
            return invalid(format!(
                "a node has at most {MAX_NODE_NAME_BYTES} bytes of name, and not {}",
                long.len()
            ));
        }
        if warm.len() > MAX_KEY_BYTES {
            return invalid(format!("a key of {} bytes, at most {MAX_KEY_BYTES} are taken", warm.len()));
        }
        let (near, pools) = (near.clone(), Pools::said(Pool::said(pool)?));
        Ok(Locality { near, only: None, warm: (!warm.is_empty()).then(|| place_of(warm)), pools })
    }

    /// Nodes to be near to.
    pub(super) fn near(&self) -> impl Iterator<Item = &str> {
        self.near.iter().map(String::as_str)
    }

    /// Nodes of a ring and a pool where leases with the same key have run, if the request has a key.
    pub(super) fn warm<'ring>(
        &self,
        ring: &'ring NodeRing,
        is_of_pool: impl Fn(&NodeKey) -> bool + 'ring,
    ) -> impl Iterator<Item = NodeKey> + 'ring {
        let nodes = self.warm.into_iter().flat_map(|from| ring.from(from).take(PASSED_OVER));
        nodes.filter(is_of_pool).take(LOOKS)
    }
}

/// Nodes in the order of their names' hashes.
#[derive(Debug, Default)]
pub(super) struct NodeRing(Vec<(u64, NodeKey)>);

impl NodeRing {
    /// Inserts a node, unless it is in the ring.
    pub(super) fn insert(&mut self, name: &str, node: NodeKey) {
        let place = place_of(name);
        if let Err(at) = self.find(place, node) {
            debug_assert!(
                at == 0 || self.0[at - 1] < (place, node),
                "the ring is not in order before {name}"
            );
            self.0.insert(at, (place, node));
        }
    }

    pub(super) fn remove(&mut self, name: &str, node: NodeKey) {
        let at = self.find(place_of(name), node);
        debug_assert!(at.is_ok(), "node {name} leaves a ring in which it is not");
        if let Ok(at) = at {
            self.0.remove(at);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them, once around.
    fn from(&self, place: u64) -> impl Iterator<Item = NodeKey> + '_ {
        let first = self.0.partition_point(|(other, _)| *other < place);
        self.0[first..].iter().chain(&self.0[..first]).map(|(_, node)| *node)
    }

    fn find(&self, place: u64, node: NodeKey) -> Result<usize, usize> {
        self.0.binary_search(&(place, node))
    }
}

/// The same for the same name as long as the manager runs, and spread evenly over all names.
fn place_of(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(nodes: impl IntoIterator<Item = u32>) -> NodeRing {
        let mut ring = NodeRing::default();
        nodes.into_iter().for_each(|node| ring.insert(&format!("node-{node}"), NodeKey(node)));
        ring
    }

    fn first(ring: &NodeRing, key: &str) -> u32 {
        ring.from(place_of(key)).next().unwrap().0
    }

    #[test]
    fn a_key_leads_to_the_same_node_and_keys_spread() {
        let ring = ring(0..100);
        let mut counts = [0u32; 100];
        for key in 0..10_000 {
            counts[first(&ring, &format!("app/{key}")) as usize] += 1;
        }
        assert!(counts.iter().filter(|count| **count > 0).count() > 90, "{counts:?}");
        assert_eq!(ring.from(7).count(), 100);
    }

    #[test]
    fn removing_a_node_moves_only_its_own_keys() {
        let mut ring = ring(0..100);
        let keys: Vec<String> = (0..1000).map(|key| format!("app/{key}")).collect();
        let before: Vec<u32> = keys.iter().map(|key| first(&ring, key)).collect();
        ring.remove("node-17", NodeKey(17));
        for (key, before) in keys.iter().zip(before) {
            let now = first(&ring, key);
            assert!(now != 17 && (now == before || before == 17), "{key}: {before} {now}");
        }
        ring.insert("node-17", NodeKey(17));
        ring.insert("node-17", NodeKey(17));
        assert_eq!(ring.from(0).count(), 100);
    }

    #[test]
    fn what_no_request_can_say_is_refused_with_the_limit() {
        let near = |names: Vec<String>| LeaseRequest { near: names, ..LeaseRequest::default() };
        for (asked, named) in [
            (near(vec!["n".into(); 17]), "17"),
            (near(vec!["n".repeat(65)]), "65"),
            (LeaseRequest { warm: "k".repeat(193), ..LeaseRequest::default() }, "193"),
            (LeaseRequest { pool: "fast".into(), ..LeaseRequest::default() }, "fast"),
        ] {
            let error = Locality::of(&asked).unwrap_err();
            assert!(error.code == Code::InvalidArgument && error.message.contains(named), "{error}");
        }
        assert_eq!(Locality::of(&LeaseRequest::default()).unwrap(), Locality::default());
    }
}
