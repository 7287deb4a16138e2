//! Sublet: run functions on leased cores at the speed of memory. Users of the library import this crate.
//!
//! An [`Invoker`] takes a lease, hands out [`Buffer`]s that the leased workers reach without copying, and submits
//! calls; an [`Invocation`] is the future of one call's result. `sublet up` starts what it needs.
//!
//! Workers may write a buffer at any time, so a program copies values from it and into it.
//!
//! ```no_run
//! # fn main() -> Result<(), sublet::Error> {
//! use sublet::{Allocation, Invoker, Policy};
//!
//! let mut invoker = Invoker::connect()?;
//! invoker.allocate(&Allocation::new("./libpricing.so").cores(2).policy(Policy::AlwaysWarm))?;
//! let mut options = invoker.buffer::<f64>(1000)?;
//! let mut prices = invoker.buffer::<f64>(1000)?;
//! options.fill(100.0);
//! let call = invoker.submit("price", &options, &mut prices)?;
//! let done = call.wait()?;
//! println!("{} bytes in {:?}, first {}", done.output_bytes, done.executing, prices.get(0));
//! invoker.deallocate()?;
//! # Ok(())
//! # }
//! ```
//!
//! Everything else of the workspace is the library's own; only what is named here stays as it is.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub use sublet_proto::pool::Pool;
pub use sublet_proto::price::bill;
pub use sublet_proto::v1::{
    BillLine, BillRequest, ChannelUse, ComponentUse, Lease, PackageInfo, Price, ProcessingUnit, Traffic,
    Usage,
};
pub use sublet_proto::{ALWAYS_HOT_NS, ALWAYS_WARM_NS, Code, Error};
pub use sublet_runtime::deploy::is_path;
pub use sublet_runtime::fabrics::own_host;
pub use sublet_runtime::frames;
pub use sublet_runtime::run::{
    Application, LogLine, News, Outcome, RunHandle, RunOptions, RunResult, Runner, RunnerNews, RunnerOptions,
};
pub use sublet_runtime::{
    Access, Address, Allocation, Backing, Buffer, BufferPart, BufferPartMut, CallOptions, ColdStart,
    Completion, EnvironmentPlan, FabricChoice, Function, InputMemory, Invocation, Invoker, Memory,
    MemoryPlan, Notice, OutputMemory, Policy, RawReading, Reading, RegisteredMemory, Requirements, SwapPlan,
    SwapStatistics, SwappedMemory, Touching,
};
