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
mod environment;
mod ffi;
mod live;

use std::ffi::CString;
use std::sync::Arc;

use crate::builder::Builder;
use crate::driver::{Arguments, Build, Driver, Grid, Part, Progress};
use crate::{DeviceError, Kind, MAX_LANES, Patience};

pub(crate) use compile::serve;
pub use discover::{DeviceInfo, DeviceKind, discover, first};
pub use environment::enter_environment;

/// Environment variables of every process that uses a device.
pub const ENVIRONMENT: &[(&str, &str)] = &[("POCL_WORK_GROUP_SPECIALIZATION", "0")];

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
    info: DeviceInfo,
    identity: String,
    context: Arc<live::Context>,
    lanes: usize,
    builder: Option<Builder>,
}

impl OpenCl {
    /// Opens a discovered device. Without a builder the device takes no sources, and an untrusted binary is first read
    /// in this process.
    pub fn open(
        info: &DeviceInfo,
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
        let context = live::Context::new(devices, info.shares_memory)?;
        Ok(OpenCl { info, identity, context, lanes: count as usize, builder })
    }

    /// Opens the device that executes a node's packages: the first that can be used, whole, for `lanes` launches at
    /// once.
    pub fn first(lanes: u32, builder: Option<Builder>) -> Result<OpenCl, DeviceError> {
        OpenCl::open(&first()?, Partition::Queues(lanes), builder)
    }

    /// Capabilities and sizes of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }
}

impl Driver for OpenCl {
    const KIND: Kind = Kind::OpenCl;
    type Module = live::Module;
    type Kernel = live::Kernel;
    type Memory = live::Memory;
    type Lane = live::Queue;

    fn identity(&self) -> &str {
        &self.identity
    }

    fn most_bytes(&self) -> u64 {
        self.info.most_bytes
    }

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn build(&self, parts: &[Part<'_>]) -> Result<Build, DeviceError> {
        match &self.builder {
            Some(builder) => builder.build(&self.identity, parts),
            None => Ok(compile::binaries_only(parts)),
        }
    }

    fn load(&self, program: &[u8]) -> Result<live::Module, DeviceError> {
        let module = live::Module::of_binary(&self.context, program).map_err(|error| DeviceError::Build {
            name: String::new(),
            log: format!("it is no binary for this device: {error}"),
        })?;
        module.build()?;
        Ok(module)
    }

    fn kernel(&self, module: &live::Module, name: &str) -> Result<live::Kernel, DeviceError> {
        let name = CString::new(name).expect("names have letters, digits and '_'");
        live::Kernel::new(module, &name)
    }

    fn memory(&self, len_bytes: u64) -> Result<live::Memory, DeviceError> {
        live::Memory::new(&self.context, len_bytes)
    }

    fn lane(&self, number: usize) -> Result<live::Queue, DeviceError> {
        let devices = &self.context.devices;
        live::Queue::new(&self.context, devices[number % devices.len()])
    }

    fn write(&self, lane: &live::Queue, memory: &live::Memory, bytes: &[u8]) -> Result<(), DeviceError> {
        lane.write(memory, bytes)
    }

    fn read(&self, lane: &live::Queue, memory: &live::Memory, bytes: &mut [u8]) -> Result<(), DeviceError> {
        lane.read(memory, bytes)
    }

    fn wipe(&self, lane: &live::Queue, memory: &live::Memory, len_bytes: u64) -> Result<(), DeviceError> {
        lane.wipe(memory, len_bytes)
    }

    fn finish(&self, lane: &live::Queue) -> Result<(), DeviceError> {
        lane.finish()
    }

    fn launch(
        &self,
        lane: &live::Queue,
        kernel: &mut live::Kernel,
        arguments: &Arguments<'_, OpenCl>,
        grid: Grid,
        patience: Patience,
    ) -> Result<Progress, DeviceError> {
        kernel.set_memory(0, arguments.input)?;
        kernel.set_number(1, arguments.size)?;
        kernel.set_memory(2, arguments.output)?;
        kernel.set_number(3, arguments.capacity)?;
        kernel.set_memory(4, arguments.written)?;
        lane.launch(kernel, grid.items, grid.group, patience)
    }
}

fn unusable(reason: String) -> DeviceError {
    DeviceError::Unusable { kind: Kind::OpenCl, reason }
}
