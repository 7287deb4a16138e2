//! Limits the messages in flight: counts the free slots of both endpoints. Pure.
//!
//! Each end has [`SLOTS`] slots in its own memory that the other end fills in turn. A slot may be filled again once its
//! reader has reported that it has taken the message. The reader counts the messages that it has taken. The count
//! travels in the reader's own messages, or in a write of its own if it sends none. Networks may complete writes in
//! another order than they were posted; messages are taken in the order of their slots.

use sublet_proto::to_usize;

use super::message::SLOT_BYTES;
use crate::FabricError;

/// Most messages in flight in one direction.
const MAX_UNDER_WAY: u32 = 64;
/// Number of slots of one direction.
pub const SLOTS: usize = MAX_UNDER_WAY as usize;
/// Number of taken messages after which the reader reports its count, even if it sends no messages.
const TELL_AFTER: u32 = MAX_UNDER_WAY / 4;

const SLOT_BITS: u32 = SLOTS.trailing_zeros();
const _: () = assert!(SLOTS.is_power_of_two() && SLOT_BYTES < 1 << 16);

/// See the [module](self).
#[derive(Debug)]
pub struct Flow {
    /// Number of messages sent, modulo 2^32.
    sent: u32,
    /// Number of messages that the peer has reported as taken, modulo 2^32.
    acknowledged: u32,
    /// Number of messages taken, modulo 2^32.
    taken: u32,
    /// Number of taken messages that was last reported to the peer.
    told: u32,
    /// The peer waits for a report.
    must_tell: bool,
    /// Length of the message that has arrived in each slot and was not taken yet, or 0.
    arrived: [u16; SLOTS],
    /// Whether a slot's message is still being read out of this side's memory.
    sending: [bool; SLOTS],
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            sent: 0,
            acknowledged: 0,
            taken: 0,
            told: 0,
            must_tell: false,
            arrived: [0; SLOTS],
            sending: [false; SLOTS],
        }
    }
}

impl Flow {
    /// The slot for the next message, if it is free.
    #[inline]
    pub fn next_slot(&self) -> Option<usize> {
        let slot = self.sent as usize % SLOTS;
        let free = self.under_way() < MAX_UNDER_WAY && !self.sending[slot];
        free.then_some(slot)
    }

    /// Records that the next slot has been filled. With `sending`, the slot stays in use until [`Flow::left`] reports
    /// that its message has left.
    #[inline]
    pub fn filled(&mut self, sending: bool) {
        debug_assert!(self.next_slot().is_some(), "a slot is filled that is not free: {self:?}");
        self.sending[self.sent as usize % SLOTS] = sending;
        self.sent = self.sent.wrapping_add(1);
        self.told(self.taken);
    }

    /// Number of messages sent.
    pub fn sent(&self) -> u32 {
        self.sent
    }

    /// Whether the peer has taken the first `count` messages.
    pub fn are_taken(&self, count: u32) -> bool {
        count.wrapping_sub(self.acknowledged).cast_signed() <= 0
    }

    /// Records that the peer waits for a report.
    pub fn is_probed(&mut self) {
        self.must_tell = true;
    }

    /// Number of messages that the peer has not reported as taken.
    #[inline]
    pub fn under_way(&self) -> u32 {
        self.sent.wrapping_sub(self.acknowledged)
    }

    /// Records that a slot's message has left.
    pub fn left(&mut self, slot: usize) {
        self.sending[slot] = false;
    }

    /// Whether a slot's message has left.
    pub fn has_left(&self, slot: usize) -> bool {
        !self.sending[slot]
    }

    /// Records the peer's count of taken messages. An outdated count changes nothing.
    #[inline]
    pub fn acknowledge(&mut self, taken: u32) -> Result<(), FabricError> {
        let more = taken.wrapping_sub(self.acknowledged);
        if more <= self.under_way() {
            self.acknowledged = taken;
            debug_assert!(self.under_way() <= MAX_UNDER_WAY, "{} messages are under way", self.under_way());
        } else if more < u32::MAX / 2 {
            return Err(FabricError::Protocol(format!(
                "the peer has taken {taken} messages of {}",
                self.sent
            )));
        }
        Ok(())
    }

    /// Immediate data of a message: its slot and length.
    #[inline]
    pub fn data(slot: usize, len: usize) -> u64 {
        (len as u64) << SLOT_BITS | slot as u64
    }

    /// Records that a message has arrived.
    #[inline]
    pub fn arrive(&mut self, data: u64) -> Result<(), FabricError> {
        let (slot, len) = (to_usize(data) % SLOTS, data >> SLOT_BITS);
        if self.arrived[slot] != 0 || len == 0 || len > SLOT_BYTES as u64 {
            return Err(FabricError::Protocol(format!(
                "a message of {len} bytes in slot {slot} was not to come"
            )));
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked above: `SLOT_BYTES` at most")]
        let len = len as u16;
        self.arrived[slot] = len;
        Ok(())
    }

    /// Takes the next message in order, if it has arrived: its slot and length. The slot counts as free from now on.
    #[inline]
    pub fn take(&mut self) -> Option<(usize, usize)> {
        let slot = self.taken as usize % SLOTS;
        let len = std::mem::take(&mut self.arrived[slot]);
        if len == 0 {
            return None;
        }
        self.taken = self.taken.wrapping_add(1);
        debug_assert!(usize::from(len) <= SLOT_BYTES, "a message of {len} bytes in slot {slot}");
        Some((slot, usize::from(len)))
    }

    /// Number of messages taken, for the header of a message.
    #[inline]
    pub fn taken(&self) -> u32 {
        self.taken
    }

    /// The count to report to the peer now, if a report is due.
    #[inline]
    pub fn to_tell(&self) -> Option<u32> {
        let is_time = self.must_tell || self.taken.wrapping_sub(self.told) >= TELL_AFTER;
        is_time.then_some(self.taken)
    }

    /// Records that this count has been reported to the peer.
    pub fn told(&mut self, taken: u32) {
        debug_assert!(
            self.taken.wrapping_sub(taken) <= u32::MAX / 2,
            "{taken} messages are reported, and {} were taken",
            self.taken
        );
        self.told = taken;
        self.must_tell = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_slot_is_filled_before_it_is_free() {
        let mut flow = Flow::default();
        for slot in 0..SLOTS {
            assert_eq!(flow.next_slot(), Some(slot));
            flow.filled(true);
        }
        assert_eq!(flow.next_slot(), None);
        flow.acknowledge(2).unwrap();
        assert_eq!(flow.next_slot(), None, "its message has not left");
        flow.left(0);
        assert_eq!(flow.next_slot(), Some(0));
        flow.acknowledge(1).unwrap();
        assert_eq!(flow.next_slot(), Some(0), "old news");
        assert!(flow.acknowledge(SLOTS as u32 + 1).is_err());
    }

    #[test]
    fn takes_messages_in_order_and_rejects_unexpected_ones() {
        let mut flow = Flow::default();
        flow.arrive(Flow::data(1, 20)).unwrap();
        assert_eq!(flow.take(), None);
        flow.arrive(Flow::data(0, 10)).unwrap();
        assert!(flow.arrive(Flow::data(1, 5)).is_err(), "the slot is full");
        assert_eq!((flow.take(), flow.take(), flow.take()), (Some((0, 10)), Some((1, 20)), None));
        assert!(
            flow.arrive(Flow::data(2, 0)).is_err() && flow.arrive(Flow::data(2, SLOT_BYTES + 1)).is_err()
        );
        assert!(flow.arrive(u64::MAX).is_err());
    }

    #[test]
    fn acknowledges_after_a_fixed_number_of_messages() {
        let mut flow = Flow::default();
        for n in 0..u64::from(TELL_AFTER) {
            assert_eq!(flow.to_tell(), None);
            flow.arrive(Flow::data(n as usize, 8)).unwrap();
            flow.take().unwrap();
        }
        assert_eq!(flow.to_tell(), Some(TELL_AFTER));
        flow.told(TELL_AFTER);
        assert_eq!(flow.to_tell(), None);
    }

    proptest! {
        /// Two ends over a network that delays messages and counts arbitrarily lose nothing and never stall.
        #[test]
        fn two_ends_keep_in_step(steps in prop::collection::vec(0u8..4, 0..2000)) {
            let (mut writer, mut reader) = (Flow::default(), Flow::default());
            let (mut under_way, mut counts) = (Vec::new(), Vec::new());
            let (mut sent, mut taken) = (0usize, 0usize);
            for step in steps {
                match step {
                    0 | 1 => if let Some(slot) = writer.next_slot() {
                        under_way.push(Flow::data(slot, 8 + sent % 100));
                        writer.filled(false);
                        sent += 1;
                    },
                    2 => if let Some(data) = (!under_way.is_empty()).then(|| under_way.swap_remove(sent % under_way.len())) {
                        reader.arrive(data).unwrap();
                        while let Some((slot, len)) = reader.take() {
                            prop_assert_eq!((slot, len), (taken % SLOTS, 8 + taken % 100));
                            taken += 1;
                        }
                    },
                    _ => {
                        if let Some(count) = reader.to_tell() {
                            counts.push(count);
                            reader.told(count);
                        }
                        if let Some(count) = counts.pop() {
                            writer.acknowledge(count).unwrap();
                        }
                    }
                }
            }
            prop_assert!(sent - taken <= SLOTS);
        }
    }
}
