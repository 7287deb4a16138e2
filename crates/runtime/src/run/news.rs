//! The result of a run, and the events that its caller receives.

use std::sync::Arc;
use std::time::Duration;

use sublet_proto::{Error, v1};

use crate::memory::Memory;

/// Result of a run that succeeded.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run's identifier.
    pub run: String,
    /// Name of each component that triggers no other, with the outputs of its instances.
    pub outputs: Vec<(String, Vec<Vec<u8>>)>,
    /// Usage of each component.
    pub components: Vec<v1::ComponentUse>,
    /// The memory component that the graph declares as the result. `None` without one, or if nothing has accessed it.
    pub result: Option<Arc<RunResult>>,
}

/// Memory component that is the result of a run. It belongs to the caller: its segments are given back when this is
/// dropped, and end by themselves after the run's `lease_timeout` or with this process.
#[derive(Debug)]
pub struct RunResult {
    /// Name of the memory component.
    pub component: String,
    /// The memory, as long as what the components wrote.
    pub memory: Memory,
}

/// Event of a run.
#[derive(Clone, Debug)]
pub enum News {
    /// A component begins, for the first or a further time.
    Began {
        /// Name of the component.
        component: String,
        /// Number of the attempt, from 1.
        attempt: u32,
    },
    /// A component is done.
    Ended {
        /// Name of the component.
        component: String,
        /// Time since its instances were called.
        took: Duration,
    },
    /// A component is ready and waits for resources.
    Waits {
        /// Name of the component.
        component: String,
        /// The missing resources, and the reason why they are not available yet.
        error: Error,
    },
    /// The workers of a compute component, or the bytes of a memory component, are lost.
    Lost {
        /// Name of the component.
        component: String,
        /// Reason for the loss.
        error: Error,
    },
    /// A component's function has failed, which ends the run with the same error.
    Failed {
        /// Name of the component.
        component: String,
        /// Error of the function.
        error: Error,
        /// The failure report (see SPECIFICATION.md) of a function in Python; empty if there is none. The author of the
        /// function controls its content.
        report: Vec<u8>,
    },
}
