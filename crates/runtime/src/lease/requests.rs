//! Requests of a client to the agent of its lease, and to the lease's own thread.

use std::sync::PoisonError;
use std::task::Waker;
use std::time::{Duration, Instant};

use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::sync::Ordering;
use sublet_proto::v1::{self, client_to_agent};
use sublet_proto::{Code, Error};

use super::ClientLease;
use super::link::{AGENT_TIMEOUT, AgentAnswer, Asked, Control, Notice, lock, protocol};

/// Largest number of unanswered requests for a lease's usage.
const MAX_ASKED: usize = 4;

impl ClientLease {
    /// Has the waker called at that time.
    #[cold]
    pub(crate) fn wake_at(&self, at: Instant, waker: &Waker) {
        if self.link.alarms.set(at, waker) {
            // The lease's thread learns by its bell that it has to look at the clock.
            self.link.ring();
        }
    }

    /// Has all futures woken when this deadline passes. Futures that end before leave nothing behind, and the others
    /// come back with their own deadlines.
    #[cold]
    pub(crate) fn look_at_futures_at(&self, deadline: Instant) {
        let left = deadline.saturating_duration_since(Instant::now());
        let due_ns = monotonic_ns().saturating_add(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        if self.link.futures_due_ns.fetch_min(due_ns, Ordering::AcqRel) > due_ns {
            self.link.ring();
        }
    }

    /// Shows the agent a ticket of this lease with another end.
    pub(crate) fn renew(&self, grant: v1::LeaseGrant) -> Result<(), Error> {
        let renewed = grant.lease.ok_or_else(|| protocol("the renewal names no lease"))?;
        let control = lock(&self.link.control);
        while control.answers.try_recv().is_ok() {}
        self.tell_agent(client_to_agent::Body::Renew(v1::Renew { ticket: grant.ticket }))?;
        match self.hear_answer(&control, "renew the lease", AGENT_TIMEOUT)? {
            AgentAnswer::Renewed => {
                self.expires_unix_ms.store(renewed.expires_unix_ms, Ordering::Relaxed);
                Ok(())
            }
            AgentAnswer::Started(..) => Err(protocol("the agent answered a renewal with a worker")),
        }
    }

    /// Requests the lease's usage from the agent, without waiting. The cell is filled when the answer comes, if it
    /// comes.
    pub(crate) fn ask_usage(&self) -> Asked {
        let answer = Asked::default();
        let mut asked = lock(&self.link.asked);
        if asked.len() < MAX_ASKED && self.tell_agent(client_to_agent::Body::Measure(v1::Measure {})).is_ok()
        {
            asked.push_back(answer.clone());
        }
        answer
    }

    /// The announcement of the lease's end, if there was one.
    pub(crate) fn notice(&self) -> Option<Notice> {
        lock(&self.link.ended).notice.clone()
    }

    /// Reason why the lease is over.
    pub(crate) fn why_over(&self) -> Error {
        self.why_lost(0, u64::MAX)
    }

    /// Ends the worker process; its unfinished calls are lost for this reason.
    pub(crate) fn stop_worker(&self, reason: String) {
        // If the agent cannot be reached, it is gone, and the monitor reports that to all waiting threads.
        let _ = self.tell_agent(client_to_agent::Body::Stop(v1::Stop { reason }));
    }

    /// Gives the lease back. Calls that have not ended are lost. Returns the usage, or the reason why its agent cannot
    /// report it.
    pub(crate) fn end(&self) -> Result<v1::Usage, Error> {
        let told = self.give_back();
        self.await_end(told)
    }

    /// Notifies the agent that the lease is given back.
    pub(crate) fn give_back(&self) -> Result<(), Error> {
        self.tell_agent(client_to_agent::Body::Release(v1::Release {}))
    }

    /// Waits until the lease that was given back is over.
    pub(crate) fn await_end(&self, told: Result<(), Error>) -> Result<v1::Usage, Error> {
        let deadline = Instant::now() + AGENT_TIMEOUT;
        let mut endings = lock(&self.link.ended);
        loop {
            if let Some(usage) = &endings.lease {
                return usage.clone();
            }
            // An agent that cannot be reached may have ended the lease already, and its last message may be on its way.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                told?;
                return Err(Error::new(
                    Code::AgentUnreachable,
                    "the agent did not confirm the lease's end within 10 s",
                ));
            }
            let waited = self.link.changed.wait_timeout(endings, left);
            endings = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn hear_answer(
        &self,
        control: &Control,
        what: &str,
        longest: Duration,
    ) -> Result<AgentAnswer, Error> {
        let late = || {
            let message = format!("the agent did not {what} within {} s", longest.as_secs());
            Error::new(Code::AgentUnreachable, message)
        };
        self.wait_for_word(&control.answers, longest, late)?
    }

    pub(super) fn tell_agent(&self, body: client_to_agent::Body) -> Result<(), Error> {
        self.link.agent.tell(body)
    }
}
