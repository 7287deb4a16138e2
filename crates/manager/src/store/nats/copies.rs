//! Keeps second copies of records, and compares records with them.
//!
//! If a server finds damage in the middle of a stream's file, when it reads it again after it was killed, it drops
//! messages, and then reports that they do not exist. So each record is in a second stream as well, whose message names
//! the sequence number of the original. Only the kinds that [managers write each second](super::is_journaled) have no
//! copies. The copy is written after the record and removed before it. If the record's stream has neither the original
//! message nor a later one, the record was lost. A record without its copy was being written when its manager died, or
//! is of a version that made no copies.
//!
//! Kinds that [grow with use](super::is_copied) are compared at a start only if their streams show a loss: there can be
//! millions of these records. A [check](NatsStore::check) compares all of them.

use std::collections::{BTreeMap, BTreeSet};

use async_nats::jetstream::message::StreamMessage;
use sublet_proto::Error;

use super::super::journal::GROWING;
use super::super::{AuditReport, Blob, BlobPart, Store, VersionedValue, hex, keys, kind};
use super::names::StoreStream;
use super::operations::{self, Change, StreamState};
use super::{NatsStore, StoredRecord, WINDOW_RECORDS, is_copied, is_journaled};

use sha2::{Digest, Sha256};
use sublet_proto::package::is_digest;

/// Result of a comparison of records with their copies.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Lost records, and those of which copies are left.
    pub report: AuditReport,
    /// Records that have no copy, or an older one.
    uncopied: Vec<String>,
}

/// States of streams by name.
type StreamStates = BTreeMap<String, StreamState>;

/// Records of a kind by key: the sequence number of each message.
type SequenceNumbers = BTreeMap<String, u64>;

impl NatsStore {
    /// Writes the copies of records that were stored as messages of these sequence numbers.
    pub(super) fn copy(&self, records: &[StoredRecord<'_>]) -> Result<(), Error> {
        let records: Vec<_> =
            records.iter().filter(|(key, ..)| kind(key).is_ok_and(is_journaled)).copied().collect();
        match self.write_copies(&records) {
            Err(error) if error.code == sublet_proto::Code::StoreFull => {
                // An older copy would take the place of a record that is lost.
                tracing::warn!(%error, "records are stored without copies");
                self.remove_copies(records.iter().map(|(key, ..)| *key))
            }
            copied => copied,
        }
    }

    /// Writes copies of records.
    pub(super) fn write_copies(&self, records: &[StoredRecord<'_>]) -> Result<(), Error> {
        let copy = |(key, value, of): &StoredRecord<'_>| {
            self.ensure(self.names.copies(kind(key)?))?;
            Ok(Change::sealed(self.names.copy(key), key, value).copy_of(*of))
        };
        let copies = records.iter().map(copy).collect::<Result<_, Error>>()?;
        self.change(copies).map(drop)
    }

    /// Removes the copies of keys.
    pub(super) fn remove_copies<'a>(&self, keys: impl Iterator<Item = &'a str>) -> Result<(), Error> {
        let copied = keys.filter(|key| kind(key).is_ok_and(is_journaled));
        self.remove(copied.map(|key| self.place_of_copy(key)).collect::<Result<_, Error>>()?)
    }

    /// Returns the stream and the subject of the copy of a key's record.
    pub(super) fn place_of_copy(&self, key: &str) -> Result<(String, String), Error> {
        Ok((self.ensure(self.names.copies(kind(key)?))?, self.names.copy(key)))
    }

    /// Reads all records, and finds missing ones by their copies.
    pub(super) fn compare(&self) -> Result<Comparison, Error> {
        self.compare_kinds(|_, _| true)
    }

    /// Compares the records of these kinds, of kinds that do not grow, and of kinds whose streams show a loss.
    pub(super) fn compare_at_start(&self, short: &BTreeSet<String>) -> Result<Comparison, Error> {
        self.compare_kinds(|kind, states| {
            is_copied(kind) || short.contains(kind) || is_journaled(kind) && self.lacks_records(kind, states)
        })
    }

    fn compare_kinds(&self, is_compared: impl Fn(&str, &StreamStates) -> bool) -> Result<Comparison, Error> {
        let mut comparison = Comparison::default();
        let kinds = self.kinds()?;
        let states = self.states(&kinds)?;
        for kind in &kinds {
            if is_compared(kind, &states) {
                self.compare_kind(kind, &mut comparison)?;
            }
            let copies = self.names.copies(kind).name;
            if is_unindexed(&states, &self.names.stream_of_kind(kind)) && is_unindexed(&states, &copies) {
                let note = format!(
                    "the server lists fewer records of the kind {kind}, and fewer copies, than it has"
                );
                comparison.report.notes.push(note);
            }
        }
        Ok(comparison)
    }

    fn compare_kind(&self, kind: &str, comparison: &mut Comparison) -> Result<(), Error> {
        let report = &mut comparison.report;
        let copies = if is_journaled(kind) { self.copied_messages(kind)? } else { SequenceNumbers::new() };
        let found = self.examine(kind, report)?;
        if !found.is_empty() {
            report.records.insert(kind.to_owned(), found.len() as u64);
        }
        for (key, of) in &copies {
            if found.get(key).is_none_or(|sequence| sequence < of) {
                self.look_after(key, report)?;
            }
        }
        let is_uncopied = |(key, sequence): &(String, u64)| copies.get(key) != Some(sequence);
        if is_journaled(kind) {
            comparison.uncopied.extend(found.into_iter().filter(is_uncopied).map(|(key, _)| key));
        }
        Ok(())
    }

    /// Tells whether the stream of a kind has lost records: it has fewer than its copies, or is not indexed.
    fn lacks_records(&self, kind: &str, states: &StreamStates) -> bool {
        let messages = |stream: &str| states.get(stream).map_or(0, |state| state.messages);
        let stream = self.names.stream_of_kind(kind);
        messages(&stream) < messages(&self.names.copies(kind).name) || is_unindexed(states, &stream)
    }

    /// Returns the states of the streams of kinds, and of their copies.
    fn states(&self, kinds: &BTreeSet<String>) -> Result<StreamStates, Error> {
        let streams =
            kinds.iter().flat_map(|kind| [self.names.stream_of_kind(kind), self.names.copies(kind).name]);
        let streams = streams.collect();
        self.link.run_long(|jetstream| operations::states(jetstream, streams))
    }

    /// Puts back the records of which copies are left, drops those that are lost, and writes missing copies.
    pub(super) fn mend(&self, comparison: &Comparison) -> Result<(), Error> {
        let AuditReport { lost, restored, .. } = &comparison.report;
        let lost: BTreeSet<&str> = lost.iter().filter_map(|lost| Some(lost.split_once(": ")?.0)).collect();
        let damaged = restored.iter().map(String::as_str).chain(lost.iter().copied()).map(kind);
        for kind in damaged.collect::<Result<BTreeSet<_>, _>>()? {
            self.rebuild(kind, &lost)?;
        }
        self.complete_copies(comparison)
    }

    /// Writes missing copies.
    pub(super) fn complete_copies(&self, comparison: &Comparison) -> Result<(), Error> {
        self.copy_again(&comparison.uncopied)
    }

    /// Returns the sequence number of the message that each copy of a kind's records is of.
    pub(super) fn copied_messages(&self, kind_of_keys: &str) -> Result<SequenceNumbers, Error> {
        let stream = self.ensure(self.names.copies(kind_of_keys))?;
        let mut copies = BTreeMap::new();
        let subjects = self.subjects(stream.clone(), self.names.copies_of(kind_of_keys))?;
        for window in subjects.chunks(WINDOW_RECORDS) {
            let (of, subjects) = (stream.clone(), window.to_vec());
            let messages = self.link.run(|jetstream| operations::last_of_each(jetstream, of, subjects))?;
            for (subject, message) in window.iter().zip(messages) {
                let of = message.as_ref().and_then(operations::copied_sequence);
                if let (Some(key), Some(of)) = (self.names.copied_key_of(subject), of) {
                    copies.insert(key, of);
                }
            }
        }
        Ok(copies)
    }

    /// Kinds of keys that have streams, or copies: a server can lose a stream as a whole.
    fn kinds(&self) -> Result<BTreeSet<String>, Error> {
        let prefix = self.names.keys_prefix();
        let streams = self.link.run_long(operations::stream_names)?;
        let mut kinds: BTreeSet<String> =
            streams.iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect();
        let has_copies = |kind: &&str| streams.contains(&self.names.copies(kind).name);
        kinds.extend(GROWING.iter().copied().filter(has_copies).map(str::to_owned));
        let StoreStream { name, subjects } = self.names.shared_copies();
        if streams.contains(&name) {
            let copied = self.subjects(name, subjects)?;
            let keys = copied.iter().filter_map(|subject| self.names.copied_key_of(subject));
            kinds.extend(keys.filter_map(|key| kind(&key).ok().map(str::to_owned)));
        }
        Ok(kinds)
    }

    /// The sequence numbers of the records of a kind that can be read. Others are reported.
    fn examine(&self, kind: &str, report: &mut AuditReport) -> Result<SequenceNumbers, Error> {
        let mut sequences = SequenceNumbers::new();
        self.read_each(kind, |key, message| {
            match message {
                Some(message) if operations::is_whole(&key, &message) => {
                    sequences.insert(key, message.sequence);
                }
                Some(_) => report.lost.push(format!("{key}: its checksum is wrong")),
                None if self.is_unreadable(&key)? => {
                    report.lost.push(format!("{key}: the server lists it and cannot read it"));
                }
                None => {}
            }
            Ok(())
        })?;
        Ok(sequences)
    }

    /// The records of a kind that can be read, each with the sequence number of its message.
    pub(super) fn readable(&self, kind: &str) -> Result<BTreeMap<String, VersionedValue>, Error> {
        let mut records = BTreeMap::new();
        self.read_each(kind, |key, message| {
            if let Some(message) = message.filter(|message| operations::is_whole(&key, message)) {
                records.insert(key, operations::versioned(&message));
            }
            Ok(())
        })?;
        Ok(records)
    }

    /// Calls `take` with each listed key of a kind and its message, if the server can read it.
    fn read_each(
        &self,
        kind: &str,
        mut take: impl FnMut(String, Option<StreamMessage>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let prefix = format!("{kind}/");
        let stream = self.ensure(self.names.keys(&prefix)?)?;
        for window in self.keys(&prefix)?.chunks(WINDOW_RECORDS) {
            let subjects = window.iter().map(|key| self.names.key(key)).collect();
            let of = stream.clone();
            let messages = self.link.run(|jetstream| operations::last_of_each(jetstream, of, subjects))?;
            for (key, message) in window.iter().zip(messages) {
                take(key.clone(), message)?;
            }
        }
        Ok(())
    }

    fn is_unreadable(&self, key: &str) -> Result<bool, Error> {
        let (stream, subject) = (self.names.keys(key)?.name, self.names.key(key));
        let looked = self.link.run(|jetstream| operations::last_or_lost(jetstream, stream, subject));
        match looked {
            Err(error) if error.code == sublet_proto::Code::StoreDamaged => Ok(true),
            looked => looked.map(|_| false),
        }
    }

    /// Looks again for a record that seemed to be missing, and reports it if it is: as restorable, if its copy is
    /// whole. Other managers may have changed it meanwhile.
    fn look_after(&self, key: &str, report: &mut AuditReport) -> Result<(), Error> {
        let Some((copy, of)) = self.copy_of(key)? else { return Ok(()) };
        let current = self.last_message(key)?;
        // A damaged record that is later than its copy is lost: the older value may be of a token that was revoked since.
        let is_later = |current: StreamMessage| {
            current.sequence > of || current.sequence == of && operations::is_whole(key, &current)
        };
        if current.is_some_and(is_later) {
            return Ok(());
        }
        // A record that cannot be read was reported without regard to its copy.
        report.lost.retain(|lost| lost.split_once(": ").is_none_or(|(said, _)| said != key));
        match operations::is_whole(key, &copy) {
            true => report.restored.push(key.to_owned()),
            false => report.lost.push(format!("{key}: it is missing, and its copy is damaged")),
        }
        Ok(())
    }

    /// Returns the message of a record, without regard to its copy.
    fn last_message(&self, key: &str) -> Result<Option<StreamMessage>, Error> {
        let (stream, subject) = (self.ensure(self.names.keys(key)?)?, self.names.key(key));
        self.link.run(|jetstream| operations::last(jetstream, stream, subject))
    }

    /// Returns the copy of a record, and the sequence number of its original.
    pub(super) fn copy_of(&self, key: &str) -> Result<Option<(StreamMessage, u64)>, Error> {
        let (stream, subject) = self.place_of_copy(key)?;
        let copy = self.link.run(|jetstream| operations::last(jetstream, stream, subject))?;
        Ok(copy.and_then(|copy| operations::copied_sequence(&copy).map(|of| (copy, of))))
    }

    /// Writes the copies of records that have none, or an older one. Other managers may change or remove these records
    /// meanwhile: then their copies stay, and no copy is left of what they have removed.
    fn copy_again(&self, keys: &[String]) -> Result<(), Error> {
        for key in keys {
            let (stream, subject) = self.place_of_copy(key)?;
            let known = self.link.run(|jetstream| operations::last(jetstream, stream, subject.clone()))?;
            let Some(found) = self.get(key)? else { continue };
            let copy = Change::sealed(subject, key, &found.value).copy_of(found.version);
            let version = known.map_or(0, |known| known.sequence);
            let copied = self.link.run(|jetstream| operations::publish_if(jetstream, copy, version))?;
            self.note(copied.unwrap_or_default());
            // A record that was removed meanwhile has a copy now: for `get` it would be one that the server has lost.
            if self.last_message(key)?.is_none() {
                self.remove_copies(std::iter::once(key.as_str()))?;
            }
        }
        Ok(())
    }

    /// Reports packages and documents whose content does not match their digests.
    pub(super) fn examine_blobs(&self, report: &mut AuditReport) -> Result<(), Error> {
        let blobs = self.blobs()?;
        for Blob { digest, parts, .. } in blobs.iter().filter(|blob| is_digest(&blob.digest)) {
            let mut hash = Sha256::new();
            for index in 0..*parts {
                hash.update(self.blob_part(BlobPart { digest, index })?.unwrap_or_default());
            }
            if digest.strip_prefix("sha256:") != Some(&hex(&hash.finalize())) {
                report
                    .lost
                    .push(format!("content of {digest}: it is not what was deployed: deploy it again"));
            }
        }
        for key in self.keys(keys::PACKAGE)? {
            let digest = key.strip_prefix(keys::PACKAGE).unwrap_or_default();
            if is_digest(digest) && !blobs.iter().any(|blob| blob.digest == digest) {
                report.lost.push(format!("content of {digest}: it is missing: deploy it again"));
            }
        }
        Ok(())
    }
}

/// Tells whether the server lists fewer records of a stream than the stream has. Each subject has one message.
fn is_unindexed(states: &StreamStates, stream: &str) -> bool {
    states.get(stream).is_some_and(|state| state.messages > state.subjects)
}
