//! Implements both ends of a call: the invoker and its buffers, the worker's loop, and the wire layout between them.
//!
//! A reader's path: [`invoker`] `submit` -> [`wire`] -> `sublet_fabric::shm` `put_imm` -> [`worker`] `run` -> back.
//!
//! - [`Invoker`] is the client's side: it takes a lease, and submits calls into the inboxes of the lease's workers.
//! - [`worker`] is the other side, run by the `sublet-worker` program, and by those of other engines.
//! - [`Memory`] is memory that is leased by the segment, and grows.
//! - [`run`] runs graphs of functions and memory.
//! - [`SwappedMemory`] is an array of which a part lies in such memory.
//! - [`frames`] puts several pieces of memory into one input or output, for callers whose values have several.
//! - [`wire`] defines the messages between the two; [`access`], [`manager`] and [`deploy`] set things up and are never
//!   on the path of a call.

#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub mod access;
mod arena;
pub mod deploy;
pub mod environment;
pub mod fabrics;
pub mod frames;
mod invocation;
pub mod invoker;
mod lease;
pub mod manager;
mod memory;
mod random;
pub mod run;
pub mod swap;
pub mod wire;
pub mod worker;

pub use access::{Access, Address};
pub use arena::{Buffer, BufferPart, BufferPartMut, InputMemory, OutputMemory, RegisteredMemory};
pub use environment::{EnvironmentPlan, Requirements};
pub use fabrics::FabricChoice;
pub use invocation::{Completion, Invocation, is_repeatable};
pub use invoker::{Allocation, CallOptions, Function, Invoker, Policy};
pub use lease::link::{ColdStart, Notice};
pub use memory::invited;
pub use memory::{Memory, MemoryPlan, RawReading, Reading};
pub use run::{Application, RunOptions};
pub use swap::{Backing, SwapPlan, SwapStatistics, SwappedMemory, Touching};
