//! Detects invalid values that a worker process has written, and stops such a process.
//!
//! A worker can write the memory that it shares with its client, by a wild pointer or by intent. The client therefore
//! checks every value on which it acts: a result has the number of a call that was sent, its output length is within
//! the call's, and its code exists; a waiting request is not written over. A process that breaks these rules is
//! stopped, since its further results are worthless, and its calls fail with `protocol`. The next submission starts
//! another process.
//!
//! Valid values may still be wrong: a worker can write a wrong result, or none. Deadlines bound the wait for a missing
//! one.

use std::fmt;
use std::sync::PoisonError;
use std::time::Duration;

use sublet_fabric::line::Turn;
use sublet_fabric::ring::{Occupant, Position};
use sublet_proto::{Code, Error};

use super::link::{Endings, lock};
use super::transport::WorkerTransport;
use super::{ClientLease, monitor};
use crate::wire::{CallOutcome, MAX_MESSAGE_BYTES, RECORDS};

/// Longest time until the end of a worker process that was asked to stop is announced.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nonsense {
    /// The result's line has a number that no call had, or lost the one that it had.
    Turn,
    /// A request that the worker has not answered was written over.
    Request,
    /// The result's status is no code.
    Status(u32),
    /// The result is longer than the output, or too long for it and fits.
    Output { len_bytes: u32, capacity_bytes: u32 },
    /// The error message is longer than its place.
    Message { len_bytes: u64 },
}

impl fmt::Display for Nonsense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Nonsense::Turn => f.write_str("it wrote a result that no call had asked for"),
            Nonsense::Request => f.write_str("it wrote over a request that it had not answered"),
            Nonsense::Status(status) => write!(f, "it answered with the unknown code {status}"),
            Nonsense::Output { len_bytes, capacity_bytes } => {
                write!(f, "it answered with {len_bytes} bytes for an output of {capacity_bytes}")
            }
            Nonsense::Message { len_bytes } => {
                write!(f, "it answered with a message of {len_bytes} bytes, at most {MAX_MESSAGE_BYTES}")
            }
        }
    }
}

impl CallOutcome {
    /// Whether a worker can have ended a call with such an output so.
    #[cold]
    pub(crate) fn check(&self, capacity_bytes: u32) -> Result<(), Nonsense> {
        let fits = self.output_len <= capacity_bytes;
        let has_message = match Code::from_number(self.status) {
            _ if self.status == 0 => false,
            code if code.number() != self.status => return Err(Nonsense::Status(self.status)),
            Code::FunctionFailed | Code::MemoryExceeded | Code::DeadlineExceeded => true,
            _ => false,
        };
        if fits == (self.status == Code::OutputTooLarge.number()) {
            return Err(Nonsense::Output { len_bytes: self.output_len, capacity_bytes });
        }
        if has_message && self.detail > MAX_MESSAGE_BYTES {
            return Err(Nonsense::Message { len_bytes: self.detail });
        }
        Ok(())
    }
}

impl ClientLease {
    /// Finds an invalid write that concerns a call which is neither answered nor lost.
    #[cold]
    pub(crate) fn nonsense(&self, worker: u32, position: u64, by: Occupant) -> Option<Nonsense> {
        let (line, records) = (self.result_line(worker, by.record), &self.workers[worker as usize].records);
        let uses = records.uses(by.record).saturating_sub(1);
        let found = if !by.turn.may_follow(line.turn(), uses) {
            Nonsense::Turn
        } else if !self.keeps_request(worker, position) {
            Nonsense::Request
        } else {
            return None;
        };
        // Another thread may have had the answer meanwhile, and its next call use the same lines.
        let is_over =
            line.is(by.turn) || records.latest_turn(by.record) != by.turn || self.lost(worker, position);
        (!is_over).then_some(found)
    }

    /// Finds an invalid write that concerns any of a worker's calls, with the ring position of the call.
    #[cold]
    pub(crate) fn find_nonsense(&self, worker: u32) -> Option<(u64, Nonsense)> {
        let mut found = None;
        self.workers[worker as usize].ring.each_sent(|position, by| {
            if found.is_none() {
                found = self.nonsense(worker, position, by).map(|nonsense| (position, nonsense));
            }
        });
        found
    }

    /// Returns whether a request that was sent is still in the worker's inbox. Over a network it cannot be checked:
    /// `true`.
    fn keeps_request(&self, worker: u32, position: u64) -> bool {
        let WorkerTransport::Local(endpoint) = &self.worker_transport else { return true };
        let position = Position::new(position, self.inbox.slots());
        endpoint.holds(self.inbox.line(worker, position.line), position.turn)
    }

    /// Has a worker process stopped for an invalid write, and waits until its calls are lost for that reason. Returns
    /// the calls' error; `None` if the process has ended by itself and the call continues with the next process.
    #[cold]
    pub(crate) fn distrust(&self, worker: u32, position: u64, nonsense: Nonsense) -> Option<Error> {
        let message = format!("the worker process was stopped: {nonsense}");
        let mut endings = lock(&self.link.ended);
        // Under the lock no process ends and no next one is asked for, which must not be stopped in its place.
        if self.lost(worker, position) {
            return Some(self.why_lost(worker, position));
        }
        let exits = endings.exits;
        let error = endings.distrusted.get_or_insert(Error::new(Code::Protocol, message)).clone();
        self.stop_worker(error.message.clone());
        if monitor::is_here() {
            return Some(error);
        }
        let lives = |endings: &mut Endings| endings.exits == exits && !self.lost(worker, position);
        let waited = self.link.changed.wait_timeout_while(endings, STOP_TIMEOUT, lives);
        let has_ended = waited.unwrap_or_else(PoisonError::into_inner).0.exits != exits;
        (!has_ended || self.lost(worker, position)).then_some(error)
    }

    /// Clears result lines with values that no call had asked for. Their writer has ended, and the next process must
    /// not be taken for it.
    #[cold]
    pub(super) fn clear_nonsense(&self) {
        for (worker, link) in (0..).zip(&self.workers) {
            for record in (0..).take(RECORDS as usize) {
                let (line, uses) = (self.result_line(worker, record), link.records.uses(record));
                let is_fine = match uses.checked_sub(1) {
                    Some(before) => Turn::of_use(before).may_follow(line.turn(), before),
                    None => line.turn() == Turn::from_bits(0),
                };
                if !is_fine {
                    line.clear();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: u32, output_len: u32, detail: u64) -> CallOutcome {
        CallOutcome { status, output_len, detail }
    }

    #[test]
    fn takes_what_a_worker_can_answer() {
        for (status, output_len, detail) in [
            (0, 0, 0),
            (0, 8, u64::MAX),
            (Code::FunctionFailed.number(), 8, 256),
            (Code::OutputTooLarge.number(), 9, 0),
        ] {
            assert_eq!(outcome(status, output_len, detail).check(8), Ok(()));
        }
    }

    #[test]
    fn names_what_no_worker_answers() {
        let output = |len_bytes| Nonsense::Output { len_bytes, capacity_bytes: 8 };
        let failed = Code::FunctionFailed.number();
        for (answer, expected) in [
            (outcome(0, 9, 0), output(9)),
            (outcome(failed, u32::MAX, 0), output(u32::MAX)),
            (outcome(Code::OutputTooLarge.number(), 8, 0), output(8)),
            (outcome(failed, 0, 257), Nonsense::Message { len_bytes: 257 }),
            (outcome(9, 0, 0), Nonsense::Status(9)),
            (outcome(u32::MAX, 0, 0), Nonsense::Status(u32::MAX)),
        ] {
            assert_eq!(answer.check(8), Err(expected));
        }
    }
}
