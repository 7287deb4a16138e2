//! Compares files in chunks with plain vectors, in random orders of operations and losses of chunks.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::time::SystemTime;

use proptest::prelude::*;
use rustix::io::Errno;

use super::blocks::BLOCK_BYTES;
use super::contents::{Contents, Storage};
use super::extents::FileData;
use super::files::{NodeAttributes, NodeContent, ROOT};

const NOW: SystemTime = SystemTime::UNIX_EPOCH;
const OWN: NodeAttributes =
    NodeAttributes { mode: 0o700, uid: 1, gid: 1, accessed: NOW, modified: NOW, changed: NOW };
/// A chunk has two blocks, so that files span chunks.
const CHUNK_BYTES: u64 = 2 * BLOCK_BYTES;
const CHUNKS: u64 = 6;
const FILES: usize = 3;

/// Chunks in plain memory. A lost one keeps other bytes, which must not be seen.
#[derive(Debug, Default)]
struct PlainStorage {
    chunks: RefCell<HashMap<u32, Vec<u8>>>,
    lost: HashSet<u32>,
    refuses: bool,
}

impl PlainStorage {
    fn range(chunk: &[u8], offset: u64, len: usize) -> std::ops::Range<usize> {
        let start = usize::try_from(offset).unwrap();
        assert!(start + len <= chunk.len(), "{len} bytes at {start} of a chunk");
        start..start + len
    }

    fn lose_one(&mut self, which: prop::sample::Index) {
        let mut numbers: Vec<u32> = self.chunks.borrow().keys().copied().collect();
        numbers.sort_unstable();
        if !numbers.is_empty() {
            self.lost.insert(numbers[which.index(numbers.len())]);
        }
    }
}

impl Storage for PlainStorage {
    fn add(&mut self, chunk: u32) -> Result<(), Errno> {
        if self.refuses {
            return Err(Errno::NOSPC);
        }
        let bytes = vec![0; usize::try_from(CHUNK_BYTES).unwrap()];
        assert!(self.chunks.borrow_mut().insert(chunk, bytes).is_none(), "chunk {chunk} is there twice");
        Ok(())
    }

    fn remove(&mut self, chunk: u32) {
        assert!(self.chunks.borrow_mut().remove(&chunk).is_some(), "chunk {chunk} is given back twice");
    }

    fn read(&self, chunk: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        if self.lost.contains(&chunk) {
            into.fill(0xee);
            return Err(Errno::IO);
        }
        let chunks = self.chunks.borrow();
        let bytes = &chunks[&chunk];
        into.copy_from_slice(&bytes[PlainStorage::range(bytes, offset, into.len())]);
        Ok(())
    }

    fn write(&self, chunk: u32, offset: u64, from: &[u8]) -> Result<(), Errno> {
        if self.lost.contains(&chunk) {
            return Err(Errno::IO);
        }
        let mut chunks = self.chunks.borrow_mut();
        let bytes = chunks.get_mut(&chunk).unwrap();
        let range = PlainStorage::range(bytes, offset, from.len());
        bytes[range].copy_from_slice(from);
        Ok(())
    }
}

fn contents() -> Contents<PlainStorage> {
    Contents::new(OWN, PlainStorage::default(), CHUNK_BYTES, CHUNKS * CHUNK_BYTES)
}

fn create(contents: &mut Contents<PlainStorage>, name: &str) -> u64 {
    contents.files.create(ROOT, OsStr::new(name), NodeContent::File(FileData::default()), OWN).unwrap()
}

fn remove(contents: &mut Contents<PlainStorage>, name: &str, number: u64) {
    let removed = contents.files.unlink(ROOT, OsStr::new(name), NOW).unwrap();
    assert!(removed.is_none(), "the kernel knows the file");
    let forgotten = contents.files.forget(number, 1);
    contents.free(forgotten);
}

#[derive(Clone, Debug)]
enum Operation {
    Write(u64, usize, u8),
    Read(u64, usize),
    SetLen(u64),
    Punch(u64, u64),
    Reserve(u64, u64, bool),
    Replace,
    Lose(prop::sample::Index),
}

fn operation(losses: bool) -> impl Strategy<Value = Operation> {
    let at = || 0..4 * BLOCK_BYTES;
    let len = || 1..200_000_usize;
    prop_oneof![
        6 => (at(), len(), any::<u8>()).prop_map(|(at, len, byte)| Operation::Write(at, len, byte)),
        6 => (at(), len()).prop_map(|(at, len)| Operation::Read(at, len)),
        2 => at().prop_map(Operation::SetLen),
        2 => (at(), 1..3 * BLOCK_BYTES).prop_map(|(at, len)| Operation::Punch(at, len)),
        1 => (at(), 1..2 * BLOCK_BYTES, any::<bool>())
            .prop_map(|(at, len, keeps_len)| Operation::Reserve(at, len, keeps_len)),
        1 => Just(Operation::Replace),
        1 => any::<prop::sample::Index>()
            .prop_map(move |which| if losses { Operation::Lose(which) } else { Operation::Replace }),
    ]
}

/// Files in chunks beside their models.
struct ComparedFiles {
    contents: Contents<PlainStorage>,
    numbers: Vec<u64>,
    models: Vec<Vec<u8>>,
    has_losses: bool,
}

fn index(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

impl ComparedFiles {
    fn new() -> ComparedFiles {
        let mut contents = contents();
        let numbers = (0..FILES).map(|file| create(&mut contents, &file.to_string())).collect();
        ComparedFiles { contents, numbers, models: vec![Vec::new(); FILES], has_losses: false }
    }

    /// Whether an operation failed as it may: there is too little memory, or bytes are lost.
    fn may_fail(&self, error: Errno) -> bool {
        error == Errno::NOSPC || (error == Errno::IO && self.has_losses)
    }

    fn apply(&mut self, file: usize, operation: &Operation) {
        let (number, model) = (self.numbers[file], &mut self.models[file]);
        match *operation {
            Operation::Write(at, len, byte) => {
                let bytes: Vec<u8> = (0..len).map(|place| byte.wrapping_add((place % 251) as u8)).collect();
                match self.contents.write(number, at, &bytes, NOW) {
                    Ok(()) => {
                        let end = index(at) + len;
                        model.resize(model.len().max(end), 0);
                        model[index(at)..end].copy_from_slice(&bytes);
                    }
                    Err(error) => {
                        assert!(self.may_fail(error), "{error}");
                        self.replace(file);
                    }
                }
            }
            Operation::Read(at, len) => self.read(file, at, len),
            Operation::SetLen(len) => {
                self.contents.set_len(number, len, NOW).unwrap();
                model.resize(index(len), 0);
            }
            Operation::Punch(at, len) => {
                self.contents.punch(number, at, len, NOW).unwrap();
                let end = index(at + len).min(model.len());
                model[index(at).min(end)..end].fill(0);
            }
            Operation::Reserve(at, len, keeps_len) => {
                match self.contents.reserve(number, (at, len), keeps_len, NOW) {
                    Ok(()) if keeps_len => {}
                    Ok(()) => model.resize(model.len().max(index(at + len)), 0),
                    Err(error) => assert!(self.may_fail(error), "{error}"),
                }
            }
            Operation::Replace => self.replace(file),
            Operation::Lose(which) => {
                self.contents.storage.lose_one(which);
                self.has_losses = true;
            }
        }
    }

    fn replace(&mut self, file: usize) {
        remove(&mut self.contents, &file.to_string(), self.numbers[file]);
        self.numbers[file] = create(&mut self.contents, &file.to_string());
        self.models[file].clear();
    }

    fn read(&mut self, file: usize, at: u64, len: usize) {
        let mut bytes = vec![0x77; len];
        match self.contents.read(self.numbers[file], at, &mut bytes) {
            Ok(read) => {
                let model = &self.models[file];
                let start = index(at).min(model.len());
                let end = (start + len).min(model.len());
                assert!(bytes[..read] == model[start..end], "{len} bytes at {at} of file {file}");
            }
            Err(error) => assert!(self.may_fail(error), "{error}"),
        }
    }

    fn check(&mut self) {
        for file in 0..FILES {
            self.read(file, 0, 8 * index(BLOCK_BYTES));
            let len_bytes = self.contents.files.data(self.numbers[file]).unwrap().len_bytes();
            assert_eq!(index(len_bytes), self.models[file].len());
        }
        let chunks = self.contents.storage.chunks.borrow().len() as u64;
        assert!(self.has_losses || chunks <= CHUNKS, "{chunks} chunks");
    }
}

proptest! {
    #[test]
    fn files_hold_what_was_written(
        steps in prop::collection::vec((0..FILES, operation(false)), 1..60),
    ) {
        let mut compared = ComparedFiles::new();
        for (file, operation) in &steps {
            compared.apply(*file, operation);
        }
        compared.check();
    }

    #[test]
    fn lost_bytes_are_errors_and_never_other_bytes(
        steps in prop::collection::vec((0..FILES, operation(true)), 1..60),
    ) {
        let mut compared = ComparedFiles::new();
        for (file, operation) in &steps {
            compared.apply(*file, operation);
        }
        compared.check();
    }
}

#[test]
fn punched_bytes_become_zeros_beside_a_lost_chunk() {
    let mut contents = contents();
    let other = create(&mut contents, "other");
    let file = create(&mut contents, "file");
    contents.write(other, 0, &[1], NOW).unwrap();
    contents.write(file, 0, &[1], NOW).unwrap();
    let chunk = *contents.storage.chunks.borrow().keys().next().unwrap();
    contents.storage.lost.insert(chunk);
    let bytes = vec![1; 2 * index(BLOCK_BYTES)];
    contents.write(file, BLOCK_BYTES, &bytes, NOW).unwrap();
    contents.punch(file, 1, BLOCK_BYTES + 9, NOW).unwrap();
    let mut read = [7; 20];
    assert_eq!(contents.read(file, BLOCK_BYTES, &mut read), Ok(20));
    assert_eq!(read, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    assert_eq!(contents.read(file, 0, &mut read), Err(Errno::IO));
}

#[test]
fn full_folder_refuses_writes_and_keeps_files() {
    let mut contents = contents();
    let first = create(&mut contents, "a");
    let whole = vec![7; index(CHUNKS * CHUNK_BYTES)];
    contents.write(first, 0, &whole, NOW).unwrap();
    assert_eq!(contents.usage().free, 0);
    let second = create(&mut contents, "b");
    assert_eq!(contents.write(second, 0, &[1], NOW), Err(Errno::NOSPC));
    let mut bytes = vec![0; whole.len()];
    assert_eq!(contents.read(first, 0, &mut bytes), Ok(whole.len()));
    assert!(bytes == whole);
    remove(&mut contents, "a", first);
    contents.write(second, 0, &[1], NOW).unwrap();
    assert_eq!(contents.storage.chunks.borrow().len(), 1);
}

#[test]
fn refused_lease_is_an_error_of_the_write() {
    let mut contents = contents();
    let file = create(&mut contents, "a");
    contents.storage.refuses = true;
    assert_eq!(contents.write(file, 0, &[1], NOW), Err(Errno::NOSPC));
    contents.storage.refuses = false;
    contents.write(file, 0, &[1], NOW).unwrap();
    assert_eq!(contents.files.data(file).unwrap().len_bytes(), 1);
}

#[test]
fn new_bytes_move_away_from_a_lost_chunk() {
    let mut contents = contents();
    let (first, second) = (create(&mut contents, "a"), create(&mut contents, "b"));
    contents.write(first, 0, &[1], NOW).unwrap();
    contents.storage.lost.insert(0);
    contents.write(second, 0, &[2], NOW).unwrap();
    let mut byte = [0];
    assert_eq!(contents.read(second, 0, &mut byte), Ok(1));
    assert_eq!(byte, [2]);
    assert_eq!(contents.read(first, 0, &mut byte), Err(Errno::IO));
    assert_eq!(contents.write(first, 0, &[3], NOW), Err(Errno::IO));
}

#[test]
fn late_write_that_fails_makes_its_bytes_unreadable() {
    let mut contents = contents();
    let file = create(&mut contents, "a");
    contents.write(file, 0, &[1; 10], NOW).unwrap();
    contents.storage.refuses = true;
    let late = contents.write_late(file, 2 * BLOCK_BYTES, &vec![2; index(2 * BLOCK_BYTES)], NOW);
    assert_eq!(late, Err(Errno::NOSPC));
    let mut bytes = [0; 10];
    assert_eq!(contents.read(file, 0, &mut bytes), Ok(10));
    assert_eq!(contents.read(file, 2 * BLOCK_BYTES, &mut bytes), Err(Errno::IO));
    contents.set_len(file, 10, NOW).unwrap();
    contents.set_len(file, 3 * BLOCK_BYTES, NOW).unwrap();
    assert_eq!(contents.read(file, 2 * BLOCK_BYTES, &mut bytes), Ok(10));
    assert_eq!(bytes, [0; 10]);
}

#[test]
fn late_write_that_fails_keeps_earlier_bytes_of_its_blocks() {
    let mut contents = contents();
    let file = create(&mut contents, "a");
    // The file ends in the last block of its chunk.
    let before = vec![5; index(CHUNK_BYTES) - 10];
    contents.write(file, 0, &before, NOW).unwrap();
    contents.storage.refuses = true;
    let late = contents.write_late(file, CHUNK_BYTES - 10, &[6; 20], NOW);
    assert_eq!(late, Err(Errno::NOSPC));
    let mut bytes = vec![0; index(CHUNK_BYTES)];
    assert_eq!(contents.read(file, 0, &mut bytes), Ok(index(CHUNK_BYTES)));
    assert!(bytes[..before.len()] == before[..] && bytes[before.len()..] == [6; 10]);
    assert_eq!(contents.read(file, CHUNK_BYTES, &mut bytes), Err(Errno::IO));
}

#[test]
fn late_write_beyond_the_largest_size_leaves_no_data() {
    let mut contents = contents();
    let file = create(&mut contents, "a");
    assert_eq!(contents.write_late(file, 1 << 50, &[1], NOW), Err(Errno::FBIG));
    assert_eq!(contents.read(file, 1 << 50, &mut [0]), Err(Errno::IO));
    contents.set_len(file, 10, NOW).unwrap();
    let data = contents.files.data(file).unwrap();
    assert_eq!((data.len_bytes(), data.blocks()), (10, 0));
}

#[test]
fn failed_write_leaves_zeros_behind_the_end() {
    let mut contents = contents();
    let (file, other) = (create(&mut contents, "a"), create(&mut contents, "b"));
    contents.write(file, 0, &[1; 10], NOW).unwrap();
    contents.write(other, 0, &[2], NOW).unwrap();
    // Each further chunk is lost at once, after the write has filled the file's first block.
    contents.storage.lost.extend(1..100);
    let bytes = vec![3; index(2 * BLOCK_BYTES)];
    assert_eq!(contents.write(file, 10, &bytes, NOW), Err(Errno::IO));
    contents.set_len(file, BLOCK_BYTES, NOW).unwrap();
    let mut read = vec![9; index(BLOCK_BYTES)];
    assert_eq!(contents.read(file, 0, &mut read), Ok(index(BLOCK_BYTES)));
    assert!(read[..10] == [1; 10] && read[10..].iter().all(|byte| *byte == 0));
}

#[test]
fn reservation_that_does_not_fit_takes_nothing() {
    let mut contents = contents();
    let file = create(&mut contents, "a");
    let whole = CHUNKS * CHUNK_BYTES;
    assert_eq!(contents.reserve(file, (0, whole + 1), false, NOW), Err(Errno::NOSPC));
    assert_eq!(contents.storage.chunks.borrow().len(), 0);
    contents.reserve(file, (0, whole), false, NOW).unwrap();
    contents.reserve(file, (1, whole - 1), false, NOW).unwrap();
    assert_eq!(contents.usage().free, 0);
}
