//! The agent: the authority on what runs on its node. It enforces leases, starts workers and accounts for usage.
//!
//! A client shows a ticket; the agent reserves the lease's cores and memory, makes the regions through which client
//! and workers will call each other, and starts the worker process. From then on it is not on the path of any call:
//! it waits for an end, and once a second tells the manager what has been used.
//!
//! The threads, all of which sleep unless something happens:
//! - the *acceptor* takes connections;
//! - one *supervisor* for each connection verifies its ticket and then watches over its lease;
//! - the *reporter* talks to the manager, with a tokio runtime of its own.
//!
//! Invariants:
//! - No core and no byte is lent twice; they are free only when the process that used them is dead.
//! - A client that dies, in whatever way, loses its lease at once.
//! - What a worker says about its own usage is bounded by what the agent has measured.
//! - Leases outlive their manager: without one they go on until they expire.
//!
//! The agent never looks into an inbox, and never runs a tenant's code in its own process.

mod acceptor;
mod attach;
mod capacity;
mod ledger;
mod manager;
mod message;
mod node;
mod packages;
mod report;
mod resources;
mod signal;
mod supervisor;
mod usage;
mod worker;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

use sublet_fabric::clock::Calibration;
use sublet_fabric::packet::PacketListener;
use sublet_proto::v1::NodeDescription;
use sublet_proto::{Code, Error};

use crate::ledger::Ledger;
use crate::node::Node;
use crate::packages::Packages;
use crate::resources::{Pool, Resources};
use crate::signal::Signal;

/// What an agent is told when it starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder for what it keeps: unpacked packages. Made if it is not there; of one agent at a time.
    pub state: PathBuf,
    /// Where clients reach it.
    pub socket: PathBuf,
    /// Its manager, as `unix:/path`.
    pub manager: String,
    /// The node's name, which no other node of the manager has.
    pub name: String,
    /// How many cores it lends, the highest-numbered ones; all that this process may use if nothing is said.
    pub cores: Option<u32>,
    /// How much memory it lends, in bytes; three quarters of what is usable if nothing is said.
    pub memory_bytes: Option<u64>,
    /// The worker program.
    pub worker: PathBuf,
}

/// A running agent. Stopped when it is dropped.
pub struct Agent {
    node: Arc<Node>,
    acceptor: Option<JoinHandle<()>>,
    reporter: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts an agent: registers the node, then serves clients until it is stopped. Waits a few seconds for a
    /// manager that is not there yet.
    ///
    /// # Errors
    ///
    /// [`Code::InsufficientResources`] if more is to be lent than there is, [`Code::ManagerUnreachable`],
    /// [`Code::InvalidArgument`] for a path or address that cannot be used, [`Code::System`].
    pub fn start(options: Options) -> Result<Agent, Error> {
        let calibration = Calibration::start();
        let node = Arc::new(node(&options, calibration)?);
        let listener = PacketListener::listen(&options.socket)?;
        let mut agent = Agent { node: node.clone(), acceptor: None, reporter: None };
        let (tell, told) = sync_channel(1);
        let manager = options.manager;
        agent.reporter = Some(node.spawn("sublet-report", move |node| report::run(node, &manager, &tell))?);
        told.recv().map_err(|_| Error::new(Code::Internal, "the reporter has failed"))??;
        agent.acceptor = Some(node.spawn("sublet-accept", move |node| acceptor::run(node, listener))?);
        Ok(agent)
    }

    /// Ends all leases, tells the manager, and returns when nothing of the agent runs any more.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let name = &self.node.description.name;
        let reason = Error::new(Code::LeaseEnded, format!("the agent of node {name} is stopping"));
        self.node.ledger.close(&reason);
        self.node.stopping.raise();
        join(self.acceptor.take());
        self.node.ledger.finish();
        join(self.reporter.take());
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if thread.is_some_and(|thread| thread.join().is_err()) {
        tracing::error!("a thread of the agent has failed");
    }
}

fn node(options: &Options, calibration: Calibration) -> Result<Node, Error> {
    let cores = capacity::cores(options.cores)?;
    let memory_bytes = capacity::memory_bytes(options.memory_bytes)?;
    let state = make_state(&options.state)?;
    let socket = std::path::absolute(&options.socket)
        .map_err(|error| system("using the path", &options.socket, &error))?;
    let description = NodeDescription {
        name: options.name.clone(),
        agent: format!("unix:{}", utf8(&socket)?),
        architecture: std::env::consts::ARCH.to_owned(),
        cores: cores.len() as u32,
        memory_bytes,
    };
    Ok(Node {
        description,
        worker: find_worker(&options.worker)?,
        calibration,
        pool: Pool::new(Resources::new(cores, memory_bytes)),
        ledger: Arc::new(Ledger::default()),
        packages: Packages::open(&state, &options.manager)?,
        stopping: Signal::new()?,
        verifying: RwLock::new(None),
    })
}

/// The folder's absolute path, as workers need it.
fn make_state(folder: &Path) -> Result<PathBuf, Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let state = made
        .and_then(|()| fs::canonicalize(folder))
        .map_err(|error| system("making the folder", folder, &error))?;
    utf8(&state)?;
    Ok(state)
}

fn find_worker(program: &Path) -> Result<PathBuf, Error> {
    let found =
        fs::canonicalize(program).map_err(|error| system("finding the worker program", program, &error))?;
    if found.is_file() {
        return Ok(found);
    }
    Err(Error::new(Code::InvalidArgument, format!("the worker program {} is no file", program.display())))
}

fn utf8(path: &Path) -> Result<&str, Error> {
    path.to_str()
        .ok_or_else(|| Error::new(Code::InvalidArgument, format!("the path {} is not UTF-8", path.display())))
}

fn system(operation: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::System, format!("{operation} {} failed: {error}", path.display()))
}

/// Locks even if a thread failed while it held the lock: every critical section of this crate leaves its data whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
