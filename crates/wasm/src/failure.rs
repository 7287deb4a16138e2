//! Translates the failure of a call into an error.

use sublet_proto::Code;
use sublet_runtime::worker::engine::Message;
use wasmtime::Trap;

use crate::host::Exit;
use crate::limits::Limits;

/// Why a call has no output.
pub(crate) enum Failure {
    /// The function said so, and why.
    Said(Box<Message>),
    /// Input and output do not fit into what is left of the linear memory.
    NoRoom {
        /// Of both together.
        wanted_bytes: u64,
        /// The memory's own size.
        memory_bytes: u64,
    },
    /// It trapped, was stopped, or could not be instantiated.
    Stopped(wasmtime::Error),
}

impl From<wasmtime::Error> for Failure {
    fn from(error: wasmtime::Error) -> Failure {
        Failure::Stopped(error)
    }
}

impl Failure {
    /// The code and the message of the call's error.
    #[cold]
    pub(crate) fn tell(self, limits: &Limits) -> (Code, Message) {
        let told = |code, message: String| (code, Message::of(message.as_bytes()));
        match self {
            Failure::Said(message) => (Code::FunctionFailed, *message),
            Failure::NoRoom { wanted_bytes, memory_bytes } => told(
                Code::MemoryExceeded,
                format!(
                    "input and output need {wanted_bytes} bytes beside the module's {memory_bytes}, and its limit is {}",
                    limits.memory_bytes
                ),
            ),
            Failure::Stopped(error) => match error.downcast_ref::<Trap>() {
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
    match error.downcast_ref::<Exit>() {
        Some(exit) => exit.to_string(),
        None => format!("{error:#}"),
    }
}
