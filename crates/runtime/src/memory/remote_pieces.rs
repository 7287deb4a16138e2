//! Accesses pieces of memory components on other machines.

use std::sync::Arc;

use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::Error;

use super::cache::BackingStore;
use super::pending::{PendingBlock, PendingRead, RemotePieces};
use super::piece::MemoryPiece;
use super::pieces::{PieceOwner, Pieces};

/// All bytes of a component, accessed past the cache.
struct UncachedBytes<'a>(&'a Pieces);

impl RemotePieces {
    #[inline]
    pub(super) fn read(&self, pieces: &Pieces, offset: u64, into: SharedBytesMut<'_>) -> Result<(), Error> {
        match &self.cache {
            Some(cache) if !pieces.has_mapped() => cache.read(&UncachedBytes(pieces), offset, into),
            _ => self.read_pieces(pieces, offset, into),
        }
    }

    fn read_pieces(&self, pieces: &Pieces, offset: u64, mut into: SharedBytesMut<'_>) -> Result<(), Error> {
        pieces.each_piece((offset, offset + into.len() as u64), |piece, at, part| match &self.cache {
            Some(cache) if piece.file().is_none() => cache.read(&UncachedBytes(pieces), at, into.part(part)),
            _ => pieces.get_of(piece, at, into.part(part)),
        })
    }

    /// Writes bytes. Without a cache, they have arrived when this returns.
    pub(super) fn write(&self, pieces: &Pieces, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        self.write_async(pieces, offset, from)?;
        if self.cache.is_none() { pieces.settle(offset, offset + from.len() as u64) } else { Ok(()) }
    }

    pub(super) fn write_async(
        &self,
        pieces: &Pieces,
        offset: u64,
        from: SharedBytes<'_>,
    ) -> Result<(), Error> {
        pieces.each_piece((offset, offset + from.len() as u64), |piece, at, part| match &self.cache {
            Some(cache) if piece.file().is_none() => cache.write(&UncachedBytes(pieces), at, from.part(part)),
            _ => pieces.put_to(piece, at, from.part(part)),
        })
    }

    pub(super) fn prefetch(&self, pieces: &Pieces, offset: u64, len_bytes: u64) {
        if let Some(cache) = &self.cache {
            cache.prefetch(&UncachedBytes(pieces), offset, len_bytes);
        }
    }

    pub(super) fn sync(&self, pieces: &Pieces) -> Result<(), Error> {
        if let Some(cache) = &self.cache {
            cache.sync(&UncachedBytes(pieces))?;
        }
        pieces.settle(0, pieces.capacity())
    }

    /// Sends the written bytes of a range, so that later reads return them.
    fn write_back(&self, pieces: &Pieces, offset: u64, end: u64) -> Result<(), Error> {
        let Some(cache) = &self.cache else { return Ok(()) };
        cache.write_back(&UncachedBytes(pieces), offset, end - offset)
    }
}

impl Pieces {
    /// Requests bytes of one piece of another machine. `None` if the connection cannot take the request now.
    ///
    /// # Safety
    /// As for [`Memory::read_async_raw`](super::Memory::read_async_raw).
    unsafe fn ask_of(
        &self,
        piece: &MemoryPiece,
        at: u64,
        into: SharedBytesMut<'_>,
    ) -> Result<Option<PendingRead>, Error> {
        // SAFETY: as the caller vouches.
        let asked = unsafe { piece.begin_get(at, into) };
        if let Ok(Some(asking)) = &asked
            && asking.is_first()
        {
            self.owner.attend();
        }
        asked.map_err(|error| self.owner.failed(piece, error))
    }
}

impl BackingStore for UncachedBytes<'_> {
    type Asked = PendingBlock;

    fn end(&self) -> u64 {
        self.0.capacity()
    }

    fn get(&self, offset: u64, mut into: SharedBytesMut<'_>) -> Result<(), Error> {
        let end = offset + into.len() as u64;
        self.0.each_piece((offset, end), |piece, at, part| self.0.get_of(piece, at, into.part(part)))
    }

    fn put(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        self.0.put(offset, from)
    }

    fn ask(&self, offset: u64, len_bytes: usize) -> Option<PendingBlock> {
        let piece = self.0.piece_at(offset).ok()?;
        if piece.file().is_some() || offset + len_bytes as u64 > piece.end() {
            return None;
        }
        let mut bytes = vec![0; len_bytes];
        // SAFETY: they stay where they are, with the asking, which is dropped first.
        let asked = unsafe { self.0.ask_of(&piece, offset, (&mut bytes).into()) };
        // The access that needs the bytes later reports the error.
        Some(PendingBlock { asking: asked.ok()??, bytes })
    }
}

/// Bytes that are being copied out of a memory component. Waits for them when it is dropped.
pub struct Reading {
    // Declared before the bytes: it is dropped first, and waits until no write to the bytes is outstanding.
    pending: RawReading,
    bytes: Vec<u8>,
}

/// A [`Reading`] into memory of the caller's. Waits for the bytes when it is dropped.
pub struct RawReading {
    /// Outstanding requests, each with its piece.
    asked: Vec<(Arc<MemoryPiece>, PendingRead)>,
    owner: Arc<dyn PieceOwner>,
}

impl Reading {
    /// Begins to read bytes, up to the vector's length.
    pub(crate) fn begin(pieces: &Pieces, offset: u64, mut bytes: Vec<u8>) -> Result<Reading, Error> {
        // SAFETY: they stay where they are, with what waits for them, which is dropped first.
        let pending = unsafe { RawReading::begin(pieces, offset, (&mut bytes).into()) }?;
        Ok(Reading { pending, bytes })
    }

    /// Waits for the bytes, and returns the vector with them.
    ///
    /// # Errors
    /// The reason why the component has ended.
    pub fn wait(self) -> Result<Vec<u8>, Error> {
        let Reading { pending, bytes } = self;
        pending.wait().map(|()| bytes)
    }
}

impl RawReading {
    /// # Safety
    /// As for [`Memory::read_async_raw`](super::Memory::read_async_raw).
    pub(crate) unsafe fn begin(
        pieces: &Pieces,
        offset: u64,
        mut into: SharedBytesMut<'_>,
    ) -> Result<RawReading, Error> {
        let end = offset + into.len() as u64;
        if let Some(far) = pieces.far() {
            far.write_back(pieces, offset, end)?;
        }
        let mut asked = Vec::new();
        pieces.each_piece((offset, end), |piece, at, part| {
            let asking = match piece.file() {
                // SAFETY: as the caller vouches for all of the bytes, and so for this part of them.
                None => unsafe { pieces.ask_of(piece, at, into.part(part.clone())) }?,
                Some(_) => None,
            };
            match asking {
                Some(asking) => asked.push((piece.clone(), asking)),
                None => pieces.get_of(piece, at, into.part(part))?,
            }
            Ok(())
        })?;
        pieces.owner.check()?;
        Ok(RawReading { asked, owner: pieces.owner.clone() })
    }

    /// Waits for them.
    ///
    /// # Errors
    /// The reason why the component has ended.
    pub fn wait(self) -> Result<(), Error> {
        for (piece, asking) in self.asked {
            asking.wait().map_err(|error| self.owner.failed(&piece, error))?;
        }
        self.owner.check()
    }
}
