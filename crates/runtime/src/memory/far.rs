//! Access to what is on other machines.

use std::ptr::NonNull;
use std::sync::Arc;

use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_fabric::tcp::Getting;
use sublet_proto::Error;

use super::Memory;
use super::cache::{Asked, Cache, Source};
use super::keeper::Keeper;
use super::segment::Segment;

/// What a component with segments on other machines has more than another.
pub(super) struct Far {
    cache: Option<Cache<AskedBlock>>,
}

/// Bytes of a segment that were asked for. Dropped, it waits for them.
pub(super) struct Asking {
    getting: Option<Getting>,
    /// How many there are of the segment.
    asked: Arc<AtomicU32>,
}

/// The same of a block, for a cache.
pub(super) struct AskedBlock {
    // Before the bytes, which nobody writes to when it is gone.
    asking: Asking,
    bytes: Vec<u8>,
}

/// All of a component, with nothing of it kept here.
struct Elsewhere<'a>(&'a Memory);

impl Far {
    pub(super) fn new(cache: Option<Cache<AskedBlock>>) -> Far {
        Far { cache }
    }

    #[inline]
    pub(super) fn read(&self, memory: &Memory, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        match &self.cache {
            Some(cache) if !memory.has_mapped() => cache.read(&Elsewhere(memory), offset, into)?,
            _ => self.read_pieces(memory, offset, into)?,
        }
        memory.keeper.check()
    }

    fn read_pieces(&self, memory: &Memory, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        memory.each_piece((offset, offset + into.len() as u64), |segment, at, part| match &self.cache {
            Some(cache) if segment.file().is_none() => cache.read(&Elsewhere(memory), at, &mut into[part]),
            _ => memory.get_of(segment, at, &mut into[part]),
        })
    }

    /// Without a cache it is there when this returns.
    pub(super) fn write(&self, memory: &Memory, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.write_async(memory, offset, from)?;
        if self.cache.is_none() { memory.settle(offset, offset + from.len() as u64) } else { Ok(()) }
    }

    pub(super) fn write_async(&self, memory: &Memory, offset: u64, from: &[u8]) -> Result<(), Error> {
        memory.each_piece((offset, offset + from.len() as u64), |segment, at, part| match &self.cache {
            Some(cache) if segment.file().is_none() => cache.write(&Elsewhere(memory), at, &from[part]),
            _ => memory.put_to(segment, at, &from[part]),
        })
    }

    pub(super) fn prefetch(&self, memory: &Memory, offset: u64, len_bytes: u64) {
        if let Some(cache) = &self.cache {
            cache.prefetch(&Elsewhere(memory), offset, len_bytes);
        }
    }

    pub(super) fn sync(&self, memory: &Memory) -> Result<(), Error> {
        if let Some(cache) = &self.cache {
            cache.sync(&Elsewhere(memory))?;
        }
        memory.settle(0, memory.capacity_bytes())
    }

    /// What was written to a stretch is sent, so that what is asked for afterwards has it.
    fn write_back(&self, memory: &Memory, offset: u64, end: u64) -> Result<(), Error> {
        let Some(cache) = &self.cache else { return Ok(()) };
        cache.write_back(&Elsewhere(memory), offset, end - offset)
    }
}

impl Memory {
    /// Copies bytes to where they belong, past any cache. On other machines they are when they are settled.
    pub(super) fn put(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let end = offset + from.len() as u64;
        self.each_piece((offset, end), |segment, at, part| self.put_to(segment, at, &from[part]))
    }

    /// Waits until all that was put to the segments of a stretch is there.
    pub(super) fn settle(&self, offset: u64, end: u64) -> Result<(), Error> {
        self.each_piece((offset, end), |segment, _, _| {
            if segment.file().is_some() {
                return Ok(());
            }
            segment.settle().map_err(|error| self.keeper.failed(&segment.lease.id, error))
        })
    }

    fn get_of(&self, segment: &Segment, at: u64, into: &mut [u8]) -> Result<(), Error> {
        if segment.file().is_none() {
            return segment.get(at, into).map_err(|error| self.keeper.failed(&segment.lease.id, error));
        }
        // SAFETY: this segment is mapped, as long as this borrows the component.
        unsafe { self.space.read(at, into) }.ok_or_else(|| self.beyond(at, into.len() as u64))
    }

    fn put_to(&self, segment: &Segment, at: u64, from: &[u8]) -> Result<(), Error> {
        if segment.file().is_none() {
            return segment.put(at, from).map_err(|error| self.keeper.failed(&segment.lease.id, error));
        }
        // SAFETY: as in `get_of`.
        unsafe { self.space.write(at, from) }.ok_or_else(|| self.beyond(at, from.len() as u64))
    }

    /// Asks for bytes of one segment of another machine. None: not now.
    ///
    /// # Safety
    /// As for [`Memory::read_async_raw`].
    unsafe fn ask_of(
        &self,
        segment: &Segment,
        at: u64,
        (into, len_bytes): (NonNull<u8>, u64),
    ) -> Result<Option<Asking>, Error> {
        // SAFETY: as the caller vouches.
        let asked = unsafe { segment.begin_get(at, into, len_bytes) };
        if let Ok(Some(asking)) = &asked
            && asking.is_first()
        {
            self.keeper.attend();
        }
        asked.map_err(|error| self.keeper.failed(&segment.lease.id, error))
    }
}

impl Source for Elsewhere<'_> {
    type Asked = AskedBlock;

    fn end(&self) -> u64 {
        self.0.capacity_bytes()
    }

    fn get(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let end = offset + into.len() as u64;
        self.0.each_piece((offset, end), |segment, at, part| self.0.get_of(segment, at, &mut into[part]))
    }

    fn put(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.0.put(offset, from)
    }

    fn ask(&self, offset: u64, len_bytes: usize) -> Option<AskedBlock> {
        let segment = self.0.segment_at(offset).ok()?;
        if segment.file().is_some() || offset + len_bytes as u64 > segment.offset + segment.len_bytes {
            return None;
        }
        let mut bytes = vec![0; len_bytes];
        let into = (NonNull::from(&mut *bytes).cast(), len_bytes as u64);
        // SAFETY: they stay where they are, with the asking, which is dropped first.
        let asked = unsafe { self.0.ask_of(&segment, offset, into) };
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
            Some(getting) => Ok(getting.wait()?),
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
    /// What is on its way, each with the lease of its segment.
    asked: Vec<(String, Asking)>,
    keeper: Keeper,
}

impl Reading {
    /// As many bytes as `bytes` has.
    pub(super) fn begin(memory: &Memory, offset: u64, mut bytes: Vec<u8>) -> Result<Reading, Error> {
        let into = (NonNull::from(&mut *bytes).cast(), bytes.len() as u64);
        // SAFETY: they stay where they are, with what waits for them, which is dropped first.
        let pending = unsafe { RawReading::begin(memory, offset, into) }?;
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
    /// As for [`Memory::read_async_raw`].
    pub(super) unsafe fn begin(
        memory: &Memory,
        offset: u64,
        (into, len_bytes): (NonNull<u8>, u64),
    ) -> Result<RawReading, Error> {
        let end = offset + len_bytes;
        if let Some(far) = memory.far.get() {
            far.write_back(memory, offset, end)?;
        }
        let mut asked = Vec::new();
        memory.each_piece((offset, end), |segment, at, part| {
            // SAFETY: the place has all of the bytes, and so this part of them, which nobody else writes to.
            let asking = unsafe {
                let into = into.add(part.start);
                match segment.file() {
                    None => memory.ask_of(segment, at, (into, part.len() as u64))?,
                    Some(_) => None,
                }
            };
            match asking {
                Some(asking) => asked.push((segment.lease.id.clone(), asking)),
                None => {
                    // SAFETY: as above.
                    let mut into = unsafe { NonNull::slice_from_raw_parts(into.add(part.start), part.len()) };
                    // SAFETY: as above; until this returns it is the caller's to lend.
                    memory.get_of(segment, at, unsafe { into.as_mut() })?;
                }
            }
            Ok(())
        })?;
        memory.keeper.check()?;
        Ok(RawReading { asked, keeper: memory.keeper.clone() })
    }

    /// Waits for them.
    ///
    /// # Errors
    /// Why the component has ended.
    pub fn wait(self) -> Result<(), Error> {
        for (lease, asking) in self.asked {
            asking.wait().map_err(|error| self.keeper.failed(&lease, error))?;
        }
        self.keeper.check()
    }
}
