//! Starts a lease's worker process: requests it from the agent, sends it the regions ([`regions`](super::regions)), and
//! connects its threads.
//!
//! Over a network each thread is connected before the process receives any other message, and used after all of them: a
//! request must not arrive before its reader, nor be sent under the keys of the previous process. Messages to the
//! process are relayed by its agent.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::packet::{PacketError, PacketSocket};
use sublet_fabric::sync::Ordering;
use sublet_proto::v1::{self, client_to_agent, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error, decode};

use super::link::{
    AgentAnswer, ColdStart, Control, Endings, FromWorker, WorkerSocket, error_of, lock, protocol,
};
use super::transport::{PartialConnections, RegionKeys, RemoteWorkers};
use super::{ClientLease, ENDED, IDLE, RUNNING};
use crate::wire::OWN_REGION;

/// Longest time that an agent which is known to run may take to start a worker, since the last step that it has reported. It
/// may first have to fetch the package from a manager that does not answer for a minute, to pull its image, or to build
/// its kernels.
const LONGEST_START: Duration = Duration::from_secs(120);
/// Longest time until a worker has mapped a region, or loaded its package, since the last step that it has reported. While it
/// imports modules it reports that again and again.
const WORKER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time until a worker's end is announced after it was detected otherwise.
const ANNOUNCEMENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a process on another machine which could not be connected has to end by itself.
const EXIT_GRACE: Duration = Duration::from_millis(100);

impl ClientLease {
    /// Starts the worker process unless it runs.
    #[cold]
    pub(crate) fn revive(&self) -> Result<(), Error> {
        let mut control = lock(&self.link.control);
        match self.status.load(Ordering::Acquire) {
            RUNNING => Ok(()),
            ENDED => Err(self.why_over()),
            _ => {
                while control.answers.try_recv().is_ok() {}
                let asked_ns = monotonic_ns();
                let asked = self.tell_agent(client_to_agent::Body::Start(v1::Start {}));
                self.start(&mut control, asked.map(|()| asked_ns))
            }
        }
    }

    /// Takes up the worker process that was asked for with the ticket, at this time.
    pub(super) fn await_start(&self, asked_ns: u64) -> Result<(), Error> {
        self.start(&mut lock(&self.link.control), Ok(asked_ns))
    }

    /// Starts a worker process like [`ClientLease::revive`], in the background, unless another thread does so already. If the
    /// start fails, the calls that wait for the process are lost.
    #[cold]
    pub(crate) fn revive_soon(self: &Arc<ClientLease>) {
        if self.link.reviving.swap(1, Ordering::AcqRel) != 0 {
            return;
        }
        let lease = self.clone();
        let start = move || {
            // A caller that waits for the process finds the reason with its call.
            let _ = lease.revive();
            lease.link.reviving.store(0, Ordering::Release);
        };
        if std::thread::Builder::new().name("sublet start".into()).spawn(start).is_err() {
            self.link.reviving.store(0, Ordering::Release);
        }
    }

    /// Times at which the running worker process reached each step of its start.
    pub(crate) fn cold_start(&self) -> ColdStart {
        lock(&self.link.control).cold_start
    }

    /// Modules that the running worker process has imported by itself, as its node cannot keep them warm.
    pub(crate) fn cold_imports(&self) -> Option<v1::ColdImports> {
        lock(&self.link.control).cold_imports.clone()
    }

    /// Isolation of the running worker process, by its name.
    pub(crate) fn isolation(&self) -> String {
        lock(&self.link.control).isolation.clone()
    }

    /// Connects the worker process that the agent was asked for at a time, or could not be. If that fails, the calls
    /// that wait for a process are lost.
    fn start(&self, control: &mut Control, asked_ns: Result<u64, Error>) -> Result<(), Error> {
        control.exits = lock(&self.link.ended).exits;
        control.worker = None;
        self.begin_steps();
        let begun = asked_ns.and_then(|asked_ns| self.start_process(control, asked_ns));
        self.end_steps();
        if let Err(error) = begun {
            // Without its control socket the process ends, if there is one. A later start must not mistake the
            // announcement of that for the end of its own process.
            let error = match control.worker.take() {
                Some(worker) => self.await_exit(worker, control.exits, error),
                None => {
                    // One that is started yet would be nobody's, and in the way of the next.
                    if matches!(error.code, Code::AgentUnreachable | Code::DeadlineExceeded) {
                        self.stop_worker("its client has waited for it long enough".to_owned());
                    }
                    error
                }
            };
            self.disconnect(&error.message);
            self.bury(self.tails(), error.clone());
            self.poke_all();
            return Err(error);
        }
        if !self.change(IDLE, RUNNING) {
            return Err(self.why_over());
        }
        // If the process ended before the status said that it runs, its end woke no waiting thread.
        if lock(&self.link.ended).exits != control.exits && self.change(RUNNING, IDLE) {
            if self.worker_transport.remote().is_some() {
                // Its connections were made too late to be ended with it, and the requests sent on them are lost.
                let error = self.why_lost(0, u64::MAX);
                self.disconnect(&error.message);
                self.bury(self.tails(), error);
            }
            self.poke_all();
        }
        if self.worker_transport.remote().is_some() {
            // A thread that waited for a connection now waits for data on it, and futures need the lease's thread to
            // receive the data.
            self.poke_all();
            self.link.ring();
        }
        Ok(())
    }

    /// Changes the status, unless it is another by now.
    pub(super) fn change(&self, from: u32, to: u32) -> bool {
        self.status.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn start_process(&self, control: &mut Control, asked_ns: u64) -> Result<(), Error> {
        let answer = self.hear_answer(control, "start a worker", LONGEST_START)?;
        let started = match (answer, self.worker_transport.remote()) {
            (AgentAnswer::Started(started, Some(socket)), None) => {
                control.worker = Some(WorkerSocket::Local(PacketSocket::from(socket)));
                started
            }
            (AgentAnswer::Started(started, _), Some(_)) => {
                control.worker = Some(WorkerSocket::Remote);
                started
            }
            (AgentAnswer::Started(_, None), None) => {
                return Err(protocol("a started worker without its socket"));
            }
            (AgentAnswer::Renewed, _) => return Err(protocol("the agent answered a start with a renewal")),
        };
        (control.regions, control.untold) = (BTreeSet::new(), None);
        let starts = self.start_positions();
        let (ready, heard_ns) = match self.worker_transport.remote() {
            None => {
                self.send_regions(control)?;
                (self.connect_worker(control, self.connection(&starts))?, monotonic_ns())
            }
            Some(remote) => self.connect_remote(control, remote, &starts)?,
        };
        let cold_start = ColdStart {
            asked_ns,
            requested_ns: started.requested_ns,
            package_ready_ns: started.package_ready_ns,
            spawned_ns: started.spawned_ns,
            entered_ns: ready.entered_ns,
            loaded_ns: ready.loaded_ns,
            ready_ns: ready.ready_ns,
        };
        control.cold_imports = started.cold_imports;
        control.isolation = started.isolation;
        let is_here = self.worker_transport.remote().is_none();
        control.cold_start = if is_here { cold_start } else { cold_start.seen_from_here(heard_ns) };
        Ok(())
    }

    /// Connects all threads of the process over a network, sends it the regions, and opens the connections for
    /// requests.
    fn connect_remote(
        &self,
        control: &mut Control,
        remote: &RemoteWorkers,
        starts: &[u64],
    ) -> Result<(v1::Ready, u64), Error> {
        let links = remote.link(&mut control.links)?;
        if remote.connects_last() {
            self.send_regions(control)?;
        }
        let RegionKeys { key, keys } = remote.expose(OWN_REGION)?;
        let contacts =
            if let PartialConnections::Contacts(contacts) = &links { contacts.clone() } else { Vec::new() };
        let connect = v1::Connect { results: key, results_keys: keys, contacts, ..self.connection(starts) };
        let mut ready = self.connect_worker(control, connect)?;
        let heard_ns = monotonic_ns();
        let inbox = RegionKeys { key: ready.inbox, keys: std::mem::take(&mut ready.inbox_keys) };
        if remote.connects_last() {
            remote.reach(OWN_REGION, inbox, self.inbox.len_bytes())?;
            remote.connect(links, &[])?;
        } else {
            remote.connect(links, &ready.contacts)?;
            remote.reach(OWN_REGION, inbox, self.inbox.len_bytes())?;
            self.send_regions(control)?;
        }
        remote.open(starts)?;
        Ok((ready, heard_ns))
    }

    fn start_positions(&self) -> Vec<u64> {
        self.workers.iter().map(|link| link.dead_before.load(Ordering::Acquire)).collect()
    }

    fn connection(&self, starts: &[u64]) -> v1::Connect {
        let results_bytes = self.results.len_bytes();
        v1::Connect { results_bytes, start_positions: starts.to_vec(), ..v1::Connect::default() }
    }

    fn connect_worker(&self, control: &Control, connect: v1::Connect) -> Result<v1::Ready, Error> {
        let fds = [self.results.fd(), self.link.bell.as_fd()];
        match self.ask_worker(control, client_to_worker::Body::Connect(connect), &fds)? {
            worker_to_client::Body::Ready(ready) => Ok(ready),
            other => Err(protocol(format!("the worker answered a connection with {other:?}"))),
        }
    }

    /// Asks the worker process something; within a node with descriptors.
    pub(super) fn ask_worker(
        &self,
        control: &Control,
        body: client_to_worker::Body,
        fds: &[BorrowedFd<'_>],
    ) -> Result<worker_to_client::Body, Error> {
        let bytes = v1::ClientToWorker { body: Some(body) }.encode_to_vec();
        let answer = match &control.worker {
            None => return Err(died("before it could be asked")),
            Some(WorkerSocket::Local(socket)) => self.ask_by_socket(socket, &bytes, fds)?,
            Some(WorkerSocket::Remote) => self.ask_by_agent(control, bytes, || Ok(()))?,
        };
        read_worker(&answer)
    }

    /// Asks a worker process within the node. It may tell steps before it answers.
    fn ask_by_socket(
        &self,
        worker: &PacketSocket,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Error> {
        // A worker that has failed reports the reason before it ends, so a failed send does not decide.
        let sent = worker.send(bytes, fds);
        let since = Instant::now();
        loop {
            let left = self.answer_due(since, WORKER_TIMEOUT).saturating_duration_since(Instant::now());
            match worker.receive(Some(left)) {
                Ok(Some(packet)) => match step_of(&packet.bytes) {
                    Some(step) => self.note_step(&step),
                    None => return Ok(packet.bytes),
                },
                Ok(None) => return Err(died("while it was being connected")),
                Err(error) => {
                    sent.map_err(|_| died("before it could be connected"))?;
                    self.check_limit()?;
                    return Err(no_answer(&error));
                }
            }
        }
    }

    /// Sends a worker process on another machine a request, and its agent further messages before the answer.
    pub(super) fn ask_worker_with(
        &self,
        control: &Control,
        body: client_to_worker::Body,
        more: impl FnOnce() -> Result<(), Error>,
    ) -> Result<worker_to_client::Body, Error> {
        let bytes = v1::ClientToWorker { body: Some(body) }.encode_to_vec();
        read_worker(&self.ask_by_agent(control, bytes, more)?)
    }

    fn ask_by_agent(
        &self,
        control: &Control,
        bytes: Vec<u8>,
        more: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        while control.said.try_recv().is_ok() {}
        // An end from now on is reported on that channel, after it was counted here.
        self.check_lives(control)?;
        self.tell_agent(client_to_agent::Body::ToWorker(bytes))?;
        more()?;
        self.hear_worker(control)
    }

    pub(super) fn check_lives(&self, control: &Control) -> Result<(), Error> {
        match lock(&self.link.ended).exits == control.exits {
            true => Ok(()),
            false => Err(died("before it could be asked")),
        }
    }

    /// Receives the worker process's next message, relayed by its agent.
    pub(super) fn hear_worker(&self, control: &Control) -> Result<Vec<u8>, Error> {
        let late = || {
            // Whether the worker is stopped or slow is not known here; it is not known to have ended.
            let seconds = WORKER_TIMEOUT.as_secs();
            let message = format!("the worker did not answer by its agent within {seconds} s");
            Error::new(Code::AgentUnreachable, message)
        };
        match self.wait_for_word(&control.said, WORKER_TIMEOUT, late)? {
            FromWorker::Said(answer) => Ok(answer),
            FromWorker::Ended => Err(died("while it was being connected")),
        }
    }

    /// Waits until the end of a process that did not start well has been announced; chooses the better reason.
    fn await_exit(&self, worker: WorkerSocket, exits: u64, error: Error) -> Error {
        let is_remote = matches!(worker, WorkerSocket::Remote);
        drop(worker);
        if is_remote && !self.has_exited(exits, EXIT_GRACE) {
            // It does not end with this side's descriptors.
            self.stop_worker(format!("the worker could not be connected: {}", error.message));
            self.has_exited(exits, ANNOUNCEMENT_TIMEOUT);
            return error;
        }
        self.has_exited(exits, ANNOUNCEMENT_TIMEOUT);
        // A connection that ended does not know why.
        let is_end = error.code == Code::WorkerDied || is_remote && error.code == Code::AgentUnreachable;
        if is_end { self.why_lost(0, u64::MAX) } else { error }
    }

    /// Waits for the end of one more process than these, or of the lease.
    fn has_exited(&self, exits: u64, timeout: Duration) -> bool {
        let endings = lock(&self.link.ended);
        let is_awaited = |endings: &mut Endings| endings.exits == exits && endings.lease.is_none();
        let waited = self.link.changed.wait_timeout_while(endings, timeout, is_awaited);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

impl ColdStart {
    /// Converts the steps on another machine to this one's clock, given the time at which the last one was reported.
    fn seen_from_here(self, heard_ns: u64) -> ColdStart {
        let there_ns = self.ready_ns.saturating_sub(self.requested_ns);
        let ways_ns = heard_ns.saturating_sub(self.asked_ns).saturating_sub(there_ns);
        let here = |ns: u64| (self.asked_ns + ways_ns / 2).wrapping_add(ns.wrapping_sub(self.requested_ns));
        ColdStart {
            asked_ns: self.asked_ns,
            requested_ns: here(self.requested_ns),
            package_ready_ns: here(self.package_ready_ns),
            spawned_ns: here(self.spawned_ns),
            entered_ns: here(self.entered_ns),
            loaded_ns: here(self.loaded_ns),
            ready_ns: here(self.ready_ns),
        }
    }
}

/// Decodes a worker process's answer.
pub(super) fn read_worker(answer: &[u8]) -> Result<worker_to_client::Body, Error> {
    match decode::<v1::WorkerToClient>("a worker's message", answer)?.body {
        Some(worker_to_client::Body::Failure(failure)) => Err(error_of(failure.code, failure.message)),
        Some(body) => Ok(body),
        None => Err(protocol("an empty message from the worker")),
    }
}

/// The step that a message of a worker process tells, if it is one.
fn step_of(message: &[u8]) -> Option<String> {
    match v1::WorkerToClient::decode(message).ok()?.body? {
        worker_to_client::Body::Progress(progress) => Some(progress.step),
        _ => None,
    }
}

fn died(when: &str) -> Error {
    Error::new(Code::WorkerDied, format!("the worker ended {when}"))
}

fn no_answer(error: &PacketError) -> Error {
    Error::new(Code::WorkerDied, format!("the worker did not answer: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_of_a_remote_start_lie_between_request_and_answer() {
        let there = |ns: u64| u64::MAX - 1000 + ns;
        let start = ColdStart {
            asked_ns: 5_000,
            requested_ns: there(0),
            package_ready_ns: there(100),
            spawned_ns: there(200),
            entered_ns: there(300),
            loaded_ns: there(400),
            ready_ns: there(600),
        };
        let here = start.seen_from_here(6_000);
        let steps = [here.asked_ns, here.requested_ns, here.package_ready_ns, here.spawned_ns, here.ready_ns];
        assert_eq!(steps, [5_000, 5_200, 5_300, 5_400, 5_800]);
    }
}
