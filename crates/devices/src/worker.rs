//! The engine of packages of kernels. The program `sublet-worker-kernels` combines it with a worker's loop.
//!
//! The process has the device for itself. At its start it makes and starts all kernels of the package as one vector,
//! from an image that was built before in another sandbox; a call is a launch. Input and output are copied through this
//! process's own memory: memory that a client may write at any time is never passed to a driver. The output that a
//! function leaves in a named buffer stays on the device, for the functions that read it there (Molecule 4.3). So does
//! the output of a graph's component in a memory component on the device.
//!
//! A kernel that continues after its deadline ends only with this process. Its call gets an error, and after the client
//! has received it the process kills itself; the next call starts another.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use sublet_proto::package::built_file;
use sublet_proto::{Code, Error};
use sublet_runtime::worker::engine::{
    self, BufferName, Engine, EngineLoad, ErrorMessage, FunctionCaller, InputSource, OutputSink,
};
use sublet_runtime::worker::{program, spawned, worker_run};

use crate::cuda::Cuda;
use crate::opencl::{self, OpenCl};
use crate::package::{ONLY, PackageKernels};
use crate::{
    CacheSettings, DeviceBuffer, DeviceError, DeviceSandboxId, DeviceSandboxes, Driver, DriverKind,
    LaunchInput, LaunchOutput, MAX_LANES, Patience,
};
use resident::ResidentMemory;

mod component;
mod resident;

/// Most bytes of its own memory that a thread keeps between calls, in each direction.
const KEPT_BYTES: usize = 4 << 20;

/// The whole of a worker process of a package for this kind of devices.
pub fn serve(kind: DriverKind) -> ExitCode {
    match kind {
        DriverKind::OpenCl => program::main(load_for_opencl, spawned::none),
        DriverKind::Cuda => program::main(|load| KernelEngine::load(load, Cuda::first), spawned::none),
    }
}

fn load_for_opencl(load: &EngineLoad<'_>) -> Result<KernelEngine<OpenCl>, Error> {
    // Worker threads are started when the package is loaded.
    opencl::enter_environment(load.workers);
    KernelEngine::load(load, |lanes| OpenCl::first(lanes, None))
}

/// A loaded package.
pub struct KernelEngine<D: Driver> {
    sandboxes: DeviceSandboxes<D>,
    functions: Vec<DeviceSandboxId>,
    deadline: Duration,
}

impl<D: Driver> KernelEngine<D> {
    /// Opens the device with one lane for each thread, and loads the package's kernels.
    ///
    /// # Errors
    /// The errors of the device and of the kernels.
    pub fn load(
        load: &EngineLoad<'_>,
        open: impl FnOnce(u32) -> Result<D, DeviceError>,
    ) -> Result<KernelEngine<D>, Error> {
        let PackageKernels { specs, deadline } = PackageKernels::read(load.folder, load.build)?;
        #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
        let driver = open(load.workers.clamp(1, MAX_LANES as u32))?;
        let image = load.folder.join(built_file(load.build));
        let settings = CacheSettings { image: Some(image), ..CacheSettings::default() };
        let sandboxes = DeviceSandboxes::open(driver, &settings)?;
        let created = sandboxes.create(&specs).into_iter().collect::<Result<Vec<_>, _>>();
        let functions = created.map_err(not_built)?;
        sandboxes.start(&functions).into_iter().try_for_each(|started| started.map(drop))?;
        Ok(KernelEngine { sandboxes, functions, deadline })
    }
}

/// Explains a build error: every package was built for this node's device before its worker starts, by the same driver.
fn not_built(error: DeviceError) -> Error {
    let is_of_image = matches!(error, DeviceError::Build { .. });
    let Error { code, message } = error.into();
    match is_of_image {
        true => {
            let why = "what the node has built of the package is not good for its driver: restart its agent";
            Error::new(code, format!("{why} ({message})"))
        }
        false => Error::new(code, message),
    }
}

impl<D: Driver> Engine for KernelEngine<D> {
    type Caller<'engine> = KernelCaller<'engine, D>;

    fn caller(&self, worker: u32) -> Result<KernelCaller<'_, D>, Error> {
        let (input, output, resident) = (Vec::new(), Vec::new(), Vec::new());
        let (places, message) = (std::array::from_fn(|_| None), ErrorMessage::new());
        Ok(KernelCaller { engine: self, worker, input, output, places, resident, message, is_lost: false })
    }
}

/// State with which one worker thread launches kernels.
pub struct KernelCaller<'engine, D: Driver> {
    engine: &'engine KernelEngine<D>,
    /// Number of the worker thread.
    worker: u32,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Named buffers in the memory of the device.
    places: [Option<DeviceBuffer<D>>; BufferName::COUNT],
    /// Memory components in the memory of the device.
    resident: Vec<ResidentMemory<D>>,
    message: ErrorMessage,
    /// A kernel has not ended.
    is_lost: bool,
}

impl<D: Driver> FunctionCaller for KernelCaller<'_, D> {
    const KEEPS: bool = true;

    fn call(
        &mut self,
        function: u16,
        input: engine::CallInput<'_>,
        output: engine::CallOutput<'_>,
    ) -> Result<u32, Code> {
        match worker_run::current() {
            Some(run) => self.call_component(&run, function, input, output),
            None => self.step(function, InputSource::Given(input), OutputSink::Given(output)),
        }
    }

    fn step(
        &mut self,
        function: u16,
        from: InputSource<engine::CallInput<'_>>,
        to: OutputSink<engine::CallOutput<'_>>,
    ) -> Result<u32, Code> {
        let Some(&id) = self.engine.functions.get(usize::from(function)) else {
            return Err(Code::UnknownFunction);
        };
        let patience = Patience::Until(Instant::now() + self.engine.deadline);
        // Taken before another buffer is looked up, and put back in any case.
        let mut written = match to {
            OutputSink::Kept(place, most_bytes) => Some((place, self.take(place, most_bytes)?)),
            OutputSink::Given(_) => None,
        };
        let input = match from {
            InputSource::Given(input) => {
                let from = output_space(&mut self.input, input.len());
                input.copy_to(from);
                LaunchInput::Host(from)
            }
            InputSource::Kept(place) => {
                LaunchInput::Device(self.places[place.index()].as_ref().ok_or(Code::Internal)?)
            }
        };
        let sandboxes = &self.engine.sandboxes;
        let launched = match to {
            OutputSink::Given(mut output) => {
                let into = output_space(&mut self.output, output.capacity());
                let launched = sandboxes.launch(id, input, LaunchOutput::Host(&mut *into), patience);
                launched.inspect(|written| output.copy_from(&into[..*written as usize]))
            }
            OutputSink::Kept(..) => {
                let (_, buffer) = written.as_mut().ok_or(Code::Internal)?;
                sandboxes.launch(id, input, LaunchOutput::Device(buffer), patience)
            }
        };
        if let Some((place, buffer)) = written {
            self.places[place.index()] = Some(buffer);
        }
        match launched {
            // The worker reports this error in the same way for all engines.
            Err(DeviceError::WroteTooMuch { written, .. }) => Ok(written),
            launched => launched.map_err(|error| self.failed(&error)),
        }
    }

    fn copy(
        &mut self,
        from: InputSource<engine::CallInput<'_>>,
        to: OutputSink<engine::CallOutput<'_>>,
    ) -> Result<u32, Code> {
        let copied = match (from, to) {
            (InputSource::Given(input), OutputSink::Kept(place, most_bytes)) => {
                let mut buffer = self.take(place, most_bytes)?;
                let from = output_space(&mut self.input, input.len());
                input.copy_to(from);
                let copied = buffer.write(from).map(|()| input.len());
                self.places[place.index()] = Some(buffer);
                copied
            }
            (InputSource::Kept(place), OutputSink::Given(mut output)) => {
                let buffer = self.places[place.index()].as_ref().ok_or(Code::Internal)?;
                let into = output_space(&mut self.output, output.capacity().min(buffer.len_bytes()));
                buffer.read(into).map(|()| output.copy_from(&*into)).map(|()| buffer.len_bytes())
            }
            _ => return Err(Code::Internal),
        };
        copied.map_err(|error| self.failed(&error))
    }

    fn forget(&mut self, place: BufferName) {
        self.places[place.index()] = None;
    }

    fn message(&self) -> &[u8] {
        self.message.as_bytes()
    }

    fn rest(&mut self) {
        if self.is_lost {
            end();
        }
        for bytes in [&mut self.input, &mut self.output] {
            if bytes.len() > KEPT_BYTES {
                *bytes = Vec::new();
            }
        }
    }
}

impl<D: Driver> KernelCaller<'_, D> {
    /// Takes the memory of a named buffer, of `bytes` bytes, with its content.
    fn take(&mut self, place: BufferName, bytes: u32) -> Result<DeviceBuffer<D>, Code> {
        let place = self.places.get_mut(place.index()).ok_or(Code::Internal)?;
        let there = place.take().filter(|buffer| buffer.capacity_bytes() == bytes);
        let taken = there.map_or_else(|| self.engine.sandboxes.buffer(ONLY, bytes), Ok);
        taken.map_err(|error| self.failed(&error))
    }

    /// Code and message of a call's error.
    #[cold]
    fn failed(&mut self, error: &DeviceError) -> Code {
        let (code, message) = match error {
            DeviceError::RunsOn => {
                self.is_lost = true;
                let deadline_ms = self.engine.deadline.as_millis();
                let message = format!("ran longer than its package allows, {deadline_ms} ms");
                (Code::DeadlineExceeded, message)
            }
            DeviceError::TooLarge { .. } => (Code::MemoryExceeded, error.to_string()),
            other => (Code::FunctionFailed, other.to_string()),
        };
        self.message = ErrorMessage::of(message.as_bytes());
        code
    }
}

/// The first `len` bytes of a buffer that grows as needed.
fn output_space(buffer: &mut Vec<u8>, len: u32) -> &mut [u8] {
    let len = len as usize;
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Ends the process at once: a driver's clean-up would wait for the kernel.
#[cold]
fn end() -> ! {
    eprintln!("sublet-worker: a kernel has not ended in time, and ends with this process");
    // Only the end of the process follows, whatever this returns.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}
