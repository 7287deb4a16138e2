//! Executes kernels as components of a graph, whose input and output may be memory components.
//!
//! A kernel reads the memory component that it may only read, instead of the call's input, and writes its output to the
//! one that it may write. A memory component on the device is a buffer that stays in this process for the kernels that
//! follow here, and no byte of it is copied. Other memory components are copied through this process's own memory. An
//! output in a memory component replaces what was there, and the call's output is then empty.

use std::time::Instant;

use sublet_proto::{Code, Error};
use sublet_runtime::worker::channel::Channel;
use sublet_runtime::worker::engine::{CallInput, CallOutput, ErrorMessage};
use sublet_runtime::worker::worker_run::WorkerRun;

use super::KernelCaller;
use super::resident::{ResidentMemory, resident};
use crate::package::ONLY;
use crate::{DeviceError, Driver, FAILED, LaunchInput, LaunchOutput, Patience};

/// Memory components of a kernel.
#[derive(Clone, Copy, Default)]
struct KernelMemory<'run> {
    input: Option<&'run Channel>,
    output: Option<&'run Channel>,
}

/// Reason why a kernel was not executed, or its output not kept.
enum ComponentFailure {
    Device(DeviceError),
    Memory(Error),
}

impl From<DeviceError> for ComponentFailure {
    fn from(error: DeviceError) -> ComponentFailure {
        ComponentFailure::Device(error)
    }
}

impl From<Error> for ComponentFailure {
    fn from(error: Error) -> ComponentFailure {
        ComponentFailure::Memory(error)
    }
}

impl<'run> KernelMemory<'run> {
    fn of(run: &'run WorkerRun) -> Result<KernelMemory<'run>, Error> {
        let mut found = KernelMemory::default();
        for channel in run.memory() {
            let (which, what) = match channel.is_writable() {
                true => (&mut found.output, "writes"),
                false => (&mut found.input, "reads"),
            };
            if let Some(other) = which.replace(channel) {
                let (one, two) = (other.name(), channel.name());
                let message =
                    format!("a kernel {what} one memory component, and this one {what} {one} and {two}");
                return Err(Error::new(Code::InvalidArgument, message));
            }
        }
        Ok(found)
    }
}

impl<D: Driver> KernelCaller<'_, D> {
    /// Calls a function as a component of a run.
    pub(super) fn call_component(
        &mut self,
        run: &WorkerRun,
        function: u16,
        input: CallInput<'_>,
        output: CallOutput<'_>,
    ) -> Result<u32, Code> {
        let called = KernelMemory::of(run).map_err(ComponentFailure::Memory).and_then(|memory| {
            self.free_unneeded(run.device_memory_from, memory.output);
            self.launch_component(memory, function, input, output)
        });
        // The next components read what was written, and the client gets the counts before the result.
        let synced = called
            .and_then(|written| run.sync(self.worker).map(|()| written).map_err(ComponentFailure::Memory));
        synced.map_err(|failure| match failure {
            ComponentFailure::Device(error) => self.failed(&error),
            ComponentFailure::Memory(error) => self.explain(&error),
        })
    }

    /// Frees memory of components that are over, and of earlier runs: contents with smaller numbers than this.
    fn free_unneeded(&mut self, from: u64, output: Option<&Channel>) {
        // The output may use the buffer that the component had before.
        let output = output.map(Channel::name);
        self.resident.retain(|memory| memory.number >= from || output == Some(memory.component.as_str()));
    }

    fn launch_component(
        &mut self,
        memory: KernelMemory<'_>,
        function: u16,
        input: CallInput<'_>,
        mut output: CallOutput<'_>,
    ) -> Result<u32, ComponentFailure> {
        let engine = self.engine;
        let none = || Error::new(Code::UnknownFunction, "the package has no such function");
        let id = *engine.functions.get(usize::from(function)).ok_or_else(none)?;
        let patience = Patience::Until(Instant::now() + engine.deadline);
        // Taken before the input is looked up. It is kept only with the output of a kernel that succeeded.
        let mut kept = match memory.output {
            Some(channel) => self.take_resident(channel)?,
            None => None,
        };
        let input_bytes = self.load(memory.input, &input)?;
        let capacity = match memory.output {
            Some(_) if kept.is_some() => 0,
            Some(channel) => capacity_of(channel)?,
            None => output.capacity(),
        };
        reserve(&mut self.output, capacity)?;
        let from = match memory.input.and_then(|channel| Some((channel, channel.device_memory()?))) {
            Some((channel, number)) => LaunchInput::Device(resident(&self.resident, channel, number)?),
            None => LaunchInput::Host(&self.input[..input_bytes as usize]),
        };
        let to = match &mut kept {
            Some(kept) => LaunchOutput::Device(&mut kept.buffer),
            None => LaunchOutput::Host(&mut self.output[..capacity as usize]),
        };
        let launched = engine.sandboxes.launch(id, from, to, patience);
        if let (None, Err(DeviceError::WroteTooMuch { written, .. })) = (memory.output, &launched) {
            // The worker reports this error in the same way for all engines.
            return Ok(*written);
        }
        let written = launched?;
        match (kept, memory.output) {
            (Some(kept), _) => self.resident.push(kept),
            (None, Some(channel)) => replace(channel, self.worker, &self.output[..written as usize])?,
            (None, None) => {
                output.copy_from(&self.output[..written as usize]);
                return Ok(written);
            }
        }
        Ok(0)
    }

    /// Copies the input to this process's memory, unless it is on the device. Returns its length.
    fn load(&mut self, channel: Option<&Channel>, input: &CallInput<'_>) -> Result<u32, Error> {
        let Some(channel) = channel else {
            reserve(&mut self.input, input.len())?;
            input.copy_to(&mut self.input[..input.len() as usize]);
            return Ok(input.len());
        };
        if channel.device_memory().is_some() {
            return Ok(0);
        }
        let len_bytes = channel.len_bytes()?;
        let len = u32::try_from(len_bytes).ok().filter(|len| *len < FAILED).ok_or_else(|| {
            let name = channel.name();
            let message = format!(
                "memory component {name} has {len_bytes} bytes, and the input of a kernel at most {}",
                FAILED - 1
            );
            Error::new(Code::InputTooLarge, message)
        })?;
        reserve(&mut self.input, len)?;
        channel.read(0, (&mut self.input[..len as usize]).into())?;
        Ok(len)
    }

    /// Takes the buffer of a memory component on the device, which gets new content; `None` if it is not on the device.
    fn take_resident(&mut self, channel: &Channel) -> Result<Option<ResidentMemory<D>>, ComponentFailure> {
        let Some(number) = channel.device_memory() else { return Ok(None) };
        let component = channel.name();
        let bytes = capacity_of(channel)?;
        let before = self.resident.iter().position(|memory| memory.component == component);
        let before = before.map(|at| self.resident.swap_remove(at).buffer);
        let buffer = match before.filter(|buffer| buffer.capacity_bytes() == bytes) {
            Some(buffer) => buffer,
            None => self.engine.sandboxes.buffer(ONLY, bytes)?,
        };
        Ok(Some(ResidentMemory { component: component.to_owned(), number, buffer }))
    }

    /// Code and message of an error of memory.
    #[cold]
    fn explain(&mut self, error: &Error) -> Code {
        self.message = ErrorMessage::of(error.message.as_bytes());
        match error.code {
            Code::MemoryExceeded => Code::MemoryExceeded,
            _ => Code::FunctionFailed,
        }
    }
}

/// Largest output that a memory component takes, in bytes.
fn capacity_of(channel: &Channel) -> Result<u32, Error> {
    let limit = channel.limit_bytes();
    u32::try_from(limit).ok().filter(|limit| *limit < FAILED).ok_or_else(|| {
        let (name, most) = (channel.name(), FAILED - 1);
        let message = format!(
            "memory component {name} grows to {limit} bytes: limit_bytes for a kernel's output is at most {most}"
        );
        Error::new(Code::InvalidArgument, message)
    })
}

/// Makes a buffer have at least `len` bytes. Its content may be lost.
fn reserve(buffer: &mut Vec<u8>, len: u32) -> Result<(), Error> {
    let len = len as usize;
    if buffer.len() < len {
        let mut space = Vec::<u8>::new();
        space.try_reserve_exact(len).map_err(|_| {
            let message = format!("the worker has no {len} bytes for the input or output of a kernel");
            Error::new(Code::MemoryExceeded, message)
        })?;
        drop(space);
        // No page is touched here: the limit of an output may be much larger than the output.
        *buffer = vec![0; len];
    }
    Ok(())
}

/// Makes these bytes the content of a memory component.
fn replace(channel: &Channel, worker: u32, bytes: &[u8]) -> Result<(), Error> {
    if channel.len_bytes()? > bytes.len() as u64 {
        channel.resize(worker, bytes.len() as u64)?;
    }
    channel.write(0, bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bytes_that_are_not_written_take_no_memory() {
        let resident_kib = || -> u64 {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let (mut buffer, before_kib) = (Vec::new(), resident_kib());
        reserve(&mut buffer, 1 << 30).unwrap();
        assert_eq!((buffer.len(), buffer[1 << 29]), (1 << 30, 0));
        let grown_kib = resident_kib().saturating_sub(before_kib);
        assert!(grown_kib < 512 << 10, "{grown_kib} KiB of 1 GiB are there");
        buffer[0] = 7;
        reserve(&mut buffer, 4096).unwrap();
        assert_eq!((buffer.len(), buffer[0]), (1 << 30, 7), "large enough already");
    }
}
