//! Implements waiting: one waiting thread processes arrivals for all.

use std::os::fd::BorrowedFd;
use std::sync::TryLockError;
use std::time::{Duration, Instant};

use super::OfiEndpoint;
use super::live::Live;
use crate::FabricError;
use crate::line::{Line, Turn, Watch};
use crate::line_wait::LineWait;
use crate::sync::Ordering;

/// Interval in which a sleeping reader checks whether it should give up, in case only its watch is woken.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Number of loads of memory that take about as long as a poll of the network.
const LOOKS_PER_POLL: u32 = 128;

impl OfiEndpoint {
    /// See [`crate::Endpoint::spin`].
    #[inline]
    pub fn spin(&self, (line, _): (&Line, &Watch), turn: Turn, looks: u32) -> bool {
        if self.up.load(Ordering::Relaxed) == 0 {
            return line.spin(turn, looks);
        }
        for _ in 0..looks.div_ceil(LOOKS_PER_POLL) {
            if line.is(turn) {
                return true;
            }
            match self.state.try_lock() {
                // An error ends the connection, which the caller learns from its next operation.
                Ok(mut state) => drop(self.look(&mut state, false)),
                Err(TryLockError::WouldBlock) => return line.spin(turn, looks),
                Err(TryLockError::Poisoned(_)) => return false,
            }
        }
        line.is(turn)
    }

    /// See [`crate::Endpoint::progress`]. Puts that wait for a line are sent without it.
    pub fn progress(&self) -> Result<(), FabricError> {
        self.sleep.take_pokes();
        let has_puts = {
            let mut state = self.lock();
            self.look(&mut state, true)?;
            state.live()?.has_puts
        };
        if has_puts { self.flush() } else { Ok(()) }
    }

    /// See [`crate::Endpoint::wait`].
    pub fn wait(
        &self,
        (line, watch): (&Line, &Watch),
        turn: Turn,
        deadline: Option<Instant>,
        give_up: impl FnMut() -> bool,
    ) -> bool {
        // Puts take effect, whichever thread reads. A missing connection ends the wait below.
        let _ = self.progress();
        let awaited = LineWait { line, watch, turn, deadline, give_up };
        self.waiters.wait(awaited, || !self.is_down(), |awaited| self.read_until(awaited))
    }

    /// See [`crate::Endpoint::poke`].
    pub fn poke(&self, watch: &Watch) {
        watch.poke();
        self.sleep.notify();
    }

    /// A descriptor that is readable when something has arrived, for polling beside other descriptors. Request it
    /// before each poll: earlier arrivals make it readable.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        let mut state = self.lock();
        let can_sleep = match &mut state.live {
            Ok(live) => live.has_descriptor() && self.watch(live) && live.may_sleep(),
            Err(_) => false,
        };
        if !can_sleep {
            self.sleep.poke();
        }
        self.sleep.readable()
    }

    fn watch(&self, live: &mut Live) -> bool {
        let is_watched = live.is_watched || self.sleep.watch(live.descriptors()).is_ok();
        live.is_watched = is_watched;
        is_watched
    }

    /// Reads as the one reading thread: processes arrivals for all, and sleeps in between.
    fn read_until(&self, awaited: &mut LineWait<'_, impl FnMut() -> bool>) {
        loop {
            // An error ends the connection, and with it the wait.
            let _ = self.look(&mut self.lock(), true);
            self.sleep.fall_asleep();
            let Some(left) = awaited.left(|| !self.is_down()) else { return self.sleep.awake() };
            if let Some(fds) = self.descriptors_to_sleep_on() {
                self.sleep.sleep(fds, left.min(LOOK_AGAIN));
            }
            self.sleep.awake();
            // Only before a check: a poke may announce something to process.
            self.sleep.take_pokes();
        }
    }

    /// The descriptors that report arrivals, if nothing has arrived yet.
    fn descriptors_to_sleep_on(&self) -> Option<[i32; 2]> {
        let mut state = self.lock();
        let live = state.live.as_mut().ok()?;
        live.may_sleep().then(|| live.descriptors())
    }
}
