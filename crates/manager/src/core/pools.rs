//! Determines the pool of a node, and the pools in which a lease is placed (Scad, sections 4 and 4.1.1, step 5).
//!
//! A node names its pool, or the manager assigns one by the node's free resources: then pools are virtual, and nodes
//! move between them as leases begin and end. A lease names its pool, or is placed by its resources:
//!
//! ```text
//! a segment                                 memory, then balanced, then compute
//! workers with little memory each           compute, then balanced, then memory
//! workers with more                         balanced, then compute, then memory
//! ```
//!
//! Only a segment that names the pool of disks is placed there.

use sublet_proto::pool::Pool;

use super::resources::NodeCapacity;
use super::terms::LeaseTerms;

/// Number of pools.
pub(super) const COUNT: usize = Pool::ALL.len();
/// Most memory of each worker of a lease that is one of cores alone (Scad 4.3.1).
const LITTLE_MEMORY_BYTES: u64 = 256 << 20;
/// Factor over the usual memory for each core that puts a node into the memory pool, or under it into the compute pool.
const FAR_FROM_USUAL: u128 = 2;

/// The pool of a node that has this left. `usual_bytes` is the memory for each core that nodes of the balanced pool have, if
/// pools are virtual.
pub(super) fn of(said: Option<Pool>, free: NodeCapacity, usual_bytes: Option<u64>) -> Pool {
    let Some(usual_bytes) = usual_bytes.filter(|_| said.is_none()) else {
        return said.unwrap_or(Pool::Balanced);
    };
    let workers = u128::from(free.cores) + u128::from(free.places);
    let (usual, memory) = (workers * u128::from(usual_bytes), u128::from(free.memory_bytes));
    if memory > usual * FAR_FROM_USUAL {
        Pool::Memory
    } else if memory * FAR_FROM_USUAL < usual {
        Pool::Compute
    } else {
        Pool::Balanced
    }
}

/// Some of the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pools(u8);

impl Pools {
    pub(super) const NONE: Pools = Pools(0);
    /// All pools of memory.
    pub(super) const ALL: Pools = Pools((1 << Pool::Flash as u8) - 1);
    pub(super) const FLASH: Pools = Pools(1 << Pool::Flash as u8);

    /// Returns the named pool, or all of memory.
    pub(super) fn said(pool: Option<Pool>) -> Pools {
        pool.map_or(Pools::ALL, |pool| Pools::NONE.with(pool))
    }

    pub(super) fn with(self, pool: Pool) -> Pools {
        Pools(self.0 | 1 << pool as u8)
    }

    pub(super) fn without(self, others: Pools) -> Pools {
        Pools(self.0 & !others.0)
    }

    pub(super) fn has(self, pool: Pool) -> bool {
        self.0 & 1 << pool as u8 != 0
    }

    pub(super) fn meets(self, others: Pools) -> bool {
        self.0 & others.0 != 0
    }

    pub(super) fn is_empty(self) -> bool {
        self == Pools::NONE
    }

    /// Returns the pools in the order of the search for a lease of these terms.
    pub(super) fn in_order(self, terms: &LeaseTerms) -> impl Iterator<Item = Pool> + Clone + use<> {
        let order = if terms.is_segment() {
            [Pool::Memory, Pool::Balanced, Pool::Compute, Pool::Flash]
        } else if terms.memory_bytes <= LITTLE_MEMORY_BYTES.saturating_mul(terms.workers.into()) {
            [Pool::Compute, Pool::Balanced, Pool::Memory, Pool::Flash]
        } else {
            [Pool::Balanced, Pool::Compute, Pool::Memory, Pool::Flash]
        };
        order.into_iter().filter(move |&pool| self.has(pool))
    }

    /// Returns the searched pools as a refusal names them.
    pub(super) fn place(self) -> String {
        let names: Vec<&str> = Pool::ALL.into_iter().filter(|&pool| self.has(pool)).map(Pool::name).collect();
        match names.as_slice() {
            _ if self == Pools::ALL => String::new(),
            names => format!(" in the {} pool", names.join(" or ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1::LeaseRequest;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn order(cores: u32, memory_bytes: u64, pools: Pools) -> Vec<Pool> {
        let package = if cores > 0 { "p".into() } else { String::new() };
        let asked = LeaseRequest { cores, memory_bytes, package, ..LeaseRequest::default() };
        pools.in_order(&LeaseTerms::of(&asked).unwrap()).collect()
    }

    #[test]
    fn what_a_lease_holds_says_where_it_goes_first() {
        use Pool::{Balanced, Compute, Memory};
        assert_eq!(order(0, GIB, Pools::ALL), [Memory, Balanced, Compute]);
        assert_eq!(order(4, 0, Pools::ALL), [Compute, Balanced, Memory]);
        assert_eq!(order(4, GIB, Pools::ALL), [Compute, Balanced, Memory]);
        assert_eq!(order(4, GIB + 4096, Pools::ALL), [Balanced, Compute, Memory]);
        assert_eq!(order(4, GIB, Pools::said(Some(Memory))), [Memory]);
        assert_eq!(order(4, GIB, Pools::ALL.without(Pools::said(Some(Compute)))), [Balanced, Memory]);
        assert!(order(4, GIB, Pools::NONE).is_empty());
        assert_eq!(order(0, GIB, Pools::said(Some(Pool::Flash))), [Pool::Flash]);
        assert_eq!(Pools::said(Some(Pool::Flash)), Pools::FLASH);
    }

    #[test]
    fn node_is_in_its_named_pool_or_its_virtual_one() {
        let room = |cores, gib| NodeCapacity { cores, places: 0, memory_bytes: gib * GIB };
        let usual = Some(4 * GIB);
        for (left, pool) in [
            (room(4, 16), Pool::Balanced),
            (room(4, 8), Pool::Balanced),
            (room(4, 32), Pool::Balanced),
            (room(4, 7), Pool::Compute),
            (room(4, 33), Pool::Memory),
            (room(0, 1), Pool::Memory),
            (room(1, 0), Pool::Compute),
            (room(0, 0), Pool::Balanced),
            (NodeCapacity { places: 16, ..room(0, 16) }, Pool::Compute),
        ] {
            assert_eq!(of(None, left, usual), pool, "{left:?}");
            assert_eq!(of(None, left, None), Pool::Balanced);
            assert_eq!(of(Some(Pool::Memory), left, usual), Pool::Memory);
        }
    }

    #[test]
    fn refusal_names_the_searched_pools_unless_all() {
        assert_eq!(Pools::ALL.place(), "");
        assert_eq!(Pools::said(Some(Pool::Memory)).place(), " in the memory pool");
    }
}
