//! Sends a call: the path of every call, and nothing else.
//!
//! [`ClientLease::dispatch`] takes a record and a ring position, both lock-free, and publishes one line. It waits only while
//! the ring is full, or while a worker process is started.

use std::time::Duration;

use sublet_fabric::ring::{Occupant, Position};
use sublet_fabric::shm;
use sublet_fabric::sync::Ordering;
use sublet_fabric::window::RegionAddress;
use sublet_proto::{Code, Error};

use super::records::RecordClaim;
use super::transport::{RemoteWorkers, WorkerTransport};
use super::worker_connection::{InputBytes, RequestInput, RingRequest};
use super::{Call, ClientLease, RUNNING, SentCall};
use crate::arena::ArenaBlock;
use crate::wire::{Immediate, OWN_REGION, WireRequest};

/// Number of times that a submission spins on a full ring before it sleeps between checks.
const FULL_RING_SPINS: u32 = 2_000;
const FULL_RING_NAP: Duration = Duration::from_micros(50);
/// Number of workers that a submission considers if it may use any of them.
pub(crate) const LOOKS: u32 = 4;

/// Addresses of a call's memory.
struct CallRegions {
    /// Address in the arena; otherwise the input travels in the slot.
    input: Option<RegionAddress>,
    output: RegionAddress,
    staging: Option<ArenaBlock>,
}

impl ClientLease {
    /// Sends a call of an invoker that has this lease alone, to the worker that it names or one that looks idle.
    #[inline(always)]
    pub(crate) fn dispatch(&self, call: &Call) -> Result<SentCall, Error> {
        let worker = self.choose(call.worker)?;
        self.dispatch_to(worker, call)
    }

    /// Sends a call to a worker of this lease. Neither locks, allocates nor enters the kernel if the worker runs hot,
    /// its ring has a free slot, and the memory is the arena's.
    #[inline(always)]
    pub(crate) fn dispatch_to(&self, worker: u32, call: &Call) -> Result<SentCall, Error> {
        if self.status.load(Ordering::Acquire) != RUNNING {
            self.revive()?;
        }
        let Some(claim) = self.workers[worker as usize].records.claim() else {
            return Err(self.too_many(worker));
        };
        let sent = self.send(worker, claim, call);
        if sent.is_err() {
            self.workers[worker as usize].records.release(claim.record);
        }
        sent
    }

    /// Sends a call that was sent elsewhere before, without waiting. Returns `false` if the worker has no free slot.
    /// The call keeps its memory: the buffer that stands in for its output moves with it. Without a worker process, the
    /// call waits for the next one.
    #[cold]
    pub(crate) fn take_over(&self, worker: u32, call: &Call, sent: &mut SentCall) -> Result<bool, Error> {
        let memory = self.memory(call, sent.staging)?;
        self.take_arrived(worker);
        let Some(claim) = self.workers[worker as usize].records.claim() else { return Ok(false) };
        let occupant = Occupant { record: claim.record, turn: claim.turn() };
        let Some(position) = self.try_claim(worker, occupant) else {
            self.workers[worker as usize].records.release(claim.record);
            return Ok(false);
        };
        self.publish(call, &memory, worker, (claim, position))?;
        *sent = SentCall {
            worker,
            record: claim.record,
            position: position.count,
            turn: claim.turn(),
            staging: sent.staging,
        };
        Ok(true)
    }

    #[inline(always)]
    fn send(&self, worker: u32, claim: RecordClaim, call: &Call) -> Result<SentCall, Error> {
        let memory = self.memory(call, None)?;
        let occupant = Occupant { record: claim.record, turn: claim.turn() };
        let position = match self.claim_position(worker, occupant, call) {
            Ok(position) => position,
            Err(error) => {
                memory.staging.into_iter().for_each(|block| self.arena.free(block));
                return Err(error);
            }
        };
        self.publish(call, &memory, worker, (claim, position))?;
        let CallRegions { staging, .. } = memory;
        Ok(SentCall { worker, record: claim.record, position: position.count, turn: claim.turn(), staging })
    }

    /// Writes the request into the line that was claimed for it.
    #[inline(always)]
    fn publish(
        &self,
        call: &Call,
        memory: &CallRegions,
        worker: u32,
        (claim, position): (RecordClaim, Position),
    ) -> Result<(), Error> {
        let occupant = Occupant { record: claim.record, turn: claim.turn() };
        debug_assert!(
            memory.input.is_some() || u64::from(call.input_len) <= self.options.slot_bytes,
            "an input of {} bytes in a slot of {}",
            call.input_len,
            self.options.slot_bytes
        );
        let request = WireRequest {
            input: memory.input.unwrap_or(RegionAddress { region: OWN_REGION, offset: 0 }),
            input_len: call.input_len,
            output: memory.output,
            output_capacity: call.output_capacity,
            result_turn: claim.turn(),
            timed: call.timed,
        };
        let immediate = Immediate::new(claim.record, claim.uses, call.function).to_bits();
        match &self.worker_transport {
            WorkerTransport::Local(endpoint) => {
                if memory.input.is_none() && call.input_len > 0 {
                    self.put_payload(endpoint, worker, position, call)?;
                }
                let to = self.inbox.line(worker, position.line);
                endpoint.put_imm(to, position.turn, immediate, &request.encode())?;
            }
            WorkerTransport::Remote(remote) => {
                self.publish_remote(remote, worker, position, (call, &request, immediate))
            }
        }
        self.workers[worker as usize].ring.sent(position, occupant);
        Ok(())
    }

    /// Sends a request over the connection to its worker.
    #[cold]
    #[inline(never)]
    fn publish_remote(
        &self,
        remote: &RemoteWorkers,
        worker: u32,
        position: Position,
        (call, request, immediate): (&Call, &WireRequest, u32),
    ) {
        let input = match request.input.region {
            OWN_REGION => {
                RequestInput::Slot(self.payload(worker, position), InputBytes::Caller(call.input()))
            }
            _ => RequestInput::Arena(request.input, u64::from(request.input_len)),
        };
        let request = RingRequest {
            position: position.count,
            to: self.inbox.line(worker, position.line),
            turn: position.turn,
            immediate,
            body: request.encode(),
            input,
        };
        remote.publish(worker, request);
    }

    /// The addresses of the call's memory for a worker, with a substitute buffer for output that no worker reaches.
    #[inline(always)]
    fn memory(&self, call: &Call, staging: Option<ArenaBlock>) -> Result<CallRegions, Error> {
        let input = self.window.locate(call.input, u64::from(call.input_len));
        if input.is_none() && u64::from(call.input_len) > self.options.slot_bytes {
            return Err(self.input_too_large(call));
        }
        let (output, staging) = match staging {
            Some(block) => (block.at, Some(block)),
            None => self.place_output(call)?,
        };
        Ok(CallRegions { input, output, staging })
    }

    /// The address of the caller's output, or of a substitute buffer.
    #[inline(always)]
    fn place_output(&self, call: &Call) -> Result<(RegionAddress, Option<ArenaBlock>), Error> {
        let capacity = u64::from(call.output_capacity);
        if let Some(address) = self.window.locate(call.output, capacity) {
            debug_assert!(address.region != OWN_REGION, "an output lies in the results: {address:?}");
            return Ok((address, None));
        }
        if call.output_capacity == 0 {
            return Ok((RegionAddress { region: OWN_REGION, offset: 0 }, None));
        }
        let block = self.arena.allocate(capacity, || self.arena.publish_to_users())?;
        Ok((block.at, Some(block)))
    }

    /// The one copy of an input that is not in the arena.
    fn put_payload(
        &self,
        endpoint: &shm::ShmEndpoint,
        worker: u32,
        position: Position,
        call: &Call,
    ) -> Result<(), Error> {
        Ok(endpoint.put(self.payload(worker, position), call.input())?)
    }

    /// The address to which an input outside of the arena is copied.
    pub(super) fn payload(&self, worker: u32, position: Position) -> RegionAddress {
        RegionAddress { region: OWN_REGION, offset: self.inbox.payload(worker, position.line) }
    }

    /// The worker that the caller names, or one that is idle if a few looks find one, in turn.
    #[inline(always)]
    fn choose(&self, named: Option<u32>) -> Result<u32, Error> {
        let workers = self.workers();
        match named {
            Some(worker) if worker < workers => return Ok(worker),
            Some(worker) => return Err(no_such_worker(worker, workers)),
            None if workers == 1 => return Ok(0),
            None => {}
        }
        let first = self.next_worker.fetch_add(1, Ordering::Relaxed) % workers;
        let looks = (0..LOOKS.min(workers)).map(|look| (first + look) % workers);
        Ok(looks.min_by_key(|&worker| self.in_use(worker)).unwrap_or(first))
    }

    #[inline(always)]
    fn claim_position(&self, worker: u32, by: Occupant, call: &Call) -> Result<Position, Error> {
        match self.try_claim(worker, by) {
            Some(position) => Ok(position),
            None => self.await_space(worker, by, call),
        }
    }

    #[inline(always)]
    fn try_claim(&self, worker: u32, by: Occupant) -> Option<Position> {
        let link = &self.workers[worker as usize];
        link.ring.claim(by, |position, last| {
            // A record that has been used again had its answer, or lost it, before it was released.
            link.records.latest_turn(last.record) != last.turn
                || self.result_line(worker, last.record).is(last.turn)
                || position < link.dead_before.load(Ordering::Acquire)
        })
    }

    /// Back-pressure: the worker has as many calls before it has slots.
    #[cold]
    fn await_space(&self, worker: u32, by: Occupant, call: &Call) -> Result<Position, Error> {
        let mut looks = 0;
        loop {
            if let Some(position) = self.try_claim(worker, by) {
                return Ok(position);
            }
            if self.status.load(Ordering::Acquire) != RUNNING {
                self.revive()?;
            }
            self.take_arrived(worker);
            looks += 1;
            if looks < FULL_RING_SPINS {
                std::hint::spin_loop();
                continue;
            }
            if call.is_late() {
                return Err(self.no_space(worker, call));
            }
            if let Some((position, nonsense)) = self.find_nonsense(worker) {
                // After its calls are removed, slots are free for the next process.
                self.distrust(worker, position, nonsense);
            }
            std::thread::sleep(FULL_RING_NAP);
        }
    }

    #[cold]
    fn no_space(&self, worker: u32, call: &Call) -> Error {
        let message = format!(
            "{} was not sent before its deadline: worker {worker} had unfinished calls in all its {} slots",
            self.function_name(call.function),
            self.options.slots,
        );
        Error::new(Code::DeadlineExceeded, message)
    }

    #[cold]
    fn too_many(&self, worker: u32) -> Error {
        let message = format!(
            "{} calls to worker {worker} are unfinished or their results uncollected: collect some first",
            crate::wire::RECORDS,
        );
        Error::new(Code::TooManyInFlight, message)
    }

    #[cold]
    fn input_too_large(&self, call: &Call) -> Error {
        let message = format!(
            "{} got {} bytes of input, and an inbox slot of this lease holds {}: allocate the input from the invoker, \
             or the lease with larger slots",
            self.function_name(call.function),
            call.input_len,
            self.options.slot_bytes,
        );
        Error::new(Code::InputTooLarge, message)
    }
}

#[cold]
pub(crate) fn no_such_worker(worker: u32, workers: u32) -> Error {
    Error::new(Code::InvalidArgument, format!("there is no worker {worker}: the lease has {workers}"))
}
