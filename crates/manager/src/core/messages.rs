//! Defines the events and actions of the core.

use std::sync::Arc;

use sublet_proto::Error;
use sublet_proto::v1::{
    self, FunctionUsage, NodeDescription, NodeGroup, PackageInfo, Quota, TenantUse, Usage,
};

use super::application_runs::RunNumber;
use super::ids::{InstanceId, LeaseId, NodeKey, RequestId, TenantKey};
use super::locality::Locality;
use super::resources::{LendingState, Reach};
use super::terms::LeaseTerms;

/// An event that the core handles.
#[derive(Clone, Debug)]
pub enum CoreEvent {
    /// An agent adds its node, or takes it up again.
    Register(Box<Joining>),
    /// An agent reports the usage of its leases, and their ends.
    Report(AgentReport),
    /// The connection by which an agent reported has ended: the agent is dead, or reports soon by another one.
    Disconnected(NodeKey),
    /// A client asks for leases.
    Request(Box<ClientRequest>),
    /// The client no longer waits for this request's answer.
    Withdraw(TenantKey, RequestId),
    /// The token behind a provisional lease is valid, and belongs to this tenant.
    Verified(LeaseId, TenantKey),
    /// The token behind a lease is invalid: unknown, or revoked.
    Rejected(LeaseId, Error),
    /// A client wants a later end.
    Renew(Renewal),
    /// A lease is to end. The shell checks whether the caller may order that.
    End(LeaseId, Error),
    /// A tenant's quota.
    Quota(TenantKey, Quota),
    /// A tenant's use by other managers, and its spending before this manager started.
    Elsewhere(TenantKey, TenantUse),
    /// Another living manager has this node, by a registration of this generation.
    Moved(NodeKey, u64),
    /// Reports of all racks whose managers live: only for the level above racks.
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
    pub leases: Vec<AgentLease>,
}

/// A lease as its agent has it.
#[derive(Clone, Debug)]
pub struct AgentLease {
    /// The lease, from its ticket.
    pub lease: Box<v1::Lease>,
    /// Current report on the lease.
    pub report: LeaseReport,
    /// Time until it expires.
    pub remaining_ms: u64,
}

/// All reports of an agent at one time.
#[derive(Clone, Debug)]
pub struct AgentReport {
    /// Node of the agent.
    pub node: NodeKey,
    /// Registration under which the agent reports.
    pub registration: u64,
    /// Grows with each report of a registration.
    pub sequence: u64,
    /// The latest report of the registration whose answer has come.
    pub answered: u64,
    /// Lower bound of the manager's clock at the time the report was put together.
    pub clock_ms: u64,
    /// Whether new leases may come.
    pub lending: LendingState,
    /// Every lease that is attached, or has ended without being acknowledged.
    pub leases: Vec<LeaseReport>,
    /// Version of its neighbours that the agent knows.
    pub neighbours: u64,
}

/// One lease of a report.
#[derive(Clone, Debug)]
pub struct LeaseReport {
    /// Name of the lease.
    pub lease: LeaseId,
    /// Cumulative usage.
    pub usage: Usage,
    /// Cumulative usage by function.
    pub functions: Vec<FunctionUsage>,
    /// Modules that its node cannot keep warm for it.
    pub cold_imports: Option<v1::ColdImports>,
    /// Why the lease ended, once it has.
    pub ended: Option<ReportedEnd>,
}

/// Why a lease ended, as its agent reports it.
#[derive(Clone, Debug)]
pub struct ReportedEnd {
    /// A stable error code, or 0 after a release.
    pub code: u32,
    /// Reason in words.
    pub reason: String,
}

/// Whether a request's token has been verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenStatus {
    /// Yes.
    Verified,
    /// Not verified yet: its leases are provisional until [`CoreEvent::Verified`] or [`CoreEvent::Rejected`].
    Provisional,
}

/// A client's request, with the facts that only the shell can know.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    /// Name that its client gave it, or that the shell made for one without a name.
    pub id: RequestId,
    /// Tenant that asks.
    pub tenant: TenantKey,
    /// Whether the tenant is verified.
    pub standing: TokenStatus,
    /// Kind of processing unit; if empty, the cheapest free one of those for which the package has builds.
    pub pu: String,
    /// Package that its workers run.
    pub package: Arc<PackageInfo>,
    /// Resources and options of its leases.
    pub terms: LeaseTerms,
    /// Preferences and limits for its nodes.
    pub locality: Locality,
    /// Secrets, folders, temporary space and isolation that its workers need.
    pub needs: Arc<v1::Needs>,
    /// Longest time that it may wait.
    pub wait_ms: u64,
    /// Refusals by racks to which it was handed.
    pub refusals: Refusals,
    /// The application whose runs are limited together, if it is for a run of one.
    pub application: Option<ApplicationLimits>,
}

/// Limits over all runs of an application. An application is counted as a tenant is, by the names of both, and has no
/// spending.
#[derive(Clone, Copy, Debug)]
pub struct ApplicationLimits {
    /// Key under which the application is counted.
    pub key: TenantKey,
    /// The most cores and memory of all of its leases.
    pub quota: Quota,
    /// The run for which the leases are, if its client named it.
    pub run: Option<RunNumber>,
}

impl ClientRequest {
    /// Returns the terms by a profile of its package, if they differ.
    pub(super) fn terms_by(&self, profile: Option<&v1::Profile>) -> Option<LeaseTerms> {
        let memory_bytes = profile.map_or(0, |profile| profile.memory_bytes);
        let counts = memory_bytes > 0 && !self.terms.says_memory;
        counts.then(|| self.terms.with_memory_of_each(memory_bytes))
    }

    /// Describes the resources it waits for, for the error of a request that waited in vain.
    pub(super) fn asks(&self) -> String {
        let LeaseTerms { workers, shared, memory_bytes, .. } = self.terms;
        let (on, place) = (if self.pu.is_empty() { "" } else { " of " }, self.locality.pools.place());
        let devices = self.needs.devices.iter();
        let devices = devices.map(|one| format!(" with {} devices of the kind {:?}", one.count, one.kind));
        let devices = devices.collect::<Vec<_>>().concat();
        match (self.terms.is_segment(), shared) {
            (true, _) => format!("{memory_bytes} bytes of memory{place}"),
            (_, true) => format!("{workers} shared places{on}{}{devices}{place}", self.pu),
            (_, false) => format!("{workers} cores{on}{}{devices}{place}", self.pu),
        }
    }
}

/// A client wants a lease to end later.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    /// Name of the lease.
    pub lease: LeaseId,
    /// New timeout, from now on.
    pub timeout_ms: u64,
}

/// An action that the shell has to carry out.
#[derive(Clone, Debug)]
pub enum CoreAction {
    /// Answer a registration.
    Registered {
        /// The node.
        node: NodeKey,
        /// The only registration whose tickets the agent accepts from now on.
        registration: u64,
        /// Nodes that it is linked with.
        neighbours: Neighbourhood,
    },
    /// Answer a registration with an error.
    NotRegistered(Error),
    /// Answer a report.
    Reported(ReportAnswer),
    /// Answer a report of a node that is not registered, or not under this registration.
    RegisterAgain,
    /// Answer a request.
    Granted {
        /// Tenant of the request.
        tenant: TenantKey,
        /// Name of the request.
        request: RequestId,
        /// Names of the leases, the one with most workers first.
        leases: Vec<LeaseId>,
    },
    /// Answer a request: its client is to ask the manager of a rack.
    Handed {
        /// Tenant of the request.
        tenant: TenantKey,
        /// Name of the request.
        request: RequestId,
        /// The manager's address.
        manager: Arc<str>,
    },
    /// Answer a request.
    Refused {
        /// Tenant of the request.
        tenant: TenantKey,
        /// Name of the request.
        request: RequestId,
        /// Reason.
        error: Error,
    },
    /// Answer a renewal: the lease has its new end.
    Renewed(LeaseId),
    /// Answer a renewal.
    NotRenewed(LeaseId, Error),
    /// Put the lease's state into the store, as of this revision or a later one, and answer with
    /// [`CoreEvent::Saved`] or [`CoreEvent::SaveFailed`].
    Save {
        /// Name of the lease.
        lease: LeaseId,
        /// Revision to save.
        revision: u64,
    },
    /// Forget the shell's notes on a lease: it has ended and is stored.
    Forgotten(LeaseId),
}

/// The answer to a report.
#[derive(Clone, Debug, Default)]
pub struct ReportAnswer {
    /// Sequence number of the report that this answers; 0 if the core ignored the report.
    pub sequence: u64,
    /// Leases that the node has to end, and why.
    pub end: Vec<(LeaseId, Error)>,
    /// Ended leases that the agent may forget.
    pub acknowledged: Vec<LeaseId>,
    /// Nodes that its node is linked with, if the agent knows another version.
    pub neighbours: Option<Neighbourhood>,
}

/// Report of a rack's manager on its nodes.
#[derive(Clone, Debug)]
pub struct RackStanding {
    /// Address at which clients reach the manager.
    pub manager: String,
    /// Epoch of the rack's manager, and the number of its reports so far.
    pub said: (u64, u64),
    /// Groups of its nodes.
    pub groups: Vec<NodeGroup>,
}

/// Racks that have refused a request.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// Address of the rack's manager that has refused it now, as its client reports.
    pub(super) by: Option<String>,
    /// Registrations of the groups of racks that have refused it.
    pub(super) standings: Vec<u64>,
}

impl Refusals {
    /// Notes a refusal by the manager at this address, or none if it is empty.
    pub fn by(manager: &str) -> Refusals {
        Refusals { by: (!manager.is_empty()).then(|| manager.to_owned()), standings: Vec::new() }
    }

    /// Tells whether a rack has refused the request.
    pub(super) fn are_any(&self) -> bool {
        !self.standings.is_empty()
    }
}

/// Nodes that a node is linked or bridged with, as reported to its agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Neighbourhood {
    /// The node itself, and its registration.
    pub own: (Arc<str>, u64),
    /// Version, which grows with each change.
    pub version: u64,
    /// Linked nodes in the order in which the node names them, then bridged ones.
    pub all: Vec<NeighbourhoodNode>,
}

/// A node of a neighbourhood.
#[derive(Clone, Debug, PartialEq)]
pub struct NeighbourhoodNode {
    /// Name of the node.
    pub node: Arc<str>,
    /// Latest registration.
    pub registration: u64,
    /// Addresses of its agent.
    pub reach: Arc<Reach>,
    /// Neighbour that bridges the node, if the link is not direct.
    pub bridge: Option<Arc<str>>,
}
