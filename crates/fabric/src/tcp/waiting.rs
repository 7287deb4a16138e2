//! Implements waiting: the waiting thread receives what has arrived.

use std::time::{Duration, Instant};

use super::TcpEndpoint;
use super::receiving::{MAX_TAKES, ReceiveOutcome};
use super::stream::Until;
use crate::FabricError;
use crate::line::{Line, Turn, Watch};
use crate::line_wait::LineWait;
use crate::sync::{Ordering, fence, lock};

/// Number of loads of memory that take about as long as one attempt to receive.
const LOOKS_PER_TAKE: u32 = 256;
/// Number of loads of memory while another thread receives.
const LOOKS_MEANWHILE: u32 = 64;
/// Longest sleep of the reader before it checks whether its wait is over for a reason of its own. A thread that ends a
/// wait [wakes](TcpEndpoint::poke) the reader; this limit is for a watch that is poked without the endpoint.
const MAX_SLEEP: Duration = Duration::from_millis(50);

impl TcpEndpoint {
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
                    ReceiveOutcome::Nothing => {}
                    ReceiveOutcome::Something => {
                        drop(receiving);
                        self.after_taking();
                    }
                    ReceiveOutcome::Down => return line.is(turn),
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
                self.link.want_space(false);
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
        let awaited = LineWait { line, watch, turn, deadline, give_up };
        self.waiters.wait(awaited, || self.link.is_up(), |awaited| self.read_until(awaited))
    }

    /// See [`crate::Endpoint::poke`].
    pub fn poke(&self, watch: &Watch) {
        watch.poke();
        fence(Ordering::SeqCst);
        if self.waiters.has_reader() {
            self.link.wake();
        }
    }

    /// Reads for all waiting threads until this wait is over.
    fn read_until(&self, awaited: &mut LineWait<'_, impl FnMut() -> bool>) {
        while let Some(left) = awaited.left(|| self.link.is_up()) {
            let until =
                if !self.is_unsent() || self.flush() { Until::Readable } else { Until::ReadableOrWritable };
            let Some(stream) = lock(&self.receiving).stream.clone() else { return };
            let polled = stream.poll(until, self.link.woken_by(), Some(left.min(MAX_SLEEP)));
            if polled.woken {
                self.link.clear_wake();
            }
            if polled.readable {
                self.read(|| awaited.is_here());
            } else if !polled.woken {
                self.end_if_stalled(&stream);
            }
        }
    }

    /// Processes the bytes of one system call, and of further ones while a payload is incomplete that the reader needs.
    /// The number of calls is bounded, since a peer that never stops sending must not keep the reader beyond its
    /// deadline.
    fn read(&self, done: impl Fn() -> bool) {
        let mut receiving = lock(&self.receiving);
        for _ in 0..MAX_TAKES {
            if self.take(&mut receiving) != ReceiveOutcome::Something
                || !receiving.inbox.is_amid_frame()
                || done()
            {
                break;
            }
        }
        drop(receiving);
        if !self.replies.is_empty() {
            self.flush();
        }
    }
}
