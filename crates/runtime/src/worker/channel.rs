//! Implements channels: the memory components that a component's functions access in a worker process, as in Scad's
//! Figure 3.
//!
//! A client that runs a graph sends the process its run ([`take`]), with a socket on which the process requests memory.
//! Pieces of this machine are mapped, and those of others are reached by connections
//! ([`pieces`](crate::memory::pieces)). The process requests only pieces that it does not have yet; the component grows
//! if they do not exist. The component's length, and whether it is over, are stored in a page that all processes with
//! access share on the client's machine. A process on another machine shares a page of its agent's, which says whether
//! the mapped component is over, and asks the client for the length.
//!
//! Invariants:
//! - Every piece below a channel's capacity is attached, and stays so as long as another process accesses it. The
//!   capacity shrinks only when the process's only instance with access requests it.
//! - An instance that has released a channel does not access it, or wait for anything of it. When all have released it,
//!   the component may be over.
//! - The descriptor is the right: a process that may only read has files that were opened for reading, and connections
//!   by which nothing is written.
//! - One question is on the socket at a time, and its answers are taken before the next.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::graph::MemoryRights;
use sublet_proto::v1::{self, memory_answer};
use sublet_proto::{Code, Error};

use super::mailbox::Mailbox;
pub use super::mailbox::{MAX_MESSAGE_BYTES, ReceiveError};
use super::preparation::descriptors;
use super::swapping;
use crate::lease::link::{lock, protocol};
use crate::memory::piece::MemoryPiece;
use crate::memory::pieces::{CacheSize, PieceOwner, Pieces};
use crate::memory::{RawReading, Reading};
use client::{ComponentExtent, GraphClient, RequestSocket, answer};

mod client;

/// Longest time until the client describes its run's channels. Later answers may take as long as a lease.
const FIRST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The caches of all channels have this part of the process's memory, at most.
const CACHES_PART: u64 = 8;

/// Offset of the component's length in its state page, in bytes.
pub(crate) const LEN_AT: u64 = 0;
/// Offset of the flag that the component is over.
pub const OVER_AT: u64 = 8;
/// Offset of the bits that say which ends of a mailbox have ended.
pub(crate) const ENDED_AT: u64 = 16;

/// The run for which this process executes a component now.
static RUN: RwLock<Option<Arc<WorkerRun>>> = RwLock::new(None);

/// A run, as a worker process knows it.
pub struct WorkerRun {
    first_instance: u32,
    /// Number of instances that execute the component.
    pub instances: u32,
    channels: Vec<Channel>,
}

/// The way to a memory component; see the [module](self).
pub struct Channel {
    name: String,
    rights: MemoryRights,
    limit_bytes: u64,
    pieces: Pieces,
    /// Set if the channel carries messages.
    mailbox: Option<v1::Mailbox>,
    /// Set if the channel is the process's swap space.
    is_swap: bool,
    client: Arc<GraphClient>,
    /// State of each worker of the process. Written by that worker; others only read it.
    uses: Box<[AtomicU32]>,
}

/// State of a worker that has not accessed a channel, or has ended.
const UNUSED: u32 = 0;
/// State of a worker that accesses a channel.
const USED: u32 = 1;
/// State of a worker that has released a channel.
const RELEASED: u32 = 2;

/// The run, if there is one.
pub fn run() -> Option<Arc<WorkerRun>> {
    RUN.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

/// Accepts a client's run, in place of the previous one, for `workers` workers. The cache of remote memory uses a part
/// of the process's own memory.
pub(super) fn take(
    message: &v1::Run,
    fds: Vec<OwnedFd>,
    workers: usize,
    memory_bytes: u64,
) -> Result<(), Error> {
    let channels = match message.channels {
        0 => Vec::new(),
        count => {
            let cache = CacheSize::within(memory_bytes / CACHES_PART / u64::from(count));
            receive_channels(count, fds, workers, cache)?
        }
    };
    let (first_instance, instances) = (message.first_instance, message.instances);
    let run = WorkerRun { first_instance, instances, channels };
    let swaps = run.swap_space().is_ok();
    *RUN.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Arc::new(run));
    if swaps {
        swapping::turn_on();
    }
    Ok(())
}

fn receive_channels(
    count: u32,
    fds: Vec<OwnedFd>,
    workers: usize,
    cache: CacheSize,
) -> Result<Vec<Channel>, Error> {
    let [socket] = descriptors("a run", fds)?;
    let request_socket = Arc::new(Mutex::new(RequestSocket::new(PacketSocket::from(socket))));
    (0..count).map(|number| Channel::receive(number, &request_socket, workers, cache)).collect()
}

impl WorkerRun {
    /// The number of the instance that a worker of this process executes.
    pub fn instance(&self, worker: u32) -> u32 {
        self.first_instance.saturating_add(worker)
    }

    /// The channel to a component.
    ///
    /// # Errors
    /// `invalid_argument` without an access edge to it.
    pub fn channel(&self, component: &str) -> Result<&Channel, Error> {
        let mut memory = self.channels.iter().filter(|channel| channel.mailbox.is_none() && !channel.is_swap);
        memory.find(|channel| channel.name == component).ok_or_else(|| {
            let message = format!("the graph has no access edge from this component to {component:?}");
            Error::new(Code::InvalidArgument, message)
        })
    }

    /// Sends a message to an instance of a component, which receives it later. Waits at most until the deadline for
    /// free space in its queue. `own` is the sender's instance.
    ///
    /// # Errors
    /// `invalid_argument` without a message edge to the component, for an instance that it does not have, or more than
    /// 64 KiB; `deadline_exceeded`; `lease_ended` if the component has ended.
    pub fn send(
        &self,
        own: u32,
        (component, to): (&str, u32),
        message: SharedBytes<'_>,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        self.mailbox(component)?.send(own, to, message, deadline)
    }

    /// Takes the next message that any instance of a component has sent to this one, and waits for it at most until the
    /// deadline. Returns its length and the number of its sender.
    ///
    /// # Errors
    /// `invalid_argument` without a message edge to the component; `deadline_exceeded`; `lease_ended` if the component
    /// has ended and no message of it is left.
    pub fn receive(
        &self,
        own: u32,
        component: &str,
        into: SharedBytesMut<'_>,
        deadline: Option<Instant>,
    ) -> Result<(u32, u32), ReceiveError> {
        self.mailbox(component)?.receive(own, into, deadline)
    }

    /// The channel of this process's swap space.
    ///
    /// # Errors
    /// `internal` if the run has none.
    pub(super) fn swap_space(&self) -> Result<&Channel, Error> {
        self.channels
            .iter()
            .find(|channel| channel.is_swap)
            .ok_or_else(|| Error::new(Code::Internal, "the run has no memory to swap to"))
    }

    fn mailbox(&self, component: &str) -> Result<Mailbox<'_>, Error> {
        let of = |channel: &&Channel| channel.mailbox.as_ref().is_some_and(|told| told.peer == component);
        let none = || {
            let message = format!("the graph has no message edge between this component and {component:?}");
            Error::new(Code::InvalidArgument, message)
        };
        let channel = self.channels.iter().find(of).ok_or_else(none)?;
        let told = channel.mailbox.as_ref().ok_or_else(none)?;
        Ok(Mailbox { channel, told })
    }

    /// Makes all writes visible to other processes, except those to channels that the worker has released.
    ///
    /// # Errors
    /// The reason why a component is over.
    pub fn sync(&self, worker: u32) -> Result<(), Error> {
        self.channels.iter().filter(|channel| !channel.is_released(worker)).try_for_each(Channel::sync)
    }

    /// A worker's function has returned: it accesses nothing any more.
    pub(super) fn rest(&self, worker: u32) {
        for channel in self.channels.iter().filter(|channel| !channel.is_released(worker)) {
            channel.set_use(worker, UNUSED);
        }
    }

    /// The channels, in the order of the edges.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }
}

impl Channel {
    /// Receives the next channel from the client.
    fn receive(
        number: u32,
        request_socket: &Arc<Mutex<RequestSocket>>,
        workers: usize,
        cache: CacheSize,
    ) -> Result<Channel, Error> {
        let (body, fds) = answer(lock(request_socket).socket.receive(Some(FIRST_ANSWERS_TIMEOUT))?)?;
        let memory_answer::Body::Channel(channel) = body else {
            return Err(protocol("a run with fewer channels than it has"));
        };
        let [state] = descriptors("a channel", fds)?;
        let rights = if channel.writable { MemoryRights::Write } else { MemoryRights::Read };
        let state = match channel.writable && !channel.is_far {
            true => Region::attach(state, PAGE_BYTES)?,
            false => Region::attach_to_read(state, PAGE_BYTES)?,
        };
        let known = channel.is_far.then(ComponentExtent::default);
        let client = Arc::new(GraphClient { number, state, known, request_socket: request_socket.clone() });
        // Swapped bytes that come from there are resident, and none are read twice, so the channel needs no cache.
        let cache = if channel.is_swap { CacheSize::within(0) } else { cache };
        let pieces = Pieces::new(channel.reserved_bytes, rights, cache, client.clone())?;
        let v1::Channel { component: name, limit_bytes, mailbox, is_swap, .. } = channel;
        let uses = (0..workers).map(|_| AtomicU32::new(UNUSED)).collect();
        Ok(Channel { name, rights, limit_bytes, pieces, mailbox, is_swap, client, uses })
    }

    /// Registers that a worker accesses the channel, from now on until its function returns or releases it.
    ///
    /// # Errors
    /// `lease_ended` if it has released it.
    #[inline]
    pub fn used_by(&self, worker: u32) -> Result<&Channel, Error> {
        match self.use_of(worker) {
            USED => Ok(self),
            UNUSED => {
                self.set_use(worker, USED);
                Ok(self)
            }
            _ => Err(self.released()),
        }
    }

    /// The channel, like [`Channel::used_by`], for operations that are not an access.
    ///
    /// # Errors
    /// As for [`Channel::used_by`].
    pub fn held_by(&self, worker: u32) -> Result<&Channel, Error> {
        if self.is_released(worker) { Err(self.released()) } else { Ok(self) }
    }

    /// The index of the channel, in the order of the edges.
    pub(super) fn number(&self) -> u32 {
        self.client.number
    }

    /// The component's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.rights == MemoryRights::Write
    }

    /// Length of the component, in bytes.
    ///
    /// # Errors
    /// The reason why the component is over.
    pub fn len_bytes(&self) -> Result<u64, Error> {
        if self.client.known.is_some() {
            self.ask(v1::MemoryQuestion::default())?;
        }
        Ok(self.known_len())
    }

    /// Copies bytes out. On another machine, bytes that were read before and not [synced](Channel::sync) may be out of
    /// date.
    ///
    /// # Errors
    /// `invalid_argument` beyond the end, and why the component is over.
    pub fn read(&self, offset: u64, into: SharedBytesMut<'_>) -> Result<(), Error> {
        self.readable(offset, into.len() as u64)?;
        self.pieces.read(offset, into)?;
        self.client.check()
    }

    /// Begins to copy bytes out. They are there when the returned value has been waited for.
    ///
    /// # Safety
    /// As for [`Memory::read_async_raw`](crate::Memory::read_async_raw).
    ///
    /// # Errors
    /// As for [`Channel::read`].
    pub unsafe fn read_async_raw(&self, offset: u64, into: SharedBytesMut<'_>) -> Result<RawReading, Error> {
        self.readable(offset, into.len() as u64)?;
        // SAFETY: as the caller vouches.
        unsafe { RawReading::begin(&self.pieces, offset, into) }
    }

    /// Begins to copy bytes into a vector, up to its length.
    ///
    /// # Errors
    /// As for [`Channel::read`].
    pub fn read_async(&self, offset: u64, into: Vec<u8>) -> Result<Reading, Error> {
        self.readable(offset, into.len() as u64)?;
        Reading::begin(&self.pieces, offset, into)
    }

    /// Copies bytes in. Bytes beyond the end make the component grow. Bytes for another machine are sent when they are
    /// [synced](Channel::sync), or before.
    ///
    /// # Errors
    /// `permission_denied` with the right to read alone, `memory_exceeded` beyond the component's limit, the reason why
    /// it cannot grow, and the reason why it is over.
    pub fn write(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        let end = self.writable(offset, from.len() as u64)?;
        self.pieces.write(offset, from)?;
        self.extend(end)
    }

    /// Copies bytes in, and does not wait for other machines, but where the component grows: [`Channel::sync`] does.
    ///
    /// # Errors
    /// As for [`Channel::write`].
    pub fn write_async(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        let end = self.writable(offset, from.len() as u64)?;
        self.pieces.write_async(offset, from)?;
        self.extend(end)
    }

    /// Sets the component's length to `len_bytes` bytes. New bytes are 0. The component can become shorter only if no
    /// worker but this one accesses it. Segments behind the end are then given back, if the process is on the client's
    /// machine, and their mapped ranges no longer belong to the component.
    ///
    /// # Errors
    /// As for [`Channel::write`]; `invalid_argument` if it would be shorter and another instance or component accesses it.
    pub fn resize(&self, worker: u32, len_bytes: u64) -> Result<(), Error> {
        self.writable(len_bytes, 0)?;
        if len_bytes >= self.len_bytes()? {
            return self.extend(len_bytes);
        }
        let is_others = |(other, used): (usize, &AtomicU32)| {
            other != worker as usize && used.load(Ordering::Acquire) == USED
        };
        if self.uses.iter().enumerate().any(is_others) {
            return Err(shared(&self.name));
        }
        // Bytes that are cut off are synced, too, so that none of them is written later.
        self.sync()?;
        self.ask(v1::MemoryQuestion { shorten_to: Some(len_bytes), ..v1::MemoryQuestion::default() })?;
        match &self.client.known {
            Some(known) => known.shorten(len_bytes),
            None => self.pieces.forget(len_bytes),
        }
        Ok(())
    }

    /// Releases the component for the instance that a worker executes, which does not access it any more. When no
    /// instance does, and no component that is to begin may, the component is over and its memory is given back.
    ///
    /// # Errors
    /// The reason why the component is over, if it was before. Its bytes are lost then.
    pub fn release(&self, worker: u32, instance: u32) -> Result<(), Error> {
        self.held_by(worker)?.sync()?;
        self.ask(v1::MemoryQuestion { released_by: instance + 1, ..v1::MemoryQuestion::default() })?;
        self.set_use(worker, RELEASED);
        Ok(())
    }

    /// Makes the length at least `len_bytes` bytes. New bytes are 0.
    ///
    /// # Errors
    /// As for [`Channel::write`].
    pub fn grow(&self, len_bytes: u64) -> Result<(), Error> {
        self.writable(len_bytes, 0)?;
        self.extend(len_bytes)
    }

    /// Makes this process's writes visible to other processes, and their synced writes visible here. It is called
    /// automatically when a component's functions have returned. Writes to mapped memory are visible at once.
    ///
    /// # Errors
    /// The reason why the component is over. Its bytes are lost then.
    pub fn sync(&self) -> Result<(), Error> {
        self.pieces.sync()?;
        self.client.check()
    }

    /// Requests bytes of other machines that will be read soon, without waiting for them.
    pub fn prefetch(&self, offset: u64, len_bytes: u64) {
        let here = self.known_len().min(self.pieces.capacity());
        self.pieces.prefetch(offset, len_bytes.min(here.saturating_sub(offset)));
    }

    /// The address of bytes in this process, within the length. It is valid as long as the run. A process that may only
    /// read and writes there is killed.
    ///
    /// # Errors
    /// As for [`Channel::read`]; `fabric_unavailable` for bytes of another machine.
    pub fn mapped(&self, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, Error> {
        self.readable(offset, len_bytes)?;
        self.client.check()?;
        self.pieces.mapped(offset, len_bytes)
    }

    /// The piece that has all of a stretch, which is made if it is not there.
    pub(super) fn piece(&self, offset: u64, len_bytes: u64) -> Result<Arc<MemoryPiece>, Error> {
        self.ensure(self.limit_bytes)?;
        let piece = self.pieces.piece_at(offset)?;
        match offset + len_bytes <= piece.end() {
            true => Ok(piece),
            false => Err(protocol("a mailbox in several pieces")),
        }
    }

    /// The address of mapped bytes.
    pub(super) fn pointer(&self, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, Error> {
        self.pieces.mapped(offset, len_bytes)
    }

    /// Copies bytes that are mapped here.
    pub(super) fn get(&self, offset: u64, into: SharedBytesMut<'_>) -> Result<(), Error> {
        self.pieces.read(offset, into)
    }

    /// Copies bytes to where they are mapped here.
    pub(super) fn put(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        self.pieces.put(offset, from)
    }

    /// Returns the reason why an access of a piece failed.
    pub(super) fn failed(&self, piece: &MemoryPiece, error: Error) -> Error {
        self.client.failed(piece, error)
    }

    /// Whether the component is still there, and otherwise why not.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.client.check()
    }

    /// The ends of a mailbox that have ended, as far as this process knows.
    pub(super) fn ended(&self) -> u64 {
        let word =
            self.client.known.as_ref().map_or_else(|| self.client.word(ENDED_AT), |known| &known.ended);
        word.load(Ordering::Acquire)
    }

    /// Updates this process's knowledge of the ends that have ended.
    pub(super) fn ask_ended(&self) -> Result<(), Error> {
        match self.client.known {
            None => Ok(()),
            Some(_) => self.ask(v1::MemoryQuestion::default()),
        }
    }

    /// The component's length, as far as this process knows.
    fn known_len(&self) -> u64 {
        // A process that may write may have stored any number there.
        self.client.len().load(Ordering::Acquire).min(self.limit_bytes)
    }

    /// Makes the length at least `len_bytes`.
    fn extend(&self, len_bytes: u64) -> Result<(), Error> {
        let before = self.client.len().fetch_max(len_bytes, Ordering::AcqRel);
        if self.client.known.is_some() && before < len_bytes {
            return self.ask(v1::MemoryQuestion { len_bytes, ..v1::MemoryQuestion::default() });
        }
        self.client.check()
    }

    fn readable(&self, offset: u64, len_bytes: u64) -> Result<(), Error> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.known_len());
        let end = match end {
            // Another process may have made it longer.
            None if self.client.known.is_some() => {
                let is = self.len_bytes()?;
                offset.checked_add(len_bytes).filter(|end| *end <= is)
            }
            end => end,
        };
        self.ensure(end.ok_or_else(|| self.beyond(offset, len_bytes))?)
    }

    /// The end of a stretch that is there, to be written.
    fn writable(&self, offset: u64, len_bytes: u64) -> Result<u64, Error> {
        if self.rights == MemoryRights::Read {
            let message = format!("memory component {} is read by this component, not written", self.name);
            return Err(Error::new(Code::PermissionDenied, message));
        }
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.limit_bytes);
        let end = end.ok_or_else(|| self.beyond_limit(offset, len_bytes))?;
        self.ensure(end)?;
        Ok(end)
    }

    #[inline]
    fn ensure(&self, end_bytes: u64) -> Result<(), Error> {
        if end_bytes <= self.pieces.capacity() {
            return Ok(());
        }
        self.ask(v1::MemoryQuestion { end_bytes, ..v1::MemoryQuestion::default() })?;
        if end_bytes > self.pieces.capacity() {
            return Err(protocol("less memory than was asked for"));
        }
        Ok(())
    }

    #[cold]
    fn ask(&self, question: v1::MemoryQuestion) -> Result<(), Error> {
        let asked = || v1::MemoryQuestion { have_bytes: self.pieces.capacity(), ..question };
        self.client.ask(asked, |piece| self.pieces.add(Arc::new(piece)))
    }

    fn use_of(&self, worker: u32) -> u32 {
        // A worker number that the process does not have counts as released.
        self.uses.get(worker as usize).map_or(RELEASED, |used| used.load(Ordering::Acquire))
    }

    fn set_use(&self, worker: u32, used: u32) {
        if let Some(place) = self.uses.get(worker as usize) {
            place.store(used, Ordering::Release);
        }
    }

    fn is_released(&self, worker: u32) -> bool {
        self.use_of(worker) == RELEASED
    }

    #[cold]
    fn released(&self) -> Error {
        Error::new(Code::LeaseEnded, format!("memory component {} was released by this function", self.name))
    }

    #[cold]
    fn beyond(&self, offset: u64, len_bytes: u64) -> Error {
        let (name, is) = (&self.name, self.known_len());
        let message = format!("{len_bytes} bytes at {offset} of memory component {name} of {is} bytes");
        Error::new(Code::InvalidArgument, message)
    }

    #[cold]
    fn beyond_limit(&self, offset: u64, len_bytes: u64) -> Error {
        let (name, limit) = (&self.name, self.limit_bytes);
        let message =
            format!("{len_bytes} bytes at {offset} of memory component {name}, which grows to {limit} bytes");
        Error::new(Code::MemoryExceeded, message)
    }
}

/// Returns the error that a component cannot become shorter because several instances access it.
#[cold]
pub(crate) fn shared(name: &str) -> Error {
    let message = format!(
        "memory component {name} is accessed by others, who have neither ended nor released it: it cannot be made shorter"
    );
    Error::new(Code::InvalidArgument, message)
}
