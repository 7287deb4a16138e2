//! Functions on accelerators: sandboxes whose programs are kernels, by OpenCL (`runf`) and CUDA (`runG`).
//!
//! A sandbox of these kinds is one kernel of one tenant, ready on a device. It goes through the states of every sandbox
//! by the five verbs of [`Sandboxes`], which take vectors because one program image holds several kernels:
//!
//! ```text
//! create -> Created -> start -> Running -> kill -> Stopped -> delete
//! ```
//!
//! [`Sandboxes`] is generic over a [`Driver`], which is [`opencl::OpenCl`] or [`cuda::Cuda`]: both are libraries that are
//! loaded at run time, so that one binary runs with and without. What is above the driver is the same for both: what is
//! kept ready ([`keep_alive`]), what is on disk ([`store`]), whose memory is whose ([`memory`]).
//!
//! A [`package`] of kernels is built by [`prepare`] once on a node, and called by the engine of a [`worker`]. What the node's
//! device is says [`describe`].
//!
//! **What isolates.** A device's driver lives in the process that uses it. A kernel that never ends cannot be stopped, one
//! that writes outside of its buffers writes, on a device that is the processor itself, anywhere in that process. So the
//! process is the unit of isolation: one for each tenant and device, inside of a process sandbox, and whoever holds it can
//! kill it. What this crate adds is that nothing of one tenant is found by the next: device memory is wiped when it
//! changes hands, no program image holds functions of two tenants, and strangers' sources and binaries are first read by a
//! [`builder`], a process of its own that can do hardly anything.
//!
//! Invariants:
//! - A kernel that has not ended keeps all that it uses: nothing of it is released or handed on, ever.
//! - No device memory is readable by a tenant before it was wiped or written for that tenant.
//! - Unsafe code stands in the two folders that bind libraries, [`opencl`] and [`cuda`], and nowhere else.

pub mod builder;
mod bytes;
mod control;
pub mod cuda;
pub mod describe;
mod driver;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod image;
pub mod keep_alive;
mod lane;
mod library;
mod loaded;
mod making;
pub mod memory;
pub mod opencl;
pub mod package;
pub mod prepare;
mod sandboxes;
mod spec;
pub mod store;
mod waiting;
pub mod worker;

use std::fmt;
use std::time::Instant;

pub use driver::{Arguments, Build, BuiltPart, Driver, Grid, Part, Progress};
pub use error::DeviceError;
pub use memory::{DeviceBuffer, Transfers};
pub use sandboxes::{Input, Output, Sandboxes, Settings};
pub use spec::{KernelSpec, MAX_OPTIONS_BYTES, MAX_PROGRAM_BYTES, Program, WorkSize};

/// Most sandboxes of one [`Sandboxes`].
pub const MAX_SANDBOXES: usize = 4096;
/// Most sandboxes of one verb: all functions of a package are one vector.
pub const MAX_VECTOR: usize = sublet_proto::package::kernels::MAX_KERNELS;
/// Most launches that run at once on one device.
pub const MAX_LANES: usize = 16;
/// What a kernel puts into `*written` to say that it failed; its output then begins with a message that ends in zero.
pub const FAILED: u32 = u32::MAX;
/// Most bytes that are taken of a kernel's message or a compiler's log.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// One sandbox of one [`Sandboxes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub(crate) u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whose a kernel and its memory are. Strangers should not even share a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u64);

/// By which library a device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// OpenCL: processors, graphics processors, FPGAs.
    OpenCl,
    /// CUDA's driver interface.
    Cuda,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::OpenCl => "opencl",
            Kind::Cuda => "cuda",
        })
    }
}

/// Where a sandbox stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Its program is on the device.
    Created,
    /// It can be launched.
    Running,
    /// It was killed.
    Stopped,
}

/// What `state` tells about one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Where it stands.
    pub status: Status,
    /// Launches that have not ended.
    pub launches: u32,
}

/// How long a launch is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until it ends, which may be never.
    Forever,
    /// Until then. A kernel that runs on after that makes its device lost to this process: see
    /// [`DeviceError::RunsOn`].
    Until(Instant),
}
