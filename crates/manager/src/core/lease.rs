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
//! Only leases that were attached are ever stored or billed: what nobody attached to has used nothing.

use std::borrow::Cow;
use std::sync::Arc;

use sublet_proto::price;
use sublet_proto::v1::{ColdImports, FunctionUsage, PackageInfo, Price, Usage, WorkerOptions};
use sublet_proto::{Code, Error};

use super::ids::{ClassKey, LeaseId, NodeKey, RequestId, TenantKey};
use super::nodes::Amount;

/// How far a lease has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its ticket is on the way to the agent.
    Granted,
    /// Its agent has it.
    Attached,
    /// Over; its resources are free.
    Ended,
    /// Its node is with another manager, and so is it: here it holds nothing.
    Moved,
}

/// Why and when a lease ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// `None` after a release by the client.
    pub code: Option<Code>,
    /// For people.
    pub reason: Cow<'static, str>,
    /// The manager's clock.
    pub at_ms: u64,
}

impl End {
    pub(super) fn because(code: Code, reason: &'static str, at_ms: u64) -> End {
        End { code: Some(code), reason: Cow::Borrowed(reason), at_ms }
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct Lease {
    /// Its name.
    pub id: LeaseId,
    /// The request that it answers, if that had a name.
    pub request: Option<RequestId>,
    /// Who pays.
    pub tenant: TenantKey,
    /// Where it is.
    pub node: NodeKey,
    /// What it runs.
    pub package: Arc<PackageInfo>,
    /// On what kind of processing unit,
    pub class: ClassKey,
    /// and therefore by which build of the package.
    pub build: u32,
    /// Why there, where there was a choice.
    pub choice: Arc<str>,
    /// What it holds of the node.
    pub amount: Amount,
    /// When it was granted,
    pub granted_ms: u64,
    /// when its latest ticket was issued,
    pub issued_ms: u64,
    /// and when it ends by itself.
    pub expires_ms: u64,
    /// 0: as the node says.
    pub idle_timeout_ms: u64,
    /// How its workers wait.
    pub options: WorkerOptions,
    /// As of the grant.
    pub price: Price,
    /// How far it has come.
    pub state: State,
    /// The token behind it is still being verified.
    pub provisional: bool,
    /// Cumulative.
    pub usage: Usage,
    /// Cumulative, by function; those that were never called may be missing.
    pub functions: Vec<FunctionUsage>,
    /// Modules that its node cannot keep warm for it. Of most leases there are none.
    pub cold_imports: Option<Box<ColdImports>>,
    /// Once it has ended.
    pub end: Option<End>,
    /// Grows with each change that the store must have. No two changes of any leases have the same one; 0 before the first.
    pub revision: u64,
    /// What the core notes about it.
    pub(super) marks: Marks,
}

/// What the core notes about a lease, and nobody else needs to know.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// What of `spent` of its tenant is its own.
    pub(super) billed_nano: u64,
    pub(super) saved_revision: u64,
    /// When its agent said that it has ended.
    pub(super) over_ms: Option<u64>,
    /// The latest report of its registration that listed it.
    pub(super) heard: u64,
    /// Its index in its node's list.
    pub(super) node_slot: u32,
    /// Its agent has brought it along when it registered.
    pub(super) has_come: bool,
    /// It stands in the list of what is to be saved.
    pub(super) is_dirty: bool,
    /// Why its agent is to end it, until the agent says that it has.
    pub(super) ordered: Option<Error>,
    /// The report in whose answer the agent was told of `ordered` while nothing was attached; 0 before that.
    pub(super) voided_by: u64,
    /// Nobody will report it again: the agent has been told that its end is known, or is not there any more.
    pub(super) is_settled: bool,
}

impl Lease {
    /// Whether it holds resources.
    pub fn is_active(&self) -> bool {
        matches!(self.state, State::Granted | State::Attached)
    }

    /// Its end and all that it used are in the store.
    pub(super) fn is_stored(&self) -> bool {
        self.marks.saved_revision >= self.revision
    }

    /// Merges cumulative usage, which never shrinks, held to what wall time allows. Says whether anything grew.
    pub(super) fn grow(&mut self, now_ms: u64, usage: &Usage, functions: Vec<FunctionUsage>) -> bool {
        let before = self.usage;
        // What its agent says of it after it has said that it ended grows no more.
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

    /// As one that comes from another manager, or an earlier one: what it has cost so far was spent there.
    pub(super) fn paid_so_far(mut self) -> Lease {
        self.marks.billed_nano = self.cost_nano();
        self
    }

    /// What it has cost so far.
    pub fn cost_nano(&self) -> u64 {
        price::cost(&self.price, &self.usage, self.amount.memory_bytes).total_nano()
    }
}

/// How much more than the time since its grant a lease may have been allocated: clocks of two machines run apart.
const CLOCK_SLACK_MS: u64 = 1_000;
/// And how much more if since when it runs is only known from a registration: for so long agents wait for the answer, so
/// what they say there of a lease may be as old.
const UNDER_WAY_MS: u64 = 2_000;
