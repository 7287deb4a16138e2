//! Manages slots: buffers of 2 MiB through which regions are paged in and out.

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferSlot {
    /// No memory.
    Empty,
    /// A huge page without valid content.
    Free,
    /// A page that a thread reads into, moves, or returns to the machine.
    Busy,
    /// The content of a region that is not in the array. `since` orders the slots by age; `is_ahead` is set if the
    /// region was read ahead.
    Ready { region: usize, since: u64, is_ahead: bool },
}

/// See the [module](self).
pub(super) struct BufferSlots {
    all: Vec<BufferSlot>,
    now: u64,
}

impl BufferSlots {
    pub(super) fn new(slots: usize) -> BufferSlots {
        BufferSlots { all: vec![BufferSlot::Empty; slots], now: 0 }
    }

    pub(super) fn set(&mut self, slot: usize, is: BufferSlot) {
        self.all[slot] = is;
    }

    pub(super) fn ready(&mut self, slot: usize, region: usize, is_ahead: bool) {
        debug_assert_eq!(self.all[slot], BufferSlot::Busy, "slot {slot} gets region {region}");
        self.now += 1;
        self.all[slot] = BufferSlot::Ready { region, since: self.now, is_ahead };
    }

    pub(super) fn get(&self, slot: usize) -> BufferSlot {
        self.all[slot]
    }

    pub(super) fn empty(&self) -> Option<usize> {
        self.all.iter().position(|slot| *slot == BufferSlot::Empty)
    }

    /// A slot whose memory can be used for another region: a free one, or else the one that has been ready for the
    /// longest. The content of an evicted region is stored elsewhere; that of one that was read ahead may still be
    /// useful.
    pub(super) fn reusable(&self) -> Option<usize> {
        let worth = |slot: &BufferSlot| match *slot {
            BufferSlot::Free => Some((false, 0)),
            BufferSlot::Ready { since, is_ahead, .. } => Some((is_ahead, since)),
            BufferSlot::Empty | BufferSlot::Busy => None,
        };
        let worths = self.all.iter().enumerate().filter_map(|(index, slot)| Some((worth(slot)?, index)));
        worths.min().map(|(_, index)| index)
    }

    /// Number of slots that can be used for another region and were not read ahead.
    pub(super) fn spare(&self) -> usize {
        let is_spare =
            |slot: &&BufferSlot| matches!(slot, BufferSlot::Free | BufferSlot::Ready { is_ahead: false, .. });
        self.all.iter().filter(is_spare).count()
    }

    /// Number of slots that were read ahead.
    pub(super) fn ahead(&self) -> usize {
        self.all.iter().filter(|slot| matches!(slot, BufferSlot::Ready { is_ahead: true, .. })).count()
    }

    /// Number of slots.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
