//! Defines the store of a manager: one small trait, with SQLite or NATS JetStream behind it.
//!
//! A store has two kinds of content: keys with compare-and-swap, and blobs in parts. [`keys`] lists the keys. A single
//! manager needs no server ([`SqliteStore`]); several managers share one store by a server of their own
//! ([`NatsStore`]).
//!
//! Any operation may fail because no space is left ([`Code::StoreFull`] names the store), and on a server because the
//! server does not answer in time ([`Code::StoreUnreachable`]). The same call may then be made again. An operation that
//! a server did not answer may nevertheless be made, even later: records that managers write by turns are written with
//! [`Store::compare_and_swap`].
//!
//! [`Code::StoreFull`]: sublet_proto::Code::StoreFull
//! [`Code::StoreUnreachable`]: sublet_proto::Code::StoreUnreachable

mod journal;
pub mod keys;
mod nats;
mod seal;
mod sqlite;
mod sync;
pub(crate) mod version;

use std::fmt;
use std::sync::Arc;

use sublet_proto::{Code, Error};

pub(crate) use keys::hex;
use keys::kind;
pub use nats::{NatsOptions, NatsStore, connect as connect_nats};
pub(crate) use sqlite::listed;
pub use sqlite::{AuditReport, SqliteStore, StoreCopy, check, repair};
pub use sync::SyncGroup;

/// Size of each part of a blob but the last, in bytes: also the size of one message's data.
pub const BLOB_PART_BYTES: usize = 1 << 20;
/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;
/// Largest value of a key, in bytes.
pub const MAX_VALUE_BYTES: usize = 512 << 10;
/// Bytes that each record counts beyond its content, so that empty records are bounded too.
pub(crate) const RECORD_BYTES: u64 = 512;

/// A value, and which writing of its key it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedValue {
    /// The value.
    pub value: Vec<u8>,
    /// Version of the value, which grows with each write; 0 stands for a key that does not exist.
    pub version: u64,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreRecord {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
}

/// Changes that are made together. See [`Store::commit`].
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Keys that get a value, whatever they had.
    pub puts: Vec<StoreRecord>,
    /// Keys to remove, if they exist.
    pub removes: Vec<String>,
}

impl Batch {
    /// Gives a key a value.
    pub fn put(&mut self, key: String, value: Vec<u8>) {
        self.puts.push(StoreRecord { key, value });
    }

    /// Takes a key away.
    pub fn remove(&mut self, key: String) {
        self.removes.push(key);
    }

    /// Checks that every store accepts each key and value.
    fn check(&self) -> Result<(), Error> {
        self.puts.iter().try_for_each(|put| check_key(&put.key).and(check_value(&put.key, &put.value)))?;
        self.removes.iter().try_for_each(|key| check_key(key))
    }
}

/// Position of a part in a blob.
#[derive(Clone, Copy, Debug)]
pub struct BlobPart<'a> {
    /// The blob's digest.
    pub digest: &'a str,
    /// Index of the part, from 0.
    pub index: u32,
}

/// A blob in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Digest under which it is stored.
    pub digest: String,
    /// Number of its parts that are stored.
    pub parts: u32,
    /// Upper bound of the bytes that these take.
    pub bytes: u64,
}

/// Size of a group of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordsSize {
    /// Number of records.
    pub records: u64,
    /// Bytes of their values.
    pub bytes: u64,
}

/// Whether changes leave the reserved part of the disk free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Changes leave the reserve free: those that users may make without limit.
    Kept,
    /// Changes may use the reserve: revocations, quotas, the ledger, starts, and changes that free space.
    Used,
}

/// A manager's store. Every method may block for seconds.
pub trait Store: Send {
    /// Returns a key's value, if it has one: the last one that was written when the call began, or a later one.
    fn get(&self, key: &str) -> Result<Option<VersionedValue>, Error>;

    /// Gives a key a value if its version is still this one (0: the key does not exist), and tells whether it did. A
    /// key that is changed by this method may be removed only when it has not changed for a day: an operation that a
    /// server did not answer is made by then.
    fn compare_and_swap(&mut self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error>;

    /// Returns the values of keys, `None` for those that do not exist, in the order of the keys.
    fn get_each(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        keys.iter().map(|key| Ok(self.get(key)?.map(|found| found.value))).collect()
    }

    /// Removes a key if its version is still this one, and tells whether it did.
    fn remove_if(&mut self, key: &str, version: u64) -> Result<bool, Error>;

    /// Makes these changes.
    ///
    /// SQLite makes all of them or none. On a server each change is made whole, but a failure may leave some made:
    /// making the same batch again completes it, for every change may be repeated. Changes are made in this
    /// order, each step when the one before it is complete: the puts, those of one kind of key after those of another,
    /// the kind that comes first in the batch first; then the removals.
    /// So a record that refers to one of a different kind never exists without it.
    fn commit(&mut self, batch: &Batch) -> Result<(), Error>;

    /// Returns at most `limit` records whose keys begin with `prefix` and come after `after`, in ascending order. The
    /// prefix contains a `/`. A record that exists from before the first page until after the last is in one of the
    /// pages.
    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error>;

    /// Scans as [`Store::scan`] does, from the end: the records before `before`, in descending order.
    fn scan_back(&self, prefix: &str, before: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error>;

    /// Writes one part of a blob: at most [`BLOB_PART_BYTES`].
    fn put_blob_part(&mut self, part: BlobPart<'_>, data: &[u8]) -> Result<(), Error>;

    /// Returns one part of a blob, if all of the part is stored.
    fn blob_part(&self, part: BlobPart<'_>) -> Result<Option<Vec<u8>>, Error>;

    /// Removes every part of a blob.
    fn remove_blob(&mut self, digest: &str) -> Result<(), Error>;

    /// Returns all blobs that have any part.
    fn blobs(&self) -> Result<Vec<Blob>, Error>;

    /// Returns the number of stored parts of a blob.
    fn blob_parts(&self, digest: &str) -> Result<u32, Error>;

    /// Returns the size of the records whose keys begin with `prefix`.
    fn size(&self, prefix: &str) -> Result<RecordsSize, Error> {
        let mut size = RecordsSize::default();
        let mut after = None;
        loop {
            let page = self.scan(prefix, after.as_deref(), PAGE_RECORDS)?;
            let Some(last) = page.last() else { return Ok(size) };
            size.records += page.len() as u64;
            size.bytes += page.iter().map(|record| record.value.len() as u64).sum::<u64>();
            after = Some(last.key.clone());
        }
    }

    /// Begins a copy of all of the store as it is now. The store can be used and changed while the copy is written.
    ///
    /// # Errors
    /// `try_later` while another copy is being made, and `invalid_argument` of a store on a server, which has its own way
    /// to be backed up.
    fn begin_copy(&mut self) -> Result<StoreCopy, Error>;

    /// Sets whether the changes from now on leave the reserve free. A server has its own limits, so only the embedded
    /// store has a reserve.
    fn set_reserve(&mut self, reserve: Reserve) {
        let _ = reserve;
    }

    /// Returns the group to [write through](SyncGroup::sync) before the changes since the last call of this are
    /// acknowledged, if any of them is to outlive the machine. Several callers do so together, and others use the store
    /// meanwhile.
    fn unsynced(&mut self) -> Option<Arc<SyncGroup>> {
        None
    }
}

/// Records that are read from a store at a time.
pub(crate) const PAGE_RECORDS: usize = 1000;

/// Shows every record whose key begins with `prefix`, in the order of their keys.
///
/// # Errors
/// Errors of the store, and the error of `visit`, which then sees no further record.
pub(crate) fn each_record(
    store: &dyn Store,
    prefix: &str,
    mut visit: impl FnMut(&StoreRecord) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut after = None;
    loop {
        let page = store.scan(prefix, after.as_deref(), PAGE_RECORDS)?;
        page.iter().try_for_each(&mut visit)?;
        match page.into_iter().last() {
            Some(last) => after = Some(last.key),
            None => return Ok(()),
        }
    }
}

fn check_key(key: &str) -> Result<(), Error> {
    if key.len() > MAX_KEY_BYTES {
        let message =
            format!("a key of the store has {} bytes, at most {MAX_KEY_BYTES} are allowed", key.len());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    kind(key).map(drop)
}

fn check_value(key: &str, value: &[u8]) -> Result<(), Error> {
    check_length(format_args!("value of {key:?}"), value, MAX_VALUE_BYTES)
}

fn check_part(data: &[u8]) -> Result<(), Error> {
    check_length(format_args!("part of a blob"), data, BLOB_PART_BYTES)
}

fn check_length(what: fmt::Arguments<'_>, data: &[u8], max_bytes: usize) -> Result<(), Error> {
    if data.len() <= max_bytes {
        return Ok(());
    }
    let message = format!("a {what} for the store has {} bytes, at most {max_bytes} are allowed", data.len());
    Err(Error::new(Code::InvalidArgument, message))
}
