//! A ring of lines: many senders in one process, one receiver in another.
//!
//! Positions count from 0 and never wrap (64 bits). Position p uses line `p % lines`, for the `p / lines`-th time;
//! its turn says so. The receiver takes positions in order and therefore knows which single line comes next: that is
//! the line it polls, and the one it sleeps on.
//!
//! Flow control needs nothing from the receiver. A sender that claims a position records who it sends for (its
//! [`Occupant`]); the next sender of the same line asks whether that occupant has had its answer. Answers arrive
//! in lines of their own, which senders watch anyway, so a full ring costs no extra traffic and an empty one none.
//!
//! A claimant says when it has written its line ([`Sender::sent`]). Until then the line is not free whatever
//! `answered` says: a thread that sleeps between claim and publication could otherwise overwrite its successor's
//! message after a restart of the receiver has answered for everything before it.

use crate::line::Turn;
use crate::sync::{AtomicU64, Ordering};

/// Keeps a field that many threads write away from its neighbours' cache lines.
#[repr(align(128))]
struct Apart<T>(T);

/// The message that a position was claimed for: the sender's own record number, and the turn that the answer will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// The number of the sender's record of this message, below 2^15.
    pub record: u16,
    /// The turn of the record's answer.
    pub turn: Turn,
}

/// The sending side, shared by the threads of one process. Lock-free.
pub struct Sender {
    tail: Apart<AtomicU64>,
    /// For each line its last claim: the low 16 bits of the lap, whether it was sent, the record, and the answer's
    /// turn, packed. Written by the claimant, Release; pairs with the Acquire load of the claimant one lap later.
    occupants: Box<[AtomicU64]>,
}

/// Place and turn of a message in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The count of messages before this one.
    pub count: u64,
    /// Index of the line in the ring.
    pub line: u32,
    /// The line's turn.
    pub turn: Turn,
}

impl Position {
    /// Returns the position with this count in a ring of `lines` lines, a power of two.
    #[inline(always)]
    pub fn new(count: u64, lines: u32) -> Position {
        debug_assert!(lines.is_power_of_two(), "a ring of {lines} lines");
        let line = (count & 0xffff_ffff) as u32 & (lines - 1);
        Position { count, line, turn: Turn::of_use(lap(count, lines)) }
    }
}

/// Number of earlier uses of the line of a position.
#[inline(always)]
fn lap(count: u64, lines: u32) -> u64 {
    count >> lines.trailing_zeros()
}

impl Sender {
    /// Makes the sender of a ring of `lines` lines.
    ///
    /// # Panics
    /// If `lines` is not a power of two.
    pub fn new(lines: u32) -> Sender {
        assert!(lines.is_power_of_two(), "a ring has a power of two of lines, not {lines}");
        let occupants = (0..lines).map(|_| AtomicU64::new(NEVER_CLAIMED)).collect();
        Sender { tail: Apart(AtomicU64::new(0)), occupants }
    }

    /// Number of positions that have been claimed.
    #[inline(always)]
    pub fn tail(&self) -> u64 {
        self.tail.0.load(Ordering::Acquire)
    }

    /// Claims the next position, or says that the ring is full: that `answered(position, occupant)` denies an answer
    /// to the message that last used the line, or that its sender is still writing it.
    #[inline(always)]
    pub fn claim(&self, by: Occupant, answered: impl Fn(u64, Occupant) -> bool) -> Option<Position> {
        debug_assert!(by.record <= MAX_RECORD, "record {} does not fit beside a lap", by.record);
        let lines = self.lines();
        loop {
            let count = self.tail.0.load(Ordering::Acquire);
            let position = Position::new(count, lines);
            let slot = &self.occupants[position.line as usize];
            let lap = lap(count, lines);
            if lap > 0 {
                let (last_lap, sent, last) = unpack(slot.load(Ordering::Acquire));
                if last_lap != low_bits(lap - 1) || !sent || !answered(count - u64::from(lines), last) {
                    // Full, unless another thread has claimed this position meanwhile: then look at the next one.
                    if self.tail.0.load(Ordering::Acquire) == count {
                        return None;
                    }
                    continue;
                }
            }
            if self.tail.0.compare_exchange(count, count + 1, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                slot.store(pack(low_bits(lap), false, by), Ordering::Release);
                return Some(position);
            }
        }
    }

    /// Every message that was sent and whose line was not claimed since: the count of its position, and its occupant. A line
    /// that is claimed at the same time may be left out.
    #[cold]
    pub fn each_sent(&self, mut tell: impl FnMut(u64, Occupant)) {
        let lines = self.lines();
        let tail = self.tail();
        for count in tail.saturating_sub(u64::from(lines))..tail {
            let slot = &self.occupants[Position::new(count, lines).line as usize];
            let (last_lap, sent, by) = unpack(slot.load(Ordering::Acquire));
            if sent && last_lap == low_bits(lap(count, lines)) {
                tell(count, by);
            }
        }
    }

    /// Records that the claimant has published the line of this position.
    #[inline(always)]
    pub fn sent(&self, position: Position, by: Occupant) {
        let lap = low_bits(lap(position.count, self.lines()));
        // Another load would be one more step for the model checker.
        #[cfg(not(loom))]
        debug_assert_eq!(
            self.occupants[position.line as usize].load(Ordering::Relaxed),
            pack(lap, false, by),
            "{position:?} is not {by:?}'s to send"
        );
        self.occupants[position.line as usize].store(pack(lap, true, by), Ordering::Release);
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "`new` has their number as a `u32`")]
    fn lines(&self) -> u32 {
        self.occupants.len() as u32
    }
}

/// A line's word before its first claim: of a lap that is not the one before the second claim's.
const NEVER_CLAIMED: u64 = (u16::MAX as u64) << 48;

const SENT: u64 = 1 << 47;
/// The largest number of a record.
const MAX_RECORD: u16 = 0x7fff;

/// The bits of a lap that a line's word holds.
#[inline(always)]
fn low_bits(lap: u64) -> u16 {
    (lap & 0xffff) as u16
}

#[inline(always)]
fn pack(lap: u16, sent: bool, by: Occupant) -> u64 {
    let sent = if sent { SENT } else { 0 };
    u64::from(lap) << 48 | sent | u64::from(by.record) << 32 | u64::from(by.turn.to_bits())
}

#[inline(always)]
fn unpack(word: u64) -> (u16, bool, Occupant) {
    let record = (word >> 32 & 0xffff) as u16 & MAX_RECORD;
    let turn = Turn::from_bits((word & 0xffff_ffff) as u32);
    ((word >> 48) as u16, word & SENT != 0, Occupant { record, turn })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn occupant(record: u16) -> Occupant {
        Occupant { record, turn: Turn::of_use(u64::from(record)) }
    }

    #[test]
    fn positions_come_in_order_and_wait_for_answers() {
        let sender = Sender::new(2);
        let claim = |record, answered: bool| {
            let position = sender.claim(occupant(record), |_, _| answered)?;
            sender.sent(position, occupant(record));
            Some(position.count)
        };
        assert_eq!((claim(0, false), claim(1, false)), (Some(0), Some(1)));
        assert_eq!(claim(2, false), None, "full");
        assert_eq!(claim(2, true), Some(2));
    }

    #[test]
    fn claim_asks_for_the_occupants_own_record_and_turn() {
        let sender = Sender::new(1);
        let first = sender.claim(occupant(3), |_, _| false).unwrap();
        assert_eq!(sender.claim(occupant(4), |_, _| true), None, "claimed, but not yet sent");
        sender.sent(first, occupant(3));
        let second = sender.claim(occupant(4), |count, last| (count, last) == (0, occupant(3))).unwrap();
        sender.sent(second, occupant(4));
        sender.claim(occupant(5), |count, last| (count, last) == (1, occupant(4))).unwrap();
    }

    #[test]
    fn names_the_messages_that_were_sent_and_not_yet_replaced() {
        let sender = Sender::new(2);
        let sent = || {
            let mut sent = Vec::new();
            sender.each_sent(|count, by| sent.push((count, by.record)));
            sent
        };
        assert_eq!(sent(), []);
        for record in 0..3 {
            let position = sender.claim(occupant(record), |_, _| true).unwrap();
            sender.sent(position, occupant(record));
        }
        assert_eq!(sent(), [(1, 1), (2, 2)]);
        sender.claim(occupant(3), |_, _| true).unwrap();
        assert_eq!(sent(), [(2, 2)], "claimed, but not yet sent");
    }

    #[test]
    fn a_line_has_another_turn_in_every_lap() {
        let turns: Vec<_> = (0..6).map(|count| Position::new(count, 2)).collect();
        assert_eq!(turns.iter().map(|p| p.line).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1]);
        assert_ne!(turns[0].turn, turns[2].turn);
        assert_eq!(turns[0].turn, turns[1].turn);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod tests {
    use super::*;
    use crate::line::{Line, Watch};
    use loom::sync::Arc;
    use loom::thread;

    /// Two senders, one receiver that answers, a ring with fewer lines than messages: every message is taken once,
    /// in order, with its own contents, and no line is written again before its message was answered.
    #[test]
    fn a_ring_neither_loses_nor_repeats_nor_overwrites_a_message() {
        const MESSAGES: u64 = 2;
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let sender = Arc::new(Sender::new(1));
            let request = Arc::new((Line::default(), Watch::default()));
            let answers: Arc<Vec<Line>> = Arc::new((0..MESSAGES).map(|_| Line::default()).collect());
            let senders: Vec<_> = (0..MESSAGES as u16)
                .map(|record| {
                    let (sender, request, answers) = (sender.clone(), request.clone(), answers.clone());
                    thread::spawn(move || {
                        let by = Occupant { record, turn: Turn::of_use(0) };
                        let answered = |_, last: Occupant| answers[usize::from(last.record)].is(last.turn);
                        let position = loop {
                            match sender.claim(by, answered) {
                                Some(position) => break position,
                                None => loom::thread::yield_now(),
                            }
                        };
                        request.0.publish(
                            &request.1,
                            position.turn,
                            u32::from(record),
                            &[u64::from(record); 7],
                        );
                        sender.sent(position, by);
                    })
                })
                .collect();
            let mut taken = Vec::new();
            for count in 0..MESSAGES {
                let position = Position::new(count, 1);
                assert!(request.0.wait(&request.1, position.turn, None, || false));
                let (immediate, body) = request.0.read();
                assert_eq!(body, [u64::from(immediate); 7]);
                taken.push(immediate);
                answers[immediate as usize].publish(&Watch::default(), Turn::of_use(0), 0, &[0; 7]);
            }
            taken.sort_unstable();
            assert_eq!(taken, [0, 1]);
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }
}
