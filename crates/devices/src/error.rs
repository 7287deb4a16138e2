//! Defines the errors of devices and of functions on them.

use std::io;

use sublet_proto::{Code, Error};

use crate::{DeviceSandboxId, DeviceSandboxStatus, DriverKind, MAX_SANDBOXES, MAX_VECTOR, TenantId};

/// Error of an operation on a device. Each sandbox of a vector has its own.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The library, a platform or a device is missing or cannot be used.
    #[error("{kind} cannot be used: {reason}")]
    Unusable {
        /// The library that uses the device.
        kind: DriverKind,
        /// The missing property.
        reason: String,
    },
    /// The table has no such sandbox.
    #[error("there is no sandbox {0}")]
    Unknown(DeviceSandboxId),
    /// The table is full, or the vector is too long.
    #[error("there are {MAX_SANDBOXES} sandboxes already, or more than {MAX_VECTOR} were asked for at once")]
    TooMany,
    /// The verb does not apply to a sandbox in this state.
    #[error("cannot {verb} sandbox {id}, which is {status:?}")]
    WrongStatus {
        /// The sandbox.
        id: DeviceSandboxId,
        /// The sandbox's state.
        status: DeviceSandboxStatus,
        /// The requested verb.
        verb: &'static str,
    },
    /// The specification is invalid.
    #[error("the kernel {name:?} cannot be made: {reason}")]
    Spec {
        /// The kernel's name, shortened if it is long.
        name: String,
        /// The error in the specification.
        reason: String,
    },
    /// The source does not compile, or a binary is not one for this device.
    #[error("the program of kernel {name:?} does not build: {log}")]
    Build {
        /// The kernel's name.
        name: String,
        /// Log of the compiler or the driver, bounded.
        log: String,
    },
    /// The program has no kernel of this name, or its signature is not that of functions.
    #[error("the program has no kernel {name:?} of the form that functions have: {reason}")]
    NoKernel {
        /// The kernel's name.
        name: String,
        /// The driver's reason.
        reason: String,
    },
    /// The process that reads untrusted programs cannot be started or does not answer.
    #[error("the builder {0}")]
    Builder(String),
    /// An input, an output or a buffer is too large.
    #[error("{len_bytes} bytes are more than the {most_bytes} that the device takes at once")]
    TooLarge {
        /// The requested size.
        len_bytes: u64,
        /// The available size.
        most_bytes: u64,
    },
    /// A buffer of one tenant was given to a kernel of another.
    #[error("the buffer is tenant {}'s and the kernel tenant {}'s", owner.0, user.0)]
    Foreign {
        /// Owner of the buffer.
        owner: TenantId,
        /// Owner of the kernel.
        user: TenantId,
    },
    /// The kernel reports that it failed.
    #[error("{0}")]
    Failed(String),
    /// The kernel reports more written bytes than its output has.
    #[error("the kernel says that it wrote {written} bytes, and its output has {capacity_bytes}")]
    WroteTooMuch {
        /// The reported number of bytes.
        written: u32,
        /// Size of the output.
        capacity_bytes: u32,
    },
    /// A kernel did not end in time. It continues until this process ends.
    #[error("the kernel has not ended and cannot be stopped: it ends with the process that uses the device")]
    RunsOn,
    /// The driver refused an operation.
    #[error("{operation} failed: {reason}")]
    Driver {
        /// The operation.
        operation: &'static str,
        /// The driver's own name for the reason.
        reason: String,
    },
    /// The cache on disk cannot be used.
    #[error("the cache of programs in {path} cannot be used: {reason}")]
    Store {
        /// The cache's folder or file.
        path: String,
        /// The reason.
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
