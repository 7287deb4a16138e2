//! The stable error codes, shared by Rust, C, Python, HTTP and the exit status.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// A stable error code. Its number is the C status and the exit status of `sublet`, its name the `"code"`
        /// of JSON output. An assigned number keeps its meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum Code { $($(#[$doc])* $variant = $number,)* }

        impl Code {
            /// All codes, in the order of their numbers.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// Returns the name, in lower case with underscores.
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }

            /// Returns the code of a number that a peer sent; [`Code::Internal`] for an unknown number.
            pub fn from_number(number: u32) -> Code {
                match number { $($number => Code::$variant,)* _ => Code::Internal }
            }
        }
    };
}

codes! {
    /// An argument has a value that the operation does not accept.
    InvalidArgument = 10, "invalid_argument";
    /// The package has no such function.
    UnknownFunction = 11, "unknown_function";
    /// No package of that name or digest is deployed.
    UnknownPackage = 12, "unknown_package";
    /// No lease has this identifier.
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
    /// Every invocation record of the worker holds a call or a result that was not collected.
    TooManyInFlight = 19, "too_many_in_flight";
    /// No lease is held: allocate first.
    NotAllocated = 20, "not_allocated";
    /// A lease is held already: deallocate first.
    AlreadyAllocated = 21, "already_allocated";
    /// No image has that name or digest.
    UnknownImage = 22, "unknown_image";
    /// A document, a layer or a file of the image is malformed or malicious.
    InvalidImage = 23, "invalid_image";
    /// The document is not a valid graph; the message lists all errors.
    InvalidGraph = 24, "invalid_graph";
    /// No graph of this name or digest is deployed.
    UnknownGraph = 25, "unknown_graph";
    /// No run has this identifier.
    UnknownRun = 26, "unknown_run";
    /// Another process drives the run.
    RunTaken = 27, "run_taken";
    /// The run was cancelled.
    RunCancelled = 28, "run_cancelled";
    /// No node has the requested resources, even when idle.
    InsufficientResources = 30, "insufficient_resources";
    /// The requested resources exist, but are leased at the moment.
    NoCapacity = 31, "no_capacity";
    /// The lease has expired.
    LeaseExpired = 32, "lease_expired";
    /// The lease was ended before its time.
    LeaseEnded = 33, "lease_ended";
    /// The caller lacks the right, or its ticket is forged, too old or for another user.
    PermissionDenied = 34, "permission_denied";
    /// The access token is missing, unknown, expired or revoked.
    Unauthenticated = 35, "unauthenticated";
    /// The request exceeds the tenant's quota.
    QuotaExceeded = 36, "quota_exceeded";
    /// The manager has too many requests waiting: try later.
    TryLater = 37, "try_later";
    /// The lease was granted before its node registered again: request another one.
    TicketSuperseded = 38, "ticket_superseded";
    /// The operator has withdrawn the lease's node.
    NodeReclaimed = 39, "node_reclaimed";
    /// The function reported an error, which is the message, threw an exception, or trapped in WebAssembly.
    FunctionFailed = 40, "function_failed";
    /// The worker process ended before the call did.
    WorkerDied = 41, "worker_died";
    /// The call's deadline passed, and its worker process was stopped. For a WebAssembly function's own limit, only the call
    /// was stopped.
    DeadlineExceeded = 42, "deadline_exceeded";
    /// The function ran out of the lease's memory.
    MemoryExceeded = 43, "memory_exceeded";
    /// A shared core was executing another call each time this one was sent.
    CoreBusy = 44, "core_busy";
    /// No manager answers at the address.
    ManagerUnreachable = 50, "manager_unreachable";
    /// The lease's agent does not answer or is gone.
    AgentUnreachable = 51, "agent_unreachable";
    /// A peer sent an invalid message.
    Protocol = 52, "protocol";
    /// The store's disk, or its storage limit, is full.
    StoreFull = 53, "store_full";
    /// A system call failed.
    System = 54, "system";
    /// The state folder is in use by another running process.
    AlreadyRunning = 55, "already_running";
    /// The store behind the manager does not answer.
    StoreUnreachable = 56, "store_unreachable";
    /// No network, or not the requested one, can carry calls between this client and the node.
    FabricUnavailable = 57, "fabric_unavailable";
    /// The peer has an incompatible version, or a later version has written the store or a journal.
    VersionMismatch = 58, "version_mismatch";
    /// The key for memory of another node is invalid or has been revoked.
    KeyRefused = 59, "key_refused";
    /// Sublet itself has a bug.
    Internal = 60, "internal";
    /// A limit of this machine is too low; the message says which, and how to raise it.
    LimitTooLow = 61, "limit_too_low";
    /// The image registry does not answer.
    RegistryUnreachable = 62, "registry_unreachable";
    /// Records of the store are damaged or missing; the message says which.
    StoreDamaged = 63, "store_damaged";
}

const _: () = {
    let mut at = 1;
    while at < Code::ALL.len() {
        let (before, code) = (Code::ALL[at - 1] as u32, Code::ALL[at] as u32);
        assert!(before < code, "the codes are not in the order of their numbers");
        assert!(code <= u8::MAX as u32, "a code does not fit into an exit status");
        at += 1;
    }
};

impl Code {
    /// Returns the number: the C status and the exit status of `sublet`.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// Returns the number as the exit status of a process.
    pub fn exit_status(self) -> u8 {
        // All numbers fit, as asserted above.
        (self as u32 & 0xff) as u8
    }

    /// Returns whether the request was valid and permitted, but the nodes lack the resources: they are leased, or no node
    /// has them.
    pub fn is_shortage(self) -> bool {
        matches!(self, Code::NoCapacity | Code::InsufficientResources)
    }

    /// Returns whether the same request may succeed later: after a shortage, when other leases of the tenant have ended,
    /// or when the manager is less busy.
    pub fn may_pass_by_waiting(self) -> bool {
        self.is_shortage() || matches!(self, Code::TryLater | Code::QuotaExceeded)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The system's number of the error that this process has too many files open.
const EMFILE: i32 = 24;
/// The system's number of the error that a file would be larger than this process may write.
const EFBIG: i32 = 27;

/// An error as it crosses a process boundary: a stable code, and a message with the failed operation and its values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Kind of the error.
    pub code: Code,
    /// Message in lower case, complete on its own.
    pub message: String,
}

impl Error {
    /// Creates an error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error { code, message: message.into() }
    }

    /// Describes a failed system call: [`Code::LimitTooLow`] if a limit of this process is the reason, [`Code::System`] otherwise.
    pub fn of_system(what: impl fmt::Display, error: &std::io::Error) -> Error {
        let limit = match error.raw_os_error() {
            Some(EMFILE) => "this process reached its limit of open files (raise it with ulimit -n)",
            Some(EFBIG) => "the file would exceed the limit of file sizes (raise it with ulimit -f)",
            _ => return Error::new(Code::System, format!("{what}: {error}")),
        };
        Error::new(Code::LimitTooLow, format!("{what}: {limit}"))
    }

    /// Converts to a gRPC status, with the code's number in the details.
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

    /// Converts from a gRPC status. A status without a code means that the peer could not answer.
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
    fn codes_round_trip_as_numbers_and_fit_an_exit_status() {
        for &code in Code::ALL {
            assert_eq!(Code::from_number(code.number()), code);
            assert!(code.number() > 2 && code.number() < 126, "{code} cannot be an exit status");
        }
    }

    #[test]
    fn only_shortages_quotas_and_busy_managers_pass_by_waiting() {
        let with = |is: fn(Code) -> bool| -> Vec<Code> {
            Code::ALL.iter().copied().filter(|&code| is(code)).collect()
        };
        let shortages = [Code::InsufficientResources, Code::NoCapacity];
        assert_eq!(with(Code::is_shortage), shortages);
        let passing = [shortages.as_slice(), &[Code::QuotaExceeded, Code::TryLater]].concat();
        assert_eq!(with(Code::may_pass_by_waiting), passing);
    }

    #[test]
    fn names_the_limit_that_a_system_call_met() {
        let of = |number| Error::of_system("reading a", &std::io::Error::from_raw_os_error(number));
        assert!(of(EMFILE).code == Code::LimitTooLow && of(EMFILE).message.contains("ulimit -n"));
        assert!(of(EFBIG).code == Code::LimitTooLow && of(EFBIG).message.contains("ulimit -f"));
        assert_eq!((of(2).code, of(2).message.starts_with("reading a: ")), (Code::System, true));
    }

    #[test]
    fn errors_round_trip_through_grpc() {
        let error = Error::new(Code::NoCapacity, "2 cores asked, 1 free");
        assert_eq!(Error::from_status(&error.clone().into_status()), error);
    }
}
