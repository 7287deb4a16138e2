//! Racks: nodes that are near each other (Scad 4.1.1, step 2), and which of them has the most free.
//!
//! A rack relates to other racks as a node to other nodes: it has a name, and a rank by its free resources. If a
//! request names no rack, the one with the most free is searched first, and the choice within a rank is random: that
//! balances them.

use std::collections::HashMap;

use sublet_proto::pool::Pool;
use sublet_proto::{Code, Error};

use super::chance::Chance;
use super::ids::{NodeKey, RackKey};
use super::pools::{COUNT, Pools};
use super::ranked::{RankIndex, RankPosition};

/// Most racks of one manager.
pub const MAX_RACKS: usize = 1024;

/// Measure of free capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    Workers,
    MemoryBytes,
}

/// Free resources of a node that takes leases, or of all such nodes of a rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) workers: u64,
    /// Wide enough for the sum over [`MAX_NODES`](super::MAX_NODES) nodes, whatever each agent says that it has.
    pub(super) memory_bytes: u128,
}

#[derive(Debug, Default)]
struct Rack {
    name: String,
    /// Number of nodes that name it. A rack without nodes is used for another name.
    nodes: u32,
    free: Free,
    /// Position in the ranked list of each measure.
    places: [Option<RankPosition>; 2],
}

/// Every rack.
#[derive(Debug)]
pub(super) struct Racks {
    known: Vec<Rack>,
    unused: Vec<RackKey>,
    by_name: HashMap<String, RackKey>,
    /// Racks by the magnitude of their free resources, for each measure.
    ranks: [RankIndex<RackKey>; 2],
}

impl Default for Racks {
    fn default() -> Racks {
        Racks {
            known: vec![Rack::default()],
            unused: Vec::new(),
            by_name: HashMap::from([(String::new(), RackKey::NONE)]),
            ranks: Default::default(),
        }
    }
}

impl Racks {
    /// Whether a node may name this one: an agent that names one rack after the other fills no table.
    pub(super) fn check(&self, name: &str) -> Result<(), Error> {
        // The first rack is that of nodes that name none.
        let has_space = self.known.len() - self.unused.len() <= MAX_RACKS;
        if has_space || self.by_name.contains_key(name) {
            return Ok(());
        }
        let message = format!("there are {MAX_RACKS} racks already, and {name:?} is another");
        Err(Error::new(Code::InvalidArgument, message))
    }

    /// A node names it.
    pub(super) fn join(&mut self, name: &str) -> RackKey {
        let key = self.by_name.get(name).copied().unwrap_or_else(|| self.add(name));
        self.known[usize::from(key.0)].nodes += 1;
        key
    }

    fn add(&mut self, name: &str) -> RackKey {
        let key = self.unused.pop().unwrap_or_else(|| {
            self.known.push(Rack::default());
            #[expect(clippy::cast_possible_truncation, reason = "`check` admits `MAX_RACKS`")]
            let key = (self.known.len() - 1) as u16;
            RackKey(key)
        });
        self.known[usize::from(key.0)].name = name.to_owned();
        self.by_name.insert(name.to_owned(), key);
        key
    }

    /// Removes a node from its rack. Its resources must not be counted any more.
    pub(super) fn leave(&mut self, key: RackKey) {
        let rack = &mut self.known[usize::from(key.0)];
        debug_assert!(rack.nodes > 0, "a node left rack {:?}, which has none", rack.name);
        rack.nodes -= 1;
        debug_assert!(
            rack.nodes > 0 || rack.free == Free::default(),
            "rack {:?} has no nodes, and {:?} free",
            rack.name,
            rack.free
        );
        if rack.nodes == 0 && key != RackKey::NONE {
            self.by_name.remove(&std::mem::take(&mut rack.name));
            self.unused.push(key);
        }
    }

    /// Replaces the free resources of one of a rack's nodes.
    pub(super) fn count(&mut self, key: RackKey, before: Free, now: Free) {
        let rack = &mut self.known[usize::from(key.0)];
        debug_assert!(
            before.workers <= rack.free.workers && before.memory_bytes <= rack.free.memory_bytes,
            "a node of rack {:?} has {before:?} free, and the rack only {:?}",
            rack.name,
            rack.free
        );
        rack.free.workers = rack.free.workers + now.workers - before.workers;
        rack.free.memory_bytes = rack.free.memory_bytes + now.memory_bytes - before.memory_bytes;
        let measured = [u128::from(rack.free.workers), rack.free.memory_bytes];
        for (measure, free) in measured.into_iter().enumerate() {
            let (place, rank) = (self.known[usize::from(key.0)].places[measure], free.checked_ilog2());
            if place.map(|place| place.rank) == rank {
                continue;
            }
            let ranks = &mut self.ranks[measure];
            if let Some(place) = place
                && let Some(moved) = ranks.remove(place)
            {
                self.known[usize::from(moved.0)].places[measure] = Some(place);
            }
            self.known[usize::from(key.0)].places[measure] = rank.map(|rank| ranks.insert(rank, key));
        }
    }

    /// Racks that have anything free, those with the most first.
    pub(super) fn with_most_capacity(
        &self,
        measure: Measure,
        chance: &mut Chance,
    ) -> impl Iterator<Item = RackKey> + '_ {
        let first = if self.known.len() > 1 { chance.below(self.known.len()) } else { 0 };
        self.ranks[measure as usize].downwards(first).map(|(_, key)| key)
    }

    /// Keys of all racks, including those that no node names.
    pub(super) fn keys(&self) -> impl Iterator<Item = RackKey> + use<> {
        (0..).take(self.known.len()).map(RackKey)
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn free(&self, key: RackKey) -> Free {
        self.known[usize::from(key.0)].free
    }
}

/// Nodes of one rack and one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RackPool {
    pub(super) rack: RackKey,
    pub(super) pool: Pool,
}

/// Position of a node among others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    group: RackPool,
    place: RankPosition,
}

impl Spot {
    pub(super) fn rank(self) -> u32 {
        self.place.rank
    }

    pub(super) fn group(self) -> RackPool {
        self.group
    }
}

/// Nodes whose positions have changed, with their new positions.
pub(super) type Shifted = [Option<(NodeKey, Option<Spot>)>; 2];

/// Nodes by their group, and in it by rank.
#[derive(Debug, Default)]
pub(super) struct GroupedNodes {
    racks: Vec<[RankIndex<NodeKey>; COUNT]>,
}

impl GroupedNodes {
    /// The nodes of a group, if there ever were any.
    pub(super) fn list(&self, group: RackPool) -> Option<&RankIndex<NodeKey>> {
        self.racks.get(usize::from(group.rack.0)).map(|pools| &pools[group.pool as usize])
    }

    /// Moves a node from its position, if it has one, to a rank of a group, if given.
    pub(super) fn shift(
        &mut self,
        node: NodeKey,
        from: Option<Spot>,
        to: Option<(RackPool, u32)>,
    ) -> Shifted {
        debug_assert!(
            from.is_none_or(|spot| self.at(spot) == Some(node)),
            "{node:?} is not at {from:?}, but {:?} is",
            from.and_then(|spot| self.at(spot))
        );
        let other = from.and_then(|spot| Some((self.list_mut(spot.group).remove(spot.place)?, Some(spot))));
        let spot = to.map(|(group, rank)| Spot { group, place: self.list_mut(group).insert(rank, node) });
        [other, Some((node, spot))]
    }

    /// The highest rank of a node in one of these pools.
    pub(super) fn highest(&self, pools: Pools) -> u32 {
        let of_rack = |rack: &[RankIndex<NodeKey>; COUNT]| {
            let lists = Pool::ALL.into_iter().filter(|&pool| pools.has(pool));
            lists.filter_map(|pool| rack[pool as usize].highest()).max()
        };
        self.racks.iter().filter_map(of_rack).max().unwrap_or(0)
    }

    fn list_mut(&mut self, group: RackPool) -> &mut RankIndex<NodeKey> {
        let rack = usize::from(group.rack.0);
        if self.racks.len() <= rack {
            self.racks.resize_with(rack + 1, Default::default);
        }
        &mut self.racks[rack][group.pool as usize]
    }

    pub(super) fn at(&self, spot: Spot) -> Option<NodeKey> {
        self.list(spot.group)?.at(spot.place)
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn len(&self) -> usize {
        self.racks.iter().flatten().map(RankIndex::len).sum()
    }
}
