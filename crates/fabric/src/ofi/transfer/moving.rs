//! Moves bytes directly, in pieces of the provider's size and by the access that the provider needs.

use std::ffi::c_void;
use std::ptr::NonNull;

use sublet_proto::to_usize;

use crate::FabricError;
use crate::ofi::OfiEndpoint;
use crate::ofi::ffi::{MAX_TRANSFER_BYTES, RawRegistration};
use crate::ofi::link::Post;
use crate::ofi::live::{BOUNCE_BYTES, Live};
use crate::ofi::message::PutDestination;
use crate::ofi::operations::{OperationGroup, PUSHES};
use crate::ofi::outgoing::TransferPiece;
use crate::shared::copy_bytes;

/// Size from which unregistered memory is registered for a transfer instead of being copied.
const WORTH_REGISTERING_BYTES: u64 = 1 << 20;

/// How the provider accesses bytes of this process.
#[derive(Clone, Copy)]
enum ProviderAccess {
    /// Directly, by the descriptor of a registration, or null.
    Direct(*mut c_void),
    /// Through a registration that is made for this transfer.
    Registered(RawRegistration),
    /// Through a copy in the bounce bytes.
    Copied,
}

impl OfiEndpoint {
    /// Writes from memory that stays unchanged until the next line is published. Does not wait where the provider can
    /// read the memory directly.
    ///
    /// # Safety
    /// The memory must stay readable and unchanged until the next line is published.
    pub(super) unsafe fn push_all(
        &self,
        from: NonNull<u8>,
        len_bytes: u64,
        to: (PutDestination, u64),
    ) -> Result<(), FabricError> {
        let (generation, access) =
            self.attempt(None, |live| access(live, from, len_bytes, false).map(Some))?;
        match access {
            // SAFETY: the caller's duty; the next line waits for the group.
            ProviderAccess::Direct(descriptor) => unsafe {
                self.move_pieces(generation, Post::Write, (from, len_bytes), descriptor, to, PUSHES)
            },
            // SAFETY: the caller's duty.
            _ => unsafe { self.move_all(Post::Write, from, len_bytes, to) },
        }
    }

    /// Moves bytes and waits until they have left or arrived.
    ///
    /// # Safety
    /// The local bytes must be readable, and for a read writable. No other code may access them meanwhile.
    pub(super) unsafe fn move_all(
        &self,
        what: Post,
        local: NonNull<u8>,
        len_bytes: u64,
        at: (PutDestination, u64),
    ) -> Result<(), FabricError> {
        if len_bytes == 0 {
            return Ok(());
        }
        let may_register = len_bytes >= WORTH_REGISTERING_BYTES;
        let (generation, (access, group)) = self.attempt(None, |live| {
            let Some(group) = live.operations.begin_group() else { return Ok(None) };
            let access = access(live, local, len_bytes, may_register);
            if access.is_err() {
                live.operations.end_group(group);
            }
            access.map(|access| Some((access, group)))
        })?;
        // SAFETY: the caller's duty, and the waits below.
        unsafe {
            match access {
                ProviderAccess::Direct(descriptor) => {
                    self.move_pieces(generation, what, (local, len_bytes), descriptor, at, group)?;
                }
                ProviderAccess::Registered(registration) => {
                    let descriptor = registration.descriptor;
                    self.move_pieces(generation, what, (local, len_bytes), descriptor, at, group)?;
                    self.finish(generation, group)?;
                    self.attempt(Some(generation), |live| {
                        live.link.dismiss(&registration);
                        Ok(Some(()))
                    })?;
                }
                ProviderAccess::Copied => {
                    self.move_copies(generation, what, (local, len_bytes), at, group)?
                }
            }
        }
        self.end_group(generation, group)
    }

    /// Posts bytes in pieces of at most the provider's size. Waits for none of them to complete.
    ///
    /// # Safety
    /// The local bytes must be valid for the operation until the group is done.
    unsafe fn move_pieces(
        &self,
        generation: u64,
        what: Post,
        (local, len_bytes): (NonNull<u8>, u64),
        descriptor: *mut c_void,
        (at, remote): (PutDestination, u64),
        group: OperationGroup,
    ) -> Result<(), FabricError> {
        let mut done = 0;
        while done < len_bytes {
            let (_, posted) = self.attempt(Some(generation), |live| {
                let most = live.link.facts.max_message_bytes.clamp(1, MAX_TRANSFER_BYTES);
                let piece = TransferPiece {
                    // SAFETY: `done` is less than the length of the bytes.
                    local: unsafe { local.add(to_usize(done)) },
                    len_bytes: most.min(len_bytes - done) as usize,
                    descriptor,
                    key: at.key,
                    remote: remote.wrapping_add(done),
                };
                let what = if what == Post::Write { live.write() } else { what };
                // SAFETY: the caller's duty.
                let posted = unsafe { live.move_bytes(what, &piece, group)? };
                Ok(posted.then_some(piece.len_bytes as u64))
            })?;
            done += posted;
        }
        Ok(())
    }

    /// Moves bytes through the bounce bytes, in pieces of their size.
    ///
    /// # Safety
    /// The local bytes must be valid for the operation during the call.
    unsafe fn move_copies(
        &self,
        generation: u64,
        what: Post,
        (local, len_bytes): (NonNull<u8>, u64),
        (at, remote): (PutDestination, u64),
        group: OperationGroup,
    ) -> Result<(), FabricError> {
        let _bounce = self.bounce();
        let (_, (bounce, descriptor)) =
            self.attempt(Some(generation), |live| Ok(Some((live.bounce(), live.outgoing_descriptor))))?;
        for done in (0..len_bytes).step_by(to_usize(BOUNCE_BYTES)) {
            let len = BOUNCE_BYTES.min(len_bytes - done);
            // SAFETY: `done` is less than the length of the bytes.
            let local = unsafe { local.add(to_usize(done)) };
            let copy = |from: NonNull<u8>, into: NonNull<u8>| {
                self.attempt(Some(generation), |_| {
                    // SAFETY: both have `len` bytes; the bounce bytes are this thread's, and mapped while the
                    // connection of this generation lives, which the attempt's lock ensures.
                    unsafe { copy_bytes(from.as_ptr(), into.as_ptr(), to_usize(len)) };
                    Ok(Some(()))
                })
            };
            if what == Post::Write {
                copy(local, bounce)?;
            }
            // SAFETY: the bounce bytes are this thread's, which waits for the group.
            unsafe {
                self.move_pieces(generation, what, (bounce, len), descriptor, (at, remote + done), group)?
            };
            self.finish(generation, group)?;
            if what == Post::Read {
                copy(bounce, local)?;
            }
        }
        Ok(())
    }
}

/// Chooses how the provider accesses bytes of this process.
fn access(
    live: &mut Live,
    local: NonNull<u8>,
    len_bytes: u64,
    may_register: bool,
) -> Result<ProviderAccess, FabricError> {
    if live.link.facts.local_registration == 0 {
        return Ok(ProviderAccess::Direct(std::ptr::null_mut()));
    }
    if let Some(known) = live.regions.registration_of(local.as_ptr(), len_bytes) {
        return Ok(ProviderAccess::Direct(known.descriptor));
    }
    if !may_register {
        return Ok(ProviderAccess::Copied);
    }
    // SAFETY: dismissed before the call for which it is made returns, or with the link, which an error has closed.
    let registered = unsafe { live.link.enroll(local, len_bytes, false) };
    // Memory that cannot be registered, such as read-only memory, can still be copied.
    Ok(registered.map_or(ProviderAccess::Copied, ProviderAccess::Registered))
}
