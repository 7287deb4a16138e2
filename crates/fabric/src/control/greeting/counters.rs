//! Remembers which counters of a lease's greetings have been used.

/// Largest distance of a counter from the largest one seen: connections of several workers overtake each other.
const WINDOW: u64 = 1024;
const WORDS: usize = (WINDOW / 64) as usize;

/// Accepts each counter once, so that a recorded greeting cannot be used again. Pass it only the counters of
/// authenticated greetings ([`Greeting::is_by`](super::Greeting::is_by)): others could move the window.
///
/// ```
/// use sublet_fabric::greeting::Counters;
///
/// let mut counters = Counters::default();
/// assert!(counters.accept(1) && counters.accept(3) && counters.accept(2));
/// assert!(!counters.accept(3) && !counters.accept(0));
/// ```
#[derive(Debug, Default)]
pub struct Counters {
    largest: u64,
    /// A bit for each of the last [`WINDOW`] counters, at the counter modulo [`WINDOW`].
    used: [u64; WORDS],
}

impl Counters {
    /// Whether this counter is used for the first time. False for 0 and for a counter that is too old.
    pub fn accept(&mut self, counter: u64) -> bool {
        if counter > self.largest {
            self.advance(counter);
        } else if self.largest - counter >= WINDOW || counter == 0 {
            return false;
        }
        let (word, bit) = place(counter);
        let fresh = self.used[word] & bit == 0;
        self.used[word] |= bit;
        fresh
    }

    fn advance(&mut self, largest: u64) {
        if largest - self.largest >= WINDOW {
            self.used = [0; WORDS];
        } else {
            for passed in self.largest + 1..=largest {
                let (word, bit) = place(passed);
                self.used[word] &= !bit;
            }
        }
        self.largest = largest;
    }
}

fn place(counter: u64) -> (usize, u64) {
    let index = counter % WINDOW;
    ((index / 64) as usize, 1 << (index % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn handles_counters_far_behind_and_the_largest_one() {
        let mut counters = Counters::default();
        assert!(counters.accept(u64::MAX) && !counters.accept(u64::MAX) && !counters.accept(1));
        assert!(counters.accept(u64::MAX - WINDOW + 1) && !counters.accept(u64::MAX - WINDOW));
    }

    proptest! {
        #[test]
        fn accepts_each_counter_in_reach_exactly_once(
            all in prop::collection::vec(prop_oneof![1u64..3000, any::<u64>()], 0..400)
        ) {
            let (mut counters, mut seen, mut largest) = (Counters::default(), HashSet::new(), 0u64);
            for counter in all {
                let in_reach = counter != 0 && (counter > largest || largest - counter < WINDOW);
                prop_assert_eq!(counters.accept(counter), in_reach && !seen.contains(&counter), "{}", counter);
                if in_reach {
                    seen.insert(counter);
                    largest = largest.max(counter);
                }
            }
        }
    }
}
