//! Defines the timeouts of requests to an agent, and through it to a worker process.
//!
//! Within a machine an agent that has gone is known by its closed socket, and of one that says nothing no more is known.
//! Over a network it gives a sign of life each [`PULSE`]. One of which nothing has come for [`SILENCE`] does not run,
//! though its machine answers for it, and whoever waits for it is told so. The lease goes on: calls need no agent, and
//! it may run again.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::greeting::{PULSE, SILENCE};
use sublet_fabric::sync::Ordering;
use sublet_proto::{Code, Error};

use super::Lease;
use super::monitor::poll_until;

impl Lease {
    /// Waits for something that the lease's thread passes on, at most so long.
    pub(super) fn wait_for_word<T>(
        &self,
        from: &Receiver<T>,
        longest: Duration,
        late: impl FnOnce() -> Error,
    ) -> Result<T, Error> {
        let (since_ns, until) = (monotonic_ns(), Instant::now() + longest);
        let step = if self.link.agent.is_remote() { PULSE } else { longest };
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match from.recv_timeout(left.min(step)) {
                Ok(word) => return Ok(word),
                Err(RecvTimeoutError::Disconnected) => return Err(self.why_over()),
                Err(RecvTimeoutError::Timeout) if left <= step => return Err(late()),
                Err(RecvTimeoutError::Timeout) if self.is_silent(since_ns) => return Err(silent()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Notes that the agent has said something.
    pub(super) fn has_heard(&self) {
        self.link.heard_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// Whether nothing at all has come for too long since then. What lies unread is a sign of life, too: this process may
    /// itself have stood still.
    fn is_silent(&self, since_ns: u64) -> bool {
        let heard_ns = self.link.heard_ns.load(Ordering::Relaxed).max(since_ns);
        let silence = Duration::from_nanos(monotonic_ns().saturating_sub(heard_ns));
        silence >= SILENCE && !poll_until(&[self.link.agent.as_fd()], Some(Instant::now()))[0]
    }
}

fn silent() -> Error {
    let message = format!("the lease's agent has given no sign of life for {} ms", SILENCE.as_millis());
    Error::new(Code::AgentUnreachable, message)
}
