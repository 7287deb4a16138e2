//! Defines the errors of sandboxes.

use std::borrow::Cow;
use std::io;

use sublet_proto::{Code, Error};

use crate::{MAX_SANDBOXES, MAX_VECTOR, SandboxId, SandboxStatus};

/// Reason why a verb failed for one sandbox.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// The table has no such sandbox.
    #[error("there is no sandbox {0}")]
    Unknown(SandboxId),
    /// The table is full, or the vector is too long.
    #[error("there are {MAX_SANDBOXES} sandboxes already, or more than {MAX_VECTOR} were asked for at once")]
    TooMany,
    /// The verb does not apply to a sandbox in this state.
    #[error("cannot {verb} sandbox {id}, which is {status:?}")]
    WrongStatus {
        /// Sandbox that the verb names.
        id: SandboxId,
        /// Present status of the sandbox.
        status: SandboxStatus,
        /// Requested verb.
        verb: &'static str,
    },
    /// Something that a sandbox needs could not be done.
    #[error("{operation} failed: {source}")]
    System {
        /// Operation that failed.
        operation: Cow<'static, str>,
        /// Error of the system.
        source: io::Error,
    },
    /// The spawner is gone, and every sandbox with it.
    #[error("the process that makes sandboxes is gone: {0}")]
    SpawnerGone(io::Error),
}

impl SandboxError {
    /// Makes the error of an operation that failed in the system.
    pub(crate) fn system(
        operation: impl Into<Cow<'static, str>>,
        source: impl Into<io::Error>,
    ) -> SandboxError {
        SandboxError::System { operation: operation.into(), source: source.into() }
    }

    /// Whether the kernel lacks a system call, or something keeps it from this process as if it did.
    pub fn is_missing_call(&self) -> bool {
        const MISSING: i32 = libc::ENOSYS;
        matches!(self, SandboxError::System { source, .. } if source.raw_os_error() == Some(MISSING))
    }

    /// A copy of an error of the system.
    pub(crate) fn same(error: &io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(error.kind(), error.to_string()),
        }
    }

    /// The same once more, for another of a vector.
    pub(crate) fn again(&self) -> SandboxError {
        match self {
            &SandboxError::Unknown(id) => SandboxError::Unknown(id),
            SandboxError::TooMany => SandboxError::TooMany,
            &SandboxError::WrongStatus { id, status, verb } => SandboxError::WrongStatus { id, status, verb },
            SandboxError::System { operation, source } => {
                SandboxError::System { operation: operation.clone(), source: SandboxError::same(source) }
            }
            SandboxError::SpawnerGone(error) => SandboxError::SpawnerGone(SandboxError::same(error)),
        }
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
