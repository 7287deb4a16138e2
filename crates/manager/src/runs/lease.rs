//! Decides which process drives a run: the lease of a run, as a state machine without a store, a clock or I/O.
//!
//! A run's record holds its lease, and managers change the record by compare-and-swap only. Invariants:
//! - At most one epoch of a run is current, and at most one process has it.
//! - An epoch is given to one process, and epochs only grow: each process that takes the lease gets the next one.
//! - A process takes the lease only when no other holds it. One that holds it may renew it at any time, as long as no
//!   other has taken it.
//! - Writes of another epoch than the current one are refused. So a process that stood still, and believes to hold the
//!   lease when it continues, changes nothing.
//! - No clocks are compared. A manager tells by its own clock for how long it has seen a lease unchanged
//!   ([`LeaseWatch`]), and the record counts renewals instead of naming a time.

use std::collections::HashMap;

use sublet_proto::run::{MAX_EPOCH, MAX_LEASE_MS, MAX_RUNNER_BYTES, MIN_LEASE_MS};
use sublet_proto::v1::RunLease;
use sublet_proto::{Code, Error};

/// Largest number of leases that a manager watches. Beyond it, all are watched from the beginning.
const MAX_WATCHED: usize = 16_384;

/// Leases of runs as this manager has last seen them, by the runs' keys.
#[derive(Debug, Default)]
pub(super) struct LeaseWatch {
    seen: HashMap<String, SeenLease>,
}

#[derive(Debug)]
struct SeenLease {
    epoch: u64,
    renewals: u64,
    /// Time at which this state of the lease was first seen.
    since_ms: u64,
}

impl LeaseWatch {
    /// Whether a process holds the lease, as far as this manager knows: the manager has not seen it unchanged for its
    /// length.
    pub(super) fn is_held(&mut self, run: &str, lease: &RunLease, now_ms: u64) -> bool {
        if lease.runner.is_empty() {
            self.seen.remove(run);
            return false;
        }
        if self.seen.len() >= MAX_WATCHED && !self.seen.contains_key(run) {
            self.seen.clear();
        }
        let (epoch, renewals) = (lease.epoch, lease.renewals);
        let seen = self.seen.entry(run.to_owned()).or_insert(SeenLease { epoch, renewals, since_ms: now_ms });
        if (seen.epoch, seen.renewals) != (epoch, renewals) {
            *seen = SeenLease { epoch, renewals, since_ms: now_ms };
        }
        debug_assert!(self.seen.len() <= MAX_WATCHED, "{} leases are watched", self.seen.len());
        let since_ms = self.seen.get(run).map_or(now_ms, |seen| seen.since_ms);
        now_ms.saturating_sub(since_ms) < length_ms(lease.lease_ms)
    }
}

/// The length of a lease for which this one was requested.
fn length_ms(lease_ms: u64) -> u64 {
    lease_ms.clamp(MIN_LEASE_MS, MAX_LEASE_MS)
}

/// Whether the writes of an epoch are accepted. Epoch 0 is that of clients which know no leases, on runs without one.
pub(super) fn is_current(lease: Option<&RunLease>, epoch: u64) -> bool {
    match lease {
        None => epoch == 0,
        Some(lease) => lease.epoch == epoch && !lease.runner.is_empty(),
    }
}

/// Whether the lease was taken too often for a further process to get it.
pub(super) fn is_exhausted(lease: &RunLease) -> bool {
    lease.epoch >= MAX_EPOCH
}

/// Takes a lease that no process holds, for a time in milliseconds. `None` if it was taken too often.
pub(super) fn take(lease: &RunLease, runner: &str, lease_ms: u64) -> Option<RunLease> {
    debug_assert!(
        !runner.is_empty(),
        "the lease of epoch {} is taken by a process without a name",
        lease.epoch
    );
    let taken = RunLease {
        runner: runner.to_owned(),
        epoch: lease.epoch + 1,
        renewals: 0,
        lease_ms: length_ms(lease_ms),
    };
    (!is_exhausted(lease)).then_some(taken)
}

/// Renews the lease; `None` if another process has taken it.
pub(super) fn renew(lease: &RunLease, epoch: u64, lease_ms: u64) -> Option<RunLease> {
    is_current(Some(lease), epoch).then(|| RunLease {
        renewals: lease.renewals + 1,
        lease_ms: length_ms(lease_ms),
        ..lease.clone()
    })
}

/// Hands the lease back: another process may take it at once. `None` if another process has taken it.
pub(super) fn hand_back(lease: &RunLease, epoch: u64) -> Option<RunLease> {
    is_current(Some(lease), epoch).then(|| RunLease { runner: String::new(), ..lease.clone() })
}

/// Checks the name of a process that wants the lease.
///
/// # Errors
/// `invalid_argument`.
pub(super) fn check_runner(runner: &str) -> Result<(), Error> {
    let is_plain = runner.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain && (1..=MAX_RUNNER_BYTES).contains(&runner.len()) {
        return Ok(());
    }
    let shown: String = runner.chars().take(MAX_RUNNER_BYTES).collect();
    let message = format!(
        "{shown:?} cannot be the name of a process that drives runs: 1 to {MAX_RUNNER_BYTES} visible ASCII characters"
    );
    Err(Error::new(Code::InvalidArgument, message))
}

/// The error for a process that does not hold the run's lease.
pub(super) fn taken(run: &str, lease: Option<&RunLease>) -> Error {
    let message = match lease {
        Some(lease) if !lease.runner.is_empty() => format!("run {run} is driven by {}", lease.runner),
        Some(_) => format!("run {run} was handed back, and is to be taken again before it is driven"),
        None => format!("run {run} has no lease: it is driven by a client of an earlier version, or by none"),
    };
    Error::new(Code::RunTaken, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Attempt of a process, by its number, at one of two managers.
    #[derive(Clone, Copy, Debug)]
    enum Try {
        Take(usize, usize),
        Renew(usize),
        HandBack(usize),
        Write(usize),
        Wait(u64),
    }

    fn tries() -> impl Strategy<Value = Try> {
        prop_oneof![
            (0..4usize, 0..2usize).prop_map(|(process, manager)| Try::Take(process, manager)),
            (0..4usize).prop_map(Try::Renew),
            (0..4usize).prop_map(Try::HandBack),
            (0..4usize).prop_map(Try::Write),
            (0..4000u64).prop_map(Try::Wait),
        ]
    }

    fn name(process: usize) -> String {
        format!("runner-{process}")
    }

    proptest! {
        /// Processes keep the epoch that they were last given, however late they use it. The managers' clocks differ by
        /// an hour.
        #[test]
        fn one_process_drives_a_run_and_stale_ones_are_refused(all in prop::collection::vec(tries(), 1..200)) {
            const CLOCKS_MS: [u64; 2] = [1, 3_600_000];
            let (mut lease, mut passed_ms) = (RunLease::default(), 0);
            let mut watches = [LeaseWatch::default(), LeaseWatch::default()];
            let mut epochs = [0u64; 4];
            // The owner by a second formulation, and the time of its latest sign: the process that has last taken the
            // lease and not handed it back.
            let (mut owner, mut heard_ms) = (None, 0);
            for one in all {
                let before = lease.clone();
                match one {
                    Try::Take(process, manager) => {
                        let now_ms = CLOCKS_MS[manager] + passed_ms;
                        if watches[manager].is_held("run", &lease, now_ms) {
                            prop_assert!(owner.is_some(), "a lease without an owner is held");
                        } else if let Some(taken) = take(&lease, &name(process), 2000) {
                            prop_assert!(owner.is_none() || passed_ms >= heard_ms + 2000, "it was taken too early");
                            prop_assert_eq!(taken.epoch, before.epoch + 1);
                            epochs[process] = taken.epoch;
                            lease = taken;
                            (owner, heard_ms) = (Some(process), passed_ms);
                        }
                    }
                    Try::Renew(process) => {
                        let renewed = renew(&lease, epochs[process], 2000);
                        prop_assert_eq!(renewed.is_some(), owner == Some(process));
                        if let Some(renewed) = renewed {
                            lease = renewed;
                            heard_ms = passed_ms;
                        }
                    }
                    Try::HandBack(process) => {
                        let back = hand_back(&lease, epochs[process]);
                        prop_assert_eq!(back.is_some(), owner == Some(process));
                        if let Some(back) = back {
                            lease = back;
                            owner = None;
                        }
                    }
                    Try::Write(process) => {
                        let is_accepted = is_current(Some(&lease), epochs[process]);
                        prop_assert_eq!(is_accepted, owner == Some(process));
                    }
                    Try::Wait(ms) => passed_ms += ms,
                }
                prop_assert!(lease.epoch >= before.epoch, "{before:?} became {lease:?}");
                let writers = (0..4).filter(|&process| is_current(Some(&lease), epochs[process])).count();
                prop_assert!(writers <= 1, "{writers} processes may write with {lease:?}");
            }
        }
    }

    #[test]
    fn lease_without_renewals_is_free_after_its_length() {
        let mut watch = LeaseWatch::default();
        let lease = take(&RunLease::default(), "a", 5_000).unwrap();
        // The length counts from when this manager has first seen it.
        assert!(watch.is_held("run", &lease, 70_000) && watch.is_held("run", &lease, 74_999));
        assert!(!watch.is_held("run", &lease, 75_000));
        let renewed = renew(&lease, 1, 5_000).unwrap();
        assert!(watch.is_held("run", &renewed, 75_000) && !watch.is_held("run", &renewed, 80_000));
        let back = hand_back(&renewed, 1).unwrap();
        assert!(!watch.is_held("run", &back, 80_000));
    }

    #[test]
    fn watches_a_bounded_number_of_leases() {
        let mut watch = LeaseWatch::default();
        let lease = take(&RunLease::default(), "a", 5_000).unwrap();
        for run in 0..=MAX_WATCHED {
            assert!(watch.is_held(&run.to_string(), &lease, 1));
        }
        assert_eq!(watch.seen.len(), 1);
    }

    #[test]
    fn length_of_a_lease_is_bounded() {
        let length = |lease_ms| take(&RunLease::default(), "a", lease_ms).unwrap().lease_ms;
        assert_eq!((length(0), length(5_000), length(u64::MAX)), (MIN_LEASE_MS, 5_000, MAX_LEASE_MS));
    }

    #[test]
    fn lease_is_not_taken_for_ever() {
        let lease = RunLease { epoch: MAX_EPOCH, ..RunLease::default() };
        assert!(is_exhausted(&lease));
        assert_eq!(take(&lease, "a", 1000), None);
    }

    #[test]
    fn only_runs_without_lease_take_writes_of_epoch_0() {
        assert!(is_current(None, 0) && !is_current(None, 1));
        assert!(!is_current(Some(&RunLease::default()), 0));
    }

    #[test]
    fn names_of_processes_are_visible_and_short() {
        assert!(check_runner("up@host#0a").is_ok());
        for bad in ["", "a b", "a\n", "ä", &"a".repeat(MAX_RUNNER_BYTES + 1)] {
            assert_eq!(check_runner(bad).unwrap_err().code, Code::InvalidArgument, "{bad:?}");
        }
    }
}
