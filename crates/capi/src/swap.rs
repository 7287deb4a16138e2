//! Swapped arrays: memory of which a part lies in a memory component, known to C by a handle.

use std::ffi::c_void;

use sublet::{Error, SwapPlan, SwapStatistics, SwappedMemory, Touching};

use crate::boundary::{argument, check_size, guarded, output, sublet_status};
use crate::invoker::sublet_invoker;
use crate::memory::sublet_memory_plan;

/// `struct sublet_swapped`, opaque to C.
pub struct sublet_swapped(SwappedMemory);

/// `struct sublet_swap_plan`.
#[repr(C)]
pub struct sublet_swap_plan {
    size_bytes: u32,
    one_at_a_time: u32,
    len_bytes: u64,
    local_bytes: u64,
}

/// `struct sublet_swap_statistics`.
#[repr(C)]
pub struct sublet_swap_statistics {
    faults: u64,
    ahead: u64,
    in_bytes: u64,
    out_bytes: u64,
    written_bytes: u64,
    resident_bytes: u64,
}

// The sizes that sublet_swap.h asserts.
const _: () = assert!(size_of::<sublet_swap_plan>() == 24);
const _: () = assert!(size_of::<sublet_swap_statistics>() == 48);

impl sublet_swap_plan {
    fn to_facade(&self) -> Result<SwapPlan, Error> {
        check_size::<sublet_swap_plan>(self.size_bytes, "plan")?;
        let touching = if self.one_at_a_time != 0 { Touching::OneAtATime } else { Touching::AnyThreads };
        Ok(SwapPlan::new(self.len_bytes, self.local_bytes).touching(touching))
    }
}

/// Makes an array.
///
/// # Safety
/// The duties of `sublet_swap.h` hold for invokers, plans and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_swapped_create(
    invoker: *const sublet_invoker,
    plan: *const sublet_swap_plan,
    space: *const sublet_memory_plan,
    swapped: *mut *mut sublet_swapped,
) -> sublet_status {
    guarded(|| {
        let place = output(swapped, "swapped")?;
        // SAFETY: the caller's invoker, which it does not free or lease with meanwhile.
        let invoker = unsafe { argument(invoker, "invoker") }?;
        // SAFETY: the caller's plan.
        let plan = unsafe { argument(plan, "plan") }?.to_facade()?;
        // SAFETY: the caller's plan, with the caller's strings in it.
        let space = unsafe { argument(space, "space")?.to_facade() }?;
        let made = sublet_swapped(invoker.facade().swapped(plan, space)?);
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// Where it lies.
///
/// # Safety
/// The duties of `sublet_swap.h` hold for arrays and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_swapped_data(
    swapped: *const sublet_swapped,
    data: *mut *mut c_void,
) -> sublet_status {
    guarded(|| {
        let place = output(data, "data")?;
        // SAFETY: the caller's array, which it does not free meanwhile.
        let at = unsafe { argument(swapped, "swapped") }?.0.as_ptr();
        // SAFETY: not null, so it is the caller's pointer to write.
        unsafe { place.write(at.as_ptr().cast()) };
        Ok(())
    })
}

/// Whether all of it is still there.
///
/// # Safety
/// The duties of `sublet_swap.h` hold for arrays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_swapped_check(swapped: *const sublet_swapped) -> sublet_status {
    // SAFETY: the caller's array, which it does not free meanwhile.
    guarded(|| unsafe { argument(swapped, "swapped") }?.0.check())
}

/// Returns the counters of an array.
///
/// # Safety
/// The duties of `sublet_swap.h` hold for arrays and outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_swapped_statistics(
    swapped: *const sublet_swapped,
    statistics: *mut sublet_swap_statistics,
) -> sublet_status {
    guarded(|| {
        let place = output(statistics, "statistics")?;
        // SAFETY: the caller's array, which it does not free meanwhile.
        let swapped = unsafe { argument(swapped, "swapped") }?;
        let SwapStatistics { faults, ahead, in_bytes, out_bytes, written_bytes, resident_bytes } =
            swapped.0.statistics();
        let told =
            sublet_swap_statistics { faults, ahead, in_bytes, out_bytes, written_bytes, resident_bytes };
        // SAFETY: not null, so it is the caller's memory.
        unsafe { place.write(told) };
        Ok(())
    })
}

/// Frees an array.
///
/// # Safety
/// It is null, or from [`sublet_swapped_create`] and not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sublet_swapped_free(swapped: *mut sublet_swapped) {
    guarded(|| {
        if !swapped.is_null() {
            // SAFETY: it came from `Box::into_raw`, and the caller does not use it any more.
            drop(unsafe { Box::from_raw(swapped) });
        }
        Ok(())
    });
}
