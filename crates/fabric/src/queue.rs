//! Words that one side writes and the other reads: lines, rings of lines, core slots, and how their readers poll or
//! sleep.

pub mod bell;
pub mod line;
pub(crate) mod line_wait;
pub mod ring;
pub mod slot;
pub(crate) mod waiters;
