//! Defines the timeouts of requests to an agent, and through it to a worker process.
//!
//! Within a machine, a closed socket shows that an agent has ended, and nothing shows that it is stopped. Over a
//! network the agent gives a sign of life each [`PULSE`]. An agent from which nothing has come for [`SILENCE`] does not
//! run, even if its machine acknowledges data for it, and requests that wait for it fail. The lease continues: calls
//! need no agent, and the agent may run again.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::greeting::{PULSE, SILENCE};
use sublet_fabric::sync::Ordering;
use sublet_proto::{Code, Error};

use super::ClientLease;
use super::monitor::poll_until;

impl ClientLease {
    /// Waits for a message that the lease's thread passes on, at most for the timeout.
    pub(super) fn wait_for_word<T>(
        &self,
        from: &Receiver<T>,
        longest: Duration,
        late: impl FnOnce() -> Error,
    ) -> Result<T, Error> {
        let (since_ns, since) = (monotonic_ns(), Instant::now());
        let step = if self.link.agent.is_remote() { PULSE } else { longest };
        loop {
            // Each step that a start tells gives it more time.
            let left = self.answer_due(since, longest).saturating_duration_since(Instant::now());
            match from.recv_timeout(left.min(step)) {
                Ok(word) => return Ok(word),
                Err(RecvTimeoutError::Disconnected) => return Err(self.why_over()),
                Err(RecvTimeoutError::Timeout) if self.answer_due(since, longest) <= Instant::now() => {
                    self.check_limit()?;
                    return Err(late());
                }
                Err(RecvTimeoutError::Timeout) if self.is_silent(since_ns) => return Err(silent()),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Records that the agent has sent something.
    pub(super) fn has_heard(&self) {
        self.link.heard_ns.store(monotonic_ns(), Ordering::Relaxed);
    }

    /// Returns whether nothing has come from the agent for too long since `since_ns`. Unread data is a sign of life,
    /// too: this process may itself have been stopped.
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
