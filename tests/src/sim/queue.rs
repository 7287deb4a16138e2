//! Queues future events in the order of their time: a calendar queue.
//!
//! Most events are a few milliseconds or a second ahead. They go into one of [`DAYS`] days of a millisecond each, a
//! list that is sorted when its day comes. Events further ahead wait in a heap. So an event costs a few nanoseconds,
//! however many wait, and nothing is allocated for it.
//!
//! Events of the same time happen in the order in which they were added: a run is a function of its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::numbers::narrow;

/// A day is 2^10 microseconds.
const DAY_BITS: u32 = 10;
/// Days of the calendar, a power of two: events up to 4 s ahead have a day.
const DAYS: usize = 4096;

/// Events yet to happen.
#[derive(Debug)]
pub struct EventQueue<E> {
    /// Each day's events, unsorted; [`EventQueue::today`] has been taken out.
    days: Vec<Vec<QueueEntry<E>>>,
    /// Events of the current day, the next one last.
    today: Vec<QueueEntry<E>>,
    /// Number of the current day since the beginning.
    day: u64,
    /// Events in `days`.
    dated: usize,
    /// Events beyond the calendar.
    later: BinaryHeap<Reverse<QueueEntry<E>>>,
    added: u64,
}

#[derive(Clone, Copy, Debug)]
struct QueueEntry<E> {
    at_us: u64,
    number: u64,
    event: E,
}

impl<E> QueueEntry<E> {
    fn key(&self) -> (u64, u64) {
        (self.at_us, self.number)
    }
}

impl<E> PartialEq for QueueEntry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for QueueEntry<E> {}

impl<E> PartialOrd for QueueEntry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for QueueEntry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E: Copy> Default for EventQueue<E> {
    fn default() -> EventQueue<E> {
        EventQueue {
            days: (0..DAYS).map(|_| Vec::new()).collect(),
            today: Vec::new(),
            day: 0,
            dated: 0,
            later: BinaryHeap::new(),
            added: 0,
        }
    }
}

impl<E: Copy> EventQueue<E> {
    /// Adds an event; one whose time has passed happens next.
    pub fn add(&mut self, at_us: u64, event: E) {
        let entry = QueueEntry { at_us, number: self.added, event };
        self.added += 1;
        let day = at_us >> DAY_BITS;
        if day <= self.day {
            let at = self.today.partition_point(|other| other.key() > entry.key());
            self.today.insert(at, entry);
        } else if day - self.day < DAYS as u64 {
            self.days[place(day)].push(entry);
            self.dated += 1;
        } else {
            self.later.push(Reverse(entry));
        }
    }

    /// Takes the next event and its time out.
    pub fn next(&mut self) -> Option<(u64, E)> {
        loop {
            if let Some(entry) = self.today.pop() {
                return Some((entry.at_us, entry.event));
            }
            self.turn_page()?;
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.today.len() + self.dated + self.later.len()
    }

    /// Goes to the next day, or over all days without events; none if nothing waits.
    fn turn_page(&mut self) -> Option<()> {
        self.day = match (self.dated, self.later.peek()) {
            (0, None) => return None,
            (0, Some(Reverse(first))) => first.at_us >> DAY_BITS,
            _ => self.day + 1,
        };
        std::mem::swap(&mut self.today, &mut self.days[place(self.day)]);
        self.dated -= self.today.len();
        while let Some(&Reverse(first)) = self.later.peek() {
            if first.at_us >> DAY_BITS > self.day {
                break;
            }
            self.today.push(first);
            self.later.pop();
        }
        self.today.sort_unstable_by(|a, b| b.cmp(a));
        Some(())
    }
}

/// Place of a day in the calendar.
fn place(day: u64) -> usize {
    narrow(day % DAYS as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::random::Random;

    #[test]
    fn events_come_by_time_and_equal_ones_as_added() {
        let mut random = Random::from_seed(3);
        let mut queue = EventQueue::default();
        let mut model: Vec<(u64, u64)> = Vec::new();
        let mut now = 0;
        for number in 0..20_000_u64 {
            let ahead = random.pick(&[0, 1, 1_000, 100_000, 5_000_000, 60_000_000]);
            let at = now + random.below(ahead + 1);
            queue.add(at, number);
            model.push((at, number));
            if random.below(3) == 0 {
                let least = *model.iter().min().unwrap();
                model.retain(|entry| *entry != least);
                assert_eq!(queue.next(), Some(least));
                now = least.0;
            }
        }
        model.sort_unstable();
        assert_eq!(queue.len(), model.len());
        assert!(model.into_iter().all(|entry| queue.next() == Some(entry)));
        assert!(queue.next().is_none());
    }

    #[test]
    fn what_is_late_happens_next() {
        let mut queue = EventQueue::default();
        queue.add(10_000_000, 'b');
        assert_eq!(queue.next(), Some((10_000_000, 'b')));
        queue.add(10_000_001, 'd');
        queue.add(1, 'c');
        assert_eq!(queue.next(), Some((1, 'c')));
        assert_eq!(queue.next(), Some((10_000_001, 'd')));
    }
}
