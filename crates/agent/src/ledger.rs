//! The leases that a node's manager must hear of: those that are attached, and those that have ended until the
//! manager has acknowledged their end.
//!
//! Supervisors write ([`Ledger::enrol`], [`Enrolment::finish`]), the reporter reads and acknowledges. The ledger
//! does no I/O and is never locked for longer than it takes to copy its entries.
//!
//! Invariants:
//! - A lease is enrolled at most once: a ticket cannot be shown again, not even after its lease has ended.
//! - An ended lease leaves only when a report that says so has been answered.
//! - A supervisor that fails, however it fails, leaves its lease ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sublet_proto::ticket::ATTACH_GRACE_MS;
use sublet_proto::v1::{LeaseReport, LeaseState, NodeReportReply};
use sublet_proto::{Code, Error};

use crate::lock;
use crate::signal::EndRequest;
use crate::usage::Meter;

/// Leases that may await an acknowledgement, attached ones included.
const MAX_ENTRIES: usize = 4096;
/// Leases that may be attached within [`REMEMBERED`].
const MAX_SHOWN: usize = 65_536;
/// How long a lease's id is remembered: after that its ticket is refused as too old. Twice the time, since the
/// tickets are dated by another clock than this.
const REMEMBERED: Duration = Duration::from_millis(2 * ATTACH_GRACE_MS);

/// The leases of one agent.
#[derive(Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// When each ticket was shown.
    shown: BTreeMap<String, Instant>,
    /// A lease has ended: its report shall not wait for the next second.
    prompt: bool,
    /// Why no lease is taken any more.
    closed: Option<Error>,
    finished: bool,
}

struct Entry {
    meter: Arc<Meter>,
    end: Arc<EndRequest>,
    /// Why it ended, once it has.
    ended: Option<String>,
}

/// What the reporter shall do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Report,
    /// Report for the last time: all leases have ended.
    Finish,
}

impl Ledger {
    /// Takes a lease up.
    pub(crate) fn enrol(
        self: &Arc<Ledger>,
        lease: &str,
        meter: Arc<Meter>,
        end: Arc<EndRequest>,
    ) -> Result<Enrolment, Error> {
        let mut state = lock(&self.state);
        state.admit(lease)?;
        state.shown.insert(lease.to_owned(), Instant::now());
        state.entries.insert(lease.to_owned(), Entry { meter, end, ended: None });
        Ok(Enrolment { ledger: self.clone(), lease: lease.to_owned() })
    }

    /// Takes no lease any more and asks all to end.
    pub(crate) fn close(&self, reason: &Error) {
        let mut state = lock(&self.state);
        state.closed.get_or_insert_with(|| reason.clone());
        state.entries.values().for_each(|entry| entry.end.raise(reason.clone()));
    }

    /// Lets the reporter finish; for when no supervisor is left.
    pub(crate) fn finish(&self) {
        lock(&self.state).finished = true;
        self.changed.notify_all();
    }

    /// What to report.
    pub(crate) fn reports(&self) -> Vec<LeaseReport> {
        lock(&self.state).entries.iter().map(|(lease, entry)| entry.report(lease)).collect()
    }

    /// Takes a report's answer: what was reported as ended is acknowledged, and what the manager wants ended ends.
    pub(crate) fn answered(&self, reports: &[LeaseReport], reply: &NodeReportReply) {
        let mut state = lock(&self.state);
        for report in reports.iter().filter(|report| report.state() == LeaseState::Ended) {
            state.entries.remove(&report.lease);
        }
        for lease in &reply.end {
            if let Some(entry) = state.entries.get(lease) {
                let message = format!("lease {lease} was ended by the manager");
                entry.end.raise(Error::new(Code::LeaseEnded, message));
            }
        }
        self.changed.notify_all();
    }

    /// Waits for the time of the next report: `period` from now, or as soon as a lease ends.
    pub(crate) fn wait_turn(&self, period: Duration) -> Turn {
        let waiting = |state: &mut State| !state.prompt && !state.finished;
        let state = lock(&self.state);
        let (mut state, _) =
            self.changed.wait_timeout_while(state, period, waiting).unwrap_or_else(PoisonError::into_inner);
        state.prompt = false;
        if state.finished { Turn::Finish } else { Turn::Report }
    }

    /// Waits until the manager has acknowledged the end of a lease; says whether it has.
    pub(crate) fn wait_acknowledged(&self, lease: &str, timeout: Duration) -> bool {
        let state = lock(&self.state);
        let (state, _) = self
            .changed
            .wait_timeout_while(state, timeout, |state| state.entries.contains_key(lease))
            .unwrap_or_else(PoisonError::into_inner);
        !state.entries.contains_key(lease)
    }

    fn end(&self, lease: &str, reason: String) {
        let mut state = lock(&self.state);
        if let Some(entry) = state.entries.get_mut(lease).filter(|entry| entry.ended.is_none()) {
            entry.meter.close();
            entry.ended = Some(reason);
            state.prompt = true;
            self.changed.notify_all();
        }
    }
}

impl State {
    fn admit(&mut self, lease: &str) -> Result<(), Error> {
        if let Some(reason) = &self.closed {
            return Err(reason.clone());
        }
        self.shown.retain(|_, shown| shown.elapsed() < REMEMBERED);
        if self.shown.contains_key(lease) || self.entries.contains_key(lease) {
            let message = format!("lease {lease} was attached already");
            return Err(Error::new(Code::PermissionDenied, message));
        }
        if self.entries.len() >= MAX_ENTRIES {
            let message = format!("the manager has not acknowledged the ends of {MAX_ENTRIES} leases yet");
            return Err(Error::new(Code::NoCapacity, message));
        }
        if self.shown.len() >= MAX_SHOWN {
            let message = format!("{MAX_SHOWN} leases were attached in the last {} s", REMEMBERED.as_secs());
            return Err(Error::new(Code::NoCapacity, message));
        }
        Ok(())
    }
}

impl Entry {
    fn report(&self, lease: &str) -> LeaseReport {
        let state = if self.ended.is_some() { LeaseState::Ended } else { LeaseState::Attached };
        LeaseReport {
            lease: lease.to_owned(),
            state: state.into(),
            usage: Some(self.meter.read()),
            end_reason: self.ended.clone().unwrap_or_default(),
        }
    }
}

/// A supervisor's hold on its lease's entry.
pub(crate) struct Enrolment {
    ledger: Arc<Ledger>,
    lease: String,
}

impl Enrolment {
    /// The lease has ended and its resources are free. Wakes the reporter.
    pub(crate) fn finish(self, reason: String) {
        self.ledger.end(&self.lease, reason);
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        // Without effect after `finish`: the first reason counts.
        self.ledger.end(&self.lease, "the agent failed to supervise the lease".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_fabric::clock::Calibration;

    const LONG: Duration = Duration::from_secs(20);

    fn enrol(ledger: &Arc<Ledger>, lease: &str) -> Result<(Enrolment, Arc<EndRequest>), Error> {
        let meter = Arc::new(Meter::open(1, Calibration::start()).unwrap());
        let end = Arc::new(EndRequest::new().unwrap());
        ledger.enrol(lease, meter, end.clone()).map(|enrolment| (enrolment, end))
    }

    fn answer(ledger: &Ledger, end: &[&str]) {
        let end = end.iter().map(|lease| lease.to_string()).collect();
        ledger.answered(&ledger.reports(), &NodeReportReply { end });
    }

    #[test]
    fn an_ended_lease_is_reported_until_the_report_is_answered() {
        let ledger = Arc::new(Ledger::default());
        let (enrolment, _end) = enrol(&ledger, "a").unwrap();
        answer(&ledger, &[]);
        assert_eq!(ledger.reports()[0].state(), LeaseState::Attached);
        let before_the_end = ledger.reports();
        enrolment.finish("released".into());
        ledger.answered(&before_the_end, &NodeReportReply::default());
        assert!(!ledger.wait_acknowledged("a", Duration::ZERO));
        for _ in 0..2 {
            let report = &ledger.reports()[0];
            assert_eq!((report.state(), report.end_reason.as_str()), (LeaseState::Ended, "released"));
        }
        answer(&ledger, &[]);
        assert!(ledger.wait_acknowledged("a", Duration::ZERO));
        assert!(ledger.reports().is_empty());
    }

    #[test]
    fn the_end_of_a_lease_wakes_the_reporter_and_the_answer_wakes_the_supervisor() {
        let ledger = Arc::new(Ledger::default());
        let (enrolment, _end) = enrol(&ledger, "a").unwrap();
        let reporter = std::thread::spawn({
            let ledger = ledger.clone();
            move || {
                assert_eq!(ledger.wait_turn(LONG), Turn::Report);
                answer(&ledger, &[]);
                assert_eq!(ledger.wait_turn(LONG), Turn::Finish);
            }
        });
        enrolment.finish("released".into());
        assert!(ledger.wait_acknowledged("a", LONG));
        ledger.finish();
        reporter.join().unwrap();
    }

    #[test]
    fn a_ticket_is_good_for_one_attachment_even_after_its_lease_has_ended() {
        let ledger = Arc::new(Ledger::default());
        let (enrolment, _end) = enrol(&ledger, "a").unwrap();
        assert_eq!(enrol(&ledger, "a").err().unwrap().code, Code::PermissionDenied);
        enrolment.finish("released".into());
        answer(&ledger, &[]);
        assert_eq!(enrol(&ledger, "a").err().unwrap().code, Code::PermissionDenied);
        enrol(&ledger, "b").unwrap();
    }

    #[test]
    fn a_supervisor_that_fails_leaves_its_lease_ended() {
        let ledger = Arc::new(Ledger::default());
        drop(enrol(&ledger, "a").unwrap());
        assert_eq!(ledger.reports()[0].state(), LeaseState::Ended);
    }

    #[test]
    fn leases_end_when_the_manager_says_so_and_when_the_ledger_closes() {
        let ledger = Arc::new(Ledger::default());
        let (_a, end_a) = enrol(&ledger, "a").unwrap();
        let (_b, end_b) = enrol(&ledger, "b").unwrap();
        answer(&ledger, &["a", "unknown"]);
        assert!(end_a.reason().unwrap().message.contains("lease a"));
        assert!(end_b.reason().is_none());
        ledger.close(&Error::new(Code::LeaseEnded, "stopping"));
        assert_eq!(end_b.reason().unwrap().message, "stopping");
        assert_eq!(enrol(&ledger, "c").err().unwrap().message, "stopping");
    }
}
