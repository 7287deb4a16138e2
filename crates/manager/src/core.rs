//! The manager's decisions: a pure state machine of nodes and leases.
//!
//! Everything that happens is an [`Event`], everything to be done an [`Action`]. There is no clock, no
//! randomness and no input or output in here: the shell says what time it is, brings the identifiers of leases
//! and does what the actions say, so that the same core runs in a simulator.
//!
//! Invariants:
//! - what is leased of a node is the sum of its leases that are not ended; a grant never exceeds what is free;
//! - a lease goes from granted to attached to ended, never back, and an end frees its resources at once;
//! - usage only grows, and a report that is repeated or arrives late, even after the end, is counted once;
//! - a request is answered exactly once, and granted only when the lease is in the store;
//! - a lease is forgotten only when its last state is in the store.
//!
//! Silence is counted in ticks, not in time: a manager that itself stood still does not blame its nodes for it.

mod nodes;
mod terms;

use std::collections::BTreeMap;

use sublet_proto::ticket::ATTACH_GRACE_MS;
use sublet_proto::v1::{
    Lease, LeaseReport, LeaseRequest, LeaseState, NodeDescription, NodeInfo, NodeReport, PackageInfo, Price,
    Usage,
};
use sublet_proto::{Code, Error};

pub use nodes::MAX_NODES;
use nodes::{Amount, Nodes};
use terms::Terms;
pub use terms::{DEFAULT_OPTIONS, DEFAULT_TIMEOUT_MS, MEMORY_PER_CORE_BYTES};

/// How often the shell sends [`Event::Tick`], in milliseconds.
pub const TICK_MS: u64 = 500;
/// Ticks without a report after which a node, or a lease that its node should report, counts as lost: 3 s.
pub const SILENCE_TICKS: u32 = 6;
/// How much later than a ticket may be used the manager takes an unattached lease back: the agent's report of
/// the attachment may be on its way for this long.
pub const REPORT_SLACK_MS: u64 = 2_000;
/// How long after a lease's expiry the manager ends it without its agent, which normally does and says so.
pub const EXPIRY_SLACK_MS: u64 = 1_000;
/// How long an ended lease is remembered for late reports, in milliseconds.
pub const REMEMBER_MS: u64 = 10 * 60 * 1000;
/// Most ended leases that are remembered, once they are in the store.
pub const MAX_REMEMBERED: usize = 4096;

/// What happens to the manager.
#[derive(Clone, Debug)]
pub enum Event {
    /// An agent adds its node or takes it up again.
    Register(NodeDescription),
    /// An agent says what its leases have used, and which have ended.
    Report(NodeReport),
    /// A client asks for a lease.
    Request(Box<Request>),
    /// The store had this lease when the manager started.
    Restored(Box<Lease>),
    /// The store has a lease's state as of this revision.
    Saved(Version),
    /// The store could not take a lease's state.
    SaveFailed(Version, Error),
    /// [`TICK_MS`] have passed.
    Tick,
    /// What is not in the store is to be tried again.
    Flush,
}

/// A client's request, with what only the shell can know.
#[derive(Clone, Debug)]
pub struct Request {
    /// The identifier that the lease gets.
    pub lease: String,
    /// Who asks.
    pub tenant: String,
    /// What its name was resolved to.
    pub package: PackageInfo,
    /// What the client said.
    pub asked: LeaseRequest,
}

/// Which state of a lease: its revision grows with each change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The lease's identifier.
    pub lease: String,
    /// From 1.
    pub revision: u64,
}

/// What the shell has to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Answer a registration.
    Registered,
    /// Answer a registration with an error.
    NotRegistered(Error),
    /// Answer a report: the node has to register first.
    RegisterAgain,
    /// Answer a report: the node has to end this lease.
    EndOnNode(String),
    /// Answer the request of this lease.
    Granted {
        /// The lease.
        lease: Box<Lease>,
        /// Where its agent is.
        agent: String,
    },
    /// Answer the request for which this identifier was handed in.
    Refused {
        /// The identifier.
        lease: String,
        /// Why.
        error: Error,
    },
    /// Put the lease's state into the store and answer with [`Event::Saved`] or [`Event::SaveFailed`].
    Save {
        /// The state.
        lease: Box<Lease>,
        /// Its revision.
        revision: u64,
    },
}

/// The state machine.
#[derive(Debug)]
pub struct Core {
    price: Price,
    nodes: Nodes,
    leases: BTreeMap<String, Entry>,
}

/// A lease and what the manager notes about it.
#[derive(Debug)]
struct Entry {
    lease: Lease,
    revision: u64,
    saved_revision: u64,
    unheard_ticks: u32,
}

impl Entry {
    fn is_ended(&self) -> bool {
        self.lease.state() == LeaseState::Ended
    }

    /// No client has been told of it.
    fn is_unanswered(&self) -> bool {
        self.saved_revision == 0
    }

    fn amount(&self) -> Amount {
        Amount { cores: self.lease.cores, memory_bytes: self.lease.memory_bytes }
    }

    fn save(&self, out: &mut Vec<Action>) {
        out.push(Action::Save { lease: Box::new(self.lease.clone()), revision: self.revision });
    }
}

impl Core {
    /// Without nodes and leases; new leases have this price.
    pub fn new(price: Price) -> Core {
        Core { price, nodes: Nodes::default(), leases: BTreeMap::new() }
    }

    /// Takes one event in; what is to be done is added to `out`.
    pub fn on_event(&mut self, now_ms: u64, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Register(description) => self.register(now_ms, description, out),
            Event::Report(report) => self.report(now_ms, report, out),
            Event::Request(request) => self.request(now_ms, *request, out),
            Event::Restored(lease) => self.restore(*lease),
            Event::Saved(version) => self.saved(&version, out),
            Event::SaveFailed(version, error) => self.save_failed(version, error, out),
            Event::Tick => self.tick(now_ms, out),
            Event::Flush => self.flush(out),
        }
    }

    /// Every node, by name.
    pub fn nodes(&self) -> impl Iterator<Item = NodeInfo> + '_ {
        self.nodes.infos()
    }

    /// Every remembered lease that a client knows of, the newest first.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values().rev().filter(|entry| !entry.is_unanswered()).map(|entry| &entry.lease)
    }

    /// A remembered lease.
    pub fn lease(&self, id: &str) -> Option<&Lease> {
        self.leases.get(id).filter(|entry| !entry.is_unanswered()).map(|entry| &entry.lease)
    }

    fn register(&mut self, now_ms: u64, description: NodeDescription, out: &mut Vec<Action>) {
        let leased = self
            .leases
            .values()
            .filter(|entry| !entry.is_ended() && entry.lease.node == description.name)
            .fold(Amount::default(), |sum, entry| sum.plus(entry.amount()));
        out.push(match self.nodes.register(now_ms, description, leased) {
            Ok(()) => Action::Registered,
            Err(error) => Action::NotRegistered(error),
        });
    }

    fn report(&mut self, now_ms: u64, report: NodeReport, out: &mut Vec<Action>) {
        if !self.nodes.heard_from(now_ms, &report.node) {
            return out.push(Action::RegisterAgain);
        }
        for lease in report.leases {
            self.report_lease(now_ms, &report.node, lease, out);
        }
        self.flush(out);
    }

    fn report_lease(&mut self, now_ms: u64, node: &str, report: LeaseReport, out: &mut Vec<Action>) {
        let runs = report.state() != LeaseState::Ended;
        let Some(entry) = self.leases.get_mut(&report.lease).filter(|entry| entry.lease.node == node) else {
            if runs {
                out.push(Action::EndOnNode(report.lease));
            }
            return;
        };
        entry.unheard_ticks = 0;
        let grew = grow(&mut entry.lease, report.usage.unwrap_or_default());
        let attached = runs && entry.lease.state() == LeaseState::Granted;
        if attached {
            entry.lease.set_state(LeaseState::Attached);
        }
        entry.revision += u64::from(grew || attached);
        if !runs {
            self.end(now_ms, &report.lease, &report.end_reason);
        } else if entry.is_ended() {
            out.push(Action::EndOnNode(report.lease));
        }
    }

    fn request(&mut self, now_ms: u64, request: Request, out: &mut Vec<Action>) {
        let id = request.lease.clone();
        match self.place(now_ms, request) {
            Ok(entry) => {
                entry.save(out);
                self.nodes.reserve(&entry.lease.node, entry.amount());
                self.leases.insert(id, entry);
            }
            Err(error) => out.push(Action::Refused { lease: id, error }),
        }
    }

    fn place(&self, now_ms: u64, request: Request) -> Result<Entry, Error> {
        if self.leases.contains_key(&request.lease) {
            return Err(Error::new(Code::Internal, format!("lease {} exists already", request.lease)));
        }
        let terms = Terms::of(&request.asked)?;
        let amount = Amount { cores: terms.cores, memory_bytes: terms.memory_bytes };
        let node = self.nodes.find(&request.package.architecture, amount)?;
        let lease = Lease {
            id: request.lease,
            tenant: request.tenant,
            node: node.to_owned(),
            package: request.package.digest,
            package_name: request.package.name,
            cores: terms.cores,
            memory_bytes: terms.memory_bytes,
            granted_unix_ms: now_ms,
            expires_unix_ms: now_ms.saturating_add(terms.timeout_ms),
            options: Some(terms.options),
            state: LeaseState::Granted.into(),
            price: Some(self.price),
            usage: Some(Usage::default()),
            end_reason: String::new(),
            ended_unix_ms: 0,
        };
        Ok(Entry { lease, revision: 1, saved_revision: 0, unheard_ticks: 0 })
    }

    /// Leases come back before their nodes do; those that no node reports in time are ended.
    fn restore(&mut self, lease: Lease) {
        let entry = Entry { lease, revision: 1, saved_revision: 1, unheard_ticks: 0 };
        if let Some(known) = self.leases.insert(entry.lease.id.clone(), entry) {
            self.leases.insert(known.lease.id.clone(), known);
        }
    }

    fn saved(&mut self, version: &Version, out: &mut Vec<Action>) {
        let Some(entry) = self.leases.get_mut(&version.lease) else { return };
        if entry.is_unanswered() {
            let agent = self.nodes.agent(&entry.lease.node).unwrap_or_default().to_owned();
            out.push(Action::Granted { lease: Box::new(entry.lease.clone()), agent });
        }
        entry.saved_revision = entry.saved_revision.max(version.revision);
    }

    /// A new lease that cannot be stored is not granted; any other change is tried again with the next tick.
    fn save_failed(&mut self, version: Version, error: Error, out: &mut Vec<Action>) {
        if !self.leases.get(&version.lease).is_some_and(Entry::is_unanswered) {
            return;
        }
        if let Some(entry) = self.leases.remove(&version.lease) {
            if !entry.is_ended() {
                self.nodes.release(&entry.lease.node, entry.amount());
            }
            out.push(Action::Refused { lease: version.lease, error });
        }
    }

    fn flush(&self, out: &mut Vec<Action>) {
        for entry in self.leases.values().filter(|entry| entry.saved_revision < entry.revision) {
            entry.save(out);
        }
    }

    fn tick(&mut self, now_ms: u64, out: &mut Vec<Action>) {
        self.nodes.tick();
        for entry in self.leases.values_mut().filter(|entry| !entry.is_ended()) {
            entry.unheard_ticks = entry.unheard_ticks.saturating_add(1);
        }
        self.end_those_over(now_ms);
        self.flush(out);
        self.forget(now_ms);
        let leases = &self.leases;
        self.nodes.forget_lost(|node| !leases.values().any(|entry| entry.lease.node == node));
    }

    fn end_those_over(&mut self, now_ms: u64) {
        let active = self.leases.values().filter(|entry| !entry.is_ended());
        let over: Vec<(String, &str)> =
            active.filter_map(|entry| Some((entry.lease.id.clone(), why_over(now_ms, entry)?))).collect();
        for (id, reason) in over {
            self.end(now_ms, &id, reason);
        }
    }

    fn end(&mut self, now_ms: u64, id: &str, reason: &str) {
        let Some(entry) = self.leases.get_mut(id).filter(|entry| !entry.is_ended()) else { return };
        entry.lease.set_state(LeaseState::Ended);
        reason.clone_into(&mut entry.lease.end_reason);
        entry.lease.ended_unix_ms = now_ms;
        entry.revision += 1;
        self.nodes.release(&entry.lease.node, entry.amount());
    }

    /// Forgets ended leases that are in the store: those that are old, and the oldest of too many.
    fn forget(&mut self, now_ms: u64) {
        let done = |entry: &Entry| entry.is_ended() && entry.saved_revision == entry.revision;
        let mut surplus =
            self.leases.values().filter(|entry| done(entry)).count().saturating_sub(MAX_REMEMBERED);
        self.leases.retain(|_, entry| {
            let old = entry.lease.ended_unix_ms.saturating_add(REMEMBER_MS) < now_ms;
            let forget = done(entry) && (old || surplus > 0);
            surplus -= usize::from(forget && surplus > 0);
            !forget
        });
    }
}

/// Why a lease has to end now, if it has to.
fn why_over(now_ms: u64, entry: &Entry) -> Option<&'static str> {
    let lease = &entry.lease;
    if lease.state() == LeaseState::Granted {
        let grace_ms = ATTACH_GRACE_MS + REPORT_SLACK_MS;
        let over = lease.granted_unix_ms.saturating_add(grace_ms) <= now_ms;
        return over.then_some("nobody attached to it in time");
    }
    if lease.expires_unix_ms.saturating_add(EXPIRY_SLACK_MS) <= now_ms {
        return Some("its time is over");
    }
    (entry.unheard_ticks > SILENCE_TICKS).then_some("its node no longer reports it")
}

/// Merges cumulative usage into a lease's; whether anything grew.
fn grow(lease: &mut Lease, reported: Usage) -> bool {
    let usage = lease.usage.get_or_insert_default();
    let before = *usage;
    usage.allocated_ns = usage.allocated_ns.max(reported.allocated_ns);
    usage.executing_ns = usage.executing_ns.max(reported.executing_ns);
    usage.polling_ns = usage.polling_ns.max(reported.polling_ns);
    usage.calls = usage.calls.max(reported.calls);
    usage.failed_calls = usage.failed_calls.max(reported.failed_calls);
    *usage != before
}

#[cfg(test)]
mod tests;
