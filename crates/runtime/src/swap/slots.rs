//! Slots: places of 2 MiB through which regions come and go.

/// What a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nothing, and takes no memory.
    Empty,
    /// A huge page with nothing of use.
    Free,
    /// Somebody is at it: reads into it, moves it, or gives its memory back.
    Busy,
    /// What its region has, which is not in the array; of the slots, since when, and whether it was read ahead.
    Ready { region: usize, since: u64, is_ahead: bool },
}

/// See the [module](self).
pub(super) struct Slots {
    all: Vec<Slot>,
    now: u64,
}

impl Slots {
    pub(super) fn new(slots: usize) -> Slots {
        Slots { all: vec![Slot::Empty; slots], now: 0 }
    }

    pub(super) fn set(&mut self, slot: usize, is: Slot) {
        self.all[slot] = is;
    }

    pub(super) fn ready(&mut self, slot: usize, region: usize, is_ahead: bool) {
        debug_assert_eq!(self.all[slot], Slot::Busy, "slot {slot} gets region {region}");
        self.now += 1;
        self.all[slot] = Slot::Ready { region, since: self.now, is_ahead };
    }

    pub(super) fn get(&self, slot: usize) -> Slot {
        self.all[slot]
    }

    pub(super) fn empty(&self) -> Option<usize> {
        self.all.iter().position(|slot| *slot == Slot::Empty)
    }

    /// One whose memory can be used for something else: free, or else what has been ready for the longest. That is of
    /// no use any more if it went, and still of some if it was read ahead.
    pub(super) fn reusable(&self) -> Option<usize> {
        let worth = |slot: &Slot| match *slot {
            Slot::Free => Some((false, 0)),
            Slot::Ready { since, is_ahead, .. } => Some((is_ahead, since)),
            Slot::Empty | Slot::Busy => None,
        };
        let worths = self.all.iter().enumerate().filter_map(|(index, slot)| Some((worth(slot)?, index)));
        worths.min().map(|(_, index)| index)
    }

    /// How many can be used for something else and were not read ahead.
    pub(super) fn spare(&self) -> usize {
        let is_spare = |slot: &&Slot| matches!(slot, Slot::Free | Slot::Ready { is_ahead: false, .. });
        self.all.iter().filter(is_spare).count()
    }

    /// How many were read ahead.
    pub(super) fn ahead(&self) -> usize {
        self.all.iter().filter(|slot| matches!(slot, Slot::Ready { is_ahead: true, .. })).count()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }
}
