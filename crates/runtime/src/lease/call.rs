//! A call before it is sent, and a call on its way.

use std::ptr::NonNull;
use std::time::Instant;

use sublet_fabric::SharedBytes;
use sublet_fabric::line::Turn;
use sublet_fabric::ring::Occupant;

use crate::arena::ArenaBlock;

/// A call's function, input and output. The caller keeps the memory until the call has ended.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) function: u16,
    /// Among those of all leases of the invoker.
    pub(crate) worker: Option<u32>,
    pub(crate) input: *const u8,
    pub(crate) input_len: u32,
    pub(crate) output: *mut u8,
    pub(crate) output_capacity: u32,
    pub(crate) timed: bool,
    /// Number of times that it may be repeated after it was lost.
    pub(crate) retries: u32,
    /// Time by which the call must have ended.
    pub(crate) deadline: Option<Instant>,
}

/// A call on its way.
pub(crate) struct SentCall {
    pub(crate) worker: u32,
    pub(crate) record: u16,
    pub(crate) position: u64,
    pub(crate) turn: Turn,
    /// Buffer for the output if the caller's memory is not in the arena.
    pub(crate) staging: Option<ArenaBlock>,
}

impl SentCall {
    /// The record and turn for which its slot in the ring was claimed.
    pub(crate) fn occupant(&self) -> Occupant {
        Occupant { record: self.record, turn: self.turn }
    }
}

impl Call {
    /// Whether its deadline has passed.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|at| at <= Instant::now())
    }

    /// The caller's input, which the caller's other threads may write: it may be an object of an interpreter.
    #[inline(always)]
    pub(super) fn input(&self) -> SharedBytes<'_> {
        let start = NonNull::new(self.input.cast_mut()).unwrap_or(NonNull::dangling());
        // SAFETY: the caller of `submit_raw` vouches for `input_len` readable bytes at `input` until the call has
        // ended.
        unsafe { SharedBytes::new(start, self.input_len as usize) }
    }
}
