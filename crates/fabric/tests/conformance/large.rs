//! More than 4 GiB at once, over every carrier.
//!
//! No memory is so large here: the middle of what is sent, of where it goes and of what comes back is one small file that
//! is mapped again and again. Beginning and end are memory of their own. A place or size that loses its upper bits leaves
//! the end as it was, or writes over the beginning; the file's size is no power of two, so that bytes which go astray in
//! the middle come to the wrong place of it, too.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_means::{Means, skip};

use crate::pairs::{Carrier, for_each, own_at, pattern};
use crate::sides::{Side, join, sides};

/// What is sent once, and what again and again.
const PART_BYTES: u64 = (16 << 20) + PAGE_BYTES;
const REPEATS: u64 = 256;
const END: u64 = (1 + REPEATS) * PART_BYTES;
const PUT_BYTES: u64 = END + PART_BYTES - 1234;
const _: () = assert!(PUT_BYTES > 4 << 30);

/// Where it goes in the target's own region.
const DATA: u64 = 2 * PAGE_BYTES;
const OWN_BYTES: u64 = DATA + END + PART_BYTES;
/// What the tests take together: a dozen parts, and what the kernel has to note where the repeated pages are.
const NEEDED_BYTES: u64 = 1 << 30;

/// The simulation's seed is one that cuts large pieces.
const CARRIERS: &[Carrier] = &[Carrier::Shm, Carrier::Tcp, Carrier::Tls, Carrier::Sim(81), Carrier::Ofi];
/// Those whose way to get has something to it that a put has not.
const GETS: &[Carrier] = &[Carrier::Tcp, Carrier::Ofi];

/// So many bytes of which the middle is folded: the first part, the repeated one, the last.
struct Folded<'a> {
    mapping: NonNull<u8>,
    whole: &'a Region,
    from: u64,
    middle: Region,
}

impl Folded<'_> {
    /// Folds bytes of a region in one of its mappings.
    fn new(whole: &Region, from: u64, mapping: Option<NonNull<u8>>) -> Folded<'_> {
        let (mapping, middle) = (mapping.unwrap(), Region::create("middle", PART_BYTES).unwrap());
        for repeat in 1..=REPEATS {
            let (access, how) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            // SAFETY: over a part of a mapping of this test's own, to which there are no references.
            unsafe {
                let place = mapping.as_ptr().add((repeat * PART_BYTES) as usize).cast();
                rustix::mm::mmap(place, PART_BYTES as usize, access, how, middle.fd().as_fd(), 0).unwrap();
            }
        }
        Folded { mapping, whole, from, middle }
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
            // What lies behind what is sent is no part of it.
            bytes.truncate((PUT_BYTES - END) as usize);
            bytes
        })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as the region; nobody writes it while this is used.
        unsafe { std::slice::from_raw_parts(self.mapping.as_ptr(), PUT_BYTES as usize) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else reads it.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.as_ptr(), PUT_BYTES as usize) }
    }
}

/// Why this machine should not try, if it should not.
fn too_little_memory() -> Option<String> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available_bytes = line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10;
    (available_bytes < NEEDED_BYTES).then(|| {
        format!("{} MiB of memory are needed and {} available", NEEDED_BYTES >> 20, available_bytes >> 20)
    })
}

/// Runs a test with a target whose memory is folded as it is written and read by the other side.
fn over(carriers: &[Carrier], test: impl Fn(&[Side; 2], &Folded<'_>)) {
    if let Some(reason) = too_little_memory() {
        skip(Means::Memory(NEEDED_BYTES), reason);
        return;
    }
    for_each(carriers, |carrier| {
        let sides = sides(carrier, [DATA, OWN_BYTES]);
        let [client, target] = &sides;
        // Over a network that is the target itself, or its card.
        let user = if carrier == Carrier::Shm { client } else { target };
        let memory = Folded::new(&target.node.own, DATA, user.end.mapped(own_at(DATA), PUT_BYTES));
        join(carrier, &sides);
        test(&sides, &memory);
    });
}

#[test]
fn one_put_of_more_than_4_gib_arrives() {
    let source = Region::create("source", END + PART_BYTES).unwrap();
    let sent = Folded::new(&source, 0, source.pointer(0, PUT_BYTES));
    sent.fill();
    over(CARRIERS, |[client, target], memory| {
        target.serving(|| {
            client.end.put(own_at(DATA), sent.bytes()).unwrap();
            // Whoever has read what was put last has waited for it.
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
        let mut got = Folded::new(&space, 0, space.pointer(0, PUT_BYTES));
        target.serving(|| client.end.get(own_at(DATA), got.bytes_mut()).unwrap());
        assert!(got.parts() == memory.parts());
    });
}
