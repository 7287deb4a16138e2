//! How this side waits: whoever waits takes what has arrived.

use std::time::{Duration, Instant};

use super::Endpoint;
use super::receiving::Received;
use super::stream::Until;
use crate::FabricError;
use crate::line::{Line, Turn, Watch};
use crate::sync::{Ordering, fence, lock};

/// Looks at memory that take about as long as one look at a stream.
const LOOKS_PER_TAKE: u32 = 256;
/// Looks at memory while another thread looks at the stream.
const LOOKS_MEANWHILE: u32 = 64;
/// How long the reader sleeps at most before it looks whether its wait is over for a reason of its own. Those who end a
/// wait [wake](Endpoint::poke) the reader; this is for a watch that is poked by somebody who knows of no endpoint.
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// What a waiter waits for.
struct Awaited<'line, G> {
    line: &'line Line,
    watch: &'line Watch,
    turn: Turn,
    deadline: Option<Instant>,
    give_up: G,
}

impl<G: FnMut() -> bool> Awaited<'_, G> {
    /// How long it may still sleep; none if the wait is over.
    fn left(&mut self, endpoint: &Endpoint) -> Option<Duration> {
        if self.line.is(self.turn) || !endpoint.link.is_up() || (self.give_up)() {
            return None;
        }
        let left = self.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
        (!left.is_zero()).then_some(left)
    }
}

impl Endpoint {
    /// See [`crate::Endpoint::spin`].
    #[inline]
    pub fn spin(&self, (line, _): (&Line, &Watch), turn: Turn, looks: u32) -> bool {
        if line.is(turn) {
            return true;
        }
        if self.is_unsent() {
            self.flush();
        }
        for _ in 0..looks.div_ceil(LOOKS_PER_TAKE) {
            match self.try_receiving() {
                None => {
                    line.spin(turn, LOOKS_MEANWHILE);
                }
                Some(mut receiving) => match self.take(&mut receiving) {
                    Received::Nothing => {}
                    Received::Something => {
                        drop(receiving);
                        self.after_taking();
                    }
                    Received::Down => return line.is(turn),
                },
            }
            if line.is(turn) {
                return true;
            }
        }
        false
    }

    /// See [`crate::Endpoint::progress`].
    pub fn progress(&self) -> Result<(), FabricError> {
        if self.link.is_up() {
            if let Some(receiving) = self.try_receiving() {
                self.take_turn(receiving);
            }
            if self.is_unsent() {
                self.flush();
            } else {
                self.link.want_room(false);
            }
        }
        if self.link.is_up() {
            return Ok(());
        }
        self.link.end_seen();
        Err(self.link.error())
    }

    /// See [`crate::Endpoint::wait`].
    pub fn wait(
        &self,
        (line, watch): (&Line, &Watch),
        turn: Turn,
        deadline: Option<Instant>,
        give_up: impl FnMut() -> bool,
    ) -> bool {
        let mut awaited = Awaited { line, watch, turn, deadline, give_up };
        while awaited.left(self).is_some() {
            match self.waiters.read() {
                Some(_reader) => self.read_until(&mut awaited),
                None => self.sleep_until(&mut awaited),
            }
        }
        line.is(turn)
    }

    /// See [`crate::Endpoint::poke`].
    pub fn poke(&self, watch: &Watch) {
        watch.poke();
        fence(Ordering::SeqCst);
        if self.waiters.has_reader() {
            self.link.wake();
        }
    }

    /// Reads for everybody until this wait is over.
    fn read_until(&self, awaited: &mut Awaited<'_, impl FnMut() -> bool>) {
        while let Some(left) = awaited.left(self) {
            let until =
                if !self.is_unsent() || self.flush() { Until::Readable } else { Until::ReadableOrWritable };
            let Some(stream) = lock(&self.receiving).stream.clone() else { return };
            let polled = stream.poll(until, self.link.woken_by(), Some(left.min(MAX_SLEEP)));
            if polled.woken {
                self.link.clear_wake();
            }
            if polled.readable {
                self.read(|| awaited.line.is(awaited.turn));
            } else if !polled.woken {
                self.end_if_stalled(&stream);
            }
        }
    }

    /// Takes what one look brings, and more while a payload is on its way that the reader must have.
    fn read(&self, done: impl Fn() -> bool) {
        let mut receiving = lock(&self.receiving);
        while self.take(&mut receiving) == Received::Something && receiving.inbox.is_amid_frame() && !done() {
        }
        drop(receiving);
        if !self.replies.is_empty() {
            self.flush();
        }
    }

    /// Sleeps on the line's own watch while another thread reads.
    fn sleep_until(&self, awaited: &mut Awaited<'_, impl FnMut() -> bool>) {
        let Awaited { line, watch, turn, deadline, give_up } = awaited;
        let _sleeper = self.waiters.sleep(watch);
        line.wait(watch, *turn, *deadline, || !self.waiters.has_reader() || !self.link.is_up() || give_up());
    }
}
