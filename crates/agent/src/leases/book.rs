//! The book of a node's leases: which tickets are valid, which leases run, what the manager must still learn. Pure.
//!
//! The agent's threads use it behind one lock ([`crate::leases::ledger`]), the simulator uses it is. Time comes in as
//! milliseconds of this node's monotonic clock; no wall clock is ever read, so none can jump.
//!
//! The manager's clock is known within bounds, which follow from the times at which the latest answer was requested and
//! received: it is at least `lower` and at most `upper`. Decisions that must not come too late use `upper`: tickets age
//! and leases expire by it. Reports on which others rely state `lower`. A ticket that was too old by a reported time is
//! never accepted later, even if the next answer shows that this node's clock had run fast.
//!
//! Invariants:
//! - Only tickets of the current registration are valid. Those of another manager or of an earlier registration are
//!   void.
//! - A ticket allows one attachment, even after its lease has ended.
//! - A report lists every lease that is attached, and every ended one until its end is acknowledged.
//! - A lease that the manager has ended before it was attached cannot be attached any more.
//! - An end is final, and its first reason counts.

use std::collections::BTreeMap;

use sublet_proto::limits::MAX_TIMEOUT_MS;
use sublet_proto::ticket::ATTACH_GRACE_MS;
use sublet_proto::v1::{
    ColdImports, EndOrder, FunctionUsage, Lease, LeaseReport, LeaseState, NodeRegistration, NodeReport,
    NodeReportReply, NodeState, RunningLease, Ticket, Usage,
};
use sublet_proto::{Code, Error};

/// Leases that may await an acknowledgement, attached ones included.
pub const MAX_ENTRIES: usize = 4096;
/// Tickets that may be remembered because they must not be taken again.
pub const MAX_VOID: usize = 65_536;
/// How long a ticket is remembered, in milliseconds: longer than it holds.
const VOID_MS: u64 = 2 * ATTACH_GRACE_MS;

/// How much earlier than a lease ends now the end in a new ticket may seem to be, in milliseconds: the manager's clock
/// is known within bounds. The lease then ends when it would have.
const RENEWAL_SLACK_MS: u64 = 1_000;

/// Milliseconds of this node's monotonic clock.
pub type MonotonicMs = u64;

/// When a manager was asked, and when its answer came.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// When the question was sent.
    pub asked: MonotonicMs,
    /// When the answer was there.
    pub answered: MonotonicMs,
}

/// Bounds of the manager's clock.
#[derive(Clone, Copy, Debug, Default)]
struct ManagerClockBounds {
    /// Least time by which the manager's clock may be ahead of this node's clock, in milliseconds.
    lower_offset_ms: i64,
    /// Most time by which the manager's clock may be ahead of this node's clock, in milliseconds.
    upper_offset_ms: i64,
}

impl ManagerClockBounds {
    fn learn(&mut self, said_ms: u64, exchange: Exchange) {
        debug_assert!(exchange.asked <= exchange.answered, "an answer before its question: {exchange:?}");
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let offset = |at: MonotonicMs| signed(said_ms).saturating_sub(signed(at));
        *self = ManagerClockBounds {
            lower_offset_ms: offset(exchange.answered),
            upper_offset_ms: offset(exchange.asked),
        };
    }

    fn lower(&self, now: MonotonicMs) -> u64 {
        now.saturating_add_signed(self.lower_offset_ms)
    }

    fn upper(&self, now: MonotonicMs) -> u64 {
        now.saturating_add_signed(self.upper_offset_ms)
    }
}

/// Usage of a lease, as its holder measures it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredUsage {
    /// Cumulative.
    pub usage: Usage,
    /// Cumulative, by function.
    pub functions: Vec<FunctionUsage>,
    /// Modules that its latest worker process imported by itself, as the node cannot keep them warm.
    pub cold_imports: Option<ColdImports>,
}

/// How a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookedEnd {
    /// A stable error code; 0 after a release.
    pub code: u32,
    /// For people.
    pub reason: String,
}

/// A lease of the book. `H` is what its holder keeps with it.
#[derive(Debug)]
pub struct BookEntry<H> {
    /// The lease as its latest ticket describes it.
    pub lease: Lease,
    /// The latest ticket, encoded and signed.
    pub ticket: Vec<u8>,
    /// Time at which the lease expires, by this node's clock.
    pub expires: MonotonicMs,
    /// The holder's own data.
    pub holder: H,
    /// How the lease ended; `None` while it is attached.
    pub end: Option<BookedEnd>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct LeaseBook<H> {
    node: String,
    registration: u64,
    sequence: u64,
    /// The latest report whose answer has come.
    answered: u64,
    clock: ManagerClockBounds,
    /// Time of the manager's clock that the latest report stated.
    told_ms: u64,
    state: NodeState,
    entries: BTreeMap<String, BookEntry<H>>,
    /// Leases whose tickets must not be taken any more, and until when that is to be remembered.
    void: BTreeMap<String, MonotonicMs>,
}

impl<H> LeaseBook<H> {
    /// Creates the book of a node of this name. The node has not registered yet, so no ticket is valid.
    pub fn new(node: &str) -> LeaseBook<H> {
        LeaseBook {
            node: node.to_owned(),
            registration: 0,
            sequence: 0,
            answered: 0,
            clock: ManagerClockBounds::default(),
            told_ms: 0,
            state: NodeState::Lending,
            entries: BTreeMap::new(),
            void: BTreeMap::new(),
        }
    }

    /// Begins a registration and returns the leases that it has to list. Until it is answered no ticket is valid,
    /// because the manager would not know of a lease that began meanwhile.
    pub fn register(&mut self, now: MonotonicMs, read: impl Fn(&H) -> MeasuredUsage) -> Vec<RunningLease> {
        self.registration = 0;
        self.running(now, read)
    }

    /// Every lease that runs, or whose end is not acknowledged yet.
    pub fn running(&self, now: MonotonicMs, read: impl Fn(&H) -> MeasuredUsage) -> Vec<RunningLease> {
        let list = self.entries.iter().map(|(id, entry)| RunningLease {
            ticket: entry.ticket.clone(),
            report: Some(entry.report(id, &read)),
            remaining_ms: entry.expires.saturating_sub(now),
        });
        list.collect()
    }

    /// The node has registered: from now on tickets of this registration hold.
    pub fn registered(&mut self, registration: &NodeRegistration, exchange: Exchange) {
        self.registration = registration.registration;
        (self.sequence, self.answered, self.told_ms) = (0, 0, 0);
        self.clock.learn(registration.now_unix_ms, exchange);
    }

    /// Admits a lease by its ticket, whose signature the caller has verified. Returns the time at which the lease
    /// expires.
    ///
    /// # Errors
    /// `permission_denied` for another node's ticket and for one that was shown before or too late;
    /// `ticket_superseded` if it is not of this registration; `lease_expired`; `no_capacity` while the node takes no
    /// leases, or holds too many.
    pub fn admit(
        &mut self,
        ticket: &Ticket,
        encoded: Vec<u8>,
        holder: H,
        now: MonotonicMs,
    ) -> Result<MonotonicMs, Error> {
        let lease = self.check(ticket, now)?;
        self.check_void(&lease.id, now)?;
        match self.state {
            NodeState::Draining => return Err(closed("is being drained")),
            NodeState::Reclaimed => return Err(closed("is being handed back")),
            _ if self.entries.len() >= MAX_ENTRIES => {
                let message =
                    format!("the manager has not acknowledged the ends of {MAX_ENTRIES} leases yet");
                return Err(Error::new(Code::NoCapacity, message));
            }
            _ => {}
        }
        let expires = self.expiry(lease, now);
        let (id, lease) = (lease.id.clone(), lease.clone());
        self.void.insert(id.clone(), now.saturating_add(VOID_MS));
        let before =
            self.entries.insert(id, BookEntry { lease, ticket: encoded, expires, holder, end: None });
        debug_assert!(before.is_none(), "lease {:?} was attached twice", before.map(|entry| entry.lease.id));
        let (entries, void) = (self.entries.len(), self.void.len());
        debug_assert!(entries <= MAX_ENTRIES, "{entries} leases, at most {MAX_ENTRIES}");
        debug_assert!(void <= MAX_VOID, "{void} void tickets, at most {MAX_VOID}");
        Ok(expires)
    }

    /// Takes a later ticket of an attached lease. Returns the time at which the lease expires now.
    ///
    /// # Errors
    /// As [`LeaseBook::admit`]; `unknown_lease` if it is not attached; `invalid_argument` if it would end earlier.
    pub fn renew(
        &mut self,
        ticket: &Ticket,
        encoded: Vec<u8>,
        now: MonotonicMs,
    ) -> Result<MonotonicMs, Error> {
        let lease = self.check(ticket, now)?;
        let expires = self.expiry(lease, now);
        let unknown = || Error::new(Code::UnknownLease, format!("lease {} is not attached here", lease.id));
        let entry =
            self.entries.get_mut(&lease.id).filter(|entry| entry.end.is_none()).ok_or_else(unknown)?;
        // By this node's clock: the ticket before may be another manager's, by whose clock it is another time.
        if expires.saturating_add(RENEWAL_SLACK_MS) < entry.expires {
            let message = format!("the ticket would end lease {} earlier than it ends now", lease.id);
            return Err(Error::new(Code::InvalidArgument, message));
        }
        entry.lease = lease.clone();
        entry.ticket = encoded;
        debug_assert!(entry.end.is_none(), "the ended lease {} is renewed", entry.lease.id);
        entry.expires = entry.expires.max(expires);
        Ok(entry.expires)
    }

    /// Records that a lease has ended and that its resources are free. Only the first end counts; returns whether this
    /// was the first.
    pub fn end(&mut self, lease: &str, end: BookedEnd) -> bool {
        let entry = self.entries.get_mut(lease).filter(|entry| entry.end.is_none());
        entry.map(|entry| entry.end = Some(end)).is_some()
    }

    /// Adds a lease that an earlier agent of this node left behind.
    pub fn inherit(&mut self, lease: Lease, ticket: Vec<u8>, holder: H, end: BookedEnd) {
        if self.entries.len() < MAX_ENTRIES {
            let entry = BookEntry { ticket, expires: 0, holder, end: Some(end), lease: lease.clone() };
            self.entries.entry(lease.id).or_insert(entry);
        }
    }

    /// The next report.
    pub fn report(&mut self, now: MonotonicMs, read: impl Fn(&H) -> MeasuredUsage) -> NodeReport {
        self.sequence += 1;
        self.void.retain(|_, until| *until > now);
        self.told_ms = self.clock.lower(now).max(self.told_ms);
        debug_assert!(
            self.entries.iter().all(|(id, entry)| *id == entry.lease.id),
            "a lease is listed under the name of another: {:?}",
            self.entries.keys()
        );
        NodeReport {
            node: self.node.clone(),
            leases: self.entries.iter().map(|(id, entry)| entry.report(id, &read)).collect(),
            registration: self.registration,
            sequence: self.sequence,
            clock_unix_ms: self.told_ms,
            state: self.state.into(),
            answered: self.answered,
            ..NodeReport::default()
        }
    }

    /// Takes a report's answer and removes leases whose ends are acknowledged. Returns the leases that the manager
    /// wants ended.
    pub fn answered(&mut self, reply: &NodeReportReply, exchange: Exchange) -> Vec<EndOrder> {
        self.clock.learn(reply.now_unix_ms, exchange);
        for id in &reply.acknowledged {
            if self.entries.get(id).is_some_and(|entry| entry.end.is_some()) {
                self.entries.remove(id);
            }
        }
        let (mut orders, mut are_all_void) = (Vec::new(), true);
        for order in &reply.end {
            match self.entries.get(&order.lease) {
                Some(entry) if entry.end.is_none() => orders.push(order.clone()),
                Some(_) => {}
                None if self.void.len() < MAX_VOID => {
                    self.void.insert(order.lease.clone(), exchange.answered.saturating_add(VOID_MS));
                }
                None => are_all_void = false,
            }
        }
        if are_all_void && reply.sequence <= self.sequence {
            self.answered = self.answered.max(reply.sequence);
        }
        debug_assert!(
            self.answered <= self.sequence,
            "report {} was answered, and {} is the latest",
            self.answered,
            self.sequence
        );
        orders
    }

    /// Whether a report's answer ends, for the first time, a lease that no client has attached here. The manager
    /// reserves capacity for such a lease until it knows that the node has received the order.
    pub fn frees(&self, reply: &NodeReportReply) -> bool {
        let is_new = |lease: &String| !self.entries.contains_key(lease) && !self.void.contains_key(lease);
        reply.end.iter().any(|order| is_new(&order.lease))
    }

    /// Whether leases may come; said by the next report.
    pub fn set_state(&mut self, state: NodeState) {
        self.state = state;
    }

    /// State that was last set.
    pub fn state(&self) -> NodeState {
        self.state
    }

    /// The leases of the book, by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &BookEntry<H>)> {
        self.entries.iter().map(|(id, entry)| (id.as_str(), entry))
    }

    /// Entry of the lease with this id.
    pub fn entry(&self, lease: &str) -> Option<&BookEntry<H>> {
        self.entries.get(lease)
    }

    /// The holder's data of the lease with this id.
    pub fn holder_mut(&mut self, lease: &str) -> Option<&mut H> {
        self.entries.get_mut(lease).map(|entry| &mut entry.holder)
    }

    /// Whether the node would accept a ticket now if it were shown for the first time and the node had enough capacity.
    pub fn holds(&self, ticket: &Ticket, now: MonotonicMs) -> bool {
        let is_open = self.state == NodeState::Lending && self.entries.len() < MAX_ENTRIES;
        is_open && self.check(ticket, now).is_ok_and(|lease| self.check_void(&lease.id, now).is_ok())
    }

    fn check<'ticket>(&self, ticket: &'ticket Ticket, now: MonotonicMs) -> Result<&'ticket Lease, Error> {
        let denied = |message: String| Err(Error::new(Code::PermissionDenied, message));
        let Some(lease) = &ticket.lease else { return denied("the ticket names no lease".into()) };
        if lease.node != self.node {
            return denied(format!("the ticket is for node {:?}, and this is {:?}", lease.node, self.node));
        }
        if ticket.registration != self.registration || self.registration == 0 {
            let message =
                format!("node {} has registered anew since lease {} was granted", self.node, lease.id);
            return Err(Error::new(Code::TicketSuperseded, message));
        }
        let clock = self.clock.upper(now).max(self.told_ms);
        if lease.expires_unix_ms <= clock {
            return Err(Error::new(Code::LeaseExpired, format!("lease {} has expired", lease.id)));
        }
        if ticket.issued_unix_ms.saturating_add(ATTACH_GRACE_MS) < clock {
            return denied(format!(
                "the ticket of lease {} was shown too late after it was issued",
                lease.id
            ));
        }
        Ok(lease)
    }

    fn check_void(&self, lease: &str, now: MonotonicMs) -> Result<(), Error> {
        if self.void.get(lease).is_some_and(|until| *until > now) || self.entries.contains_key(lease) {
            let message = format!("lease {lease} was attached already, or has been ended");
            return Err(Error::new(Code::PermissionDenied, message));
        }
        if self.void.len() >= MAX_VOID {
            let message = format!("{MAX_VOID} leases were attached in the last {} s", VOID_MS / 1000);
            return Err(Error::new(Code::NoCapacity, message));
        }
        Ok(())
    }

    fn expiry(&self, lease: &Lease, now: MonotonicMs) -> MonotonicMs {
        let left_ms = lease.expires_unix_ms.saturating_sub(self.clock.upper(now));
        now.saturating_add(left_ms.min(MAX_TIMEOUT_MS))
    }
}

impl<H> BookEntry<H> {
    fn report(&self, id: &str, read: impl Fn(&H) -> MeasuredUsage) -> LeaseReport {
        let MeasuredUsage { usage, functions, cold_imports } = read(&self.holder);
        let state = if self.end.is_some() { LeaseState::Ended } else { LeaseState::Attached };
        LeaseReport {
            lease: id.to_owned(),
            state: state.into(),
            usage: Some(usage),
            end_reason: self.end.as_ref().map(|end| end.reason.clone()).unwrap_or_default(),
            end_code: self.end.as_ref().map_or(0, |end| end.code),
            functions,
            cold_imports,
        }
    }
}

fn closed(why: &str) -> Error {
    Error::new(Code::NoCapacity, format!("the node {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUED: u64 = 1_000_000;

    fn lease(id: &str) -> Lease {
        Lease { id: id.into(), node: "n".into(), expires_unix_ms: ISSUED + 60_000, ..Lease::default() }
    }

    fn ticket(id: &str) -> Ticket {
        Ticket { lease: Some(lease(id)), registration: 7, issued_unix_ms: ISSUED, ..Ticket::default() }
    }

    /// Registered when the manager's clock said [`ISSUED`]; the answer took 100 ms.
    fn book() -> LeaseBook<()> {
        let mut book = LeaseBook::new("n");
        let registration =
            NodeRegistration { registration: 7, now_unix_ms: ISSUED, ..NodeRegistration::default() };
        book.registered(&registration, Exchange { asked: 0, answered: 100 });
        book
    }

    fn used((): &()) -> MeasuredUsage {
        MeasuredUsage::default()
    }

    fn admit(book: &mut LeaseBook<()>, ticket: &Ticket, now: MonotonicMs) -> Result<MonotonicMs, Code> {
        book.admit(ticket, vec![1], (), now).map_err(|error| error.code)
    }

    #[test]
    fn a_ticket_is_valid_for_its_registration_node_and_time() {
        let mut book = book();
        assert_eq!(
            admit(&mut book, &Ticket { registration: 6, ..ticket("a") }, 0),
            Err(Code::TicketSuperseded)
        );
        let elsewhere = Lease { node: "m".into(), ..lease("a") };
        let of_another = Ticket { lease: Some(elsewhere), ..ticket("a") };
        assert_eq!(admit(&mut book, &of_another, 0), Err(Code::PermissionDenied));
        assert_eq!(admit(&mut book, &ticket("a"), ATTACH_GRACE_MS + 1), Err(Code::PermissionDenied));
        let old = Ticket { issued_unix_ms: ISSUED + 60_000, ..ticket("a") };
        assert_eq!(admit(&mut book, &old, 60_000), Err(Code::LeaseExpired));
        assert_eq!(admit(&mut book, &ticket("a"), ATTACH_GRACE_MS), Ok(60_000));
        assert_eq!(
            admit(&mut LeaseBook::new("n"), &Ticket { registration: 0, ..ticket("a") }, 0),
            Err(Code::TicketSuperseded)
        );
    }

    #[test]
    fn accepts_a_ticket_for_one_attachment() {
        let mut book = book();
        admit(&mut book, &ticket("a"), 0).unwrap();
        assert!(!book.holds(&ticket("a"), 0) && book.holds(&ticket("b"), 0));
        assert_eq!(admit(&mut book, &ticket("a"), 0), Err(Code::PermissionDenied));
        assert!(book.end("a", BookedEnd { code: 0, reason: "released".into() }));
        assert!(!book.end("a", BookedEnd { code: 1, reason: "later".into() }));
        let reply =
            NodeReportReply { acknowledged: vec!["a".into()], now_unix_ms: ISSUED, ..Default::default() };
        book.answered(&reply, Exchange { asked: 0, answered: 0 });
        assert!(book.report(1, used).leases.is_empty());
        assert_eq!(admit(&mut book, &ticket("a"), 1), Err(Code::PermissionDenied));
    }

    #[test]
    fn an_end_is_reported_until_it_is_acknowledged() {
        let mut book = book();
        admit(&mut book, &ticket("a"), 0).unwrap();
        let exchange = Exchange { asked: 0, answered: 0 };
        let early =
            NodeReportReply { acknowledged: vec!["a".into()], now_unix_ms: ISSUED, ..Default::default() };
        book.answered(&early, exchange);
        book.end("a", BookedEnd { code: 0, reason: "released".into() });
        for sequence in 1..3 {
            let report = book.report(0, used);
            assert_eq!((report.sequence, report.leases[0].state()), (sequence, LeaseState::Ended));
        }
        assert_eq!(book.running(0, used)[0].ticket, [1]);
        book.answered(&early, exchange);
        assert!(book.report(0, used).leases.is_empty());
    }

    #[test]
    fn what_the_manager_ended_before_it_came_does_not_come() {
        let mut book = book();
        let order = |id: &str| EndOrder { lease: id.into(), ..EndOrder::default() };
        admit(&mut book, &ticket("a"), 0).unwrap();
        let reply =
            NodeReportReply { end: vec![order("a"), order("b")], now_unix_ms: ISSUED, ..Default::default() };
        assert_eq!(book.answered(&reply, Exchange { asked: 0, answered: 0 }), [order("a")]);
        assert_eq!(admit(&mut book, &ticket("b"), 1), Err(Code::PermissionDenied));
    }

    #[test]
    fn reports_use_the_lower_and_tickets_the_upper_clock_bound() {
        let mut book = book();
        assert_eq!(book.report(1_100, used).clock_unix_ms, ISSUED + 1_000);
        assert!(book.holds(&ticket("a"), ATTACH_GRACE_MS) && !book.holds(&ticket("a"), ATTACH_GRACE_MS + 1));
        // Whatever is still taken when a report is made was not too old by the report's clock.
        assert!(book.report(ATTACH_GRACE_MS, used).clock_unix_ms <= ISSUED + ATTACH_GRACE_MS);
    }

    #[test]
    fn a_reported_manager_clock_stays_valid_after_a_slower_answer() {
        let mut book = book();
        let asked = ATTACH_GRACE_MS + 101;
        assert_eq!(book.report(asked, used).clock_unix_ms, ISSUED + ATTACH_GRACE_MS + 1);
        let slower = NodeReportReply { now_unix_ms: ISSUED + ATTACH_GRACE_MS - 50, ..Default::default() };
        book.answered(&slower, Exchange { asked, answered: asked });
        assert!(!book.holds(&ticket("a"), asked), "its manager has given the ticket up");
        let fresh = Ticket { issued_unix_ms: slower.now_unix_ms, ..ticket("b") };
        assert!(book.holds(&fresh, asked));
        assert_eq!(book.report(asked, used).clock_unix_ms, ISSUED + ATTACH_GRACE_MS + 1);
    }

    #[test]
    fn treats_a_manager_clock_beyond_63_bits_as_late() {
        let mut book = book();
        let reply = NodeReportReply { now_unix_ms: u64::MAX, ..Default::default() };
        book.answered(&reply, Exchange { asked: 0, answered: 0 });
        assert!(book.report(0, used).clock_unix_ms >= i64::MAX.unsigned_abs());
        assert_eq!(admit(&mut book, &ticket("a"), 0), Err(Code::LeaseExpired));
    }

    #[test]
    fn a_lease_is_renewed_by_a_later_ticket_only() {
        let mut book = book();
        let until =
            |expires_unix_ms| Ticket { lease: Some(Lease { expires_unix_ms, ..lease("a") }), ..ticket("a") };
        let renew =
            |book: &mut LeaseBook<()>, ticket: &Ticket| book.renew(ticket, vec![2], 10).map_err(|e| e.code);
        assert_eq!(renew(&mut book, &ticket("a")), Err(Code::UnknownLease));
        admit(&mut book, &ticket("a"), 0).unwrap();
        assert_eq!(renew(&mut book, &until(ISSUED + 50_000)), Err(Code::InvalidArgument));
        assert_eq!(renew(&mut book, &until(ISSUED + 90_000)), Ok(90_000));
        assert_eq!(book.entry("a").map(|entry| entry.expires), Some(90_000));
        book.end("a", BookedEnd { code: 0, reason: String::new() });
        assert_eq!(renew(&mut book, &until(ISSUED + 95_000)), Err(Code::UnknownLease));
    }

    #[test]
    fn a_drained_node_keeps_its_leases_and_admits_none() {
        let mut book = book();
        admit(&mut book, &ticket("a"), 0).unwrap();
        book.set_state(NodeState::Draining);
        assert_eq!(admit(&mut book, &ticket("b"), 0), Err(Code::NoCapacity));
        let report = book.report(0, used);
        assert_eq!((report.state(), report.leases[0].state()), (NodeState::Draining, LeaseState::Attached));
        book.set_state(NodeState::Lending);
        admit(&mut book, &ticket("b"), 0).unwrap();
    }
}
