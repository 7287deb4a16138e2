//! The store's journal: a second file, with a copy of the most important records and the latest changes.
//!
//! SQLite takes a damaged write-ahead log for one that ends before the damage: all later changes are lost without an
//! error. So each change is written here as well, right after it is committed. When the store is opened, changes that
//! it lacks are made again, and records that it has lost are put back.
//!
//! ```text
//! magic, then frames: length (4 bytes, little endian), seal (16 bytes), encoded Frame
//! ```
//!
//! The first frames are the base: the number of its last change, the tallies of all kinds at that time, and a copy of
//! every record of a kind that is [kept whole](is_copied). The others are one change each. A journal that has grown is
//! replaced by a new one. The new base, and the store as of that base, are on the disk before the old journal is
//! removed. Values above [`MAX_VALUE`] are left out: the journal only knows that they were written.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use prost::Message;
use sha2::{Digest, Sha256};
use sublet_proto::{Code, Error};

use super::seal::{RecordTally, SEAL_BYTES, Seal, Tallies, shorten};

const MAGIC: &[u8; 8] = b"SUBLETJ1";
const HEAD_BYTES: usize = 4 + SEAL_BYTES;
/// Largest value in the journal, in bytes: enough for the records of tokens, packages and leases, but not for messages
/// of runs.
const MAX_VALUE: usize = 64 << 10;
/// Largest frame, in bytes.
const MAX_FRAME_BYTES: usize = 16 << 20;
/// Changes after which a new journal is begun, in bytes.
const MAX_CHANGES_BYTES: u64 = 1 << 20;
/// Operations of one frame of the base.
const BASE_OPERATIONS: usize = 128;
const _: () =
    assert!(BASE_OPERATIONS * MAX_VALUE <= MAX_FRAME_BYTES / 2, "a frame of the base may be too long");

/// Kinds of keys that the journal leaves out, because they are written often and are worth little.
const LEFT_OUT: [&str; 2] = ["peer", "report"];
/// Kinds of keys that grow with use. The journal has their latest changes, and no copy of all of them.
pub(crate) const GROWING: [&str; 6] = ["lease", "usage", "folded", "spend", "run", "journal"];

/// Whether the journal keeps a copy of every record of a kind, and an acknowledged change of one survives a power cut:
/// kinds that do not grow with use.
pub(crate) fn is_copied(kind: &str) -> bool {
    !GROWING.contains(&kind) && !LEFT_OUT.contains(&kind)
}

/// Whether the journal has changes of a kind, and a store on NATS copies of its records.
pub(crate) fn is_journaled(kind: &str) -> bool {
    !LEFT_OUT.contains(&kind)
}

/// One change of one record.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RecordChange {
    /// The key.
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// The version that it got.
    #[prost(uint64, tag = "2")]
    pub(crate) version: u64,
    /// Whether it is a record of an append-only log of an earlier version, which is not read any more.
    #[prost(bool, tag = "3")]
    is_log: bool,
    /// The key was removed.
    #[prost(bool, tag = "4")]
    pub(crate) is_removal: bool,
    /// Value of the key; absent if it was removed, or is too large.
    #[prost(bytes = "vec", optional, tag = "5")]
    pub(crate) value: Option<Vec<u8>>,
}

impl RecordChange {
    /// Creates the operation that gives a key a value.
    pub(crate) fn put(key: &str, version: u64, value: &[u8]) -> RecordChange {
        RecordChange { key: key.to_owned(), version, value: short(value), ..RecordChange::default() }
    }

    /// Creates the operation that removes a key.
    pub(crate) fn remove(key: &str) -> RecordChange {
        RecordChange { key: key.to_owned(), is_removal: true, ..RecordChange::default() }
    }
}

fn short(value: &[u8]) -> Option<Vec<u8>> {
    (value.len() <= MAX_VALUE).then(|| value.to_vec())
}

#[derive(Clone, PartialEq, Message)]
struct JournalFrame {
    /// The number of the change. In the base: number of the last change before it.
    #[prost(uint64, tag = "1")]
    change: u64,
    #[prost(message, repeated, tag = "2")]
    operations: Vec<RecordChange>,
    #[prost(message, optional, tag = "3")]
    base: Option<Base>,
}

/// Header of a base, in its first frame.
#[derive(Clone, PartialEq, Message)]
struct Base {
    /// Copied records.
    #[prost(uint64, tag = "1")]
    copies: u64,
    #[prost(message, repeated, tag = "2")]
    tallies: Vec<KindTally>,
}

#[derive(Clone, PartialEq, Message)]
struct KindTally {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(uint64, tag = "2")]
    count: u64,
    #[prost(bytes = "vec", tag = "3")]
    sum: Vec<u8>,
}

/// Content of a journal, as far as it can be read.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Content {
    /// The last change before the base.
    pub(crate) base_change: u64,
    /// The tallies as of the base.
    pub(crate) tallies: Tallies,
    /// Copies of records as of the base.
    pub(crate) copies: Vec<RecordChange>,
    /// Changes since, with their numbers.
    pub(crate) changes: Vec<(u64, Vec<RecordChange>)>,
    /// Frames that fail their checksums, with others behind them.
    pub(crate) damaged_frames: u64,
    /// Whether the base is incomplete.
    pub(crate) lacks_base: bool,
}

impl Content {
    /// The number of the last change that the journal knows.
    pub(crate) fn last_change(&self) -> u64 {
        self.changes.last().map_or(self.base_change, |(number, _)| *number)
    }

    /// Tells whether a part of it is lost.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged_frames > 0 || self.lacks_base
    }
}

/// Header of a new journal.
pub(crate) struct NewBase<'a> {
    pub(crate) change: u64,
    pub(crate) tallies: &'a Tallies,
    /// Number of copies that follow.
    pub(crate) copies: u64,
}

/// A journal that changes are added to.
pub(crate) struct StoreJournal {
    path: PathBuf,
    file: File,
    len_bytes: u64,
    base_bytes: u64,
    frames: u64,
    /// Whether it lacks a change, because the disk was full or failed.
    is_behind: bool,
}

impl StoreJournal {
    /// Reads the journal at this path; `None` if there is none.
    ///
    /// # Errors
    /// `version_mismatch` if a later version has written it.
    pub(crate) fn read(path: &Path) -> Result<Option<Content>, Error> {
        match std::fs::read(path) {
            Ok(bytes) => refuse_later(path, &bytes).map(|()| Some(parse(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::new(Code::System, format!("cannot read {}: {error}", path.display()))),
        }
    }

    /// Replaces the journal at this path by one with this base. The base is on the disk when this returns.
    pub(crate) fn begin(
        path: &Path,
        base: &NewBase<'_>,
        copies: &mut dyn Iterator<Item = io::Result<RecordChange>>,
    ) -> io::Result<StoreJournal> {
        let new = path.with_extension("journal-new");
        let open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let mut writer = JournalFrames { file: BufWriter::new(&open), len_bytes: 0, frames: 0 };
        writer.file.write_all(MAGIC)?;
        writer.len_bytes += MAGIC.len() as u64;
        writer.write(&JournalFrame {
            change: base.change,
            base: Some(first(base)),
            ..JournalFrame::default()
        })?;
        loop {
            let operations: Vec<_> = copies.take(BASE_OPERATIONS).collect::<io::Result<_>>()?;
            if operations.is_empty() {
                break;
            }
            writer.write(&JournalFrame { change: base.change, operations, base: None })?;
        }
        writer.file.flush()?;
        let (len_bytes, frames) = (writer.len_bytes, writer.frames);
        drop(writer);
        open.sync_all()?;
        std::fs::rename(&new, path)?;
        let folder = path.parent().map_or(Path::new("."), |folder| folder);
        File::open(folder)?.sync_all()?;
        Ok(StoreJournal {
            path: path.to_owned(),
            file: open,
            len_bytes,
            base_bytes: len_bytes,
            frames,
            is_behind: false,
        })
    }

    /// The journal at this path, which takes no change until it is [begun](StoreJournal::begin) anew.
    pub(crate) fn behind(path: &Path) -> io::Result<StoreJournal> {
        let file = File::open(path)?;
        let len_bytes = file.metadata()?.len();
        let path = path.to_owned();
        Ok(StoreJournal { path, file, len_bytes, base_bytes: len_bytes, frames: 0, is_behind: true })
    }

    /// Adds a change. One that cannot be written leaves the journal behind until it is [begun](StoreJournal::begin) anew.
    pub(crate) fn add(&mut self, change: u64, mut operations: Vec<RecordChange>) -> io::Result<()> {
        operations.retain(|operation| operation.key.split('/').next().is_none_or(is_journaled));
        if operations.is_empty() || self.is_behind {
            return Ok(());
        }
        let frame = encode(self.frames, &JournalFrame { change, operations, base: None });
        let write = |frame: Vec<u8>| self.file.write_all_at(&frame, self.len_bytes).map(|()| frame.len());
        match frame.and_then(write) {
            Ok(len) => {
                self.len_bytes += len as u64;
                self.frames += 1;
                Ok(())
            }
            Err(error) => {
                self.is_behind = true;
                // Half a frame is not one, so it need not go.
                let _ = self.file.set_len(self.len_bytes);
                Err(error)
            }
        }
    }

    /// Whether a new one is to be begun.
    pub(crate) fn is_full(&self) -> bool {
        self.is_behind || self.len_bytes - self.base_bytes > MAX_CHANGES_BYTES.max(self.base_bytes)
    }

    /// Whether it lacks a change.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Returns the path of the journal.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

struct JournalFrames<'a> {
    file: BufWriter<&'a File>,
    len_bytes: u64,
    frames: u64,
}

impl JournalFrames<'_> {
    fn write(&mut self, frame: &JournalFrame) -> io::Result<()> {
        let bytes = encode(self.frames, frame)?;
        self.file.write_all(&bytes)?;
        self.len_bytes += bytes.len() as u64;
        self.frames += 1;
        Ok(())
    }
}

fn first(base: &NewBase<'_>) -> Base {
    let tally = |(kind, tally): (&String, &RecordTally)| KindTally {
        kind: kind.clone(),
        count: tally.count,
        sum: tally.sum.to_le_bytes().to_vec(),
    };
    Base { copies: base.copies, tallies: base.tallies.iter().map(tally).collect() }
}

/// Encodes a frame. One that is longer than a reader accepts is an error.
fn encode(number: u64, frame: &JournalFrame) -> io::Result<Vec<u8>> {
    let payload = frame.encode_to_vec();
    if payload.len() > MAX_FRAME_BYTES {
        let len = payload.len();
        return Err(io::Error::other(format!(
            "a frame of {len} bytes, at most {MAX_FRAME_BYTES} are allowed"
        )));
    }
    let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
    #[expect(clippy::cast_possible_truncation, reason = "checked above: `MAX_FRAME_BYTES` at most")]
    let len = payload.len() as u32;
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&frame_seal(number, &payload));
    bytes.extend_from_slice(&payload);
    Ok(bytes)
}

/// Bound to the frame's number, so that a missing or repeated frame is noticed.
fn frame_seal(number: u64, payload: &[u8]) -> Seal {
    let mut hash = Sha256::new();
    hash.update(number.to_le_bytes());
    hash.update(payload);
    shorten(hash)
}

/// Refuses a journal whose magic has a later number than this version's.
fn refuse_later(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let (series, [own]) = MAGIC.split_at(MAGIC.len() - 1) else { return Ok(()) };
    let later = bytes.strip_prefix(series).and_then(|rest| rest.first());
    match later.filter(|number| number.is_ascii_digit() && *number > own) {
        None => Ok(()),
        Some(number) => {
            let message = format!(
                "the store's journal {} has format {}, and this version reads up to {}: start the version that wrote it, \
                 or restore a backup of before",
                path.display(),
                char::from(*number),
                char::from(*own)
            );
            Err(Error::new(Code::VersionMismatch, message))
        }
    }
}

/// Reads the valid part. An incomplete frame at the end was being written when the manager died.
fn parse(bytes: &[u8]) -> Content {
    let mut content = Content { lacks_base: true, ..Content::default() };
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        content.damaged_frames = u64::from(!bytes.is_empty());
        return content;
    };
    let (mut number, mut copies, mut unread) = (0, None, 0);
    while let Some((payload, sealed, left)) = split(rest) {
        rest = left;
        let is_good = sealed == frame_seal(number, payload);
        number += 1;
        match JournalFrame::decode(payload) {
            Ok(frame) if is_good => {
                content.damaged_frames += std::mem::take(&mut unread);
                take(&mut content, frame, &mut copies);
            }
            _ => unread += 1,
        }
    }
    // A whole frame that fails is damage even at the end; the rest of a torn one is not.
    content.damaged_frames += unread;
    content.lacks_base = copies != Some(content.copies.len() as u64);
    content
}

fn take(content: &mut Content, mut frame: JournalFrame, copies: &mut Option<u64>) {
    frame.operations.retain(|operation| !operation.is_log);
    if let Some(base) = frame.base {
        content.base_change = frame.change;
        *copies = Some(base.copies);
        for kind in base.tallies {
            let sum = kind.sum.try_into().map_or(0, u128::from_le_bytes);
            content.tallies.insert(kind.kind, RecordTally { count: kind.count, sum });
        }
    } else if frame.change <= content.base_change && content.changes.is_empty() {
        content.copies.extend(frame.operations);
    } else {
        content.changes.push((frame.change, frame.operations));
    }
}

/// Returns a frame's payload and seal, and the bytes after it.
fn split(bytes: &[u8]) -> Option<(&[u8], Seal, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let (len, sealed) = head.split_at(4);
    let len = u32::from_le_bytes(len.try_into().ok()?) as usize;
    if len > MAX_FRAME_BYTES {
        return None;
    }
    let (payload, rest) = rest.split_at_checked(len)?;
    Some((payload, sealed.try_into().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_records_of_logs_that_earlier_versions_have_written() {
        let log = RecordChange { is_log: true, ..RecordChange::put("deployments", 1, b"x") };
        let operations = vec![log, RecordChange::put("token/a", 1, b"y")];
        let base = JournalFrame { base: Some(Base::default()), ..JournalFrame::default() };
        let change = JournalFrame { change: 1, operations, base: None };
        let bytes = [MAGIC.to_vec(), encode(0, &base).unwrap(), encode(1, &change).unwrap()].concat();
        let content = parse(&bytes);
        assert_eq!(content.changes, [(1, vec![RecordChange::put("token/a", 1, b"y")])]);
        assert!(!content.is_damaged());
    }

    #[test]
    fn refuses_frames_that_no_reader_accepts() {
        let frame = |len: usize| {
            let key = format!("token/{}", "a".repeat(len));
            let operations = vec![RecordChange::put(&key, 1, b"x")];
            encode(0, &JournalFrame { change: 1, operations, base: None })
        };
        let longest = frame(MAX_FRAME_BYTES - 1024).unwrap();
        assert!(split(&longest).is_some());
        let error = frame(MAX_FRAME_BYTES).unwrap_err().to_string();
        assert!(error.contains("at most 16777216"), "{error}");
    }
}
