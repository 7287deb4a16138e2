//! The line: one cache line that one process writes and another waits for. It is the only kind of completion.
//!
//! A line holds a *turn*, a 32-bit immediate value and up to 56 bytes. Both sides access only the bytes that they agree
//! on. The writer fills the immediate and the bytes and then the turn, all with plain stores; a reader that sees the
//! turn that it expects sees everything written before. One cache line moves, once, and only one side ever writes it: a
//! network can do the same with a single write.
//!
//! A reader that does not poll sleeps on the line's [`Watch`], a word on another cache line. Reader and writer meet
//! there as in Dekker's algorithm. The reader sets its flag and then looks at the turn. The writer sets the turn and
//! then looks for flags. Each executes a full fence between the two, so one of them sees the other. loom checks this.
//! While no reader sleeps, the watch stays in both caches and costs nothing.
//!
//! | field | written by | ordering |
//! |---|---|---|
//! | `turn` | the writer | Release. Pairs with the Acquire load in [`Line::is`] |
//! | `immediate`, `body` | the writer, before the turn | Relaxed. Published by the turn |
//! | `Watch` | Readers set flags by fetch-or. The writer clears them and counts, by compare-and-swap | Both sides fence SeqCst between it and the turn |

use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, futex};

/// Most 64-bit words of a line's body. Every word that is written and read costs time.
pub const BODY_WORDS: usize = 7;
/// Bytes of a line: one cache line.
pub const LINE_BYTES: u64 = 64;
/// Bytes of a watch.
pub const WATCH_BYTES: u64 = 4;

/// Sequence number of a use of a line, modulo 2^32. Two successive uses never have the same turn. A turn repeats after
/// 2^32 uses, when no reader can still be waiting for the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn(u32);

impl Turn {
    /// The turn of a line's n-th use, counted from 0. The turn of a line that was never written belongs to none of
    /// the first 2^32 - 1 uses.
    #[inline(always)]
    pub fn of_use(n: u64) -> Turn {
        Turn(((n & 0xffff_ffff) as u32).wrapping_add(1))
    }

    /// The turn as a number, which can travel in a message.
    #[inline(always)]
    pub fn to_bits(self) -> u32 {
        self.0
    }

    /// Makes a turn of a number that a peer sent.
    #[inline(always)]
    pub fn from_bits(bits: u32) -> Turn {
        Turn(bits)
    }

    /// Whether a line that waits for this turn can hold `found`, if it was used `uses` times before: the turn itself,
    /// the turn of an earlier use, or the turn of a line that was never written. After a use whose write was lost, the
    /// line still holds an earlier turn.
    #[inline(always)]
    pub fn may_follow(self, found: Turn, uses: u64) -> bool {
        u64::from(self.0.wrapping_sub(found.0)) <= uses.saturating_add(1)
    }
}

/// Flags by which the readers of a line that do not poll announce themselves, and a count of the times the flags were
/// cleared. The count keeps a reader from falling asleep on flags that a second reader has set again.
#[repr(transparent)]
#[derive(Debug)]
pub struct Watch {
    flags: AtomicU32,
}

/// A reader sleeps on the watch.
const SLEEPING: u32 = 1;
/// A reader that watches many lines wants the connection's bell rung.
const BELL: u32 = 2;
const FLAGS: u32 = SLEEPING | BELL;

impl Default for Watch {
    fn default() -> Watch {
        Watch { flags: AtomicU32::new(0) }
    }
}

impl Watch {
    /// Wakes the sleepers after a publication. Returns whether the connection's bell must be rung.
    #[inline(always)]
    fn notify(&self) -> bool {
        fence(Ordering::SeqCst);
        self.flags.load(Ordering::Relaxed) & FLAGS != 0 && self.wake()
    }

    #[cold]
    fn wake(&self) -> bool {
        let mut flags = self.flags.load(Ordering::Relaxed);
        loop {
            let cleared = (flags & !FLAGS).wrapping_add(FLAGS + 1);
            match self.flags.compare_exchange(flags, cleared, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => flags = now,
            }
        }
        if flags & SLEEPING != 0 {
            futex::wake_all(&self.flags);
        }
        flags & BELL != 0
    }

    /// Makes every sleeper check again whether its wait is over. The caller must have stored before what the sleepers
    /// are to see.
    ///
    /// Does not read the flags, which the peer may have cleared. It changes the count by one instruction, which no peer
    /// can delay by a concurrent change.
    pub fn poke(&self) {
        fence(Ordering::SeqCst);
        self.flags.fetch_add(FLAGS + 1, Ordering::AcqRel);
        futex::wake_all(&self.flags);
    }

    /// Sets a flag, and orders that before everything that the caller reads next.
    fn ask(&self, flag: u32) -> u32 {
        let flags = self.flags.fetch_or(flag, Ordering::AcqRel) | flag;
        fence(Ordering::SeqCst);
        flags
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
    assert!(size_of::<Watch>() as u64 == WATCH_BYTES);
};

impl Default for Line {
    fn default() -> Line {
        Line {
            turn: AtomicU32::new(0),
            immediate: AtomicU32::new(0),
            body: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Line {
    /// Fills the line, publishes it, and wakes its sleepers. Returns whether the connection's bell must be rung.
    #[inline(always)]
    pub fn publish<const WORDS: usize>(
        &self,
        watch: &Watch,
        turn: Turn,
        immediate: u32,
        body: &[u64; WORDS],
    ) -> bool {
        const { assert!(WORDS <= BODY_WORDS) };
        self.immediate.store(immediate, Ordering::Relaxed);
        for (word, value) in self.body.iter().zip(body) {
            word.store(*value, Ordering::Relaxed);
        }
        self.turn.store(turn.0, Ordering::Release);
        watch.notify()
    }

    /// Whether this turn has been published.
    #[inline(always)]
    pub fn is(&self, turn: Turn) -> bool {
        self.turn.load(Ordering::Acquire) == turn.0
    }

    /// The turn that was published last, or any value that a peer has written in its place.
    #[inline(always)]
    pub fn turn(&self) -> Turn {
        Turn(self.turn.load(Ordering::Acquire))
    }

    /// Resets the line to the state of a line that was never written. No other thread or process may write it at this
    /// time.
    pub fn clear(&self) {
        self.turn.store(0, Ordering::Release);
    }

    /// The immediate value and the first words of the body of the turn that [`Line::is`] has seen.
    #[inline(always)]
    pub fn read<const WORDS: usize>(&self) -> (u32, [u64; WORDS]) {
        const { assert!(WORDS <= BODY_WORDS) };
        let body = std::array::from_fn(|index| self.body[index].load(Ordering::Relaxed));
        (self.immediate.load(Ordering::Relaxed), body)
    }

    /// Polls the line `looks` times for the turn.
    #[inline(always)]
    pub fn spin(&self, turn: Turn, looks: u32) -> bool {
        for _ in 0..looks {
            if self.is(turn) {
                return true;
            }
        }
        false
    }

    /// Sleeps until the turn is published, `give_up` returns true, or the deadline passes. Returns whether the turn was
    /// published. Without a deadline the wait is not limited. The thread that makes `give_up` true must
    /// [`poke`](Watch::poke) the watch.
    pub fn wait(
        &self,
        watch: &Watch,
        turn: Turn,
        deadline: Option<Instant>,
        mut give_up: impl FnMut() -> bool,
    ) -> bool {
        while !self.is(turn) {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return self.is(turn);
            }
            let asleep = watch.ask(SLEEPING);
            if self.is(turn) {
                return true;
            }
            if give_up() {
                return self.is(turn);
            }
            futex::wait(&watch.flags, asleep, left);
        }
        true
    }

    /// Requests the bell at the publication of the turn. False if the turn is published already: then the bell may not
    /// ring.
    ///
    /// The writer may mistake the request for one of the turn before, and ring too early: a reader that hears the bell
    /// before the turn is published must ask again.
    pub fn ask_bell(&self, watch: &Watch, turn: Turn) -> bool {
        watch.ask(BELL);
        !self.is(turn)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use sublet_means::spawn_until_asleep;

    #[test]
    fn a_published_turn_is_seen_with_its_contents() {
        let (line, watch) = (Line::default(), Watch::default());
        let (first, second) = (Turn::of_use(0), Turn::of_use(1));
        assert!(!line.is(first));
        line.publish(&watch, first, 7, &[1, 2, 3, 4, 5, 6, 7]);
        assert!(line.is(first) && !line.is(second));
        assert_eq!(line.read(), (7, [1, 2, 3, 4, 5, 6, 7]));
    }

    #[test]
    fn turns_wrap_and_neighbours_differ() {
        for n in [0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, u64::MAX - 1] {
            assert_ne!(Turn::of_use(n), Turn::of_use(n + 1), "use {n}");
        }
        assert_eq!(Turn::of_use(0), Turn::of_use(1 << 32));
    }

    #[test]
    fn a_wait_ends_at_its_deadline() {
        let (line, watch) = (Line::default(), Watch::default());
        assert!(
            !line.wait(&watch, Turn::of_use(0), Some(Instant::now() + Duration::from_millis(5)), || false)
        );
    }

    #[test]
    fn a_sleeper_is_woken_by_publication_and_by_a_poke() {
        let (line, watch) = (Line::default(), Watch::default());
        let turn = Turn::of_use(0);
        std::thread::scope(|scope| {
            let sleeper = spawn_until_asleep(scope, || line.wait(&watch, turn, None, || false));
            line.publish(&watch, turn, 0, &[0; BODY_WORDS]);
            assert!(sleeper.join().unwrap());
        });
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sleeper = spawn_until_asleep(scope, || {
                line.wait(&watch, Turn::of_use(1), None, || stop.load(Ordering::SeqCst))
            });
            stop.store(true, Ordering::SeqCst);
            watch.poke();
            assert!(!sleeper.join().unwrap());
        });
    }

    #[test]
    fn poke_wakes_sleeper_whose_flag_the_peer_has_cleared() {
        let (line, watch) = (Line::default(), Watch::default());
        let stop = std::sync::atomic::AtomicBool::new(false);
        let (ended, has_ended) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            spawn_until_asleep(scope, || {
                let came = line
                    .wait(&watch, Turn::of_use(0), None, || stop.load(std::sync::atomic::Ordering::SeqCst));
                ended.send(came).unwrap();
            });
            while watch.flags.load(Ordering::SeqCst) != SLEEPING {
                std::thread::yield_now();
            }
            watch.flags.store(0, Ordering::SeqCst);
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
            watch.poke();
            let came = has_ended.recv_timeout(Duration::from_secs(180));
            // Without this call a failure would wait for the sleeper.
            futex::wake_all(&watch.flags);
            assert_eq!(came, Ok(false), "the sleeper still sleeps");
        });
    }

    #[test]
    fn line_may_hold_only_turns_of_earlier_uses() {
        let turn = Turn::of_use;
        for (uses, found) in
            [(0, Turn(0)), (0, turn(0)), (5, turn(4)), (5, turn(0)), (5, Turn(0)), (1 << 33, turn(7))]
        {
            assert!(turn(uses).may_follow(found, uses), "{found:?} before use {uses}");
        }
        for (uses, found) in
            [(0, turn(1)), (0, Turn(u32::MAX)), (5, turn(6)), (5, Turn(0xaaaa_aaaa)), (5, Turn(0x5555_5555))]
        {
            assert!(!turn(uses).may_follow(found, uses), "{found:?} before use {uses}");
        }
    }

    #[test]
    fn bell_request_reaches_the_writer_once() {
        let (line, watch) = (Line::default(), Watch::default());
        assert!(line.ask_bell(&watch, Turn::of_use(0)));
        assert!(line.publish(&watch, Turn::of_use(0), 0, &[0; BODY_WORDS]));
        assert!(!line.publish(&watch, Turn::of_use(1), 0, &[0; BODY_WORDS]), "a request lasts for one turn");
        assert!(!line.ask_bell(&watch, Turn::of_use(1)), "published already");
    }
}

#[cfg(test)]
#[cfg(loom)]
mod tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    const BODY: [u64; BODY_WORDS] = [1, 2, 3, 4, 5, 6, 7];

    #[test]
    fn no_interleaving_loses_a_wake_up_or_tears_a_line() {
        loom::model(|| {
            let line = Arc::new((Line::default(), Watch::default()));
            let reader = {
                let line = line.clone();
                thread::spawn(move || {
                    assert!(line.0.wait(&line.1, Turn::of_use(0), None, || false));
                    assert_eq!(line.0.read(), (9, BODY));
                })
            };
            line.0.publish(&line.1, Turn::of_use(0), 9, &BODY);
            reader.join().unwrap();
        });
    }

    #[test]
    fn two_sleepers_are_both_woken() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let line = Arc::new((Line::default(), Watch::default()));
            let sleepers: Vec<_> = (0..2)
                .map(|_| {
                    let line = line.clone();
                    thread::spawn(move || assert!(line.0.wait(&line.1, Turn::of_use(0), None, || false)))
                })
                .collect();
            line.0.publish(&line.1, Turn::of_use(0), 9, &BODY);
            for sleeper in sleepers {
                sleeper.join().unwrap();
            }
        });
    }

    #[test]
    fn bell_request_rings_or_reports_that_it_is_too_late() {
        loom::model(|| {
            let line = Arc::new((Line::default(), Watch::default()));
            let asker = {
                let line = line.clone();
                thread::spawn(move || line.0.ask_bell(&line.1, Turn::of_use(0)))
            };
            let rung = line.0.publish(&line.1, Turn::of_use(0), 9, &BODY);
            let must_ring = asker.join().unwrap();
            assert!(rung || !must_ring);
        });
    }

    #[test]
    fn poke_after_a_reason_to_give_up_is_never_missed() {
        loom::model(|| {
            let line = Arc::new((Line::default(), Watch::default()));
            let dead = Arc::new(AtomicU32::new(0));
            let sleeper = {
                let (line, dead) = (line.clone(), dead.clone());
                thread::spawn(move || {
                    assert!(
                        !line.0.wait(&line.1, Turn::of_use(0), None, || dead.load(Ordering::Acquire) == 1)
                    );
                })
            };
            dead.store(1, Ordering::Release);
            line.1.poke();
            sleeper.join().unwrap();
        });
    }
}
