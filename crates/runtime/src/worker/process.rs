//! A worker process: one for each lease and node, with a thread for each leased core.
//!
//! Its standard input is its control socket. The agent's set-up comes first; then the client sends its regions and
//! connects; then the threads run until the client or the agent is gone. The first thread stays at the control
//! socket and maps regions while the others execute.
//!
//! The process takes its rights away before it loads the package: no new privileges, memory limited to the lease's,
//! no core dumps, and death with the agent. Stronger walls are the sandbox's.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use prost::Message;
use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::CpuSet;
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_fabric::region::Region;
use sublet_fabric::window::Window;
use sublet_fabric::{Endpoint, shm};
use sublet_proto::package::INFO_FILE;
use sublet_proto::v1::{self, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error, decode};

use super::library::Library;
use super::slots::{Core, Own, Slots};
use super::{Worker, hot_timeout_ticks};
use crate::wire::usage::{Meter, UsageLayout};
use crate::wire::{InboxLayout, MAX_REGIONS, OWN_REGION, ResultsLayout};

/// What a worker process needs for itself beside the lease's memory: its stacks and the dynamic loader's tables.
const OWN_MEMORY_BYTES: u64 = 16 << 20;
const STACK_BYTES: u64 = 8 << 20;

/// Runs a worker process on its control socket until the client is gone.
pub fn run(control: OwnedFd) -> Result<(), Error> {
    let entered_ns = monotonic_ns();
    let socket = PacketSocket::from(control);
    let Some(first) = receive(&socket)? else { return Ok(()) };
    let (setup, regions) = (decode::<v1::WorkerSetup>("the worker's set-up", &first.bytes)?, first.fds);
    let process = (|| {
        confine(&setup)?;
        Process::new(setup, regions, entered_ns)
    })();
    match process {
        Ok(process) => process.serve(&socket),
        Err(error) => {
            fail(&socket, &error);
            Err(error)
        }
    }
}

/// What the threads share, for the life of the process.
struct Process {
    setup: v1::WorkerSetup,
    options: v1::WorkerOptions,
    layout: InboxLayout,
    inbox: Region,
    usage_layout: UsageLayout,
    usage: Region,
    slots: Option<Slots>,
    library: Library,
    window: Option<Window>,
    entered_ns: u64,
    loaded_ns: u64,
}

impl Process {
    fn new(setup: v1::WorkerSetup, regions: Vec<OwnedFd>, entered_ns: u64) -> Result<Process, Error> {
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
        let slots = Slots::attach(&setup, regions.collect())?;
        let window = Some(Window::reserve(MAX_REGIONS, u64::from(u32::MAX))?);
        let folder = Path::new(&setup.package_folder);
        let library = Library::load(folder, &read_manifest(folder)?)?;
        let loaded_ns = monotonic_ns();
        Ok(Process {
            setup,
            options,
            layout,
            inbox,
            usage_layout,
            usage,
            slots,
            library,
            window,
            entered_ns,
            loaded_ns,
        })
    }

    /// Takes the client's messages. Regions come before the connection, and whenever the client's allocator grows.
    fn serve(mut self, socket: &PacketSocket) -> Result<(), Error> {
        let window = self.window.take().ok_or_else(|| Error::new(Code::Internal, "the window is gone"))?;
        // The process ends by exit or death only, so what its threads share may live for ever.
        let process: &'static Process = Box::leak(Box::new(self));
        let mut client = Client::Connecting(window);
        while let Some(packet) = receive(socket)? {
            let answer = client.take(process, packet).inspect_err(|error| fail(socket, error))?;
            send(socket, answer)?;
        }
        Ok(())
    }

    /// Starts the worker threads; returns when all of them are on their cores.
    fn start(&'static self, client: &'static Endpoint, starts: &[u64]) -> Result<(), Error> {
        if starts.len() != self.setup.cores.len() {
            let message = format!("{} start positions for {} workers", starts.len(), self.setup.cores.len());
            return Err(Error::new(Code::Protocol, message));
        }
        let (ready, all_ready) = channel();
        for (number, (&core, &start)) in self.setup.cores.iter().zip(starts).enumerate() {
            let ready = ready.clone();
            let post = Post { number: number as u32, core, start, client };
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

    fn run_worker(&self, post: &Post, ready: &Sender<Result<(), Error>>) {
        let Err(error) = pin(post.core).and_then(|()| match &self.slots {
            None => self.work(post, Own, ready),
            Some(slots) => self.work(post, slots.core(post.number)?, ready),
        });
        let _ = ready.send(Err(error));
    }

    /// Works until the process ends, once it has said that it is ready.
    fn work<C: Core>(
        &self,
        post: &Post,
        core: C,
        ready: &Sender<Result<(), Error>>,
    ) -> Result<Infallible, Error> {
        let meter = Meter::new(&self.usage, self.usage_layout, post.number)?;
        let worker = Worker {
            number: post.number,
            inbox: &self.inbox,
            layout: self.layout,
            slot_bytes: self.options.slot_bytes,
            results: ResultsLayout::new(self.setup.cores.len() as u32),
            client: post.client,
            library: &self.library,
            meter,
            hot_timeout_ticks: hot_timeout_ticks(self.options.hot_timeout_ns, self.setup.ticks_per_ns),
            start: post.start,
            core,
        };
        let _ = ready.send(Ok(()));
        worker.run()
    }
}

/// Where a worker thread works.
struct Post {
    number: u32,
    core: u32,
    /// The ring position that it executes first.
    start: u64,
    client: &'static Endpoint,
}

/// The client, before and after it has connected.
enum Client {
    Connecting(Window),
    Connected(&'static Endpoint),
    Broken,
}

impl Client {
    fn take(&mut self, process: &'static Process, packet: Packet) -> Result<worker_to_client::Body, Error> {
        let message: v1::ClientToWorker = decode("a client's message to its worker", &packet.bytes)?;
        match message.body {
            Some(client_to_worker::Body::MapRegion(region)) => self.map(&region, packet.fds),
            Some(client_to_worker::Body::Connect(connect)) => self.connect(process, &connect, packet.fds),
            None => Err(Error::new(Code::Protocol, "an empty message from the client")),
        }
    }

    fn map(&self, region: &v1::MapRegion, fds: Vec<OwnedFd>) -> Result<worker_to_client::Body, Error> {
        let [file] = one_descriptor("a region", fds)?;
        if region.region == OWN_REGION {
            return Err(Error::new(Code::Protocol, "region 0 is the results region"));
        }
        match self {
            Client::Connecting(window) => window.map(region.region, file.as_fd(), region.len_bytes)?,
            Client::Connected(endpoint) => {
                endpoint.register(region.region, file.as_fd(), region.len_bytes)?
            }
            Client::Broken => return Err(Error::new(Code::Protocol, "a region after a failed connection")),
        }
        Ok(worker_to_client::Body::RegionMapped(v1::RegionMapped { region: region.region }))
    }

    fn connect(
        &mut self,
        process: &'static Process,
        connect: &v1::Connect,
        fds: Vec<OwnedFd>,
    ) -> Result<worker_to_client::Body, Error> {
        let Client::Connecting(window) = std::mem::replace(self, Client::Broken) else {
            return Err(Error::new(Code::Protocol, "a second connection of the client"));
        };
        let [results, bell] = one_descriptor("a connection", fds)?;
        let expected = ResultsLayout::new(process.setup.cores.len() as u32).len_bytes();
        if connect.results_bytes != expected {
            let message =
                format!("a results region of {} bytes instead of {expected}", connect.results_bytes);
            return Err(Error::new(Code::Protocol, message));
        }
        window.map(OWN_REGION, results.as_fd(), expected)?;
        let endpoint: &'static Endpoint =
            Box::leak(Box::new(Endpoint::Shm(shm::Endpoint::new(window, Some(bell)))));
        process.start(endpoint, &connect.start_positions)?;
        *self = Client::Connected(endpoint);
        let (entered_ns, loaded_ns) = (process.entered_ns, process.loaded_ns);
        Ok(worker_to_client::Body::Ready(v1::Ready { entered_ns, loaded_ns, ready_ns: monotonic_ns() }))
    }
}

fn one_descriptor<const N: usize>(what: &str, fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Error> {
    <[OwnedFd; N]>::try_from(fds).map_err(|fds| {
        Error::new(Code::Protocol, format!("{what} with {} descriptors instead of {N}", fds.len()))
    })
}

fn read_manifest(folder: &Path) -> Result<v1::PackageInfo, Error> {
    let path = folder.join(INFO_FILE);
    let bytes = std::fs::read(&path)
        .map_err(|error| Error::new(Code::System, format!("reading {}: {error}", path.display())))?;
    decode("a package's manifest", &bytes)
}

fn receive(socket: &PacketSocket) -> Result<Option<Packet>, Error> {
    socket
        .receive(None::<Duration>)
        .map_err(|error| Error::new(Code::System, format!("the control socket: {error}")))
}

fn send(socket: &PacketSocket, body: worker_to_client::Body) -> Result<(), Error> {
    let bytes = v1::WorkerToClient { body: Some(body) }.encode_to_vec();
    socket.send(&bytes, &[]).map_err(|error| Error::new(Code::System, format!("the control socket: {error}")))
}

/// Tells the client why this worker will not work; if it cannot be told, the worker's end tells it.
fn fail(socket: &PacketSocket, error: &Error) {
    let failure = v1::Failure { code: error.code.number(), message: error.message.clone() };
    let _ = send(socket, worker_to_client::Body::Failure(failure));
}

fn confine(setup: &v1::WorkerSetup) -> Result<(), Error> {
    let failed = |what: &str, error: rustix::io::Errno| Error::new(Code::System, format!("{what}: {error}"));
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| failed("PR_SET_PDEATHSIG", error))?;
    rustix::thread::set_no_new_privs(true).map_err(|error| failed("PR_SET_NO_NEW_PRIVS", error))?;
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(Resource::Core, none).map_err(|error| failed("RLIMIT_CORE", error))?;
    let stacks = STACK_BYTES.saturating_mul(setup.cores.len() as u64);
    let data = setup.memory_bytes.saturating_add(OWN_MEMORY_BYTES).saturating_add(stacks);
    let limit = Rlimit { current: Some(data), maximum: Some(data) };
    rustix::process::setrlimit(Resource::Data, limit).map_err(|error| failed("RLIMIT_DATA", error))
}

fn pin(core: u32) -> Result<(), Error> {
    let index = core as usize;
    if index >= CpuSet::MAX_CPU {
        return Err(Error::new(Code::Protocol, format!("there is no core {core}")));
    }
    let mut set = CpuSet::new();
    set.set(index);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| Error::new(Code::System, format!("pinning a worker to core {core}: {error}")))
}
