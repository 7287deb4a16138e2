//! Describes a swapped array to create.

use sublet_proto::{Code, Error};

use super::units::REGION_BYTES;

/// The longest array. For each region of 2 MiB some bytes are kept, and half a kilobyte for one that was touched.
const MAX_LEN_BYTES: u64 = 1 << 40;
/// The least local memory: room for what is on its way, and as much again.
const MIN_LOCAL_BYTES: u64 = 8 * REGION_BYTES;
/// Regions that may be on their way at once, at least and at most.
const MIN_SLOTS: u64 = 3;
const MAX_SLOTS: u64 = 8;
/// Of so many local regions one may be on its way.
const REGIONS_PER_SLOT: u64 = 8;

/// Who touches the array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touching {
    /// Any threads, at any time. A region that came whole counts as written, for the kernel cannot put one in
    /// protected.
    #[default]
    AnyThreads,
    /// Never two threads at the same time, nor a thread and the kernel on another's behalf. What is only read is known
    /// to be unchanged then, and is not written back. If two do, what one of them writes may be lost.
    OneAtATime,
}

/// What a swapped array is to be. Made by [`SwapPlan::new`].
#[derive(Clone, Debug)]
pub struct SwapPlan {
    pub(super) len_bytes: u64,
    pub(super) local_bytes: u64,
    pub(super) touching: Touching,
}

impl SwapPlan {
    /// So long, up to a tebibyte, and so much of it resident at a time: 16 MiB at least. What is not a multiple of 2
    /// MiB is rounded up to one, of local memory down.
    pub fn new(len_bytes: u64, local_bytes: u64) -> SwapPlan {
        SwapPlan { len_bytes, local_bytes, touching: Touching::AnyThreads }
    }

    /// Who touches it.
    pub fn touching(mut self, touching: Touching) -> SwapPlan {
        self.touching = touching;
        self
    }

    /// Whether there can be one.
    ///
    /// # Errors
    /// `invalid_argument` for sizes that make no sense.
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
