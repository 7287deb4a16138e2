//! Memory components.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use sublet::{Code, Error, MemoryPlan};
use sublet_proto::to_usize;
use sublet_python_buffers::{BufferUse, BufferView};

use crate::buffer::{BufferOwner, OwnedBuffer};
use crate::error::{invalid, raised};
use crate::fork_cell::ForkCell;
use crate::invoker::{described, number, seconds};

/// Size of the pieces in which bytes are copied: a piece stays in a core's cache.
const COPY_BYTES: u64 = 256 << 10;

/// Memory that is leased by the segment.
#[pyclass(name = "Memory", frozen, module = "sublet._native")]
pub struct PyMemory(Arc<SharedComponent>);

/// A component, and the parts of it that arrays use.
pub struct SharedComponent {
    /// The memory, until it is released.
    memory: RwLock<Option<ForkCell<sublet::Memory>>>,
    /// Ends of the parts that arrays use, by number.
    lent: Mutex<BTreeMap<u64, u64>>,
}

/// A piece of a component that keeps its address as long as this object exists.
pub struct LentPiece {
    component: Arc<SharedComponent>,
    number: u64,
}

/// Bytes that are being copied out of a component.
#[pyclass(name = "Reading", frozen, module = "sublet._native")]
pub struct PyMemoryReading(Mutex<Option<ForkCell<sublet::Reading>>>);

impl SharedComponent {
    fn read(&self) -> RwLockReadGuard<'_, Option<ForkCell<sublet::Memory>>> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<ForkCell<sublet::Memory>>> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, what: impl FnOnce(&sublet::Memory) -> Result<T, Error>) -> Result<T, Error> {
        match &*self.read() {
            Some(memory) => what(memory),
            None => Err(released()),
        }
    }

    /// Fails if an array lies beyond the first `len_bytes` bytes.
    fn check_lent(&self, len_bytes: u64) -> Result<(), Error> {
        let beyond = self.lent().values().filter(|end| **end > len_bytes).count();
        if beyond == 0 {
            return Ok(());
        }
        let message = format!("{beyond} arrays lie in what would go: give them up before");
        Err(Error::new(Code::InvalidArgument, message))
    }
}

impl Drop for LentPiece {
    fn drop(&mut self) {
        let before = self.component.lent().remove(&self.number);
        debug_assert!(before.is_some(), "piece {} of a component was not lent", self.number);
    }
}

#[cold]
fn released() -> Error {
    Error::new(Code::LeaseEnded, "the memory component was released")
}

/// Reads the plan of a component: the options are the methods of a plan, with times in seconds.
pub fn planned(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<MemoryPlan> {
    let mut plan = MemoryPlan::new();
    for (name, value) in options.into_iter().flatten().filter(|(_, value)| !value.is_none()) {
        let name: String = name.extract()?;
        let time = || value.extract().and_then(|value: f64| seconds(py, &name, value));
        plan = match name.as_str() {
            "initial_bytes" => plan.initial_bytes(number(py, &name, &value)?),
            "increment_bytes" => plan.increment_bytes(number(py, &name, &value)?),
            "limit_bytes" => plan.limit_bytes(number(py, &name, &value)?),
            "cache_bytes" => plan.cache_bytes(number(py, &name, &value)?),
            "line_bytes" => plan.line_bytes(number(py, &name, &value)?),
            "timeout" => plan.timeout(time()?),
            "wait" => plan.wait(time()?),
            "near" => plan.near(value.extract::<Vec<String>>()?),
            "fabric" => {
                let fabric: String = value.extract()?;
                plan.fabric(fabric.parse().map_err(|error: Error| raised(py, &error))?)
            }
            "pool" => {
                let pool: String = value.extract()?;
                plan.pool(pool.parse().map_err(|error: Error| raised(py, &error))?)
            }
            _ => return Err(invalid(py, format!("a memory component has no option {name}"))),
        };
    }
    Ok(plan)
}

impl PyMemory {
    /// Wraps a component that is not released yet.
    pub fn new(memory: sublet::Memory) -> PyMemory {
        PyMemory(Arc::new(SharedComponent {
            memory: RwLock::new(Some(ForkCell::new(memory))),
            lent: Mutex::default(),
        }))
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        what: impl FnOnce(&sublet::Memory) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        py.detach(|| self.0.with(what)).map_err(|error| raised(py, &error))
    }
}

#[pymethods]
impl PyMemory {
    /// Returns the number of readable bytes, and of leased bytes.
    fn sizes(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.with(py, |memory| Ok((memory.len_bytes(), memory.capacity_bytes())))
    }

    /// A copy of bytes.
    fn read<'py>(&self, py: Python<'py>, offset: u64, nbytes: usize) -> PyResult<Bound<'py, PyBytes>> {
        self.check_readable(py, offset, nbytes)?;
        PyBytes::new_with(py, nbytes, |bytes| self.with(py, |memory| memory.read(offset, bytes)))
    }

    /// Copies bytes into an object's memory.
    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let view = BufferView::of(buffer, BufferUse::Writing)?;
        let mut bytes = Vec::new();
        let mut at = 0;
        while at < view.len_bytes() {
            bytes.resize((view.len_bytes() - at).min(COPY_BYTES) as usize, 0);
            self.with(py, |memory| memory.read(offset.saturating_add(at), &mut bytes))?;
            view.copy_from(at, &bytes);
            at += bytes.len() as u64;
        }
        Ok(())
    }

    /// Copies an object's bytes in.
    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.copy_in(py, offset, data, |memory, offset, bytes| memory.write(offset, bytes))
    }

    /// Copies an object's bytes in, and does not wait until others can read them.
    fn write_async(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.copy_in(py, offset, data, |memory, offset, bytes| memory.write_async(offset, bytes))
    }

    /// Begins to copy bytes out.
    fn read_async(&self, py: Python<'_>, offset: u64, nbytes: usize) -> PyResult<PyMemoryReading> {
        self.check_readable(py, offset, nbytes)?;
        let reading = self.with(py, |memory| memory.read_async(offset, vec![0; nbytes]))?;
        Ok(PyMemoryReading(Mutex::new(Some(ForkCell::new(reading)))))
    }

    /// Makes what was written be where others read it, and what they synced be read.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, sublet::Memory::sync)
    }

    /// Asks for what will be read soon.
    fn prefetch(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<()> {
        self.with(py, |memory| {
            memory.prefetch(offset, nbytes);
            Ok(())
        })
    }

    /// Bytes in their place. As long as they are somebody's, they stay there.
    fn mapped(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<OwnedBuffer> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let at = self.with(py, |memory| {
            let at = memory.mapped(offset, nbytes)?;
            let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
            // While the component is borrowed it is not made shorter.
            let before = self.0.lent().insert(number, offset + nbytes);
            debug_assert!(before.is_none(), "piece {number} was lent up to byte {before:?} already");
            Ok((ThreadAddress(at), number))
        })?;
        let (ThreadAddress(at), number) = at;
        let owner = BufferOwner::Component(Arc::new(LentPiece { component: self.0.clone(), number }));
        Ok(OwnedBuffer::new(at, nbytes, false, owner))
    }

    /// Sets the size in bytes.
    fn resize(&self, py: Python<'_>, nbytes: u64) -> PyResult<()> {
        let resized = py.detach(|| {
            let mut memory = self.0.write();
            self.0.check_lent(nbytes)?;
            memory.as_mut().ok_or_else(released)?.resize(nbytes)
        });
        resized.map_err(|error| raised(py, &error))
    }

    /// Sets the end of all segments' leases to `timeout` seconds from now.
    fn renew(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds(py, "timeout", timeout)?;
        self.with(py, |memory| memory.renew(timeout))
    }

    /// The leases, in the order of their bytes.
    fn leases<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let leases = self.with(py, |memory| Ok(memory.segments()))?;
        leases.iter().map(|lease| described(py, lease)).collect()
    }

    /// Releases all of it. Returns each lease, with its use.
    fn release<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let leases = py.detach(|| {
            let mut memory = self.0.write();
            self.0.check_lent(0)?;
            memory.take().ok_or_else(released)?.into_inner().release()
        });
        leases.map_err(|error| raised(py, &error))?.iter().map(|lease| described(py, lease)).collect()
    }
}

impl PyMemory {
    /// Fails if bytes do not exist, before memory for a copy of them is allocated.
    fn check_readable(&self, py: Python<'_>, offset: u64, nbytes: usize) -> PyResult<()> {
        let (len_bytes, _) = self.sizes(py)?;
        if offset.checked_add(nbytes as u64).is_some_and(|end| end <= len_bytes) {
            return Ok(());
        }
        let message = format!("{nbytes} bytes at {offset} of a memory component of {len_bytes} bytes");
        Err(invalid(py, message))
    }

    fn copy_in(
        &self,
        py: Python<'_>,
        offset: u64,
        from: &Bound<'_, PyAny>,
        write: fn(&sublet::Memory, u64, &[u8]) -> Result<(), Error>,
    ) -> PyResult<()> {
        let view = BufferView::of(from, BufferUse::Reading)?;
        let mut bytes = Vec::new();
        // Starts at the end: if the component cannot grow that far, nothing is written.
        let mut end = view.len_bytes();
        while end > 0 {
            bytes.resize(to_usize((end - 1) % COPY_BYTES + 1), 0);
            end -= bytes.len() as u64;
            debug_assert!(end.is_multiple_of(COPY_BYTES), "the rest before {} bytes is {end}", bytes.len());
            view.copy_to(end, &mut bytes);
            self.with(py, |memory| write(memory, offset.saturating_add(end), &bytes))?;
        }
        Ok(())
    }
}

#[pymethods]
impl PyMemoryReading {
    /// Waits for them. Once.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let reading = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let reading = reading.ok_or_else(|| invalid(py, "these bytes were taken already"))?;
        let bytes = py.detach(|| reading.into_inner().wait()).map_err(|error| raised(py, &error))?;
        Ok(PyBytes::new(py, &bytes))
    }
}

/// An address that is nobody's to be used here.
struct ThreadAddress(NonNull<u8>);

// SAFETY: nothing is done with it but passing it on.
unsafe impl Send for ThreadAddress {}
