//! A lease in the client: the inboxes of its workers, the results of its calls, and how a call is sent.
//!
//! The path of a call is [`Lease::dispatch`]. It takes a record and a ring position, both lock-free, and publishes
//! one line. Everything slow is elsewhere: attaching ([`attach`]), starting the worker process ([`start`]), learning of
//! its death ([`monitor`]).
//!
//! A worker process may die at any moment. The link then raises each worker's `dead_before` to the ring position up
//! to which calls are lost; their owners see that and report why. The ring itself goes on: the next worker process
//! of the lease begins at that position. So whether a call is lost, answered or still to come is decided by two
//! words, its result's turn and `dead_before`, and nothing is ever reset under a running submission.
//!
//! Over a network the ring is reached by a connection, which ends with the worker process. It is ended on this side,
//! too, before calls are given up: what is sent from then on is neither lost nor a hole in the ring, but kept until the
//! next process is connected ([`end`]).
//!
//! An invoker may hold several leases; a call that one of them turns away finds the others in their [`crew`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sublet_fabric::clock::ticks;
use sublet_fabric::line::{Line, Turn, Watch};
use sublet_fabric::region::Region;
use sublet_fabric::ring::{Occupant, Position, Sender};
use sublet_fabric::shm;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_fabric::window::{Address, Window};
use sublet_proto::v1::{self, PackageInfo, WorkerOptions};
use sublet_proto::{Code, Error};

use crate::arena::{Arena, Block};
use crate::fabrics::FabricChoice;
use crate::wire::{Immediate, InboxLayout, OWN_REGION, Request, ResultsLayout};
use carrier::Carrier;
use crew::Crew;
use records::{Claim, Records};

mod agent;
pub(crate) mod alarm;
pub(crate) mod attach;
mod carrier;
pub(crate) mod crew;
mod dial;
mod end;
pub(crate) mod link;
mod monitor;
pub(crate) mod records;
mod start;

/// How long a submission spins on a full ring before it starts to sleep between looks.
const FULL_RING_SPINS: u32 = 2_000;
const FULL_RING_NAP: Duration = Duration::from_micros(50);
/// How many workers a submission looks at that may go to any of them.
pub(crate) const LOOKS: u32 = 4;
/// Of how many deaths of its worker process a lease remembers the reason.
const REMEMBERED_DEATHS: usize = 64;

/// No worker process: not yet, or not any more. The next submission starts one.
const IDLE: u32 = 0;
const RUNNING: u32 = 1;
/// Over, for good.
const ENDED: u32 = 2;

/// See the [module](self).
pub(crate) struct Lease {
    /// As it was granted.
    description: v1::Lease,
    pub(crate) package: PackageInfo,
    /// The other leases of the invoker.
    pub(crate) crew: Arc<Crew>,
    /// The number of this lease's first worker among those of all its crew.
    pub(crate) first_worker: u32,
    /// Function names with their index, sorted by name.
    names: Vec<(String, u16)>,
    pub(crate) options: WorkerOptions,
    pub(crate) arena: Arc<Arena>,
    /// The arena's.
    window: Arc<Window>,
    inbox: InboxLayout,
    results_layout: ResultsLayout,
    results: Region,
    /// What reaches the workers: region 0 is their inbox.
    carrier: Carrier,
    workers: Box<[WorkerLink]>,
    /// Written by the link alone.
    status: AtomicU32,
    /// Not 0: its end has been announced. Written by the link alone.
    ending: AtomicU32,
    deaths: Mutex<VecDeque<Death>>,
    pub(crate) ticks_per_ns: f64,
    /// How long a waiter spins before it sleeps.
    pub(crate) spin_ticks: u64,
    next_worker: AtomicU32,
    /// When it ends, by the manager's clock. Changed by renewals.
    expires_unix_ms: AtomicU64,
    link: link::Link,
}

/// The client's side of one worker.
struct WorkerLink {
    ring: Sender,
    records: Records,
    /// Calls at ring positions below this that have no result will never have one. Raised by the link, Release,
    /// before it pokes sleepers; pairs with the Acquire load of every waiter.
    dead_before: AtomicU64,
}

/// Why calls below these positions, one for each worker, were lost.
struct Death {
    before: Vec<u64>,
    error: Error,
}

/// What to call, with what. The memory is the caller's to keep until the call has ended.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) function: u16,
    /// Among those of all leases of the invoker.
    pub(crate) worker: Option<u32>,
    pub(crate) input: *const u8,
    pub(crate) input_len: u32,
    pub(crate) output: *mut u8,
    pub(crate) output_capacity: u32,
    pub(crate) timed: bool,
    /// How often it may be repeated after it was lost.
    pub(crate) retries: u32,
}

/// Where a call's memory lies.
struct Memory {
    /// In the arena; otherwise it travels in the slot.
    input: Option<Address>,
    output: Address,
    staging: Option<Block>,
}

/// A call on its way.
pub(crate) struct Sent {
    pub(crate) worker: u32,
    pub(crate) record: u16,
    pub(crate) position: u64,
    pub(crate) turn: Turn,
    /// Where the output goes first if the caller's memory is not in the arena.
    pub(crate) staging: Option<Block>,
}

impl Call {
    /// The caller's input.
    fn input(&self) -> &[u8] {
        if self.input_len == 0 {
            return &[];
        }
        // SAFETY: the caller of `submit_raw` vouches for `input_len` readable bytes at `input` until the call has ended.
        unsafe { std::slice::from_raw_parts(self.input, self.input_len as usize) }
    }
}

impl Lease {
    /// Sends a call of an invoker that has this lease alone, to the worker that it names or one that looks idle.
    #[inline(always)]
    pub(crate) fn dispatch(&self, call: &Call) -> Result<Sent, Error> {
        let worker = self.choose(call.worker)?;
        self.dispatch_to(worker, call)
    }

    /// Sends a call to a worker of this lease. Neither locks, allocates nor enters the kernel if the worker runs hot,
    /// its ring has room, and the memory is the arena's.
    #[inline(always)]
    pub(crate) fn dispatch_to(&self, worker: u32, call: &Call) -> Result<Sent, Error> {
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

    /// Sends a call that was sent elsewhere before, without waiting for anything; `false` if there is no room for it.
    /// What it has is what it keeps: the stand-in of its output goes with it. Without a worker process it is one for
    /// the next.
    #[cold]
    pub(crate) fn take_over(&self, worker: u32, call: &Call, sent: &mut Sent) -> Result<bool, Error> {
        let memory = self.memory(call, sent.staging)?;
        self.take_arrived(worker);
        let Some(claim) = self.workers[worker as usize].records.claim() else { return Ok(false) };
        let occupant = Occupant { record: claim.record, turn: claim.turn() };
        let Some(position) = self.try_claim(worker, occupant) else {
            self.workers[worker as usize].records.release(claim.record);
            return Ok(false);
        };
        self.publish(call, &memory, worker, (claim, position))?;
        *sent = Sent {
            worker,
            record: claim.record,
            position: position.count,
            turn: claim.turn(),
            staging: sent.staging,
        };
        Ok(true)
    }

    #[inline(always)]
    fn send(&self, worker: u32, claim: Claim, call: &Call) -> Result<Sent, Error> {
        let memory = self.memory(call, None)?;
        let occupant = Occupant { record: claim.record, turn: claim.turn() };
        let position = match self.claim_position(worker, occupant) {
            Ok(position) => position,
            Err(error) => {
                memory.staging.into_iter().for_each(|block| self.arena.free(block));
                return Err(error);
            }
        };
        self.publish(call, &memory, worker, (claim, position))?;
        let Memory { staging, .. } = memory;
        Ok(Sent { worker, record: claim.record, position: position.count, turn: claim.turn(), staging })
    }

    /// Writes the request into the line that was claimed for it.
    #[inline(always)]
    fn publish(
        &self,
        call: &Call,
        memory: &Memory,
        worker: u32,
        (claim, position): (Claim, Position),
    ) -> Result<(), Error> {
        let occupant = Occupant { record: claim.record, turn: claim.turn() };
        let request = Request {
            input: memory.input.unwrap_or(Address { region: OWN_REGION, offset: 0 }),
            input_len: call.input_len,
            output: memory.output,
            output_capacity: call.output_capacity,
            result_turn: claim.turn(),
            timed: call.timed,
        };
        let immediate = Immediate::new(claim.record, claim.uses, call.function).to_bits();
        match &self.carrier {
            Carrier::Local(endpoint) => {
                if memory.input.is_none() && call.input_len > 0 {
                    self.put_payload(endpoint, worker, position, call)?;
                }
                let to = self.inbox.line(worker, position.line);
                endpoint.put_imm(to, position.turn, immediate, &request.encode())?;
            }
            Carrier::Remote(remote) => remote.publish(self, worker, position, (call, &request, immediate)),
        }
        self.workers[worker as usize].ring.sent(position, occupant);
        Ok(())
    }

    /// Where the call's memory lies for a worker, with a stand-in for output that no worker reaches.
    #[inline(always)]
    fn memory(&self, call: &Call, staging: Option<Block>) -> Result<Memory, Error> {
        let input = self.window.locate(call.input, u64::from(call.input_len));
        if input.is_none() && u64::from(call.input_len) > self.options.slot_bytes {
            return Err(self.input_too_large(call));
        }
        let (output, staging) = match staging {
            Some(block) => (block.at, Some(block)),
            None => self.place_output(call)?,
        };
        Ok(Memory { input, output, staging })
    }

    /// The place of the caller's output, or of a stand-in.
    #[inline(always)]
    fn place_output(&self, call: &Call) -> Result<(Address, Option<Block>), Error> {
        let capacity = u64::from(call.output_capacity);
        if let Some(address) = self.window.locate(call.output, capacity) {
            return Ok((address, None));
        }
        if call.output_capacity == 0 {
            return Ok((Address { region: OWN_REGION, offset: 0 }, None));
        }
        let block = self.arena.allocate(capacity, || self.crew.publish_regions())?;
        Ok((block.at, Some(block)))
    }

    /// The one copy of an input that is not in the arena.
    fn put_payload(
        &self,
        endpoint: &shm::Endpoint,
        worker: u32,
        position: Position,
        call: &Call,
    ) -> Result<(), Error> {
        Ok(endpoint.put(self.payload(worker, position), call.input())?)
    }

    /// Where an input that is not in the arena goes.
    fn payload(&self, worker: u32, position: Position) -> Address {
        Address { region: OWN_REGION, offset: self.inbox.payload(worker, position.line) }
    }

    /// The worker that the caller names, or one that is idle if a few looks find one, in turn.
    #[inline(always)]
    fn choose(&self, named: Option<u32>) -> Result<u32, Error> {
        let workers = self.workers.len() as u32;
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
    fn claim_position(&self, worker: u32, by: Occupant) -> Result<Position, Error> {
        match self.try_claim(worker, by) {
            Some(position) => Ok(position),
            None => self.await_room(worker, by),
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

    /// Back-pressure: the worker has as many calls before it as it has slots.
    #[cold]
    fn await_room(&self, worker: u32, by: Occupant) -> Result<Position, Error> {
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
            if looks < FULL_RING_SPINS { std::hint::spin_loop() } else { std::thread::sleep(FULL_RING_NAP) }
        }
    }

    /// The line on which a record's result is published.
    #[inline(always)]
    pub(crate) fn result_line(&self, worker: u32, record: u16) -> &Line {
        match self.results.view(self.results_layout.line(worker, record).line) {
            Some(line) => line,
            None => outside_of_layout(),
        }
    }

    /// Where whoever waits for a record's result sleeps.
    pub(crate) fn result_watch(&self, worker: u32, record: u16) -> &Watch {
        match self.results.view(self.results_layout.line(worker, record).watch) {
            Some(watch) => watch,
            None => outside_of_layout(),
        }
    }

    /// Whether the call at this position was lost, if it has no result.
    #[inline(always)]
    pub(crate) fn lost(&self, worker: u32, position: u64) -> bool {
        position < self.workers[worker as usize].dead_before.load(Ordering::Acquire)
    }

    /// Whether a worker process is running.
    #[inline(always)]
    pub(crate) fn running(&self) -> bool {
        self.status.load(Ordering::Acquire) == RUNNING
    }

    /// Whether the lease is over, for good.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        self.status.load(Ordering::Acquire) == ENDED
    }

    /// Whether its end has been announced: new calls had better go elsewhere.
    #[inline(always)]
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed) != 0
    }

    /// How many of a worker's calls are unfinished or uncollected, about.
    #[inline(always)]
    pub(crate) fn in_use(&self, worker: u32) -> u32 {
        self.workers[worker as usize].records.in_use()
    }

    /// Spins for the result as long as the lease spins. False: it did not come in that time.
    #[inline(always)]
    pub(crate) fn spin(&self, line: &Line, sent: &Sent) -> bool {
        if let Carrier::Remote(remote) = &self.carrier {
            return self.spin_remote(remote, line, sent);
        }
        // Most hot calls end within these looks; the clock is read only after them.
        const FIRST_LOOKS: u32 = 4096;
        const LOOKS: u32 = 256;
        for _ in 0..FIRST_LOOKS {
            if line.is(sent.turn) {
                return true;
            }
        }
        let since = ticks();
        while ticks().saturating_sub(since) < self.spin_ticks && !self.lost(sent.worker, sent.position) {
            if line.spin(sent.turn, LOOKS) {
                return true;
            }
        }
        false
    }

    /// Sleeps until the result comes, the call is lost, the worker process ends, or the deadline passes. Says
    /// whether the result came.
    pub(crate) fn sleep(&self, line: &Line, sent: &Sent, deadline: Option<std::time::Instant>) -> bool {
        let over = || self.lost(sent.worker, sent.position) || !self.running();
        let line = (line, self.result_watch(sent.worker, sent.record));
        match &self.carrier {
            Carrier::Local(endpoint) => endpoint.wait(line, sent.turn, deadline, over),
            Carrier::Remote(remote) => remote.wait(sent, line, deadline, over),
        }
    }

    /// Takes results that have arrived, if somebody has to. In shared memory nobody has: `false`.
    #[inline(always)]
    pub(crate) fn take_arrived(&self, worker: u32) -> bool {
        match &self.carrier {
            Carrier::Local(_) => false,
            Carrier::Remote(remote) => remote.take_arrived(worker),
        }
    }

    /// A future is about to sleep on a line of the worker's: over a network somebody must take its result.
    #[inline(always)]
    pub(crate) fn watched(&self, worker: u32) {
        if let Carrier::Remote(remote) = &self.carrier
            && !remote.is_polled(worker)
        {
            self.link.ring();
        }
    }

    /// What carries its calls.
    pub(crate) fn fabric(&self) -> FabricChoice {
        self.carrier.fabric()
    }

    /// The error message of a record's result.
    pub(crate) fn message(&self, worker: u32, record: u16, len: u64) -> String {
        let mut bytes = vec![0; len.min(crate::wire::MAX_MESSAGE_BYTES) as usize];
        match self.results.read(self.results_layout.message(worker, record), &mut bytes) {
            Some(()) => String::from_utf8_lossy(&bytes).into_owned(),
            None => String::new(),
        }
    }

    /// The call is over: its record is free, and so is the stand-in of its output.
    #[inline(always)]
    pub(crate) fn release(&self, sent: &mut Sent) {
        if let Some(block) = sent.staging.take() {
            self.arena.free(block);
        }
        self.workers[sent.worker as usize].records.release(sent.record);
    }

    /// The lease, with its latest end.
    pub(crate) fn description(&self) -> v1::Lease {
        let expires_unix_ms = self.expires_unix_ms.load(Ordering::Relaxed);
        v1::Lease { expires_unix_ms, ..self.description.clone() }
    }

    /// What its name is.
    pub(crate) fn id(&self) -> &str {
        &self.description.id
    }

    /// How much memory it has.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.description.memory_bytes
    }

    /// The records of a worker.
    pub(crate) fn records(&self, worker: u32) -> &Records {
        &self.workers[worker as usize].records
    }

    /// How many workers the lease has.
    pub(crate) fn workers(&self) -> u32 {
        self.workers.len() as u32
    }

    /// The index of a function, by its own name or with the package's before it.
    #[inline(always)]
    pub(crate) fn function(&self, name: &str) -> Result<u16, Error> {
        match self.find(name) {
            Some(index) => Ok(index),
            None => self.function_of_package(name),
        }
    }

    #[inline(always)]
    fn find(&self, name: &str) -> Option<u16> {
        let found = self.names.binary_search_by(|(known, _)| known.as_str().cmp(name)).ok()?;
        Some(self.names[found].1)
    }

    #[cold]
    fn function_of_package(&self, name: &str) -> Result<u16, Error> {
        let package = &self.package.name;
        let own = name.strip_prefix(package.as_str()).and_then(|rest| rest.strip_prefix('/'));
        own.and_then(|own| self.find(own)).ok_or_else(|| {
            const SHOWN: usize = 8;
            let known: Vec<_> = self.names.iter().take(SHOWN).map(|(name, _)| name.as_str()).collect();
            let more = if self.names.len() > SHOWN { ", ..." } else { "" };
            let message =
                format!("package {package} has no function {name}; it has {}{more}", known.join(", "));
            Error::new(Code::UnknownFunction, message)
        })
    }

    /// The name of a function as `package/function`.
    pub(crate) fn function_name(&self, index: u16) -> String {
        let own = self.package.functions.get(usize::from(index)).map_or("?", |info| info.name.as_str());
        format!("{}/{own}", self.package.name)
    }

    /// Why the call at a position was lost.
    pub(crate) fn why_lost(&self, worker: u32, position: u64) -> Error {
        let deaths = self.deaths.lock().unwrap_or_else(PoisonError::into_inner);
        let death =
            deaths.iter().find(|death| death.before.get(worker as usize).is_some_and(|&end| position < end));
        death.or(deaths.back()).map_or_else(
            || Error::new(Code::WorkerDied, "the worker ended before the call did"),
            |death| death.error.clone(),
        )
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

/// Records and workers are numbered by this crate alone, so the layout holds all of them.
#[cold]
fn outside_of_layout() -> ! {
    unreachable!("a result line outside of the results region")
}
