//! Functions on accelerators: sandboxes whose programs are kernels, by OpenCL (`runf`) and CUDA (`runG`).
//!
//! A sandbox of these kinds is one kernel of one tenant, ready on a device. It goes through the states of every sandbox
//! by the five verbs of [`DeviceSandboxes`], which take vectors because one program image holds several kernels:
//!
//! ```text
//! create -> Created -> start -> Running -> kill -> Stopped -> delete
//! ```
//!
//! [`DeviceSandboxes`] is generic over a [`Driver`], which is [`opencl::OpenCl`] or [`cuda::Cuda`]: both use libraries that
//! are loaded at run time, so that one binary runs with and without them. The layers above the driver are the same for
//! both: programs kept ready ([`keep_alive`]), programs on disk ([`store`]), ownership of memory ([`memory`]).
//!
//! [`prepare`] builds a [`package`] of kernels once on a node, and the engine of a [`worker`] calls it. [`describe`]
//! describes the node's device.
//!
//! **Isolation.** A device's driver lives in the process that uses it. A kernel that never ends cannot be stopped. A
//! kernel that writes outside of its buffers writes, on a device that is the processor itself, anywhere in that
//! process. For that reason the process is the unit of isolation: one for each tenant and device, inside of a process
//! sandbox, which its owner can kill.
//!
//! This crate adds that no data of one tenant is found by the next. Device memory is wiped when its owner changes, and
//! no program image contains functions of two tenants. Untrusted sources and binaries are first read by a [`builder`],
//! a separate process with almost no privileges.
//!
//! Invariants:
//! - A kernel that has not ended keeps all objects that it uses: none of them is ever released or passed on.
//! - No device memory is readable by a tenant before it was wiped or written for that tenant.
//! - Unsafe code is only in the two folders that bind libraries, [`opencl`] and [`cuda`].

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub mod builder;
mod bytes;
mod control;
pub mod cuda;
pub mod describe;
mod driver;
mod error;
#[cfg(feature = "fuzzing")]
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

pub use driver::{BuildResult, BuiltPart, Driver, Grid, ImagePart, KernelArguments, LaunchProgress};
pub use error::DeviceError;
pub use memory::{DeviceBuffer, Transfers};
pub use sandboxes::{CacheSettings, DeviceSandboxes, LaunchInput, LaunchOutput};
pub use spec::{KernelProgram, KernelSpec, MAX_OPTIONS_BYTES, MAX_PROGRAM_BYTES, WorkSize};

/// Most sandboxes of one [`DeviceSandboxes`].
pub const MAX_SANDBOXES: usize = 4096;
/// Most sandboxes of one verb: all functions of a package are one vector.
pub const MAX_VECTOR: usize = sublet_proto::package::kernels::MAX_KERNELS;
/// Most launches that run at once on one device.
pub const MAX_LANES: usize = 16;
/// Value that a kernel writes into `*written` to report that it failed; its output then begins with a message that ends
/// in zero.
pub const FAILED: u32 = u32::MAX;
/// Most bytes that are kept of a kernel's message or a compiler's log.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// One sandbox of one [`DeviceSandboxes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceSandboxId(pub(crate) u64);

impl fmt::Display for DeviceSandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Owner of a kernel and its memory. Tenants that do not trust each other should not share a process either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u64);

/// Library by which a device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DriverKind {
    /// OpenCL: processors, graphics processors, FPGAs.
    OpenCl,
    /// CUDA's driver interface.
    Cuda,
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DriverKind::OpenCl => "opencl",
            DriverKind::Cuda => "cuda",
        })
    }
}

/// State of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSandboxStatus {
    /// The sandbox's program is on the device.
    Created,
    /// The sandbox can be launched.
    Running,
    /// The sandbox was killed.
    Stopped,
}

/// Result of the verb `state` for one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSandboxState {
    /// The sandbox's state.
    pub status: DeviceSandboxStatus,
    /// Launches that have not ended.
    pub launches: u32,
}

/// Time limit for a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Waits until the launch ends, which may be never.
    Forever,
    /// Waits until this time. A kernel that continues after it makes its device unusable for this process: see
    /// [`DeviceError::RunsOn`].
    Until(Instant),
}
