//! The C interface of Sublet: what `include/sublet.h`, `include/sublet_memory.h`, `include/sublet_graph.h`,
//! `include/sublet_swap.h` and `include/sublet_xpu.h` declare. These headers are its documentation; the C++ interfaces, `.hpp`, and the header of function
//! authors, `include/sublet_function.h`, stand beside them, and so do the modules for Fortran, `.f90`.
//!
//! - Every exported function is one call of `boundary::guarded`, which turns errors into a status and a message, and
//!   stops panics.
//! - Arguments are checked on entry: null pointers, strings, sizes of structures. The caller guarantees the rest, as
//!   the header says: that a pointer points to a value of its type, that an invoker is not freed while it is used.
//! - Outputs are checked before the operation starts and written after it has succeeded.
//!
//! Besides the facade's state, there is only the latest error of each thread ([`boundary`]) and the table of buffers
//! ([`buffer`]).

#![allow(unsafe_code, non_camel_case_types)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

pub mod access;
pub mod boundary;
pub mod buffer;
pub mod callback;
pub mod graph;
pub mod invocation;
pub mod invoker;
pub mod memory;
pub mod renewal;
pub mod steps;
pub mod swap;

// The functions of `include/sublet_xpu.h`, for spawned programs; in functions the worker process provides them.
sublet_xpu::export_c!();

#[cfg(test)]
mod tests;
