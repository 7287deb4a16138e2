//! Where the manager keeps what must outlive it: one small trait, and SQLite behind it.
//!
//! A store has three things: keys with compare-and-swap, append-only logs, and blobs in parts. What stands under
//! which key is said in [`keys`]. A store may fail at any time because its disk is full ([`Code::StoreFull`]
//! names the folder); nothing is half done then, and the same call may be made again.
//!
//! [`Code::StoreFull`]: sublet_proto::Code::StoreFull

mod sqlite;

use sublet_proto::Error;

pub use sqlite::SqliteStore;

/// Size of each part of a blob but the last, in bytes: also what travels in one message.
pub const BLOB_PART_BYTES: usize = 1 << 20;

/// The keys and logs that the manager uses.
pub mod keys {
    /// How often a manager has started on this store: eight bytes, little endian.
    pub const EPOCH: &str = "manager/epoch";
    /// The secret from which the key of tickets is made: 32 bytes.
    pub const SIGNING_SEED: &str = "manager/signing-seed";
    /// Before a lease's identifier: the encoded `Lease`. Identifiers sort by the time of the grant.
    pub const LEASE: &str = "lease/";
    /// Before a digest: the encoded `PackageInfo`. It is written after the last part of the package's blob.
    pub const PACKAGE: &str = "package/";
    /// Before a package's name: the digest that it stands for.
    pub const NAME: &str = "name/";
    /// The log of deployments: encoded `PackageInfo`.
    pub const DEPLOYMENTS: &str = "deployments";
    /// The log of leases as they ended: encoded `Lease`.
    pub const ENDED_LEASES: &str = "ended-leases";
}

/// A value and how often it has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Vec<u8>,
    /// From 1; 0 stands for a key that is not there.
    pub version: u64,
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
}

/// Changes that are made all together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Keys that get a value, whatever they had.
    pub puts: Vec<Record>,
    /// Records to be added to logs: the name of the log stands in `key`.
    pub appends: Vec<Record>,
}

impl Batch {
    /// Gives a key a value.
    pub fn put(&mut self, key: String, value: Vec<u8>) {
        self.puts.push(Record { key, value });
    }

    /// Adds a record to a log.
    pub fn append(&mut self, log: &str, record: Vec<u8>) {
        self.appends.push(Record { key: log.to_owned(), value: record });
    }
}

/// A place in a blob.
#[derive(Clone, Copy, Debug)]
pub struct BlobPart<'a> {
    /// The blob's digest.
    pub digest: &'a str,
    /// Which part, from 0.
    pub index: u32,
}

/// What a manager needs of a store.
pub trait Store: Send {
    /// A key's value, if it is there.
    fn get(&self, key: &str) -> Result<Option<Versioned>, Error>;

    /// Gives a key a value if its version is still this one (0: it is not there); whether it did.
    fn compare_and_swap(&mut self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error>;

    /// Makes all of these changes, or none.
    fn commit(&mut self, batch: &Batch) -> Result<(), Error>;

    /// At most `limit` records whose keys begin with `prefix` and stand before `before`, the last first.
    fn scan_back(&self, prefix: &str, before: Option<&str>, limit: usize) -> Result<Vec<Record>, Error>;

    /// At most `limit` records of a log that stand after this sequence number, with theirs.
    fn read_log(&self, log: &str, after: u64, limit: usize) -> Result<Vec<(u64, Vec<u8>)>, Error>;

    /// Writes one part of a blob.
    fn put_blob_part(&mut self, part: BlobPart<'_>, data: &[u8]) -> Result<(), Error>;

    /// One part of a blob, if it is there.
    fn blob_part(&self, part: BlobPart<'_>) -> Result<Option<Vec<u8>>, Error>;

    /// Removes every part of a blob.
    fn remove_blob(&mut self, digest: &str) -> Result<(), Error>;
}
