//! Processes on standby: they have imported modules that no template can have, or may have, and wait for leases.
//!
//! The spawner makes them. It has to know which cores no lease has, since importing takes a core for seconds, and how
//! much memory they may take: the operator's choice, which the node does not lend. One thread tells the spawner both, each
//! second and as soon as a lease takes cores. At each of these looks the spawner also ends what was made from files that the
//! cache has evicted, as templates in images.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use sublet_fabric::sync::lock;
use sublet_proto::Error;
use sublet_proto::v1::StandbyProcesses;
use tracing::warn;

use crate::execution::sandboxes::SandboxMaker;
use crate::machine::resources::ResourcePool;
use crate::signal::{Signal, wait_readable};

/// Time between two looks at what waits.
const PERIOD: Duration = Duration::from_secs(1);

/// See the [module](self).
pub(crate) struct Standby {
    /// Memory for all processes on standby; 0: there are none.
    memory_bytes: u64,
    /// Raised when a lease has taken cores.
    taken: Signal,
    kept: Mutex<Vec<StandbyProcesses>>,
}

impl Standby {
    pub(crate) fn new(memory_bytes: u64) -> Result<Standby, Error> {
        Ok(Standby { memory_bytes, taken: Signal::new()?, kept: Mutex::default() })
    }

    /// Whether the node keeps processes on standby.
    pub(crate) fn is_kept(&self) -> bool {
        self.memory_bytes > 0
    }

    /// Notes that a lease has taken cores.
    pub(crate) fn cores_are_taken(&self) {
        if self.is_kept() {
            self.taken.raise();
        }
    }

    /// The processes, as of the latest look.
    pub(crate) fn kept(&self) -> Vec<StandbyProcesses> {
        lock(&self.kept).clone()
    }
}

/// The body of the thread, until the agent stops.
pub(crate) fn run(standby: &Standby, from: (&SandboxMaker, &ResourcePool), stopping: &Signal) {
    let mut has_failed = false;
    loop {
        standby.taken.clear();
        match keep(standby.memory_bytes, from) {
            Ok(kept) => {
                *lock(&standby.kept) = kept;
                has_failed = false;
            }
            Err(error) => {
                lock(&standby.kept).clear();
                if !has_failed {
                    warn!(%error, "no processes are kept on standby");
                }
                has_failed = true;
            }
        }
        let watched = [Some(stopping.as_fd()), Some(standby.taken.as_fd())];
        match wait_readable(watched, Some(Instant::now() + PERIOD)) {
            Ok([false, _]) => {}
            Ok([true, _]) => return,
            Err(error) => {
                warn!(%error, "processes on standby are no longer looked after");
                return;
            }
        }
    }
}

fn keep(
    memory_bytes: u64,
    (sandboxes, pool): (&SandboxMaker, &ResourcePool),
) -> Result<Vec<StandbyProcesses>, Error> {
    Ok(sandboxes.current()?.keep_standby(pool.idle_cores(), memory_bytes)?)
}
