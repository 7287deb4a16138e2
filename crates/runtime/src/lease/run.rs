//! Sends a lease's worker process the run for which it executes a component, and receives its questions.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, sync_channel};

use sublet_fabric::sync::Ordering;
use sublet_proto::v1::{self, client_to_agent, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error};

use super::link::{lock, protocol};
use super::{ClientLease, RUNNING};

/// Largest number of unread questions of a worker process on another machine. It asks one after the other.
const QUESTIONS: usize = 4;

/// Access to the run's memory that a worker process gets with a run.
pub(crate) enum RunMemoryAccess<'a> {
    /// No access: the component uses no memory.
    Nothing,
    /// The socket on which the process sends its questions.
    Here(BorrowedFd<'a>),
    /// Encoded answers that the process's agent passes on without a question. Its questions come through the agent,
    /// too.
    Relayed(Vec<Vec<u8>>),
}

impl ClientLease {
    /// Whether its worker processes are reached over a network.
    pub(crate) fn is_remote(&self) -> bool {
        self.worker_transport.remote().is_some()
    }

    /// Sends the run to the running process. Returns the number of processes of the lease that had ended before that
    /// one.
    ///
    /// # Errors
    /// `worker_died` if no process runs.
    pub(crate) fn tell_run(&self, run: v1::Run, told: RunMemoryAccess<'_>) -> Result<u64, Error> {
        let control = lock(&self.link.control);
        if self.status.load(Ordering::Acquire) != RUNNING {
            return Err(Error::new(Code::WorkerDied, "the worker ended before its run was sent to it"));
        }
        let number = run.number;
        let run = client_to_worker::Body::Run(run);
        let answer = match told {
            RunMemoryAccess::Nothing => self.ask_worker(&control, run, &[])?,
            RunMemoryAccess::Here(socket) => self.ask_worker(&control, run, &[socket])?,
            RunMemoryAccess::Relayed(answers) => self.ask_worker_with(&control, run, || {
                answers.into_iter().try_for_each(|answer| self.answer_memory(number, answer))
            })?,
        };
        match answer {
            worker_to_client::Body::RunTaken(_) => Ok(control.exits),
            other => Err(protocol(format!("the worker answered a run with {other:?}"))),
        }
    }

    /// Begins a run whose questions about memory are received here. Returns its number.
    pub(crate) fn hear_questions(&self) -> (u32, Receiver<Vec<u8>>) {
        let (ask, heard) = sync_channel(QUESTIONS);
        let mut questions = lock(&self.link.questions);
        questions.run += 1;
        questions.ask = Some(ask);
        (questions.run, heard)
    }

    /// Stops answering questions of this run.
    pub(crate) fn hear_no_questions(&self, run: u32) {
        let mut questions = lock(&self.link.questions);
        if questions.run == run {
            questions.ask = None;
        }
    }

    /// Answers a question of this run.
    pub(crate) fn answer_memory(&self, run: u32, message: Vec<u8>) -> Result<(), Error> {
        self.tell_agent(client_to_agent::Body::Memory(v1::RunMessage { run, message }))
    }

    /// Passes on a question of the worker process, which its agent relays. Questions beyond the limit are dropped.
    pub(super) fn pass_question(&self, question: v1::RunMessage) {
        let questions = lock(&self.link.questions);
        if let Some(ask) = questions.ask.as_ref().filter(|_| questions.run == question.run) {
            let _ = ask.try_send(question.message);
        }
    }

    /// Number of the lease's worker processes that have ended.
    pub(crate) fn exits(&self) -> u64 {
        lock(&self.link.ended).exits
    }
}
