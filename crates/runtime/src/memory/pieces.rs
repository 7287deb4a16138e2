//! Implements the bytes of a memory component as one process reaches them: [`MemoryPiece`]s, one behind the other from 0 on.
//! Pieces of this machine are mapped, next to each other; pieces of others are read and written over connections, past
//! a cache. An access that spans pieces is split.
//!
//! Invariants:
//! - Every piece below the capacity is attached, and mapped if it is on this machine. A mapped range stays mapped, with
//!   or without memory behind it, until another piece replaces it; only `&mut` removes it.
//! - A process that may only read maps its pieces for reading: nothing here writes to them.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock};

use sublet_fabric::space::Space;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::graph::MemoryRights;
use sublet_proto::{Code, Error, to_usize};

use super::cache::{LineCache, MIN_LINES};
use super::pending::{PendingBlock, RemotePieces};
use super::piece::MemoryPiece;
use crate::lease::link::lock;

/// Whose bytes they are: knows whether the component is still there.
pub(crate) trait PieceOwner: Send + Sync {
    /// Whether it is, and otherwise why not. To be asked after an access.
    fn check(&self) -> Result<(), Error>;

    /// Returns the reason why an access of a piece of another machine failed.
    fn failed(&self, piece: &MemoryPiece, error: Error) -> Error;

    /// Reports that a request is outstanding that no thread waits for yet.
    fn attend(&self);
}

/// See the [module](self).
pub(crate) struct Pieces {
    space: Space,
    rights: MemoryRights,
    /// 1 if some piece is mapped. Written before the capacity that has it.
    has_mapped: AtomicU32,
    /// Set if some piece is on another machine. Made before the capacity that includes it.
    far: OnceLock<RemotePieces>,
    cache: CacheSize,
    /// All below is there. Raised under the lock of `all`, Release; pairs with the Acquire load of every access.
    capacity: AtomicU64,
    all: Mutex<Vec<Arc<MemoryPiece>>>,
    pub(super) owner: Arc<dyn PieceOwner>,
}

/// Size of the cache of remote memory, and of its lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheSize {
    pub(crate) bytes: u64,
    pub(crate) line_bytes: u64,
}

impl CacheSize {
    /// Size and line size as in Scad 4.2.2.
    pub(crate) const DEFAULT: CacheSize = CacheSize { bytes: 64 << 20, line_bytes: 4 << 10 };

    /// A cache of at most this number of bytes; none if that is too little for one.
    pub(crate) fn within(bytes: u64) -> CacheSize {
        let is_enough = bytes / CacheSize::DEFAULT.line_bytes >= MIN_LINES;
        let bytes = if is_enough { bytes.min(CacheSize::DEFAULT.bytes) } else { 0 };
        CacheSize { bytes, ..CacheSize::DEFAULT }
    }

    fn make(self) -> Option<LineCache<PendingBlock>> {
        (self.bytes > 0).then(|| LineCache::new(self.bytes, self.line_bytes))
    }
}

impl Pieces {
    /// Reserves address space for this number of bytes, without pieces.
    pub(crate) fn new(
        reserved_bytes: u64,
        rights: MemoryRights,
        cache: CacheSize,
        owner: Arc<dyn PieceOwner>,
    ) -> Result<Pieces, Error> {
        Ok(Pieces {
            space: Space::reserve(reserved_bytes)?,
            rights,
            has_mapped: AtomicU32::new(0),
            far: OnceLock::new(),
            cache,
            capacity: AtomicU64::new(0),
            all: Mutex::default(),
            owner,
        })
    }

    /// Number of bytes that are attached.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// Adds the next one.
    ///
    /// # Errors
    /// `protocol` if it does not begin where the last one ends.
    pub(crate) fn add(&self, piece: Arc<MemoryPiece>) -> Result<(), Error> {
        let mut all = lock(&self.all);
        let capacity = self.capacity();
        if piece.offset != capacity {
            let message = format!("memory at {} where {capacity} bytes are", piece.offset);
            return Err(Error::new(Code::Protocol, message));
        }
        match piece.file() {
            Some(file) => {
                // SAFETY: the range is beyond the capacity, where no thread accesses memory of the component; with the
                // right to read alone `put_to` and `write` are not called.
                unsafe { self.space.map(piece.offset, file, piece.len_bytes, self.rights) }?;
                self.has_mapped.store(1, Ordering::Relaxed);
            }
            None => drop(self.far.get_or_init(|| RemotePieces::new(self.cache.make()))),
        }
        let end = piece.end();
        debug_assert!(
            all.last().is_none_or(|last| last.end() == piece.offset),
            "a hole before {}",
            piece.offset
        );
        all.push(piece);
        self.capacity.store(end, Ordering::Release);
        Ok(())
    }

    /// Takes the last one away, if it begins at this byte or behind it.
    pub(super) fn remove_last(&mut self, from: u64) -> Result<Option<Arc<MemoryPiece>>, Error> {
        let mut all = lock(&self.all);
        let Some(last) = all.last().filter(|last| last.offset >= from) else { return Ok(None) };
        if last.file().is_some() {
            // SAFETY: this is the only borrow, so no other thread accesses the range.
            unsafe { self.space.unmap(last.offset, last.len_bytes) }?;
        }
        debug_assert_eq!(last.end(), self.capacity(), "the last piece does not end at the capacity");
        self.capacity.store(last.offset, Ordering::Release);
        Ok(all.pop())
    }

    /// Forgets the pieces that begin at this byte or behind it. Their mapped ranges belong to no component from then
    /// on.
    pub(crate) fn forget(&self, from: u64) {
        let mut all = lock(&self.all);
        while let Some(last) = all.pop_if(|last| last.offset >= from) {
            self.capacity.store(last.offset, Ordering::Release);
        }
    }

    /// Copies bytes out, which must be below the capacity. The caller [checks](PieceOwner::check) afterwards that they were
    /// the component's.
    #[inline]
    pub(crate) fn read(&self, offset: u64, into: SharedBytesMut<'_>) -> Result<(), Error> {
        if let Some(far) = self.far.get() {
            return far.read(self, offset, into);
        }
        let len_bytes = into.len() as u64;
        // SAFETY: all below the capacity is mapped, as long as this is borrowed.
        unsafe { self.space.read(self.there(offset, len_bytes)?, into) }
            .ok_or_else(|| self.beyond(offset, len_bytes))
    }

    /// Copies bytes in, up to the capacity. Bytes for other machines are sent when they are [synced](Pieces::sync), or
    /// before. Requires the right to write.
    #[inline]
    pub(crate) fn write(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        if let Some(far) = self.far.get() {
            return far.write(self, offset, from);
        }
        let len_bytes = from.len() as u64;
        // SAFETY: as in `read`.
        unsafe { self.space.write(self.there(offset, len_bytes)?, from) }
            .ok_or_else(|| self.beyond(offset, len_bytes))
    }

    /// Writes like [`Pieces::write`], without waiting for other machines where there is no cache.
    pub(crate) fn write_async(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        match self.far.get() {
            Some(far) => far.write_async(self, offset, from),
            None => self.put(offset, from),
        }
    }

    /// Makes all writes visible to other processes, and discards the cached lines.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.far.get().map_or(Ok(()), |far| far.sync(self))
    }

    /// Asks for bytes that will be read soon, that are there.
    pub(crate) fn prefetch(&self, offset: u64, len_bytes: u64) {
        if let Some(far) = self.far.get() {
            far.prefetch(self, offset, len_bytes);
        }
    }

    /// The address of bytes in this process.
    ///
    /// # Errors
    /// `fabric_unavailable` for bytes of another machine.
    pub(crate) fn mapped(&self, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, Error> {
        self.each_piece((offset, offset + len_bytes), |piece, _, _| piece.mapped().map(drop))?;
        self.space.pointer(offset, len_bytes).ok_or_else(|| self.beyond(offset, len_bytes))
    }

    /// The pieces from this offset on.
    pub(crate) fn from(&self, offset: u64) -> Vec<Arc<MemoryPiece>> {
        lock(&self.all).iter().filter(|piece| piece.offset >= offset).cloned().collect()
    }

    /// Unblocks every thread that waits for other machines.
    pub(super) fn disconnect(&self, reason: &str) {
        lock(&self.all).iter().for_each(|piece| piece.disconnect(reason));
    }

    #[inline]
    pub(super) fn has_mapped(&self) -> bool {
        self.has_mapped.load(Ordering::Relaxed) != 0
    }

    pub(super) fn far(&self) -> Option<&RemotePieces> {
        self.far.get()
    }

    /// Copies bytes to where they belong, past any cache. On other machines they are when they are settled.
    pub(crate) fn put(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        let end = offset + from.len() as u64;
        self.each_piece((offset, end), |piece, at, part| self.put_to(piece, at, from.part(part)))
    }

    /// Waits until all that was put to the pieces of a stretch is there.
    pub(super) fn settle(&self, offset: u64, end: u64) -> Result<(), Error> {
        self.each_piece((offset, end), |piece, _, _| {
            if piece.file().is_some() {
                return Ok(());
            }
            piece.settle().map_err(|error| self.owner.failed(piece, error))
        })
    }

    pub(super) fn get_of(&self, piece: &MemoryPiece, at: u64, into: SharedBytesMut<'_>) -> Result<(), Error> {
        let len_bytes = into.len() as u64;
        if piece.file().is_none() {
            return piece.get(at, into).map_err(|error| self.owner.failed(piece, error));
        }
        // SAFETY: this piece is mapped, as long as this is borrowed.
        unsafe { self.space.read(at, into) }.ok_or_else(|| self.beyond(at, len_bytes))
    }

    pub(super) fn put_to(&self, piece: &MemoryPiece, at: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        if piece.file().is_none() {
            return piece.put(at, from).map_err(|error| self.owner.failed(piece, error));
        }
        // SAFETY: as in `get_of`.
        unsafe { self.space.write(at, from) }.ok_or_else(|| self.beyond(at, from.len() as u64))
    }

    /// The piece in which a byte below the capacity lies.
    pub(crate) fn piece_at(&self, offset: u64) -> Result<Arc<MemoryPiece>, Error> {
        let all = lock(&self.all);
        let index = all.partition_point(|piece| piece.end() <= offset);
        all.get(index).cloned().ok_or_else(|| self.beyond(offset, 1))
    }

    /// Does something to each piece of a stretch below the capacity: the piece, where it begins, which bytes it has.
    pub(super) fn each_piece(
        &self,
        (offset, end): (u64, u64),
        mut what: impl FnMut(&Arc<MemoryPiece>, u64, Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut at = offset;
        while at < end {
            let piece = self.piece_at(at)?;
            let until = end.min(piece.end());
            what(&piece, at, to_usize(at - offset)..to_usize(until - offset))?;
            at = until;
        }
        Ok(())
    }

    /// The offset, if all of the stretch is there.
    #[inline]
    fn there(&self, offset: u64, len_bytes: u64) -> Result<u64, Error> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.capacity());
        end.map(|_| offset).ok_or_else(|| self.beyond(offset, len_bytes))
    }

    #[cold]
    fn beyond(&self, offset: u64, len_bytes: u64) -> Error {
        let is = self.capacity();
        let message =
            format!("{len_bytes} bytes at {offset} exceed a memory component with a capacity of {is}");
        Error::new(Code::InvalidArgument, message)
    }
}

#[cfg(test)]
mod tests {
    use sublet_fabric::region::{PAGE_BYTES, create_file};

    use super::super::piece::PieceRange;
    use super::*;

    struct Nobody;

    impl PieceOwner for Nobody {
        fn check(&self) -> Result<(), Error> {
            Ok(())
        }

        fn failed(&self, _: &MemoryPiece, error: Error) -> Error {
            error
        }

        fn attend(&self) {}
    }

    #[test]
    fn refuses_access_beyond_the_last_piece() {
        let pieces =
            Pieces::new(1 << 20, MemoryRights::Write, CacheSize::within(0), Arc::new(Nobody)).unwrap();
        let at = PieceRange { segment: "s".into(), node: "n".into(), offset: 0, len_bytes: PAGE_BYTES };
        pieces.add(Arc::new(MemoryPiece::here(at, create_file("piece", PAGE_BYTES).unwrap()))).unwrap();
        let mut bytes = [0; 2];
        pieces.write(PAGE_BYTES - 2, (&[1, 2]).into()).unwrap();
        pieces.read(PAGE_BYTES - 2, (&mut bytes).into()).unwrap();
        assert_eq!(bytes, [1, 2]);
        for offset in [PAGE_BYTES - 1, PAGE_BYTES, 1 << 20, u64::MAX] {
            let refused = [
                pieces.read(offset, (&mut bytes).into()).unwrap_err(),
                pieces.write(offset, (&[3, 4]).into()).unwrap_err(),
            ];
            assert!(refused.iter().all(|error| error.code == Code::InvalidArgument), "{offset}: {refused:?}");
        }
        pieces.read(PAGE_BYTES - 2, (&mut bytes).into()).unwrap();
        assert_eq!(bytes, [1, 2]);
    }

    #[test]
    fn little_memory_gives_a_small_cache_or_none() {
        let of = |bytes| CacheSize::within(bytes).bytes;
        assert_eq!((of(0), of(MIN_LINES * 4096 - 1), of(MIN_LINES * 4096)), (0, 0, MIN_LINES * 4096));
        assert_eq!((of(2 << 20), of(1 << 40)), (2 << 20, CacheSize::DEFAULT.bytes));
        assert!(CacheSize::within(0).make().is_none() && CacheSize::within(1 << 20).make().is_some());
    }
}
