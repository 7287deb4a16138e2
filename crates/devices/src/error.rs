//! Defines the errors of devices and of what runs on them.

use std::io;

use sublet_proto::{Code, Error};

use crate::{Id, Kind, MAX_SANDBOXES, MAX_VECTOR, Status, Tenant};

/// Why something failed. Of a vector each sandbox has its own.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The library, a platform or a device is missing or cannot be used.
    #[error("{kind} cannot be used: {reason}")]
    Unusable {
        /// By which library.
        kind: Kind,
        /// What it lacks.
        reason: String,
    },
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
    /// The specification says what cannot be.
    #[error("the kernel {name:?} cannot be made: {reason}")]
    Spec {
        /// The kernel's name, shortened if it is long.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The source does not compile, or a binary is not one for this device.
    #[error("the program of kernel {name:?} does not build: {log}")]
    Build {
        /// The kernel's name.
        name: String,
        /// What the compiler or the driver said, bounded.
        log: String,
    },
    /// The program has no kernel of this name, or not one of the form that is asked for.
    #[error("the program has no kernel {name:?} of the form that functions have: {reason}")]
    NoKernel {
        /// The kernel's name.
        name: String,
        /// What the driver said.
        reason: String,
    },
    /// The process that reads strangers' programs cannot be started or does not answer.
    #[error("the builder {0}")]
    Builder(String),
    /// An input, an output or a buffer is too large.
    #[error("{len_bytes} bytes are more than the {most_bytes} that the device takes at once")]
    TooLarge {
        /// What was asked for.
        len_bytes: u64,
        /// What there is.
        most_bytes: u64,
    },
    /// A buffer of one tenant was given to a kernel of another.
    #[error("the buffer is tenant {}'s and the kernel tenant {}'s", owner.0, user.0)]
    Foreign {
        /// Whose buffer it is.
        owner: Tenant,
        /// Whose kernel it is.
        user: Tenant,
    },
    /// The kernel says that it failed.
    #[error("{0}")]
    Failed(String),
    /// The kernel says that it wrote more than there was room for.
    #[error("the kernel says that it wrote {written} bytes, and its output has {capacity_bytes}")]
    WroteTooMuch {
        /// What it says.
        written: u32,
        /// What there was.
        capacity_bytes: u32,
    },
    /// A kernel did not end in time. It runs on, and only the end of this process ends it.
    #[error("the kernel has not ended and cannot be stopped: it ends with the process that uses the device")]
    RunsOn,
    /// The driver refused an operation.
    #[error("{operation} failed: {reason}")]
    Driver {
        /// What.
        operation: &'static str,
        /// The driver's own name for the reason.
        reason: String,
    },
    /// The cache on disk cannot be used.
    #[error("the cache of programs in {path} cannot be used: {reason}")]
    Store {
        /// Where.
        path: String,
        /// Why.
        reason: String,
    },
}

impl DeviceError {
    pub(crate) fn store(path: &std::path::Path, reason: impl Into<io::Error>) -> DeviceError {
        DeviceError::Store { path: path.display().to_string(), reason: reason.into().to_string() }
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Error {
        let code = match error {
            DeviceError::TooMany => Code::NoCapacity,
            DeviceError::Spec { .. } | DeviceError::Build { .. } => Code::InvalidPackage,
            DeviceError::NoKernel { .. } => Code::MissingSymbol,
            DeviceError::TooLarge { .. } => Code::InputTooLarge,
            DeviceError::WroteTooMuch { .. } => Code::OutputTooLarge,
            DeviceError::Failed(_) => Code::FunctionFailed,
            DeviceError::RunsOn => Code::DeadlineExceeded,
            DeviceError::Foreign { .. } => Code::PermissionDenied,
            DeviceError::Unknown(_) | DeviceError::WrongStatus { .. } => Code::Internal,
            _ => Code::System,
        };
        Error::new(code, error.to_string())
    }
}
