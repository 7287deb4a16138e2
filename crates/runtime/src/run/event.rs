//! Events of a run, which the threads of its components report to its driver.

use std::sync::mpsc::Sender;
use std::time::Instant;

use sublet_proto::{Code, Error};

use super::progress::Outputs;
use super::uses::Readings;
use super::workers::ComponentWorkers;
use crate::invocation::is_repeatable;

/// Event of a run, for its driver.
pub(super) enum RunEvent {
    /// The instances of a component are about to be called.
    Called,
    Ended(Box<ExecutionResult>),
    /// A component that has begun waits for resources that components which have not begun may hold, with the reason.
    Wanting {
        component: usize,
        error: Error,
    },
    /// A component waits until others of the run return a part of the graph's limits.
    Waits {
        component: usize,
        error: Error,
    },
    MemoryLost {
        memory: usize,
        generation: usize,
        error: Error,
    },
    /// A record could not be stored, which ends the run.
    NotRecorded {
        error: Error,
    },
    /// All instances of a component have released a memory component.
    Released {
        component: usize,
        memory: usize,
        generation: usize,
        /// Dropped when the run has handled the event.
        told: Sender<()>,
    },
}

/// Result of an execution.
pub(super) struct ExecutionResult {
    pub(super) component: usize,
    pub(super) attempt: u32,
    pub(super) outputs: Result<Outputs, ComponentFailure>,
    /// Time at which the instances were called.
    pub(super) began: Instant,
    /// Workers that can be used again: the component succeeded and did not swap.
    pub(super) workers: Option<ComponentWorkers>,
    /// Leased memory times microseconds.
    pub(super) memory_bytes: u64,
    pub(super) allocated_byte_us: u64,
    /// Usage of the workers' leases.
    pub(super) readings: Vec<Readings>,
    /// Segments that the workers had joined when the component began.
    pub(super) joined_ahead: u32,
}

/// Reason why a component failed.
pub(super) enum ComponentFailure {
    /// The workers are lost: the component may be executed again.
    Lost(Error),
    /// A repetition would fail, too. Includes the report of the function's worker, beyond the error: see
    /// [`News::Failed`](super::News::Failed).
    Failed(Error, Vec<u8>),
}

/// Returns whether a repetition may succeed after this error. A lease that is ended between its grant and its
/// attachment is refused by its agent (`permission_denied`).
pub(super) fn is_lost(code: Code) -> bool {
    is_repeatable(code) || matches!(code, Code::PermissionDenied | Code::TicketSuperseded)
}
