//! Registered memory for the messages of calls, which is used again: memory that is mapped already is much faster than
//! new memory.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sublet::{Buffer, Error, RegisteredMemory};
use sublet_proto::to_usize;

use crate::fork_cell::ForkCell;

/// Size of the smallest piece in bytes; most messages are smaller.
const SMALLEST_BYTES: u64 = 64 << 10;
/// Most bytes that wait to be used again.
const MOST_IDLE_BYTES: u64 = 256 << 20;

/// A piece of registered memory for one message. Dropping it gives the memory back to the pool.
pub struct MessageMemory {
    buffer: ManuallyDrop<ForkCell<Buffer<u8>>>,
    pool: Arc<MemoryPool>,
}

/// A shared page, which goes back to its pool with the last reference.
pub type Paper = Arc<MessageMemory>;

/// The memory of some invokers, and pieces of it that wait to be used again.
pub struct MemoryPool {
    memory: RegisteredMemory,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// Unused pieces; the one that was used last is the last.
    buffers: Vec<ForkCell<Buffer<u8>>>,
    bytes: u64,
}

impl MemoryPool {
    /// Makes a pool of this memory.
    pub fn of(memory: RegisteredMemory) -> Arc<MemoryPool> {
        Arc::new(MemoryPool { memory, idle: Mutex::default() })
    }

    /// Returns the pool of the memory that arrays are in, for workers on this machine.
    pub fn shared() -> Result<&'static Arc<MemoryPool>, Error> {
        static SHARED: OnceLock<Arc<MemoryPool>> = OnceLock::new();
        if let Some(pool) = SHARED.get() {
            return Ok(pool);
        }
        let made = MemoryPool::of(RegisteredMemory::new()?);
        Ok(SHARED.get_or_init(|| made))
    }

    /// The registered memory of the pool.
    pub fn memory(&self) -> &RegisteredMemory {
        &self.memory
    }

    /// Takes a piece of at least `len_bytes` bytes.
    pub fn take(self: &Arc<MemoryPool>, len_bytes: u64) -> Result<Paper, Error> {
        let wanted = len_bytes.max(SMALLEST_BYTES);
        let buffer = match self.take_idle(wanted) {
            Some(buffer) => buffer,
            None => {
                let most = u64::from(u32::MAX);
                let whole =
                    wanted.checked_next_power_of_two().filter(|&bytes| bytes <= most).unwrap_or(wanted);
                ForkCell::new(self.memory.buffer::<u8>(to_usize(whole))?)
            }
        };
        Ok(Arc::new(MessageMemory { buffer: ManuallyDrop::new(buffer), pool: self.clone() }))
    }

    fn take_idle(&self, wanted: u64) -> Option<ForkCell<Buffer<u8>>> {
        let mut idle = self.lock();
        // More than twice the size is not worth the waste where others may want it.
        let fits = |buffer: &ForkCell<Buffer<u8>>| {
            (wanted..=wanted.saturating_mul(2)).contains(&(buffer.len() as u64))
        };
        let at = idle.buffers.iter().rposition(fits)?;
        let buffer = idle.buffers.remove(at);
        idle.bytes -= buffer.len() as u64;
        debug_assert!(!idle.buffers.is_empty() || idle.bytes == 0, "{} bytes of no memory", idle.bytes);
        Some(buffer)
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MessageMemory {
    /// Address of the first byte. There is no slice: workers may write to a page at any time.
    pub fn start(&self) -> NonNull<u8> {
        self.buffer.start()
    }

    /// Returns the size of the page in bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }
}

impl Drop for MessageMemory {
    fn drop(&mut self) {
        // SAFETY: only this function takes the buffer, and the page is not used afterwards.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        let mut idle = self.pool.lock();
        if idle.bytes + buffer.len() as u64 <= MOST_IDLE_BYTES {
            idle.bytes += buffer.len() as u64;
            idle.buffers.push(buffer);
        }
        debug_assert!(idle.bytes <= MOST_IDLE_BYTES, "{} bytes wait, at most {MOST_IDLE_BYTES}", idle.bytes);
    }
}
