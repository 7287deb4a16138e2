//! Decides which leases hold on this node, meters them, and tells a manager what they have used.
//!
//! [`book`] is the pure core: it decides from tickets, times and answers alone. [`ledger`] is the shell around it that the
//! agent's threads share; the rest verifies tickets, measures usage, and talks to the managers.

pub(crate) mod attach;
pub mod book;
pub(crate) mod confirm;
pub(crate) mod end;
pub(crate) mod idle;
pub(crate) mod journal;
pub(crate) mod ledger;
pub(crate) mod manager;
pub(crate) mod managers;
pub(crate) mod report;
pub(crate) mod usage;

use std::sync::Arc;
use std::time::Duration;

use ledger::LeaseLedger;
use managers::Managers;

/// The node's leases, and the managers that grant them.
pub(crate) struct NodeLeases {
    pub(crate) ledger: Arc<LeaseLedger>,
    pub(crate) managers: Arc<Managers>,
    /// Idle timeout of leases that do not set their own.
    pub(crate) idle_timeout: Option<Duration>,
}
