//! `runG`: kernels by CUDA's driver interface, on NVIDIA's graphics processors.
//!
//! Every program is a module of its own in one context, so names need not be unique. The driver compiles PTX once: its
//! result, a cubin, is kept like every image. Several functions run at once on several streams.
//!
//! ```c
//! extern "C" __global__ void f(const uint8_t *input, uint32_t size, uint8_t *output, uint32_t capacity, uint32_t *written)
//! ```
//!
//! The kernel uses `*written` as in [`crate::opencl`].
//!
//! A kernel that reads or writes outside of its memory ends its context, which belongs to this process and this tenant:
//! the hardware keeps other processes' memory apart. After that every operation fails, and the process has to be
//! replaced.

mod ffi;
pub(crate) mod formats;
mod live;

use std::ffi::CString;
use std::sync::Arc;

use crate::driver::{BuildResult, BuiltPart, Driver, Grid, ImagePart, KernelArguments, LaunchProgress};
use crate::{DeviceError, DriverKind, MAX_LANES, Patience};
use formats::Format;
pub use live::{CudaDeviceInfo, discover, first};

/// Work-items of a group, if the specification does not define them.
const USUAL_GROUP: u32 = 128;

/// An open GPU.
pub struct Cuda {
    info: CudaDeviceInfo,
    identity: String,
    context: Arc<live::CudaContext>,
    lanes: usize,
}

impl Cuda {
    /// Opens a discovered GPU, for `streams` launches at once.
    pub fn open(info: &CudaDeviceInfo, streams: u32) -> Result<Cuda, DeviceError> {
        let lanes = streams as usize;
        if lanes == 0 || lanes > MAX_LANES {
            let reason = format!("{streams} launches at once: 1 to {MAX_LANES} can be");
            return Err(DeviceError::Unusable { kind: DriverKind::Cuda, reason });
        }
        let (identity, info) = (info.identity(), info.clone());
        Ok(Cuda { context: live::CudaContext::new(&info)?, info, identity, lanes })
    }

    /// Opens the GPU that executes a node's packages: the first, for `streams` launches at once.
    pub fn first(streams: u32) -> Result<Cuda, DeviceError> {
        Cuda::open(&first()?, streams)
    }

    /// Capabilities and sizes of the GPU.
    pub fn info(&self) -> &CudaDeviceInfo {
        &self.info
    }

    /// Makes a program of one part that the driver can load, and its object if the part was compiled.
    fn translate(&self, part: &ImagePart<'_>) -> Result<(Vec<u8>, Option<Vec<u8>>), String> {
        match part {
            ImagePart::Binary(bytes) => formats::check(bytes).map(|_| (bytes.to_vec(), None)),
            ImagePart::Object { bytes, .. } => formats::check(bytes).map(|_| (bytes.clone(), None)),
            ImagePart::Source { options, .. } if !options.trim().is_empty() => {
                Err("the driver's compiler takes no options".into())
            }
            ImagePart::Source { text, kernels, .. } => {
                formats::check_ptx(text, kernels)?;
                let cubin = self.context.compile(text).map_err(|error| match error {
                    DeviceError::Build { log, .. } => log,
                    other => other.to_string(),
                })?;
                match formats::check(&cubin)? {
                    Format::Cubin => Ok((cubin.clone(), Some(cubin))),
                    Format::Fatbin => Err("the driver made a fatbin of it".into()),
                }
            }
        }
    }
}

impl Driver for Cuda {
    const KIND: DriverKind = DriverKind::Cuda;
    type Module = live::CudaModule;
    type Kernel = live::CudaKernel;
    type Memory = live::CudaMemory;
    type Lane = live::CudaStream;

    fn identity(&self) -> &str {
        &self.identity
    }

    fn most_bytes(&self) -> u64 {
        self.info.memory_bytes
    }

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn build(&self, parts: &[ImagePart<'_>]) -> Result<BuildResult, DeviceError> {
        let mut build = BuildResult::default();
        for part in parts {
            let built = self.translate(part).map(|(program, object)| {
                build.programs.push(program);
                BuiltPart { object, program: build.programs.len() - 1, is_prefixed: false }
            });
            build.parts.push(built);
        }
        Ok(build)
    }

    fn load(&self, program: &[u8]) -> Result<live::CudaModule, DeviceError> {
        let build = |log| DeviceError::Build { name: String::new(), log };
        formats::check(program).map_err(build)?;
        live::CudaModule::new(&self.context, program).map_err(|error| build(error.to_string()))
    }

    fn kernel(&self, module: &live::CudaModule, name: &str) -> Result<live::CudaKernel, DeviceError> {
        let name = CString::new(name).expect("names have letters, digits and '_'");
        module.kernel(&name)
    }

    fn memory(&self, len_bytes: u64) -> Result<live::CudaMemory, DeviceError> {
        live::CudaMemory::new(&self.context, len_bytes)
    }

    fn lane(&self, _number: usize) -> Result<live::CudaStream, DeviceError> {
        live::CudaStream::new(&self.context)
    }

    fn write(
        &self,
        lane: &live::CudaStream,
        memory: &live::CudaMemory,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        lane.write(memory, bytes)
    }

    fn read(
        &self,
        lane: &live::CudaStream,
        memory: &live::CudaMemory,
        bytes: &mut [u8],
    ) -> Result<(), DeviceError> {
        lane.read(memory, bytes)
    }

    fn wipe(
        &self,
        lane: &live::CudaStream,
        memory: &live::CudaMemory,
        len_bytes: u64,
    ) -> Result<(), DeviceError> {
        lane.wipe(memory, len_bytes)
    }

    fn finish(&self, lane: &live::CudaStream) -> Result<(), DeviceError> {
        lane.finish()
    }

    fn launch(
        &self,
        lane: &live::CudaStream,
        kernel: &mut live::CudaKernel,
        arguments: &KernelArguments<'_, Cuda>,
        grid: Grid,
        patience: Patience,
    ) -> Result<LaunchProgress, DeviceError> {
        let most = u64::from(self.info.most_group_items);
        let group = grid.group.map_or(u64::from(USUAL_GROUP).min(grid.items), u64::from);
        if group > most {
            return Err(DeviceError::TooLarge { len_bytes: group, most_bytes: most });
        }
        let groups = grid.items.div_ceil(group);
        debug_assert!(groups <= u64::from(u32::MAX), "{grid:?} has {groups} groups of {group}");
        #[expect(
            clippy::cast_possible_truncation,
            reason = "both are of 32 bits, as asserted and checked above"
        )]
        let size = live::LaunchSize { groups: groups as u32, group: group as u32 };
        let block = live::ArgumentBlock::new(arguments);
        lane.launch(kernel, block, size, patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_where_there_is_no_gpu_is_said() {
        if let Err(error) = discover() {
            assert!(matches!(error, DeviceError::Unusable { kind: DriverKind::Cuda, .. }), "{error}");
            assert!(error.to_string().starts_with("cuda cannot be used: "), "{error}");
        }
    }
}
