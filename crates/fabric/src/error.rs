//! Defines the errors of the data plane's set-up and operations.

use sublet_proto::{Code, Error};

use crate::address::RegionAddress;

/// An error of a fabric operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// A system call failed.
    #[error("{operation}: {source}")]
    System {
        /// The operation that failed, with its values.
        operation: String,
        /// The error of the system call.
        source: std::io::Error,
    },
    /// An access outside of a region, or to a region that does not exist.
    #[error("{len_bytes} bytes at offset {offset} are outside of region {region}")]
    OutOfBounds {
        /// The region's number in its connection.
        region: u32,
        /// Offset at which the access begins.
        offset: u64,
        /// Length of the access.
        len_bytes: u64,
    },
    /// An atomic or a line at an address that is not aligned for it.
    #[error("offset {offset} of region {region} is not a multiple of {alignment}")]
    Unaligned {
        /// The region's number in its connection.
        region: u32,
        /// The offset.
        offset: u64,
        /// The alignment that the offset must have.
        alignment: u64,
    },
    /// A descriptor that a peer passed is not a sealed memory file of the announced size.
    #[error("the descriptor of a region of {expected_bytes} bytes is not one: {reason}")]
    NotARegion {
        /// The size that the peer announced.
        expected_bytes: u64,
        /// The property that the descriptor lacks.
        reason: String,
    },
    /// A region number or size that a window cannot hold.
    #[error(
        "region {region} of {len_bytes} bytes does not fit: a window holds {regions} regions of less than 4 GiB"
    )]
    DoesNotFit {
        /// The region's number.
        region: u32,
        /// The region's size.
        len_bytes: u64,
        /// Number of regions that the window holds.
        regions: u32,
    },
    /// There is no connection, or it has ended.
    #[error("the connection is down: {reason}")]
    Disconnected {
        /// The event that ended the connection.
        reason: String,
    },
    /// A key that was valid, and was withdrawn, as at the end of a lease.
    #[error("the key of region {region} has expired")]
    KeyExpired {
        /// The region's number.
        region: u32,
    },
    /// A key that was never valid.
    #[error("the key is of no region")]
    KeyUnknown,
    /// A key that allows reading only.
    #[error("the key allows reading, and not writing")]
    ReadOnly,
    /// A message of a peer that violates the protocol.
    #[error("{0}")]
    Protocol(String),
    /// A function that this machine, its library or the provider lacks.
    #[error("{0}")]
    Unsupported(String),
    /// A limit of this machine that must be raised first; the message says which and how.
    #[error("{0}")]
    Limit(String),
    /// The time limit passed before anything arrived.
    #[error("nothing came within {} ms", .0.as_millis())]
    TimedOut(std::time::Duration),
}

impl FabricError {
    /// A failed system call.
    pub fn system(operation: impl Into<String>, source: impl Into<std::io::Error>) -> FabricError {
        FabricError::System { operation: operation.into(), source: source.into() }
    }

    /// Makes the error of an access of `len_bytes` bytes at `at` that is not inside of a region.
    #[cold]
    pub(crate) fn out_of_bounds(at: RegionAddress, len_bytes: u64) -> FabricError {
        FabricError::OutOfBounds { region: at.region, offset: at.offset, len_bytes }
    }

    /// Makes the error of an offset that is not a multiple of `alignment`.
    #[cold]
    pub(crate) fn unaligned(at: RegionAddress, alignment: u64) -> FabricError {
        FabricError::Unaligned { region: at.region, offset: at.offset, alignment }
    }
}

impl From<FabricError> for Error {
    fn from(error: FabricError) -> Error {
        let code = match &error {
            FabricError::System { operation, source } => {
                return Error::of_system(operation, source);
            }
            FabricError::Limit(_) => Code::LimitTooLow,
            FabricError::Unsupported(_) => Code::FabricUnavailable,
            FabricError::Disconnected { .. } | FabricError::TimedOut(_) => Code::AgentUnreachable,
            FabricError::KeyExpired { .. } | FabricError::KeyUnknown | FabricError::ReadOnly => {
                Code::KeyRefused
            }
            FabricError::DoesNotFit { .. } => Code::InvalidArgument,
            _ => Code::Protocol,
        };
        Error::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_limit_of_open_files() {
        let of = |errno: rustix::io::Errno| Error::from(FabricError::system("memfd_create", errno));
        let error = of(rustix::io::Errno::MFILE);
        assert!(error.code == Code::LimitTooLow && error.message.contains("ulimit -n"), "{error}");
        assert_eq!(of(rustix::io::Errno::NOMEM).code, Code::System);
    }
}
