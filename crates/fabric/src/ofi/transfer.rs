//! Transfers of bytes and words between this process and the peer's regions.

mod moving;
mod words;
mod writing;

use std::ptr::NonNull;
use std::sync::MutexGuard;

use super::OfiEndpoint;
use super::link::Post;
use super::message::{PutDestination, Tail};
use super::operations::OperationGroup;
use crate::FabricError;
use crate::shared::{SharedBytes, SharedBytesMut};
use crate::sync::lock;
use crate::window::RegionAddress;
use writing::WriteEffect;

impl OfiEndpoint {
    /// See [`crate::Endpoint::put`]. A small put travels with the operation that follows: it takes effect with the next
    /// operation of this endpoint, or its next [`progress`](OfiEndpoint::progress) or [`wait`](OfiEndpoint::wait).
    pub fn put<'bytes>(
        &self,
        to: RegionAddress,
        bytes: impl Into<SharedBytes<'bytes>>,
    ) -> Result<(), FabricError> {
        let bytes = bytes.into();
        // SAFETY: a view is readable, and stays so during the call; a put does not outlive it.
        unsafe { self.write(to, bytes.start(), bytes.len() as u64, WriteEffect::Put) }
    }

    /// See [`crate::Endpoint::push`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn push(
        &self,
        to: RegionAddress,
        from: NonNull<u8>,
        len_bytes: u64,
    ) -> Result<(), FabricError> {
        // SAFETY: the caller's duty.
        unsafe { self.write(to, from, len_bytes, WriteEffect::Push) }
    }

    /// See [`crate::Endpoint::get`].
    pub fn get<'into>(
        &self,
        from: RegionAddress,
        into: impl Into<SharedBytesMut<'into>>,
    ) -> Result<(), FabricError> {
        let into = into.into();
        self.flush()?;
        self.let_messages_be_taken()?;
        let (at, remote) = self.theirs(from, into.len() as u64)?;
        // SAFETY: a view is writable during the call, which waits.
        unsafe { self.move_all(Post::Read, into.start(), into.len() as u64, (at, remote)) }
    }

    /// See [`crate::Endpoint::fetch_add`].
    pub fn fetch_add(&self, at: RegionAddress, value: u64) -> Result<u64, FabricError> {
        self.change_word(at, Post::FetchAdd, [value, 0])
    }

    /// See [`crate::Endpoint::compare_swap`].
    pub fn compare_swap(&self, at: RegionAddress, expected: u64, new: u64) -> Result<u64, FabricError> {
        self.change_word(at, Post::CompareSwap, [new, expected])
    }

    /// Makes the peer's progress execute atomics, as with a provider that has none. For tests.
    #[doc(hidden)]
    pub fn without_native_atomics(&self) -> Result<(), FabricError> {
        self.lock().live()?.atomics = false;
        Ok(())
    }

    /// Waits until no operation of a group is in progress.
    fn finish(&self, generation: u64, group: OperationGroup) -> Result<(), FabricError> {
        self.attempt(Some(generation), |live| Ok(live.operations.is_done(group).then_some(()))).map(drop)
    }

    /// Waits for a group and frees it.
    fn end_group(&self, generation: u64, group: OperationGroup) -> Result<(), FabricError> {
        self.attempt(Some(generation), |live| {
            let is_done = live.operations.is_done(group);
            if is_done {
                live.operations.end_group(group);
            }
            Ok(is_done.then_some(()))
        })
        .map(drop)
    }

    /// Waits until the peer has executed all messages that were sent. A direct access to its memory would overtake
    /// messages that it has not taken yet.
    fn let_messages_be_taken(&self) -> Result<(), FabricError> {
        let (generation, sent) = self.attempt(None, |live| {
            live.look_for_counts()?;
            if live.flow.under_way() == 0 {
                return Ok(Some(live.flow.sent()));
            }
            Ok(live.send(&Tail::Probe, false)?.map(|_| live.flow.sent()))
        })?;
        self.attempt(Some(generation), |live| {
            live.look_for_counts()?;
            Ok(live.flow.are_taken(sent).then_some(()))
        })
        .map(drop)
    }

    fn theirs(&self, at: RegionAddress, len_bytes: u64) -> Result<(PutDestination, u64), FabricError> {
        self.lock().live()?.regions.theirs(at, len_bytes)
    }

    fn bounce(&self) -> MutexGuard<'_, ()> {
        lock(&self.bounce)
    }
}
