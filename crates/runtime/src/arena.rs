//! The client's registered memory, from which its [buffers](buffer) are allocated (rFaaS IV-B).
//!
//! A buffer lies in a region that every worker of the invoker's lease has mapped: a function reads its input and writes
//! its output in place, and the cost of a call does not depend on the size of either. Buffers are aligned to pages and
//! have no header: the request's line carries everything that a worker must know.
//!
//! Regions are made when allocation outgrows them, each at least as large as all before it together. They stay until
//! the invoker is dropped; a large freed buffer gives its pages back to the machine at once. On another node a region
//! is a copy within the lease's memory. For this reason the first region is small, and a worker process gets only the
//! regions that hold buffers when it starts. A region that does not fit into a worker's memory is no longer allocated
//! from.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use sublet_fabric::region::{create_file, page_align, punch_hole, take_pages};
use sublet_fabric::sync::lock;
use sublet_fabric::window::{RegionAddress, Window};
use sublet_proto::{Code, Error};

mod buffer;
mod registered;

pub use buffer::{Buffer, BufferPart, BufferPartMut, InputMemory, OutputMemory};
pub use registered::RegisteredMemory;

use crate::wire::MAX_REGIONS;

/// Size of the first region. Untouched pages of a region take no memory, but over a network each counts.
const FIRST_REGION_BYTES: u64 = 4 << 20;
/// Size of the largest region, and so of the largest buffer, in bytes: the limit of a call's 32-bit size, in whole
/// pages.
const MAX_REGION_BYTES: u64 = 1 << 32;
/// Size of a freed buffer from which on its pages are given back, in bytes. Keeping the pages of smaller buffers saves
/// the next owner the page faults.
const GIVE_BACK_BYTES: u64 = 32 << 20;

/// Memory that workers can reach.
pub struct Arena {
    window: Arc<Window>,
    regions: Mutex<Vec<ArenaRegion>>,
    /// The leases of every invoker that uses this memory. Each must map a region before anything in it is used.
    users: Mutex<Vec<Weak<dyn MapsRegions>>>,
}

/// A lease, whose workers map the regions of an arena.
pub(crate) trait MapsRegions: Send + Sync {
    /// Makes the running workers map the regions that are in use. Those that start later do so then.
    fn publish_regions(&self) -> Result<(), Error>;
}

/// A region by its index + 1, as the wire numbers it.
struct ArenaRegion {
    file: Arc<OwnedFd>,
    len_bytes: u64,
    /// Free stretches, by offset. No two touch.
    free: BTreeMap<u64, u64>,
    /// Set if a worker may not have mapped the region. It must be published before anything in it is used.
    unpublished: bool,
    /// Set if the region did not fit into a worker's memory. The region is then used only by a request for exactly its
    /// size.
    refused: bool,
}

/// A piece of an arena, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaBlock {
    pub(crate) at: RegionAddress,
    pub(crate) len_bytes: u64,
}

impl Arena {
    pub(crate) fn new() -> Result<Arc<Arena>, Error> {
        let window = Arc::new(Window::new(MAX_REGIONS, u64::from(u32::MAX))?);
        Ok(Arc::new(Arena { window, regions: Mutex::default(), users: Mutex::default() }))
    }

    /// Registers a lease: from now on its workers get every region before anything in it is used.
    pub(crate) fn join(&self, user: Weak<dyn MapsRegions>) {
        let mut users = lock(&self.users);
        users.retain(|user| user.strong_count() > 0);
        users.push(user);
    }

    /// Makes all workers map the regions by which the arena has grown.
    pub(crate) fn publish_to_users(&self) -> Result<(), Error> {
        let users = lock(&self.users);
        let users: Vec<_> = users.iter().filter_map(Weak::upgrade).collect();
        users.iter().try_for_each(|user| user.publish_regions())
    }

    /// Allocates whole pages. `publish` makes every worker have the regions that hold something; it is called before
    /// anything is given out of a region that a worker may not have.
    ///
    /// # Errors
    /// Those of `publish`. After `insufficient_resources`, by which a worker reports that a copy of the region does not
    /// fit into its memory, smaller pieces may still be available.
    pub(crate) fn allocate(
        &self,
        len_bytes: u64,
        publish: impl FnMut() -> Result<(), Error>,
    ) -> Result<ArenaBlock, Error> {
        let block = self.allocate_bare(len_bytes, publish)?;
        if let Some(region) = self.lock().get(block.at.region as usize - 1) {
            // The client allocates the pages, since pages that the worker writes first count as the worker's, and its
            // sandbox has memory for the lease only. If no pages are free now, some may be free when the buffer is
            // written.
            let _ = take_pages(region.file.as_fd(), block.at.offset, block.len_bytes);
        }
        Ok(block)
    }

    /// A block whose pages are taken when they are first written.
    fn allocate_bare(
        &self,
        len_bytes: u64,
        mut publish: impl FnMut() -> Result<(), Error>,
    ) -> Result<ArenaBlock, Error> {
        let wanted =
            page_align(len_bytes.max(1)).filter(|&wanted| wanted <= MAX_REGION_BYTES).ok_or_else(|| {
                let message = format!("a buffer of {len_bytes} bytes: the largest has {} bytes", u32::MAX);
                Error::new(Code::InvalidArgument, message)
            })?;
        let (block, unpublished) = match self.take(wanted) {
            Some(taken) => taken,
            None => (self.grow(wanted, Growth::Doubling)?, true),
        };
        if !unpublished {
            return Ok(block);
        }
        let published = match self.publish(block, &mut publish) {
            Err(error) if error.code == Code::InsufficientResources => {
                let block = self.grow(wanted, Growth::Exact)?;
                return self.publish(block, &mut publish).map(|()| block);
            }
            published => published,
        };
        published.map(|()| block)
    }

    /// Makes workers have the region of a block that was just taken; gives the block back if they cannot.
    fn publish(
        &self,
        block: ArenaBlock,
        publish: &mut impl FnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let published = publish();
        let mut regions = self.lock();
        let region = &mut regions[block.at.region as usize - 1];
        match &published {
            // The block was in it all the while, so that each process that has started meanwhile has it, too.
            Ok(()) => (region.unpublished, region.refused) = (false, false),
            Err(error) => {
                region.refused = error.code == Code::InsufficientResources;
                region.insert_free(block.at.offset, block.len_bytes);
            }
        }
        published
    }

    pub(crate) fn free(&self, block: ArenaBlock) {
        let mut regions = self.lock();
        let Some(region) = regions.get_mut(block.at.region as usize - 1) else { return };
        if block.len_bytes >= GIVE_BACK_BYTES {
            // If the machine does not accept the pages, the next owner gets them.
            let _ = punch_hole(region.file.as_fd(), block.at.offset, block.len_bytes);
        }
        region.insert_free(block.at.offset, block.len_bytes);
    }

    /// The address of a block in this process.
    pub(crate) fn pointer(&self, block: &ArenaBlock) -> Option<NonNull<u8>> {
        self.window.pointer(block.at, block.len_bytes)
    }

    /// The window in which its regions are mapped, which locates memory that lies wholly inside of the arena.
    pub(crate) fn window(&self) -> &Arc<Window> {
        &self.window
    }

    /// Hands every region that holds something and is not known yet to `give`, in order. Those that hold nothing are
    /// published when they are used.
    pub(crate) fn regions_in_use(
        &self,
        is_known: impl Fn(u32) -> bool,
        mut give: impl FnMut(u32, &OwnedFd, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut in_use = Vec::new();
        for (number, region) in (1..).zip(self.lock().iter_mut()) {
            match (is_known(number), region.is_empty()) {
                (true, _) => {}
                (false, true) => region.unpublished = true,
                (false, false) => in_use.push((number, region.file.clone(), region.len_bytes)),
            }
        }
        // Without the lock: a worker may take its time.
        in_use.into_iter().try_for_each(|(number, file, len_bytes)| give(number, &file, len_bytes))
    }

    /// Takes a piece of a region with enough free space. Returns also whether the region must still be published.
    fn take(&self, wanted: u64) -> Option<(ArenaBlock, bool)> {
        let mut regions = self.lock();
        (1..).zip(regions.iter_mut()).filter(|(_, region)| !region.refused).find_map(|(number, region)| {
            let offset = region.take_free(wanted)?;
            Some((
                ArenaBlock { at: RegionAddress { region: number, offset }, len_bytes: wanted },
                region.unpublished,
            ))
        })
    }

    /// Adds a region, or takes one that was refused before, and the first piece of it.
    fn grow(&self, wanted: u64, growth: Growth) -> Result<ArenaBlock, Error> {
        let mut regions = self.lock();
        let so_far: u64 =
            regions.iter().filter(|region| !region.refused).map(|region| region.len_bytes).sum();
        debug_assert!(regions.len() <= MAX_REGIONS as usize, "{} regions", regions.len());
        #[expect(clippy::cast_possible_truncation, reason = "asserted above: `MAX_REGIONS` at most")]
        let number = |index: usize| index as u32 + 1;
        let len_bytes = match growth {
            Growth::Doubling => wanted.max(so_far).clamp(FIRST_REGION_BYTES, MAX_REGION_BYTES),
            Growth::Exact => wanted,
        };
        let refused =
            |region: &ArenaRegion| region.refused && region.len_bytes == len_bytes && region.is_empty();
        let index = match regions.iter().position(refused) {
            Some(index) => index,
            None => {
                let file = Arc::new(create_file("sublet-buffers", len_bytes)?);
                self.window.map(number(regions.len()), file.as_fd(), len_bytes)?;
                let free = BTreeMap::from([(0, len_bytes)]);
                regions.push(ArenaRegion { file, len_bytes, free, unpublished: true, refused: false });
                regions.len() - 1
            }
        };
        let offset = regions[index].take_free(wanted);
        let offset = offset.ok_or_else(|| Error::new(Code::Internal, "an empty region has no free space"))?;
        Ok(ArenaBlock { at: RegionAddress { region: number(index), offset }, len_bytes: wanted })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ArenaRegion>> {
        lock(&self.regions)
    }
}

/// Size of a new region.
enum Growth {
    /// At least the size of all earlier ones together, so that there are few regions.
    Doubling,
    /// The requested size only, where a larger region does not fit into a worker's memory.
    Exact,
}

impl ArenaRegion {
    /// Whether nothing in it is taken.
    fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&self.len_bytes)
    }

    /// First fit: low addresses are used again first, and stay in the caches.
    fn take_free(&mut self, wanted: u64) -> Option<u64> {
        let (&offset, &len) = self.free.iter().find(|&(_, &len)| len >= wanted)?;
        self.free.remove(&offset);
        if len > wanted {
            self.free.insert(offset + wanted, len - wanted);
        }
        debug_assert!(offset + wanted <= self.len_bytes, "{wanted} bytes at {offset} of {}", self.len_bytes);
        Some(offset)
    }

    fn insert_free(&mut self, mut offset: u64, mut len: u64) {
        debug_assert!(
            len > 0 && offset + len <= self.len_bytes,
            "{len} bytes at {offset} of {}",
            self.len_bytes
        );
        debug_assert!(
            self.free.range(..offset + len).next_back().is_none_or(|(before, len)| before + len <= offset),
            "{len} bytes at {offset} are free already: {:?}",
            self.free
        );
        if let Some((&before, &before_len)) = self.free.range(..offset).next_back()
            && before + before_len == offset
        {
            self.free.remove(&before);
            (offset, len) = (before, before_len + len);
        }
        if let Some(after_len) = self.free.remove(&(offset + len)) {
            len += after_len;
        }
        self.free.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Pod;
    use proptest::prelude::*;

    use super::*;

    fn buffer<T: Pod>(arena: &Arc<Arena>, len: usize) -> Result<Buffer<T>, Error> {
        Buffer::new(arena, len, || Ok(()))
    }

    #[test]
    fn buffers_are_page_aligned_and_located_by_their_address() {
        let arena = Arena::new().unwrap();
        let mut values = buffer::<f64>(&arena, 1000).unwrap();
        values.fill(1.5);
        let start = values.start().cast::<u8>();
        assert_eq!(start.addr().get() % 4096, 0);
        assert_eq!(arena.window.locate(start.as_ptr(), 8000), Some(values.block.at));
        let tenth = values.part(10..).shared_bytes().start();
        assert_eq!(arena.window.locate(tenth.as_ptr(), 80).unwrap().offset, 80);
        let elsewhere = [0u8; 64];
        assert_eq!(arena.window.locate(elsewhere.as_ptr(), 64), None);
    }

    #[test]
    fn sizes_from_nothing_to_4_gib_less_one_byte() {
        let arena = Arena::new().unwrap();
        assert_eq!(buffer::<u8>(&arena, 0).unwrap().len(), 0);
        assert_eq!(buffer::<u8>(&arena, u32::MAX as usize).unwrap().len(), u32::MAX as usize);
        let error = buffer::<u8>(&arena, 1 << 32).err().unwrap();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains("4294967296"), "{error}");
    }

    #[test]
    fn publishes_a_region_once_before_its_first_buffer() {
        let arena = Arena::new().unwrap();
        let mut published = 0;
        let first = Buffer::<u8>::new(&arena, 1, || {
            published += 1;
            Ok(())
        })
        .unwrap();
        let second = Buffer::<u8>::new(&arena, 1, || {
            published += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!((published, first.len() + second.len()), (1, 2));
    }

    /// A worker with `room` bytes of memory, which has mapped these regions.
    fn publisher<'a>(
        arena: &'a Arc<Arena>,
        room: u64,
        mapped: &'a mut Vec<(u32, u64)>,
    ) -> impl FnMut() -> Result<(), Error> {
        move || {
            let known: Vec<_> = mapped.iter().map(|&(number, _)| number).collect();
            arena.regions_in_use(
                |number| known.contains(&number),
                |number, _, len_bytes| {
                    if mapped.iter().map(|&(_, len)| len).sum::<u64>() + len_bytes > room {
                        return Err(Error::new(Code::InsufficientResources, "the worker's memory is full"));
                    }
                    mapped.push((number, len_bytes));
                    Ok(())
                },
            )
        }
    }

    #[test]
    fn arena_stays_usable_after_a_worker_refuses_a_region() {
        let (arena, mut mapped) = (Arena::new().unwrap(), Vec::new());
        let room = FIRST_REGION_BYTES + 3 * 4096;
        let mut made = |len: usize| Buffer::<u8>::new(&arena, len, publisher(&arena, room, &mut mapped));
        let small = made(100).unwrap();
        for _ in 0..300 {
            assert_eq!(made(FIRST_REGION_BYTES as usize).err().unwrap().code, Code::InsufficientResources);
        }
        let full = made(FIRST_REGION_BYTES as usize - 4096).unwrap();
        let exact = made(2 * 4096).unwrap();
        assert_eq!(made(2 * 4096).err().unwrap().code, Code::InsufficientResources);
        drop((made(4096).unwrap(), small, exact, full));
        assert_eq!(mapped.iter().map(|&(_, len)| len).sum::<u64>(), room);
    }

    #[test]
    fn new_process_gets_used_regions_and_others_before_their_use() {
        let (arena, mut first, mut second) = (Arena::new().unwrap(), Vec::new(), Vec::new());
        let large = Buffer::<u8>::new(&arena, 8 << 20, publisher(&arena, u64::MAX, &mut first)).unwrap();
        drop(Buffer::<u8>::new(&arena, 9 << 20, publisher(&arena, u64::MAX, &mut first)).unwrap());
        publisher(&arena, u64::MAX, &mut second)().unwrap();
        assert_eq!((first.len(), &second[..]), (2, &[(1, 8 << 20)][..]));
        let again = Buffer::<u8>::new(&arena, 9 << 20, publisher(&arena, u64::MAX, &mut second)).unwrap();
        assert_eq!((again.block.at.region, second.len()), (2, 2));
        drop(large);
    }

    proptest! {
        #[test]
        fn live_buffers_never_overlap_and_freed_space_is_whole_again(
            steps in prop::collection::vec((any::<bool>(), 1usize..300_000, any::<prop::sample::Index>()), 1..60),
        ) {
            let arena = Arena::new().unwrap();
            let mut live = Vec::new();
            for (free, len, which) in steps {
                if free && !live.is_empty() {
                    live.swap_remove(which.index(live.len()));
                } else {
                    live.push(buffer::<u8>(&arena, len).unwrap());
                }
                let mut spans: Vec<_> = live.iter().map(|b| (b.start().addr().get(), b.len())).collect();
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            }
            live.clear();
            let regions = arena.lock();
            for region in regions.iter() {
                prop_assert_eq!(region.free.iter().collect::<Vec<_>>(), [(&0, &region.len_bytes)]);
            }
        }
    }
}
