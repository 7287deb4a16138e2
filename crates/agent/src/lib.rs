//! The agent: the authority on what runs on its node. It enforces leases, starts workers and accounts for usage.
//!
//! A client shows a ticket; the agent reserves the lease's cores and memory, makes the regions through which client
//! and workers will call each other, and starts the worker process. From then on it is not on the path of any call:
//! it waits for an end, and once a second tells a manager what has been used.
//!
//! The threads, all of which sleep unless something happens:
//! - the *acceptors* take connections, one at the agent's socket, one at its port if it has one;
//! - one for each connection: a *supervisor* that verifies a ticket and then watches over its lease, or one that obeys
//!   a command of the node's operator;
//! - the *reporter* talks to one manager at a time, with a tokio runtime of its own;
//! - the *keeper* writes the journal;
//! - the [shim](shim)'s serve the calls of global processes, and one links it with neighbours.
//!
//! Invariants:
//! - No core and no byte is lent twice; they are free only when the process that used them is dead.
//! - A client that dies, in whatever way, loses its lease at once.
//! - The usage that a worker reports is bounded by what the agent has measured.
//! - Leases outlive their manager: without one they continue until they expire.
//! - The usage of a lease is reported even if the agent is killed, up to its last second.
//!
//! The agent never looks into an inbox, and never runs a tenant's code in its own process.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod execution;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod leases;
mod listener;
mod machine;
mod node;
mod shim;
mod signal;
mod supervisor;
mod threads;

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use sublet_fabric::clock::Calibration;
use sublet_fabric::packet::PacketListener;
use sublet_image::{Digest, ImageStore};
use sublet_proto::isolation::Isolation;
use sublet_proto::package::PackageKind;
use sublet_proto::v1::{NodeDescription, NodeNetwork};
use sublet_proto::{Code, Error, pool, pu, version};
use sublet_runtime::access::Access;
use sublet_runtime::fabrics::own_host;
use sublet_sandbox::{DevicePlace, Walls};
use tracing::warn;

use crate::execution::ExecutionMeans;
use crate::execution::cache::NodeCache;
use crate::execution::devices;
use crate::execution::folders::LentFolders;
use crate::execution::image_interpreters::ImageInterpreters;
use crate::execution::images::Images;
use crate::execution::isolations::Isolations;
use crate::execution::kernels::{DeviceQuery, KernelPackages};
use crate::execution::logs::Logs;
use crate::execution::packages::NodePackages;
use crate::execution::programs::{Programs, find_program};
use crate::execution::runtimes::Runtimes;
use crate::execution::sandboxes::SandboxMaker;
use crate::execution::standby::{self, Standby};
use crate::leases::journal::AgentJournal;
use crate::leases::ledger::LeaseLedger;
use crate::leases::managers::Managers;
use crate::leases::{NodeLeases, journal, report};
use crate::listener::ClientAccess;
use crate::listener::acceptor;
use crate::listener::network::ListenerState;
use crate::machine::capacity::{self, Cores};
use crate::machine::flash::FlashDisk;
use crate::machine::neighbours::Neighbours;
use crate::machine::numa::NumaNodes;
use crate::machine::resources::{FreeResources, ResourcePool};
use crate::machine::state::{AgentStateFolder, system, utf8};
use crate::node::Node;
use crate::shim::Shim;
use crate::shim::link::ShimLinks;
use crate::signal::Signal;

pub use crate::execution::devices::{DeviceOptions, DeviceSource};
pub use crate::execution::folders::{FolderOptions, FolderUse};
pub use crate::execution::logs::{LOGS, read_log};
pub use crate::execution::runtimes::{Python, WarmInterpreters};
pub use crate::leases::book;
pub use crate::listener::ClientUsers;
pub use crate::listener::command::{command, sandboxes};
pub use crate::listener::connections::{MAX_UNAUTHENTICATED, UnauthenticatedLimits};
pub use crate::listener::network::{NetworkOptions, automatic_fabrics};
pub use crate::machine::capacity::{MAX_SHARED_CORES, MAX_WORKERS_PER_CORE, SharedCores};
pub use crate::machine::flash::FlashOptions;

/// Configuration of an agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The agent's state folder for unpacked packages, images and the journal. Created if it is missing; used by one
    /// agent at a time.
    pub state: PathBuf,
    /// Path of the socket at which clients reach the agent.
    pub socket: PathBuf,
    /// The managers of the agent, and the identity with which it connects to them.
    pub access: Access,
    /// Name of the node, which must be unique among the nodes of its managers.
    pub name: String,
    /// Number of cores that the agent lends, the highest-numbered ones. By default all that this process may use.
    pub cores: Option<u32>,
    /// Cores beside those that workers of several leases share, if any.
    pub shared: Option<SharedCores>,
    /// Memory that the agent lends, in bytes. By default three quarters of the usable memory.
    pub memory_bytes: Option<u64>,
    /// NUMA nodes that the memory of segments is allocated on. By default the kernel chooses.
    pub numa_nodes: Vec<u32>,
    /// Part of a disk that the agent lends in place of cores and memory, for segments of the flash pool.
    pub flash: Option<FlashOptions>,
    /// The worker program of native code; those of other kinds of packages stand beside it.
    pub worker: PathBuf,
    /// The program that makes sandboxes.
    pub spawner: PathBuf,
    /// Whether functions that ask for it may use this machine's network.
    pub lend_network: bool,
    /// Folders that functions can use if their lease names them.
    pub folders: Vec<FolderOptions>,
    /// Devices that programs can use if their lease asks for them, each one lease's at a time.
    pub lent_devices: Vec<DeviceOptions>,
    /// Folders with specifications of devices (CDI), in JSON.
    pub cdi_folders: Vec<PathBuf>,
    /// Largest size of the temporary files of a worker process, in bytes. By default the memory of its lease.
    pub temporary_bytes: Option<u64>,
    /// The OCI runtime that makes containers, if the agent is not to make them itself.
    pub container_runtime: Option<PathBuf>,
    /// Isolations that the agent allows; if empty, processes, containers, and that of the container runtime.
    pub isolation: Vec<Isolation>,
    /// Interpreters to keep warm for sandboxes.
    pub warm: WarmInterpreters,
    /// Limit of the cache of packages and images, in bytes. By default a quarter of the state folder's file system.
    pub cache_bytes: Option<u64>,
    /// Registries from which images are pulled, as names of images begin. If empty, all but those of this machine.
    pub registries: Vec<String>,
    /// Images whose Python is kept warm like that of the node, with fewer walls than a sandbox has.
    pub image_templates: Vec<Digest>,
    /// Kind of the node's processor, by which leases request and price it: `cpu`, `dpu` or another lower-case name.
    pub pu: String,
    /// Nodes that are this one's neighbours, if they name it, too: at most 64.
    pub neighbours: Vec<String>,
    /// Kinds of devices for which the agent executes kernels, if they are installed, by names of package kinds. By
    /// default OpenCL.
    pub devices: Option<Vec<PackageKind>>,
    /// Idle timeout of leases that do not set their own. By default they never end for lack of calls.
    pub idle_timeout: Option<Duration>,
    /// Pool of the node. By default its manager chooses the pool.
    pub pool: Option<pool::Pool>,
    /// Rack of the node. If empty, the node shares no rack with others.
    pub rack: String,
    /// Clients that the agent serves.
    pub clients: ClientUsers,
    /// Limits on the number of connections without a ticket.
    pub connections: UnauthenticatedLimits,
    /// How clients of other machines connect, if they may.
    pub network: Option<NetworkOptions>,
}

/// Number of threads that serve the calls of global processes. One thread is enough for a million calls a second.
const SHIM_THREADS: usize = 1;
/// The folder of an agent's state over which spawners mount what sandboxes see.
const ROOT: &str = "root";

/// A running agent. Stopped when it is dropped.
pub struct Agent {
    node: Arc<Node>,
    acceptors: Vec<JoinHandle<()>>,
    reporter: Option<JoinHandle<()>>,
    keeper: Option<JoinHandle<AgentJournal>>,
    neighbours: Option<JoinHandle<()>>,
    /// Looks after processes on standby, if the node keeps them.
    standby: Option<JoinHandle<()>>,
    /// Kept locked until nothing of the agent runs.
    _state: AgentStateFolder,
}

impl Agent {
    /// Starts an agent: registers the node, then serves clients until it is stopped. Waits a few seconds for a
    /// manager that is not there yet.
    ///
    /// # Errors
    ///
    /// The code is [`Code::InsufficientResources`] if more is to be lent than there is, [`Code::ManagerUnreachable`] if
    /// no manager answers, and [`Code::InvalidArgument`] for a path or address that cannot be used. It is
    /// [`Code::AlreadyRunning`] if another agent has the state folder or another program the port, and [`Code::System`]
    /// if an operation of the system fails. The error is the manager's own if that refuses the node, for instance
    /// because the node's token is for another node.
    pub fn start(options: AgentOptions) -> Result<Agent, Error> {
        let calibration = Calibration::start();
        let state = AgentStateFolder::open(&options.state)?;
        let (node, port) = open_node(&options, &state, calibration)?;
        let node = Arc::new(node);
        let listener = listen(&options)?;
        let journal = AgentJournal::at(&state.path);
        node.leases.ledger.inherit(journal.read()?);
        let mut agent = Agent {
            node: node.clone(),
            acceptors: Vec::new(),
            reporter: None,
            keeper: None,
            neighbours: None,
            standby: None,
            _state: state,
        };
        let (tell, told) = sync_channel(1);
        agent.neighbours = Some(node.spawn("sublet-shims", |node| node.links.run(&node.stopping))?);
        // The spawner also ends at these looks what it has warm of images that the cache has evicted.
        if node.execution.standby.is_kept() || !options.image_templates.is_empty() {
            let keep = |node: &Arc<Node>| {
                standby::run(
                    &node.execution.standby,
                    (&node.execution.sandboxes, &node.pool),
                    &node.stopping,
                );
            };
            agent.standby = Some(node.spawn("sublet-standby", keep)?);
        }
        agent.keeper = Some(node.spawn("sublet-journal", move |node| journal::run(node, journal))?);
        agent.reporter = Some(node.spawn("sublet-report", move |node| report::run(node, &tell))?);
        told.recv().map_err(|_| Error::new(Code::Internal, "the reporter has failed"))??;
        agent.acceptors.push(node.spawn("sublet-accept", move |node| acceptor::run(node, listener))?);
        if let Some(port) = port {
            agent.acceptors.push(node.spawn("sublet-port", move |node| acceptor::run(node, port))?);
        }
        Ok(agent)
    }

    /// Where clients of other machines reach it, as `host:port`, if they can.
    pub fn address(&self) -> Option<&str> {
        self.node
            .clients
            .listener_state
            .as_ref()
            .map(|listener_state| listener_state.described.address.as_str())
    }

    /// The Python by which it executes functions, if it does.
    pub fn python(&self) -> Option<&Path> {
        self.node.execution.sandboxes.runtimes.python()
    }

    /// Ends all leases, tells a manager, and returns when nothing of the agent runs any more.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let name = &self.node.description.name;
        let reason = Error::new(Code::LeaseEnded, format!("the agent of node {name} is stopping"));
        self.node.leases.ledger.close(&reason);
        self.node.stopping.raise();
        self.node.clients.connections.close();
        for acceptor in self.acceptors.drain(..) {
            join(Some(acceptor));
        }
        join(self.neighbours.take());
        join(self.standby.take());
        self.node.leases.ledger.finish();
        join(self.reporter.take());
        if let Some(mut journal) = join(self.keeper.take()) {
            journal.write(self.node.leases.ledger.unacknowledged());
        }
    }
}

fn join<T>(thread: Option<JoinHandle<T>>) -> Option<T> {
    thread?.join().inspect_err(|_| tracing::error!("a thread of the agent has failed")).ok()
}

/// Opens the node, and the port at which it listens.
fn open_node(
    options: &AgentOptions,
    state: &AgentStateFolder,
    calibration: Calibration,
) -> Result<(Node, Option<TcpListener>), Error> {
    let shared_places = options.shared.map_or(0, |shared| shared.places);
    let numa = NumaNodes::find(&options.numa_nodes)?;
    let flash = options.flash.as_ref().map(FlashDisk::open).transpose()?;
    let (cores, memory_bytes) = lent(options, &numa)?;
    let open =
        |network| ListenerState::open(network, &options.access, &format!("agent of node {}", options.name));
    let (listener_state, port) = options.network.as_ref().map(open).transpose()?.unzip();
    let worker = find_program("worker", &options.worker)?;
    let spawner = find_program("spawner", &options.spawner)?;
    let managers = Arc::new(Managers::new(options.access.clone()));
    let (execution, looking) = open_execution(options, (worker, &spawner), state, (&cores, &managers))?;
    check_standby(&options.warm, &spawner, state)?;
    let network = listener_state.as_ref().map(|listener_state| listener_state.described.clone());
    let description = NodeDescription {
        no_core_shares: !cores.shared.is_empty() && !has_controller("cpu", &spawner, state)?,
        device_units: looking.found(),
        ..describe(options, (&cores, memory_bytes), network, &execution)?
    };
    let instance = new_instance()?;
    let links = Arc::new(start_links(options, &description, &instance, &managers)?);
    let leases = NodeLeases {
        ledger: Arc::new(LeaseLedger::new(&options.name)),
        managers,
        idle_timeout: options.idle_timeout,
    };
    let node = Node {
        instance,
        started_ms: state.started_ms(SystemTime::now()),
        calibration,
        stopping: Signal::new()?,
        pool: ResourcePool::new(FreeResources::new(cores, memory_bytes, shared_places)?),
        numa,
        flash,
        execution,
        leases,
        clients: ClientAccess::new(options.clients, options.connections, listener_state),
        links,
        description,
    };
    Ok((node, port))
}

/// Cores and bytes that the node lends: those of the disk if it lends one.
fn lent(options: &AgentOptions, numa: &NumaNodes) -> Result<(Cores, u64), Error> {
    if let Some(flash) = &options.flash {
        return Ok((Cores { exclusive: Vec::new(), shared: Vec::new() }, flash.bytes));
    }
    let cores = capacity::cores(options.cores, options.shared)?;
    let memory_bytes = capacity::memory_bytes(numa.to_lend(options.memory_bytes)?)?;
    Ok((cores, capacity::without_standby(memory_bytes, options.warm.standby_bytes)?))
}

/// Opens the means of execution, and begins to query the devices of the node.
fn open_execution(
    options: &AgentOptions,
    (worker, spawner): (PathBuf, &Path),
    state: &AgentStateFolder,
    (cores, managers): (&Cores, &Arc<Managers>),
) -> Result<(ExecutionMeans, DeviceQuery), Error> {
    let isolations = Isolations::find(&options.isolation, options.container_runtime.as_deref())?;
    check_weak(options, &isolations)?;
    let lent_devices = devices::find(&options.lent_devices, &options.cdi_folders)?;
    let walls = (isolations.walls(), devices::places(&lent_devices));
    let sandboxes = Arc::new(maker(options, (&worker, spawner), state, walls)?);
    let has_none = isolations.is_weak() || options.flash.is_some();
    let devices = if has_none { Some(&[][..]) } else { options.devices.as_deref() };
    let kernels = KernelPackages::new(&worker, devices, sandboxes.clone());
    let looking = kernels.look(&[&*cores.exclusive, &*cores.shared].concat())?;
    let store = ImageStore::open(state.path.join("images"))?;
    let cache = Arc::new(NodeCache::open(&state.path, store.clone(), options.cache_bytes)?);
    let images = Arc::new(Images::new(store, cache.clone(), options.registries.clone()));
    let packages =
        Arc::new(NodePackages::open(&state.path, managers.clone(), images.clone(), cache.clone())?);
    let image_interpreters = Arc::new(ImageInterpreters::new(
        spawner,
        sandboxes.clone(),
        images.clone(),
        (isolations.clone(), &options.image_templates),
    ));
    let execution = ExecutionMeans {
        programs: Programs::beside(worker),
        sandboxes,
        standby: Standby::new(options.warm.standby_bytes)?,
        isolations,
        lends_network: options.lend_network,
        folders: LentFolders::open(&options.folders, &state.path)?,
        bounds_memory: !options.lent_devices.is_empty() && has_controller("memory", spawner, state)?,
        devices: lent_devices,
        packages,
        kernels: Arc::new(kernels),
        images,
        image_interpreters,
        cache,
        logs: Arc::new(Logs::open(&state.path)?),
    };
    Ok((execution, looking))
}

/// Describes the node for its managers, without its devices and its shares of cores.
fn describe(
    options: &AgentOptions,
    (cores, memory_bytes): (&Cores, u64),
    network: Option<NodeNetwork>,
    execution: &ExecutionMeans,
) -> Result<NodeDescription, Error> {
    let socket = std::path::absolute(&options.socket)
        .map_err(|error| system("using the path", &options.socket, &error))?;
    Ok(NodeDescription {
        name: options.name.clone(),
        agent: format!("unix:{}", utf8(&socket)?),
        architecture: std::env::consts::ARCH.to_owned(),
        cores: u32::try_from(cores.exclusive.len()).unwrap_or(u32::MAX),
        memory_bytes,
        shared_cores: u32::try_from(cores.shared.len()).unwrap_or(u32::MAX),
        shared_places: options.shared.map_or(0, |shared| shared.places),
        host: own_host()?,
        network,
        devices: execution.kernels.offered(),
        runtimes: [execution.sandboxes.runtimes.offered(), execution.image_interpreters.offered()].concat(),
        pool: options.pool.map(|pool| pool.to_string()).unwrap_or_default(),
        rack: options.rack.clone(),
        pu: options.pu.clone(),
        neighbours: options.neighbours.clone(),
        model: capacity::processor_model(),
        device_units: Vec::new(),
        folders: execution.folders.described(),
        lent_devices: execution.devices.described(),
        temporary_bytes: options.temporary_bytes.unwrap_or_default(),
        messages: version::MESSAGES,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        isolations: execution.isolations.names(),
        no_core_shares: false,
    })
}

/// Starts the shim of the node, and prepares its links to neighbours.
fn start_links(
    options: &AgentOptions,
    description: &NodeDescription,
    instance: &str,
    managers: &Arc<Managers>,
) -> Result<ShimLinks, Error> {
    let encrypts = description.network.as_ref().map(|network| network.encrypted);
    let of = (&*options.name, pu::kind(&options.pu), instance);
    let children = (managers.clone(), encrypts.unwrap_or(false));
    let shim = Shim::start(of, &units(description), SHIM_THREADS, children)?;
    let neighbours = Neighbours::new(options.neighbours.clone())?;
    let own = (options.name.clone(), pu::id(&options.name, pu::PROCESSOR));
    Ok(ShimLinks::new(shim, neighbours, own, encrypts))
}

/// Where sandboxes are made, once it is known that they can be.
fn maker(
    options: &AgentOptions,
    (worker, spawner): (&Path, &Path),
    state: &AgentStateFolder,
    (walls, places): (Walls, Vec<DevicePlace>),
) -> Result<SandboxMaker, Error> {
    let start = |warm: &WarmInterpreters| {
        let runtimes = Runtimes::find(warm, spawner, &state.path)?;
        SandboxMaker::start(spawner.to_owned(), state.path.join(ROOT), runtimes, (walls, places.clone()))
    };
    let maker = start(&options.warm)?;
    maker.try_process(worker)?;
    match maker.try_copies() {
        // It was not asked for, so the node does without it.
        Err(error) if options.warm.python == Python::Found => {
            warn!(%error, "functions in Python are not executed here");
            drop(maker);
            start(&WarmInterpreters { python: Python::None, ..options.warm.clone() })
        }
        tried => tried.map(|()| maker),
    }
}

/// Refuses what sandboxes of weak isolation cannot have.
fn check_weak(options: &AgentOptions, isolations: &Isolations) -> Result<(), Error> {
    if !isolations.is_weak() {
        return Ok(());
    }
    let what = match options {
        AgentOptions { folders, .. } if !folders.is_empty() => "lends no folders",
        AgentOptions { lent_devices, .. } if !lent_devices.is_empty() => "lends no devices",
        AgentOptions { devices: Some(devices), .. } if !devices.is_empty() => {
            "executes no kernels on devices"
        }
        AgentOptions { temporary_bytes: Some(_), .. } => "has no temporary files",
        AgentOptions { warm: WarmInterpreters { standby_bytes: 1.., .. }, .. } => {
            "keeps no processes on standby"
        }
        _ => return Ok(()),
    };
    let message = format!("a node with the isolation weak {what}: leave the option out");
    Err(Error::new(Code::InvalidArgument, message))
}

/// Refuses memory for processes on standby that there can never be.
fn check_standby(warm: &WarmInterpreters, spawner: &Path, state: &AgentStateFolder) -> Result<(), Error> {
    if warm.standby_bytes == 0 {
        return Ok(());
    }
    if warm.python == Python::None {
        let message = "processes on standby have imported modules of Python, which this node does not execute: set a Python, \
                       or no memory for standby";
        return Err(Error::new(Code::InvalidArgument, message));
    }
    for controller in ["memory", "cpuset"] {
        if !has_controller(controller, spawner, state)? {
            let message = format!(
                "processes on standby need control groups with the controller {controller}, which this agent cannot use: \
                 start it as root or with delegated control groups, or set no memory for standby"
            );
            return Err(Error::new(Code::InsufficientResources, message));
        }
    }
    Ok(())
}

/// Whether control groups with this controller limit sandboxes. By that of `cpu`, leases on a shared core have shares of it.
fn has_controller(name: &str, spawner: &Path, state: &AgentStateFolder) -> Result<bool, Error> {
    let found = sublet_sandbox::strengths(spawner, &state.path.join(ROOT))?;
    Ok(found.iter().any(|finding| finding.wall == name && finding.strength == sublet_sandbox::Strength::Full))
}

/// The ids of its processing units.
fn units(node: &NodeDescription) -> Vec<u32> {
    let devices = node.device_units.iter().map(|device| device.unit.as_str());
    [pu::PROCESSOR].into_iter().chain(devices).map(|unit| pu::id(&node.name, unit)).collect()
}

fn new_instance() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(Code::System, format!("no random number could be had: {error}")))?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

/// Listens where clients come; they connect, and wait, from now on.
fn listen(options: &AgentOptions) -> Result<PacketListener, Error> {
    let listener = PacketListener::listen(&options.socket)?;
    if options.clients == ClientUsers::AllUsers {
        fs::set_permissions(&options.socket, Permissions::from_mode(0o666))
            .map_err(|error| system("opening to all users", &options.socket, &error))?;
    }
    Ok(listener)
}
