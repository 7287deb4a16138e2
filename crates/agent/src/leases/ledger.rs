//! The [`LeaseBook`] of the node's leases, shared by the agent's threads.
//!
//! The book decides about leases, purely. The ledger adds the lock around the book, what each lease holds on this
//! machine, and the threads that wait for changes. Supervisors enrol leases and end them, the reporter and the
//! journal's keeper read, an operator's commands change what the node lends. Nothing here does I/O, and the lock is
//! never held for longer than it takes to copy the entries.
//!
//! Invariants:
//! - While a registration is under way no ticket is accepted: the manager takes over a complete list.
//! - A lease is in the book for as long as it holds anything of the node, and then until its end is acknowledged.
//! - A supervisor that fails, however it fails, leaves its lease ended.
//! - No lease begins after the node is set to lend none, so that a request to end all leases reaches every one.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_proto::ticket::Verifying;
use sublet_proto::v1::{
    EndOrder, Lease, LeaseReport, LeaseState, NodeRegistration, NodeReport, NodeReportReply, NodeState,
    NodeStatus, RunningLease, SignedTicket, Ticket,
};
use sublet_proto::{Code, Error, decode};
use tracing::warn;

use crate::leases::book::{BookedEnd, Exchange, LeaseBook, MeasuredUsage, MonotonicMs};
use crate::leases::usage::LeaseMeter;
use crate::signal::{EndRequest, WantedEnd};

/// The leases of one agent.
pub(crate) struct LeaseLedger {
    /// The zero of the book's clock.
    start: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    book: LeaseBook<LeaseHolder>,
    /// The key of the manager that has taken the node up.
    verifying: Option<Verifying>,
    /// Ended leases of which no manager has answered a report.
    untold: BTreeSet<String>,
    /// When the leases of a reclaimed node end by force.
    reclaim_at: Option<Instant>,
    /// Number of events that must not wait for the next second: ends of leases, changes of what the node lends.
    news: u64,
    /// Grows with each lease that begins to be billed.
    begun: u64,
    /// Why no lease is taken any more.
    closed: Option<Error>,
    finished: bool,
}

/// State of a lease of the book on this machine.
enum LeaseHolder {
    /// The lease holds resources of the node. There is no meter until something is to be billed.
    Runs { end: Arc<EndRequest>, meter: Option<Arc<LeaseMeter>> },
    /// The lease holds no resources any more.
    Ended(MeasuredUsage),
}

/// How far a thread that acts each second has seen the news.
#[derive(Debug, Default)]
pub(crate) struct NewsCursor {
    news: u64,
    /// Number of beginnings seen, for a thread that also acts at once when a lease begins to be billed.
    begun: Option<u64>,
}

impl NewsCursor {
    /// State of a thread that also acts at once when a lease begins.
    pub(crate) fn with_beginnings() -> NewsCursor {
        NewsCursor { news: 0, begun: Some(0) }
    }
}

/// Next step of a thread that acts each second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadStep {
    Act,
    /// Act for the last time: all leases have ended.
    Finish,
}

/// A lease that was taken up.
pub(crate) struct EnrolledLease {
    pub(crate) enrolment: Enrolment,
    pub(crate) ticket: Ticket,
    pub(crate) expires: Instant,
}

impl LeaseLedger {
    pub(crate) fn new(node: &str) -> LeaseLedger {
        let state = State {
            book: LeaseBook::new(node),
            verifying: None,
            untold: BTreeSet::new(),
            reclaim_at: None,
            news: 0,
            begun: 0,
            closed: None,
            finished: false,
        };
        LeaseLedger { start: Instant::now(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The book's clock.
    pub(crate) fn now(&self) -> MonotonicMs {
        MonotonicMs::try_from(self.start.elapsed().as_millis()).unwrap_or(MonotonicMs::MAX)
    }

    fn instant(&self, at: MonotonicMs) -> Instant {
        self.start + Duration::from_millis(at)
    }

    /// Takes up the lease of a ticket.
    pub(crate) fn enrol(
        self: &Arc<LeaseLedger>,
        encoded: &[u8],
        end: Arc<EndRequest>,
    ) -> Result<EnrolledLease, Error> {
        let mut state = lock(&self.state);
        if let Some(reason) = &state.closed {
            return Err(reason.clone());
        }
        let ticket = state.open(encoded)?;
        let holder = LeaseHolder::Runs { end, meter: None };
        let expires = state.book.admit(&ticket, encoded.to_vec(), holder, self.now())?;
        let lease = lease_id(&ticket).to_owned();
        debug_assert!(
            state.book.entry(&lease).is_some(),
            "lease {lease} was taken up, and is not in the book"
        );
        let enrolment = Enrolment { ledger: self.clone(), lease };
        Ok(EnrolledLease { enrolment, ticket, expires: self.instant(expires) })
    }

    /// Takes over what an agent that was killed has left to be reported.
    pub(crate) fn inherit(&self, left: Vec<RunningLease>) {
        let mut state = lock(&self.state);
        for RunningLease { ticket, report, .. } in left {
            match signed_lease(&ticket) {
                Ok(lease) => {
                    let (used, end) = left_behind(report.unwrap_or_default());
                    state.book.inherit(lease, ticket, LeaseHolder::Ended(used), end);
                }
                Err(error) => warn!(%error, "a lease of the journal is lost"),
            }
        }
    }

    /// Takes no lease any more and asks all to end.
    pub(crate) fn close(&self, reason: &Error) {
        let mut state = lock(&self.state);
        state.closed.get_or_insert_with(|| reason.clone());
        state.end_all(&WantedEnd { reason: reason.clone(), at: Instant::now() });
    }

    /// Lets the threads that act each second finish. Called when no supervisor is left.
    pub(crate) fn finish(&self) {
        lock(&self.state).finished = true;
        self.changed.notify_all();
    }

    /// Everything that a manager which takes the node up must know. Until it has answered, no ticket is taken.
    pub(crate) fn register(&self) -> Vec<RunningLease> {
        let mut state = lock(&self.state);
        state.verifying = None;
        state.book.register(self.now(), LeaseHolder::used)
    }

    /// Takes the answer of a manager that has taken the node up.
    pub(crate) fn registered(&self, reply: &NodeRegistration, exchange: Exchange) -> Result<(), Error> {
        let verifying = Verifying::from_bytes(&reply.verifying_key)?;
        let mut state = lock(&self.state);
        state.book.registered(reply, exchange);
        state.verifying = Some(verifying);
        Ok(())
    }

    /// Leases that the journal has to keep.
    pub(crate) fn unacknowledged(&self) -> Vec<RunningLease> {
        lock(&self.state).book.running(self.now(), LeaseHolder::used)
    }

    /// Whether no manager has to hear of any lease.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.state).book.entries().next().is_none()
    }

    pub(crate) fn report(&self) -> NodeReport {
        lock(&self.state).book.report(self.now(), LeaseHolder::used)
    }

    /// Takes a report's answer; `wanted` says when a lease ends that the manager wants ended.
    pub(crate) fn reported(
        &self,
        report: &NodeReport,
        reply: &NodeReportReply,
        exchange: Exchange,
        wanted: impl Fn(&EndOrder) -> WantedEnd,
    ) {
        let mut state = lock(&self.state);
        if state.book.frees(reply) {
            state.news += 1;
        }
        for order in state.book.answered(reply, exchange) {
            if let Some(LeaseHolder::Runs { end, .. }) =
                state.book.entry(&order.lease).map(|entry| &entry.holder)
            {
                end.raise(wanted(&order));
            }
        }
        for lease in report.leases.iter().filter(|lease| lease.state() == LeaseState::Ended) {
            state.untold.remove(&lease.lease);
        }
        self.changed.notify_all();
    }

    /// Continues to lend; announced ends stay.
    pub(crate) fn lend(&self) {
        self.set_state(NodeState::Lending, None);
    }

    /// Stops lending; running leases continue.
    pub(crate) fn drain(&self) {
        self.set_state(NodeState::Draining, None);
    }

    /// Lends nothing any more, and all leases end then, or when it was announced to them before.
    pub(crate) fn reclaim(&self, end: WantedEnd) {
        self.set_state(NodeState::Reclaimed, Some(end));
    }

    fn set_state(&self, lending: NodeState, end: Option<WantedEnd>) {
        let mut state = lock(&self.state);
        state.book.set_state(lending);
        state.reclaim_at = end.as_ref().map(|end| state.reclaim_at.map_or(end.at, |at| at.min(end.at)));
        if let Some(end) = end {
            state.end_all(&end);
        }
        state.news += 1;
        self.changed.notify_all();
    }

    /// Status of the node for its operator.
    pub(crate) fn status(&self) -> NodeStatus {
        let state = lock(&self.state);
        let left = state.reclaim_at.map(|at| at.saturating_duration_since(Instant::now()));
        NodeStatus {
            state: state.book.state().into(),
            leases: u32::try_from(state.running().count()).unwrap_or(u32::MAX),
            grace_left_ms: left.map_or(0, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        }
    }

    /// Waits until nothing is leased or the node is in another state, but no longer than `timeout`.
    pub(crate) fn wait_idle(&self, lending: NodeState, timeout: Duration) {
        let is_going_on =
            |state: &mut State| state.book.state() == lending && state.running().next().is_some();
        let waited = self.changed.wait_timeout_while(lock(&self.state), timeout, is_going_on);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The accounts of the leases that run.
    pub(crate) fn meters(&self) -> Vec<Arc<LeaseMeter>> {
        let state = lock(&self.state);
        let running = state.book.entries().filter_map(|(_, entry)| match &entry.holder {
            LeaseHolder::Runs { meter, .. } => meter.clone(),
            LeaseHolder::Ended(_) => None,
        });
        running.collect()
    }

    /// Waits for the time to act: `period` from now, or as soon as there is news.
    pub(crate) fn wait_turn(&self, seen: &mut NewsCursor, period: Duration) -> ThreadStep {
        let is_quiet = |state: &mut State| {
            let has_begun = seen.begun.is_some_and(|begun| begun != state.begun);
            state.news == seen.news && !has_begun && !state.finished
        };
        let waited = self.changed.wait_timeout_while(lock(&self.state), period, is_quiet);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        seen.news = state.news;
        seen.begun = seen.begun.map(|_| state.begun);
        if state.finished { ThreadStep::Finish } else { ThreadStep::Act }
    }

    /// Waits until a manager has heard of the end of a lease; says whether it has.
    pub(crate) fn wait_told(&self, lease: &str, timeout: Duration) -> bool {
        let is_untold = |state: &mut State| state.untold.contains(lease);
        let waited = self.changed.wait_timeout_while(lock(&self.state), timeout, is_untold);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl State {
    fn open(&self, encoded: &[u8]) -> Result<Ticket, Error> {
        let registering = || Error::new(Code::TicketSuperseded, "the node is being registered");
        self.verifying.as_ref().ok_or_else(registering)?.open(encoded)
    }

    /// The end requests of the leases that hold something of the node.
    fn running(&self) -> impl Iterator<Item = &EndRequest> {
        self.book.entries().filter_map(|(_, entry)| match &entry.holder {
            LeaseHolder::Runs { end, .. } => Some(&**end),
            LeaseHolder::Ended(_) => None,
        })
    }

    fn end_all(&self, wanted: &WantedEnd) {
        self.running().for_each(|end| end.raise(wanted.clone()));
    }
}

impl LeaseHolder {
    fn used(&self) -> MeasuredUsage {
        match self {
            LeaseHolder::Runs { meter: Some(meter), .. } => meter.read(),
            LeaseHolder::Runs { meter: None, .. } => MeasuredUsage::default(),
            LeaseHolder::Ended(used) => used.clone(),
        }
    }
}

/// A supervisor's hold on its lease's entry.
pub(crate) struct Enrolment {
    ledger: Arc<LeaseLedger>,
    lease: String,
}

impl Enrolment {
    /// Begins to bill the lease's usage: all that the meter has counted and will count.
    pub(crate) fn bill(&self, metered: Arc<LeaseMeter>) {
        let mut state = lock(&self.ledger.state);
        if let Some(LeaseHolder::Runs { meter, .. }) = state.book.holder_mut(&self.lease) {
            debug_assert!(
                meter.as_ref().is_none_or(|meter| Arc::ptr_eq(meter, &metered)),
                "lease {} is billed by two meters",
                self.lease
            );
            *meter = Some(metered);
            state.begun += 1;
            self.ledger.changed.notify_all();
        }
    }

    /// Takes a later ticket of the lease; answers when the lease now expires.
    pub(crate) fn renew(&self, encoded: &[u8]) -> Result<Instant, Error> {
        self.take(encoded).map(|(_, expires)| expires)
    }

    /// Takes the ticket that follows a provisional one; answers whose the lease is.
    pub(crate) fn confirm(&self, encoded: &[u8]) -> Result<String, Error> {
        let (ticket, _) = self.take(encoded)?;
        Ok(ticket.lease.map(|lease| lease.tenant).unwrap_or_default())
    }

    fn take(&self, encoded: &[u8]) -> Result<(Ticket, Instant), Error> {
        let mut state = lock(&self.ledger.state);
        let ticket = state.open(encoded)?;
        let denied = |message: String| Err(Error::new(Code::PermissionDenied, message));
        if lease_id(&ticket) != self.lease {
            return denied(format!(
                "the ticket is for lease {}, and this is {}",
                lease_id(&ticket),
                self.lease
            ));
        }
        if ticket.provisional {
            return denied(format!("lease {} cannot be renewed by a provisional ticket", self.lease));
        }
        let expires = state.book.renew(&ticket, encoded.to_vec(), self.ledger.now())?;
        Ok((ticket, self.ledger.instant(expires)))
    }

    /// Ends the lease, whose resources are free. Its usage so far is final. Wakes the reporter.
    pub(crate) fn finish(self, end: BookedEnd) {
        self.end(end);
    }

    fn end(&self, end: BookedEnd) {
        let mut state = lock(&self.ledger.state);
        if !state.book.end(&self.lease, end) {
            return;
        }
        if let Some(holder) = state.book.holder_mut(&self.lease) {
            *holder = LeaseHolder::Ended(holder.used());
        }
        let is_first = state.untold.insert(self.lease.clone());
        debug_assert!(is_first, "lease {} has ended twice", self.lease);
        state.news += 1;
        self.ledger.changed.notify_all();
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        // Without effect after `finish`: the first end counts.
        self.end(BookedEnd {
            code: Code::Internal.number(),
            reason: "the agent failed to supervise the lease".to_owned(),
        });
    }
}

fn lease_id(ticket: &Ticket) -> &str {
    ticket.lease.as_ref().map_or("", |lease| &lease.id)
}

/// The lease of a ticket that this agent's predecessor has taken up: its signature was checked then, and will be by
/// the manager.
fn signed_lease(encoded: &[u8]) -> Result<Lease, Error> {
    let signed: SignedTicket = decode("a ticket of the journal", encoded)?;
    let ticket: Ticket = decode("a ticket of the journal", &signed.ticket)?;
    ticket.lease.ok_or_else(|| Error::new(Code::Protocol, "a ticket of the journal names no lease"))
}

/// Usage of a killed agent's lease and how it ended: with its agent, if not before.
fn left_behind(report: LeaseReport) -> (MeasuredUsage, BookedEnd) {
    let end = match report.state() {
        LeaseState::Ended => BookedEnd { code: report.end_code, reason: report.end_reason },
        _ => BookedEnd { code: Code::AgentUnreachable.number(), reason: "the agent was killed".to_owned() },
    };
    let used = MeasuredUsage {
        usage: report.usage.unwrap_or_default(),
        functions: report.functions,
        cold_imports: report.cold_imports,
    };
    (used, end)
}

#[cfg(test)]
mod tests;
