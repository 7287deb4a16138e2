//! Transfers of more than 4 GiB at once, over every transport.
//!
//! The tests do not need that much memory: the middle of the sent bytes, of their destination and of the received bytes
//! is one small file that is mapped many times. Beginning and end are memory of their own. An address or size that
//! loses its upper bits leaves the end unchanged, or overwrites the beginning. The file's size is not a power of two,
//! so that misdirected bytes in the middle land at a wrong offset of the file, too.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_means::{Means, skip};

use crate::pairs::{PairTransport, for_each, own_at, pattern};
use crate::sides::{Side, join, sides};

/// Size of a part. The beginning and the end are one part each; the middle is one part, repeated.
const PART_BYTES: u64 = (16 << 20) + PAGE_BYTES;
const REPEATS: u64 = 256;
const END: u64 = (1 + REPEATS) * PART_BYTES;
const PUT_BYTES: u64 = END + PART_BYTES - 1234;
const _: () = assert!(PUT_BYTES > 4 << 30);

/// Offset of the destination in the target's own region.
const DATA: u64 = 2 * PAGE_BYTES;
const OWN_BYTES: u64 = DATA + END + PART_BYTES;
/// Memory that the tests need together: a dozen parts, and the kernel's page tables for the repeated pages.
const NEEDED_BYTES: u64 = 1 << 30;

/// The simulation's seed makes large pieces.
const CARRIERS: &[PairTransport] =
    &[PairTransport::Shm, PairTransport::Tcp, PairTransport::Tls, PairTransport::Sim(81), PairTransport::Ofi];
/// Transports whose get works differently from a put.
const GETS: &[PairTransport] = &[PairTransport::Tcp, PairTransport::Ofi];

/// More than 4 GiB of memory whose middle is folded: the first part, the repeated one, the last.
struct FoldedMemory<'a> {
    mapping: NonNull<u8>,
    whole: &'a Region,
    from: u64,
    middle: Region,
}

impl FoldedMemory<'_> {
    /// Folds bytes of a region in one of its mappings.
    fn new(whole: &Region, from: u64, mapping: Option<NonNull<u8>>) -> FoldedMemory<'_> {
        let (mapping, middle) = (mapping.unwrap(), Region::create("middle", PART_BYTES).unwrap());
        for repeat in 1..=REPEATS {
            let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            // SAFETY: over a part of a mapping of this test's own, to which there are no references.
            unsafe {
                let place = mapping.as_ptr().add((repeat * PART_BYTES) as usize).cast();
                rustix::mm::mmap(place, PART_BYTES as usize, access, how, middle.fd().as_fd(), 0).unwrap();
            }
        }
        FoldedMemory { mapping, whole, from, middle }
    }

    fn fill(&self) {
        let [first, middle, last] = [0, 1, 2].map(|seed| pattern(PART_BYTES as usize, seed));
        self.whole.write(self.from, &first).unwrap();
        self.middle.write(0, &middle).unwrap();
        self.whole.write(self.from + END, &last).unwrap();
    }

    fn parts(&self) -> [Vec<u8>; 3] {
        [(self.whole, self.from), (&self.middle, 0), (self.whole, self.from + END)].map(|(region, from)| {
            let mut bytes = vec![0; PART_BYTES as usize];
            region.read(from, &mut bytes).unwrap();
            // The last part ends where the sent bytes end.
            bytes.truncate((PUT_BYTES - END) as usize);
            bytes
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as the region; no thread writes it while this is used.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr(), PUT_BYTES as usize) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other thread reads it.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr(), PUT_BYTES as usize) }
    }
}

/// Reason why this machine cannot run the tests, if there is one.
fn too_little_memory() -> Option<String> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available_bytes = line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10;
    (available_bytes < NEEDED_BYTES).then(|| {
        format!("{} MiB of memory are needed and {} available", NEEDED_BYTES >> 20, available_bytes >> 20)
    })
}

/// Runs a test with a target whose memory is folded in the mapping that the other side reads and writes.
fn over(pair_transports: &[PairTransport], test: impl Fn(&[Side; 2], &FoldedMemory<'_>)) {
    if let Some(reason) = too_little_memory() {
        skip(Means::Memory(NEEDED_BYTES), reason);
        return;
    }
    for_each(pair_transports, |pair_transport| {
        let sides = sides(pair_transport, [DATA, OWN_BYTES]);
        let [client, target] = &sides;
        // Over a network that is the target's own mapping, which the target or its card uses.
        let user = if pair_transport == PairTransport::Shm { client } else { target };
        let memory = FoldedMemory::new(&target.node.own, DATA, user.end.mapped(own_at(DATA), PUT_BYTES));
        join(pair_transport, &sides);
        test(&sides, &memory);
    });
}

#[test]
fn one_put_of_more_than_4_gib_arrives() {
    let source = Region::create("source", END + PART_BYTES).unwrap();
    let sent = FoldedMemory::new(&source, 0, source.pointer(0, PUT_BYTES));
    sent.fill();
    over(CARRIERS, |[client, target], memory| {
        target.serving(|| {
            client.end.put(own_at(DATA), sent.bytes()).unwrap();
            // Reading the last bytes of the put waits for all of it.
            client.end.get(own_at(DATA + PUT_BYTES - 8), &mut [0; 8]).unwrap();
        });
        assert!(memory.parts() == sent.parts());
    });
}

#[test]
fn one_get_of_more_than_4_gib_brings_all() {
    over(GETS, |[client, target], memory| {
        memory.fill();
        let space = Region::create("space", END + PART_BYTES).unwrap();
        let mut got = FoldedMemory::new(&space, 0, space.pointer(0, PUT_BYTES));
        target.serving(|| client.end.get(own_at(DATA), got.bytes_mut()).unwrap());
        assert!(got.parts() == memory.parts());
    });
}
