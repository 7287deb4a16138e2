//! Holds the state that the threads of one agent share.

use std::sync::Arc;
use std::thread::JoinHandle;

use sublet_fabric::clock::Calibration;
use sublet_proto::v1::NodeDescription;
use sublet_proto::{Error, pu};

use crate::execution::ExecutionMeans;
use crate::leases::NodeLeases;
use crate::listener::ClientAccess;
use crate::machine::flash::FlashDisk;
use crate::machine::numa::NumaNodes;
use crate::machine::resources::ResourcePool;
use crate::shim::link::ShimLinks;
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
    /// Calibration of the time-stamp counter since the agent's start.
    pub(crate) calibration: Calibration,
    /// Raised when the agent stops; every thread that waits for a client watches it.
    pub(crate) stopping: Signal,
    pub(crate) pool: ResourcePool,
    /// NUMA nodes of segments.
    pub(crate) numa: NumaNodes,
    /// The disk of segments, if the node lends one in place of memory.
    pub(crate) flash: Option<FlashDisk>,
    pub(crate) execution: ExecutionMeans,
    pub(crate) leases: NodeLeases,
    pub(crate) clients: ClientAccess,
    pub(crate) links: Arc<ShimLinks>,
}

impl Node {
    /// The processing unit of this kind: the processor, unless it is a device that the node has.
    pub(crate) fn unit(&self, kind: &str) -> u32 {
        let device = self.description.device_units.iter().find(|device| device.kind == kind);
        device.map_or(self.links.processor, |device| pu::id(&self.description.name, &device.unit))
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
