//! Keeps second copies of the most important records, and compares records with them.
//!
//! If a server finds damage in the middle of a stream's file, when it reads it again after it was killed, it drops
//! messages, and then reports that they do not exist. So each record of a kind that [matters](super::is_copied) is in a
//! second stream as well, whose message names the sequence number of the original. The copy is written after the record
//! and removed before it. If the record's stream has neither the original message nor a later one, the record was lost.
//! A record without its copy was being written when its manager died, or is of a version that made no copies.

use std::collections::{BTreeMap, BTreeSet};

use async_nats::jetstream::message::StreamMessage;
use sublet_proto::Error;

use super::super::{AuditReport, Blob, BlobPart, Store, VersionedValue, hex, keys, kind};
use super::operations::{self, Change};
use super::{NatsStore, WINDOW_RECORDS, is_copied};

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

/// Records of a kind by key: the sequence number of each message.
type SequenceNumbers = BTreeMap<String, u64>;

impl NatsStore {
    /// Writes the copies of records that were stored as messages of these sequence numbers.
    pub(super) fn copy(&self, records: &[(&str, &[u8], u64)]) -> Result<(), Error> {
        let records: Vec<_> =
            records.iter().filter(|(key, ..)| kind(key).is_ok_and(is_copied)).copied().collect();
        if records.is_empty() {
            return Ok(());
        }
        match self.write_copies(&records) {
            Err(error) if error.code == sublet_proto::Code::StoreFull => {
                // An older copy would take the place of a record that is lost.
                tracing::warn!(%error, "records are stored without copies");
                self.remove_copies(records.iter().map(|(key, ..)| *key))
            }
            copied => copied,
        }
    }

    /// Writes copies of records of any kind.
    pub(super) fn write_copies(&self, records: &[(&str, &[u8], u64)]) -> Result<(), Error> {
        self.ensure(self.names.copies())?;
        let copy = |(key, value, of): &(&str, &[u8], u64)| {
            Change::sealed(self.names.copy(key), key, value).copy_of(*of)
        };
        self.change(records.iter().map(copy).collect()).map(drop)
    }

    /// Removes the copies of keys.
    pub(super) fn remove_copies<'a>(&self, keys: impl Iterator<Item = &'a str>) -> Result<(), Error> {
        let copied = keys.filter(|key| kind(key).is_ok_and(is_copied));
        let stream = self.ensure(self.names.copies())?;
        self.remove(copied.map(|key| (stream.clone(), self.names.copy(key))).collect())
    }

    /// Reads every record of these kinds, and finds missing ones by their copies. Other kinds are examined as well if
    /// they have copies, since [`NatsStore::rebuild`] was interrupted, or if the server lists too few of their records.
    pub(super) fn compare(&self, which: impl Fn(&str) -> bool) -> Result<Comparison, Error> {
        let mut comparison = Comparison::default();
        let report = &mut comparison.report;
        let copies = self.copied_messages()?;
        let interrupted = copies.keys().map(|key| kind(key)).collect::<Result<BTreeSet<_>, _>>()?;
        let mut found = SequenceNumbers::new();
        let kinds = self.kinds()?;
        let unindexed = self.unindexed(&kinds)?;
        for kind in &kinds {
            let is_unindexed = unindexed.contains(kind);
            if !which(kind) && !interrupted.contains(kind.as_str()) && !is_unindexed {
                continue;
            }
            let mut records = self.examine(kind, report)?;
            // The copies of copied kinds are more reliable: by number a server may find values that were replaced.
            if is_unindexed && !is_copied(kind) {
                self.find_by_number(kind, &mut records, report)?;
            }
            report.records.insert(kind.clone(), records.len() as u64);
            found.extend(records);
        }
        for (key, of) in &copies {
            if found.get(key).is_none_or(|sequence| sequence < of) {
                self.look_after(key, report)?;
            }
        }
        let is_uncopied = |(key, sequence): &(String, u64)| {
            kind(key).is_ok_and(is_copied) && copies.get(key) != Some(sequence)
        };
        comparison.uncopied = found.into_iter().filter(is_uncopied).map(|(key, _)| key).collect();
        Ok(comparison)
    }

    /// Puts back the records of which copies are left, drops those that are lost, and writes missing copies.
    pub(super) fn mend(&self, comparison: &Comparison) -> Result<(), Error> {
        let AuditReport { lost, restored, .. } = &comparison.report;
        let lost: BTreeSet<&str> = lost.iter().filter_map(|lost| Some(lost.split_once(": ")?.0)).collect();
        let damaged = restored.iter().map(String::as_str).chain(lost.iter().copied()).map(kind);
        for kind in damaged.collect::<Result<BTreeSet<_>, _>>()? {
            self.rebuild(kind, &lost)?;
        }
        self.copy_again(&comparison.uncopied)
    }

    /// Returns the sequence number of the message that each copy is of.
    pub(super) fn copied_messages(&self) -> Result<SequenceNumbers, Error> {
        let series = self.names.copies();
        let all = series.subjects.clone();
        let stream = self.ensure(series)?;
        let mut copies = BTreeMap::new();
        let subjects = self.subjects(stream.clone(), all)?;
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

    /// Kinds of keys that have streams.
    fn kinds(&self) -> Result<Vec<String>, Error> {
        let prefix = self.names.keys_prefix();
        let streams = self.link.run_long(operations::stream_names)?;
        Ok(streams.iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect())
    }

    /// Returns the kinds whose streams have more messages than the server's index has subjects.
    fn unindexed(&self, kinds: &[String]) -> Result<BTreeSet<String>, Error> {
        let prefix = self.names.keys_prefix();
        let streams = kinds.iter().map(|kind| format!("{prefix}{kind}")).collect();
        let unindexed = self.link.run_long(|jetstream| operations::unindexed(jetstream, streams))?;
        Ok(unindexed.iter().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned).collect())
    }

    /// Adds the records of a kind that the server has and does not list, and reports them as restored.
    fn find_by_number(
        &self,
        kind: &str,
        records: &mut SequenceNumbers,
        report: &mut AuditReport,
    ) -> Result<(), Error> {
        for (key, record) in self.numbered(kind)? {
            if records.contains_key(&key) || self.is_listed(&key)? {
                continue;
            }
            records.insert(key.clone(), record.version);
            report.restored.push(key);
        }
        Ok(())
    }

    /// The records of a kind by the sequence numbers of their messages: a server finds these although it has lost its
    /// index of subjects.
    pub(super) fn numbered(&self, kind: &str) -> Result<BTreeMap<String, VersionedValue>, Error> {
        let stream = self.ensure(self.names.keys(&format!("{kind}/"))?)?;
        let messages = self.link.run_long(|jetstream| operations::each_by_sequence(jetstream, stream))?;
        let mut records = BTreeMap::new();
        for message in &messages {
            if let Some(key) =
                self.names.key_of(&message.subject).filter(|key| operations::is_whole(key, message))
            {
                records.insert(key, operations::versioned(message));
            }
        }
        Ok(records)
    }

    fn is_listed(&self, key: &str) -> Result<bool, Error> {
        let (stream, subject) = (self.ensure(self.names.keys(key)?)?, self.names.key(key));
        Ok(!self.subjects(stream, subject)?.is_empty())
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
        let looked = self.link.run(|jetstream| operations::last_or_lost(jetstream, stream, subject, None));
        match looked {
            Err(error) if error.code == sublet_proto::Code::StoreDamaged => Ok(true),
            looked => looked.map(|_| false),
        }
    }

    /// Looks again for a record that seemed to be missing, and reports it if it is: as restorable, if its copy is
    /// whole. Other managers may have changed it meanwhile.
    fn look_after(&self, key: &str, report: &mut AuditReport) -> Result<(), Error> {
        let Some((copy, of)) = self.copy_of(key)? else { return Ok(()) };
        let (stream, subject) = (self.ensure(self.names.keys(key)?)?, self.names.key(key));
        let current = self.link.run(|jetstream| operations::last(jetstream, stream, subject))?;
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

    /// Returns the copy of a record, and the sequence number of its original.
    pub(super) fn copy_of(&self, key: &str) -> Result<Option<(StreamMessage, u64)>, Error> {
        let (stream, subject) = (self.ensure(self.names.copies())?, self.names.copy(key));
        let copy = self.link.run(|jetstream| operations::last(jetstream, stream, subject))?;
        Ok(copy.and_then(|copy| operations::copied_sequence(&copy).map(|of| (copy, of))))
    }

    /// Writes the copies of records that have none, or an older one.
    fn copy_again(&self, keys: &[String]) -> Result<(), Error> {
        for key in keys {
            if let Some(found) = self.get(key)? {
                self.copy(&[(key.as_str(), found.value.as_slice(), found.version)])?;
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
