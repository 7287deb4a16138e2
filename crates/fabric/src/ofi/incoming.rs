//! Processes the messages of the peer. None is trusted: each is checked before it is executed.

use super::live::{Effects, Live, PeerRequest, SLOTS_OFFSET};
use super::message::{self, LineMessage, PutDestination, SLOT_BYTES, Tail};
use super::regions::OfiRegions;
use crate::FabricError;
use crate::line::{Line, Turn, Watch};
use crate::shared::copy_bytes;
use crate::sync::{AtomicU64, Ordering};

/// Most answers that a peer may wait for at a time.
const MAX_OWED: usize = 64;

impl Live {
    /// Processes the messages that have landed, in their order.
    #[inline]
    pub(super) fn take_messages(&mut self) -> Result<(), FabricError> {
        while let Some((slot, len)) = self.flow.take() {
            self.take_message(slot, len)?;
        }
        Ok(())
    }

    fn take_message(&mut self, slot: usize, len: usize) -> Result<(), FabricError> {
        let Live { scratch, landing, regions, flow, effects, asked, owed, .. } = self;
        let copy = &mut scratch[..len];
        landing
            .read(SLOTS_OFFSET + (slot * SLOT_BYTES) as u64, &mut *copy)
            .expect("`Flow` gives slots and lengths that are inside");
        let incoming = message::decode(copy)?;
        flow.acknowledge(incoming.consumed)?;
        for (place, bytes) in incoming.puts {
            let into = regions.ours(place, bytes.len() as u64)?;
            // SAFETY: `into` has the same number of bytes inside of a region of this side, and `bytes` is private
            // memory.
            unsafe { copy_bytes(bytes.as_ptr(), into.as_ptr(), bytes.len()) };
        }
        match incoming.tail {
            Tail::Nothing => {}
            Tail::Probe => flow.is_probed(),
            Tail::Line(line) => publish(regions, &line, effects)?,
            Tail::FetchAdd { at, operand, number } => {
                let before = regions.our_view::<AtomicU64>(at)?.fetch_add(operand, Ordering::AcqRel);
                owed.push_back((number, before));
            }
            Tail::CompareSwap { at, expected, new, number } => {
                let word = regions.our_view::<AtomicU64>(at)?;
                let swapped = word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire);
                owed.push_back((number, swapped.unwrap_or_else(|before| before)));
            }
            Tail::Answer { number, value } => match asked.get_mut(number as usize) {
                Some(place @ PeerRequest::Waiting) => *place = PeerRequest::Answered(value),
                _ => {
                    return Err(FabricError::Protocol(format!(
                        "an answer to question {number}, which was not asked"
                    )));
                }
            },
            Tail::Goodbye(text) => {
                let reason = format!("the peer ended the connection: {}", String::from_utf8_lossy(text));
                return Err(FabricError::Disconnected { reason });
            }
        }
        if owed.len() > MAX_OWED {
            return Err(FabricError::Protocol(format!("more than {MAX_OWED} questions wait for answers")));
        }
        Ok(())
    }
}

fn publish(regions: &OfiRegions, message: &LineMessage, effects: &mut Effects) -> Result<(), FabricError> {
    let line: &Line = regions.our_view(message.line)?;
    let watch: &Watch = regions.our_view(PutDestination { offset: message.watch, ..message.line })?;
    effects.bell |= line.publish(watch, Turn::from_bits(message.turn), message.immediate, &message.body);
    effects.published = true;
    Ok(())
}
