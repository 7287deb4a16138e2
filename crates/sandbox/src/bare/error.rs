//! What can go wrong with a sandbox.

use std::path::PathBuf;

use sublet_proto::{Code, Error};

use super::{Id, MAX_SANDBOXES, Status};

/// Why a verb failed for one sandbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The table has no such sandbox.
    #[error("there is no sandbox {0}")]
    Unknown(Id),
    /// The table is full.
    #[error("there are {MAX_SANDBOXES} sandboxes already")]
    TooMany,
    /// The verb does not apply to a sandbox in this state.
    #[error("cannot {verb} sandbox {id}, which is {status:?}")]
    WrongStatus {
        /// Which one.
        id: Id,
        /// What it is.
        status: Status,
        /// What was asked.
        verb: &'static str,
    },
    /// The program could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Spawn {
        /// Which program.
        program: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A system call on a running sandbox failed.
    #[error("{operation} of process {pid} failed: {source}")]
    System {
        /// Which call.
        operation: &'static str,
        /// Of which process.
        pid: i32,
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<SandboxError> for Error {
    fn from(error: SandboxError) -> Error {
        let code = match error {
            SandboxError::Spawn { .. } | SandboxError::System { .. } => Code::System,
            SandboxError::TooMany => Code::NoCapacity,
            SandboxError::Unknown(_) | SandboxError::WrongStatus { .. } => Code::Internal,
        };
        Error::new(code, error.to_string())
    }
}
