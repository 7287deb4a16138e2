//! Decides which sets of modules have processes on standby: by how often and how recently each was asked for, whose it
//! is, and memory. It is pure: [`Templates`](super::templates) acts on the decisions.
//!
//! The memory of all processes on standby has equal shares for the owners whose sets have processes or could have them now.
//! The node itself is the owner of the sets of its own interpreter. An owner may use more than its share while no other
//! owner needs it. For another owner, only processes of an owner beyond its share make way, and only until the other owner
//! has its own share. Within an owner, sets that are asked for less make way.

use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of sets of one tenant that are remembered.
pub(super) const MAX_OF_TENANT: usize = 4;
/// Maximum number of sets of all tenants that are remembered.
pub(super) const MAX_OF_TENANTS: usize = 64;

/// A set of modules, as the policy sees it.
#[derive(Clone, Debug)]
pub(super) struct StandbyClaim<'set> {
    /// Tenant of the set; nothing for a set of the node's own.
    pub(super) owner: Option<&'set str>,
    /// Number of requests, in which recent ones count more.
    pub(super) heat: f64,
    /// Memory that its processes may take, in bytes; 0 if there are none.
    pub(super) reserved_bytes: u64,
    /// Free memory with which another process of it can be tried, in bytes.
    pub(super) needed_bytes: u64,
    /// Whether another process of it is worthwhile, and there are idle cores for it.
    pub(super) can_begin: bool,
}

/// Next step towards the processes that there should be. Sets are named by their positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandbyStep {
    /// Another process of a set is begun, with this free memory in bytes.
    Begin(usize, u64),
    /// The processes of a set end.
    End(usize),
}

/// Decides on the next step within this memory for all processes, in bytes. Nothing if there is nothing to do.
pub(super) fn next_step(claims: &[StandbyClaim<'_>], memory_bytes: u64) -> Option<StandbyStep> {
    let mut candidates: Vec<_> = claims.iter().enumerate().filter(|(_, claim)| claim.can_begin).collect();
    candidates.sort_by(|(_, a), (_, b)| b.heat.total_cmp(&a.heat));
    candidates.into_iter().find_map(|(position, _)| step_for(position, claims, memory_bytes))
}

/// Begins a process of this set, or ends the first of those that have to make way for it. Nothing if all of these together
/// would not suffice.
fn step_for(position: usize, claims: &[StandbyClaim<'_>], memory_bytes: u64) -> Option<StandbyStep> {
    let candidate = claims.get(position)?;
    let mut left = claims.to_vec();
    let mut first = None;
    // Each round ends one set.
    for _ in 0..=claims.len() {
        let reserved = left.iter().fold(0_u64, |sum, claim| sum.saturating_add(claim.reserved_bytes));
        let free_bytes = memory_bytes.saturating_sub(reserved);
        if free_bytes >= candidate.needed_bytes {
            return Some(first.map_or(StandbyStep::Begin(position, free_bytes), StandbyStep::End));
        }
        let victim = victim(position, candidate, &left, memory_bytes)?;
        debug_assert!(victim != position, "set {position} would end for its own process: {claims:?}");
        first = first.or(Some(victim));
        left.get_mut(victim)?.reserved_bytes = 0;
    }
    None
}

/// Returns the set that is asked for least of those that make way for a candidate.
fn victim(
    position: usize,
    candidate: &StandbyClaim<'_>,
    claims: &[StandbyClaim<'_>],
    memory_bytes: u64,
) -> Option<usize> {
    let owners: BTreeSet<_> =
        claims.iter().filter(|claim| is_active(claim)).map(|claim| claim.owner).collect();
    let share_bytes = memory_bytes / u64::try_from(owners.len()).unwrap_or(u64::MAX).max(1);
    let mut used = BTreeMap::new();
    for claim in claims {
        let bytes: &mut u64 = used.entry(claim.owner).or_default();
        *bytes = bytes.saturating_add(claim.reserved_bytes);
    }
    let used_by = |owner: Option<&str>| used.get(&owner).copied().unwrap_or(0);
    let stays_within = used_by(candidate.owner).saturating_add(candidate.needed_bytes) <= share_bytes;
    let makes_way = |claim: &StandbyClaim<'_>| {
        let is_colder = claim.owner == candidate.owner && claim.heat < candidate.heat;
        let is_beyond = claim.owner != candidate.owner && used_by(claim.owner) > share_bytes;
        claim.reserved_bytes > 0 && (is_colder || is_beyond && stays_within)
    };
    let victims = claims.iter().enumerate().filter(|(other, claim)| *other != position && makes_way(claim));
    victims.min_by(|(_, a), (_, b)| a.heat.total_cmp(&b.heat)).map(|(victim, _)| victim)
}

/// Whether the owner of a set has a share because of it.
fn is_active(claim: &StandbyClaim<'_>) -> bool {
    claim.reserved_bytes > 0 || claim.can_begin
}

/// Returns the position of the tenants' set that is forgotten before another one of this tenant is remembered, if one has to
/// be: of the tenant itself if it has its share of sets, otherwise of the tenant with the most sets. The tenant's set that is
/// requested least is forgotten. Each set has its tenant and its number of requests.
pub(super) fn forgotten(sets: &[(&str, f64)], tenant: &str) -> Option<usize> {
    let mut counts = BTreeMap::new();
    for (owner, _) in sets {
        let count: &mut usize = counts.entry(*owner).or_default();
        *count += 1;
    }
    let own = counts.get(tenant).copied().unwrap_or(0);
    let largest = counts.iter().max_by_key(|(_, count)| **count).map(|(owner, _)| *owner);
    let loser = match (own >= MAX_OF_TENANT, sets.len() >= MAX_OF_TENANTS) {
        (true, _) => tenant,
        (false, true) => largest?,
        (false, false) => return None,
    };
    let owned = sets.iter().enumerate().filter(|(_, (owner, _))| *owner == loser);
    owned.min_by(|(_, (_, a)), (_, (_, b))| a.total_cmp(b)).map(|(position, _)| position)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn claim(owner: Option<&str>, heat: f64, reserved_mib: u64, needed_mib: u64) -> StandbyClaim<'_> {
        StandbyClaim {
            owner,
            heat,
            reserved_bytes: reserved_mib * MIB,
            needed_bytes: needed_mib * MIB,
            can_begin: needed_mib > 0,
        }
    }

    #[test]
    fn begins_for_the_modules_that_are_asked_for_most() {
        let claims = [claim(None, 1.0, 0, 64), claim(Some("a"), 3.0, 0, 64), claim(None, 2.0, 100, 0)];
        assert_eq!(next_step(&claims, 200 * MIB), Some(StandbyStep::Begin(1, 100 * MIB)));
        assert_eq!(next_step(&[claim(None, 5.0, 100, 0)], 200 * MIB), None, "nothing could begin");
    }

    #[test]
    fn colder_sets_of_the_same_owner_make_way() {
        for owner in [None, Some("a")] {
            let claims = [claim(owner, 1.0, 100, 0), claim(owner, 0.5, 100, 0), claim(owner, 2.0, 0, 64)];
            assert_eq!(next_step(&claims, 200 * MIB), Some(StandbyStep::End(1)));
            let hotter = [claim(owner, 3.0, 200, 0), claim(owner, 2.0, 0, 64)];
            assert_eq!(next_step(&hotter, 200 * MIB), None);
        }
    }

    #[test]
    fn nothing_ends_for_a_process_that_would_not_fit() {
        let claims = [claim(Some("a"), 1.0, 100, 0), claim(Some("a"), 2.0, 100, 300)];
        assert_eq!(next_step(&claims, 200 * MIB), None);
        // A smaller one that is asked for less still begins.
        let claims = [claim(Some("a"), 2.0, 100, 300), claim(Some("b"), 1.0, 0, 64)];
        assert_eq!(next_step(&claims, 200 * MIB), Some(StandbyStep::Begin(1, 100 * MIB)));
    }

    #[test]
    fn busy_tenant_displaces_no_other_from_its_share() {
        let claims = [claim(Some("a"), 99.0, 100, 64), claim(Some("b"), 0.1, 100, 0)];
        assert_eq!(next_step(&claims, 200 * MIB), None);
        // The other one gets its share from a tenant that has more than its own, however busy that is.
        let claims =
            [claim(Some("a"), 99.0, 150, 0), claim(Some("a"), 9.0, 50, 0), claim(Some("b"), 0.1, 0, 64)];
        assert_eq!(next_step(&claims, 200 * MIB), Some(StandbyStep::End(1)));
        let after = [claim(Some("a"), 99.0, 150, 0), claim(Some("b"), 0.1, 0, 50)];
        assert_eq!(next_step(&after, 200 * MIB), Some(StandbyStep::Begin(1, 50 * MIB)));
    }

    #[test]
    fn tenant_beyond_its_share_displaces_no_other() {
        let claims = [claim(Some("a"), 99.0, 90, 90), claim(Some("b"), 0.1, 110, 0)];
        assert_eq!(next_step(&claims, 200 * MIB), None);
    }

    /// Many steps from made-up sets: memory is never exceeded, and no owner within its share loses a process to another.
    #[test]
    fn steps_keep_memory_and_shares() {
        const MEMORY: u64 = 1000;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = move |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let owners = [None, Some("a"), Some("b"), Some("c")];
        for _ in 0..300 {
            let sets = 1 + random(8);
            let mut claims: Vec<_> = (0..sets)
                .map(|_| StandbyClaim {
                    owner: owners[random(4) as usize],
                    heat: random(100) as f64,
                    reserved_bytes: 0,
                    needed_bytes: 1 + random(600),
                    can_begin: true,
                })
                .collect();
            let mut steps = 0;
            while let Some(step) = next_step(&claims, MEMORY) {
                match step {
                    StandbyStep::Begin(position, free_bytes) => {
                        let needed = claims[position].needed_bytes;
                        assert!(needed <= free_bytes, "{claims:?}");
                        claims[position].reserved_bytes += needed;
                        claims[position].can_begin = false;
                    }
                    StandbyStep::End(position) => {
                        let ended = claims[position].clone();
                        assert!(ended.reserved_bytes > 0, "{claims:?}");
                        let of_owner = claims.iter().filter(|claim| claim.owner == ended.owner);
                        let used: u64 = of_owner.clone().map(|claim| claim.reserved_bytes).sum();
                        let active: BTreeSet<_> =
                            claims.iter().filter(|claim| is_active(claim)).map(|claim| claim.owner).collect();
                        let has_hotter = of_owner.clone().any(|c| c.can_begin && c.heat > ended.heat);
                        assert!(has_hotter || used > MEMORY / active.len() as u64, "{claims:?}");
                        claims[position].reserved_bytes = 0;
                    }
                }
                let reserved: u64 = claims.iter().map(|claim| claim.reserved_bytes).sum();
                assert!(reserved <= MEMORY, "{claims:?}");
                steps += 1;
                assert!(steps <= 2 * claims.len(), "the steps never end: {claims:?}");
            }
        }
    }

    #[test]
    fn tenant_with_many_sets_forgets_its_own() {
        let own: Vec<_> = (0..MAX_OF_TENANT).map(|number| ("a", 9.0 - number as f64)).collect();
        assert_eq!(forgotten(&own, "a"), Some(MAX_OF_TENANT - 1), "its coldest");
        assert_eq!(forgotten(&own, "b"), None);
        let names: Vec<_> = (0..MAX_OF_TENANTS - 1).map(|number| format!("t{number}")).collect();
        let mut sets: Vec<_> = names.iter().map(|name| (name.as_str(), 0.1)).collect();
        sets.push(("t7", 5.0));
        assert_eq!(forgotten(&sets, "new"), Some(7), "the coldest of the tenant with the most");
    }
}
