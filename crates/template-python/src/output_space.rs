//! Free space for results in the output of the current call: a result that a function creates there is not copied.
//!
//! Space is reserved from the output's end. The message of the reply grows from the beginning, and has to fit before
//! it.

use std::cell::Cell;
use std::ptr::NonNull;

use pyo3::prelude::*;
use sublet_proto::to_usize;
use sublet_python_buffers::BufferUse;
use sublet_runtime::frames::ALIGNMENT;
use sublet_runtime::worker::engine::CallOutput;

use crate::call_memory::lend;

/// Bytes that stay free for the message of a reply: its head and a pickle that describes arrays.
const FRONT_BYTES: u64 = 4096;

/// The output of a call, and its reserved part.
#[derive(Clone, Copy)]
pub(crate) struct OutputSpace {
    at: NonNull<u8>,
    capacity: u64,
    /// Offset of the reserved part, which reaches to the end of the output, in bytes.
    taken_from: u64,
}

thread_local! {
    /// The output of the call that this thread executes.
    static ROOM: Cell<Option<OutputSpace>> = const { Cell::new(None) };
}

impl OutputSpace {
    /// Begins a call: none of its output is reserved.
    pub(crate) fn open(output: &mut CallOutput<'_>) {
        debug_assert!(ROOM.get().is_none(), "a call begins within another call");
        let capacity = u64::from(output.capacity());
        ROOM.set(Some(OutputSpace { at: output.address(), capacity, taken_from: capacity }));
    }

    /// Ends the call, and returns its output and the reserved part.
    pub(crate) fn close() -> Option<OutputSpace> {
        ROOM.take()
    }

    /// Bytes at the beginning of the output that are not reserved.
    pub(crate) fn front_bytes(&self) -> u64 {
        self.taken_from
    }

    /// Returns the offset of these bytes in the output, if they are within its reserved part.
    pub(crate) fn offset_of(&self, at: NonNull<u8>, len_bytes: u64) -> Option<u64> {
        let offset = (at.as_ptr() as u64).checked_sub(self.at.as_ptr() as u64)?;
        let is_within = offset >= self.taken_from && offset.checked_add(len_bytes)? <= self.capacity;
        (is_within && len_bytes > 0).then_some(offset)
    }
}

/// Reserves `nbytes` bytes of the current call's output, and returns a memoryview of them. Returns `None` if they do
/// not fit, or outside of a call. A result in this memory is not copied unless the function also keeps it.
#[pyfunction]
pub(crate) fn output_space(py: Python<'_>, nbytes: u64) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(mut output_space) = ROOM.get() else { return Ok(None) };
    let from = output_space.taken_from.checked_sub(nbytes).map(|from| from & !(ALIGNMENT - 1));
    let Some(from) = from.filter(|&from| from >= FRONT_BYTES && nbytes > 0) else { return Ok(None) };
    debug_assert!(
        from + nbytes <= output_space.taken_from && output_space.taken_from <= output_space.capacity,
        "{nbytes} bytes at {from} of an output of {}, reserved from {}",
        output_space.capacity,
        output_space.taken_from
    );
    output_space.taken_from = from;
    ROOM.set(Some(output_space));
    // SAFETY: within the output, which stays mapped for as long as the process lives.
    unsafe { lend(py, output_space.at.add(to_usize(from)), nbytes, BufferUse::Writing) }
}
