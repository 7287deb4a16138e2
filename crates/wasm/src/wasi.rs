//! The part of WASI (preview 1) for functions without rights: time, random numbers, exit, and a log.
//!
//! There are the environment variables of the lease, and no arguments, files or sockets: every descriptor except the two
//! outputs counts as not open, and libraries that look for folders at their start find none. Output of a function goes to
//! the worker's output.

use std::io::Write;
use std::sync::Arc;

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
use sublet_proto::v1::Variable;
use wasmtime::{Caller, Error, ExternType, Linker, Module, Result, Val};

use crate::state::{ExitError, HostState, memory, range};

const WASI: &str = "wasi_snapshot_preview1";

/// Error numbers of WASI.
mod errno {
    pub(super) const SUCCESS: i32 = 0;
    pub(super) const BADF: i32 = 8;
    pub(super) const INVAL: i32 = 28;
    pub(super) const IO: i32 = 29;
    pub(super) const NOSYS: i32 = 52;
}

/// Maximum number of pieces of one output.
const MAX_PIECES: u32 = 1024;
const PIECE_BYTES: u32 = 8;

/// Defines the imports from WASI.
pub(crate) fn link(linker: &mut Linker<HostState>, module: &Module, variables: &[Variable]) -> Result<()> {
    linker.func_wrap(WASI, "args_sizes_get", |caller: Caller<'_, HostState>, count: u32, bytes: u32| {
        put_sizes(caller, &[], (count, bytes))
    })?;
    linker.func_wrap(WASI, "args_get", |_: u32, _: u32| errno::SUCCESS)?;
    let text = |Variable { name, value }: &Variable| format!("{name}={value}\0").into_bytes();
    let environment: Arc<[Vec<u8>]> = variables.iter().map(text).collect();
    let words = environment.clone();
    let sizes = move |caller: Caller<'_, HostState>, count: u32, bytes: u32| {
        put_sizes(caller, &words, (count, bytes))
    };
    linker.func_wrap(WASI, "environ_sizes_get", sizes)?;
    let words = move |caller: Caller<'_, HostState>, pointers: u32, text: u32| {
        put_words(caller, &environment, (pointers, text))
    };
    linker.func_wrap(WASI, "environ_get", words)?;
    linker.func_wrap(WASI, "clock_time_get", clock_time)?;
    linker.func_wrap(WASI, "clock_res_get", clock_resolution)?;
    linker.func_wrap(WASI, "random_get", random)?;
    linker.func_wrap(WASI, "fd_write", write)?;
    linker.func_wrap(WASI, "sched_yield", || errno::SUCCESS)?;
    linker.func_wrap(WASI, "proc_exit", |status: i32| Err::<(), _>(Error::new(ExitError(status))))?;
    for import in module.imports().filter(|import| import.module() == WASI) {
        let (Some(answer), ExternType::Func(of_type)) = (absent(import.name()), import.ty()) else {
            continue;
        };
        if of_type.results().len() != 1 {
            continue;
        }
        linker.func_new(WASI, import.name(), of_type, move |_, _, results| {
            results[0] = Val::I32(answer);
            Ok(())
        })?;
    }
    Ok(())
}

/// Returns the result of a known function that has no effect here.
fn absent(name: &str) -> Option<i32> {
    match name {
        "fd_write" => None,
        "poll_oneoff" | "proc_raise" => Some(errno::NOSYS),
        _ if ["fd_", "path_", "sock_"].iter().any(|part| name.starts_with(part)) => Some(errno::BADF),
        _ => None,
    }
}

fn put<const N: usize>(caller: &mut Caller<'_, HostState>, at: u32, bytes: [u8; N]) -> Result<()> {
    #[expect(clippy::cast_possible_truncation, reason = "the bytes of a number or two")]
    let len = N as u32;
    range(memory(caller)?.0, at, len)?.copy_from_slice(&bytes);
    Ok(())
}

/// Writes the number of words, and their size with the zero bytes after them.
fn put_sizes(
    mut caller: Caller<'_, HostState>,
    words: &[Vec<u8>],
    (count, bytes): (u32, u32),
) -> Result<i32> {
    let len: usize = words.iter().map(Vec::len).sum();
    put(&mut caller, count, size(words.len()).to_le_bytes())?;
    put(&mut caller, bytes, size(len).to_le_bytes())?;
    Ok(errno::SUCCESS)
}

/// A size as a module has it. The variables of a process are limited to less than 4 GiB.
fn size(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Writes words one after the other, and a list of their addresses.
fn put_words(
    mut caller: Caller<'_, HostState>,
    words: &[Vec<u8>],
    (pointers, text): (u32, u32),
) -> Result<i32> {
    let (mut pointer, mut at) = (pointers, text);
    for word in words {
        put(&mut caller, pointer, at.to_le_bytes())?;
        let len = size(word.len());
        range(memory(&mut caller)?.0, at, len)?.copy_from_slice(word);
        (pointer, at) = (pointer.wrapping_add(4), at.wrapping_add(len));
    }
    Ok(errno::SUCCESS)
}

fn clock(id: u32) -> Option<ClockId> {
    [ClockId::Realtime, ClockId::Monotonic].get(id as usize).copied()
}

fn nanoseconds(time: Timespec) -> [u8; 8] {
    let seconds = time.tv_sec.max(0).cast_unsigned();
    seconds.wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned()).to_le_bytes()
}

fn clock_time(mut caller: Caller<'_, HostState>, id: u32, _precision: u64, time: u32) -> Result<i32> {
    let Some(clock) = clock(id) else { return Ok(errno::INVAL) };
    put(&mut caller, time, nanoseconds(clock_gettime(clock)))?;
    Ok(errno::SUCCESS)
}

fn clock_resolution(mut caller: Caller<'_, HostState>, id: u32, resolution: u32) -> Result<i32> {
    let Some(clock) = clock(id) else { return Ok(errno::INVAL) };
    put(&mut caller, resolution, nanoseconds(clock_getres(clock)))?;
    Ok(errno::SUCCESS)
}

fn random(mut caller: Caller<'_, HostState>, at: u32, len: u32) -> Result<i32> {
    let bytes = range(memory(&mut caller)?.0, at, len)?;
    Ok(getrandom::fill(bytes).map_or(errno::IO, |()| errno::SUCCESS))
}

/// Writes pieces, each an address and a size, to one of the outputs.
fn write(mut caller: Caller<'_, HostState>, to: u32, pieces: u32, count: u32, written: u32) -> Result<i32> {
    let mut output: Box<dyn Write> = match to {
        1 => Box::new(std::io::stdout()),
        2 => Box::new(std::io::stderr()),
        _ => return Ok(errno::BADF),
    };
    let (memory, _) = memory(&mut caller)?;
    let mut total = 0u32;
    for piece in 0..count.min(MAX_PIECES) {
        let at = pieces.wrapping_add(piece * PIECE_BYTES);
        let (at, len) = (word(memory, at)?, word(memory, at.wrapping_add(4))?);
        if output.write_all(range(memory, at, len)?).is_err() {
            return Ok(errno::IO);
        }
        total = total.wrapping_add(len);
    }
    let _ = output.flush();
    put(&mut caller, written, total.to_le_bytes())?;
    Ok(errno::SUCCESS)
}

fn word(memory: &mut [u8], at: u32) -> Result<u32> {
    let bytes = range(memory, at, 4)?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}
