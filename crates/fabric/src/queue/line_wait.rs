//! Describes what a thread waits for at an endpoint that it may share: a line's turn, a deadline, or a reason to
//! give up.

use std::time::{Duration, Instant};

use crate::line::{Line, Turn, Watch};

/// See the [module](self).
pub(crate) struct LineWait<'line, G> {
    pub(crate) line: &'line Line,
    pub(crate) watch: &'line Watch,
    pub(crate) turn: Turn,
    pub(crate) deadline: Option<Instant>,
    pub(crate) give_up: G,
}

impl<G: FnMut() -> bool> LineWait<'_, G> {
    /// Whether the turn has been published.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.line.is(self.turn)
    }

    /// Time that the wait may still sleep. `None` if the wait is over.
    pub(crate) fn left(&mut self, is_up: impl FnOnce() -> bool) -> Option<Duration> {
        if self.is_here() || !is_up() || (self.give_up)() {
            return None;
        }
        let left = self.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        (!left.is_zero()).then_some(left)
    }
}
