//! Provides the imports of a module, and the host's state of one call.

use std::fmt;

use sublet_runtime::worker::engine::ErrorMessage;
use wasmtime::{Caller, Error, Extern, Linker, Module, Result};

use crate::wasi;

/// Module name of Sublet's own functions.
const SUBLET: &str = "sublet";

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

/// Defines everything that a module may import.
pub(crate) fn link(linker: &mut Linker<HostState>, module: &Module) -> Result<()> {
    linker.func_wrap(SUBLET, "fail", fail)?;
    wasi::link(linker, module)
}

/// Implements `sublet_fail` of `sublet_function.h`. Only the first report of a call counts; a null address means no message.
fn fail(mut caller: Caller<'_, HostState>, message: u32) -> Result<()> {
    let (memory, state) = memory(&mut caller)?;
    let said = match message {
        0 => &[][..],
        at => memory.get(at as usize..).ok_or_else(|| outside(at, 1))?,
    };
    let said = &said[..said.len().min(ErrorMessage::CAPACITY)];
    let said = said.split(|&byte| byte == 0).next().unwrap_or_default();
    state.failure.get_or_insert_with(|| Box::new(ErrorMessage::of(said)));
    Ok(())
}

/// Returns the linear memory and the state of the call.
pub(crate) fn memory<'a>(caller: &'a mut Caller<'_, HostState>) -> Result<(&'a mut [u8], &'a mut HostState)> {
    match caller.get_export(crate::engine::MEMORY) {
        Some(Extern::Memory(memory)) => Ok(memory.data_and_store_mut(caller)),
        _ => Err(Error::msg("the module exports no memory")),
    }
}

/// Checks a range of the linear memory that a module has named.
pub(crate) fn range(memory: &mut [u8], at: u32, len: u32) -> Result<&mut [u8]> {
    let end = u64::from(at) + u64::from(len);
    memory.get_mut(at as usize..end as usize).ok_or_else(|| outside(at, len))
}

fn outside(at: u32, len: u32) -> Error {
    Error::msg(format!("it passed an address outside of its memory: {len} bytes at {at:#x}"))
}
