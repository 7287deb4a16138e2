//! Prepares and runs workers: packages, images, interpreters and kernels, their cache on disk, sandboxes and processes.

pub(crate) mod background_task;
pub(crate) mod c_library;
pub(crate) mod cache;
pub(crate) mod devices;
pub(crate) mod folders;
pub(crate) mod image_interpreters;
pub(crate) mod images;
pub(crate) mod isolations;
pub(crate) mod kernels;
pub(crate) mod logs;
pub(crate) mod packages;
pub(crate) mod programs;
pub(crate) mod runtimes;
pub(crate) mod sandboxes;
pub(crate) mod shared_work;
pub(crate) mod standby;
pub(crate) mod start_cores;
pub(crate) mod worker;

use std::sync::Arc;

use cache::NodeCache;
use folders::LentFolders;
use image_interpreters::ImageInterpreters;
use images::Images;
use isolations::Isolations;
use kernels::KernelPackages;
use logs::Logs;
use packages::NodePackages;
use programs::Programs;
use sandboxes::SandboxMaker;
use standby::Standby;

use crate::machine::devices::DevicePool;

/// Everything by which the node executes functions.
pub(crate) struct ExecutionMeans {
    /// The worker programs.
    pub(crate) programs: Programs,
    /// Maker of the sandboxes of all leases.
    pub(crate) sandboxes: Arc<SandboxMaker>,
    /// Processes that have imported modules and wait for leases.
    pub(crate) standby: Standby,
    /// Isolations that the node offers.
    pub(crate) isolations: Isolations,
    /// Whether functions that ask for it may use this machine's network.
    pub(crate) lends_network: bool,
    /// Folders of the operator that functions can use.
    pub(crate) folders: LentFolders,
    /// Devices that programs can use, each one lease's at a time.
    pub(crate) devices: DevicePool,
    /// Whether control groups bound the memory of sandboxes.
    pub(crate) bounds_memory: bool,
    pub(crate) packages: Arc<NodePackages>,
    /// Images that the agent has built from packages of kernels.
    pub(crate) kernels: Arc<KernelPackages>,
    /// Images in which the functions of some packages run.
    pub(crate) images: Arc<Images>,
    /// The interpreters of these images.
    pub(crate) image_interpreters: Arc<ImageInterpreters>,
    /// Cache of packages and images within its bound.
    pub(crate) cache: Arc<NodeCache>,
    /// Output of the leases' functions.
    pub(crate) logs: Arc<Logs>,
}
