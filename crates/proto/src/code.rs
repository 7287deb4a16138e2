//! The stable error codes, shared by Rust, C, Python, HTTP and the exit status.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// A stable error code: its number is the C status and the exit status of `sublet`, its name the `"code"`
        /// of JSON output. A number, once given, keeps its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $variant = $number,)* }

        impl Code {
            /// Every code, by number.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The name, in lower case with underscores.
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// The code of a number that a peer sent; an unknown one is [`Code::Internal`].
            pub fn from_number(number: u32) -> Code {
                match number { $($number => Code::$variant,)* _ => Code::Internal }
            }
        }
    };
}

codes! {
    /// A value is outside of what the operation takes.
    InvalidArgument = 10, "invalid_argument";
    /// The package has no such function.
    UnknownFunction = 11, "unknown_function";
    /// No package of that name or digest is deployed.
    UnknownPackage = 12, "unknown_package";
    /// No such lease.
    UnknownLease = 13, "unknown_lease";
    /// The package is malformed: its manifest, a path in it, or its library.
    InvalidPackage = 14, "invalid_package";
    /// The shared object is for another processor.
    WrongArchitecture = 15, "wrong_architecture";
    /// The manifest names a symbol that the library does not export.
    MissingSymbol = 16, "missing_symbol";
    /// The input is larger than an inbox slot and not in the client's allocator.
    InputTooLarge = 17, "input_too_large";
    /// The function returned more bytes than the output has.
    OutputTooLarge = 18, "output_too_large";
    /// Every invocation record of the worker is taken by a result that nobody has collected.
    TooManyInFlight = 19, "too_many_in_flight";
    /// There is no lease: allocate first.
    NotAllocated = 20, "not_allocated";
    /// There is a lease already: deallocate first.
    AlreadyAllocated = 21, "already_allocated";
    /// There is no image of that name or digest.
    UnknownImage = 22, "unknown_image";
    /// The image is malformed or hostile: a document of it, a layer, or a file in a layer.
    InvalidImage = 23, "invalid_image";
    /// The document is no graph of components; the message says all that is wrong with it.
    InvalidGraph = 24, "invalid_graph";
    /// No graph of this name or digest is deployed.
    UnknownGraph = 25, "unknown_graph";
    /// There is no such run.
    UnknownRun = 26, "unknown_run";
    /// No node has so much, even if it were idle.
    InsufficientResources = 30, "insufficient_resources";
    /// Nodes have so much, but it is leased now.
    NoCapacity = 31, "no_capacity";
    /// The lease's time is over.
    LeaseExpired = 32, "lease_expired";
    /// The lease was ended before its time.
    LeaseEnded = 33, "lease_ended";
    /// The ticket is not the manager's, is too old, or is for somebody else.
    PermissionDenied = 34, "permission_denied";
    /// The access token is missing, unknown, expired or revoked.
    Unauthenticated = 35, "unauthenticated";
    /// The tenant's quota does not allow it.
    QuotaExceeded = 36, "quota_exceeded";
    /// The manager has too many requests waiting: try later.
    TryLater = 37, "try_later";
    /// The lease was granted before its node registered anew: ask for another.
    TicketSuperseded = 38, "ticket_superseded";
    /// The lease's node was handed back to its owner.
    NodeReclaimed = 39, "node_reclaimed";
    /// The function reported an error or threw, and the message is its own; in WebAssembly also: it trapped.
    FunctionFailed = 40, "function_failed";
    /// The worker process ended before the call did.
    WorkerDied = 41, "worker_died";
    /// The call's deadline passed, and its worker process was stopped; or a WebAssembly function's own limit, and only the
    /// call was.
    DeadlineExceeded = 42, "deadline_exceeded";
    /// The function ran out of the lease's memory.
    MemoryExceeded = 43, "memory_exceeded";
    /// A shared core was executing another call each time this one was sent.
    CoreBusy = 44, "core_busy";
    /// No manager answers at the address.
    ManagerUnreachable = 50, "manager_unreachable";
    /// The lease's agent does not answer or is gone.
    AgentUnreachable = 51, "agent_unreachable";
    /// A peer's message makes no sense.
    Protocol = 52, "protocol";
    /// The store's disk, or its storage limit, is full.
    StoreFull = 53, "store_full";
    /// A system call failed.
    System = 54, "system";
    /// The state folder is in use by another running process.
    AlreadyRunning = 55, "already_running";
    /// The store behind the manager does not answer.
    StoreUnreachable = 56, "store_unreachable";
    /// No network carries calls between this client and the node, or the one that was asked for cannot.
    FabricUnavailable = 57, "fabric_unavailable";
    /// The peer is of another version, with which this one does not speak.
    VersionMismatch = 58, "version_mismatch";
    /// An access to memory of another node with a key that is not, or no longer, good for it.
    KeyRefused = 59, "key_refused";
    /// A fault of Sublet's own.
    Internal = 60, "internal";
    /// A limit of this machine is too low; the message says which, and how to raise it.
    LimitTooLow = 61, "limit_too_low";
    /// The registry of images does not answer.
    RegistryUnreachable = 62, "registry_unreachable";
    /// Records of the store are damaged or missing; the message says which.
    StoreDamaged = 63, "store_damaged";
}

impl Code {
    /// The number: the C status, and the exit status of `sublet`.
    pub fn number(self) -> u32 {
        self as u32
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error as it crosses a process boundary: a stable code, and a message that says what failed with which values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What kind of error.
    pub code: Code,
    /// Lower case, complete on its own.
    pub message: String,
}

impl Error {
    /// An error of this code.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into() }
    }

    /// As a gRPC status; the code's number travels in the details.
    pub fn into_status(self) -> tonic::Status {
        let grpc = match self.code {
            Code::InvalidArgument
            | Code::InvalidPackage
            | Code::InvalidImage
            | Code::InvalidGraph
            | Code::WrongArchitecture
            | Code::MissingSymbol => tonic::Code::InvalidArgument,
            Code::UnknownFunction
            | Code::UnknownPackage
            | Code::UnknownImage
            | Code::UnknownGraph
            | Code::UnknownRun
            | Code::UnknownLease => tonic::Code::NotFound,
            Code::InsufficientResources
            | Code::NoCapacity
            | Code::StoreFull
            | Code::QuotaExceeded
            | Code::TryLater => tonic::Code::ResourceExhausted,
            Code::PermissionDenied => tonic::Code::PermissionDenied,
            Code::Unauthenticated => tonic::Code::Unauthenticated,
            _ => tonic::Code::Internal,
        };
        let details = self.code.number().to_le_bytes().to_vec();
        tonic::Status::with_details(grpc, self.message, details.into())
    }

    /// From a gRPC status; one that did not come from [`Error::into_status`] means that the peer could not answer.
    pub fn from_status(status: &tonic::Status) -> Error {
        match <[u8; 4]>::try_from(status.details()) {
            Ok(number) => Error::new(Code::from_number(u32::from_le_bytes(number)), status.message()),
            Err(_) => Error::new(
                Code::ManagerUnreachable,
                format!("the manager did not answer: {}: {}", status.code(), status.message()),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_the_journey_as_a_number_and_fits_an_exit_status() {
        for &code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), code);
            assert!(code.number() > 2 && code.number() < 126, "{code} cannot be an exit status");
        }
    }

    #[test]
    fn an_error_survives_grpc() {
        let error = Error::new(Code::NoCapacity, "2 cores asked, 1 free");
        assert_eq!(Error::from_status(&error.clone().into_status()), error);
    }
}
