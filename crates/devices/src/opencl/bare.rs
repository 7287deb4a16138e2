//! A launch with the least work that OpenCL allows: the reference for measurements of calls.

use super::{OpenCl, live};
use crate::driver::{Driver, ImagePart};
use crate::{DeviceError, KernelProgram, KernelSpec, Patience};

/// One kernel with its arguments set, on a queue of its own.
pub struct Launcher {
    queue: live::CommandQueue,
    kernel: live::OpenClKernel,
    _memory: live::OpenClMemory,
    items: u64,
}

impl Launcher {
    /// Makes a launcher of a kernel, with an input of `input_bytes` bytes.
    pub fn new(device: &OpenCl, spec: &KernelSpec, input_bytes: u32) -> Result<Launcher, DeviceError> {
        let kernels = [spec.kernel.clone()];
        let part = match &spec.program {
            KernelProgram::Source { text, options } => {
                ImagePart::Source { text, options, kernels: &kernels, prefix: "bare_" }
            }
            KernelProgram::Binary(bytes) => ImagePart::Binary(bytes),
        };
        let build = device.build(&[part])?;
        let name = spec.kernel.clone();
        let part = build.parts.into_iter().next().unwrap_or_else(|| Err("nothing was built".into()));
        let part = part.map_err(|log| DeviceError::Build { name, log })?;
        let module = device.load(&build.programs[part.program])?;
        let prefix = if part.is_prefixed { "bare_" } else { "" };
        let mut kernel = device.kernel(&module, &format!("{prefix}{}", spec.kernel))?;
        let memory = device.memory(u64::from(input_bytes).max(4))?;
        [0, 2, 4].iter().try_for_each(|number| kernel.set_memory(*number, &memory))?;
        [1, 3].iter().try_for_each(|number| kernel.set_number(*number, input_bytes))?;
        let items = spec.work.items_for(input_bytes);
        Ok(Launcher { queue: device.lane(0)?, kernel, _memory: memory, items })
    }

    /// Executes `clEnqueueNDRangeKernel` and `clFinish`.
    pub fn launch(&mut self) -> Result<(), DeviceError> {
        self.queue.launch(&mut self.kernel, self.items, None, Patience::Forever)?;
        self.queue.finish()
    }
}
