//! Access to what is on other machines.

use std::sync::Arc;

use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_fabric::tcp::Getting;
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::Error;

use super::cache::{Asked, Cache, Source};
use super::piece::{Piece, unreached};
use super::pieces::{Owner, Pieces};

/// What a component with pieces on other machines has more than another.
pub(super) struct Far {
    cache: Option<Cache<AskedBlock>>,
}

/// Bytes of a piece that were asked for. Dropped, it waits for them.
pub(super) struct Asking {
    getting: Option<Getting>,
    /// How many there are of the piece.
    asked: Arc<AtomicU32>,
}

/// The same of a block, for a cache.
pub(super) struct AskedBlock {
    // Before the bytes, which nobody writes to when it is gone.
    asking: Asking,
    bytes: Vec<u8>,
}

/// All of a component, with nothing of it kept here.
struct Elsewhere<'a>(&'a Pieces);

impl Far {
    pub(super) fn new(cache: Option<Cache<AskedBlock>>) -> Far {
        Far { cache }
    }

    #[inline]
    pub(super) fn read(&self, pieces: &Pieces, offset: u64, into: SharedBytesMut<'_>) -> Result<(), Error> {
        match &self.cache {
            Some(cache) if !pieces.has_mapped() => cache.read(&Elsewhere(pieces), offset, into),
            _ => self.read_pieces(pieces, offset, into),
        }
    }

    fn read_pieces(&self, pieces: &Pieces, offset: u64, mut into: SharedBytesMut<'_>) -> Result<(), Error> {
        pieces.each_piece((offset, offset + into.len() as u64), |piece, at, part| match &self.cache {
            Some(cache) if piece.file().is_none() => cache.read(&Elsewhere(pieces), at, into.part(part)),
            _ => pieces.get_of(piece, at, into.part(part)),
        })
    }

    /// Without a cache it is there when this returns.
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
            Some(cache) if piece.file().is_none() => cache.write(&Elsewhere(pieces), at, from.part(part)),
            _ => pieces.put_to(piece, at, from.part(part)),
        })
    }

    pub(super) fn prefetch(&self, pieces: &Pieces, offset: u64, len_bytes: u64) {
        if let Some(cache) = &self.cache {
            cache.prefetch(&Elsewhere(pieces), offset, len_bytes);
        }
    }

    pub(super) fn sync(&self, pieces: &Pieces) -> Result<(), Error> {
        if let Some(cache) = &self.cache {
            cache.sync(&Elsewhere(pieces))?;
        }
        pieces.settle(0, pieces.capacity())
    }

    /// What was written to a stretch is sent, so that what is asked for afterwards has it.
    fn write_back(&self, pieces: &Pieces, offset: u64, end: u64) -> Result<(), Error> {
        let Some(cache) = &self.cache else { return Ok(()) };
        cache.write_back(&Elsewhere(pieces), offset, end - offset)
    }
}

impl Pieces {
    /// Asks for bytes of one piece of another machine. None: not now.
    ///
    /// # Safety
    /// As for [`Memory::read_async_raw`](super::Memory::read_async_raw).
    unsafe fn ask_of(
        &self,
        piece: &Piece,
        at: u64,
        into: SharedBytesMut<'_>,
    ) -> Result<Option<Asking>, Error> {
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

impl Source for Elsewhere<'_> {
    type Asked = AskedBlock;

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

    fn ask(&self, offset: u64, len_bytes: usize) -> Option<AskedBlock> {
        let piece = self.0.piece_at(offset).ok()?;
        if piece.file().is_some() || offset + len_bytes as u64 > piece.end() {
            return None;
        }
        let mut bytes = vec![0; len_bytes];
        // SAFETY: they stay where they are, with the asking, which is dropped first.
        let asked = unsafe { self.0.ask_of(&piece, offset, (&mut bytes).into()) };
        // What fails is told to whoever needs it.
        Some(AskedBlock { asking: asked.ok()??, bytes })
    }
}

impl Asking {
    pub(super) fn new(getting: Getting, asked: Arc<AtomicU32>) -> Asking {
        asked.fetch_add(1, Ordering::AcqRel);
        Asking { getting: Some(getting), asked }
    }

    fn is_first(&self) -> bool {
        self.asked.load(Ordering::Acquire) == 1
    }

    fn wait(mut self) -> Result<(), Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        match self.getting.take() {
            Some(getting) => getting.wait().map_err(unreached),
            None => Ok(()),
        }
    }
}

impl Asked for AskedBlock {
    fn wait(self) -> Result<Vec<u8>, Error> {
        let AskedBlock { asking, bytes } = self;
        asking.wait().map(|()| bytes)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.finish();
        self.asked.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bytes that are being copied out of a memory component. Dropped, it waits for them.
pub struct Reading {
    // Before the bytes, which nobody writes to when it is gone.
    pending: RawReading,
    bytes: Vec<u8>,
}

/// As [`Reading`], into memory of the caller's. Dropped, it waits for them.
pub struct RawReading {
    /// What is on its way, each with its piece.
    asked: Vec<(Arc<Piece>, Asking)>,
    owner: Arc<dyn Owner>,
}

impl Reading {
    /// As many bytes as `bytes` has.
    pub(crate) fn begin(pieces: &Pieces, offset: u64, mut bytes: Vec<u8>) -> Result<Reading, Error> {
        // SAFETY: they stay where they are, with what waits for them, which is dropped first.
        let pending = unsafe { RawReading::begin(pieces, offset, (&mut bytes).into()) }?;
        Ok(Reading { pending, bytes })
    }

    /// Waits for them: the vector that was given, with the bytes.
    ///
    /// # Errors
    /// Why the component has ended.
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
    /// Why the component has ended.
    pub fn wait(self) -> Result<(), Error> {
        for (piece, asking) in self.asked {
            asking.wait().map_err(|error| self.owner.failed(&piece, error))?;
        }
        self.owner.check()
    }
}
