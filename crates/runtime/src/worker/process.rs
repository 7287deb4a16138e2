//! A worker process: one for each lease and node, with a thread for each leased core.
//!
//! Its standard input is its control socket. The agent's set-up comes first. Then the client sends its regions and
//! connects ([`super::client`]), and the threads run until the client or the agent is gone. One thread stays at the
//! control socket and maps regions while the others execute: the first, unless the engine needs that one for a worker.
//! Between nodes the agent keeps the other end of that socket, and relays the client's messages.
//!
//! The process drops its rights before it loads the package: no new privileges, memory limited to the lease's, no core
//! dumps. The sandbox isolates it further, and the process dies with the sandbox. It must not die with its parent: in a
//! container of an OCI runtime the parent is the runtime, which ends when it has started the process.
//!
//! The program's [`Engine`] loads the package and calls its functions. Its type is known statically from the start of
//! each thread, and in the thread's whole loop.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::exit;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;
use sublet_fabric::Endpoint;
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::line::Line;
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::Region;
use sublet_proto::package::INFO_FILE;
use sublet_proto::v1;
use sublet_proto::{Code, Error, decode};

use super::client::WorkerClient;
use super::control;
use super::engine::{Engine, EngineLoad, FunctionCaller};
use super::executor;
use super::loading;
use super::program;
use super::slots::{CoreRight, OwnCore, SharedCoreSlots};
use super::spawned::{self, Execute};
use super::swapping;
use super::{Worker, hot_timeout_ticks};
use crate::wire::usage::{UsageLayout, WorkerMeter};
use crate::wire::{InboxLayout, ResultsLayout};

/// Memory that a worker process needs for itself beside the lease's, in bytes: its stacks and the dynamic loader's
/// tables.
const OWN_MEMORY_BYTES: u64 = 16 << 20;
const STACK_BYTES: u64 = 8 << 20;

/// Runs a worker process on its control socket until the client is gone, with the engine that is loaded by then; or
/// executes a program in its place. Returns the exit status of the process.
///
/// # Errors
/// The error that was sent to the client, if it could be sent.
pub fn run<E: Engine>(
    control: OwnedFd,
    load: impl FnOnce(&EngineLoad<'_>) -> Result<E, Error>,
    execute: Execute,
) -> Result<u8, Error> {
    let entered_ns = monotonic_ns();
    let socket = PacketSocket::from(control);
    let Some(first) = control::receive(&socket)? else { return Ok(0) };
    let mut setup: v1::WorkerSetup = decode("the worker's set-up", &first.bytes)?;
    let mut descriptors = first.fds;
    if let Some(socket) = setup.shim.then(|| descriptors.pop()).flatten() {
        sublet_xpu::provide(PacketSocket::from(socket));
    }
    if let Some(program) = setup.program.take() {
        confine(&setup)?;
        if program.path.is_empty() {
            return executor::run(&setup, &program.args, descriptors.into_iter().nth(1), load);
        }
        return spawned::begin(&setup, program, descriptors, execute);
    }
    loading::begin(&socket);
    let process = (|| {
        let device = setup.local_bytes > 0 && descriptors.len() > 2;
        swapping::start(&setup, device.then(|| descriptors.remove(2)))?;
        confine(&setup)?;
        WorkerProcessState::new(setup, descriptors, entered_ns, load)
    })();
    loading::end();
    match process {
        Ok(process) if E::ON_MAIN_THREAD => process.serve_beside(socket),
        Ok(process) => share(process).serve(share(socket)).map(|()| 0),
        Err(error) => {
            control::fail(&socket, &error);
            Err(error)
        }
    }
}

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
    first: Option<Sender<FirstWorker>>,
}

/// Message to the thread that is to be the first worker.
struct FirstWorker {
    post: ThreadSetup,
    ready: Sender<Result<(), Error>>,
}

impl WorkerProcessState {
    fn new<E: Engine>(
        setup: v1::WorkerSetup,
        regions: Vec<OwnedFd>,
        entered_ns: u64,
        load: impl FnOnce(&EngineLoad<'_>) -> Result<E, Error>,
    ) -> Result<WorkerProcessState, Error> {
        let protocol = |message: &str| Error::new(Code::Protocol, format!("the worker's set-up {message}"));
        let options = setup.options.ok_or_else(|| protocol("has no options"))?;
        let workers = u32::try_from(setup.cores.len()).map_err(|_| protocol("has too many cores"))?;
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
        let engine = load(&EngineLoad { folder, package, build, workers, memory_bytes })?;
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
        let workers = self.workers() as u32;
        let lines = (0..workers).flat_map(|worker| (0..self.layout.slots()).map(move |slot| (worker, slot)));
        for (worker, slot) in lines {
            if let Some(line) = self.inbox.view::<Line>(self.layout.line(worker, slot).line) {
                line.clear();
            }
        }
    }

    /// Takes the client's messages on a thread of its own. This one becomes the first worker.
    fn serve_beside(mut self, socket: PacketSocket) -> Result<u8, Error> {
        let (first, is_to_work) = channel();
        self.first = Some(first);
        let (process, socket) = (share(self), share(socket));
        let serve = move || exit(i32::from(program::status(process.serve(socket).map(|()| 0))));
        std::thread::Builder::new()
            .name("sublet control".into())
            .stack_size(STACK_BYTES as usize)
            .spawn(serve)
            .map_err(|error| Error::new(Code::System, format!("starting the control thread: {error}")))?;
        let FirstWorker { post, ready } = is_to_work
            .recv()
            .map_err(|_| Error::new(Code::Internal, "the control thread ended before its process"))?;
        process.run_worker(&post, &ready);
        // The control thread reports why the worker could not begin, and then ends the process.
        loop {
            std::thread::park();
        }
    }

    /// Processes the client's messages. Regions come before the connection, and whenever the client's allocator grows.
    fn serve(&'static self, socket: &'static PacketSocket) -> Result<(), Error> {
        let mut client = WorkerClient::new(self, socket).inspect_err(|error| control::fail(socket, error))?;
        while let Some(packet) = control::receive(socket)? {
            let answer = client.take(packet).inspect_err(|error| control::fail(socket, error))?;
            answer.map_or(Ok(()), |answer| control::send(socket, answer))?;
        }
        Ok(())
    }

    pub(super) fn workers(&self) -> usize {
        self.setup.cores.len()
    }

    /// Starts the worker threads, each with the endpoint that reaches its client; returns when all of them are on their
    /// cores.
    pub(super) fn start(
        &'static self,
        control: &'static PacketSocket,
        clients: impl IntoIterator<Item = &'static Endpoint>,
        starts: &[u64],
    ) -> Result<(), Error> {
        if starts.len() != self.workers() {
            let message = format!("{} start positions for {} workers", starts.len(), self.workers());
            return Err(Error::new(Code::Protocol, message));
        }
        let (ready, all_ready) = channel();
        for (number, ((&core, &start), client)) in
            self.setup.cores.iter().zip(starts).zip(clients).enumerate()
        {
            let ready = ready.clone();
            let post = ThreadSetup { number: number as u32, core, start, client, control };
            if let Some(first) = self.first.as_ref().filter(|_| number == 0) {
                let _ = first.send(FirstWorker { post, ready });
                continue;
            }
            std::thread::Builder::new()
                .name(format!("worker {number}"))
                .stack_size(STACK_BYTES as usize)
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

    fn run_worker(&self, post: &ThreadSetup, ready: &Sender<Result<(), Error>>) {
        let Err(error) = pin(post.core).and_then(|()| self.engine.work(self, post, ready));
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
            results: ResultsLayout::new(self.workers() as u32),
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
struct ThreadSetup {
    number: u32,
    core: u32,
    /// The ring position that it executes first.
    start: u64,
    client: &'static Endpoint,
    control: &'static PacketSocket,
}

/// Leaks a value: the process ends only by exit or death, so the threads' shared state may live for ever.
fn share<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

pub(super) fn read_manifest(folder: &Path) -> Result<v1::PackageInfo, Error> {
    let path = folder.join(INFO_FILE);
    let bytes = std::fs::read(&path)
        .map_err(|error| Error::new(Code::System, format!("reading {}: {error}", path.display())))?;
    decode("a package's manifest", &bytes)
}

fn confine(setup: &v1::WorkerSetup) -> Result<(), Error> {
    let failed = |what: &str, error: rustix::io::Errno| Error::new(Code::System, format!("{what}: {error}"));
    rustix::thread::set_no_new_privs(true).map_err(|error| failed("PR_SET_NO_NEW_PRIVS", error))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none).map_err(|error| failed("RLIMIT_CORE", error))?;
    limit_memory(setup, 0)
}

/// Limits the process's allocations to the lease's memory without the copies of its client's buffers.
pub(super) fn limit_memory(setup: &v1::WorkerSetup, copies_bytes: u64) -> Result<(), Error> {
    let stacks = STACK_BYTES.saturating_mul(setup.cores.len() as u64);
    let own = OWN_MEMORY_BYTES.saturating_add(stacks);
    let own = own.saturating_add(inherited_bytes());
    // Swapped memory is counted by its pager. The array's addresses were inherited, too.
    let data = setup.memory_bytes.saturating_sub(copies_bytes).saturating_sub(setup.local_bytes);
    let data = data.saturating_add(own);
    let limit = Rlimit { current: Some(data), maximum: Some(data) };
    rustix::process::setrlimit(Resource::Data, limit)
        .map_err(|error| Error::new(Code::System, format!("RLIMIT_DATA: {error}")))
}

/// Memory that the process had before it was a worker, in bytes: a copy of a warm interpreter has its modules, and a
/// process that swaps has the array.
fn inherited_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let data = status.lines().find_map(|line| line.strip_prefix("VmData:")?.strip_suffix("kB"));
        data.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or_default().saturating_mul(1024)
    })
}

pub(super) fn pin(core: u32) -> Result<(), Error> {
    let index = core as usize;
    if index >= CpuSet::MAX_CPU {
        return Err(Error::new(Code::Protocol, format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(index);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| Error::new(Code::System, format!("pinning a worker to core {core}: {error}")))
}
