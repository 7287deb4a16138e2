//! The memory of a call while objects of its function use it, during the call and after it.
//!
//! Arrays among the arguments lie in the request where the client wrote them, and `sublet.empty` gives arrays in the call's output.
//! A function may keep any of them. So every object that uses such memory refers to the call's [`Exporter`]; if that is still
//! in use when the function has returned, the reply says so, and the client uses the memory for nothing else. A later reply tells the
//! client when the last object is gone. A call whose memory no object keeps costs one look at a reference count.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use pyo3::prelude::*;
use sublet_python_buffers::{BufferUse, Exporter};

/// Most tokens in one reply. The others are for the replies after it.
const MOST_FREED: usize = 256;

/// Tokens of calls whose memory is free, which the client does not know yet.
static FREED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
/// How many tokens there are: written with the lock held, read without it.
static FREED_COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The memory of the call that this thread executes.
    static CURRENT: RefCell<Option<CallMemory>> = const { RefCell::new(None) };
}

/// The memory of one call.
pub(crate) struct CallMemory {
    token: u64,
    /// The exporter, created with the first object that uses the memory.
    exporter: Option<Exporter>,
}

impl CallMemory {
    /// Begins a call on this thread.
    pub(crate) fn begin(token: u64) {
        debug_assert!(CURRENT.with_borrow(Option::is_none), "call {token} begins within another call");
        CURRENT.set(Some(CallMemory { token, exporter: None }));
    }

    /// Ends the call of this thread, and returns its memory.
    pub(crate) fn end() -> Option<CallMemory> {
        CURRENT.take()
    }

    /// Whether objects of the function got memory of the call.
    pub(crate) fn has_lent(&self) -> bool {
        self.exporter.is_some()
    }

    /// Whether an object that uses the memory still exists.
    pub(crate) fn is_in_use(&self, py: Python<'_>) -> bool {
        self.exporter.as_ref().is_some_and(|exporter| exporter.is_in_use(py))
    }

    /// Reports the memory as free to the client once no object refers to it.
    pub(crate) fn report_when_free(self, py: Python<'_>) {
        match self.exporter {
            Some(exporter) => exporter.notify_when_free(py, report, self.token),
            None => report(self.token),
        }
    }
}

/// Creates a memoryview of memory of the current call.
///
/// # Safety
/// The bytes belong to the call's request or output, or to memory that the client shares, and stay mapped for as long as the
/// process lives.
pub(crate) unsafe fn lend<'py>(
    py: Python<'py>,
    at: NonNull<u8>,
    len_bytes: u64,
    how: BufferUse,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let known = CURRENT.with_borrow(|lending| {
        lending.as_ref().map(|lending| lending.exporter.as_ref().map(|exporter| exporter.clone_ref(py)))
    });
    // No cell is borrowed meanwhile: an allocation may collect garbage, and that may call any function.
    let exporter = match known {
        None => return Ok(None),
        Some(Some(exporter)) => exporter,
        Some(None) => {
            let made = Exporter::new(py)?;
            CURRENT.with_borrow_mut(|lending| match lending {
                Some(lending) => lending.exporter.get_or_insert(made).clone_ref(py),
                None => made,
            })
        }
    };
    // SAFETY: as this function's.
    unsafe { exporter.memoryview(py, at, len_bytes, how).map(Some) }
}

/// Keeps a token for the next reply.
fn report(token: u64) {
    let mut freed = freed();
    freed.push(token);
    FREED_COUNT.store(freed.len(), Ordering::Relaxed);
}

/// Takes tokens of calls whose memory is free, as bytes for a reply.
pub(crate) fn take_freed() -> Option<Vec<u8>> {
    if FREED_COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut freed = freed();
    let left = freed.len().saturating_sub(MOST_FREED);
    let bytes = freed.drain(left..).flat_map(u64::to_le_bytes).collect();
    FREED_COUNT.store(freed.len(), Ordering::Relaxed);
    Some(bytes)
}

/// Takes back tokens that did not fit into a reply.
pub(crate) fn put_back(bytes: &[u8]) {
    debug_assert!(bytes.len().is_multiple_of(size_of::<u64>()), "{} bytes are no tokens", bytes.len());
    let mut freed = freed();
    freed.extend(bytes.chunks_exact(8).map(|token| {
        let mut word = [0; 8];
        word.copy_from_slice(token);
        u64::from_le_bytes(word)
    }));
    FREED_COUNT.store(freed.len(), Ordering::Relaxed);
}

fn freed() -> MutexGuard<'static, Vec<u64>> {
    let freed = FREED.lock().unwrap_or_else(PoisonError::into_inner);
    debug_assert_eq!(FREED_COUNT.load(Ordering::Relaxed), freed.len(), "tokens that are counted, and kept");
    freed
}

/// Returns a number that distinguishes this process from an earlier process of the same worker: the time of the first
/// call.
pub(crate) fn process() -> u64 {
    static BEGUN: OnceLock<u64> = OnceLock::new();
    *BEGUN.get_or_init(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since.map_or(1, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).max(1)
    })
}
