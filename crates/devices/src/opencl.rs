//! `runf`: kernels by OpenCL, on processors (PoCL), graphics processors and FPGAs.
//!
//! A vector of functions becomes one program: a [`Builder`] compiles each source separately, with its kernels renamed
//! by definitions (`-Dmain_kernel=f0123_main_kernel`), so that two may have the same name; then all are linked. Where
//! two cannot be linked (helpers of the same name) each program of the image takes the parts that fit together.
//! Complete binaries, the only programs that an FPGA takes, are programs of their own, in which one binary may contain
//! many kernels.
//!
//! ```c
//! kernel void f(global const uchar *input, uint size, global uchar *output, uint capacity, global uint *written)
//! ```
//!
//! `*written` is zero at first. One work-item sets it to the number of bytes of output, or to `0xffffffff`; then the
//! output begins with a message that ends in zero.
//!
//! **Two at once.** A queue executes in order, so a device that is to run two functions at once has two lanes of a
//! [`Partition`]: queues, among which the driver shares the device, or sub-devices, each with compute units of its own.
//! All belong to one context, so all of them can use all buffers and programs.
//!
//! **PoCL** by default compiles a kernel again for each new group size. That takes a fifth of a second in the middle of
//! a call, and needs a compiler and a linker in the tenant's sandbox. A program that starts a process that uses devices
//! puts [`ENVIRONMENT`] into its environment to prevent this. The builder has it.

pub mod bare;
mod compile;
mod discover;
pub(crate) mod environment;
mod ffi;
mod live;

use std::ffi::CString;
use std::sync::Arc;

use crate::builder::Builder;
use crate::driver::{BuildResult, Driver, Grid, ImagePart, KernelArguments, LaunchProgress};
use crate::{DeviceError, DriverKind, MAX_LANES, Patience};

pub(crate) use compile::serve;
use compile::unusable;
pub use discover::{DeviceKind, OpenClDeviceInfo, discover, first};
pub use environment::{ENVIRONMENT, enter_environment};

/// How several launches share a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Partition {
    /// This number of queues on the whole device.
    Queues(u32),
    /// This number of equal parts, each with compute units of its own.
    Parts(u32),
}

/// An open device.
pub struct OpenCl {
    info: OpenClDeviceInfo,
    identity: String,
    context: Arc<live::OpenClContext>,
    lanes: usize,
    builder: Option<Builder>,
}

impl OpenCl {
    /// Opens a discovered device. Without a builder the device takes no sources, and an untrusted binary is first read
    /// in this process.
    pub fn open(
        info: &OpenClDeviceInfo,
        partition: Partition,
        builder: Option<Builder>,
    ) -> Result<OpenCl, DeviceError> {
        if let Some(reason) = &info.unusable {
            return Err(unusable(format!("the device {:?}: {reason}", info.name)));
        }
        let (Partition::Queues(count) | Partition::Parts(count)) = partition;
        if count == 0 || count as usize > MAX_LANES {
            return Err(unusable(format!("{count} launches at once: 1 to {MAX_LANES} can be")));
        }
        let devices = match partition {
            Partition::Queues(_) => vec![info.device],
            Partition::Parts(_) if count > info.most_parts || count > info.compute_units => {
                let reason = format!("{:?} cannot be cut into {count} parts", info.name);
                return Err(unusable(reason));
            }
            Partition::Parts(_) => discover::cut(info, &vec![info.compute_units / count; count as usize])?,
        };
        let (identity, info) = (info.identity(), info.clone());
        let context = live::OpenClContext::new(devices, info.shares_memory)?;
        Ok(OpenCl { info, identity, context, lanes: count as usize, builder })
    }

    /// Opens the device that executes a node's packages: the first that can be used, whole, for `lanes` launches at
    /// once.
    pub fn first(lanes: u32, builder: Option<Builder>) -> Result<OpenCl, DeviceError> {
        OpenCl::open(&first()?, Partition::Queues(lanes), builder)
    }

    /// Capabilities and sizes of the device.
    pub fn info(&self) -> &OpenClDeviceInfo {
        &self.info
    }
}

impl Driver for OpenCl {
    const KIND: DriverKind = DriverKind::OpenCl;
    type Module = live::OpenClModule;
    type Kernel = live::OpenClKernel;
    type Memory = live::OpenClMemory;
    type Lane = live::CommandQueue;

    fn identity(&self) -> &str {
        &self.identity
    }

    fn most_bytes(&self) -> u64 {
        self.info.most_bytes
    }

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn build(&self, parts: &[ImagePart<'_>]) -> Result<BuildResult, DeviceError> {
        match &self.builder {
            Some(builder) => builder.build(&self.identity, parts),
            None => Ok(compile::binaries_only(parts)),
        }
    }

    fn load(&self, program: &[u8]) -> Result<live::OpenClModule, DeviceError> {
        let module =
            live::OpenClModule::of_binary(&self.context, program).map_err(|error| DeviceError::Build {
                name: String::new(),
                log: format!("it is no binary for this device: {error}"),
            })?;
        module.build()?;
        Ok(module)
    }

    fn kernel(&self, module: &live::OpenClModule, name: &str) -> Result<live::OpenClKernel, DeviceError> {
        let name = CString::new(name).expect("names have letters, digits and '_'");
        live::OpenClKernel::new(module, &name)
    }

    fn memory(&self, len_bytes: u64) -> Result<live::OpenClMemory, DeviceError> {
        live::OpenClMemory::new(&self.context, len_bytes)
    }

    fn lane(&self, number: usize) -> Result<live::CommandQueue, DeviceError> {
        let devices = &self.context.devices;
        live::CommandQueue::new(&self.context, devices[number % devices.len()])
    }

    fn write(
        &self,
        lane: &live::CommandQueue,
        memory: &live::OpenClMemory,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        lane.write(memory, bytes)
    }

    fn read(
        &self,
        lane: &live::CommandQueue,
        memory: &live::OpenClMemory,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        lane.read(memory, bytes)
    }

    fn wipe(
        &self,
        lane: &live::CommandQueue,
        memory: &live::OpenClMemory,
        len_bytes: u64,
    ) -> Result<(), DeviceError> {
        lane.wipe(memory, len_bytes)
    }

    fn finish(&self, lane: &live::CommandQueue) -> Result<(), DeviceError> {
        lane.finish()
    }

    fn launch(
        &self,
        lane: &live::CommandQueue,
        kernel: &mut live::OpenClKernel,
        arguments: &KernelArguments<'_, OpenCl>,
        grid: Grid,
        patience: Patience,
    ) -> Result<LaunchProgress, DeviceError> {
        kernel.set_memory(0, arguments.input)?;
        kernel.set_number(1, arguments.size)?;
        kernel.set_memory(2, arguments.output)?;
        kernel.set_number(3, arguments.capacity)?;
        kernel.set_memory(4, arguments.written)?;
        lane.launch(kernel, grid.items, grid.group, patience)
    }
}
