//! Implements memory components: memory that is leased by the segment, grows while it is written, and is given back
//! (Scad 4.2.1).
//!
//! A [`Memory`] is a list of segments. Each is a lease of its own, of memory alone, with a name, an end and a line on
//! the bill. The first has the initial size and is leased by the first access. Each further one has the incremental
//! size, and is leased by a write beyond the last. Together they are one range of bytes from 0 on, whatever their
//! number. On the client's own machine a segment is mapped, and reading and writing it is copying memory. A segment on
//! another machine is read and written over a connection, past a [`cache`]; an access that spans segments is split.
//!
//! Invariants:
//! - Every piece below the capacity is attached: [`pieces`].
//! - Bytes that were never written are 0. Bytes behind the length cannot be read.
//! - A writer reads its own writes. Other processes see them after its [`Memory::sync`], and it sees theirs likewise;
//!   on the same machine at once.
//! - When one segment has ended, all of the component has: its bytes are gone, and every access says why.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::graph::{MAX_SEGMENTS, MemoryRights};
use sublet_proto::v1;
use sublet_proto::{Code, Error, to_usize};

use crate::fabrics::{ClientTerms, FabricChoice};
use crate::invoker::allocation::milliseconds;
use crate::lease::link::lock;
use crate::manager::ManagerClient;
use keeper::SegmentKeeper;
use piece::MemoryPiece;
use pieces::Pieces;
use segment::Segment;

pub use plan::MemoryPlan;
pub use remote_pieces::{RawReading, Reading};

mod cache;
pub mod invited;
mod keeper;
mod pending;
pub(crate) mod piece;
pub(crate) mod pieces;
mod plan;
mod remote_pieces;
mod segment;
pub(crate) mod segment_connection;

/// Number of bytes that are zeroed at a time.
const ZEROS_BYTES: u64 = 1 << 20;
/// A memory component; see the [module](self). Made by [`Invoker::memory`](crate::Invoker::memory).
///
/// Any number of threads may read and write at once. A read at the same time as a write of the same bytes returns a mix
/// of both. The component holds bytes, and the program must order its accesses, as in Scad.
pub struct Memory {
    manager: Arc<ManagerClient>,
    plan: MemoryPlan,
    terms: ClientTerms,
    pieces: Pieces,
    /// End of the bytes that were written, or of the length that was set.
    len: AtomicU64,
    /// The segments, in the order of their bytes. The lock is held while another one is leased.
    segments: Mutex<Vec<Arc<Segment>>>,
    keeper: SegmentKeeper,
}

impl Memory {
    pub(crate) fn new(manager: Arc<ManagerClient>, plan: MemoryPlan) -> Result<Memory, Error> {
        plan.check()?;
        let keeper = SegmentKeeper::start()?;
        let pieces = Pieces::new(plan.reserved_bytes(), MemoryRights::Write, plan.cache(), keeper.owner())?;
        let terms = plan.terms()?;
        Ok(Memory {
            manager,
            plan,
            terms,
            pieces,
            len: AtomicU64::new(0),
            segments: Mutex::default(),
            keeper,
        })
    }

    /// Copies bytes out, into private memory or into a [`Buffer`](crate::Buffer). On another machine, lines that were
    /// read before and not [synced](Memory::sync) may be out of date.
    ///
    /// # Errors
    /// `invalid_argument` beyond the end, and why it has ended.
    #[inline]
    pub fn read<'into>(&self, offset: u64, into: impl Into<SharedBytesMut<'into>>) -> Result<(), Error> {
        let into = into.into();
        self.readable(offset, into.len() as u64)?;
        self.pieces.read(offset, into)?;
        self.keeper.check()
    }

    /// Copies bytes in, from private memory or from a [`Buffer`](crate::Buffer). Bytes beyond the end make the component
    /// grow. Bytes for another machine are sent when they are [synced](Memory::sync), or before.
    ///
    /// # Errors
    /// `memory_exceeded` beyond the limit; the error of the manager or an agent if the component cannot grow; the
    /// reason why it has ended. If it cannot grow, nothing was written; if it has ended, all of its bytes are lost.
    #[inline]
    pub fn write<'from>(&self, offset: u64, from: impl Into<SharedBytes<'from>>) -> Result<(), Error> {
        let from = from.into();
        let end = self.end_of(offset, from.len() as u64)?;
        self.ensure(end)?;
        self.pieces.write(offset, from)?;
        self.len.fetch_max(end, Ordering::AcqRel);
        self.keeper.check()
    }

    /// Makes this process's writes visible to others, and discards the cache, so that later reads return what others
    /// have synced before. On this machine, and without a cache, there is nothing to do.
    ///
    /// # Errors
    /// The reason why the component has ended. Its bytes are lost then.
    pub fn sync(&self) -> Result<(), Error> {
        self.pieces.sync()?;
        self.keeper.check()
    }

    /// Begins to copy bytes into the vector, up to its length. The bytes are those that are there now, or that are
    /// written before [`Reading::wait`], which returns the vector.
    ///
    /// # Errors
    /// As for [`Memory::read`].
    pub fn read_async(&self, offset: u64, into: Vec<u8>) -> Result<Reading, Error> {
        self.readable(offset, into.len() as u64)?;
        Reading::begin(&self.pieces, offset, into)
    }

    /// Reads like [`Memory::read_async`], into any memory.
    ///
    /// # Safety
    /// The destination is writable, and no reference to it is used, until the returned value is waited for or dropped.
    /// That value is not forgotten. Other threads and processes may read and write the destination through pointers
    /// during this time, and store any bytes in it.
    ///
    /// # Errors
    /// As for [`Memory::read`].
    pub unsafe fn read_async_raw(
        &self,
        offset: u64,
        into: NonNull<u8>,
        len_bytes: u64,
    ) -> Result<RawReading, Error> {
        self.readable(offset, len_bytes)?;
        // SAFETY: as the caller vouches; a place in this process has no more bytes than an address says.
        unsafe { RawReading::begin(&self.pieces, offset, SharedBytesMut::new(into, to_usize(len_bytes))) }
    }

    /// Copies bytes in, and does not wait until they are where others read them, which [`Memory::sync`] does.
    ///
    /// # Errors
    /// As for [`Memory::write`].
    pub fn write_async<'from>(&self, offset: u64, from: impl Into<SharedBytes<'from>>) -> Result<(), Error> {
        let from = from.into();
        let end = self.end_of(offset, from.len() as u64)?;
        self.ensure(end)?;
        self.pieces.write_async(offset, from)?;
        self.len.fetch_max(end, Ordering::AcqRel);
        self.keeper.check()
    }

    /// Requests bytes that will be read soon, without waiting for them. Has no effect for bytes on this machine or
    /// beyond the end.
    pub fn prefetch(&self, offset: u64, len_bytes: u64) {
        self.pieces.prefetch(offset, len_bytes.min(self.len_bytes().saturating_sub(offset)));
    }

    /// The address of bytes in this process, if they are within the length. They may be read and written in place, by
    /// the rules for memory that several threads, and other processes, access. The address is valid as long as the
    /// component is not resized.
    ///
    /// # Errors
    /// As for [`Memory::read`]; `fabric_unavailable` for bytes of another machine.
    pub fn mapped(&self, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, Error> {
        self.readable(offset, len_bytes)?;
        self.keeper.check()?;
        self.pieces.mapped(offset, len_bytes)
    }

    /// Length of the component, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Number of leased bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.pieces.capacity()
    }

    /// Sets the length to what others have written, within the capacity.
    pub(crate) fn set_len(&self, len_bytes: u64) {
        self.len.store(len_bytes.min(self.pieces.capacity()), Ordering::Release);
    }

    /// Leases segments until the capacity is at least `len_bytes` bytes.
    pub(crate) fn ensure_capacity(&self, len_bytes: u64) -> Result<(), Error> {
        self.ensure(self.end_of(len_bytes, 0)?)
    }

    /// The leases, in the order of their bytes.
    pub fn segments(&self) -> Vec<v1::Lease> {
        lock(&self.segments).iter().map(|segment| segment.lease.clone()).collect()
    }

    /// Sets the length to `len_bytes` bytes. New bytes are 0; segments that lie wholly behind the end are given back.
    ///
    /// # Errors
    /// As for [`Memory::write`].
    pub fn resize(&mut self, len_bytes: u64) -> Result<(), Error> {
        self.ensure(self.end_of(len_bytes, 0)?)?;
        // Writes to lines that are removed are synced, too, so that none of them is sent later.
        self.sync()?;
        let before = self.len.swap(len_bytes, Ordering::AcqRel);
        self.give_back_behind(len_bytes)?;
        self.zero(len_bytes, before.min(self.pieces.capacity()))
    }

    /// Gives back the segments that lie wholly behind `len_bytes` bytes.
    pub(crate) fn give_back_behind(&mut self, len_bytes: u64) -> Result<(), Error> {
        while self.pieces.remove_last(len_bytes)?.is_some() {
            if let Some(segment) = lock(&self.segments).pop() {
                self.keeper.release(&segment);
                self.keeper.ended(&segment);
            }
        }
        Ok(())
    }

    /// Lets all segments end this long from now, as far as the manager allows.
    ///
    /// # Errors
    /// The error of a segment that cannot be renewed; the others are renewed.
    pub fn renew(&self, timeout: Duration) -> Result<(), Error> {
        let timeout_ms = milliseconds(timeout);
        let segments = lock(&self.segments);
        let renew = |segment: &Arc<Segment>| {
            let grant = self.manager.renew_lease(&segment.lease.id, timeout_ms)?;
            self.keeper.renew(segment, grant.ticket)
        };
        let renewed: Vec<Result<(), Error>> = segments.iter().map(renew).collect();
        renewed.into_iter().collect()
    }

    /// Gives all segments back, and returns their leases, each with its usage. Their bytes are lost.
    ///
    /// # Errors
    /// The reason why it had ended before.
    pub fn release(self) -> Result<Vec<v1::Lease>, Error> {
        self.keeper.check()?;
        let segments = std::mem::take(&mut *lock(&self.segments));
        segments.iter().for_each(|segment| self.keeper.release(segment));
        Ok(segments.iter().map(|segment| self.keeper.ended(segment)).collect())
    }

    /// Whether it is still there, and otherwise why not.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.keeper.check()
    }

    /// Has `call` called once when the component has ended otherwise than by being released. It may be called at once.
    pub(crate) fn on_end(&self, call: impl FnOnce(Error) + Send + 'static) {
        self.keeper.on_end(Box::new(call));
    }

    /// The pieces from this place on.
    pub(crate) fn pieces_from(&self, offset: u64) -> Vec<Arc<MemoryPiece>> {
        self.pieces.from(offset)
    }

    /// Waits, after an access found that the component has ended, until an agent reports the reason, and returns it.
    pub(crate) fn await_end(&self) -> Error {
        self.keeper.await_end()
    }

    /// Records that a process can no longer reach a segment, which ends the component. Returns the reason.
    pub(crate) fn lost(&self, segment: &str, error: Error) -> Error {
        let piece = self.pieces.from(0).into_iter().find(|piece| piece.segment == segment);
        match piece {
            Some(piece) => self.keeper.owner().failed(&piece, error),
            None => error,
        }
    }

    /// Allows another process to reach a piece, once, with the returned ticket. The piece joins a connection that the
    /// process already has, if possible.
    pub(crate) fn invite(
        &self,
        piece: &MemoryPiece,
        rights: MemoryRights,
        joins: Option<v1::Joins>,
    ) -> Result<v1::SegmentTicket, Error> {
        let segment = lock(&self.segments).iter().find(|segment| segment.lease.id == piece.segment).cloned();
        let over = || Error::new(Code::LeaseEnded, format!("segment {} was given back", piece.segment));
        let segment = segment.ok_or_else(over)?;
        let network = segment.network.as_ref().ok_or_else(|| invited::no_network(&segment.lease))?;
        let encrypted = matches!(self.terms.fabric, FabricChoice::Tcp { encrypted: true });
        let invite = v1::Invite { writable: rights == MemoryRights::Write, encrypted, joins: joins.clone() };
        let invited = self.keeper.invite(&segment, invite)?;
        let joins = joins.filter(|_| invited.joined);
        Ok(v1::SegmentTicket { address: network.address.clone(), invited: Some(invited), joins })
    }

    /// The end of a stretch that can be read.
    #[inline]
    fn readable(&self, offset: u64, len_bytes: u64) -> Result<u64, Error> {
        let end = self.end_of(offset, len_bytes)?;
        if end > self.len.load(Ordering::Acquire) {
            return Err(self.beyond(offset, len_bytes));
        }
        self.ensure(end)?;
        Ok(end)
    }

    #[inline]
    fn end_of(&self, offset: u64, len_bytes: u64) -> Result<u64, Error> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.plan.limit_bytes);
        end.ok_or_else(|| self.beyond_limit(offset, len_bytes))
    }

    /// Makes the capacity at least `end` bytes.
    #[inline]
    pub(crate) fn ensure(&self, end: u64) -> Result<(), Error> {
        if end <= self.pieces.capacity() { Ok(()) } else { self.grow(end) }
    }

    #[cold]
    fn grow(&self, end: u64) -> Result<(), Error> {
        let mut segments = lock(&self.segments);
        loop {
            self.keeper.check()?;
            let capacity = self.pieces.capacity();
            if end <= capacity {
                return Ok(());
            }
            if segments.len() as u64 == MAX_SEGMENTS {
                let message =
                    format!("the memory component has {MAX_SEGMENTS} segments already: let it grow by more");
                return Err(Error::new(Code::MemoryExceeded, message));
            }
            let len_bytes = self.plan.segment_bytes(capacity);
            let grants = self.manager.request_lease(self.plan.request(len_bytes))?.grants;
            let segment = Arc::new(Segment::attach(grants, (capacity, len_bytes), &self.terms)?);
            self.pieces.add(segment.piece.clone())?;
            self.keeper.watch(segment.clone());
            segments.push(segment);
        }
    }

    /// Makes a stretch 0, all of which is leased.
    pub(crate) fn zero(&self, from: u64, to: u64) -> Result<(), Error> {
        let zeros = vec![0; to.saturating_sub(from).min(ZEROS_BYTES) as usize];
        let mut at = from;
        while at < to {
            let len = (to - at).min(ZEROS_BYTES);
            self.pieces.put(at, zeros[..len as usize].into())?;
            at += len;
        }
        self.pieces.settle(from, to.max(from))
    }

    #[cold]
    fn beyond(&self, offset: u64, len_bytes: u64) -> Error {
        let is = self.len_bytes();
        let message = format!("{len_bytes} bytes at {offset} of a memory component of {is} bytes");
        Error::new(Code::InvalidArgument, message)
    }

    #[cold]
    fn beyond_limit(&self, offset: u64, len_bytes: u64) -> Error {
        let limit = self.plan.limit_bytes;
        let message =
            format!("{len_bytes} bytes at {offset} of a memory component that grows to {limit} bytes");
        Error::new(Code::MemoryExceeded, message)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("len_bytes", &self.len_bytes())
            .field("capacity_bytes", &self.capacity_bytes())
            .finish_non_exhaustive()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Prefetched bytes are no longer awaited, as their agent may be stopped.
        self.pieces.disconnect("the memory component is gone");
        self.keeper.close();
    }
}
