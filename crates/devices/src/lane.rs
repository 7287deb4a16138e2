//! Executes launches one after the other: a driver's lane, with memory for inputs from the host and outputs to the
//! host.
//!
//! The word into which a kernel writes the size of its output is zero before each launch. It is cleared right after it
//! was read, which the host need not wait for.

use std::sync::Arc;

use crate::memory::{BufferPool, DevicePiece};
use crate::{DeviceBuffer, DeviceError, Driver, FAILED, Grid, KernelArguments, MAX_MESSAGE_BYTES, Patience};
use crate::{LaunchProgress, TenantId, bytes};

/// Input of a launch.
pub enum LaunchInput<'a, D: Driver> {
    /// Bytes that are copied to the device first.
    Host(&'a [u8]),
    /// Data that an earlier launch has left on the device.
    Device(&'a DeviceBuffer<D>),
}

/// Destination of a launch's output.
pub enum LaunchOutput<'a, D: Driver> {
    /// Host memory, to which the written bytes are copied after the launch.
    Host(&'a mut [u8]),
    /// A buffer that stays on the device.
    Device(&'a mut DeviceBuffer<D>),
}

impl<D: Driver> LaunchOutput<'_, D> {
    fn capacity_bytes(&self) -> u64 {
        match self {
            LaunchOutput::Host(bytes) => bytes.len() as u64,
            LaunchOutput::Device(buffer) => u64::from(buffer.capacity_bytes()),
        }
    }
}

/// One lane.
pub(crate) struct Lane<D: Driver> {
    queue: D::Lane,
    pool: Arc<BufferPool<D>>,
    staging: Option<Staging<D>>,
    word: DevicePiece<D>,
    is_word_zero: bool,
}

/// One tenant's device memory for inputs from the host and outputs to it.
struct Staging<D: Driver> {
    tenant: TenantId,
    input: DevicePiece<D>,
    output: DevicePiece<D>,
}

/// A kernel to launch, and the patience of its caller.
pub(crate) struct Launch<'a, D: Driver> {
    pub tenant: TenantId,
    pub kernel: &'a mut D::Kernel,
    pub grid: Grid,
    pub patience: Patience,
}

impl<D: Driver> Lane<D> {
    pub fn new(pool: &Arc<BufferPool<D>>, number: usize) -> Result<Lane<D>, DeviceError> {
        let queue = pool.driver.lane(number)?;
        let word = pool.take(TenantId(u64::MAX), size_of::<u32>() as u64)?;
        Ok(Lane { queue, pool: Arc::clone(pool), staging: None, word, is_word_zero: true })
    }

    /// Launches, waits, and returns the number of bytes written.
    pub fn run(
        &mut self,
        launch: Launch<'_, D>,
        input: LaunchInput<'_, D>,
        mut output: LaunchOutput<'_, D>,
    ) -> Result<u32, DeviceError> {
        let (size, capacity) = self.prepare(launch.tenant, &input, &output)?;
        let staging = self.staging.as_ref();
        let is_on_host = matches!(input, LaunchInput::Host(_)) || matches!(output, LaunchOutput::Host(_));
        debug_assert!(
            !is_on_host || staging.is_some_and(|staging| staging.tenant == launch.tenant),
            "memory of {:?} for a launch of {:?}",
            staging.map(|staging| staging.tenant),
            launch.tenant
        );
        let staged = || staging.expect("prepared for whatever is on the host");
        let pool = Arc::clone(&self.pool);
        if let LaunchInput::Host(bytes) = &input
            && !bytes.is_empty()
        {
            pool.write(&self.queue, &staged().input.memory, bytes)?;
        }
        let arguments = KernelArguments {
            input: match &input {
                LaunchInput::Host(_) => &staged().input.memory,
                LaunchInput::Device(buffer) => buffer.memory(),
            },
            size,
            output: match &output {
                LaunchOutput::Host(_) => &staged().output.memory,
                LaunchOutput::Device(buffer) => buffer.memory(),
            },
            capacity,
            written: &self.word.memory,
        };
        let is_word_zero = std::mem::replace(&mut self.is_word_zero, false);
        let (driver, queue) = (&pool.driver, &self.queue);
        if !is_word_zero {
            driver.wipe(queue, &self.word.memory, size_of::<u32>() as u64)?;
        }
        if driver.launch(queue, launch.kernel, &arguments, launch.grid, launch.patience)?
            == LaunchProgress::RunsOn
        {
            pool.lose();
            return Err(DeviceError::RunsOn);
        }
        let mut word = [0; size_of::<u32>()];
        driver.read(queue, &self.word.memory, &mut word)?;
        let written = u32::from_le_bytes(word);
        let staged = staging.map(|staging| &staging.output.memory);
        let ended = collect(&pool, queue, staged, written, &mut output);
        self.clear_word(written)?;
        ended
    }

    /// Checks sizes and buffers, and reserves device memory for inputs and outputs on the host.
    fn prepare(
        &mut self,
        tenant: TenantId,
        input: &LaunchInput<'_, D>,
        output: &LaunchOutput<'_, D>,
    ) -> Result<(u32, u32), DeviceError> {
        let (mut input_bytes, mut output_bytes) = (None, None);
        let size = match input {
            LaunchInput::Host(bytes) => *input_bytes.insert(bytes.len() as u64),
            LaunchInput::Device(buffer) => {
                buffer.check(tenant, &self.pool).map(|()| u64::from(buffer.len_bytes()))?
            }
        };
        let capacity = output.capacity_bytes();
        match output {
            LaunchOutput::Host(_) => output_bytes = Some(capacity),
            LaunchOutput::Device(buffer) => buffer.check(tenant, &self.pool)?,
        }
        // The largest number means that a kernel failed.
        let most_bytes = u64::from(FAILED - 1);
        let narrow = |len_bytes: u64| {
            u32::try_from(len_bytes)
                .ok()
                .filter(|len| *len != FAILED)
                .ok_or(DeviceError::TooLarge { len_bytes, most_bytes })
        };
        let sizes = (narrow(size)?, narrow(capacity)?);
        if input_bytes.is_some() || output_bytes.is_some() {
            self.stage(tenant, input_bytes.unwrap_or(0), output_bytes.unwrap_or(0))?;
        }
        Ok(sizes)
    }

    /// Reserves memory of this tenant, of at least these sizes.
    fn stage(&mut self, tenant: TenantId, input_bytes: u64, output_bytes: u64) -> Result<(), DeviceError> {
        let is_enough = self.staging.as_ref().is_some_and(|staging| {
            let Staging { tenant: owner, input, output } = staging;
            *owner == tenant && input.len_bytes >= input_bytes && output.len_bytes >= output_bytes
        });
        if is_enough {
            return Ok(());
        }
        self.unstage();
        let input = self.pool.take(tenant, input_bytes)?;
        let output = match self.pool.take(tenant, output_bytes) {
            Ok(output) => output,
            Err(error) => {
                self.pool.give(input);
                return Err(error);
            }
        };
        self.staging = Some(Staging { tenant, input, output });
        Ok(())
    }

    fn unstage(&mut self) {
        if let Some(Staging { input, output, .. }) = self.staging.take() {
            self.pool.give(input);
            self.pool.give(output);
        }
    }

    fn clear_word(&mut self, written: u32) -> Result<(), DeviceError> {
        if written != 0 {
            self.pool.driver.wipe(&self.queue, &self.word.memory, size_of::<u32>() as u64)?;
        }
        self.is_word_zero = true;
        Ok(())
    }
}

impl<D: Driver> Drop for Lane<D> {
    fn drop(&mut self) {
        self.unstage();
    }
}

/// Collects the result of a launch that has ended.
fn collect<D: Driver>(
    pool: &BufferPool<D>,
    queue: &D::Lane,
    staged: Option<&D::Memory>,
    written: u32,
    output: &mut LaunchOutput<'_, D>,
) -> Result<u32, DeviceError> {
    #[expect(clippy::cast_possible_truncation, reason = "`prepare` refuses capacities beyond 32 bits")]
    let capacity = output.capacity_bytes() as u32;
    if written == FAILED {
        let memory = match output {
            LaunchOutput::Host(_) => staged.expect("prepared for whatever is on the host"),
            LaunchOutput::Device(buffer) => buffer.memory(),
        };
        let mut said = vec![0; (capacity as usize).min(MAX_MESSAGE_BYTES)];
        if !said.is_empty() {
            pool.read(queue, memory, &mut said)?;
        }
        let message = bytes::told(&said, MAX_MESSAGE_BYTES);
        let message = if message.is_empty() { "the kernel failed without a message".into() } else { message };
        return Err(DeviceError::Failed(message));
    }
    if written > capacity {
        return Err(DeviceError::WroteTooMuch { written, capacity_bytes: capacity });
    }
    match output {
        LaunchOutput::Host(_) if written == 0 => {}
        LaunchOutput::Host(bytes) => {
            let memory = staged.expect("prepared for whatever is on the host");
            pool.read(queue, memory, &mut bytes[..written as usize])?;
        }
        LaunchOutput::Device(buffer) => buffer.len_bytes = written,
    }
    Ok(written)
}
