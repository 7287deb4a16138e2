//! Translates the failure of a call into an error.

use sublet_proto::Code;
use sublet_runtime::worker::engine::ErrorMessage;
use wasmtime::Trap;

use crate::limits::CallLimits;
use crate::state::ExitError;

/// Reason why a call has no output.
pub(crate) enum CallFailure {
    /// The function reported a failure, with this message.
    Said(Box<ErrorMessage>),
    /// Input and output do not fit into the rest of the linear memory.
    NoSpace {
        /// Size of input and output together.
        wanted_bytes: u64,
        /// Size of the memory.
        memory_bytes: u64,
    },
    /// The call trapped or was stopped, or its instance could not be created.
    Stopped(wasmtime::Error),
}

impl From<wasmtime::Error> for CallFailure {
    fn from(error: wasmtime::Error) -> CallFailure {
        CallFailure::Stopped(error)
    }
}

impl CallFailure {
    /// Converts to the error of the call.
    #[cold]
    pub(crate) fn tell(self, limits: &CallLimits) -> (Code, ErrorMessage) {
        let told = |code, message: String| (code, ErrorMessage::of(message.as_bytes()));
        match self {
            CallFailure::Said(message) => (Code::FunctionFailed, *message),
            CallFailure::NoSpace { wanted_bytes, memory_bytes } => told(
                Code::MemoryExceeded,
                format!(
                    "input and output need {wanted_bytes} bytes beside the module's {memory_bytes}, and its limit is {}",
                    limits.memory_bytes
                ),
            ),
            CallFailure::Stopped(error) => match error.downcast_ref::<Trap>() {
                Some(Trap::Interrupt) => told(
                    Code::DeadlineExceeded,
                    format!("ran longer than its package allows, {} ms", limits.deadline.as_millis()),
                ),
                Some(Trap::OutOfFuel) => told(
                    Code::DeadlineExceeded,
                    format!(
                        "burnt all the fuel that its package allows, {}",
                        limits.fuel.unwrap_or_default()
                    ),
                ),
                Some(trap) => told(Code::FunctionFailed, trap.to_string()),
                None => told(Code::FunctionFailed, reason(&error)),
            },
        }
    }
}

fn reason(error: &wasmtime::Error) -> String {
    match error.downcast_ref::<ExitError>() {
        Some(exit) => exit.to_string(),
        None => format!("{error:#}"),
    }
}
