//! Implements executors and chains of the C interface, by their numbers.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

use super::{bytes, check_place, deadline, give, guarded, put, text};
use crate::wire::DESCRIPTORS;
use crate::{Chain, Executor, process};

/// Executors or chains that a process has started, by the numbers of the descriptors of their answers.
struct StartedTable<T> {
    what: &'static str,
    all: [Mutex<Option<T>>; DESCRIPTORS as usize],
}

static EXECUTORS: StartedTable<Executor> = StartedTable::new("executor");
static CHAINS: StartedTable<Chain> = StartedTable::new("chain");

impl<T> StartedTable<T> {
    const fn new(what: &'static str) -> StartedTable<T> {
        StartedTable { what, all: [const { Mutex::new(None) }; DESCRIPTORS as usize] }
    }

    fn at(&self, number: u32) -> Result<MutexGuard<'_, Option<T>>, Error> {
        let found = self.all.get(number as usize).ok_or_else(|| self.not_started(number))?;
        Ok(lock(found))
    }

    /// # Safety
    /// A place for a number, or null.
    unsafe fn keep(&self, number: u32, started: T, place: *mut u32) -> Result<(), Error> {
        *self.at(number)? = Some(started);
        // SAFETY: as the caller vouches.
        unsafe { put(place, number) }
    }

    fn with<R>(&self, number: u32, body: impl FnOnce(&mut T) -> Result<R, Error>) -> Result<R, Error> {
        body(self.at(number)?.as_mut().ok_or_else(|| self.not_started(number))?)
    }

    fn stop(&self, number: u32) -> u32 {
        guarded(|| self.at(number)?.take().map(drop).ok_or_else(|| self.not_started(number)))
    }

    #[cold]
    fn not_started(&self, number: u32) -> Error {
        Error::new(Code::InvalidArgument, format!("{} {number} is not started", self.what))
    }
}

/// # Safety
/// A place for a number.
pub unsafe fn executor_start(unit: u32, max_bytes: u64, timeout_ms: u64, executor: *mut u32) -> u32 {
    // SAFETY: a text that ends here, and the rest as the caller vouches.
    unsafe { executor_start_of(c"".as_ptr(), unit, max_bytes, timeout_ms, executor) }
}

/// # Safety
/// A text or null, and a place for a number.
pub unsafe fn executor_start_of(
    package: *const c_char,
    unit: u32,
    max_bytes: u64,
    timeout_ms: u64,
    executor: *mut u32,
) -> u32 {
    guarded(|| {
        check_place(executor)?;
        // SAFETY: as the caller vouches.
        let package = unsafe { text(package)? };
        let started = process()?.executor_of(package, unit, max_bytes, deadline(timeout_ms))?;
        // SAFETY: as the caller vouches.
        unsafe { EXECUTORS.keep(started.descriptor(), started, executor) }
    })
}

/// # Safety
/// A place for a number.
pub unsafe fn executor_process(executor: u32, pid: *mut u64) -> u32 {
    // SAFETY: as the caller vouches.
    guarded(|| EXECUTORS.with(executor, |executor| unsafe { put(pid, executor.pid().to_bits()) }))
}

/// # Safety
/// `function` is a string that ends with 0. `size` bytes of `input` may be read, and `capacity` bytes of `output`
/// written. `written` is the address of a number, or null.
#[expect(clippy::too_many_arguments, reason = "it is how the header declares it")]
pub unsafe fn executor_call(
    executor: u32,
    function: *const c_char,
    input: *const c_void,
    size: u64,
    output: *mut c_void,
    capacity: u64,
    timeout_ms: u64,
    written: *mut u64,
) -> u32 {
    guarded(|| {
        // SAFETY: as the caller vouches.
        let (function, input) = unsafe { (text(function)?, bytes(input, size)?) };
        EXECUTORS.with(executor, |executor| {
            let answer = executor.call(function, input, deadline(timeout_ms))?;
            // SAFETY: as the caller vouches.
            unsafe { give(answer, (output, capacity), written) }
        })
    })
}

/// # Safety
/// `function` is a string that ends with 0. `size` bytes of `input` may be read.
pub unsafe fn executor_submit(
    executor: u32,
    function: *const c_char,
    input: *const c_void,
    size: u64,
    timeout_ms: u64,
) -> u32 {
    guarded(|| {
        // SAFETY: as the caller vouches.
        let (function, input) = unsafe { (text(function)?, bytes(input, size)?) };
        EXECUTORS.with(executor, |executor| executor.submit(function, input, deadline(timeout_ms)))
    })
}

/// # Safety
/// `capacity` bytes of `output` may be written. `written` is the address of a number, or null.
pub unsafe fn executor_result(
    executor: u32,
    output: *mut c_void,
    capacity: u64,
    timeout_ms: u64,
    written: *mut u64,
) -> u32 {
    guarded(|| {
        EXECUTORS.with(executor, |executor| {
            let answer = executor.result(deadline(timeout_ms))?;
            // SAFETY: as the caller vouches.
            unsafe { give(answer, (output, capacity), written) }
        })
    })
}

/// # Safety
/// None.
pub unsafe fn executor_stop(executor: u32) -> u32 {
    EXECUTORS.stop(executor)
}

/// # Safety
/// `size` bytes of `graph` may be read. `chain` is the address of a number.
pub unsafe fn chain_start(
    graph: *const c_char,
    size: u64,
    max_bytes: u64,
    timeout_ms: u64,
    chain: *mut u32,
) -> u32 {
    guarded(|| {
        check_place(chain)?;
        // SAFETY: as the caller vouches.
        let document = unsafe { bytes(graph.cast(), size)? };
        let until: Option<Instant> = deadline(timeout_ms);
        let started = process()?.chain(&document.to_vec(), max_bytes, until)?;
        // SAFETY: as the caller vouches.
        unsafe { CHAINS.keep(started.descriptor(), started, chain) }
    })
}

/// # Safety
/// `size` bytes of `input` may be read, and `capacity` bytes of `output` written. `written` is the address of a number,
/// or null.
pub unsafe fn chain_call(
    chain: u32,
    input: *const c_void,
    size: u64,
    output: *mut c_void,
    capacity: u64,
    timeout_ms: u64,
    written: *mut u64,
) -> u32 {
    guarded(|| {
        // SAFETY: as the caller vouches.
        let input = unsafe { bytes(input, size)? };
        CHAINS.with(chain, |chain| {
            let answer = chain.call(input, deadline(timeout_ms))?;
            // SAFETY: as the caller vouches.
            unsafe { give(answer, (output, capacity), written) }
        })
    })
}

/// # Safety
/// None.
pub unsafe fn chain_stop(chain: u32) -> u32 {
    CHAINS.stop(chain)
}
