//! Provides the imports of a module.

use sublet_proto::v1::Variable;
use sublet_runtime::worker::engine::ErrorMessage;
use wasmtime::{Caller, Linker, Module, Result};

use crate::state::{HostState, memory, outside};
use crate::wasi;

/// Module name of Sublet's own functions.
const SUBLET: &str = "sublet";

/// Defines everything that a module may import.
pub(crate) fn link(linker: &mut Linker<HostState>, module: &Module, variables: &[Variable]) -> Result<()> {
    linker.func_wrap(SUBLET, "fail", fail)?;
    wasi::link(linker, module, variables)
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
