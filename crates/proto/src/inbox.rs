//! Computes the size of a lease's inbox, for manager, agent, client and workers.

use crate::v1::WorkerOptions;
use crate::{Code, Error, limits};

/// Bytes of a request's line, and of the watch that a ring has beside its lines.
const LINE_BYTES: u64 = 64;
const PAGE_BYTES: u64 = 4096;

/// The sizes of an inbox's parts, in bytes, each in whole pages: for each worker a ring of lines and a watch, followed
/// by the payload slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxShape {
    /// The ring of one worker.
    pub ring_bytes: u64,
    /// One payload slot.
    pub slot_stride: u64,
    /// Everything of one worker.
    pub worker_stride: u64,
    /// The whole inbox.
    pub len_bytes: u64,
}

impl InboxShape {
    /// Computes the shape for this many workers with these options.
    ///
    /// # Errors
    /// `invalid_argument` for a number outside of [`limits`], or slots that are not a power of two.
    pub fn new(workers: u32, slots: u32, slot_bytes: u64) -> Result<InboxShape, Error> {
        check("cores", u64::from(workers), 1, u64::from(limits::MAX_CORES))?;
        check("slots", u64::from(slots), 1, u64::from(limits::MAX_SLOTS))?;
        check("slot bytes", slot_bytes, 0, limits::MAX_SLOT_BYTES)?;
        if !slots.is_power_of_two() {
            return Err(Error::new(Code::InvalidArgument, format!("slots: {slots} is not a power of two")));
        }
        // Within the limits these numbers are far below 64 bits.
        let ring_bytes = whole_pages((u64::from(slots) + 1) * LINE_BYTES);
        let slot_stride = whole_pages(slot_bytes);
        let worker_stride = ring_bytes + slot_stride * u64::from(slots);
        debug_assert!(
            worker_stride.is_multiple_of(PAGE_BYTES) && slot_stride >= slot_bytes,
            "{slots} slots of {slot_bytes} bytes have a stride of {slot_stride}, and their worker {worker_stride}"
        );
        Ok(InboxShape {
            ring_bytes,
            slot_stride,
            worker_stride,
            len_bytes: worker_stride * u64::from(workers),
        })
    }

    /// Computes the shape as [`InboxShape::new`] does, from a lease's options.
    pub fn of(workers: u32, options: &WorkerOptions) -> Result<InboxShape, Error> {
        InboxShape::new(workers, options.slots, options.slot_bytes)
    }
}

fn whole_pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

fn check(what: &str, value: u64, least: u64, most: u64) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, format!("{what}: {value} is not between {least} and {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_inbox_is_refused_with_the_value() {
        let refused =
            |workers, slots, slot_bytes| InboxShape::new(workers, slots, slot_bytes).unwrap_err().message;
        assert!(refused(0, 8, 64).contains("cores: 0"));
        assert!(refused(1, 1 << 20, 64).contains("slots: 1048576"));
        assert!(refused(1, 7, 64).contains("slots: 7 is not a power of two"));
        assert!(refused(1, 8, u64::MAX).contains("slot bytes"));
    }

    #[test]
    fn the_largest_inbox_fits_into_64_bits() {
        let shape = InboxShape::new(limits::MAX_CORES, limits::MAX_SLOTS, limits::MAX_SLOT_BYTES).unwrap();
        assert_eq!(shape.len_bytes / u64::from(limits::MAX_CORES), shape.worker_stride);
    }
}
