//! The host's state of one call, and its access to the memory of the module.

use std::fmt;

use sublet_proto::to_usize;
use sublet_runtime::worker::engine::ErrorMessage;
use wasmtime::{Caller, Error, Extern, Result};

/// Name of a module's exported linear memory.
pub(crate) const MEMORY: &str = "memory";

/// State of a call on the host's side.
#[derive(Default)]
pub(crate) struct HostState {
    /// Message of the function's failure, if it has reported one.
    pub(crate) failure: Option<Box<ErrorMessage>>,
}

/// Error of a function that exits like a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExitError(pub(crate) i32);

impl fmt::Display for ExitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it exited with status {}", self.0)
    }
}

impl std::error::Error for ExitError {}

/// Returns the linear memory and the state of the call.
pub(crate) fn memory<'a>(caller: &'a mut Caller<'_, HostState>) -> Result<(&'a mut [u8], &'a mut HostState)> {
    match caller.get_export(MEMORY) {
        Some(Extern::Memory(memory)) => Ok(memory.data_and_store_mut(caller)),
        _ => Err(Error::msg("the module exports no memory")),
    }
}

/// Checks a range of the linear memory that a module has named.
pub(crate) fn range(memory: &mut [u8], at: u32, len: u32) -> Result<&mut [u8]> {
    let end = u64::from(at) + u64::from(len);
    memory.get_mut(at as usize..to_usize(end)).ok_or_else(|| outside(at, len))
}

/// The error for a range outside of the linear memory.
pub(crate) fn outside(at: u32, len: u32) -> Error {
    Error::msg(format!("it passed an address outside of its memory: {len} bytes at {at:#x}"))
}
