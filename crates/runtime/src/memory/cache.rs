//! Caches memory of other machines in lines, written back on eviction and by `sync`.
//!
//! Lines are grouped in sets of [`WAYS`]; eviction removes approximately the least recently used line of a set. Sixteen
//! lines that follow each other are a block, the unit of prefetching. Blocks are spread over [`SHARDS`] with a lock
//! each: a thread that waits for the network blocks only threads that need the same shard.
//!
//! Invariants:
//! - A line that is present in part holds the bytes that were written to it, as one range. A write that does not adjoin
//!   the range first makes it be written back. Thus only written bytes are written back, and writes by others to other
//!   bytes of the line are not lost.
//! - Bytes that are requested after they were written back arrive as they were written: a [`BackingStore`] keeps the order of
//!   its requests. Blocks that were requested before a write to them are received before it.

use std::ops::Range;

use sublet_fabric::sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock};
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::{Error, to_usize};

const WAYS: usize = 8;
const SHARDS: usize = 16;
/// Lines of a block.
const BLOCK_LINES: u64 = 16;
/// Number of blocks that are prefetched for a sequential reader.
const BLOCKS_AHEAD: u64 = 8;
/// Largest number of blocks of one shard that are requested and have not arrived.
const MAX_ASKED: usize = 4;
/// Number of sequential readers that are distinguished.
const STREAMS: usize = 8;
/// The fewest lines that a cache has.
pub(super) const MIN_LINES: u64 = (SHARDS * WAYS) as u64;

/// The backing store of the lines. Requests of one thread are executed in their order.
pub(super) trait BackingStore {
    type Asked: PendingBytes;

    /// End of the backing store, in bytes.
    fn end(&self) -> u64;
    fn get(&self, offset: u64, into: SharedBytesMut<'_>) -> Result<(), Error>;
    /// Writes bytes, without waiting until they have arrived: the source reports that separately.
    fn put(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error>;
    /// Requests bytes without waiting. `None` if the source cannot take the request now.
    fn ask(&self, offset: u64, len_bytes: usize) -> Option<Self::Asked>;
}

/// Bytes that were asked for.
pub(super) trait PendingBytes {
    fn wait(self) -> Result<Vec<u8>, Error>;
}

/// See the [module](self).
pub(super) struct LineCache<A> {
    line_bytes: u64,
    /// Binary logarithm of `line_bytes`.
    line_bits: u32,
    shards: Box<[Mutex<Shard<A>>]>,
    streams: MissStreams,
}

struct Shard<A> {
    line_bytes: usize,
    line_bits: u32,
    /// Number of the line in each slot of the cache, plus 1; 0 if the slot is empty.
    tags: Vec<u64>,
    lines: Vec<CacheLine>,
    data: Vec<u8>,
    /// Slot of each set at which the search for an unused line begins.
    hands: Vec<u8>,
    asked: Vec<(u64, A)>,
}

#[derive(Clone, Default)]
struct CacheLine {
    is_whole: bool,
    is_used: bool,
    /// The range of bytes that was written and not written back.
    dirty: Range<usize>,
}

/// The ends of the latest misses, by which sequential readers are recognized.
struct MissStreams {
    ends: [AtomicU64; STREAMS],
    next: AtomicU64,
}

impl<A: PendingBytes> LineCache<A> {
    /// `line_bytes` is a power of two, and there are [`MIN_LINES`] at least.
    pub(super) fn new(cache_bytes: u64, line_bytes: u64) -> LineCache<A> {
        debug_assert!(line_bytes.is_power_of_two(), "lines of {line_bytes} bytes");
        let sets = (cache_bytes / line_bytes / MIN_LINES).max(1) as usize;
        let line_bits = line_bytes.trailing_zeros();
        let shard = || Shard {
            line_bytes: to_usize(line_bytes),
            line_bits,
            tags: vec![0; sets * WAYS],
            lines: vec![CacheLine::default(); sets * WAYS],
            data: vec![0; sets * WAYS * to_usize(line_bytes)],
            hands: vec![0; sets],
            asked: Vec::new(),
        };
        let shards = (0..SHARDS).map(|_| Mutex::new(shard())).collect();
        LineCache { line_bytes, line_bits, shards, streams: MissStreams::new() }
    }

    /// Accesses from this size on go past it.
    pub(super) fn block_bytes(&self) -> u64 {
        self.line_bytes * BLOCK_LINES
    }

    fn block_bits(&self) -> u32 {
        self.line_bits + BLOCK_LINES.trailing_zeros()
    }

    pub(super) fn read(
        &self,
        source: &impl BackingStore<Asked = A>,
        offset: u64,
        mut into: SharedBytesMut<'_>,
    ) -> Result<(), Error> {
        if into.len() as u64 >= self.block_bytes() {
            self.write_back(source, offset, into.len() as u64)?;
            return source.get(offset, into);
        }
        let mut ahead = None;
        for (block, part) in pieces(offset, into.len(), self.block_bits()) {
            let at = offset + part.start as u64;
            let missing = self.shard(block).read(source, block, at, into.part(part), &self.streams)?;
            ahead = missing.or(ahead);
        }
        if let Some(last) = ahead {
            (last + 1..=last + BLOCKS_AHEAD).for_each(|block| self.ask(source, block));
        }
        Ok(())
    }

    pub(super) fn write(
        &self,
        source: &impl BackingStore<Asked = A>,
        offset: u64,
        from: SharedBytes<'_>,
    ) -> Result<(), Error> {
        if from.len() as u64 >= self.block_bytes() {
            return self.write_past(source, offset, from);
        }
        for (block, part) in pieces(offset, from.len(), self.block_bits()) {
            let at = offset + part.start as u64;
            self.shard(block).write(source, block, at, from.part(part))?;
        }
        Ok(())
    }

    /// Writes past the cache, block by block, each under its lock, so that no thread requests and keeps the previous
    /// bytes.
    fn write_past(
        &self,
        source: &impl BackingStore<Asked = A>,
        offset: u64,
        from: SharedBytes<'_>,
    ) -> Result<(), Error> {
        for (block, part) in pieces(offset, from.len(), self.block_bits()) {
            let (at, from) = (offset + part.start as u64, from.part(part));
            let mut shard = self.shard(block);
            shard.asked.retain(|(asked, _)| *asked != block);
            for (line, part) in pieces(at, from.len(), self.line_bits) {
                shard.forget(source, line, part.len() as u64 == self.line_bytes)?;
            }
            source.put(at, from)?;
        }
        Ok(())
    }

    /// Requests the missing bytes of a range, or as many from its beginning on as the source accepts.
    pub(super) fn prefetch(&self, source: &impl BackingStore<Asked = A>, offset: u64, len_bytes: u64) {
        let blocks = offset / self.block_bytes()..(offset + len_bytes).div_ceil(self.block_bytes());
        blocks.take(SHARDS * MAX_ASKED).for_each(|block| self.ask(source, block));
    }

    /// Writes back the written bytes of a range. They stay in the cache, too.
    pub(super) fn write_back(
        &self,
        source: &impl BackingStore<Asked = A>,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), Error> {
        for (block, part) in pieces(offset, to_usize(len_bytes), self.block_bits()) {
            let mut shard = self.shard(block);
            for (line, _) in pieces(offset + part.start as u64, part.len(), self.line_bits) {
                if let Some(place) = shard.find(line) {
                    shard.clean(source, place)?;
                }
            }
        }
        Ok(())
    }

    /// Writes everything back, and empties the cache, so that later reads see writes of others.
    pub(super) fn sync(&self, source: &impl BackingStore<Asked = A>) -> Result<(), Error> {
        for shard in &self.shards {
            let mut shard = lock(shard);
            shard.asked.clear();
            for place in 0..shard.tags.len() {
                if shard.tags[place] != 0 {
                    shard.clean(source, place)?;
                    shard.tags[place] = 0;
                }
            }
        }
        Ok(())
    }

    fn shard(&self, block: u64) -> MutexGuard<'_, Shard<A>> {
        lock(&self.shards[to_usize(block) % SHARDS])
    }

    fn ask(&self, source: &impl BackingStore<Asked = A>, block: u64) {
        let offset = block.saturating_mul(self.block_bytes());
        let len_bytes = source.end().saturating_sub(offset).min(self.block_bytes());
        let mut shard = self.shard(block);
        if len_bytes > 0
            && shard.asked.iter().all(|(asked, _)| *asked != block)
            && let Ok(true) = shard.lacks(source, pieces(offset, to_usize(len_bytes), self.line_bits))
            && let Some(asked) = source.ask(offset, to_usize(len_bytes))
        {
            if shard.asked.len() == MAX_ASKED {
                // The oldest request is the one that has most likely been answered.
                let oldest = shard.asked[0].0;
                shard.land(source, oldest);
            }
            shard.asked.push((block, asked));
            debug_assert!(shard.asked.len() <= MAX_ASKED, "{} blocks are asked for", shard.asked.len());
        }
    }
}

impl<A: PendingBytes> Shard<A> {
    /// Returns the number of the block if a line was missing that follows the previous miss.
    fn read(
        &mut self,
        source: &impl BackingStore<Asked = A>,
        block: u64,
        offset: u64,
        mut into: SharedBytesMut<'_>,
        streams: &MissStreams,
    ) -> Result<Option<u64>, Error> {
        let mut ahead = None;
        if self.land(source, block) {
            streams.follows(block * BLOCK_LINES..(block + 1) * BLOCK_LINES);
            ahead = Some(block);
        }
        let line_bytes = self.line_bytes as u64;
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let (line, start) = (at >> self.line_bits, to_usize(at & (line_bytes - 1)));
            let len = (self.line_bytes - start).min(into.len() - done);
            let within = start..start + len;
            match self.find(line).filter(|place| self.lines[*place].has(&within)) {
                Some(place) => {
                    self.lines[place].is_used = true;
                    into.part(done..done + len).copy_from(&self.bytes(place)[within]);
                    done += len;
                }
                None => {
                    let wanted = (at + (into.len() - done) as u64).div_ceil(line_bytes);
                    let is_next = streams.follows(line..wanted);
                    if is_next {
                        ahead = Some(block);
                    }
                    let until = if is_next { (block + 1) * BLOCK_LINES } else { wanted };
                    let left = done..into.len();
                    done += self.fetch(source, line..until, at, into.part(left))?;
                }
            }
        }
        Ok(ahead)
    }

    /// Fetches lines, the first of which is missing, up to one that is present, and copies the requested bytes out.
    /// Returns their number.
    fn fetch(
        &mut self,
        source: &impl BackingStore<Asked = A>,
        lines: Range<u64>,
        at: u64,
        mut into: SharedBytesMut<'_>,
    ) -> Result<usize, Error> {
        let line_bytes = self.line_bytes as u64;
        let mut until = lines.start;
        while until < lines.end {
            match self.find(until) {
                Some(place) if self.lines[place].is_whole => break,
                // Bytes that were written to the line are written back first, so they are part of the bytes that are
                // read.
                Some(place) => self.clean(source, place)?,
                None => {}
            }
            until += 1;
        }
        let offset = lines.start * line_bytes;
        let len_bytes = (until * line_bytes).min(source.end()).saturating_sub(offset);
        let mut bytes = vec![0; to_usize(len_bytes)];
        source.get(offset, (&mut bytes).into())?;
        debug_assert!(offset <= at, "lines from {offset} on were brought for {at}");
        let skipped = to_usize(at - offset);
        let len = into.len().min(bytes.len().saturating_sub(skipped));
        into.copy_from(&bytes[skipped..skipped + len]);
        self.take_in(source, lines.start, &bytes)?;
        Ok(len)
    }

    fn write(
        &mut self,
        source: &impl BackingStore<Asked = A>,
        block: u64,
        offset: u64,
        from: SharedBytes<'_>,
    ) -> Result<(), Error> {
        self.land(source, block);
        for (line, part) in pieces(offset, from.len(), self.line_bits) {
            let start = to_usize((offset + part.start as u64) % self.line_bytes as u64);
            let within = start..start + part.len();
            let place = match self.find(line) {
                Some(place) => place,
                None => self.claim(source, line)?,
            };
            let dirty = self.lines[place].dirty.clone();
            let adjoins = within.start <= dirty.end && dirty.start <= within.end;
            if !dirty.is_empty() && !adjoins {
                self.clean(source, place)?;
            }
            from.part(part).copy_to(&mut self.bytes_mut(place)[within.clone()]);
            let whole = self.line_bytes;
            let state = &mut self.lines[place];
            state.dirty = if state.dirty.is_empty() {
                within
            } else {
                state.dirty.start.min(within.start)..state.dirty.end.max(within.end)
            };
            state.is_whole |= state.dirty.len() == whole;
            state.is_used = true;
        }
        Ok(())
    }

    /// Returns whether any of these lines is missing. The present ones are written back, since their slots may be
    /// needed before the others have arrived.
    fn lacks(
        &mut self,
        source: &impl BackingStore<Asked = A>,
        lines: impl Iterator<Item = (u64, Range<usize>)>,
    ) -> Result<bool, Error> {
        let mut lacks = false;
        for (line, _) in lines {
            match self.find(line) {
                Some(place) => self.clean(source, place)?,
                None => lacks = true,
            }
        }
        Ok(lacks)
    }

    /// Forgets a line. Unless all of it is about to be written, it is written back before.
    fn forget(
        &mut self,
        source: &impl BackingStore<Asked = A>,
        line: u64,
        is_all_written: bool,
    ) -> Result<(), Error> {
        if let Some(place) = self.find(line) {
            if !is_all_written {
                self.clean(source, place)?;
            }
            self.tags[place] = 0;
        }
        Ok(())
    }

    /// Receives a prefetched block. A failed block is requested again by the next access that needs it, which reports
    /// the error.
    fn land(&mut self, source: &impl BackingStore<Asked = A>, block: u64) -> bool {
        if self.asked.is_empty() {
            return false;
        }
        let Some(index) = self.asked.iter().position(|(asked, _)| *asked == block) else { return false };
        let (_, asked) = self.asked.remove(index);
        asked.wait().and_then(|bytes| self.take_in(source, block * BLOCK_LINES, &bytes)).is_ok()
    }

    /// Keeps lines that have arrived, except those that are present: these may be newer.
    fn take_in(
        &mut self,
        source: &impl BackingStore<Asked = A>,
        first: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        for (line, bytes) in (first..).zip(bytes.chunks(self.line_bytes)) {
            let place = match self.find(line) {
                Some(place) if self.lines[place].is_whole || !self.lines[place].dirty.is_empty() => continue,
                Some(place) => place,
                None => self.claim(source, line)?,
            };
            let here = self.bytes_mut(place);
            here[..bytes.len()].copy_from_slice(bytes);
            // Beyond the end there are zeros, should it grow.
            here[bytes.len()..].fill(0);
            self.lines[place] = CacheLine { is_whole: true, is_used: true, dirty: 0..0 };
        }
        Ok(())
    }

    fn set(&self, line: u64) -> Range<usize> {
        // The lines of a block lie in sets that follow each other.
        let mixed = (line / BLOCK_LINES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let sets = self.hands.len() as u64;
        let set = ((mixed * sets) >> 32) + line % BLOCK_LINES;
        let set = to_usize(if set < sets { set } else { set % sets });
        set * WAYS..(set + 1) * WAYS
    }

    #[inline]
    fn find(&self, line: u64) -> Option<usize> {
        let set = self.set(line);
        self.tags[set.clone()].iter().position(|tag| *tag == line + 1).map(|way| set.start + way)
    }

    /// A place for a line, which is empty then.
    fn claim(&mut self, source: &impl BackingStore<Asked = A>, line: u64) -> Result<usize, Error> {
        let set = self.set(line);
        let place = match self.tags[set.clone()].iter().position(|tag| *tag == 0) {
            Some(way) => set.start + way,
            None => self.unused(set),
        };
        self.clean(source, place)?;
        debug_assert!(self.find(line).is_none(), "line {line} is here twice");
        self.tags[place] = line + 1;
        self.lines[place] = CacheLine::default();
        Ok(place)
    }

    /// The next slot of a full set whose line was not used since the previous check.
    fn unused(&mut self, set: Range<usize>) -> usize {
        let hand = &mut self.hands[set.start / WAYS];
        loop {
            let place = set.start + usize::from(*hand);
            *hand = if usize::from(*hand) + 1 == WAYS { 0 } else { *hand + 1 };
            if !std::mem::take(&mut self.lines[place].is_used) {
                return place;
            }
        }
    }

    /// Writes back the written bytes of a line. They stay in the cache, also for a line that is present in part.
    fn clean(&mut self, source: &impl BackingStore<Asked = A>, place: usize) -> Result<(), Error> {
        let dirty = self.lines[place].dirty.clone();
        if dirty.is_empty() || self.tags[place] == 0 {
            return Ok(());
        }
        debug_assert!(dirty.end <= self.line_bytes, "{dirty:?} of a line of {} bytes", self.line_bytes);
        let offset = (self.tags[place] - 1) * self.line_bytes as u64 + dirty.start as u64;
        source.put(offset, self.bytes(place)[dirty].into())?;
        self.lines[place].dirty = 0..0;
        Ok(())
    }

    fn bytes(&self, place: usize) -> &[u8] {
        &self.data[place * self.line_bytes..(place + 1) * self.line_bytes]
    }

    fn bytes_mut(&mut self, place: usize) -> &mut [u8] {
        &mut self.data[place * self.line_bytes..(place + 1) * self.line_bytes]
    }
}

impl CacheLine {
    fn has(&self, within: &Range<usize>) -> bool {
        self.is_whole || self.dirty.start <= within.start && within.end <= self.dirty.end
    }
}

impl MissStreams {
    fn new() -> MissStreams {
        MissStreams { ends: [const { AtomicU64::new(u64::MAX) }; STREAMS], next: AtomicU64::new(0) }
    }

    /// Takes note of lines that were missing. Whether they follow on others.
    fn follows(&self, lines: Range<u64>) -> bool {
        let known = self.ends.iter().find(|end| end.load(Ordering::Relaxed) == lines.start);
        let place = known
            .unwrap_or_else(|| &self.ends[to_usize(self.next.fetch_add(1, Ordering::Relaxed)) % STREAMS]);
        place.store(lines.end, Ordering::Relaxed);
        known.is_some()
    }
}

/// Splits a range of bytes at the boundaries of units of `1 << unit_bits` bytes: the number of each unit, and the
/// indices of the bytes that are in it.
#[inline]
fn pieces(offset: u64, len: usize, unit_bits: u32) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = offset + len as u64;
    let until = end.div_ceil(1 << unit_bits);
    (offset >> unit_bits..until).map(move |unit| {
        let (start, stop) = (offset.max(unit << unit_bits), end.min((unit + 1) << unit_bits));
        (unit, to_usize(start - offset)..to_usize(stop - offset))
    })
}

#[cfg(test)]
mod tests;
