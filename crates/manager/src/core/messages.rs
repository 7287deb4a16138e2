//! Defines the events and actions of the core.

use std::sync::Arc;

use sublet_proto::Error;
use sublet_proto::v1::{self, FunctionUsage, NodeDescription, PackageInfo, Quota, TenantUse, Usage};

use super::global::{RackStanding, Refusals};
use super::ids::{InstanceId, LeaseId, NodeKey, RequestId, TenantKey};
use super::locality::Locality;
use super::neighbours::Neighbourhood;
use super::nodes::Lending;
use super::terms::Terms;

/// What happens to the manager.
#[derive(Clone, Debug)]
pub enum Event {
    /// An agent adds its node, or takes it up again.
    Register(Box<Joining>),
    /// An agent says what its leases have used, and which have ended.
    Report(Report),
    /// The connection by which an agent reported has ended: the agent is dead, or reports soon by another one.
    Disconnected(NodeKey),
    /// A client asks for leases.
    Request(Box<Request>),
    /// Nobody waits for this request's answer any more.
    Withdraw(TenantKey, RequestId),
    /// The token behind a provisional lease is a good one, and this tenant's.
    Verified(LeaseId, TenantKey),
    /// The token behind a lease is worth nothing: not known, or revoked.
    Rejected(LeaseId, Error),
    /// A client wants a later end.
    Renew(Renewal),
    /// A lease is to end. Whether the caller may say so is the shell's to check.
    End(LeaseId, Error),
    /// A tenant may have this much.
    Quota(TenantKey, Quota),
    /// A tenant has this much by other managers, and had spent as much before this one started.
    Elsewhere(TenantKey, TenantUse),
    /// Another living manager has this node, by a registration of this generation.
    Moved(NodeKey, u64),
    /// So stand all racks whose managers live: for the level above them alone.
    Racks(Vec<RackStanding>),
    /// The store had this lease, which had not ended, when the manager started.
    Restored(Box<v1::Lease>),
    /// The store has a lease as of this revision.
    Saved(LeaseId, u64),
    /// The store could not take a lease: it is tried again with the next tick.
    SaveFailed(LeaseId),
    /// [`super::TICK_MS`] have passed.
    Tick,
}

/// An agent with its node, and all that runs there.
#[derive(Clone, Debug)]
pub struct Joining {
    /// The node.
    pub description: NodeDescription,
    /// This start of its agent.
    pub instance: InstanceId,
    /// Grows with each registration that the node's agent sends, to whichever manager; 0 if it does not say.
    pub generation: u64,
    /// Leases by tickets that the shell has verified.
    pub leases: Vec<Running>,
}

/// A lease as its agent has it.
#[derive(Clone, Debug)]
pub struct Running {
    /// From its ticket.
    pub lease: Box<v1::Lease>,
    /// How it is now.
    pub report: LeaseReport,
    /// Until it expires.
    pub remaining_ms: u64,
}

/// All that an agent has to say at a time.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its node.
    pub node: NodeKey,
    /// Under which it sends.
    pub registration: u64,
    /// Grows with each report of a registration.
    pub sequence: u64,
    /// The latest report of the registration whose answer has come.
    pub answered: u64,
    /// What the manager's clock said at least when it was put together.
    pub clock_ms: u64,
    /// Whether new leases may come.
    pub lending: Lending,
    /// Every lease that is attached, or has ended without being acknowledged.
    pub leases: Vec<LeaseReport>,
    /// Which version of its neighbours it knows.
    pub neighbours: u64,
}

/// One lease of a report.
#[derive(Clone, Debug)]
pub struct LeaseReport {
    /// Which.
    pub lease: LeaseId,
    /// Cumulative.
    pub usage: Usage,
    /// Cumulative.
    pub functions: Vec<FunctionUsage>,
    /// Modules that its node cannot keep warm for it.
    pub cold_imports: Option<v1::ColdImports>,
    /// With why, once it has ended.
    pub ended: Option<Ended>,
}

/// Why a lease ended, as its agent says it.
#[derive(Clone, Debug)]
pub struct Ended {
    /// A stable error code, or 0 after a release.
    pub code: u32,
    /// For people.
    pub reason: String,
}

/// Whether a request's token has been verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Yes.
    Verified,
    /// Not yet: its leases are provisional until [`Event::Verified`] or [`Event::Rejected`].
    Provisional,
}

/// A client's request, with what only the shell can know.
#[derive(Clone, Debug)]
pub struct Request {
    /// As its client calls it; for one without a name, one that the shell has made.
    pub id: RequestId,
    /// Who asks.
    pub tenant: TenantKey,
    /// Whether that is certain.
    pub standing: Standing,
    /// The kind of processing unit; if it is empty, of those that the package has builds for the cheapest that is free.
    pub pu: String,
    /// What its workers run.
    pub package: Arc<PackageInfo>,
    /// What its leases have.
    pub terms: Terms,
    /// Where they had better be.
    pub locality: Locality,
    /// How long it may wait.
    pub wait_ms: u64,
    /// By racks to which it was handed.
    pub refusals: Refusals,
}

impl Request {
    /// What it has by a profile of its package, if that says something else.
    pub(super) fn terms_by(&self, profile: Option<&v1::Profile>) -> Option<Terms> {
        let memory_bytes = profile.map_or(0, |profile| profile.memory_bytes);
        let counts = memory_bytes > 0 && !self.terms.says_memory;
        counts.then(|| self.terms.with_memory_of_each(memory_bytes))
    }

    /// What it waits for, as whoever waited in vain is told.
    pub(super) fn asks(&self) -> String {
        let Terms { workers, shared, memory_bytes, .. } = self.terms;
        let (on, place) = (if self.pu.is_empty() { "" } else { " of " }, self.locality.pools.place());
        match (self.terms.is_segment(), shared) {
            (true, _) => format!("{memory_bytes} bytes of memory{place}"),
            (_, true) => format!("{workers} shared places{on}{}{place}", self.pu),
            (_, false) => format!("{workers} cores{on}{}{place}", self.pu),
        }
    }
}

/// A client wants a lease to end later.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    /// Which.
    pub lease: LeaseId,
    /// From now on.
    pub timeout_ms: u64,
}

/// What the shell has to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Answer a registration.
    Registered {
        /// The node.
        node: NodeKey,
        /// From now on the only one whose tickets its agent takes.
        registration: u64,
        /// With whom it is linked.
        neighbours: Neighbourhood,
    },
    /// Answer a registration with an error.
    NotRegistered(Error),
    /// Answer a report.
    Reported(Reported),
    /// Answer a report of a node that is not registered, or not so.
    RegisterAgain,
    /// Answer a request.
    Granted {
        /// Whose.
        tenant: TenantKey,
        /// Which.
        request: RequestId,
        /// The one with most workers first.
        leases: Vec<LeaseId>,
    },
    /// Answer a request: the manager of a rack shall have it.
    Handed {
        /// Whose.
        tenant: TenantKey,
        /// Which.
        request: RequestId,
        /// The manager's address.
        manager: Arc<str>,
    },
    /// Answer a request.
    Refused {
        /// Whose.
        tenant: TenantKey,
        /// Which.
        request: RequestId,
        /// Why.
        error: Error,
    },
    /// Answer a renewal: the lease has its new end.
    Renewed(LeaseId),
    /// Answer a renewal.
    NotRenewed(LeaseId, Error),
    /// Put the lease's state into the store, as of this revision or a later one, and answer with
    /// [`Event::Saved`] or [`Event::SaveFailed`].
    Save {
        /// Which.
        lease: LeaseId,
        /// As of which revision.
        revision: u64,
    },
    /// Forget what the shell notes about a lease: it is over and stored.
    Forgotten(LeaseId),
}

/// The answer to a report.
#[derive(Clone, Debug, Default)]
pub struct Reported {
    /// Of the report that this answers; 0 if that was ignored.
    pub sequence: u64,
    /// Leases that the node has to end, and why.
    pub end: Vec<(LeaseId, Error)>,
    /// Ended leases that the agent may forget.
    pub acknowledged: Vec<LeaseId>,
    /// With whom its node is linked, if it knows something else.
    pub neighbours: Option<Neighbourhood>,
}
