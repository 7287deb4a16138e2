//! The C interface of Sublet: what `include/sublet.h`, `include/sublet_memory.h`, `include/sublet_graph.h`,
//! `include/sublet_swap.h` and `include/sublet_xpu.h` declare. These headers are its documentation; the C++ interfaces, `.hpp`, and the header of function
//! authors, `include/sublet_function.h`, stand beside them.
//!
//! - Every exported function is one call of `boundary::guarded`, which turns errors into a status and a message, and
//!   stops panics.
//! - An object is checked where it arrives: null pointers, strings, sizes of structures. What C cannot be asked for
//!   (that a pointer points to what its type says, that an invoker is not freed while it is used) is the caller's
//!   duty, as the header says.
//! - Outputs are checked before anything is done and written after everything is.
//!
//! There is no state here beyond that of the facade but the latest error of each thread ([`boundary`]) and the table
//! by which a buffer is found again when it is freed ([`buffer`]).

#![allow(unsafe_code, non_camel_case_types)]

pub mod access;
pub mod boundary;
pub mod buffer;
pub mod callback;
pub mod graph;
pub mod invocation;
pub mod invoker;
pub mod memory;
pub mod renewal;
pub mod swap;

// What `include/sublet_xpu.h` declares, for programs that processes spawn; functions have it of their worker process.
sublet_xpu::export_c!();

#[cfg(test)]
mod tests;
