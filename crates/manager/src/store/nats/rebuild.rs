//! Writes a damaged stream anew.
//!
//! A server still lists a message that it cannot read after its subject has received and lost another one. After a kill
//! it may not even read messages that are published next to the damage (nats-server 2.9.10). A purge of the stream
//! removes the damage for good, and sequence numbers continue. So the readable records, and the copies of the others,
//! are first all put into the stream of copies; then the stream is purged and the records are published again. A
//! process that dies in between leaves copies without records, which the next [comparison](NatsStore::compare) finds.

use std::collections::BTreeSet;

use sublet_proto::Error;

use super::super::VersionedValue;
use super::NatsStore;
use super::operations;

impl NatsStore {
    /// Rewrites the stream of a kind with the readable records and the copies of the others. Messages that other
    /// managers publish meanwhile stay. They do not find the records between purge and publication. Copies of lost
    /// records are older than the lost versions, and are dropped.
    pub(super) fn rebuild(&self, kind_of_keys: &str, lost: &BTreeSet<&str>) -> Result<(), Error> {
        let stream = self.ensure(self.names.keys(&format!("{kind_of_keys}/"))?)?;
        let of = vec![stream.clone()];
        let states = self.link.run_long(|jetstream| operations::states(jetstream, of))?;
        let end = states.get(&stream).copied().unwrap_or_default().last_sequence;
        let mut records = self.readable(kind_of_keys)?;
        let known = self.copied_messages(kind_of_keys)?;
        let copied: Vec<_> = records
            .iter()
            .filter(|(key, record)| known.get(*key).is_none_or(|of| *of <= record.version))
            .map(|(key, record)| (key.as_str(), record.value.as_slice(), record.version))
            .collect();
        self.write_copies(&copied)?;
        let copies = self.copied_messages(kind_of_keys)?;
        for (key, of) in copies.iter().filter(|(key, _)| !lost.contains(key.as_str())) {
            if records.get(key).is_none_or(|record| record.version < *of)
                && let Some((copy, of)) = self.copy_of(key)?
                && operations::is_whole(key, &copy)
            {
                records.insert(key.clone(), VersionedValue { version: of, ..operations::versioned(&copy) });
            }
        }
        let end = records.values().map(|record| record.version).fold(end, u64::max);
        self.link.run_long(|jetstream| operations::purge_to(jetstream, stream, end))?;
        for (key, record) in &records {
            // A later value that another manager has published meanwhile is not overwritten.
            self.swap(key, 0, &record.value)?;
        }
        let unused = copies.keys().filter(|key| !records.contains_key(*key));
        self.remove_copies(unused.map(String::as_str))
    }
}
