//! Invocation records: the result lines in use, and the wakers to call when they are published.
//!
//! A submission claims a record, and the thread that collects the result releases it. The lowest free one is claimed,
//! so that calls that follow each other use the same line, which both ends have in their caches.

use std::sync::Mutex;
use std::task::Waker;

use sublet_fabric::line::Turn;
use sublet_fabric::sync::{AtomicU64, Ordering, lock};

use crate::wire::RECORDS;

const WORDS: usize = RECORDS as usize / 64;

/// The records of one worker.
pub(crate) struct Records {
    /// One bit for each record, 1 if free. Claimed and released by compare-and-swap.
    free: [AtomicU64; WORDS],
    /// Number of uses of each record. Written only by its owner.
    uses: Box<[AtomicU64]>,
    /// The wakers of the records whose bit in `watched` is set.
    wakers: Box<[Mutex<Option<Waker>>]>,
    watched: [AtomicU64; WORDS],
}

/// A claimed record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordClaim {
    pub(crate) record: u16,
    /// Number of earlier uses of the record.
    pub(crate) uses: u64,
}

impl RecordClaim {
    /// The turn in which the result is published.
    #[inline(always)]
    pub(crate) fn turn(self) -> Turn {
        Turn::of_use(self.uses)
    }
}

impl Records {
    pub(crate) fn new() -> Records {
        Records {
            free: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            uses: (0..RECORDS).map(|_| AtomicU64::new(0)).collect(),
            wakers: (0..RECORDS).map(|_| Mutex::new(None)).collect(),
            watched: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Claims a free record. `None` if all are unfinished or uncollected.
    #[inline(always)]
    pub(crate) fn claim(&self) -> Option<RecordClaim> {
        for (index, word) in self.free.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                let lowest = bits & bits.wrapping_neg();
                match word.compare_exchange(bits, bits & !lowest, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => return Some(self.begin(index * 64 + lowest.trailing_zeros() as usize)),
                    Err(now) => bits = now,
                }
            }
        }
        None
    }

    #[inline(always)]
    fn begin(&self, record: usize) -> RecordClaim {
        let uses = self.uses[record].load(Ordering::Relaxed);
        self.uses[record].store(uses + 1, Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "there are `RECORDS` counts of uses")]
        let record = record as u16;
        RecordClaim { record, uses }
    }

    /// Gives a record back.
    #[inline(always)]
    pub(crate) fn release(&self, record: u16) {
        let before = self.free[usize::from(record) / 64].fetch_or(1 << (record % 64), Ordering::AcqRel);
        debug_assert!(before & 1 << (record % 64) == 0, "record {record} is given back twice");
    }

    /// Approximate number of records in use: exact for the first 64, which is what choosing a worker needs.
    #[inline(always)]
    pub(crate) fn in_use(&self) -> u32 {
        self.free[0].load(Ordering::Relaxed).count_zeros()
    }

    /// Every record in use, one by one.
    pub(crate) fn each_in_use(&self, mut tell: impl FnMut(u16)) {
        each_bit(self.free.iter().map(|word| !word.load(Ordering::Acquire)), &mut tell);
    }

    /// Has the waker called once when the record's result is published.
    pub(crate) fn watch(&self, record: u16, waker: &Waker) {
        debug_assert!(
            self.free[usize::from(record) / 64].load(Ordering::Relaxed) & 1 << (record % 64) == 0,
            "record {record} is watched, and not in use"
        );
        let mut slot = lock(&self.wakers[usize::from(record)]);
        match &mut *slot {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        self.watched[usize::from(record) / 64].fetch_or(1 << (record % 64), Ordering::AcqRel);
    }

    /// Calls and forgets the wakers of those watched records for which `ready` returns true.
    pub(crate) fn wake(&self, mut ready: impl FnMut(u16) -> bool) {
        each_bit(self.watched.iter().map(|word| word.load(Ordering::Acquire)), &mut |record| {
            if ready(record) {
                self.unwatch(record).into_iter().for_each(Waker::wake);
            }
        });
    }

    /// Returns whether any record has a waker.
    pub(crate) fn any_watched(&self) -> bool {
        self.watched.iter().any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Forgets the record's waker.
    pub(crate) fn unwatch(&self, record: u16) -> Option<Waker> {
        let watched = &self.watched[usize::from(record) / 64];
        if watched.load(Ordering::Acquire) & 1 << (record % 64) == 0 {
            return None;
        }
        watched.fetch_and(!(1 << (record % 64)), Ordering::AcqRel);
        lock(&self.wakers[usize::from(record)]).take()
    }

    /// The turn of the record's latest use.
    pub(crate) fn latest_turn(&self, record: u16) -> Turn {
        Turn::of_use(self.uses(record).wrapping_sub(1))
    }

    /// Number of uses of the record, the latest one included.
    pub(crate) fn uses(&self, record: u16) -> u64 {
        self.uses[usize::from(record)].load(Ordering::Acquire)
    }
}

fn each_bit(words: impl Iterator<Item = u64>, tell: &mut impl FnMut(u16)) {
    for (index, mut bits) in words.enumerate() {
        while bits != 0 {
            #[expect(clippy::cast_possible_truncation, reason = "there are `RECORDS` bits in all words")]
            let record = (index * 64) as u16 + bits.trailing_zeros() as u16;
            tell(record);
            bits &= bits - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn all_records_can_be_claimed_once_and_again_after_release() {
        let records = Records::new();
        let claimed: HashSet<_> = (0..RECORDS).map(|_| records.claim().unwrap().record).collect();
        assert_eq!(claimed.len(), RECORDS as usize);
        assert!(records.claim().is_none());
        records.release(77);
        let again = records.claim().unwrap();
        assert_eq!((again.record, again.uses), (77, 1));
    }

    #[test]
    fn threads_never_share_a_record() {
        let records = Records::new();
        let owners: Vec<AtomicU64> = (0..RECORDS).map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let record = records.claim().unwrap().record;
                        assert_eq!(owners[usize::from(record)].fetch_add(1, Ordering::AcqRel), 0);
                        owners[usize::from(record)].fetch_sub(1, Ordering::AcqRel);
                        records.release(record);
                    }
                });
            }
        });
    }

    #[test]
    fn a_watcher_is_woken_when_its_own_record_is_ready() {
        let records = Records::new();
        let record = records.claim().unwrap().record;
        let woken = std::sync::Arc::new(Flag::default());
        records.watch(record, &woken.clone().into());
        records.wake(|_| false);
        assert!(!woken.0.load(std::sync::atomic::Ordering::SeqCst));
        records.wake(|ready| ready == record);
        assert!(woken.0.load(std::sync::atomic::Ordering::SeqCst));
        assert!(records.unwatch(record).is_none());
    }

    #[derive(Default)]
    struct Flag(std::sync::atomic::AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
}
