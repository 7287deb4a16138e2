//! A lease's worker process: its stop, its end, and messages of a client on another node to it.

use sublet_proto::v1;
use sublet_proto::{Code, Error};
use tracing::info;

use super::relay::{RelayOutcome, WorkerRelay};
use super::{Event, Supervisor};
use crate::leases::end::EndReason;
use crate::listener::message::{self, ToClient};

impl Supervisor<'_> {
    /// Stops the worker, or gives up its start, on the client's request. If the worker has just died by itself, the
    /// client receives that reason, or has it already: a lost connection is often the first sign of a death.
    pub(super) fn stop(&mut self, reason: String) -> Result<Option<EndReason>, Error> {
        if self.give_up_start() {
            return self.tell(message::failure(&Error::new(Code::WorkerDied, reason)));
        }
        if let Some(worker) = &mut self.worker
            && worker.exit()?.is_some()
        {
            return self.worker_ended();
        }
        let Some(mut worker) = self.worker.take() else { return Ok(None) };
        if let Err(error) = worker.kill() {
            self.worker = Some(worker);
            return Err(error);
        }
        self.held.meter.settle()?;
        drop(worker);
        self.relay.iter_mut().for_each(|relay| drop(relay.end()));
        self.tell_exit(Code::WorkerDied, reason)
    }

    pub(super) fn worker_ended(&mut self) -> Result<Option<EndReason>, Error> {
        let Some(worker) = &mut self.worker else { return Ok(None) };
        let Some(exit) = worker.exit()? else { return Ok(None) };
        let how = worker.describe(exit, &self.held.meter.executing(), self.held.lease.memory_bytes);
        // The peak of its memory can be read only while its sandbox exists.
        self.held.meter.settle()?;
        self.worker = None;
        let (answers, last_words) = self.relay.as_mut().map(WorkerRelay::end).unwrap_or_default();
        let Error { code, message: reason } = last_words.unwrap_or(Error::new(Code::WorkerDied, how));
        info!(lease = self.held.lease.id, %reason, "worker ended");
        for answer in answers {
            if let Some(end) = self.tell(ToClient::FromWorker(answer))? {
                return Ok(Some(end));
            }
        }
        self.tell_exit(code, reason)
    }

    pub(super) fn ask_worker(&mut self, message: &[u8]) -> Result<Option<EndReason>, Error> {
        let Some(relay) = &mut self.relay else {
            let message = "a client on the node has its worker's own socket";
            return self.tell(message::failure(&Error::new(Code::Protocol, message)));
        };
        match relay.ask(message) {
            Ok(relayed) => self.relayed(relayed),
            Err(error) => self.handle(Event::Garbage(error)),
        }
    }

    pub(super) fn hear_worker(&mut self) -> Result<Option<EndReason>, Error> {
        let relayed = self.relay.as_mut().map_or(RelayOutcome::Nothing, WorkerRelay::hear);
        self.relayed(relayed)
    }

    fn relayed(&mut self, relayed: RelayOutcome) -> Result<Option<EndReason>, Error> {
        match relayed {
            RelayOutcome::Nothing => Ok(None),
            RelayOutcome::ToClient(said) => self.tell(ToClient::FromWorker(said)),
            RelayOutcome::Step(step) => self.tell(ToClient::Progress(v1::Progress { step })),
            RelayOutcome::Stop(why) => self.stop(format!("the worker was stopped: {why}")),
        }
    }
}
