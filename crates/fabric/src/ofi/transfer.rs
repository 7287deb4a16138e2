//! Bytes and words between this process and the peer's regions.

use std::ptr::NonNull;
use std::sync::MutexGuard;

use super::Endpoint;
use super::ffi::{MAX_TRANSFER_BYTES, RawRegistration};
use super::link::Post;
use super::live::{Asked, BOUNCE_BYTES, Live};
use super::message::{BATCH_BYTES, PUT_BYTES, Place, Tail};
use super::operations::{Group, PUSHES};
use super::outgoing::Piece;
use super::regions::aligned;
use crate::FabricError;
use crate::region::copy_bytes;
use crate::window::Address;

/// From here on, memory that the provider does not know is registered for the time instead of being copied.
const WORTH_REGISTERING_BYTES: u64 = 1 << 20;

/// When a write may take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// When it likes, before everything that follows.
    Put,
    /// Before the next line.
    Push,
}

/// How the provider gets at bytes of this process.
#[derive(Clone, Copy)]
enum Access {
    /// By the descriptor of a registration, or null.
    Direct(*mut std::ffi::c_void),
    /// By a registration that is made for the time.
    Registered(RawRegistration),
    /// By the bounce bytes.
    Copied,
}

impl Endpoint {
    /// See [`crate::Endpoint::put`]. A small put travels with what follows it: it takes effect with the next operation
    /// of this end, or its next [`progress`](Endpoint::progress) or [`wait`](Endpoint::wait).
    pub fn put(&self, to: Address, bytes: &[u8]) -> Result<(), FabricError> {
        // SAFETY: a slice is readable, and stays so during the call; a put does not outlive it.
        unsafe { self.write(to, NonNull::from(bytes).cast(), bytes.len() as u64, Effect::Put) }
    }

    /// See [`crate::Endpoint::push`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn push(&self, to: Address, from: NonNull<u8>, len_bytes: u64) -> Result<(), FabricError> {
        // SAFETY: the caller's duty.
        unsafe { self.write(to, from, len_bytes, Effect::Push) }
    }

    /// See [`crate::Endpoint::get`].
    pub fn get(&self, from: Address, into: &mut [u8]) -> Result<(), FabricError> {
        self.flush()?;
        self.let_messages_be_taken()?;
        let (at, remote) = self.theirs(from, into.len() as u64)?;
        // SAFETY: a slice is writable, and nobody else's during the call, which waits.
        unsafe {
            self.move_all(Post::Read, NonNull::from(&mut *into).cast(), into.len() as u64, (at, remote))
        }
    }

    /// See [`crate::Endpoint::fetch_add`].
    pub fn fetch_add(&self, at: Address, value: u64) -> Result<u64, FabricError> {
        self.change_word(at, Post::FetchAdd, [value, 0])
    }

    /// See [`crate::Endpoint::compare_swap`].
    pub fn compare_swap(&self, at: Address, expected: u64, new: u64) -> Result<u64, FabricError> {
        self.change_word(at, Post::CompareSwap, [new, expected])
    }

    /// Lets the peer's progress carry out atomics, as with a provider that has none. For tests.
    #[doc(hidden)]
    pub fn without_native_atomics(&self) -> Result<(), FabricError> {
        self.lock().live()?.atomics = false;
        Ok(())
    }

    /// Waits until nothing of a group is under way.
    pub(super) fn finish(&self, generation: u64, group: Group) -> Result<(), FabricError> {
        self.attempt(Some(generation), |live| Ok(live.operations.is_done(group).then_some(()))).map(drop)
    }

    /// Waits until the peer has carried out all messages that were sent. What goes to its memory directly would overtake
    /// those that it has not taken yet.
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

    /// Sends puts that wait for a line without it, or waits until another thread has.
    pub(super) fn flush(&self) -> Result<(), FabricError> {
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

    /// # Safety
    /// The bytes must be readable, and nobody may write them: for a push, until the next line was published.
    unsafe fn write(
        &self,
        to: Address,
        from: NonNull<u8>,
        len_bytes: u64,
        effect: Effect,
    ) -> Result<(), FabricError> {
        if len_bytes <= (BATCH_BYTES - PUT_BYTES) as u64 {
            // SAFETY: the caller's duty.
            if unsafe { self.batch(to, from, len_bytes as usize, effect)? } {
                return Ok(());
            }
        }
        if effect == Effect::Put || self.is_batched(to, len_bytes)? {
            self.flush()?;
            if len_bytes <= (BATCH_BYTES - PUT_BYTES) as u64 {
                // SAFETY: the caller's duty. Another thread may have filled the batch again: then it goes directly.
                if unsafe { self.batch(to, from, len_bytes as usize, effect)? } {
                    return Ok(());
                }
            }
        }
        let (at, remote) = self.theirs(to, len_bytes)?;
        // SAFETY: the caller's duty.
        unsafe {
            match effect {
                Effect::Put => {
                    self.let_messages_be_taken()?;
                    self.move_all(Post::Write, from, len_bytes, (at, remote))
                }
                Effect::Push => self.push_all(from, len_bytes, (at, remote)),
            }
        }
    }

    /// Adds bytes to what travels with the next line, if there is room.
    ///
    /// # Safety
    /// The bytes must be readable.
    unsafe fn batch(
        &self,
        to: Address,
        from: NonNull<u8>,
        len: usize,
        effect: Effect,
    ) -> Result<bool, FabricError> {
        let (_, added) = self.attempt(None, |live| {
            let (place, _) = live.regions.theirs(to, len as u64)?;
            let has_room = live.batch.has_room(len);
            if has_room && len > 0 {
                // SAFETY: the caller's duty.
                unsafe { live.batch.add(place, from.as_ptr(), len) };
                live.has_puts |= effect == Effect::Put;
            }
            Ok(Some(has_room))
        })?;
        Ok(added)
    }

    /// Whether bytes that go to the same place wait for a line: what comes later must not be overwritten by them.
    fn is_batched(&self, to: Address, len_bytes: u64) -> Result<bool, FabricError> {
        let end = to.offset.saturating_add(len_bytes);
        let overlaps = |place: Place, bytes: &[u8]| {
            place.region == to.region && place.offset < end && to.offset < place.offset + bytes.len() as u64
        };
        let mut state = self.lock();
        let live = state.live()?;
        Ok(live.is_flushing || live.batch.puts().any(|(place, bytes)| overlaps(place, bytes)))
    }

    /// Writes from memory that stays as it is until the next line is published: waits for nothing where the provider
    /// can read it there.
    ///
    /// # Safety
    /// As said.
    unsafe fn push_all(
        &self,
        from: NonNull<u8>,
        len_bytes: u64,
        to: (Place, u64),
    ) -> Result<(), FabricError> {
        let (generation, access) =
            self.attempt(None, |live| access(live, from, len_bytes, false).map(Some))?;
        match access {
            // SAFETY: the caller's duty; the next line waits for the group.
            Access::Direct(descriptor) => unsafe {
                self.move_pieces(generation, Post::Write, (from, len_bytes), descriptor, to, PUSHES)
            },
            // SAFETY: the caller's duty.
            _ => unsafe { self.move_all(Post::Write, from, len_bytes, to) },
        }
    }

    /// Moves bytes and waits until they have left or come.
    ///
    /// # Safety
    /// The local bytes must be readable, of a read writable, and nobody may touch them meanwhile.
    unsafe fn move_all(
        &self,
        what: Post,
        local: NonNull<u8>,
        len_bytes: u64,
        at: (Place, u64),
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
        // SAFETY: the caller's duty, and what is waited for below.
        unsafe {
            match access {
                Access::Direct(descriptor) => {
                    self.move_pieces(generation, what, (local, len_bytes), descriptor, at, group)?;
                }
                Access::Registered(registration) => {
                    let descriptor = registration.descriptor;
                    self.move_pieces(generation, what, (local, len_bytes), descriptor, at, group)?;
                    self.finish(generation, group)?;
                    self.attempt(Some(generation), |live| {
                        live.link.dismiss(&registration);
                        Ok(Some(()))
                    })?;
                }
                Access::Copied => self.move_copies(generation, what, (local, len_bytes), at, group)?,
            }
        }
        self.end_group(generation, group)
    }

    /// Posts bytes in pieces that the provider takes. Waits for none of them to complete.
    ///
    /// # Safety
    /// The local bytes must be valid for what is done until the group is done.
    unsafe fn move_pieces(
        &self,
        generation: u64,
        what: Post,
        (local, len_bytes): (NonNull<u8>, u64),
        descriptor: *mut std::ffi::c_void,
        (at, remote): (Place, u64),
        group: Group,
    ) -> Result<(), FabricError> {
        let mut done = 0;
        while done < len_bytes {
            let (_, posted) = self.attempt(Some(generation), |live| {
                let most = live.link.facts.max_message_bytes.clamp(1, MAX_TRANSFER_BYTES);
                let piece = Piece {
                    // SAFETY: `done` is less than the length of the bytes.
                    local: unsafe { local.add(done as usize) },
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

    /// Moves bytes by way of the bounce bytes, as many at a time as these are.
    ///
    /// # Safety
    /// The local bytes must be valid for what is done during the call.
    unsafe fn move_copies(
        &self,
        generation: u64,
        what: Post,
        (local, len_bytes): (NonNull<u8>, u64),
        (at, remote): (Place, u64),
        group: Group,
    ) -> Result<(), FabricError> {
        let _bounce = self.bounce();
        let (_, (bounce, descriptor)) =
            self.attempt(Some(generation), |live| Ok(Some((live.bounce(), live.outgoing_descriptor))))?;
        for done in (0..len_bytes).step_by(BOUNCE_BYTES as usize) {
            let len = BOUNCE_BYTES.min(len_bytes - done);
            // SAFETY: `done` is less than the length of the bytes.
            let local = unsafe { local.add(done as usize) };
            let copy = |from: NonNull<u8>, into: NonNull<u8>| {
                self.attempt(Some(generation), |_| {
                    // SAFETY: both have `len` bytes; the bounce bytes are this thread's, and mapped while the
                    // connection of this generation lives, which the attempt's lock ensures.
                    unsafe { copy_bytes(from.as_ptr(), into.as_ptr(), len as usize) };
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

    fn change_word(&self, at: Address, what: Post, words: [u64; 2]) -> Result<u64, FabricError> {
        aligned(at, size_of::<u64>() as u64)?;
        self.flush()?;
        let (place, remote) = self.theirs(at, size_of::<u64>() as u64)?;
        if self.lock().live()?.atomics {
            self.let_messages_be_taken()?;
        }
        let (generation, (group, native)) =
            self.attempt(None, |live| Ok(live.operations.begin_group().map(|group| (group, live.atomics))))?;
        let before = match native {
            true => self.change_natively(generation, group, what, words, (place, remote))?,
            false => self.ask(generation, group, what, words, place)?,
        };
        self.end_group(generation, group)?;
        Ok(before)
    }

    fn change_natively(
        &self,
        generation: u64,
        group: Group,
        what: Post,
        words: [u64; 2],
        (place, remote): (Place, u64),
    ) -> Result<u64, FabricError> {
        self.attempt(Some(generation), |live| {
            // SAFETY: the group's words are inside of the outgoing memory, and this thread's as the group is.
            unsafe { live.words(group.index()).cast::<[u64; 2]>().write(words) };
            Ok(live.change_word(what, place, remote, group)?.then_some(()))
        })?;
        self.finish(generation, group)?;
        let (_, before) = self.attempt(Some(generation), |live| {
            // SAFETY: as above, and the operation that wrote the third word has completed.
            Ok(Some(unsafe { live.words(group.index()).add(2).read_volatile() }))
        })?;
        Ok(before)
    }

    /// Has the peer's progress change the word.
    fn ask(
        &self,
        generation: u64,
        group: Group,
        what: Post,
        [operand, expected]: [u64; 2],
        at: Place,
    ) -> Result<u64, FabricError> {
        let number = group.index() as u32;
        let question = match what {
            Post::CompareSwap => Tail::CompareSwap { at, expected, new: operand, number },
            _ => Tail::FetchAdd { at, operand, number },
        };
        self.attempt(Some(generation), |live| {
            let sent = live.send(&question, false)?.is_some();
            if sent {
                live.asked[group.index()] = Asked::Waiting;
            }
            Ok(sent.then_some(()))
        })?;
        let (_, before) = self.attempt(Some(generation), |live| match live.asked[group.index()] {
            Asked::Answered(value) => {
                live.asked[group.index()] = Asked::Nothing;
                Ok(Some(value))
            }
            _ => Ok(None),
        })?;
        Ok(before)
    }

    fn theirs(&self, at: Address, len_bytes: u64) -> Result<(Place, u64), FabricError> {
        self.lock().live()?.regions.theirs(at, len_bytes)
    }

    /// Waits for a group and gives it back.
    fn end_group(&self, generation: u64, group: Group) -> Result<(), FabricError> {
        self.attempt(Some(generation), |live| {
            let is_done = live.operations.is_done(group);
            if is_done {
                live.operations.end_group(group);
            }
            Ok(is_done.then_some(()))
        })
        .map(drop)
    }

    fn bounce(&self) -> MutexGuard<'_, ()> {
        self.bounce.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// How the provider gets at bytes of this process.
fn access(
    live: &mut Live,
    local: NonNull<u8>,
    len_bytes: u64,
    may_register: bool,
) -> Result<Access, FabricError> {
    if live.link.facts.local_registration == 0 {
        return Ok(Access::Direct(std::ptr::null_mut()));
    }
    if let Some(known) = live.regions.registration_of(local.as_ptr(), len_bytes) {
        return Ok(Access::Direct(known.descriptor));
    }
    if !may_register {
        return Ok(Access::Copied);
    }
    // SAFETY: dismissed before the call for which it is made returns, or with the link, which an error has closed.
    let registered = unsafe { live.link.enroll(local, len_bytes, false) };
    // What cannot be registered, as memory that is not writable, can still be copied.
    Ok(registered.map_or(Access::Copied, Access::Registered))
}

/// Moves the batch into the bounce bytes, as pieces to be written.
fn take_batch(live: &mut Live) -> Vec<Piece> {
    let (bounce, descriptor) = (live.bounce(), live.outgoing_descriptor);
    let mut pieces = Vec::new();
    let mut used = 0;
    for (place, bytes) in live.batch.puts() {
        // SAFETY: a batch has fewer bytes than there are bounce bytes, which are the caller's.
        let local = unsafe { bounce.add(used) };
        // SAFETY: as above; a batch is private memory.
        unsafe { copy_bytes(bytes.as_ptr(), local.as_ptr(), bytes.len()) };
        used += bytes.len();
        let at = Address { region: place.region, offset: place.offset };
        // It was inside when it was put, and regions do not shrink.
        if let Ok((place, remote)) = live.regions.theirs(at, bytes.len() as u64) {
            pieces.push(Piece { local, len_bytes: bytes.len(), descriptor, key: place.key, remote });
        }
    }
    live.batch.clear();
    live.has_puts = false;
    pieces
}

const _: () = assert!(BATCH_BYTES as u64 <= BOUNCE_BYTES);
