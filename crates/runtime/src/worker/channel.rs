//! Implements channels: the memory components that a component's functions access in a worker process, as in Scad's
//! Figure 3.
//!
//! A client that runs a graph sends the process its run ([`worker_run`](super::worker_run)), with a socket on which the
//! process requests memory.
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
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sublet_fabric::packet::PacketSocket;
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::graph::MemoryRights;
use sublet_proto::v1::{self, memory_answer};
use sublet_proto::{Code, Error};

use super::preparation::descriptors;
use crate::lease::link::{lock, protocol};
use crate::memory::piece::MemoryPiece;
use crate::memory::pieces::{CacheSize, PieceOwner, Pieces};
use crate::memory::{RawReading, Reading};
use client::{ComponentExtent, GraphClient, RequestSocket, answer};
use traffic::TrafficCounters;

pub use state_page::OVER_AT;
pub(crate) use state_page::{ENDED_AT, LEN_AT};

mod client;
mod state_page;
mod traffic;

/// Longest time until the client describes its run's channels. Later answers may take as long as a lease.
const FIRST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

/// The way to a memory component; see the [module](self).
pub struct Channel {
    name: String,
    rights: MemoryRights,
    limit_bytes: u64,
    pieces: Pieces,
    /// Set if the channel carries messages.
    pub(super) mailbox: Option<v1::Mailbox>,
    /// Set if the channel is the process's swap space.
    pub(super) is_swap: bool,
    /// Number of the content if that is in the memory of a device, otherwise 0.
    device_memory: u64,
    client: Arc<GraphClient>,
    /// State of each worker of the process. Written by that worker; others only read it.
    uses: Box<[AtomicU32]>,
    /// For each worker, whether a thread of its instance takes a message from the instance's queue: 1 or 0. Written by
    /// the threads of the instance.
    claims: Box<[AtomicU32]>,
    /// Data that the functions of the process have moved.
    pub(super) traffic: TrafficCounters,
}

/// The right to take messages from an instance's queue, for one thread of the process. It ends when this is dropped.
pub(super) struct QueueClaim<'run>(Option<&'run AtomicU32>);

impl Drop for QueueClaim<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.0 {
            let before = claim.swap(0, Ordering::Release);
            debug_assert_eq!(before, 1, "a claim of a queue ends that no thread has: {before}");
        }
    }
}

/// State of a worker that has not accessed a channel, or has ended.
const UNUSED: u32 = 0;
/// State of a worker that accesses a channel.
const USED: u32 = 1;
/// State of a worker that has released a channel.
const RELEASED: u32 = 2;

/// Receives the channels of a run for `workers` workers, each with a cache of this size.
pub(super) fn receive(
    count: u32,
    fds: Vec<OwnedFd>,
    workers: usize,
    cache: CacheSize,
) -> Result<Vec<Channel>, Error> {
    let [socket] = descriptors("a run", fds)?;
    let request_socket = Arc::new(Mutex::new(RequestSocket::new(PacketSocket::from(socket))));
    (0..count).map(|number| Channel::receive(number, &request_socket, workers, cache)).collect()
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
        if channel.mailbox.as_ref().is_some_and(|mailbox| mailbox.peer_end > 1) {
            return Err(protocol("a mailbox with another end than its two"));
        }
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
        let v1::Channel { component: name, limit_bytes, mailbox, is_swap, device_memory, .. } = channel;
        let uses = (0..workers).map(|_| AtomicU32::new(UNUSED)).collect();
        let claims = (0..workers).map(|_| AtomicU32::new(0)).collect();
        let traffic = TrafficCounters::default();
        Ok(Channel {
            name,
            rights,
            limit_bytes,
            pieces,
            mailbox,
            is_swap,
            device_memory,
            client,
            uses,
            claims,
            traffic,
        })
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

    /// Largest length of the component, in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Number of the content if that is in the memory of a device. Another content of the component, in this or another
    /// run of the client, has another number.
    pub fn device_memory(&self) -> Option<u64> {
        Some(self.device_memory).filter(|number| *number != 0)
    }

    /// Reports that this process does not have the content that is in the memory of a device, and returns the error of
    /// the access. The components that access it begin again.
    #[cold]
    pub fn lost_on_device(&self) -> Error {
        let question = v1::MemoryQuestion { lost_on_device: true, ..v1::MemoryQuestion::default() };
        self.ask(question).err().unwrap_or_else(|| protocol("lost memory that is there"))
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
        let len_bytes = into.len() as u64;
        self.readable(offset, len_bytes)?;
        self.pieces.read(offset, into)?;
        self.traffic.count_read(len_bytes);
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
        let len_bytes = into.len() as u64;
        self.readable(offset, len_bytes)?;
        // SAFETY: as the caller vouches.
        let reading = unsafe { RawReading::begin(&self.pieces, offset, into) }?;
        self.traffic.count_read(len_bytes);
        Ok(reading)
    }

    /// Begins to copy bytes into a vector, up to its length.
    ///
    /// # Errors
    /// As for [`Channel::read`].
    pub fn read_async(&self, offset: u64, into: Vec<u8>) -> Result<Reading, Error> {
        let len_bytes = into.len() as u64;
        self.readable(offset, len_bytes)?;
        let reading = Reading::begin(&self.pieces, offset, into)?;
        self.traffic.count_read(len_bytes);
        Ok(reading)
    }

    /// Copies bytes in. Bytes beyond the end make the component grow. Bytes for another machine are sent when they are
    /// [synced](Channel::sync), or before.
    ///
    /// # Errors
    /// `permission_denied` with the right to read alone, `memory_exceeded` beyond the component's limit, the reason why
    /// it cannot grow, and the reason why it is over.
    pub fn write(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        let len_bytes = from.len() as u64;
        let end = self.writable(offset, len_bytes)?;
        self.pieces.write(offset, from)?;
        self.traffic.count_write(len_bytes);
        self.extend(end)
    }

    /// Copies bytes in, and does not wait for other machines, but where the component grows: [`Channel::sync`] does.
    ///
    /// # Errors
    /// As for [`Channel::write`].
    pub fn write_async(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        let len_bytes = from.len() as u64;
        let end = self.writable(offset, len_bytes)?;
        self.pieces.write_async(offset, from)?;
        self.traffic.count_write(len_bytes);
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
        // The run may drop the component before the function returns, so its counts are reported now.
        let counted = self.take_traffic().into_iter().collect();
        let released_by = instance + 1;
        self.ask(v1::MemoryQuestion { released_by, counted, ..v1::MemoryQuestion::default() })?;
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
        let mapped = self.pieces.mapped(offset, len_bytes)?;
        self.traffic.count_map(len_bytes);
        Ok(mapped)
    }

    /// Requests the pieces that exist, before any function accesses them.
    pub(super) fn join(&self) {
        // A piece that is not reached now is requested again by the first access, which reports the reason.
        let _ = self.ask(v1::MemoryQuestion { if_there: true, ..v1::MemoryQuestion::default() });
    }

    /// Claims the queue of a worker's instance for the calling thread; `None` while another thread has it.
    #[inline]
    pub(super) fn claim_queue(&self, worker: u32) -> Option<QueueClaim<'_>> {
        // A worker number that the process does not have has no threads.
        let Some(claim) = self.claims.get(worker as usize) else { return Some(QueueClaim(None)) };
        // Acquire pairs with the Release of the previous claim's end, so that its changes of the queue are seen.
        let before = claim.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        before.ok().map(|_| QueueClaim(Some(claim)))
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

    /// Takes what the process has moved through the channel since the previous report.
    pub(super) fn take_traffic(&self) -> Option<v1::ChannelTraffic> {
        let traffic = self.traffic.take()?;
        Some(v1::ChannelTraffic { channel: self.client.number + 1, traffic: Some(traffic) })
    }

    /// Reports to the client that runs the graph what the process has moved through its channels.
    ///
    /// # Errors
    /// The client is gone, or the reason why this channel's component is over.
    pub(super) fn report(&self, counted: Vec<v1::ChannelTraffic>) -> Result<(), Error> {
        self.ask(v1::MemoryQuestion { counted, ..v1::MemoryQuestion::default() })
    }

    /// Registers that a worker's function has returned: it accesses nothing any more.
    pub(super) fn rest(&self, worker: u32) {
        self.set_use(worker, UNUSED);
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

    /// Whether a worker has released the channel.
    pub(super) fn is_released(&self, worker: u32) -> bool {
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
