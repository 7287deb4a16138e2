//! A lease as the manager has it, from its grant until its last usage is in the store.
//!
//! ```text
//! Granted ---> Attached ---> Ended ---> forgotten
//!    |  the agent   |  the agent  |  stored, and acknowledged to the agent, or the agent is gone
//!    |  lists it    |  says so    |
//!    +--------------+-------------+  released, superseded, its node lost it, its time over on a lost node
//!    |              |
//!    |              +---> Moved ---> forgotten: stored as it was when its node went to another manager
//!    +------------------------------ forgotten: its node went to another manager
//! ```
//!
//! Only leases that were attached are ever stored or billed: a lease without an attached client has used nothing.

use std::borrow::Cow;
use std::sync::Arc;

use sublet_proto::price;
use sublet_proto::v1::{ColdImports, FunctionUsage, Needs, PackageInfo, Price, Usage, WorkerOptions};
use sublet_proto::{Code, Error};

use super::application_runs::RunNumber;
use super::ids::{ClassKey, LeaseId, NodeKey, RequestId, TenantKey};
use super::resources::LeaseResources;

/// State of a lease's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasePhase {
    /// The ticket is on the way to the agent.
    Granted,
    /// The agent has the lease.
    Attached,
    /// Over; its resources are free.
    Ended,
    /// The lease and its node are with another manager: here the lease holds nothing.
    Moved,
}

/// Why and when a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseEnd {
    /// `None` after a release by the client.
    pub code: Option<Code>,
    /// Reason in words.
    pub reason: Cow<'static, str>,
    /// The manager's clock.
    pub at_ms: u64,
}

impl LeaseEnd {
    pub(super) fn because(code: Code, reason: &'static str, at_ms: u64) -> LeaseEnd {
        LeaseEnd { code: Some(code), reason: Cow::Borrowed(reason), at_ms }
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Lease {
    /// Name of the lease.
    pub id: LeaseId,
    /// The request that it answers, if that had a name.
    pub request: Option<RequestId>,
    /// Tenant that pays.
    pub tenant: TenantKey,
    /// The application for a run of which it is, if that limits all of its runs together.
    pub application: Option<TenantKey>,
    /// The run of that application, if its client named it and this manager granted the lease.
    pub run: Option<RunNumber>,
    /// Node on which the lease runs.
    pub node: NodeKey,
    /// Package that the workers run.
    pub package: Arc<PackageInfo>,
    /// Kind of processing unit.
    pub class: ClassKey,
    /// Index of the package's build, which follows from the class.
    pub build: u32,
    /// Reason for the choice of package build and node, where there was a choice.
    pub choice: Arc<str>,
    /// Resources that the lease holds of the node.
    pub amount: LeaseResources,
    /// Time of the grant.
    pub granted_ms: u64,
    /// Time at which the latest ticket was issued.
    pub issued_ms: u64,
    /// Time at which the lease expires.
    pub expires_ms: u64,
    /// Idle timeout; 0: the node's default.
    pub idle_timeout_ms: u64,
    /// Options of its workers.
    pub options: WorkerOptions,
    /// Secrets, folders, temporary space and isolation of its workers.
    pub needs: Arc<Needs>,
    /// Price as of the grant.
    pub price: Price,
    /// State of its life.
    pub state: LeasePhase,
    /// The token behind it is still being verified.
    pub provisional: bool,
    /// Cumulative usage.
    pub usage: Usage,
    /// Cumulative usage by function; functions that were never called may be missing.
    pub functions: Vec<FunctionUsage>,
    /// Modules that its node cannot keep warm for it. Most leases have none.
    pub cold_imports: Option<Box<ColdImports>>,
    /// Why and when it ended; `None` before that.
    pub end: Option<LeaseEnd>,
    /// Grows with each change that the store must have. No two changes of any leases have the same revision; 0 before
    /// the first.
    pub revision: u64,
    /// Notes of the core.
    pub(super) marks: Marks,
}

/// Notes of the core on a lease, for its own use.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// The lease's part of its tenant's `spent`.
    pub(super) billed_nano: u64,
    pub(super) saved_revision: u64,
    /// Time at which its agent reported its end.
    pub(super) over_ms: Option<u64>,
    /// The latest report of its registration that listed it.
    pub(super) heard: u64,
    /// Index in its node's list.
    pub(super) node_slot: u32,
    /// Whether its agent has brought it along in a registration.
    pub(super) has_come: bool,
    /// Whether it is in the list of leases to save.
    pub(super) is_dirty: bool,
    /// Why its agent is to end it, until the agent reports the end.
    pub(super) ordered: Option<Error>,
    /// Report whose answer carried `ordered` to the agent while no client was attached; 0 before that.
    pub(super) voided_by: u64,
    /// Whether no further report will list it: the agent has the acknowledgement of its end, or is gone.
    pub(super) is_settled: bool,
}

impl Lease {
    /// Tells whether it holds resources.
    pub fn is_active(&self) -> bool {
        matches!(self.state, LeasePhase::Granted | LeasePhase::Attached)
    }

    /// Tells whether its end and all that it used are in the store.
    pub(super) fn is_stored(&self) -> bool {
        self.marks.saved_revision >= self.revision
    }

    /// Merges cumulative usage, which never shrinks, up to the limit of wall time. Tells whether any of it grew.
    pub(super) fn grow(&mut self, now_ms: u64, usage: &Usage, functions: Vec<FunctionUsage>) -> bool {
        let before = self.usage;
        // Usage stops growing at the end that its agent has reported.
        let until_ms = self.marks.over_ms.unwrap_or(now_ms).min(now_ms);
        let slack_ms = CLOCK_SLACK_MS + if self.marks.has_come { UNDER_WAY_MS } else { 0 };
        let wall_ms = until_ms.saturating_sub(self.granted_ms).saturating_add(slack_ms);
        let wall_ns = wall_ms.saturating_mul(1_000_000);
        let allocated_ns = usage.allocated_ns.min(wall_ns);
        let busy_ns = allocated_ns.saturating_mul(self.amount.workers.into());
        self.usage = Usage {
            allocated_ns: before.allocated_ns.max(allocated_ns),
            executing_ns: before.executing_ns.max(usage.executing_ns.min(busy_ns)),
            polling_ns: before
                .polling_ns
                .max(usage.polling_ns.min(busy_ns.saturating_sub(usage.executing_ns.min(busy_ns)))),
            calls: before.calls.max(usage.calls),
            failed_calls: before.failed_calls.max(usage.failed_calls),
            memory_byte_us: before.memory_byte_us.max(usage.memory_byte_us),
            memory_peak_bytes: before.memory_peak_bytes.max(usage.memory_peak_bytes),
        };
        debug_assert!(
            self.usage.allocated_ns >= before.allocated_ns && self.usage.calls >= before.calls,
            "the usage of lease {} shrank from {before:?} to {:?}",
            self.id,
            self.usage
        );
        let grew = self.usage != before;
        if grew && !functions.is_empty() {
            self.functions = functions;
        }
        grew
    }

    /// Marks the cost so far as spent with another manager, or with an earlier one, from which the lease comes.
    pub(super) fn paid_so_far(mut self) -> Lease {
        self.marks.billed_nano = self.cost_nano();
        self
    }

    /// Returns the cost so far.
    pub fn cost_nano(&self) -> u64 {
        price::cost(&self.price, &self.usage, self.amount.memory_bytes).total_nano()
    }
}

/// Slack of a lease's allocated time over the time since its grant: clocks of two machines differ.
const CLOCK_SLACK_MS: u64 = 1_000;
/// Further slack if its start is only known from a registration: agents wait for its answer as long, so the usage that
/// it lists may be as old.
const UNDER_WAY_MS: u64 = 2_000;
