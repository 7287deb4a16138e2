//! Holds the state that the threads of one agent share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sublet_fabric::clock::Calibration;
use sublet_fabric::progress::ProgressThread;
use sublet_fabric::sync::lock;
use sublet_proto::v1::NodeDescription;
use sublet_proto::{Error, pu};

use crate::execution::cache::NodeCache;
use crate::execution::images::Images;
use crate::execution::kernels::KernelPackages;
use crate::execution::logs::Logs;
use crate::execution::packages::NodePackages;
use crate::execution::programs::Programs;
use crate::execution::sandboxes::SandboxMaker;
use crate::leases::ledger::LeaseLedger;
use crate::leases::managers::Managers;
use crate::listener::connections::Connections;
use crate::listener::network::ListenerState;
use crate::machine::neighbours::Neighbours;
use crate::machine::resources::ResourcePool;
use crate::shim::Shim;
use crate::shim::bridge::Bridges;
use crate::signal::Signal;
use crate::threads::start_thread;

/// One node, as its connections, its acceptors, its reporter and its journal's keeper see it.
pub(crate) struct Node {
    /// Description of the node that the manager has; fixed for the agent's life.
    pub(crate) description: NodeDescription,
    /// 32 hexadecimal digits that no other start of an agent has.
    pub(crate) instance: String,
    /// Time of the agent's start, in milliseconds of Unix time, later than any earlier start on the state folder.
    pub(crate) started_ms: u64,
    /// The worker programs.
    pub(crate) programs: Programs,
    /// Images that the agent has built from packages of kernels.
    pub(crate) kernels: Arc<KernelPackages>,
    /// Whether functions that ask for it may use this machine's network.
    pub(crate) lends_network: bool,
    /// Images in which the functions of some packages run.
    pub(crate) images: Arc<Images>,
    /// The OCI runtime that makes their containers, if the agent does not.
    pub(crate) container_runtime: Option<PathBuf>,
    /// Id of the node's own processor among processing units.
    pub(crate) processor: u32,
    /// Global processes of all processing units of the node.
    pub(crate) shim: Shim,
    /// Maker of the sandboxes of all leases.
    pub(crate) sandboxes: Arc<SandboxMaker>,
    /// Output of the leases' functions.
    pub(crate) logs: Arc<Logs>,
    /// Calibration of the time-stamp counter since the agent's start.
    pub(crate) calibration: Calibration,
    pub(crate) pool: ResourcePool,
    pub(crate) ledger: Arc<LeaseLedger>,
    pub(crate) managers: Arc<Managers>,
    /// The nodes that this one is linked with.
    pub(crate) neighbours: Neighbours,
    pub(crate) bridges: Bridges,
    pub(crate) packages: Arc<NodePackages>,
    /// Cache of packages and images within its bound.
    pub(crate) cache: Arc<NodeCache>,
    /// Raised when the agent stops; every thread that waits for a client watches it.
    pub(crate) stopping: Signal,
    /// Idle timeout of leases that do not set their own.
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) clients: ClientUsers,
    /// Connections that have shown no ticket.
    pub(crate) connections: Arc<Connections>,
    /// Listener for clients of other machines, if they may connect.
    pub(crate) listener_state: Option<ListenerState>,
    /// Serves the memory of segments to clients of other machines, from the first one on.
    pub(crate) serving: Mutex<Option<Arc<ProgressThread>>>,
}

/// Users whose clients an agent serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientUsers {
    /// Clients of the agent's own user, and of root.
    #[default]
    OwnUser,
    /// Clients of all users of the machine: a ticket is all the authority that they need.
    AllUsers,
}

impl Node {
    /// The processing unit of this kind: the processor, unless it is a device that the node has.
    pub(crate) fn unit(&self, kind: &str) -> u32 {
        let device = self.description.device_units.iter().find(|device| device.kind == kind);
        device.map_or(self.processor, |device| pu::id(&self.description.name, &device.unit))
    }

    /// The thread that serves memory.
    pub(crate) fn progress(&self) -> Result<Arc<ProgressThread>, Error> {
        let mut serving = lock(&self.serving);
        if let Some(progress) = &*serving {
            return Ok(progress.clone());
        }
        Ok(serving.insert(Arc::new(ProgressThread::start()?)).clone())
    }

    /// Starts a thread of the agent.
    pub(crate) fn spawn<T: Send + 'static>(
        self: &Arc<Node>,
        name: &str,
        body: impl FnOnce(&Arc<Node>) -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, Error> {
        let node = self.clone();
        start_thread(name, move || body(&node))
    }
}
