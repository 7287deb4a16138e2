//! Posts operations to the peer. Each function reports whether the operation was posted; if not, another must complete
//! first.

use std::ptr::NonNull;

use super::ffi::Transfer;
use super::flow::Flow;
use super::link::Post;
use super::live::{Live, SLOTS_OFFSET};
use super::message::{self, PutDestination, SLOT_BYTES, Tail};
use super::operations::{OperationGroup, PUSHES};
use crate::FabricError;
use crate::sync::{AtomicU64, Ordering};

/// Number of messages that a software provider's socket accepts at once.
const UNTRACED: u32 = 4;

/// Bytes that one operation moves between this process and the peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct TransferPiece {
    pub local: NonNull<u8>,
    pub len_bytes: usize,
    /// libfabric's descriptor of the registration of the local bytes, or null where it needs none.
    pub descriptor: *mut std::ffi::c_void,
    pub key: u64,
    pub remote: u64,
}

impl Live {
    /// Sends a message: the batch and its tail. Returns the slot. If the message is `traced`, or a software provider
    /// may keep it back, [`Flow::has_left`] reports when it has left; all others leave at once.
    #[inline]
    pub(super) fn send(&mut self, tail: &Tail<'_>, traced: bool) -> Result<Option<usize>, FabricError> {
        if self.flow.next_slot().is_none() {
            self.look_for_counts()?;
        }
        let Some(slot) = self.flow.next_slot() else { return Ok(None) };
        let local = self.slot(slot);
        // SAFETY: the slot's bytes lie in the outgoing region, of which nothing else refers to this slot: its last
        // message has left.
        let into = unsafe { local.cast::<[u8; SLOT_BYTES]>().as_mut() };
        let len = message::encode(into, self.flow.taken(), &self.batch, tail);
        let is_injected = !traced && len as u64 <= self.link.facts.inject_bytes;
        let transfer = Transfer {
            local: local.as_ptr().cast(),
            len_bytes: len,
            descriptor: self.outgoing_descriptor,
            remote: self.peer_base + SLOTS_OFFSET + (slot * SLOT_BYTES) as u64,
            key: self.peer_key,
            data: Flow::data(slot, len),
            context: self.slot_context(slot),
        };
        let may_be_kept =
            self.is_software && (self.flow.under_way() >= UNTRACED || !self.operations.is_done(PUSHES));
        let is_traced = !is_injected && (traced || may_be_kept);
        let post = match (is_injected, is_traced) {
            (true, _) => Post::InjectData,
            (_, true) => Post::WriteData,
            (_, false) => Post::WriteDataSilently,
        };
        // SAFETY: the slot is not filled again before its message has left, since the peer has taken it; contexts and outgoing
        // memory stay in place as long as the link.
        if !unsafe { self.link.post(post, &transfer)? } {
            return Ok(None);
        }
        self.flow.filled(is_traced);
        self.batch.clear();
        self.has_puts = false;
        Ok(Some(slot))
    }

    /// Posts an operation on bytes, as part of a group.
    ///
    /// # Safety
    /// The local bytes must stay in place until the group is done or the link is closed. No other code may write them
    /// in that time, or access them at all for a read.
    pub(super) unsafe fn move_bytes(
        &mut self,
        what: Post,
        piece: &TransferPiece,
        group: OperationGroup,
    ) -> Result<bool, FabricError> {
        let Some(operation) = self.operations.next() else { return Ok(false) };
        let transfer = Transfer {
            local: piece.local.as_ptr().cast(),
            len_bytes: piece.len_bytes,
            descriptor: piece.descriptor,
            remote: piece.remote,
            key: piece.key,
            data: 0,
            context: self.operation_context(operation),
        };
        // SAFETY: the bytes are the caller's duty; contexts stay in place as long as the link.
        let posted = unsafe { self.link.post(what, &transfer)? };
        if posted {
            self.operations.begin(operation, group);
        }
        Ok(posted)
    }

    /// The kind of write that keeps the order: where the network does not, a write completes only when it has landed.
    pub(super) fn write(&self) -> Post {
        if self.is_ordered() { Post::Write } else { Post::WriteDelivered }
    }

    /// Whether operations land in the order in which they are posted.
    pub(super) fn is_ordered(&self) -> bool {
        self.link.facts.writes_in_order != 0 && self.link.facts.reads_in_order != 0
    }

    /// Posts an atomic on the words of a group.
    pub(super) fn change_word(
        &mut self,
        what: Post,
        at: PutDestination,
        remote: u64,
        group: OperationGroup,
    ) -> Result<bool, FabricError> {
        let words = self.words(group.index());
        let piece = TransferPiece {
            local: words.cast(),
            len_bytes: 24,
            descriptor: self.outgoing_descriptor,
            key: at.key,
            remote,
        };
        // SAFETY: the words are the group's own, and lie in the outgoing memory.
        unsafe { self.move_bytes(what, &piece, group) }
    }

    /// Sends the answers that the peer waits for, as far as slots are free.
    #[inline]
    pub(super) fn answer(&mut self) -> Result<(), FabricError> {
        while let Some((number, value)) = self.owed.pop_front() {
            if self.send(&Tail::Answer { number, value }, false)?.is_none() {
                self.owed.push_front((number, value));
                break;
            }
        }
        Ok(())
    }

    /// Reports the number of taken messages to the peer by a write of its own, if that is due and no message reported
    /// it.
    #[inline]
    pub(super) fn tell(&mut self) -> Result<(), FabricError> {
        let Some(taken) = self.flow.to_tell() else { return Ok(()) };
        if self.is_telling {
            return Ok(());
        }
        let count = self.count();
        // SAFETY: the count is inside of the outgoing memory, and no operation reads it: the last write of it has left.
        unsafe { count.write(u64::from(taken)) };
        let transfer = Transfer {
            local: count.as_ptr().cast(),
            len_bytes: size_of::<u64>(),
            descriptor: self.outgoing_descriptor,
            remote: self.peer_base,
            key: self.peer_key,
            data: 0,
            context: self.count_context(),
        };
        let is_injected = size_of::<u64>() as u64 <= self.link.facts.inject_bytes;
        let post = if is_injected { Post::Inject } else { self.write() };
        // SAFETY: injected bytes are read during the call. Others are not changed before their write has completed;
        // contexts and outgoing memory stay in place as long as the link.
        if unsafe { self.link.post(post, &transfer)? } {
            self.is_telling = !is_injected;
            self.flow.told(taken);
        }
        Ok(())
    }

    /// Reads the peer's count of taken messages, which the peer has written into the landing memory.
    #[cold]
    pub(super) fn look_for_counts(&mut self) -> Result<(), FabricError> {
        let count: &AtomicU64 = self.landing.view(0).expect("the landing memory begins with the count");
        self.flow.acknowledge((count.load(Ordering::Acquire) & 0xffff_ffff) as u32)
    }

    fn slot(&self, slot: usize) -> NonNull<u8> {
        let offset = (slot * SLOT_BYTES) as u64;
        self.outgoing.pointer(offset, SLOT_BYTES as u64).expect("the outgoing memory begins with the slots")
    }
}
