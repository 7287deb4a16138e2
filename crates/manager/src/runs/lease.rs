//! Decides which process drives a run: the lease of a run, as a state machine without a store, a clock or I/O.
//!
//! A run's record holds its lease, and managers change the record by compare-and-swap only. Invariants:
//! - At most one epoch of a run is current, and at most one process has it.
//! - An epoch is given to one process, and epochs only grow: each process that takes the lease gets the next one.
//! - A process takes the lease only when no other holds it. One that holds it may renew it also after its end, as long
//!   as no other has taken it.
//! - Writes of another epoch than the current one are refused. So a process that stood still, and believes to
//!   hold the lease when it continues, changes nothing. This does not depend on clocks: those of managers that differ only make
//!   another process take the lease earlier or later.

use sublet_proto::run::{MAX_EPOCH, MAX_LEASE_MS, MAX_RUNNER_BYTES, MIN_LEASE_MS};
use sublet_proto::v1::RunLease;
use sublet_proto::{Code, Error};

/// Time for which a lease is requested, and the present time, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTerm {
    pub(super) lease_ms: u64,
    pub(super) now_ms: u64,
}

impl LeaseTerm {
    fn end_ms(self) -> u64 {
        self.now_ms.saturating_add(self.lease_ms.clamp(MIN_LEASE_MS, MAX_LEASE_MS))
    }
}

/// Whether a process holds the lease at this time.
pub(super) fn is_held(lease: &RunLease, now_ms: u64) -> bool {
    !lease.runner.is_empty() && now_ms < lease.until_unix_ms
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

/// Takes the lease; `None` if another process holds it. A process that already holds the lease keeps its epoch: its
/// request is repeated because the answer was lost.
pub(super) fn take(lease: &RunLease, runner: &str, term: LeaseTerm) -> Option<RunLease> {
    debug_assert!(
        !runner.is_empty(),
        "the lease of epoch {} is taken by a process without a name",
        lease.epoch
    );
    let epoch = match is_held(lease, term.now_ms) {
        true if lease.runner == runner => lease.epoch,
        true => return None,
        false => lease.epoch + 1,
    };
    let taken = RunLease { runner: runner.to_owned(), epoch, until_unix_ms: term.end_ms() };
    (epoch <= MAX_EPOCH).then_some(taken)
}

/// Renews the lease; `None` if another process has taken it.
pub(super) fn renew(lease: &RunLease, epoch: u64, term: LeaseTerm) -> Option<RunLease> {
    is_current(Some(lease), epoch).then(|| RunLease { until_unix_ms: term.end_ms(), ..lease.clone() })
}

/// Hands the lease back: another process may take it at once. `None` if another process has taken it.
pub(super) fn hand_back(lease: &RunLease, epoch: u64) -> Option<RunLease> {
    is_current(Some(lease), epoch).then(|| RunLease {
        runner: String::new(),
        until_unix_ms: 0,
        ..lease.clone()
    })
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

    /// Attempt of a process, by its number.
    #[derive(Clone, Copy, Debug)]
    enum Try {
        Take(usize),
        Renew(usize),
        HandBack(usize),
        Write(usize),
        Wait(u64),
    }

    fn tries() -> impl Strategy<Value = Try> {
        prop_oneof![
            (0..4usize).prop_map(Try::Take),
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
        /// Processes keep the epoch that they were last given, however late they use it.
        #[test]
        fn one_process_drives_a_run_and_stale_ones_are_refused(all in prop::collection::vec(tries(), 1..200)) {
            let (mut lease, mut now_ms) = (RunLease::default(), 1);
            let mut epochs = [0u64; 4];
            // The owner by a second formulation: the process that has last taken the lease and not handed it back.
            let mut owner = None;
            for one in all {
                let before = lease.clone();
                let term = LeaseTerm { lease_ms: 2000, now_ms };
                match one {
                    Try::Take(process) => {
                        let is_free = owner.is_none_or(|owner| owner == process) || now_ms >= lease.until_unix_ms;
                        let taken = take(&lease, &name(process), term);
                        prop_assert_eq!(taken.is_some(), is_free);
                        if let Some(taken) = taken {
                            let is_repeated = owner == Some(process) && now_ms < before.until_unix_ms;
                            prop_assert_eq!(taken.epoch, before.epoch + u64::from(!is_repeated));
                            epochs[process] = taken.epoch;
                            lease = taken;
                            owner = Some(process);
                        }
                    }
                    Try::Renew(process) => {
                        let renewed = renew(&lease, epochs[process], term);
                        prop_assert_eq!(renewed.is_some(), owner == Some(process));
                        lease = renewed.unwrap_or(lease);
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
                    Try::Wait(ms) => now_ms += ms,
                }
                prop_assert!(lease.epoch >= before.epoch, "{before:?} became {lease:?}");
                let writers = (0..4).filter(|&process| is_current(Some(&lease), epochs[process])).count();
                prop_assert!(writers <= 1, "{writers} processes may write with {lease:?}");
            }
        }
    }

    #[test]
    fn length_of_a_lease_is_bounded() {
        let end = |lease_ms| {
            take(&RunLease::default(), "a", LeaseTerm { lease_ms, now_ms: 10 }).unwrap().until_unix_ms
        };
        assert_eq!((end(0), end(5_000), end(u64::MAX)), (10 + MIN_LEASE_MS, 5_010, 10 + MAX_LEASE_MS));
    }

    #[test]
    fn lease_is_not_taken_for_ever() {
        let lease = RunLease { epoch: MAX_EPOCH, ..RunLease::default() };
        assert!(is_exhausted(&lease));
        assert_eq!(take(&lease, "a", LeaseTerm { lease_ms: 1000, now_ms: 1 }), None);
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
