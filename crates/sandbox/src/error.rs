//! What can go wrong with a sandbox.

use std::borrow::Cow;
use std::io;

use sublet_proto::{Code, Error};

use crate::{Id, MAX_SANDBOXES, MAX_VECTOR, Status};

/// Why a verb failed for one sandbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The table has no such sandbox.
    #[error("there is no sandbox {0}")]
    Unknown(Id),
    /// The table is full, or the vector is too long.
    #[error("there are {MAX_SANDBOXES} sandboxes already, or more than {MAX_VECTOR} were asked for at once")]
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
    /// Something that a sandbox needs could not be done.
    #[error("{operation} failed: {source}")]
    System {
        /// What.
        operation: Cow<'static, str>,
        /// What the system said.
        source: io::Error,
    },
    /// The spawner is gone, and every sandbox with it.
    #[error("the process that makes sandboxes is gone: {0}")]
    SpawnerGone(io::Error),
}

impl SandboxError {
    /// That an operation failed in the system.
    pub(crate) fn system(
        operation: impl Into<Cow<'static, str>>,
        source: impl Into<io::Error>,
    ) -> SandboxError {
        SandboxError::System { operation: operation.into(), source: source.into() }
    }
}

impl From<SandboxError> for Error {
    fn from(error: SandboxError) -> Error {
        let code = match error {
            SandboxError::System { .. } | SandboxError::SpawnerGone(_) => Code::System,
            SandboxError::TooMany => Code::NoCapacity,
            SandboxError::Unknown(_) | SandboxError::WrongStatus { .. } => Code::Internal,
        };
        Error::new(code, error.to_string())
    }
}
