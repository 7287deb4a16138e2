//! Tests of swapped arrays, over a backing store in this process.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Seek, Write};
use std::sync::{Arc, Mutex};

use sublet_fabric::sync::{AtomicU64, Ordering};

use super::units::{PAGE_BYTES, REGION_BYTES};
use super::*;
use sublet_means::{Means, skip};

const MIB: u64 = 1 << 20;
const LOCAL_BYTES: u64 = 16 * MIB;
/// Variable that makes the helper test touch lost bytes.
const TOUCHES: &str = "SUBLET_TEST_TOUCHES_LOST_MEMORY";

/// Swap space that is a vector, and fails after a number of writes.
struct Space {
    bytes: Mutex<Vec<u8>>,
    writes_left: AtomicU64,
    reads: AtomicU64,
}

impl Space {
    fn new(writes: u64) -> Arc<Space> {
        let (bytes, writes_left, reads) = (Mutex::default(), AtomicU64::new(writes), AtomicU64::new(0));
        Arc::new(Space { bytes, writes_left, reads })
    }

    fn len(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }
}

impl Backing for Arc<Space> {
    fn ensure(&self, len_bytes: u64) -> Result<(), Error> {
        let mut bytes = self.bytes.lock().unwrap();
        let len = bytes.len().max(len_bytes as usize);
        bytes.resize(len, 0);
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        into.copy_from_slice(&self.bytes.lock().unwrap()[offset as usize..][..into.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        if self.writes_left.load(Ordering::Relaxed) == 0 {
            return Err(Error::new(Code::AgentUnreachable, "the agent is gone"));
        }
        self.writes_left.fetch_sub(1, Ordering::Relaxed);
        self.bytes.lock().unwrap()[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }
}

fn swapped_in(space: &Arc<Space>, plan: SwapPlan) -> Option<SwappedMemory> {
    match SwappedMemory::new(plan, Box::new(space.clone())) {
        Err(error) if error.code == Code::LimitTooLow => {
            skip(Means::Userfaultfd, format_args!("{}", error.message));
            None
        }
        made => Some(made.unwrap()),
    }
}

fn swapped(len_bytes: u64) -> Option<SwappedMemory> {
    swapped_in(&Space::new(u64::MAX), SwapPlan::new(len_bytes, LOCAL_BYTES))
}

fn word(at: u64, round: u64) -> u64 {
    (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round.wrapping_mul(0xd605_1f1c_9e1b_4f2d)
}

fn fill(array: &mut [u8], round: u64) {
    for (at, bytes) in (0..).zip(array.chunks_exact_mut(8)) {
        bytes.copy_from_slice(&word(at, round).to_ne_bytes());
    }
}

#[track_caller]
fn assert_filled(array: &[u8], round: u64) {
    for (at, bytes) in (0..).zip(array.chunks_exact(8)) {
        assert_eq!(u64::from_ne_bytes(bytes.try_into().unwrap()), word(at, round), "word {at}");
    }
}

/// Number of resident bytes of a range of this process.
fn resident_bytes(at: NonNull<u8>, len_bytes: u64) -> u64 {
    let mut pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    pagemap.seek(std::io::SeekFrom::Start(at.as_ptr() as u64 / PAGE_BYTES * 8)).unwrap();
    let mut entries = vec![0; (len_bytes / PAGE_BYTES * 8) as usize];
    pagemap.read_exact(&mut entries).unwrap();
    // The topmost bit of an entry: the page is there.
    entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count() as u64 * PAGE_BYTES
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 8) % end
    }
}

#[test]
fn array_larger_than_memory_keeps_writes_in_any_order() {
    for touching in [Touching::AnyThreads, Touching::OneAtATime] {
        let space = Space::new(u64::MAX);
        let plan = SwapPlan::new(64 * MIB, LOCAL_BYTES).touching(touching);
        let Some(mut array) = swapped_in(&space, plan) else { return };
        fill(array.as_mut_slice(), 1);
        assert_filled(array.as_slice(), 1);
        // Backward, a word of each page.
        for page in (0..64 * MIB / PAGE_BYTES).rev() {
            let at = page * PAGE_BYTES;
            assert_eq!(array.as_slice()[at as usize..][..8], word(at / 8, 1).to_ne_bytes());
        }
        fill(array.as_mut_slice(), 2);
        assert_filled(array.as_slice(), 2);
        let statistics = array.statistics();
        assert!(statistics.ahead > 0 && statistics.resident_bytes <= LOCAL_BYTES, "{statistics:?}");
        let here = resident_bytes(array.as_ptr(), 64 * MIB);
        assert!(here <= LOCAL_BYTES, "{here} bytes are resident");
        assert!(space.len() >= 64 * MIB - LOCAL_BYTES, "{} bytes of swap space", space.len());
        array.check().unwrap();
    }
}

#[test]
fn unwritten_bytes_are_zero_and_take_no_swap_space() {
    let space = Space::new(u64::MAX);
    let Some(mut array) = swapped_in(&space, SwapPlan::new(256 * MIB, LOCAL_BYTES)) else { return };
    assert!(array.as_slice().iter().all(|byte| *byte == 0));
    let mut random = Random(3);
    for _ in 0..20_000 {
        assert_eq!(array.as_slice()[random.below(256 * MIB) as usize], 0);
    }
    assert_eq!((space.len(), array.statistics().written_bytes), (0, 0));
    let last = array.as_slice().len() - 1;
    array.as_mut_slice()[last] = 1;
    assert!(array.as_slice().iter().rev().skip(1).all(|byte| *byte == 0));
    assert_eq!((array.as_slice()[last], space.len()), (1, REGION_BYTES), "swap space goes to what needs it");
}

#[test]
fn what_one_thread_only_reads_is_not_written_again() {
    let space = Space::new(u64::MAX);
    let plan = SwapPlan::new(64 * MIB, LOCAL_BYTES).touching(Touching::OneAtATime);
    let Some(mut array) = swapped_in(&space, plan) else { return };
    fill(array.as_mut_slice(), 1);
    (0..2).for_each(|_| assert_filled(array.as_slice(), 1));
    let before = array.statistics().written_bytes;
    (0..2).for_each(|_| assert_filled(array.as_slice(), 1));
    let mut random = Random(3);
    for _ in 0..5_000 {
        let at = random.below(8 * MIB);
        assert_eq!(array.as_slice()[at as usize * 8..][..8], word(at, 1).to_ne_bytes());
    }
    assert_eq!(array.statistics().written_bytes, before);
}

#[test]
fn random_accesses_of_threads_agree_with_plain_memory() {
    for touched_in_pages in [false, true] {
        let Some(mut array) = swapped(80 * MIB) else { return };
        let part = 20 * MIB as usize;
        std::thread::scope(|scope| {
            // Where one part ends and the next begins two threads share a page's region, though no byte.
            for (number, part) in
                array.as_mut_slice()[3 * 1024..][..4 * (part - 1024)].chunks_mut(part - 1024).enumerate()
            {
                scope.spawn(move || story(part, number as u64 + 1, touched_in_pages));
            }
        });
        array.check().unwrap();
        let statistics = array.statistics();
        assert!(statistics.resident_bytes <= LOCAL_BYTES, "{statistics:?}");
    }
}

fn story(part: &mut [u8], seed: u64, touched_in_pages: bool) {
    let mut random = Random(seed * 88_172_645_463_325_252);
    let mut expected = vec![0; part.len()];
    for round in 0..1_500 {
        let longest = if touched_in_pages { 64 } else { 1 << random.below(22) };
        let len = random.below(longest) as usize + 1;
        let at = random.below((part.len() - len) as u64) as usize;
        if random.below(3) == 0 {
            expected[at..at + len].fill(round as u8);
            part[at..at + len].fill(round as u8);
        } else {
            assert!(part[at..at + len] == expected[at..at + len], "round {round}: {len} bytes at {at}");
        }
    }
    assert!(*part == expected);
}

#[test]
fn many_threads_may_fault_on_one_page_at_once() {
    let Some(mut array) = swapped(64 * MIB) else { return };
    fill(array.as_mut_slice(), 1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut random = Random(5);
                for _ in 0..2_000 {
                    let at = random.below(8 * MIB);
                    assert_eq!(array.as_slice()[at as usize * 8..][..8], word(at, 1).to_ne_bytes());
                }
            });
        }
    });
}

#[test]
fn system_calls_read_and_write_it_as_any_memory() {
    let Some(mut array) = swapped(48 * MIB) else { return };
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..48 * MIB).map(|at| ((at * 31) >> 7) as u8).collect();
    file.write_all(&bytes).unwrap();
    file.rewind().unwrap();
    file.read_exact(array.as_mut_slice()).unwrap();
    assert!(array.as_slice() == bytes);
    let mut copy = tempfile::tempfile().unwrap();
    copy.write_all(array.as_slice()).unwrap();
    copy.rewind().unwrap();
    let mut copied = Vec::new();
    copy.read_to_end(&mut copied).unwrap();
    assert!(copied == bytes);
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    for (len, local, said) in [
        (0, LOCAL_BYTES, "0 bytes"),
        (u64::MAX, LOCAL_BYTES, "1099511627776"),
        ((1 << 40) + 1, LOCAL_BYTES, "1099511627776"),
        (64 * MIB, 0, "16777216"),
        (64 * MIB, LOCAL_BYTES - 1, "16777216"),
    ] {
        let error = SwappedMemory::new(SwapPlan::new(len, local), Box::new(Space::new(0))).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.contains(said), "{error}");
    }
    // More local memory than there is array is only more than is needed.
    if let Some(mut array) = swapped(1) {
        array.as_mut_slice()[0] = 1;
        assert_eq!(array.as_slice(), [1]);
    }
}

#[test]
fn dropped_array_leaves_no_thread_descriptor_or_memory() {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    let ours = || {
        let names =
            std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
        names
            .filter(|name| std::fs::read_to_string(name).is_ok_and(|name| name.starts_with("sublet swap")))
            .count()
    };
    let Some(array) = swapped(64 * MIB) else { return };
    let at = array.as_ptr().as_ptr() as u64;
    drop(array);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.lines().any(|line| line.starts_with(&format!("{at:x}-"))), "{maps}");
    // Other tests of this process have some, too, but only a bounded number at a time.
    for _ in 0..200 {
        let mut array = swapped(64 * MIB).unwrap();
        array.as_mut_slice()[5 * MIB as usize] = 1;
    }
    assert!(count("fd") < 200 && ours() < 200, "{} descriptors, {} threads", count("fd"), ours());
}

/// A helper process that is sent SIGBUS, for the next test. It tests nothing by itself.
#[test]
fn helper_that_touches_what_is_lost() {
    let Ok(how) = std::env::var(TOUCHES) else { return };
    let space = Space::new(if how == "first" { 0 } else { 200 });
    let Some(mut array) = swapped_in(&space, SwapPlan::new(64 * MIB, LOCAL_BYTES)) else {
        println!("not permitted");
        return;
    };
    if how == "read" {
        // A system call returns an error.
        let mut zeros = std::fs::File::open("/dev/zero").unwrap();
        let mut ones = vec![1; MIB as usize];
        loop {
            for part in array.as_mut_slice().chunks_mut(MIB as usize) {
                zeros.read_exact(&mut ones[..1]).unwrap();
                let mut pipe = std::io::pipe().unwrap();
                pipe.1.write_all(&[9; 100]).unwrap();
                if let Err(error) = pipe.0.read(&mut part[..100]) {
                    println!("refused: {error}");
                    return;
                }
                part[4096..].chunks_mut(4096).for_each(|page| {
                    if pipe.1.write(&[7]).is_ok() {
                        let _ = pipe.0.read(&mut page[..1]);
                    }
                });
            }
        }
    }
    for round in 0.. {
        fill(array.as_mut_slice(), round);
        assert_filled(array.as_slice(), round);
    }
}

#[test]
fn touching_lost_bytes_reports_the_reason_and_raises_sigbus() {
    for how in ["first", "later", "read"] {
        let helper = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["swap::tests::helper_that_touches_what_is_lost", "--exact", "--nocapture"])
            .env(TOUCHES, how)
            .output()
            .unwrap();
        let (said, complained) =
            (String::from_utf8_lossy(&helper.stdout), String::from_utf8_lossy(&helper.stderr));
        if said.contains("not permitted") {
            skip(Means::Userfaultfd, &said);
            return;
        }
        assert!(
            complained.contains("agent_unreachable") && complained.contains("the agent is gone"),
            "{complained}"
        );
        assert!(!complained.contains("panicked"), "{complained}");
        let signal = std::os::unix::process::ExitStatusExt::signal(&helper.status);
        if how == "read" {
            assert!(said.contains("refused: Bad address"), "{said} {signal:?}");
        } else {
            assert_eq!(signal, Some(7), "{said} {complained}");
        }
    }
}

#[test]
fn child_process_has_no_array_and_does_not_wait() {
    let Some(array) = swapped(64 * MIB) else { return };
    let flags = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let at = format!("{:x}-", array.as_ptr().as_ptr() as u64);
    let of_array =
        flags.split_once(&at).map(|(_, rest)| rest).unwrap_or_else(|| panic!("no {at} in {flags}"));
    let flags = of_array.lines().find(|line| line.starts_with("VmFlags:")).unwrap();
    // dc: do not copy on fork.
    assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
}

#[test]
fn forgotten_regions_are_zero_and_take_no_memory_or_space() {
    let space = Space::new(u64::MAX);
    let Some(mut array) = swapped_in(&space, SwapPlan::new(64 * MIB, LOCAL_BYTES)) else { return };
    let half = (32 * MIB / REGION_BYTES) as usize;
    for round in 0..8 {
        // Sequential writes page by regions, scattered ones by pages.
        let (first, second) = array.as_mut_slice().split_at_mut(32 * MIB as usize);
        let written = if round % 2 == 0 { first } else { second };
        if round < 4 {
            written.fill(round + 1);
        } else {
            written.chunks_mut(5 * PAGE_BYTES as usize).for_each(|part| part[0] = round + 1);
        }
        let regions = if round % 2 == 0 { 0..half } else { half..2 * half };
        array.forget(regions);
        assert_eq!(array.as_slice().iter().map(|byte| u64::from(*byte)).sum::<u64>(), 0, "round {round}");
        array.forget(0..2 * half);
        assert!(array.statistics().resident_bytes <= 3 * REGION_BYTES, "{:?}", array.statistics());
        // The half that is written always has the places of the other.
        assert!(space.len() <= 32 * MIB, "{} bytes of swap space", space.len());
    }
    assert_eq!(array.check(), Ok(()));
}

#[test]
fn what_others_use_meanwhile_stays_when_something_is_forgotten() {
    let space = Space::new(u64::MAX);
    let Some(mut array) = swapped_in(&space, SwapPlan::new(64 * MIB, LOCAL_BYTES)) else { return };
    let half = 32 * MIB as usize;
    fill(&mut array.as_mut_slice()[half..], 3);
    let array = &array;
    std::thread::scope(|scope| {
        for thread in 0..2usize {
            scope.spawn(move || {
                let own = 8 * MIB as usize * thread;
                for round in 0..20 {
                    // SAFETY: each thread has a part of its own, which no other thread accesses.
                    let part = unsafe {
                        std::slice::from_raw_parts_mut(array.as_ptr().as_ptr().add(own), 8 * MIB as usize)
                    };
                    assert!(part.iter().step_by(997).all(|byte| *byte == 0), "round {round}");
                    part.fill(round + 1);
                    let first = own / REGION_BYTES as usize;
                    array.forget(first..first + 4);
                }
            });
        }
        scope.spawn(move || (0..4).for_each(|_| assert_filled(&array.as_slice()[half..], 3)));
    });
}
