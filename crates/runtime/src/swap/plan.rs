//! Describes a swapped array to create.

use sublet_proto::{Code, Error};

use super::units::REGION_BYTES;

/// Length of the longest array, in bytes. The array needs some bytes of metadata for each region of 2 MiB, and half a
/// kilobyte for one that was touched.
const MAX_LEN_BYTES: u64 = 1 << 40;
/// The least local memory, in bytes: space for the slots, and the same again.
const MIN_LOCAL_BYTES: u64 = 8 * REGION_BYTES;
/// Smallest and largest number of slots.
const MIN_SLOTS: u64 = 3;
const MAX_SLOTS: u64 = 8;
/// Number of local regions for each slot.
const REGIONS_PER_SLOT: u64 = 8;

/// Number of threads that access the array at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touching {
    /// Any threads, at any time. A region that came whole counts as written, since the kernel cannot put one in
    /// write-protected.
    #[default]
    AnyThreads,
    /// One: never two threads at the same time, nor a thread and the kernel on another's behalf. Regions that are only
    /// read are then known to be unchanged, and are not written back. If two threads do access the array at a time,
    /// writes of one of them may be lost.
    OneAtATime,
}

/// Properties of a swapped array to create. Made by [`SwapPlan::new`].
#[derive(Clone, Debug)]
pub struct SwapPlan {
    pub(super) len_bytes: u64,
    pub(super) local_bytes: u64,
    pub(super) touching: Touching,
}

impl SwapPlan {
    /// A plan for an array of `len_bytes`, up to a tebibyte, of which `local_bytes` are resident at a time: 16 MiB at
    /// least. The length is rounded up to a multiple of 2 MiB, the local memory down.
    pub fn new(len_bytes: u64, local_bytes: u64) -> SwapPlan {
        SwapPlan { len_bytes, local_bytes, touching: Touching::AnyThreads }
    }

    /// Sets the number of threads that access the array at a time.
    pub fn touching(mut self, touching: Touching) -> SwapPlan {
        self.touching = touching;
        self
    }

    /// Checks that such an array is possible.
    ///
    /// # Errors
    /// `invalid_argument` for sizes that are not possible.
    pub fn check(&self) -> Result<(), Error> {
        let (len, local) = (self.len_bytes, self.local_bytes);
        let message = if !(1..=MAX_LEN_BYTES).contains(&len) {
            format!("an array of {len} bytes: it has 1 to {MAX_LEN_BYTES}")
        } else if local < MIN_LOCAL_BYTES {
            format!("{local} bytes of local memory: an array that is swapped has {MIN_LOCAL_BYTES} at least")
        } else {
            return Ok(());
        };
        Err(Error::new(Code::InvalidArgument, message))
    }

    pub(super) fn regions(&self) -> u64 {
        self.len_bytes.div_ceil(REGION_BYTES)
    }

    pub(super) fn whole_bytes(&self) -> u64 {
        self.regions() * REGION_BYTES
    }

    pub(super) fn local_regions(&self) -> u64 {
        self.local_bytes / REGION_BYTES
    }

    pub(super) fn slots(&self) -> u64 {
        (self.local_regions() / REGIONS_PER_SLOT).clamp(MIN_SLOTS, MAX_SLOTS)
    }

    pub(super) fn slots_bytes(&self) -> u64 {
        self.slots() * REGION_BYTES
    }
}
