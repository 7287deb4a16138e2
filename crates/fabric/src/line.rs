//! The line: one cache line that one process writes and another waits for. The only completion there is.
//!
//! A line holds a *turn*, a 32-bit immediate value and 56 bytes. Its writer fills the immediate and the bytes with
//! plain stores and then swaps the turn; a reader that sees the turn it expects sees everything written before.
//! One cache line moves, once.
//!
//! The three low bits of the turn's word are flags, set by readers only:
//!
//! | bit | set by | means |
//! |---|---|---|
//! | [`SLEEPING`] | a reader about to sleep on the word | the writer must wake the futex |
//! | [`BELL`] | a reader that watches many lines | the writer must ring the connection's bell |
//! | [`POKE`] | [`Line::poke`] | nothing; flipping it makes sleepers look again |
//!
//! The writer's swap returns the flags and clears them in the same step. So there is no separate "asleep" word, no
//! fence between two words, and no lost wake-up: a reader that sets its flag after the swap fails, because the word
//! is no longer what it read. loom checks this (`tests` below).
//!
//! | field | written by | ordering |
//! |---|---|---|
//! | `turn` | the writer by swap, readers by compare-and-swap of flags | AcqRel; pairs with the Acquire load in [`Line::is`] |
//! | `immediate`, `body` | the writer alone, before its swap | Relaxed; published by the swap |

use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, AtomicU64, Ordering, futex, spin_hint};

/// 64-bit words of a line's body.
pub const BODY_WORDS: usize = 7;
/// What a line carries beside its immediate value.
pub type Body = [u64; BODY_WORDS];
/// Bytes of a line: one cache line.
pub const LINE_BYTES: u64 = 64;

/// A reader sleeps on the turn's word.
pub const SLEEPING: u32 = 1;
/// A reader wants the connection's bell rung.
pub const BELL: u32 = 2;
/// Flipped to make sleepers look again.
pub const POKE: u32 = 4;
const FLAGS: u32 = SLEEPING | BELL | POKE;
const FLAG_BITS: u32 = 3;

/// Which use of a line this is. Two uses that follow each other never have the same turn; a turn comes again after
/// 2^29 uses, when nobody can still be waiting for the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(u32);

impl Turn {
    /// The turn of a line's n-th use, counted from 0. The turn of a line that was never written belongs to none of
    /// the first 2^29 - 1 uses.
    #[inline(always)]
    pub fn of_use(n: u64) -> Turn {
        Turn((n as u32).wrapping_add(1) << FLAG_BITS)
    }

    /// As a number that can travel in a message.
    #[inline(always)]
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// From a number that a peer sent; flags in it are dropped.
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Turn {
        Turn(bits & !FLAGS)
    }
}

/// What the readers of a line had asked for when it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// Whether the connection's bell must be rung.
    #[inline(always)]
    pub fn bell(self) -> bool {
        self.0 & BELL != 0
    }
}

/// See the [module](self).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Line {
    turn: AtomicU32,
    immediate: AtomicU32,
    body: [AtomicU64; BODY_WORDS],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Line>() as u64 == LINE_BYTES);
    assert!(align_of::<Line>() as u64 == LINE_BYTES);
    assert!(std::mem::offset_of!(Line, immediate) == 4);
    assert!(std::mem::offset_of!(Line, body) == 8);
};

impl Default for Line {
    fn default() -> Line {
        Line { turn: AtomicU32::new(0), immediate: AtomicU32::new(0), body: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Line {
    /// Fills the line, publishes it, and wakes its sleepers.
    #[inline(always)]
    pub fn publish(&self, turn: Turn, immediate: u32, body: &Body) -> Flags {
        self.immediate.store(immediate, Ordering::Relaxed);
        for (word, value) in self.body.iter().zip(body) {
            word.store(*value, Ordering::Relaxed);
        }
        let before = self.turn.swap(turn.0, Ordering::AcqRel);
        if before & SLEEPING != 0 {
            futex::wake_all(&self.turn);
        }
        Flags(before & FLAGS)
    }

    /// Whether this turn has been published.
    #[inline(always)]
    pub fn is(&self, turn: Turn) -> bool {
        self.turn.load(Ordering::Acquire) & !FLAGS == turn.0
    }

    /// The immediate value and the body of the turn that [`Line::is`] has seen.
    #[inline(always)]
    pub fn read(&self) -> (u32, Body) {
        let body = std::array::from_fn(|index| self.body[index].load(Ordering::Relaxed));
        (self.immediate.load(Ordering::Relaxed), body)
    }

    /// Looks `spins` times for the turn.
    #[inline(always)]
    pub fn spin(&self, turn: Turn, spins: u32) -> bool {
        for _ in 0..spins {
            if self.is(turn) {
                return true;
            }
            spin_hint();
        }
        false
    }

    /// Sleeps until the turn is published, `give_up` says so after a wake-up, or the deadline passes. Says whether
    /// the turn was published. Without a deadline it sleeps for as long as it takes.
    pub fn wait(&self, turn: Turn, deadline: Option<Instant>, mut give_up: impl FnMut() -> bool) -> bool {
        loop {
            let seen = self.turn.load(Ordering::Acquire);
            if seen & !FLAGS == turn.0 {
                return true;
            }
            if give_up() {
                return self.is(turn);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return self.is(turn);
            }
            let asleep = seen | SLEEPING;
            if seen == asleep || self.set(seen, asleep) {
                futex::wait(&self.turn, asleep, left);
            }
        }
    }

    /// Asks for the bell at the publication of the turn. False if it is published already: then nothing will ring.
    pub fn ask_bell(&self, turn: Turn) -> bool {
        loop {
            let seen = self.turn.load(Ordering::Acquire);
            if seen & !FLAGS == turn.0 {
                return false;
            }
            if seen & BELL != 0 || self.set(seen, seen | BELL) {
                return true;
            }
        }
    }

    /// Makes every sleeper look again at whatever it waits for.
    pub fn poke(&self) {
        self.turn.fetch_xor(POKE, Ordering::AcqRel);
        futex::wake_all(&self.turn);
    }

    fn set(&self, seen: u32, wanted: u32) -> bool {
        self.turn.compare_exchange(seen, wanted, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_published_turn_is_seen_with_its_contents() {
        let line = Line::default();
        let (first, second) = (Turn::of_use(0), Turn::of_use(1));
        assert!(!line.is(first));
        line.publish(first, 7, &[1, 2, 3, 4, 5, 6, 7]);
        assert!(line.is(first) && !line.is(second));
        assert_eq!(line.read(), (7, [1, 2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn turns_wrap_and_neighbours_differ() {
        for n in [0, 1, (1 << 29) - 2, (1 << 29) - 1, 1 << 29, u64::from(u32::MAX), u64::MAX - 1] {
            assert_ne!(Turn::of_use(n), Turn::of_use(n + 1), "use {n}");
        }
        assert_eq!(Turn::of_use(0), Turn::of_use(1 << 29));
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let line = Line::default();
        assert!(!line.wait(Turn::of_use(0), Some(Instant::now() + Duration::from_millis(5)), || false));
    }

    #[test]
    fn a_sleeper_is_woken_by_publication_and_by_a_poke() {
        let line = Line::default();
        let turn = Turn::of_use(0);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| line.wait(turn, None, || false));
            std::thread::sleep(Duration::from_millis(5));
            line.publish(turn, 0, &[0; BODY_WORDS]);
            assert!(sleeper.join().unwrap());
        });
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| line.wait(Turn::of_use(1), None, || stop.load(Ordering::SeqCst)));
            std::thread::sleep(Duration::from_millis(5));
            stop.store(true, Ordering::SeqCst);
            line.poke();
            assert!(!sleeper.join().unwrap());
        });
    }

    #[test]
    fn the_bell_is_asked_for_once_and_told_to_the_writer() {
        let line = Line::default();
        assert!(line.ask_bell(Turn::of_use(0)));
        assert!(line.publish(Turn::of_use(0), 0, &[0; BODY_WORDS]).bell());
        assert!(!line.ask_bell(Turn::of_use(0)), "published already");
        assert!(!line.publish(Turn::of_use(1), 0, &[0; BODY_WORDS]).bell(), "a request lasts for one turn");
    }
}

#[cfg(test)]
#[cfg(loom)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const BODY: Body = [1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn no_interleaving_loses_a_wake_up_or_tears_a_line() {
        loom::model(|| {
            let line = Arc::new(Line::default());
            let reader = {
                let line = line.clone();
                thread::spawn(move || {
                    assert!(line.wait(Turn::of_use(0), None, || false));
                    assert_eq!(line.read(), (9, BODY));
                })
            };
            line.publish(Turn::of_use(0), 9, &BODY);
            reader.join().unwrap();
        });
    }

    #[test]
    fn two_sleepers_are_both_woken() {
        loom::model(|| {
            let line = Arc::new(Line::default());
            let sleepers: Vec<_> = (0..2)
                .map(|_| {
                    let line = line.clone();
                    thread::spawn(move || assert!(line.wait(Turn::of_use(0), None, || false)))
                })
                .collect();
            line.publish(Turn::of_use(0), 9, &BODY);
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
        });
    }

    #[test]
    fn whoever_asks_for_the_bell_hears_it_or_is_told_that_it_is_too_late() {
        loom::model(|| {
            let line = Arc::new(Line::default());
            let asker = {
                let line = line.clone();
                thread::spawn(move || line.ask_bell(Turn::of_use(0)))
            };
            let rung = line.publish(Turn::of_use(0), 9, &BODY).bell();
            assert_eq!(asker.join().unwrap(), rung);
        });
    }

    #[test]
    fn a_poke_that_follows_a_reason_to_give_up_is_never_missed() {
        loom::model(|| {
            let line = Arc::new(Line::default());
            let dead = Arc::new(AtomicU32::new(0));
            let sleeper = {
                let (line, dead) = (line.clone(), dead.clone());
                thread::spawn(move || {
                    assert!(!line.wait(Turn::of_use(0), None, || dead.load(Ordering::Acquire) == 1));
                })
            };
            dead.store(1, Ordering::Release);
            line.poke();
            sleeper.join().unwrap();
        });
    }
}
