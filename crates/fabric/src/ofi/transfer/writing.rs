//! Writes: small ones travel with the next line, others go separately, and none overtakes another to the same address.

use std::ptr::NonNull;

use sublet_proto::to_usize;

use crate::FabricError;
use crate::ofi::OfiEndpoint;
use crate::ofi::link::Post;
use crate::ofi::live::{BOUNCE_BYTES, Live};
use crate::ofi::message::{BATCH_BYTES, PUT_BYTES, PutDestination};
use crate::ofi::outgoing::TransferPiece;
use crate::shared::copy_bytes;
use crate::window::RegionAddress;

/// The time at which a write may take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteEffect {
    /// Takes effect at any time before the operations that follow.
    Put,
    /// Takes effect before the next line.
    Push,
}

impl OfiEndpoint {
    /// # Safety
    /// The bytes must be readable: for a push, until the next line was published. If others write them, any bytes arrive.
    pub(super) unsafe fn write(
        &self,
        to: RegionAddress,
        from: NonNull<u8>,
        len_bytes: u64,
        effect: WriteEffect,
    ) -> Result<(), FabricError> {
        if len_bytes <= (BATCH_BYTES - PUT_BYTES) as u64 {
            // SAFETY: the caller's duty.
            if unsafe { self.batch(to, from, to_usize(len_bytes), effect)? } {
                return Ok(());
            }
        }
        if effect == WriteEffect::Put || self.is_batched(to, len_bytes)? {
            self.flush()?;
            if len_bytes <= (BATCH_BYTES - PUT_BYTES) as u64 {
                // SAFETY: the caller's duty. Another thread may have filled the batch again: then it goes directly.
                if unsafe { self.batch(to, from, to_usize(len_bytes), effect)? } {
                    return Ok(());
                }
            }
        }
        let (at, remote) = self.theirs(to, len_bytes)?;
        // SAFETY: the caller's duty.
        unsafe {
            match effect {
                WriteEffect::Put => {
                    self.let_messages_be_taken()?;
                    self.move_all(Post::Write, from, len_bytes, (at, remote))
                }
                WriteEffect::Push => self.push_all(from, len_bytes, (at, remote)),
            }
        }
    }

    /// Adds bytes to the batch that travels with the next line. Returns false if they do not fit.
    ///
    /// # Safety
    /// The bytes must be readable.
    unsafe fn batch(
        &self,
        to: RegionAddress,
        from: NonNull<u8>,
        len: usize,
        effect: WriteEffect,
    ) -> Result<bool, FabricError> {
        let (_, added) = self.attempt(None, |live| {
            let (place, _) = live.regions.theirs(to, len as u64)?;
            let has_space = live.batch.has_space(len);
            if has_space && len > 0 {
                // SAFETY: the caller's duty.
                unsafe { live.batch.add(place, from.as_ptr(), len) };
                live.has_puts |= effect == WriteEffect::Put;
            }
            Ok(Some(has_space))
        })?;
        Ok(added)
    }

    /// Whether bytes for the same address wait for a line: they must not overwrite a later write.
    fn is_batched(&self, to: RegionAddress, len_bytes: u64) -> Result<bool, FabricError> {
        let end = to.offset.saturating_add(len_bytes);
        let overlaps = |place: PutDestination, bytes: &[u8]| {
            place.region == to.region && place.offset < end && to.offset < place.offset + bytes.len() as u64
        };
        let mut state = self.lock();
        let live = state.live()?;
        Ok(live.is_flushing || live.batch.puts().any(|(place, bytes)| overlaps(place, bytes)))
    }

    /// Sends puts that wait for a line without it, or waits until another thread has done so.
    pub(in crate::ofi) fn flush(&self) -> Result<(), FabricError> {
        let has_left = |live: &mut Live| live.batch.is_empty() && !live.is_flushing;
        if has_left(self.lock().live()?) {
            return Ok(());
        }
        let _bounce = self.bounce();
        if has_left(self.lock().live()?) {
            return Ok(());
        }
        self.let_messages_be_taken()?;
        let (generation, (group, write, pieces)) = self.attempt(None, |live| {
            let Some(group) = live.operations.begin_group() else { return Ok(None) };
            live.is_flushing = true;
            Ok(Some((group, live.write(), take_batch(live))))
        })?;
        for piece in pieces {
            self.attempt(Some(generation), |live| {
                // SAFETY: the pieces lie in the bounce bytes, which are this thread's until the group is done.
                let posted = unsafe { live.move_bytes(write, &piece, group)? };
                Ok(posted.then_some(()))
            })?;
        }
        self.end_group(generation, group)?;
        self.attempt(Some(generation), |live| {
            live.is_flushing = false;
            Ok(Some(()))
        })
        .map(drop)
    }
}

/// Moves the batch into the bounce bytes, as pieces to be written.
fn take_batch(live: &mut Live) -> Vec<TransferPiece> {
    let (bounce, descriptor) = (live.bounce(), live.outgoing_descriptor);
    let mut pieces = Vec::new();
    let mut used = 0;
    for (place, bytes) in live.batch.puts() {
        // SAFETY: a batch has fewer bytes than there are bounce bytes, which are the caller's.
        let local = unsafe { bounce.add(used) };
        // SAFETY: as above; a batch is private memory.
        unsafe { copy_bytes(bytes.as_ptr(), local.as_ptr(), bytes.len()) };
        used += bytes.len();
        let at = RegionAddress { region: place.region, offset: place.offset };
        // The bytes were inside when they were put, and regions do not shrink.
        if let Ok((place, remote)) = live.regions.theirs(at, bytes.len() as u64) {
            pieces.push(TransferPiece { local, len_bytes: bytes.len(), descriptor, key: place.key, remote });
        }
    }
    live.batch.clear();
    live.has_puts = false;
    pieces
}

const _: () = assert!(BATCH_BYTES as u64 <= BOUNCE_BYTES);
