//! The state that the threads of a worker process share, and the start of the worker threads.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};

use sublet_fabric::Endpoint;
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::line::Line;
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::Region;
use sublet_proto::v1;
use sublet_proto::{Code, Error, to_usize};

use super::engine::{Engine, EngineLoad, FunctionCaller};
use super::preparation::{STACK_BYTES, pin, read_manifest};
use super::slots::{CoreRight, OwnCore, SharedCoreSlots};
use super::{Worker, hot_timeout_ticks, swapping, worker_run};
use crate::wire::usage::{UsageLayout, WorkerMeter};
use crate::wire::{InboxLayout, ResultsLayout};

/// State that the threads share, for the life of the process.
pub(super) struct WorkerProcessState {
    pub(super) setup: v1::WorkerSetup,
    options: v1::WorkerOptions,
    layout: InboxLayout,
    pub(super) inbox: Region,
    usage_layout: UsageLayout,
    usage: Region,
    slots: Option<SharedCoreSlots>,
    engine: Box<dyn Works>,
    pub(super) entered_ns: u64,
    pub(super) loaded_ns: u64,
    /// Channel to the thread that waits to be the first worker, if there is one.
    pub(super) first: Option<Sender<FirstWorker>>,
}

/// Message to the thread that is to be the first worker.
pub(super) struct FirstWorker {
    pub(super) post: ThreadSetup,
    pub(super) ready: Sender<Result<(), Error>>,
}

impl WorkerProcessState {
    /// Attaches the regions that the agent has sent, and loads the engine.
    pub(super) fn new<E: Engine>(
        setup: v1::WorkerSetup,
        regions: Vec<OwnedFd>,
        entered_ns: u64,
        load: impl FnOnce(&EngineLoad<'_>) -> Result<E, Error>,
    ) -> Result<WorkerProcessState, Error> {
        let protocol = |message: &str| Error::new(Code::Protocol, format!("the worker's set-up {message}"));
        let options = setup.options.ok_or_else(|| protocol("has no options"))?;
        let cores = u32::try_from(setup.cores.len()).map_err(|_| protocol("has too many cores"))?;
        let each = options.cores_each();
        if !cores.is_multiple_of(each) {
            return Err(protocol(&format!("has {cores} cores for workers of {each} cores")));
        }
        let workers = cores / each;
        let layout = InboxLayout::new(workers, options.slots, options.slot_bytes)?;
        let usage_layout = UsageLayout::new(workers, setup.functions);
        let mut regions = regions.into_iter();
        let (Some(inbox), Some(usage)) = (regions.next(), regions.next()) else {
            return Err(protocol("has no descriptors of inbox and usage region"));
        };
        let inbox = Region::attach(inbox, layout.len_bytes())?;
        let usage = Region::attach(usage, usage_layout.len_bytes())?;
        let slots = SharedCoreSlots::attach(&setup, regions.collect())?;
        let folder = Path::new(&setup.package_folder);
        let package = &read_manifest(folder)?;
        let (build, memory_bytes) = (setup.build, setup.memory_bytes);
        let variables = &setup.variables;
        let engine = load(&EngineLoad { folder, package, build, workers, memory_bytes, variables })?;
        let loaded_ns = monotonic_ns();
        Ok(WorkerProcessState {
            setup,
            options,
            layout,
            inbox,
            usage_layout,
            usage,
            slots,
            engine: Box::new(engine),
            entered_ns,
            loaded_ns,
            first: None,
        })
    }

    /// Clears the rings of values that an earlier process may have written over them. Only for a process whose client
    /// is on another node, before the client has connected: its requests are sent anew.
    pub(super) fn clear_inbox(&self) {
        let lines =
            (0..self.workers()).flat_map(|worker| (0..self.layout.slots()).map(move |slot| (worker, slot)));
        for (worker, slot) in lines {
            if let Some(line) = self.inbox.view::<Line>(self.layout.line(worker, slot).line) {
                line.clear();
            }
        }
    }

    /// Accepts a client's run, and swaps to its memory if it has some for that and this process can.
    pub(super) fn take_run(&self, run: &v1::Run, fds: Vec<OwnedFd>) -> Result<(), Error> {
        let has_space = worker_run::take(run, fds, self.workers() as usize, self.setup.memory_bytes)?;
        if has_space && self.setup.local_bytes > 0 {
            swapping::turn_on();
        }
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "a message of `MAX_PACKET_BYTES` names the cores")]
    pub(super) fn workers(&self) -> u32 {
        self.setup.cores.len() as u32 / self.options.cores_each()
    }

    /// Starts the worker threads, each with the endpoint that reaches its client; returns when all of them are on their
    /// cores.
    pub(super) fn start(
        &'static self,
        control: &'static PacketSocket,
        clients: impl IntoIterator<Item = &'static Endpoint>,
        starts: &[u64],
    ) -> Result<(), Error> {
        if starts.len() != self.workers() as usize {
            let message = format!("{} start positions for {} workers", starts.len(), self.workers());
            return Err(Error::new(Code::Protocol, message));
        }
        let (ready, all_ready) = channel();
        let cores = self.setup.cores.chunks_exact(to_usize(self.options.cores_each().into()));
        for (number, ((cores, &start), client)) in (0..).zip(cores.zip(starts).zip(clients)) {
            let ready = ready.clone();
            let post = ThreadSetup { number, cores, start, client, control };
            if let Some(first) = self.first.as_ref().filter(|_| number == 0) {
                let _ = first.send(FirstWorker { post, ready });
                continue;
            }
            std::thread::Builder::new()
                .name(format!("worker {number}"))
                .stack_size(to_usize(STACK_BYTES))
                .spawn(move || self.run_worker(&post, &ready))
                .map_err(|error| Error::new(Code::System, format!("starting worker {number}: {error}")))?;
        }
        for _ in starts {
            all_ready
                .recv()
                .map_err(|_| Error::new(Code::Internal, "a worker ended before it was ready"))??;
        }
        Ok(())
    }

    /// The body of a worker thread.
    pub(super) fn run_worker(&self, post: &ThreadSetup, ready: &Sender<Result<(), Error>>) {
        let Err(error) = pin(post.cores).and_then(|()| self.engine.work(self, post, ready));
        let _ = ready.send(Err(error));
    }

    /// Reports that it is ready, and works until the process ends.
    fn work<C: CoreRight>(
        &self,
        post: &ThreadSetup,
        core: C,
        caller: &mut impl FunctionCaller,
        ready: &Sender<Result<(), Error>>,
    ) -> Result<Infallible, Error> {
        let meter = WorkerMeter::new(&self.usage, self.usage_layout, post.number)?;
        let worker = Worker {
            number: post.number,
            inbox: &self.inbox,
            layout: self.layout,
            slot_bytes: self.options.slot_bytes,
            results: ResultsLayout::new(self.workers()),
            client: post.client,
            control: post.control,
            meter,
            hot_timeout_ticks: hot_timeout_ticks(self.options.hot_timeout_ns, self.setup.ticks_per_ns),
            start: post.start,
            core,
        };
        let _ = ready.send(Ok(()));
        worker.run(caller)
    }
}

/// An engine of any type, as a process uses it: the loop of a worker thread.
trait Works: Send + Sync {
    fn work(
        &self,
        process: &WorkerProcessState,
        post: &ThreadSetup,
        ready: &Sender<Result<(), Error>>,
    ) -> Result<Infallible, Error>;
}

impl<E: Engine> Works for E {
    fn work(
        &self,
        process: &WorkerProcessState,
        post: &ThreadSetup,
        ready: &Sender<Result<(), Error>>,
    ) -> Result<Infallible, Error> {
        let mut caller = self.caller(post.number)?;
        match &process.slots {
            None => process.work(post, OwnCore, &mut caller, ready),
            Some(slots) => process.work(post, slots.core(post.number)?, &mut caller, ready),
        }
    }
}

/// Setup of a worker thread.
pub(super) struct ThreadSetup {
    number: u32,
    cores: &'static [u32],
    /// The ring position that it executes first.
    start: u64,
    client: &'static Endpoint,
    control: &'static PacketSocket,
}
