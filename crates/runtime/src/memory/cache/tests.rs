//! Tests of the cache of remote memory, over a backing store in this process.

#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};

use proptest::prelude::*;

use super::*;
use sublet_proto::Code;

const LINE: u64 = 64;
const BLOCK: u64 = LINE * BLOCK_LINES;
const LEN: usize = 40 * BLOCK as usize;

/// Remote memory that executes requests in their order.
struct Elsewhere {
    bytes: RefCell<Vec<u8>>,
    gets: Cell<u64>,
    puts: Cell<u64>,
    asks: Cell<u64>,
    is_lost: Cell<bool>,
}

impl Elsewhere {
    fn new() -> Elsewhere {
        let bytes = RefCell::new((0..LEN).map(|at| ((at * 31) >> 3) as u8).collect());
        let count = Cell::default;
        Elsewhere { bytes, gets: count(), puts: count(), asks: count(), is_lost: Cell::default() }
    }

    fn there(&self) -> Result<(), Error> {
        if self.is_lost.get() { Err(Error::new(Code::AgentUnreachable, "it is gone")) } else { Ok(()) }
    }
}

impl PendingBytes for Result<Vec<u8>, Error> {
    fn wait(self) -> Result<Vec<u8>, Error> {
        self
    }
}

impl BackingStore for Elsewhere {
    type Asked = Result<Vec<u8>, Error>;

    fn end(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }

    fn get(&self, offset: u64, mut into: SharedBytesMut<'_>) -> Result<(), Error> {
        self.there()?;
        self.gets.set(self.gets.get() + 1);
        let len = into.len();
        into.copy_from(&self.bytes.borrow()[offset as usize..][..len]);
        Ok(())
    }

    fn put(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        self.there()?;
        self.puts.set(self.puts.get() + 1);
        from.copy_to(&mut self.bytes.borrow_mut()[offset as usize..][..from.len()]);
        Ok(())
    }

    fn ask(&self, offset: u64, len_bytes: usize) -> Option<Self::Asked> {
        self.asks.set(self.asks.get() + 1);
        Some(self.there().map(|()| self.bytes.borrow()[offset as usize..][..len_bytes].to_vec()))
    }
}

type Lines = LineCache<Result<Vec<u8>, Error>>;

fn cache(lines: u64) -> Lines {
    LineCache::new(lines * LINE, LINE)
}

fn read(cache: &Lines, elsewhere: &Elsewhere, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    cache.read(elsewhere, offset, (&mut bytes).into()).unwrap();
    bytes
}

#[derive(Clone, Debug)]
enum Step {
    Read(u64, usize),
    Write(u64, Vec<u8>),
    Prefetch(u64, u64),
    WriteBack(u64, u64),
    Sync,
}

fn stretch(longest: u64) -> impl Strategy<Value = (u64, u64)> {
    (0..LEN as u64, 0..longest).prop_map(|(offset, len)| (offset, len.min(LEN as u64 - offset)))
}

fn step() -> impl Strategy<Value = Step> {
    let writes = |longest| {
        (stretch(longest), any::<u8>()).prop_map(|((offset, len), with)| {
            Step::Write(offset, (0..len).map(|at| (at as u8).wrapping_mul(3).wrapping_add(with)).collect())
        })
    };
    let reads = |longest| stretch(longest).prop_map(|(offset, len)| Step::Read(offset, len as usize));
    prop_oneof![
        6 => reads(3 * LINE),
        2 => reads(3 * BLOCK),
        6 => writes(3 * LINE),
        1 => writes(3 * BLOCK),
        2 => stretch(3 * BLOCK).prop_map(|(offset, len)| Step::Prefetch(offset, len)),
        1 => stretch(3 * BLOCK).prop_map(|(offset, len)| Step::WriteBack(offset, len)),
        1 => Just(Step::Sync),
    ]
}

proptest! {
    #[test]
    fn what_is_read_is_what_was_written_last(steps in prop::collection::vec(step(), 1..300)) {
        // So few lines that most are written back for others, long before they are asked to.
        let (cache, elsewhere) = (cache(MIN_LINES), Elsewhere::new());
        let mut expected = elsewhere.bytes.borrow().clone();
        for step in steps {
            match step {
                Step::Read(offset, len) => {
                    let bytes = read(&cache, &elsewhere, offset, len);
                    prop_assert_eq!(&bytes[..], &expected[offset as usize..][..len]);
                }
                Step::Write(offset, from) => {
                    cache.write(&elsewhere, offset, (&from).into()).unwrap();
                    expected[offset as usize..][..from.len()].copy_from_slice(&from);
                }
                Step::Prefetch(offset, len) => cache.prefetch(&elsewhere, offset, len),
                Step::WriteBack(offset, len) => {
                    cache.write_back(&elsewhere, offset, len).unwrap();
                    let there = elsewhere.bytes.borrow();
                    let stretch = offset as usize..(offset + len) as usize;
                    prop_assert_eq!(&there[stretch.clone()], &expected[stretch]);
                }
                Step::Sync => {
                    cache.sync(&elsewhere).unwrap();
                    prop_assert_eq!(&*elsewhere.bytes.borrow(), &expected);
                }
            }
        }
        cache.sync(&elsewhere).unwrap();
        prop_assert_eq!(&*elsewhere.bytes.borrow(), &expected);
    }
}

#[test]
fn cached_lines_are_not_requested_again_until_synced() {
    let (cache, elsewhere) = (cache(1024), Elsewhere::new());
    let before = read(&cache, &elsewhere, 100, 50);
    elsewhere.bytes.borrow_mut()[100..150].fill(7);
    assert_eq!(read(&cache, &elsewhere, 100, 50), before);
    assert_eq!((elsewhere.gets.get(), elsewhere.asks.get()), (1, 0));
    cache.sync(&elsewhere).unwrap();
    assert_eq!(read(&cache, &elsewhere, 100, 50), [7; 50], "what others wrote is seen after it");
}

#[test]
fn writes_back_only_written_bytes_beside_writes_of_others() {
    let (cache, elsewhere) = (cache(1024), Elsewhere::new());
    for offset in [10, 11, 30] {
        cache.write(&elsewhere, offset, (&[1]).into()).unwrap();
    }
    // One that was read as a whole before.
    read(&cache, &elsewhere, 5 * LINE, 1);
    cache.write(&elsewhere, 5 * LINE + 3, (&[2, 2]).into()).unwrap();
    elsewhere.bytes.borrow_mut()[..6 * LINE as usize].fill(9);
    // It was written back when another stretch of its line was written.
    elsewhere.bytes.borrow_mut()[10..12].fill(1);
    cache.sync(&elsewhere).unwrap();
    let mut expected = vec![9; 6 * LINE as usize];
    [10, 11, 30].into_iter().for_each(|at| expected[at] = 1);
    [3, 4].into_iter().for_each(|at| expected[5 * LINE as usize + at] = 2);
    assert_eq!(elsewhere.bytes.borrow()[..6 * LINE as usize], expected);
    assert_eq!((elsewhere.gets.get(), elsewhere.puts.get()), (1, 3), "writing needs no reading");
}

#[test]
fn who_reads_one_after_the_other_finds_the_next_here() {
    let (cache, elsewhere) = (cache(4096), Elsewhere::new());
    // Two at once, each in its own half, in small steps.
    for at in (0..LEN / 2).step_by(32) {
        for offset in [at, LEN / 2 + at] {
            let bytes = read(&cache, &elsewhere, offset as u64, 32);
            assert_eq!(bytes, elsewhere.bytes.borrow()[offset..offset + 32]);
        }
    }
    let (gets, asks) = (elsewhere.gets.get(), elsewhere.asks.get());
    assert!(gets <= 2 * 2 && asks <= 40, "{gets} gets and {asks} asked ahead, of 40 blocks");
}

#[test]
fn who_reads_here_and_there_brings_no_more_than_that() {
    let (cache, elsewhere) = (cache(4096), Elsewhere::new());
    for number in 0..40 {
        read(&cache, &elsewhere, number * 37 % 40 * BLOCK + number % 7 * LINE, 8);
    }
    assert_eq!((elsewhere.gets.get(), elsewhere.asks.get()), (40, 0));
}

#[test]
fn failed_transfers_are_errors_and_lose_no_cached_bytes() {
    let (cache, elsewhere) = (cache(1024), Elsewhere::new());
    cache.write(&elsewhere, 0, (&[5; 10]).into()).unwrap();
    cache.prefetch(&elsewhere, 8 * BLOCK, 1);
    elsewhere.is_lost.set(true);
    cache.prefetch(&elsewhere, 9 * BLOCK, 1);
    assert!(cache.read(&elsewhere, 9 * BLOCK, (&mut [0; 4]).into()).is_err());
    assert!(cache.sync(&elsewhere).is_err());
    assert_eq!(read(&cache, &elsewhere, 0, 10), [5; 10]);
    elsewhere.is_lost.set(false);
    cache.sync(&elsewhere).unwrap();
    assert_eq!(elsewhere.bytes.borrow()[..10], [5; 10]);
    assert_eq!(read(&cache, &elsewhere, 9 * BLOCK, 4), elsewhere.bytes.borrow()[9 * BLOCK as usize..][..4]);
}
