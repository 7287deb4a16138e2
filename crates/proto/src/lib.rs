//! Defines everything that crosses a process boundary in Sublet: control messages, packages, tickets, error
//! codes.
//!
//! The schema in `proto/sublet/v1` is the documentation of the messages; [`v1`] is generated from it. The modules
//! define the rules that a schema cannot express. They cover what makes a package valid ([`package`]) or an application
//! of several components ([`graph`]), what functions need beside the package ([`needs`]), and what programs need for a
//! device ([`cdi`]). They cover how a ticket is signed and checked ([`ticket`]), how a node is reached ([`network`]), and
//! what it computes with ([`pu`]). They also define what usage costs ([`price`]), the errors ([`Code`]), how untrusted
//! text is shown ([`text`]), and which versions work together ([`version`]).
//!
//! Nothing here opens a file or a socket, and every decoder takes untrusted bytes: it must answer any input with a
//! value or an error, never with a panic. The decoders are fuzzed (`tests/fuzz-targets`).

// A lossy-looking cast says why it loses nothing. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub mod cdi;
mod code;
mod convert;
pub mod graph;
pub mod inbox;
pub mod isolation;
mod names;
pub mod needs;
pub mod network;
pub mod package;
pub mod pool;
pub mod price;
pub mod pu;
pub mod run;
pub mod text;
pub mod ticket;
pub mod version;

pub use code::{Code, Error};
pub use convert::{saturating_u64, to_usize};

/// The generated messages and gRPC stubs.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("sublet.v1");
}

/// Largest packet on a Unix socket inside a node, in bytes.
pub const MAX_PACKET_BYTES: usize = 64 * 1024;

/// `hot_timeout_ns` of a worker that polls for ever.
pub const ALWAYS_HOT_NS: u64 = u64::MAX;
/// `hot_timeout_ns` of a worker that sleeps after every call.
pub const ALWAYS_WARM_NS: u64 = 0;

/// Limits of a lease request, apart from the resources of nodes.
pub mod limits {
    /// Leases that one request ends.
    pub const MAX_ENDS: usize = 1024;
    /// Cores of one lease on one node, and so its worker threads.
    pub const MAX_CORES: u32 = 1024;
    /// Inbox slots of one worker.
    pub const MAX_SLOTS: u32 = 256;
    /// Largest inbox slot, in bytes: the largest 32-bit size of a call.
    pub const MAX_SLOT_BYTES: u64 = u32::MAX as u64;
    /// Memory of a lease for each core if the request names none, in bytes, beside its inbox.
    pub const MEMORY_PER_CORE_BYTES: u64 = 128 << 20;
    /// Least memory of a segment, in bytes: a page, of which each segment is a whole multiple.
    pub const MIN_SEGMENT_BYTES: u64 = 4096;
    /// Most memory of a segment, in bytes: a tebibyte.
    pub const MAX_SEGMENT_BYTES: u64 = 1 << 40;
    /// Least that a worker may allocate that is swapped, in bytes, if it may at all.
    pub const MIN_SWAP_BYTES: u64 = 16 << 20;
    /// Most that the workers of a lease on one node may, in bytes: a tebibyte.
    pub const MAX_SWAP_BYTES: u64 = 1 << 40;
    /// Least memory of a worker that swaps, in bytes: pages in transfer need memory of their own.
    pub const MIN_SWAPPING_BYTES: u64 = 32 << 20;
    /// Lease time, in milliseconds: a day.
    pub const MAX_TIMEOUT_MS: u64 = 24 * 60 * 60 * 1000;
}

impl v1::Lease {
    /// Whether it is of memory alone. One of a package without cores is impossible.
    pub fn is_segment(&self) -> bool {
        self.cores == 0 && self.package.is_empty()
    }

    /// Returns the number of cores of each worker.
    pub fn cores_each(&self) -> u32 {
        self.options.map_or(1, |options| options.cores_each())
    }

    /// Returns the number of workers. Cores that are left over, which no valid lease has, are of no worker.
    pub fn workers(&self) -> u32 {
        self.cores / self.cores_each()
    }
}

impl v1::WorkerOptions {
    /// Returns the number of cores of each worker, at least 1.
    pub fn cores_each(&self) -> u32 {
        self.cores.max(1)
    }
}

impl v1::LeaseRequest {
    /// Tells whether only memory is requested.
    pub fn is_segment(&self) -> bool {
        self.cores == 0 && self.package.is_empty()
    }
}

/// Decodes one protobuf message from a peer, naming the message in the error.
pub fn decode<M: prost::Message + Default>(what: &'static str, bytes: &[u8]) -> Result<M, Error> {
    M::decode(bytes).map_err(|error| Error::new(Code::Protocol, format!("{what} cannot be decoded: {error}")))
}
