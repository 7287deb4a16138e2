//! The runs of an application whose limits over all runs its leases are counted under: which of them wait for a part of
//! the limits, and which one gives way.
//!
//! Each run takes its part piece by piece, so two runs may each hold a part and wait for the part of the other. As long as
//! a run gets or gives back leases, the others wait. If all runs that hold leases have waited for a while, and none has
//! got or given back any, the youngest gives way: its request is refused, so its component begins again and its leases
//! end. Until no other run waits, it gets nothing.
//!
//! Invariants:
//! - The oldest run that holds leases never gives way.
//! - A run without leases gets none while a run that holds leases waits.
//! - Runs of other managers, and leases from before this manager started, belong to no run here.

use std::collections::BTreeMap;

/// Number of a run. Runs that began later have larger numbers.
pub type RunNumber = u128;

/// Time after its latest refusal for which a run counts as waiting, in milliseconds: its client asks again several times
/// a second.
const WAITING_MS: u64 = 1_000;
/// Shortest and longest time without change after which a run gives way, in milliseconds. Between them, it is the time
/// for which the run would still wait: so half of the wait is left for the others.
const SHORTEST_STANDSTILL_MS: u64 = 1_000;
const LONGEST_STANDSTILL_MS: u64 = 30_000;
/// Most runs without leases that are noted as waiting. None of them keeps another run waiting.
const MAX_WAITING: usize = 256;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct ApplicationRuns {
    runs: BTreeMap<RunNumber, RunStanding>,
    /// Number of leases that were added or removed.
    changes: u64,
    /// Set while all runs that hold leases wait.
    standstill: Option<Standstill>,
}

#[derive(Debug, Default)]
struct RunStanding {
    leases: u32,
    /// Time of the latest request that was refused, if none was granted since.
    refused_ms: Option<u64>,
    has_given_way: bool,
}

impl RunStanding {
    fn waits(&self, now_ms: u64) -> bool {
        self.refused_ms.is_some_and(|refused_ms| now_ms <= refused_ms.saturating_add(WAITING_MS))
    }
}

#[derive(Clone, Copy, Debug)]
struct Standstill {
    /// The number of changes before it.
    changes: u64,
    since_ms: u64,
}

impl ApplicationRuns {
    /// Adds a lease of a run.
    pub(super) fn add(&mut self, run: RunNumber) {
        let standing = self.runs.entry(run).or_default();
        standing.leases = standing.leases.saturating_add(1);
        standing.refused_ms = None;
        self.changes += 1;
    }

    /// Removes a lease of a run.
    pub(super) fn remove(&mut self, run: RunNumber) {
        self.changes += 1;
        let Some(standing) = self.runs.get_mut(&run) else { return };
        debug_assert!(standing.leases > 0, "run {run:032x} gives back a lease, and has none");
        standing.leases = standing.leases.saturating_sub(1);
        if standing.leases == 0 && standing.refused_ms.is_none() && !standing.has_given_way {
            self.runs.remove(&run);
        }
    }

    /// Whether a request of a run has to wait although the limits leave enough: because another run that holds leases
    /// waits, and this one holds none or has given way.
    pub(super) fn must_wait(&mut self, now_ms: u64, run: RunNumber) -> bool {
        let mut others = self.runs.iter().filter(|(other, _)| **other != run);
        let does_other_wait = others.any(|(_, standing)| standing.leases > 0 && standing.waits(now_ms));
        let Some(own) = self.runs.get_mut(&run) else { return does_other_wait };
        own.has_given_way &= does_other_wait;
        does_other_wait && (own.leases == 0 || own.has_given_way)
    }

    /// Notes that a request of a run was refused, which may wait for `wait_ms` more. Returns whether the run gives way.
    pub(super) fn refuse(&mut self, now_ms: u64, run: RunNumber, wait_ms: u64) -> bool {
        self.runs.retain(|_, standing| standing.leases > 0 || standing.waits(now_ms));
        let waiting = self.runs.values().filter(|standing| standing.leases == 0).count();
        if waiting >= MAX_WAITING && !self.runs.contains_key(&run) {
            return false;
        }
        self.runs.entry(run).or_default().refused_ms = Some(now_ms);
        let holders: Vec<_> = self.runs.iter().filter(|(_, standing)| standing.leases > 0).collect();
        let do_all_wait = holders.len() > 1 && holders.iter().all(|(_, standing)| standing.waits(now_ms));
        let is_youngest = holders.last().is_some_and(|(youngest, _)| **youngest == run);
        if !do_all_wait {
            self.standstill = None;
            return false;
        }
        let changes = self.changes;
        let known = self.standstill.filter(|known| known.changes == changes);
        let standstill = known.unwrap_or(Standstill { changes, since_ms: now_ms });
        let due_ms = wait_ms.clamp(SHORTEST_STANDSTILL_MS, LONGEST_STANDSTILL_MS);
        let gives_way = is_youngest && now_ms.saturating_sub(standstill.since_ms) >= due_ms;
        self.standstill = Some(standstill).filter(|_| !gives_way);
        if gives_way && let Some(own) = self.runs.get_mut(&run) {
            own.has_given_way = true;
        }
        gives_way
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Has both runs ask again for this long, ten times a second. Returns the runs that give way, with the times.
    fn ask_again(runs: &mut ApplicationRuns, now_ms: &mut u64, for_ms: u64) -> Vec<(RunNumber, u64)> {
        let (began_ms, mut given_way) = (*now_ms, Vec::new());
        while *now_ms < began_ms + for_ms {
            for run in [1, 2] {
                if runs.refuse(*now_ms, run, for_ms - (*now_ms - began_ms)) {
                    given_way.push((run, *now_ms - began_ms));
                }
            }
            *now_ms += 100;
        }
        given_way
    }

    #[test]
    fn youngest_run_gives_way_at_half_of_its_wait() {
        let (mut runs, mut now_ms) = (ApplicationRuns::default(), 1_000_000);
        runs.add(1);
        runs.add(2);
        let given_way = ask_again(&mut runs, &mut now_ms, 8_000);
        assert_eq!(given_way.first(), Some(&(2, 4_000)));
        assert!(given_way.iter().all(|(run, _)| *run == 2), "{given_way:?}");
        // Its lease has ended: the other comes first.
        runs.remove(2);
        assert!(runs.must_wait(now_ms, 2) && !runs.must_wait(now_ms, 1));
        runs.add(1);
        assert!(!runs.must_wait(now_ms, 2), "no run waits");
    }

    #[test]
    fn run_that_has_given_way_gets_nothing_while_another_waits() {
        let (mut runs, mut now_ms) = (ApplicationRuns::default(), 0);
        runs.add(1);
        runs.add(2);
        runs.add(2);
        assert_eq!(ask_again(&mut runs, &mut now_ms, 4_000)[0].0, 2);
        // One of its leases is left.
        runs.remove(2);
        assert!(runs.must_wait(now_ms, 2));
        assert!(!runs.must_wait(now_ms + WAITING_MS + 100, 2), "the other has gone away");
        assert!(!runs.must_wait(now_ms, 2), "and it does not give way for ever");
    }

    #[test]
    fn no_run_gives_way_while_leases_change() {
        let mut runs = ApplicationRuns::default();
        let mut now_ms = 0;
        runs.add(1);
        assert_eq!(ask_again(&mut runs, &mut now_ms, 8_000), [], "run 2 holds nothing");
        runs.add(2);
        for _ in 0..20 {
            assert_eq!(ask_again(&mut runs, &mut now_ms, 900), []);
            runs.add(2);
            runs.remove(2);
        }
    }

    #[test]
    fn new_run_waits_behind_one_that_holds_leases_and_waits() {
        let mut runs = ApplicationRuns::default();
        assert!(!runs.must_wait(0, 7));
        runs.add(1);
        assert!(!runs.must_wait(0, 7), "a run that does not wait leaves the rest to others");
        assert!(!runs.refuse(0, 1, 1_000));
        assert!(runs.must_wait(0, 7) && !runs.must_wait(0, 1));
        assert!(!runs.must_wait(WAITING_MS + 1, 7), "its client does not ask any more");
    }

    proptest! {
        /// Only the youngest of several runs that hold leases gives way, and a run waits only behind one that holds some.
        #[test]
        fn oldest_run_with_leases_never_gives_way(
            events in prop::collection::vec((0_u8..4, 1_u128..6, 0_u64..2_000), 0..400)
        ) {
            let (mut runs, mut now_ms) = (ApplicationRuns::default(), 0);
            let mut leases: BTreeMap<RunNumber, u32> = BTreeMap::new();
            for (event, run, after_ms) in events {
                now_ms += after_ms;
                let own = leases.entry(run).or_default();
                match event {
                    0 => {
                        runs.add(run);
                        *own += 1;
                    }
                    1 if *own > 0 => {
                        runs.remove(run);
                        *own -= 1;
                    }
                    2 => {
                        let gives_way = runs.refuse(now_ms, run, after_ms);
                        let mut holders = leases.iter().filter(|(_, count)| **count > 0).map(|(run, _)| *run);
                        let (oldest, youngest) = (holders.next(), holders.next_back());
                        prop_assert!(!gives_way || (oldest < Some(run) && youngest == Some(run)));
                    }
                    _ => {
                        let must_wait = runs.must_wait(now_ms, run);
                        let has_others = leases.iter().any(|(other, count)| *other != run && *count > 0);
                        prop_assert!(!must_wait || has_others);
                    }
                }
            }
        }
    }

    #[test]
    fn runs_that_have_ended_are_forgotten() {
        let mut runs = ApplicationRuns::default();
        for run in 0..1_000 {
            runs.refuse(run, run.into(), 0);
            runs.add(run.into());
            runs.remove(run.into());
        }
        runs.refuse(1_000_000, 1, 0);
        assert_eq!(runs.runs.len(), 1, "{:?}", runs.runs);
    }

    #[test]
    fn number_of_waiting_runs_is_bounded() {
        let mut runs = ApplicationRuns::default();
        for run in 0..10 * MAX_WAITING as u128 {
            assert!(!runs.refuse(0, run, 0));
        }
        assert_eq!(runs.runs.len(), MAX_WAITING);
        runs.add(u128::MAX);
        assert!(
            !runs.refuse(0, u128::MAX, 0) && runs.must_wait(0, 1),
            "a run with leases is noted in any case"
        );
    }
}
