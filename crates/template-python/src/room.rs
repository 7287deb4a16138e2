//! Room for results in the output of the call that is being executed: what a function makes there need not be copied.
//!
//! It is taken from the output's end. The message of the reply grows from the beginning, and has to fit before it.

use std::cell::Cell;
use std::ptr::NonNull;

use pyo3::prelude::*;
use sublet_python_buffers::Use;
use sublet_runtime::frames::ALIGNMENT;
use sublet_runtime::worker::engine::Output;

use crate::lending::lend;

/// What is left for the message of a reply, in bytes: its head and a pickle that describes arrays.
const FRONT_BYTES: u64 = 4096;

/// An output, and how much of it was taken.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    at: NonNull<u8>,
    capacity: u64,
    /// From here on it is taken.
    taken_from: u64,
}

thread_local! {
    /// Of the call that this thread executes.
    static ROOM: Cell<Option<Room>> = const { Cell::new(None) };
}

impl Room {
    /// A call begins.
    pub(crate) fn open(output: &mut Output<'_>) {
        let capacity = u64::from(output.capacity());
        ROOM.set(Some(Room { at: output.address(), capacity, taken_from: capacity }));
    }

    /// It has ended: what was taken.
    pub(crate) fn close() -> Option<Room> {
        ROOM.take()
    }

    /// How many bytes at the beginning are free.
    pub(crate) fn front_bytes(&self) -> u64 {
        self.taken_from
    }

    /// Where these bytes stand in the output, if they are in what was taken of it.
    pub(crate) fn offset_of(&self, at: NonNull<u8>, len_bytes: u64) -> Option<u64> {
        let offset = (at.as_ptr() as u64).checked_sub(self.at.as_ptr() as u64)?;
        let is_within = offset >= self.taken_from && offset.checked_add(len_bytes)? <= self.capacity;
        (is_within && len_bytes > 0).then_some(offset)
    }
}

/// A memoryview of the caller's own memory, of `nbytes` bytes, or nothing if there is no room or no call. What the function returns
/// of it is not copied, unless the function keeps it, too.
#[pyfunction]
pub(crate) fn room(py: Python<'_>, nbytes: u64) -> PyResult<Option<Bound<'_, PyAny>>> {
    let Some(mut room) = ROOM.get() else { return Ok(None) };
    let from = room.taken_from.checked_sub(nbytes).map(|from| from & !(ALIGNMENT - 1));
    let Some(from) = from.filter(|&from| from >= FRONT_BYTES && nbytes > 0) else { return Ok(None) };
    room.taken_from = from;
    ROOM.set(Some(room));
    // SAFETY: within the output, which stays mapped for as long as the process lives.
    unsafe { lend(py, room.at.add(from as usize), nbytes, Use::Writing) }
}
