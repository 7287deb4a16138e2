//! Options for the runs of an application.

use std::time::Duration;

use crate::fabrics::FabricChoice;

/// Options for the runs of an application.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Longest time that a component waits for cores or memory, in the managers' fair queue. The default is 30 s.
    pub patience: Duration,
    /// Number of times that a component may be lost and begin again. The default is 3.
    pub retries: u32,
    /// Time after the beginning of their predecessors when the environments of the next components are prepared (Scad's
    /// tau). The default is zero: at once. `None` prepares them when the components begin.
    pub prewarm: Option<Duration>,
    /// Time for which workers are kept for the next run of the same application. The default is zero.
    pub keep_alive: Duration,
    /// Time for which workers poll after a call, see [`Policy`](crate::Policy).
    pub hot_timeout: Duration,
    /// Longest time that anything in a run may take: its leases end by themselves after this time. The default is an
    /// hour.
    pub lease_timeout: Duration,
    /// Transport of the calls of components, and of the bytes of memory to and from other machines. The default is
    /// shared memory on the same machine, and the best common network otherwise.
    pub fabric: Option<FabricChoice>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            patience: Duration::from_secs(30),
            retries: 3,
            prewarm: Some(Duration::ZERO),
            keep_alive: Duration::ZERO,
            hot_timeout: Duration::ZERO,
            lease_timeout: Duration::from_secs(3600),
            fabric: None,
        }
    }
}
