//! Records the last events of a run, and a fingerprint of all of them.

use std::fmt;

use crate::numbers::narrow;

/// How many events are remembered.
const REMEMBERED: usize = 64;

/// The last events of a run.
#[derive(Debug)]
pub struct Trace<E> {
    events: u64,
    fingerprint: u64,
    last: [Option<(u64, E)>; REMEMBERED],
}

impl<E: Copy + fmt::Debug> Default for Trace<E> {
    fn default() -> Trace<E> {
        Trace { events: 0, fingerprint: 0, last: [None; REMEMBERED] }
    }
}

impl<E: Copy + fmt::Debug> Trace<E> {
    /// Notes an event, with what tells it from others.
    pub fn note(&mut self, at_us: u64, event: E, word: u64) {
        self.last[slot(self.events)] = Some((at_us, event));
        self.events += 1;
        self.mix(at_us ^ word.rotate_left(40));
    }

    /// Lets a value count in the fingerprint.
    pub fn mix(&mut self, word: u64) {
        // The finalizer's multiplier of MurmurHash3: a change anywhere changes all that follows.
        self.fingerprint = (self.fingerprint.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Equal for equal runs.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The last events, the oldest first, each with its number and time.
    pub fn last(&self) -> impl Iterator<Item = (u64, u64, E)> + '_ {
        let first = self.events.saturating_sub(REMEMBERED as u64);
        (first..self.events).filter_map(|number| {
            let (at_us, event) = self.last[slot(number)]?;
            Some((number + 1, at_us, event))
        })
    }
}

/// Place of an event among the remembered ones.
fn slot(number: u64) -> usize {
    narrow(number % REMEMBERED as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_remembered_in_order() {
        let mut trace = Trace::default();
        for event in 0..100u64 {
            trace.note(event * 10, event, event);
        }
        let last: Vec<_> = trace.last().collect();
        assert_eq!((trace.events(), last.len()), (100, REMEMBERED));
        assert_eq!((last[0], last[REMEMBERED - 1]), ((37, 360, 36), (100, 990, 99)));
    }

    #[test]
    fn the_fingerprint_depends_on_every_event_and_on_their_order() {
        let of = |words: &[u64]| {
            let mut trace = Trace::default();
            words.iter().for_each(|&word| trace.note(7, word, word));
            trace.fingerprint()
        };
        assert_eq!(of(&[1, 2, 3]), of(&[1, 2, 3]));
        assert!(of(&[1, 2, 3]) != of(&[1, 3, 2]) && of(&[1, 2]) != of(&[1, 2, 2]));
    }
}
