//! Device memory and its owners.
//!
//! Pieces are kept and handed out again, since allocating memory from a driver is expensive. A piece is wiped before it
//! is handed out if it was another tenant's, or comes from the driver, which does not say whose it was. It is wiped
//! again before it returns to the driver, whose next user may not wipe it. A tenant gets its own pieces back unchanged.
//!
//! A [`DeviceBuffer`] is a piece that a caller owns: the output of one launch and the input of the next, without a
//! copy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use sublet_fabric::sync::lock;

use crate::{DeviceError, Driver, TenantId};

/// Smallest piece, in bytes.
const LEAST_BYTES: u64 = 4096;
/// Size from which pieces are multiples of it instead of powers of two, in bytes.
const STEP_BYTES: u64 = 1 << 20;

/// Counts of transfers between host and device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Copies of inputs to the device.
    pub to_device: u64,
    /// Copies of outputs to the host. The four bytes with the size of an output are not counted.
    pub to_host: u64,
    /// Pieces that were handed out again.
    pub reused: u64,
}

#[derive(Default)]
struct CopyCounters {
    to_device: AtomicU64,
    to_host: AtomicU64,
    reused: AtomicU64,
}

/// A piece of device memory.
pub(crate) struct DevicePiece<D: Driver> {
    pub memory: D::Memory,
    pub len_bytes: u64,
    owner: TenantId,
}

/// An open device and its memory.
pub(crate) struct BufferPool<D: Driver> {
    pub driver: D,
    free: Mutex<Vec<DevicePiece<D>>>,
    /// Lane for wiping, and for copies that belong to no launch: a lane of launches may be busy.
    service: Mutex<D::Lane>,
    most_free_bytes: u64,
    counters: CopyCounters,
    /// Set for good when a kernel has not ended in time.
    is_lost: AtomicBool,
}

impl<D: Driver> BufferPool<D> {
    pub fn new(driver: D, most_free_bytes: u64) -> Result<BufferPool<D>, DeviceError> {
        let service = Mutex::new(driver.lane(driver.lanes())?);
        let (free, counters, is_lost) = (Mutex::default(), CopyCounters::default(), AtomicBool::new(false));
        Ok(BufferPool { driver, free, service, most_free_bytes, counters, is_lost })
    }

    /// Takes a piece of at least `len_bytes` bytes, which contains no data of another tenant.
    pub fn take(&self, tenant: TenantId, len_bytes: u64) -> Result<DevicePiece<D>, DeviceError> {
        self.check()?;
        let len_bytes = size_class(len_bytes);
        if len_bytes > self.driver.most_bytes() {
            return Err(DeviceError::TooLarge { len_bytes, most_bytes: self.driver.most_bytes() });
        }
        let found = self.find(tenant, len_bytes);
        let is_own = found.as_ref().is_some_and(|piece| piece.owner == tenant);
        let mut piece = match found {
            Some(piece) => {
                self.counters.reused.fetch_add(1, Relaxed);
                piece
            }
            None => self.allocate(tenant, len_bytes)?,
        };
        if !is_own {
            self.wipe(&piece)?;
            piece.owner = tenant;
        }
        debug_assert!(
            piece.owner == tenant && piece.len_bytes == len_bytes,
            "{tenant:?} gets {} bytes of {:?} for {len_bytes}",
            piece.len_bytes,
            piece.owner
        );
        Ok(piece)
    }

    /// Takes a piece back. Memory that a lost kernel may still write is never passed on.
    pub fn give(&self, piece: DevicePiece<D>) {
        if self.is_lost() {
            return std::mem::forget(piece);
        }
        let mut free = lock(&self.free);
        let free_bytes: u64 = free.iter().map(|piece| piece.len_bytes).sum();
        if free_bytes + piece.len_bytes <= self.most_free_bytes {
            return free.push(piece);
        }
        drop(free);
        // If the piece cannot be wiped the device is unusable; each later owner of its memory wipes it first.
        let _ = self.wipe(&piece);
    }

    pub fn write(&self, lane: &D::Lane, memory: &D::Memory, bytes: &[u8]) -> Result<(), DeviceError> {
        self.counters.to_device.fetch_add(1, Relaxed);
        self.driver.write(lane, memory, bytes)
    }

    pub fn read(&self, lane: &D::Lane, memory: &D::Memory, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.counters.to_host.fetch_add(1, Relaxed);
        self.driver.read(lane, memory, bytes)
    }

    pub fn transfers(&self) -> Transfers {
        let CopyCounters { to_device, to_host, reused } = &self.counters;
        let [to_device, to_host, reused] = [to_device, to_host, reused].map(|counter| counter.load(Relaxed));
        Transfers { to_device, to_host, reused }
    }

    /// Gives the device up: none of its objects is released or passed on any more, since a kernel may still use it.
    pub fn lose(&self) {
        self.is_lost.store(true, Relaxed);
    }

    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Relaxed)
    }

    pub fn check(&self) -> Result<(), DeviceError> {
        if self.is_lost() { Err(DeviceError::RunsOn) } else { Ok(()) }
    }

    fn find(&self, tenant: TenantId, len_bytes: u64) -> Option<DevicePiece<D>> {
        let mut free = lock(&self.free);
        let fits = |piece: &DevicePiece<D>| piece.len_bytes == len_bytes;
        let own = free.iter().position(|piece| fits(piece) && piece.owner == tenant);
        let at = own.or_else(|| free.iter().position(fits))?;
        Some(free.swap_remove(at))
    }

    fn allocate(&self, tenant: TenantId, len_bytes: u64) -> Result<DevicePiece<D>, DeviceError> {
        let first = self.driver.memory(len_bytes);
        let memory = first.or_else(|_| {
            self.release()?;
            self.driver.memory(len_bytes)
        })?;
        Ok(DevicePiece { memory, len_bytes, owner: tenant })
    }

    /// Releases all free pieces, to make space.
    fn release(&self) -> Result<(), DeviceError> {
        let free = std::mem::take(&mut *lock(&self.free));
        free.iter().try_for_each(|piece| self.wipe(piece))
    }

    fn wipe(&self, piece: &DevicePiece<D>) -> Result<(), DeviceError> {
        let service = lock(&self.service);
        self.driver.wipe(&service, &piece.memory, piece.len_bytes)?;
        self.driver.finish(&service)
    }
}

impl<D: Driver> Drop for BufferPool<D> {
    fn drop(&mut self) {
        let _ = self.release();
    }
}

/// Size of a piece for `len_bytes` bytes.
fn size_class(len_bytes: u64) -> u64 {
    let size = if len_bytes <= STEP_BYTES {
        len_bytes.max(LEAST_BYTES).next_power_of_two()
    } else {
        len_bytes.next_multiple_of(STEP_BYTES)
    };
    debug_assert!(size >= len_bytes && size.is_multiple_of(LEAST_BYTES), "{size} bytes for {len_bytes}");
    size
}

/// Data of one tenant that stays on the device from one launch to the next.
pub struct DeviceBuffer<D: Driver> {
    /// Present until the buffer is dropped.
    piece: Option<DevicePiece<D>>,
    pool: Arc<BufferPool<D>>,
    tenant: TenantId,
    capacity_bytes: u32,
    pub(crate) len_bytes: u32,
}

impl<D: Driver> DeviceBuffer<D> {
    pub(crate) fn new(
        pool: &Arc<BufferPool<D>>,
        tenant: TenantId,
        capacity_bytes: u32,
    ) -> Result<Self, DeviceError> {
        let piece = Some(pool.take(tenant, u64::from(capacity_bytes))?);
        Ok(DeviceBuffer { piece, pool: Arc::clone(pool), tenant, capacity_bytes, len_bytes: 0 })
    }

    /// Owner of the buffer.
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Most bytes that the buffer can contain.
    pub fn capacity_bytes(&self) -> u32 {
        self.capacity_bytes
    }

    /// Number of bytes that the buffer contains.
    pub fn len_bytes(&self) -> u32 {
        debug_assert!(
            self.len_bytes <= self.capacity_bytes,
            "a buffer of {} bytes has {}",
            self.capacity_bytes,
            self.len_bytes
        );
        self.len_bytes
    }

    /// Writes these bytes, in place of those that a launch wrote.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`] for more than its capacity; the driver's errors; [`DeviceError::RunsOn`] for a lost
    /// device.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), DeviceError> {
        self.pool.check()?;
        let (len_bytes, most_bytes) = (bytes.len() as u64, u64::from(self.capacity_bytes));
        if len_bytes > most_bytes {
            return Err(DeviceError::TooLarge { len_bytes, most_bytes });
        }
        if !bytes.is_empty() {
            self.pool.write(&lock(&self.pool.service), self.memory(), bytes)?;
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked above: the capacity at most")]
        let len_bytes = len_bytes as u32;
        self.len_bytes = len_bytes;
        Ok(())
    }

    /// Copies the buffer's first bytes, at most [`DeviceBuffer::len_bytes()`].
    ///
    /// # Errors
    /// As for [`DeviceBuffer::write`].
    pub fn read(&self, into: &mut [u8]) -> Result<(), DeviceError> {
        self.pool.check()?;
        let (len_bytes, most_bytes) = (into.len() as u64, u64::from(self.len_bytes));
        if len_bytes > most_bytes {
            return Err(DeviceError::TooLarge { len_bytes, most_bytes });
        }
        if into.is_empty() {
            return Ok(());
        }
        self.pool.read(&lock(&self.pool.service), self.memory(), into)
    }

    pub(crate) fn memory(&self) -> &D::Memory {
        &self.piece.as_ref().expect("it goes when the buffer is dropped").memory
    }

    /// Checks that a kernel of this tenant may use the buffer, on this device.
    pub(crate) fn check(&self, user: TenantId, pool: &Arc<BufferPool<D>>) -> Result<(), DeviceError> {
        if !Arc::ptr_eq(&self.pool, pool) {
            let reason = "the buffer is of another device".into();
            return Err(DeviceError::Driver { operation: "launching", reason });
        }
        let owner = self.tenant;
        if owner == user { Ok(()) } else { Err(DeviceError::Foreign { owner, user }) }
    }
}

impl<D: Driver> Drop for DeviceBuffer<D> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.pool.give(piece);
        }
    }
}
