//! Memory components: memory that is leased by the segment, grows while it is written, and is given back (Scad 4.2.1).
//!
//! A [`Memory`] is a list of segments. Each is a lease of its own, of memory alone, with a name, an end and a line on the
//! bill. The first has the initial size and comes with the first access; each further one has the incremental size, and
//! comes when something is written beyond the last. Together they are one stretch of bytes from 0 on, however many there
//! are. On the client's own machine a segment is mapped, and reading and writing it is copying memory. One of another
//! machine is read and written over a connection, and an access that spans segments is split.
//!
//! Invariants:
//! - What is below the capacity is attached, and mapped if it is of this machine; the capacity grows when it is, and shrinks
//!   by `&mut` alone.
//! - Bytes that were never written are 0. What is behind the length cannot be read.
//! - What was written is there when the write returns, whoever reads it then.
//! - When one segment has ended, all of the component has: its bytes are gone, and every access says why.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sublet_fabric::space::Space;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_proto::graph::{DEFAULT_SEGMENT_BYTES, MAX_SEGMENTS};
use sublet_proto::limits::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};
use sublet_proto::v1;
use sublet_proto::{Code, Error};

use crate::fabrics::{FabricChoice, Terms};
use crate::invoker::allocation::milliseconds;
use crate::lease::link::lock;
use crate::manager::ManagerClient;
use keeper::Keeper;
use segment::Segment;

mod keeper;
mod segment;

/// How much is made 0 at a time.
const ZEROS_BYTES: u64 = 1 << 20;
/// How large it may become, if nothing is said. It is address space, and no memory before it is needed.
const DEFAULT_LIMIT_BYTES: u64 = 1 << 40;

/// What a memory component is to be. Made by [`MemoryPlan::new`] and changed by its methods.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    initial_bytes: u64,
    increment_bytes: u64,
    limit_bytes: u64,
    timeout: Duration,
    wait: Duration,
    near: Vec<String>,
    fabric: Option<FabricChoice>,
}

impl Default for MemoryPlan {
    fn default() -> MemoryPlan {
        MemoryPlan::new()
    }
}

impl MemoryPlan {
    /// 16 MiB at first and with each segment that is added, up to a tebibyte.
    pub fn new() -> MemoryPlan {
        MemoryPlan {
            initial_bytes: DEFAULT_SEGMENT_BYTES,
            increment_bytes: DEFAULT_SEGMENT_BYTES,
            limit_bytes: DEFAULT_LIMIT_BYTES,
            timeout: Duration::ZERO,
            wait: Duration::ZERO,
            near: Vec::new(),
            fabric: None,
        }
    }

    /// So many bytes at first, in whole pages.
    pub fn initial_bytes(mut self, initial_bytes: u64) -> MemoryPlan {
        self.initial_bytes = initial_bytes;
        self
    }

    /// So many with each segment that is added, in whole pages.
    pub fn increment_bytes(mut self, increment_bytes: u64) -> MemoryPlan {
        self.increment_bytes = increment_bytes;
        self
    }

    /// So many in all: it grows no further.
    pub fn limit_bytes(mut self, limit_bytes: u64) -> MemoryPlan {
        self.limit_bytes = limit_bytes;
        self
    }

    /// Each segment for so long; without this, the manager's default. [`Memory::renew`] gives them a later end.
    pub fn timeout(mut self, timeout: Duration) -> MemoryPlan {
        self.timeout = timeout;
        self
    }

    /// Waits at most so long for each segment, in the manager's queue; without this, not at all.
    pub fn wait(mut self, wait: Duration) -> MemoryPlan {
        self.wait = wait;
        self
    }

    /// Rather on these nodes, the first with room, than on others: those of whoever will access it.
    pub fn near<N: Into<String>>(mut self, nodes: impl IntoIterator<Item = N>) -> MemoryPlan {
        self.near = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// How segments are reached: shared memory on this machine and TCP elsewhere, if nothing is said.
    pub fn fabric(mut self, fabric: FabricChoice) -> MemoryPlan {
        self.fabric = Some(fabric);
        self
    }

    fn check(&self) -> Result<(), Error> {
        let sizes = [("initial", self.initial_bytes), ("incremental", self.increment_bytes)];
        for (what, bytes) in sizes {
            if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes) {
                let message = format!(
                    "{bytes} bytes of {what} size, a segment has {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}"
                );
                return Err(Error::new(Code::InvalidArgument, message));
            }
        }
        Ok(())
    }

    /// How large the segment at this offset is.
    fn segment_bytes(&self, offset: u64) -> u64 {
        let bytes = if offset == 0 { self.initial_bytes } else { self.increment_bytes };
        bytes.next_multiple_of(MIN_SEGMENT_BYTES)
    }

    fn request(&self, memory_bytes: u64) -> v1::LeaseRequest {
        v1::LeaseRequest {
            memory_bytes,
            timeout_ms: milliseconds(self.timeout),
            wait_ms: milliseconds(self.wait),
            near: self.near.clone(),
            ..v1::LeaseRequest::default()
        }
    }
}

/// A memory component; see the [module](self). Made by [`Invoker::memory`](crate::Invoker::memory).
///
/// Any number of threads may read and write at once. Who reads what another writes at the same time gets some of both:
/// what is in the component is bytes, and who writes where when is the program's to say, as in Scad.
pub struct Memory {
    manager: Arc<ManagerClient>,
    plan: MemoryPlan,
    terms: Terms,
    space: Space,
    /// Not 0: some segment is of another machine. Written under the lock of `segments`, before the capacity that has it.
    is_spread: AtomicU32,
    /// All below is there. Raised under the lock of `segments`, Release; pairs with the Acquire load of every access.
    capacity: AtomicU64,
    /// The end of what was written or resized to.
    len: AtomicU64,
    segments: Mutex<Vec<Arc<Segment>>>,
    keeper: Keeper,
}

impl Memory {
    pub(crate) fn new(manager: Arc<ManagerClient>, plan: MemoryPlan) -> Result<Memory, Error> {
        plan.check()?;
        let whole = plan.limit_bytes.max(1).checked_next_multiple_of(MIN_SEGMENT_BYTES);
        // The last segment may be larger than what the limit leaves for it.
        let reserved =
            whole.and_then(|whole| whole.checked_add(plan.increment_bytes.max(plan.initial_bytes)));
        let reserved = reserved.and_then(|bytes| bytes.checked_next_multiple_of(MIN_SEGMENT_BYTES));
        let space = Space::reserve(reserved.unwrap_or(u64::MAX))?;
        Ok(Memory {
            manager,
            terms: Terms::new(plan.fabric.clone(), None)?,
            plan,
            space,
            is_spread: AtomicU32::new(0),
            capacity: AtomicU64::new(0),
            len: AtomicU64::new(0),
            keeper: Keeper::start()?,
            segments: Mutex::default(),
        })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `invalid_argument` beyond the end, and why it has ended.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let end = self.end_of(offset, into.len() as u64)?;
        if end > self.len.load(Ordering::Acquire) {
            return Err(self.beyond(offset, into.len() as u64));
        }
        self.ensure(end)?;
        if self.is_spread.load(Ordering::Relaxed) != 0 {
            return self.read_pieces(offset, into);
        }
        // SAFETY: all below `end` is mapped, and stays so as long as this borrows the component.
        unsafe { self.space.read(offset, into) }.ok_or_else(|| self.beyond(offset, into.len() as u64))?;
        self.keeper.check()
    }

    /// Copies bytes in. What is beyond the end makes it grow.
    ///
    /// # Errors
    /// `memory_exceeded` beyond the limit; what the manager or an agent says when it cannot grow; why it has ended. Then
    /// nothing was written, or it is lost with all else.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let end = self.end_of(offset, from.len() as u64)?;
        self.ensure(end)?;
        if self.is_spread.load(Ordering::Relaxed) != 0 {
            self.write_pieces(offset, from)?;
        } else {
            // SAFETY: as in `read`.
            unsafe { self.space.write(offset, from) }
                .ok_or_else(|| self.beyond(offset, from.len() as u64))?;
        }
        self.len.fetch_max(end, Ordering::AcqRel);
        self.keeper.check()
    }

    /// Where bytes lie in this process, if they are within the length: to be read and written in place, with the care that
    /// memory of several threads, and of other processes, needs. They stay there as long as the component is not resized.
    ///
    /// # Errors
    /// As for [`Memory::read`]; `fabric_unavailable` for bytes of another machine.
    pub fn mapped(&self, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, Error> {
        let end = self.end_of(offset, len_bytes)?;
        if end > self.len.load(Ordering::Acquire) {
            return Err(self.beyond(offset, len_bytes));
        }
        self.ensure(end)?;
        self.keeper.check()?;
        if let Some(far) = self.between(offset, end).iter().find(|segment| segment.file().is_none()) {
            let message =
                format!("segment {} is on node {}, which is another machine", far.lease.id, far.lease.node);
            return Err(Error::new(Code::FabricUnavailable, message));
        }
        self.space.pointer(offset, len_bytes).ok_or_else(|| self.beyond(offset, len_bytes))
    }

    /// How many bytes there are to be read.
    pub fn len_bytes(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// How many bytes are leased.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// The leases, in the order of their bytes.
    pub fn segments(&self) -> Vec<v1::Lease> {
        lock(&self.segments).iter().map(|segment| segment.lease.clone()).collect()
    }

    /// Makes it so many bytes long. New bytes are 0; segments of which no byte is left are given back.
    ///
    /// # Errors
    /// As for [`Memory::write`].
    pub fn resize(&mut self, len_bytes: u64) -> Result<(), Error> {
        self.ensure(self.end_of(len_bytes, 0)?)?;
        self.keeper.check()?;
        let before = self.len.swap(len_bytes, Ordering::AcqRel);
        let mut segments = lock(&self.segments);
        while let Some(last) = segments.last().filter(|last| last.offset >= len_bytes) {
            if last.file().is_some() {
                // SAFETY: this is the only borrow of the component, so nobody accesses it.
                unsafe { self.space.unmap(last.offset, last.len_bytes) }?;
            }
            self.capacity.store(last.offset, Ordering::Release);
            self.keeper.release(last);
            self.keeper.ended(last);
            segments.pop();
        }
        let kept = segments.last().map_or(0, |last| last.offset + last.len_bytes).min(before);
        drop(segments);
        self.zero(len_bytes, kept)
    }

    /// Lets all segments end this long from now, as far as the manager allows.
    ///
    /// # Errors
    /// Why one cannot be renewed; the others are.
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

    /// Gives all of it back, and returns its leases, each with what it used. Its bytes are gone then.
    ///
    /// # Errors
    /// Why it had ended before.
    pub fn release(self) -> Result<Vec<v1::Lease>, Error> {
        self.keeper.check()?;
        let segments = std::mem::take(&mut *lock(&self.segments));
        segments.iter().for_each(|segment| self.keeper.release(segment));
        Ok(segments.iter().map(|segment| self.keeper.ended(segment)).collect())
    }

    #[inline]
    fn end_of(&self, offset: u64, len_bytes: u64) -> Result<u64, Error> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.plan.limit_bytes);
        end.ok_or_else(|| self.beyond_limit(offset, len_bytes))
    }

    #[inline]
    fn ensure(&self, end: u64) -> Result<(), Error> {
        if end <= self.capacity.load(Ordering::Acquire) { Ok(()) } else { self.grow(end) }
    }

    #[cold]
    fn grow(&self, end: u64) -> Result<(), Error> {
        let mut segments = lock(&self.segments);
        loop {
            self.keeper.check()?;
            let capacity = self.capacity.load(Ordering::Acquire);
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
            match segment.file() {
                // SAFETY: the range is beyond the capacity, where nobody accesses anything.
                Some(file) => unsafe { self.space.map(capacity, file, len_bytes) }?,
                None => self.is_spread.store(1, Ordering::Relaxed),
            }
            self.keeper.watch(segment.clone());
            segments.push(segment);
            self.capacity.store(capacity + len_bytes, Ordering::Release);
        }
    }

    /// The segments of a stretch.
    fn between(&self, offset: u64, end: u64) -> Vec<Arc<Segment>> {
        let segments = lock(&self.segments);
        let first = segments.partition_point(|segment| segment.offset + segment.len_bytes <= offset);
        segments[first..].iter().take_while(|segment| segment.offset < end).cloned().collect()
    }

    fn read_pieces(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let end = offset + into.len() as u64;
        for segment in self.between(offset, end) {
            let (start, part) = piece(&segment, offset, end);
            let into = &mut into[part];
            let read = match segment.file() {
                None => segment.get(start, into),
                // SAFETY: this segment is mapped, as long as this borrows the component.
                Some(_) => unsafe { self.space.read(start, into) }.ok_or_else(|| self.beyond(start, 0)),
            };
            read.map_err(|error| self.failed(&segment, error))?;
        }
        self.keeper.check()
    }

    fn write_pieces(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let end = offset + from.len() as u64;
        for segment in self.between(offset, end) {
            let (start, part) = piece(&segment, offset, end);
            let from = &from[part];
            let written = match segment.file() {
                None => segment.put(start, from),
                // SAFETY: as in `read_pieces`.
                Some(_) => unsafe { self.space.write(start, from) }.ok_or_else(|| self.beyond(start, 0)),
            };
            written.map_err(|error| self.failed(&segment, error))?;
        }
        Ok(())
    }

    /// Why an access of a segment failed. One that is out of reach has ended, and the component with it: what became of the
    /// access is not known.
    #[cold]
    fn failed(&self, segment: &Segment, error: Error) -> Error {
        if error.code == Code::AgentUnreachable {
            self.keeper.lose(segment, &error);
        }
        self.keeper.check().err().unwrap_or(error)
    }

    fn zero(&self, from: u64, to: u64) -> Result<(), Error> {
        let zeros = vec![0; to.saturating_sub(from).min(ZEROS_BYTES) as usize];
        let mut at = from;
        while at < to {
            let len = (to - at).min(ZEROS_BYTES);
            self.write_pieces(at, &zeros[..len as usize])?;
            at += len;
        }
        Ok(())
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

/// What of a stretch lies in a segment: where that begins, and which of its bytes they are.
fn piece(segment: &Segment, offset: u64, end: u64) -> (u64, Range<usize>) {
    let start = offset.max(segment.offset);
    let stop = end.min(segment.offset + segment.len_bytes);
    (start, (start - offset) as usize..(stop - offset) as usize)
}
