//! The nodes with which this one is linked: its operator names them, they name this node, and its manager confirms
//! both.
//!
//! The manager determines the neighbours, but only among the nodes that this node has named or that one of these
//! bridges. So a manager can omit a neighbour, but not invent one. While no manager answers, the known neighbours stay.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_proto::v1::{self, Neighbour};
use sublet_proto::{Error, pu};
use tracing::{info, warn};

use crate::signal::Signal;

/// How long after the node's first registration a neighbour may be missing before the operator is warned.
const PATIENCE: Duration = Duration::from_secs(10);
const SECRET_BYTES: usize = 32;

/// See the [module](self).
pub(crate) struct Neighbours {
    named: Vec<String>,
    known: Mutex<KnownNeighbours>,
    /// Raised when the neighbours change.
    pub(crate) changed: Signal,
}

#[derive(Default)]
struct KnownNeighbours {
    version: u64,
    all: Arc<Vec<Neighbour>>,
    /// When a manager first sent neighbours.
    since: Option<Instant>,
    /// Missing neighbours of which the operator was warned.
    told: BTreeSet<String>,
}

impl Neighbours {
    pub(crate) fn new(named: Vec<String>) -> Result<Neighbours, Error> {
        Ok(Neighbours { named, known: Mutex::default(), changed: Signal::new()? })
    }

    /// Neighbours that are known now.
    pub(crate) fn current(&self) -> Arc<Vec<Neighbour>> {
        lock(&self.known).all.clone()
    }

    /// Version of the neighbours that the node knows, which the manager need not send again.
    pub(crate) fn version(&self) -> u64 {
        lock(&self.known).version
    }

    /// Takes the neighbours that the manager has sent.
    pub(crate) fn learn(&self, told: v1::Neighbours) {
        let v1::Neighbours { version, mut all } = told;
        all.retain(|one| self.may_be(one));
        let mut known = lock(&self.known);
        known.version = version;
        known.since.get_or_insert_with(Instant::now);
        if *known.all != all {
            tell(&known.all, &all);
            known.all = Arc::new(all);
            self.changed.raise();
        }
    }

    fn may_be(&self, one: &Neighbour) -> bool {
        let linked_by = if one.bridge.is_empty() { &one.node } else { &one.bridge };
        let may_be = self.named.contains(linked_by)
            && one.unit == pu::id(&one.node, pu::PROCESSOR)
            && one.secret.len() == SECRET_BYTES;
        if !may_be {
            warn!(node = %one.node.escape_debug(), "the manager reports an invalid neighbour");
        }
        may_be
    }

    /// Tells the operator, once, which of the nodes that were named are still not linked.
    pub(crate) fn complain(&self) {
        for node in self.overdue(Instant::now()) {
            warn!(
                node,
                "a neighbour is not linked: it has to name this node, too, and to be registered with the same manager"
            );
        }
    }

    fn overdue(&self, now: Instant) -> Vec<String> {
        let all = self.current();
        let mut known = lock(&self.known);
        let KnownNeighbours { since, told, .. } = &mut *known;
        if since.is_none_or(|since| now.saturating_duration_since(since) < PATIENCE) {
            return Vec::new();
        }
        let is_linked = |name: &&String| all.iter().any(|one| one.node == **name && one.bridge.is_empty());
        let missing = self.named.iter().filter(|name| !is_linked(name));
        missing.filter(|name| told.insert((*name).clone())).cloned().collect()
    }
}

/// Logs which neighbours have come, or come back with another registration, and which have gone.
fn tell(before: &[Neighbour], after: &[Neighbour]) {
    for Neighbour { node, registration, bridge, .. } in after.iter().filter(|one| !before.contains(one)) {
        if bridge.is_empty() {
            info!(%node, registration, "a neighbour is linked");
        } else {
            info!(%node, registration, by = %bridge, "a neighbour's neighbour is bridged");
        }
    }
    let is_gone = |one: &&Neighbour| after.iter().all(|other| other.node != one.node);
    for Neighbour { node, .. } in before.iter().filter(is_gone) {
        info!(%node, "a neighbour is not linked any more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::wait_readable;
    use std::os::fd::AsFd;

    fn neighbours(named: &[&str]) -> Neighbours {
        Neighbours::new(named.iter().map(|name| name.to_string()).collect()).unwrap()
    }

    fn told(version: u64, nodes: &[(&str, u64)]) -> v1::Neighbours {
        let neighbour = |&(node, registration): &(&str, u64)| Neighbour {
            node: node.into(),
            unit: pu::id(node, pu::PROCESSOR),
            secret: vec![registration as u8; SECRET_BYTES],
            registration,
            ..Neighbour::default()
        };
        v1::Neighbours { version, all: nodes.iter().map(neighbour).collect() }
    }

    fn known(neighbours: &Neighbours) -> Vec<(String, u64)> {
        neighbours.current().iter().map(|one| (one.node.clone(), one.registration)).collect()
    }

    /// Returns whether the neighbours have changed since the last check.
    fn have_changed(neighbours: &Neighbours) -> bool {
        let raised = wait_readable([Some(neighbours.changed.as_fd())], Some(Instant::now())).unwrap()[0];
        neighbours.changed.clear();
        raised
    }

    #[test]
    fn replaces_neighbours_and_reports_each_change_once() {
        let neighbours = neighbours(&["a", "b"]);
        neighbours.learn(told(0, &[]));
        assert!(!have_changed(&neighbours), "there were none");
        neighbours.learn(told(3, &[("a", 1), ("b", 2)]));
        assert!(have_changed(&neighbours));
        assert_eq!(known(&neighbours), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
        neighbours.learn(told(4, &[("a", 1), ("b", 2)]));
        assert!(!have_changed(&neighbours) && neighbours.version() == 4, "another manager says the same");
        neighbours.learn(told(5, &[("b", 9)]));
        assert!(have_changed(&neighbours));
        assert_eq!(known(&neighbours), [("b".to_owned(), 9)]);
    }

    #[test]
    fn ignores_unnamed_neighbours_and_those_without_valid_secrets() {
        let neighbours = neighbours(&["a", "b", "c"]);
        let mut said = told(1, &[("a", 1), ("b", 2), ("c", 3), ("stranger", 4)]);
        said.all[0].secret.pop();
        said.all[1].unit += 1;
        neighbours.learn(said);
        assert_eq!(known(&neighbours), [("c".to_owned(), 3)]);
        assert_eq!(neighbours.version(), 1);
    }

    #[test]
    fn reports_each_neighbour_not_linked_in_time_once() {
        let neighbours = neighbours(&["a", "b"]);
        let late = || Instant::now() + PATIENCE;
        assert!(neighbours.overdue(late()).is_empty(), "no manager has answered yet");
        neighbours.learn(told(1, &[("a", 1)]));
        assert!(neighbours.overdue(Instant::now()).is_empty(), "it may be starting");
        assert_eq!(neighbours.overdue(late()), ["b"]);
        assert!(neighbours.overdue(late()).is_empty());
        neighbours.learn(told(2, &[]));
        assert_eq!(neighbours.overdue(late()), ["a"]);
    }
}
