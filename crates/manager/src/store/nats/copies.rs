//! Keeps second copies of the records that matter most, and compares records with them.
//!
//! A server that finds damage in the middle of a stream's file, when it reads it anew after it was killed, drops messages, and then
//! says that there are none. So each record of a kind that [matters](super::is_copied) is in a second stream as well,
//! whose message says of which message it is the copy. It is written after the record and removed before it: a
//! copy of a message that the record's stream does not have, nor a later one, is of a record that was lost. A record without
//! its copy was being written when its manager died, or is of a version that made no copies.

use std::collections::BTreeMap;

use async_nats::jetstream::message::StreamMessage;
use sublet_proto::Error;

use super::super::{Blob, BlobPart, Report, Store, hex, keys, kind};
use super::operations::{self, Change};
use super::{NatsStore, WINDOW_RECORDS, is_copied};

use sha2::{Digest, Sha256};
use sublet_proto::package::is_digest;

/// Whether records that are lost are put back from their copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Losses {
    PutBack,
    OnlySaid,
}

impl NatsStore {
    /// Writes the copies of records that were stored as messages of these sequence numbers.
    pub(super) fn copy(&self, records: &[(&str, &[u8], u64)]) -> Result<(), Error> {
        let records: Vec<_> = records.iter().filter(|(key, ..)| kind(key).is_ok_and(is_copied)).collect();
        if records.is_empty() {
            return Ok(());
        }
        self.ensure(self.names.copies())?;
        let copy = |(key, value, of): &&(&str, &[u8], u64)| {
            Change::sealed(self.names.copy(key), key, value).copy_of(*of)
        };
        match self.change(records.iter().map(copy).collect()) {
            Err(error) if error.code == sublet_proto::Code::StoreFull => {
                // An older copy would take the place of a record that is lost.
                tracing::warn!(%error, "records are stored without copies");
                self.remove_copies(records.iter().map(|(key, ..)| *key))
            }
            copied => copied.map(drop),
        }
    }

    /// Removes the copies of keys.
    pub(super) fn remove_copies<'a>(&self, keys: impl Iterator<Item = &'a str>) -> Result<(), Error> {
        let copied = keys.filter(|key| kind(key).is_ok_and(is_copied));
        let stream = self.ensure(self.names.copies())?;
        self.remove(copied.map(|key| (stream.clone(), self.names.copy(key))).collect())
    }

    /// Reads every record, looks for those that are missing by their copies, and writes copies that are missing.
    pub(super) fn compare(&self, which: impl Fn(&str) -> bool, losses: Losses) -> Result<Report, Error> {
        let mut report = Report::default();
        let copies = self.copied_messages()?;
        let mut found = BTreeMap::new();
        for kind in self.kinds()?.iter().filter(|kind| which(kind)) {
            let records = self.examine(kind, &mut report)?;
            report.records.insert(kind.clone(), records.len() as u64);
            if is_copied(kind) {
                found.extend(records);
            }
        }
        for (key, of) in &copies {
            if which(kind(key)?) && found.get(key).is_none_or(|sequence| sequence < of) {
                self.look_after(key, losses, &mut report)?;
            }
        }
        if losses == Losses::PutBack {
            let without = found.iter().filter(|(key, sequence)| copies.get(*key) != Some(*sequence));
            self.copy_again(without.map(|(key, _)| key.clone()).collect())?;
        }
        Ok(report)
    }

    /// Which message each copy is of.
    fn copied_messages(&self) -> Result<BTreeMap<String, u64>, Error> {
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

    /// The sequence numbers of the records of a kind that can be read. Others are said.
    fn examine(&self, kind: &str, report: &mut Report) -> Result<BTreeMap<String, u64>, Error> {
        let prefix = format!("{kind}/");
        let stream = self.ensure(self.names.keys(&prefix)?)?;
        let mut sequences = BTreeMap::new();
        let keys = self.keys(&prefix)?;
        for window in keys.chunks(WINDOW_RECORDS) {
            let subjects = window.iter().map(|key| self.names.key(key)).collect();
            let of = stream.clone();
            let messages = self.link.run(|jetstream| operations::last_of_each(jetstream, of, subjects))?;
            for (key, message) in window.iter().zip(messages) {
                match message {
                    Some(message) if operations::is_whole(key, &message) => {
                        sequences.insert(key.clone(), message.sequence);
                    }
                    Some(_) => report.lost.push(format!("{key}: its checksum is wrong")),
                    None if self.is_unreadable(&stream, key)? => {
                        report.lost.push(format!("{key}: the server lists it and cannot read it"));
                    }
                    None => {}
                }
            }
        }
        Ok(sequences)
    }

    fn is_unreadable(&self, stream: &str, key: &str) -> Result<bool, Error> {
        let (stream, subject) = (stream.to_owned(), self.names.key(key));
        let looked = self.link.run(|jetstream| operations::last_or_lost(jetstream, stream, subject, None));
        match looked {
            Err(error) if error.code == sublet_proto::Code::StoreDamaged => Ok(true),
            looked => looked.map(|_| false),
        }
    }

    /// Looks again for a record that seemed to be missing, and puts it back if it is. Others may have changed it meanwhile.
    fn look_after(&self, key: &str, losses: Losses, report: &mut Report) -> Result<(), Error> {
        let Some((copy, of)) = self.copy_of(key)? else { return Ok(()) };
        let (stream, subject) = (self.ensure(self.names.keys(key)?)?, self.names.key(key));
        let current = self.link.run(|jetstream| operations::last(jetstream, stream, subject))?;
        let sequence = current.map_or(0, |current| current.sequence);
        if sequence >= of {
            return Ok(());
        }
        // An unreadable record is said already.
        report.lost.retain(|lost| lost.split_once(": ").is_none_or(|(said, _)| said != key));
        if !operations::is_whole(key, &copy) {
            report.lost.push(format!("{key}: it is missing, and its copy is damaged"));
        } else if losses == Losses::OnlySaid {
            report.restored.push(key.to_owned());
        } else {
            self.put_back(key, &copy.payload, sequence)?;
            report.restored.push(key.to_owned());
        }
        Ok(())
    }

    /// Stores a record anew in the place of the message of this sequence number, unless somebody else has replaced it.
    fn put_back(&self, key: &str, value: &[u8], sequence: u64) -> Result<(), Error> {
        let (stream, change) = (self.names.keys(key)?.name, Change::sealed(self.names.key(key), key, value));
        if self.is_unreadable(&stream, key)? {
            // The server knows a sequence number that it does not tell.
            let sequences = self.change(vec![change])?;
            return sequences.first().map_or(Ok(()), |of| self.copy(&[(key, value, *of)]));
        }
        let put = self.link.run(|jetstream| operations::publish_if(jetstream, change, sequence))?;
        let of = put.and_then(|put| put.into_values().max());
        of.map_or(Ok(()), |of| self.copy(&[(key, value, of)]))
    }

    /// The copy of a record, and of which message it is.
    fn copy_of(&self, key: &str) -> Result<Option<(StreamMessage, u64)>, Error> {
        let (stream, subject) = (self.ensure(self.names.copies())?, self.names.copy(key));
        let copy = self.link.run(|jetstream| operations::last(jetstream, stream, subject))?;
        Ok(copy.and_then(|copy| operations::copied_sequence(&copy).map(|of| (copy, of))))
    }

    /// Writes the copies of records that have none, or an older one.
    fn copy_again(&self, keys: Vec<String>) -> Result<(), Error> {
        for key in keys {
            if let Some(found) = self.get(&key)? {
                self.copy(&[(key.as_str(), found.value.as_slice(), found.version)])?;
            }
        }
        Ok(())
    }

    /// Packages and documents whose content is not that of their digests.
    pub(super) fn examine_blobs(&self, report: &mut Report) -> Result<(), Error> {
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
