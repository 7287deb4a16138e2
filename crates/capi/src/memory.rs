//! Memory components: leased by the segment, known to C by a handle.

use std::ffi::{c_char, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sublet::{Error, Memory, MemoryPlan, RawReading};

use crate::boundary::{
    argument, argument_mut, bytes, bytes_address, bytes_mut, check_size, guarded, output, sublet_status,
    text_if_any,
};
use crate::invoker::{sublet_bill, sublet_invoker};

/// `struct sublet_memory`, opaque to C.
pub struct sublet_memory {
    memory: Memory,
    /// Started reads that were not waited for.
    asked: Mutex<Vec<RawReading>>,
}

/// `struct sublet_memory_plan`.
#[repr(C)]
pub struct sublet_memory_plan {
    size_bytes: u32,
    initial_bytes: u64,
    increment_bytes: u64,
    limit_bytes: u64,
    timeout_ns: u64,
    wait_ns: u64,
    cache_bytes: u64,
    line_bytes: u64,
    near: *const c_char,
    fabric: *const c_char,
    pool: *const c_char,
}

// The size that sublet_memory.h asserts.
const _: () = assert!(size_of::<sublet_memory_plan>() == 88);

impl sublet_memory_plan {
    /// # Safety
    /// `near`, `fabric` and `pool` are null or strings.
    pub(crate) unsafe fn to_facade(&self) -> Result<MemoryPlan, Error> {
        check_size::<sublet_memory_plan>(self.size_bytes, "plan")?;
        let mut plan = MemoryPlan::new()
            .initial_bytes(self.initial_bytes)
            .increment_bytes(self.increment_bytes)
            .limit_bytes(self.limit_bytes)
            .timeout(Duration::from_nanos(self.timeout_ns))
            .wait(Duration::from_nanos(self.wait_ns))
            .cache_bytes(self.cache_bytes)
            .line_bytes(self.line_bytes);
        // SAFETY: as the caller vouches.
        if let Some(near) = unsafe { text_if_any(self.near, "plan.near") }? {
            plan = plan.near(near.split(',').map(str::trim).filter(|node| !node.is_empty()));
        }
        // SAFETY: as above.
        if let Some(fabric) = unsafe { text_if_any(self.fabric, "plan.fabric") }? {
            plan = plan.fabric(fabric.parse()?);
        }
        // SAFETY: as above.
        match unsafe { text_if_any(self.pool, "plan.pool") }? {
            Some(pool) => Ok(plan.pool(pool.parse()?)),
            None => Ok(plan),
        }
    }
}

impl sublet_memory {
    /// Waits for all started reads; returns the first error.
    fn wait(&self) -> Result<(), Error> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        let waited: Vec<Result<(), Error>> = asked.into_iter().map(RawReading::wait).collect();
        waited.into_iter().collect()
    }
}

/// Creates a memory component, which leases nothing yet.
///
/// # Safety
/// The duties of `sublet_memory.h` hold for invokers, plans and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_create(
    invoker: *const sublet_invoker,
    plan: *const sublet_memory_plan,
    memory: *mut *mut sublet_memory,
) -> sublet_status {
    guarded(|| {
        let place = output(memory, "memory")?;
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        // SAFETY: the caller's plan, with the caller's strings in it.
        let plan = unsafe { argument(plan, "plan")?.to_facade() }?;
        let made = sublet_memory { memory: invoker.facade().memory(plan)?, asked: Mutex::default() };
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// Copies bytes out.
///
/// # Safety
/// As `sublet_memory.h` says; `into` has space for `len_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_read(
    memory: *const sublet_memory,
    offset: u64,
    into: *mut c_void,
    len_bytes: usize,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's component, which it does not resize or free meanwhile.
        let memory = unsafe { argument(memory, "memory") }?;
        // SAFETY: the caller's memory, which it keeps until this returns.
        memory.memory.read(offset, unsafe { bytes_mut(into, len_bytes, "into") }?)
    })
}

/// Copies bytes in.
///
/// # Safety
/// As `sublet_memory.h` says; `from` has `len_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_write(
    memory: *const sublet_memory,
    offset: u64,
    from: *const c_void,
    len_bytes: usize,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's component, which it does not resize or free meanwhile.
        let memory = unsafe { argument(memory, "memory") }?;
        // SAFETY: the caller's bytes, which it keeps until this returns.
        memory.memory.write(offset, unsafe { bytes(from, len_bytes, "from") }?)
    })
}

/// Begins to copy bytes out.
///
/// # Safety
/// As `sublet_memory.h` says; `into` has space for `len_bytes` bytes, and is not used until the read was waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_read_async(
    memory: *const sublet_memory,
    offset: u64,
    into: *mut c_void,
    len_bytes: usize,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's component, which it does not resize or free meanwhile.
        let memory = unsafe { argument(memory, "memory") }?;
        let Some(place) = bytes_address(into, len_bytes, "into")? else { return Ok(()) };
        // SAFETY: the caller's place, which it leaves alone until it has waited; the component waits for all before it goes.
        let reading = unsafe { memory.memory.read_async_raw(offset, place, len_bytes as u64) }?;
        memory.asked.lock().unwrap_or_else(PoisonError::into_inner).push(reading);
        Ok(())
    })
}

/// Copies bytes in, and does not wait until others can read them.
///
/// # Safety
/// As for [`sublet_memory_write`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_write_async(
    memory: *const sublet_memory,
    offset: u64,
    from: *const c_void,
    len_bytes: usize,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's component, which it does not resize or free meanwhile.
        let memory = unsafe { argument(memory, "memory") }?;
        // SAFETY: the caller's bytes, which it keeps until this returns; they are copied by then.
        memory.memory.write_async(offset, unsafe { bytes(from, len_bytes, "from") }?)
    })
}

/// Waits for what was asked for.
///
/// # Safety
/// The duties of `sublet_memory.h` hold for components.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_wait(memory: *const sublet_memory) -> sublet_status {
    // SAFETY: the caller's component, which it does not resize or free meanwhile.
    guarded(|| unsafe { argument(memory, "memory") }?.wait())
}

/// Makes what was written be where others read it, and waits for what was asked for.
///
/// # Safety
/// The duties of `sublet_memory.h` hold for components.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_sync(memory: *const sublet_memory) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's component, which it does not resize or free meanwhile.
        let memory = unsafe { argument(memory, "memory") }?;
        let waited = memory.wait();
        memory.memory.sync().and(waited)
    })
}

/// Asks for what will be read soon.
///
/// # Safety
/// The duties of `sublet_memory.h` hold for components.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_prefetch(
    memory: *const sublet_memory,
    offset: u64,
    len_bytes: u64,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's component, which it does not resize or free meanwhile.
        unsafe { argument(memory, "memory") }?.memory.prefetch(offset, len_bytes);
        Ok(())
    })
}

/// Where bytes lie in this process.
///
/// # Safety
/// The duties of `sublet_memory.h` hold for components and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_mapped(
    memory: *const sublet_memory,
    offset: u64,
    len_bytes: u64,
    data: *mut *mut c_void,
) -> sublet_status {
    guarded(|| {
        let place = output(data, "data")?;
        // SAFETY: the caller's component, which it does not resize or free meanwhile.
        let mapped = unsafe { argument(memory, "memory") }?.memory.mapped(offset, len_bytes)?;
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(mapped.as_ptr().cast()) };
        Ok(())
    })
}

/// How much there is to be read, and how much is leased.
///
/// # Safety
/// The duties of `sublet_memory.h` hold for components and outputs. Either output may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_size(
    memory: *const sublet_memory,
    len_bytes: *mut u64,
    capacity_bytes: *mut u64,
) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's component, which it does not resize or free meanwhile.
        let memory = unsafe { &argument(memory, "memory")?.memory };
        for (place, bytes) in [(len_bytes, memory.len_bytes()), (capacity_bytes, memory.capacity_bytes())] {
            if !place.is_null() {
                // SAFETY: not null, so it is the caller's place for a number.
                unsafe { place.write(bytes) };
            }
        }
        Ok(())
    })
}

/// Resizes the component.
///
/// # Safety
/// As `sublet_memory.h` says; no other thread may be using the component.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_resize(memory: *mut sublet_memory, len_bytes: u64) -> sublet_status {
    guarded(|| {
        // SAFETY: the caller's component, which no one else is using.
        let memory = unsafe { argument_mut(memory, "memory") }?;
        let waited = memory.wait();
        memory.memory.resize(len_bytes).and(waited)
    })
}

/// Puts the end of all segments off.
///
/// # Safety
/// The duties of `sublet_memory.h` hold for components.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_renew(memory: *const sublet_memory, timeout_ns: u64) -> sublet_status {
    // SAFETY: the caller's component, which it does not resize or free meanwhile.
    guarded(|| unsafe { argument(memory, "memory") }?.memory.renew(Duration::from_nanos(timeout_ns)))
}

/// Gives all of it back, and frees it.
///
/// # Safety
/// It is null, or from [`sublet_memory_create`] and not used any more. `bill` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_memory_release(
    memory: *mut sublet_memory,
    bill: *mut sublet_bill,
) -> sublet_status {
    guarded(|| {
        let mut used = sublet_bill::default();
        if !memory.is_null() {
            // SAFETY: it came from `Box::into_raw`, and the caller does not use it any more.
            let memory = *unsafe { Box::from_raw(memory) };
            let waited = memory.wait();
            let leases = memory.memory.release()?;
            used = leases.iter().map(sublet::bill).fold(used, sublet_bill::with);
            waited?;
        }
        if !bill.is_null() {
            // SAFETY: not null, so it is the caller's bill to write.
            unsafe { bill.write(used) };
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null;
    use sublet::Code;

    fn plan() -> sublet_memory_plan {
        sublet_memory_plan {
            size_bytes: 88,
            initial_bytes: 4096,
            increment_bytes: 4096,
            limit_bytes: 8192,
            timeout_ns: 0,
            wait_ns: 0,
            cache_bytes: 0,
            line_bytes: 4096,
            near: c"one, two,".as_ptr(),
            fabric: null(),
            pool: c"memory".as_ptr(),
        }
    }

    #[test]
    fn plans_that_make_no_sense_are_refused() {
        // SAFETY: literals and null pointers.
        let refusal = |plan: sublet_memory_plan| unsafe { plan.to_facade() }.unwrap_err().code;
        // SAFETY: as above.
        assert!(unsafe { plan().to_facade() }.is_ok());
        assert_eq!(refusal(sublet_memory_plan { size_bytes: 8, ..plan() }), Code::InvalidArgument);
        let fabric = c"homing pigeon".as_ptr();
        assert_eq!(refusal(sublet_memory_plan { fabric, ..plan() }), Code::InvalidArgument);
        let pool = c"puddle".as_ptr();
        assert_eq!(refusal(sublet_memory_plan { pool, ..plan() }), Code::InvalidArgument);
    }
}
