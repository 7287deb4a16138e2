//! The store of several managers: streams of a NATS server with JetStream.
//!
//! Each kind of key is one stream, in which a key is a subject with its last value, and its version that message's
//! sequence number. All blobs together are one stream. The server keeps them in files. With [`NatsOptions::replicas`]
//! above 1 a cluster keeps that many copies, and acknowledges messages that most of them have. Messages that a single
//! server has acknowledged outlive its death but not that of its machine, unless the server is set to write at once
//! (`sync_interval`).
//!
//! The server makes each change whole but not several together: see [`Store::commit`] for the consequences. A commit
//! sends
//! all changes of a step before it waits for the first answer, so a thousand cost little more than one.
//!
//! A scan asks for the keys first and then for the values of its page: the server has no order of its own. Its cost
//! grows with the keys of the prefix, and several pages in a row share the first step.
//!
//! Limit the stored bytes for the server (`max_file_store`), not for an account (`max_disk`): nats-server 2.9.10 looks
//! at the limit of an account after it has written, and a key whose new value is refused has lost its old one.
//!
//! Each value has a checksum in a header of its message. If the server finds its own checksum of a message wrong, it
//! lists the message but reports it as missing: this distinguishes it from a removed one. Records have
//! [second copies](copies). By these, records that a server has dropped from the middle of a stream are noticed
//! and put back. The manager notes the last sequence number of each stream in its state folder, so that a server that
//! has lost messages is not taken for one that never had them.
//!
//! Nothing here leaves a mark where a key was removed, so removing works on a full server.

mod copies;
mod link;
mod listing;
mod names;
mod operations;
mod options;
mod rebuild;
mod sequences;
mod servers;
mod text;

pub use options::NatsOptions;
pub use servers::connect;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use async_nats::jetstream::message::StreamMessage;
use sublet_proto::{Code, Error};

use self::link::NatsConnection;
use self::names::{StoreStream, StreamNames};
use self::operations::Change;
use self::sequences::{ReachedSequences, Sequences};
use super::journal::{is_copied, is_journaled};
use super::{
    AuditReport, Batch, Blob, BlobPart, Store, StoreCopy, StoreRecord, VersionedValue, check_key, check_part,
    check_value, kind, listed, version,
};

/// Records that are requested at a time before the first answer has come.
const WINDOW_RECORDS: usize = 256;

/// A [`Store`] on a server.
pub struct NatsStore {
    link: NatsConnection,
    names: StreamNames,
    replicas: usize,
    /// Streams that are known to exist.
    known: RefCell<HashSet<String>>,
    /// Keys that the last page of a scan has left.
    listing: RefCell<Option<Listing>>,
    /// Notes of the last sequence number of each stream, if they are kept.
    reached: RefCell<Option<ReachedSequences>>,
}

/// A record that was stored: its key and value, and the sequence number of its message.
type StoredRecord<'a> = (&'a str, &'a [u8], u64);

/// The keys of a prefix, in order: a scan of several pages lists them once.
struct Listing {
    prefix: String,
    keys: Vec<String>,
    /// The key that the last page ended with.
    reached: Option<String>,
}

/// Where a page of a scan begins, and its direction.
#[derive(Clone, Copy)]
enum ScanStart<'a> {
    After(Option<&'a str>),
    Before(Option<&'a str>),
}

impl NatsStore {
    /// Connects to the store, and makes it if it does not exist.
    ///
    /// # Errors
    /// `invalid_argument` if the address or the name is not valid, `store_unreachable` if no server answers or it
    /// refuses.
    pub fn open(options: &NatsOptions) -> Result<NatsStore, Error> {
        let names = StreamNames::new(&options.name)?;
        let link = NatsConnection::open(options)?;
        let replicas = options.replicas;
        Ok(NatsStore {
            link,
            names,
            replicas,
            known: RefCell::default(),
            listing: RefCell::default(),
            reached: RefCell::default(),
        })
    }

    /// Opens the store as [`NatsStore::open`] does, and notes in a file the last sequence number of each stream.
    ///
    /// # Errors
    /// `store_damaged` if a stream ends before a message that the file knows of, `version_mismatch` if a later version has
    /// written the records.
    pub fn open_noting(options: &NatsOptions, file: &Path) -> Result<NatsStore, Error> {
        let store = NatsStore::open(options)?;
        // Before anything is changed.
        version::check(&store)?;
        let unread = store.names.unread_log();
        let mut reached = ReachedSequences::read(file.to_owned())?;
        reached.forget(&unread);
        store.link.run(|jetstream| operations::remove_stream(jetstream, unread))?;
        let short = store.check_reached(&mut reached)?;
        *store.reached.borrow_mut() = Some(reached);
        let comparison = store.compare_at_start(&short)?;
        let report = &comparison.report;
        if !report.lost.is_empty() {
            return Err(store.damaged(report));
        }
        store.mend(&comparison)?;
        for note in &report.notes {
            tracing::warn!(note, "the servers of the store have lost records that have no copies");
        }
        if !report.restored.is_empty() {
            let records = listed(&report.restored);
            tracing::warn!(
                records,
                "the servers of the store had lost records, which their copies have put back"
            );
        }
        Ok(store)
    }

    /// Compares the last sequence numbers of streams with the notes. Streams whose records have copies may have lost
    /// some, if the stream of the copies has not. Returns the kinds of their keys.
    fn check_reached(&self, reached: &mut ReachedSequences) -> Result<BTreeSet<String>, Error> {
        let streams = reached.streams();
        let states = self.link.run_long(|jetstream| operations::states(jetstream, streams))?;
        let found = states.into_iter().map(|(stream, state)| (stream, state.last_sequence)).collect();
        let prefix = self.names.keys_prefix();
        let mut short = BTreeSet::new();
        for stream in reached.streams() {
            let Some(kind) = stream.strip_prefix(&prefix).filter(|kind| is_journaled(kind)) else { continue };
            let copies = self.names.copies(kind).name;
            let has_copies = reached.knows(&copies) && !reached.is_short(&copies, &found);
            if has_copies && reached.is_short(&stream, &found) {
                tracing::warn!(stream, "the servers of the store have lost the end of a stream");
                reached.forget(&stream);
                short.insert(kind.to_owned());
            }
        }
        reached.check(&found)?;
        Ok(short)
    }

    fn damaged(&self, report: &AuditReport) -> Error {
        let message = format!(
            "the store on {} has lost records: {}. `sublet store check` lists all of them, `sublet store repair` continues without \
             them; or restore its streams",
            self.link.servers(),
            listed(&report.lost)
        );
        Error::new(Code::StoreDamaged, message)
    }

    /// Reads every record and package, and reports damaged and lost ones.
    ///
    /// # Errors
    /// `store_unreachable` if the server does not answer.
    pub fn check(&self) -> Result<AuditReport, Error> {
        let mut report = self.compare()?.report;
        self.examine_blobs(&mut report)?;
        Ok(report)
    }

    /// Checks the store as [`NatsStore::check`] does, and writes the copies of records that have none. A store of a
    /// version that copied fewer kinds gets its copies so.
    ///
    /// # Errors
    /// `store_unreachable` if the server does not answer, and `store_full` if it takes no data.
    pub fn check_and_copy(&self) -> Result<AuditReport, Error> {
        let comparison = self.compare()?;
        self.complete_copies(&comparison)?;
        let mut report = comparison.report;
        self.examine_blobs(&mut report)?;
        Ok(report)
    }

    /// Puts back records that have copies, and drops those that are lost.
    ///
    /// # Errors
    /// `store_unreachable` if the server does not answer, and `store_full` if it takes no data.
    pub fn repair(&mut self) -> Result<AuditReport, Error> {
        let comparison = self.compare()?;
        self.mend(&comparison)?;
        let mut report = comparison.report;
        self.examine_blobs(&mut report)?;
        Ok(report)
    }

    fn note(&self, acknowledged: Sequences) {
        if let Some(reached) = self.reached.borrow_mut().as_mut() {
            reached.note(acknowledged);
        }
    }

    /// A key's value, if it is the one that was written.
    fn value(key: &str, message: StreamMessage) -> Result<Vec<u8>, Error> {
        if operations::is_whole(key, &message) {
            return Ok(message.payload.to_vec());
        }
        let message = format!(
            "the store is damaged: the record {key:?} does not match its checksum (restore a backup of its stream)"
        );
        Err(Error::new(Code::StoreDamaged, message))
    }

    /// Makes a stream if it does not exist, and returns its name.
    fn ensure(&self, series: StoreStream) -> Result<String, Error> {
        let name = series.name.clone();
        if !self.known.borrow().contains(&name) {
            let replicas = self.replicas;
            self.link.run(|jetstream| operations::ensure(jetstream, series, replicas))?;
            self.known.borrow_mut().insert(name.clone());
        }
        Ok(name)
    }

    /// Makes changes that do not build on one another. Returns the sequence numbers of their messages.
    fn change(&self, changes: Vec<Change>) -> Result<Vec<u64>, Error> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let places = self.link.run_long(|jetstream| operations::publish_all(jetstream, changes))?;
        let mut last = Sequences::new();
        for (stream, sequence) in &places {
            let known = last.entry(stream.clone()).or_default();
            *known = (*known).max(*sequence);
        }
        self.note(last);
        Ok(places.into_iter().map(|(_, sequence)| sequence).collect())
    }

    /// Groups the puts of a batch by the kind of key.
    fn puts_by_kind<'a>(&self, batch: &'a Batch) -> Result<Vec<Vec<&'a StoreRecord>>, Error> {
        let mut kinds: Vec<(&str, Vec<&StoreRecord>)> = Vec::new();
        for put in &batch.puts {
            let kind = kind(&put.key)?;
            let place = kinds.iter().position(|(known, _)| *known == kind).unwrap_or_else(|| {
                kinds.push((kind, Vec::new()));
                kinds.len() - 1
            });
            kinds[place].1.push(put);
        }
        for (kind, _) in &kinds {
            self.ensure(self.names.keys(&format!("{kind}/"))?)?;
        }
        Ok(kinds.into_iter().map(|(_, puts)| puts).collect())
    }

    /// Stores records of one kind. Returns them with the sequence numbers of their messages.
    fn put_all<'a>(&self, puts: &[&'a StoreRecord]) -> Result<Vec<StoredRecord<'a>>, Error> {
        let change = |put: &&StoreRecord| Change::sealed(self.names.key(&put.key), &put.key, &put.value);
        let sequences = self.change(puts.iter().map(change).collect())?;
        let stored = puts.iter().zip(sequences);
        Ok(stored.map(|(put, sequence)| (put.key.as_str(), put.value.as_slice(), sequence)).collect())
    }

    /// Stores a record and its copy if the record's latest message has this sequence number; 0 if there is none.
    fn swap(&self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error> {
        let change = Change::sealed(self.names.key(key), key, value);
        let swapped = self.link.run(|jetstream| operations::publish_if(jetstream, change, version))?;
        let Some(swapped) = swapped else { return Ok(false) };
        let sequence = swapped.values().copied().max().unwrap_or_default();
        self.note(swapped);
        self.copy(&[(key, value, sequence)])?;
        Ok(true)
    }

    fn remove_keys(&self, keys: &[String]) -> Result<(), Error> {
        self.remove_copies(keys.iter().map(String::as_str))?;
        let place = |key: &String| Ok((self.ensure(self.names.keys(key)?)?, self.names.key(key)));
        self.remove(keys.iter().map(place).collect::<Result<_, Error>>()?)
    }

    /// Removes the last messages of subjects: a stream and a subject each.
    fn remove(&self, places: Vec<(String, String)>) -> Result<(), Error> {
        for window in places.chunks(WINDOW_RECORDS) {
            let window = window.to_vec();
            self.link.run(|jetstream| operations::remove_all(jetstream, window))?;
        }
        Ok(())
    }

    /// Returns the keys of a prefix in order: those of the page before, if this page continues it.
    fn list(&self, prefix: &str, side: ScanStart<'_>) -> Result<Listing, Error> {
        let (ScanStart::After(from) | ScanStart::Before(from)) = side;
        let goes_on =
            |last: &Listing| last.prefix == prefix && from.is_some() && last.reached.as_deref() == from;
        if let Some(last) = self.listing.borrow_mut().take().filter(goes_on) {
            return Ok(last);
        }
        Ok(Listing { prefix: prefix.to_owned(), keys: self.keys(prefix)?, reached: None })
    }

    /// All keys of a prefix in order, each once.
    fn keys(&self, prefix: &str) -> Result<Vec<String>, Error> {
        let stream = self.ensure(self.names.keys(prefix)?)?;
        let found = self.subjects(stream, self.names.below(prefix))?;
        let keys = found.iter().filter_map(|subject| self.names.key_of(subject));
        let mut keys: Vec<String> = keys.filter(|key| key.starts_with(prefix)).collect();
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }

    fn subjects(&self, stream: String, filter: String) -> Result<Vec<String>, Error> {
        self.link.run_long(|jetstream| listing::subjects(jetstream, stream, filter))
    }

    fn page(&self, prefix: &str, side: ScanStart<'_>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        let mut listing = self.list(prefix, side)?;
        let mut left = listing.from(side);
        let mut records: Vec<StoreRecord> = Vec::new();
        while records.len() < limit {
            let window_records = WINDOW_RECORDS.min(limit - records.len());
            let window: Vec<String> = left.by_ref().take(window_records).cloned().collect();
            if window.is_empty() {
                return Ok(records);
            }
            records.extend(self.read(window)?);
        }
        drop(left);
        listing.reached = records.last().map(|record| record.key.clone());
        *self.listing.borrow_mut() = Some(listing);
        Ok(records)
    }

    /// Reads the records of keys, omitting those that no longer exist.
    fn read(&self, keys: Vec<String>) -> Result<Vec<StoreRecord>, Error> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let stream = self.ensure(self.names.keys(first)?)?;
        let subjects = keys.iter().map(|key| self.names.key(key)).collect();
        let of = stream.clone();
        let values = self.link.run(|jetstream| operations::last_of_each(jetstream, of, subjects))?;
        let mut records = Vec::with_capacity(keys.len());
        for (key, mut message) in keys.into_iter().zip(values) {
            if message.is_none() {
                // The key was listed.
                let (of, subject) = (stream.clone(), self.names.key(&key));
                message = self.link.run(|jetstream| operations::last_or_lost(jetstream, of, subject))?;
            }
            if let Some(message) = message {
                let value = NatsStore::value(&key, message)?;
                records.push(StoreRecord { key, value });
            }
        }
        Ok(records)
    }
}

impl Listing {
    /// The keys on one side, as a page has them.
    fn from<'a>(&'a self, side: ScanStart<'_>) -> Box<dyn Iterator<Item = &'a String> + 'a> {
        let count = |is_left_of: &dyn Fn(&str) -> bool| self.keys.partition_point(|key| is_left_of(key));
        match side {
            ScanStart::After(after) => {
                let skipped = after.map_or(0, |after| count(&|key| key <= after));
                Box::new(self.keys[skipped..].iter())
            }
            ScanStart::Before(before) => {
                let end = before.map_or(self.keys.len(), |before| count(&|key| key < before));
                Box::new(self.keys[..end].iter().rev())
            }
        }
    }
}

impl Store for NatsStore {
    fn get(&self, key: &str) -> Result<Option<VersionedValue>, Error> {
        check_key(key)?;
        let stream = self.ensure(self.names.keys(key)?)?;
        let subject = self.names.key(key);
        let kind = kind(key)?;
        let (of, at) = (stream.clone(), subject.clone());
        let mut found = if is_journaled(kind) {
            let copy = self.place_of_copy(key)?;
            self.link.run(|jetstream| operations::last_or_dropped(jetstream, of, at, copy))?
        } else {
            self.link.run(|jetstream| operations::last(jetstream, of, at))?
        };
        // One that was written last may have no copy yet. Kinds that grow have too many keys for the server's list.
        if found.is_none() && is_copied(kind) {
            found = self.link.run(|jetstream| operations::last_or_lost(jetstream, stream, subject))?;
        }
        let versioned = |found: StreamMessage| {
            let version = found.sequence;
            Ok(VersionedValue { value: NatsStore::value(key, found)?, version })
        };
        found.map(versioned).transpose()
    }

    fn compare_and_swap(&mut self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error> {
        check_key(key).and(check_value(key, value))?;
        self.ensure(self.names.keys(key)?)?;
        self.swap(key, version, value)
    }

    fn get_each(&self, keys: &[String]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = Vec::with_capacity(keys.len());
        for window in keys.chunks(WINDOW_RECORDS) {
            let Some(first) = window.first() else { break };
            let stream = self.ensure(self.names.keys(first)?)?;
            let subjects = window.iter().map(|key| self.names.key(key)).collect();
            let found = self.link.run(|jetstream| operations::last_of_each(jetstream, stream, subjects))?;
            for (key, message) in window.iter().zip(found) {
                values.push(message.map(|message| NatsStore::value(key, message)).transpose()?);
            }
        }
        Ok(values)
    }

    fn remove_if(&mut self, key: &str, version: u64) -> Result<bool, Error> {
        let (stream, subject) = (self.ensure(self.names.keys(key)?)?, self.names.key(key));
        let of = stream.clone();
        let found = self.link.run(|jetstream| operations::last(jetstream, of, subject))?;
        if found.is_none_or(|found| found.sequence != version) {
            return Ok(false);
        }
        self.remove_copies(std::iter::once(key))?;
        self.link.run(|jetstream| operations::delete(jetstream, stream, version))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        batch.check()?;
        let mut stored = Vec::with_capacity(batch.puts.len());
        for step in self.puts_by_kind(batch)? {
            stored.extend(self.put_all(&step)?);
        }
        self.copy(&stored)?;
        self.remove_keys(&batch.removes)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        self.page(prefix, ScanStart::After(after), limit)
    }

    fn scan_back(&self, prefix: &str, before: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        self.page(prefix, ScanStart::Before(before), limit)
    }

    fn begin_copy(&mut self) -> Result<StoreCopy, Error> {
        let message =
            "a store on NATS is backed up by its servers: `nats stream backup` for each of its streams";
        Err(Error::new(Code::InvalidArgument, message))
    }

    fn put_blob_part(&mut self, part: BlobPart<'_>, data: &[u8]) -> Result<(), Error> {
        check_part(data)?;
        self.ensure(self.names.blobs())?;
        let (first, rest) = operations::pieces(data, |piece| self.names.piece(part, piece));
        // The first piece has the length of the part: as long as it is missing, the part does not exist.
        self.change(rest)?;
        self.change(vec![first]).map(drop)
    }

    fn blob_part(&self, part: BlobPart<'_>) -> Result<Option<Vec<u8>>, Error> {
        let stream = self.ensure(self.names.blobs())?;
        let subjects = (0..operations::MAX_PIECES).map(|piece| self.names.piece(part, piece)).collect();
        let found = self.link.run(|jetstream| operations::last_of_each(jetstream, stream, subjects))?;
        Ok(operations::join(&found))
    }

    fn blobs(&self) -> Result<Vec<Blob>, Error> {
        let series = self.names.blobs();
        let all = series.subjects.clone();
        let stream = self.ensure(series)?;
        let found = self.link.run_long(|jetstream| listing::subjects(jetstream, stream, all))?;
        let mut blobs: BTreeMap<String, (BTreeSet<u32>, u64)> = BTreeMap::new();
        for (digest, part) in found.iter().filter_map(|subject| self.names.piece_of(subject)) {
            let (parts, pieces) = blobs.entry(digest).or_default();
            parts.insert(part);
            *pieces += 1;
        }
        let blob = |(digest, (parts, pieces)): (String, (BTreeSet<u32>, u64))| Blob {
            digest,
            parts: u32::try_from(parts.len()).unwrap_or(u32::MAX),
            bytes: pieces * operations::PIECE_BYTES as u64,
        };
        Ok(blobs.into_iter().map(blob).collect())
    }

    fn blob_parts(&self, digest: &str) -> Result<u32, Error> {
        let stream = self.ensure(self.names.blobs())?;
        let pieces = self.names.pieces(digest);
        let found = self.link.run_long(|jetstream| listing::subjects(jetstream, stream, pieces))?;
        let parts = found.iter().filter_map(|subject| self.names.piece_of(subject));
        let parts: BTreeSet<_> = parts.map(|(_, part)| part).collect();
        Ok(u32::try_from(parts.len()).unwrap_or(u32::MAX))
    }

    fn remove_blob(&mut self, digest: &str) -> Result<(), Error> {
        let stream = self.ensure(self.names.blobs())?;
        let (of, pieces) = (stream.clone(), self.names.pieces(digest));
        let found = self.link.run_long(|jetstream| listing::subjects(jetstream, of, pieces))?;
        self.remove(found.into_iter().map(|subject| (stream.clone(), subject)).collect())
    }
}
