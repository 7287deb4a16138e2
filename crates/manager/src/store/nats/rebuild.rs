//! Writes a damaged stream anew.
//!
//! A server still lists a message that it cannot read after its subject has received and lost another one. After a
//! kill it may not even read what is published next to the damage (nats-server 2.9.10). A purge of the stream removes
//! the damage for good, and sequence numbers continue. So the records that can be read, and the copies of those that
//! cannot, are first all in the stream of copies; then the stream is purged and the records are published again. A
//! process that dies in between leaves copies without records, which the next [comparison](NatsStore::compare) finds.

use std::collections::{BTreeMap, BTreeSet};

use sublet_proto::Error;

use super::super::kind;
use super::operations::{self, Change};
use super::{NatsStore, is_copied};

impl NatsStore {
    /// Rewrites the stream of a kind with the records that can be read and the copies of others. Messages that other
    /// managers publish meanwhile stay. They do not find the records between purge and publication.
    /// Copies of lost records are older than what was lost, and are dropped.
    pub(super) fn rebuild(&self, kind_of_keys: &str, lost: &BTreeSet<&str>) -> Result<(), Error> {
        let stream = self.ensure(self.names.keys(&format!("{kind_of_keys}/"))?)?;
        let of = vec![stream.clone()];
        let ends = self.link.run_long(|jetstream| operations::last_sequences(jetstream, of))?;
        let end = ends.get(&stream).copied().unwrap_or_default();
        let records = self.rescued(kind_of_keys, lost, (&stream, end))?;
        let end = records.values().map(|(_, sequence)| *sequence).fold(end, u64::max);
        self.link.run_long(|jetstream| operations::purge_to(jetstream, stream, end))?;
        for (key, (value, _)) in &records {
            let change = Change::sealed(self.names.key(key), key, value);
            // Somebody else may have written a later value.
            let put = self.link.run(|jetstream| operations::publish_if(jetstream, change, 0))?;
            if let Some(sequence) = put.as_ref().and_then(|put| put.values().copied().max()) {
                self.write_copies(&[(key, value, sequence)])?;
            }
            self.note(put.unwrap_or_default());
        }
        let copied = self.copied_messages()?.into_keys().filter(|key| kind(key) == Ok(kind_of_keys));
        let unused = copied.filter(|key| !is_copied(kind_of_keys) || !records.contains_key(key));
        let copies = self.ensure(self.names.copies())?;
        self.remove(unused.map(|key| (copies.clone(), self.names.copy(&key))).collect())
    }

    /// The records of a kind, each with the sequence number of its message. All of them have copies afterwards.
    fn rescued(
        &self,
        kind_of_keys: &str,
        lost: &BTreeSet<&str>,
        (stream, end): (&str, u64),
    ) -> Result<BTreeMap<String, (Vec<u8>, u64)>, Error> {
        let mut records = self.readable(kind_of_keys)?;
        if !is_copied(kind_of_keys) {
            // Messages that the server finds by their numbers although it has lost the index of their subjects.
            let of = stream.to_owned();
            let messages =
                self.link.run_long(|jetstream| operations::each_by_sequence(jetstream, of, end))?;
            for message in messages.into_iter().rev() {
                let Some(key) = self.names.key_of(&message.subject) else { continue };
                if operations::is_whole(&key, &message) {
                    records.entry(key).or_insert_with(|| (message.payload.to_vec(), message.sequence));
                }
            }
        }
        for (key, (value, sequence)) in &records {
            self.write_copies(&[(key, value, *sequence)])?;
        }
        for (key, of) in self.copied_messages()? {
            let is_lost = lost.contains(key.as_str());
            if is_lost
                || kind(&key)? != kind_of_keys
                || records.get(&key).is_some_and(|(_, sequence)| *sequence >= of)
            {
                continue;
            }
            if let Some((copy, of)) = self.copy_of(&key)?
                && operations::is_whole(&key, &copy)
            {
                records.insert(key, (copy.payload.to_vec(), of));
            }
        }
        Ok(records)
    }
}
