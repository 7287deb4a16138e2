//! The embedded store: one SQLite file in the manager's state folder, and its [journal](super::journal) beside it.
//!
//! The manager alone has the file open, so it is locked exclusively; the index of the write-ahead log then lives
//! on the heap, and a full disk is an error of a write, never a fault of a mapping.
//!
//! Each record has a [seal](super::seal), each kind of records a tally, and each change a number. Opening compares
//! them, with one another and with the journal ([`audit`]): records that the file has lost are put back from the
//! journal. If one cannot be put back, opening reports it and refuses the store. A record that is damaged later causes
//! an error when it is read.
//!
//! A change of a kind that the journal keeps whole, as tokens and their revocations, is acknowledged when it is on the
//! disk: see [`Store::unsynced`]. Other changes reach the disk with the next such change or checkpoint: a crash of the
//! machine may lose the last ones, but never half of one.

mod audit;
mod changes;
mod copy;
mod failure;
mod open;
mod repair;
mod schema;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use sublet_proto::{Code, Error};

pub use self::audit::AuditReport;
use self::changes::{Changes, StoreSummary, kind_of};
use self::copy::CopySource;
pub use self::copy::StoreCopy;
use self::failure::failure;
use self::open::{audit_file, begin_journal, checkpoint, run_pragma};
pub use self::repair::{check, repair};
use super::journal::{StoreJournal, is_copied};
use super::seal::seal;
use super::sync::SyncGroup;
use super::{
    Batch, Blob, BlobPart, RecordsSize, Reserve, Store, StoreRecord, VersionedValue, check_key, check_part,
    check_value,
};

/// Part of the disk that is reserved, within bounds in bytes. Users' data leaves it free. Revocations, the ledger and
/// starts need it when the disk is nearly full, and so does the log: its pages must fit into the file before any
/// change, even the removal of a package, can shrink it.
const RESERVE_PARTS: u64 = 64;
const MIN_RESERVE_BYTES: u64 = 8 << 20;
const MAX_RESERVE_BYTES: u64 = 256 << 20;

/// Pages of the log at which it is written to the file: SQLite's default.
const LOG_PAGES: u32 = 1000;

/// Most restored or lost records that a message names.
const SHOWN: usize = 8;

/// A [`Store`] in one file.
pub struct SqliteStore {
    connection: Connection,
    /// Behind the connection, which is to be closed first.
    copy_source: CopySource,
    folder: PathBuf,
    account: StoreSummary,
    journal: StoreJournal,
    sync: Arc<SyncGroup>,
    /// A change was made that is to be on the disk before it is acknowledged.
    is_unsynced: bool,
    report: AuditReport,
    reserve: Reserve,
}

impl SqliteStore {
    /// Opens the store in this file, which is made if it does not exist.
    ///
    /// # Errors
    /// `system` if the store has lost records that its journal cannot restore: the message names them.
    pub fn open(file: &Path) -> Result<SqliteStore, Error> {
        let folder = file.parent().unwrap_or(file).to_owned();
        let (connection, account, report) = audit_file(file, audit::Losses::Refused)?;
        if !report.lost.is_empty() {
            return Err(damaged(file, &report));
        }
        let journal = match begin_journal(&connection, &folder, file, &account) {
            // The content of the store can be read nevertheless, and the first change begins a journal.
            Err(error) if error.code == Code::StoreFull => {
                StoreJournal::behind(&file.with_extension("journal")).map_err(|_| error)?
            }
            begun => begun?,
        };
        let wal = PathBuf::from(format!("{}-wal", file.display()));
        let sync = Arc::new(SyncGroup::new(vec![wal, journal.path().to_owned()]));
        let opened = File::open(file)
            .map_err(|error| Error::new(Code::System, format!("cannot read {}: {error}", file.display())))?;
        Ok(SqliteStore {
            connection,
            copy_source: CopySource::new(opened),
            folder,
            account,
            journal,
            sync,
            is_unsynced: false,
            report,
            reserve: Reserve::Used,
        })
    }

    /// Returns the damage that opening has found, and the records that it has put back.
    pub fn report(&self) -> &AuditReport {
        &self.report
    }

    /// Makes changes, and adds them to the journal.
    fn make(
        &mut self,
        change: impl FnOnce(&mut Changes<'_>) -> rusqlite::Result<bool>,
    ) -> Result<bool, Error> {
        let run = || -> rusqlite::Result<_> {
            let mut changes = Changes::begin(&mut self.connection, &self.account)?;
            let changed = change(&mut changes)?;
            if changes.is_empty() { Ok((changed, None)) } else { Ok((changed, Some(changes.commit()?))) }
        };
        let (changed, made) = run().map_err(|error| failure(&self.folder, "write to", &error))?;
        let Some(made) = made else { return Ok(changed) };
        self.account = made.account;
        self.is_unsynced |= made.operations.iter().any(|operation| is_copied(&kind_of(&operation.key)));
        let was_behind = self.journal.is_behind();
        if let Err(error) = self.journal.add(self.account.change, made.operations)
            && !was_behind
        {
            tracing::warn!(%error, journal = %self.journal.path().display(), "the store's journal cannot be written");
        }
        self.resume_checkpoints();
        if self.journal.is_full() && !self.copy_source.is_being_copied() {
            self.renew_journal();
        }
        Ok(changed)
    }

    /// Lets SQLite write the log to the file again when a copy has ended.
    fn resume_checkpoints(&mut self) {
        if self.copy_source.has_ended()
            && let Err(error) = set_automatic_checkpoints(&self.connection, LOG_PAGES)
        {
            tracing::warn!(%error, "the store's log grows: it cannot be written to the store");
        }
    }

    /// Begins a new journal, whose base is the current content of the store. If no space is left the old one stays.
    fn renew_journal(&mut self) {
        let file = self.journal.path().with_extension("sqlite");
        match begin_journal(&self.connection, &self.folder, &file, &self.account) {
            Ok(journal) => self.journal = journal,
            Err(error) => tracing::debug!(%error, "the store's journal cannot be renewed"),
        }
    }

    fn failure(&self, doing: &str, error: &rusqlite::Error) -> Error {
        failure(&self.folder, doing, error)
    }

    fn write(&self, doing: &str, sql: &str, values: impl Params) -> Result<usize, Error> {
        let run = || self.connection.prepare_cached(sql)?.execute(values);
        run().map_err(|error| self.failure(doing, &error))
    }

    fn read_all<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, Error> {
        let run = || -> rusqlite::Result<Vec<T>> {
            self.connection.prepare_cached(sql)?.query_map(values, read)?.collect()
        };
        run().map_err(|error| self.failure("read", &error))
    }

    fn records(&self, entries: Vec<SealedRow>) -> Result<Vec<StoreRecord>, Error> {
        let open = |entry: SealedRow| {
            let key = entry.key.clone();
            entry.open(&self.folder).map(|found| StoreRecord { key, value: found.value })
        };
        entries.into_iter().map(open).collect()
    }

    fn read_one<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Error> {
        let run = || self.connection.prepare_cached(sql)?.query_row(values, read).optional();
        run().map_err(|error| self.failure("read", &error))
    }

    /// Checks that `len_bytes` more bytes leave the reserve free, if they have to.
    fn check_reserve(&self, len_bytes: u64) -> Result<(), Error> {
        if self.reserve == Reserve::Used {
            return Ok(());
        }
        let folder = self.folder.display();
        let disk = rustix::fs::statvfs(&self.folder).map_err(|error| {
            Error::new(
                Code::System,
                format!("cannot ask for the free space of the state folder {folder}: {error}"),
            )
        })?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        let reserved_bytes = reserved_bytes(disk.f_blocks.saturating_mul(disk.f_frsize));
        if free_bytes >= reserved_bytes.saturating_add(len_bytes) {
            return Ok(());
        }
        let message = format!(
            "the disk of the state folder {folder} is full: it has {free_bytes} bytes left, and {reserved_bytes} of them are \
             reserved for revocations, quotas and the ledger"
        );
        Err(Error::new(Code::StoreFull, message))
    }

    /// Gives free pages and the log back to the disk: it may be full, and others need it, too.
    fn shrink(&self) -> rusqlite::Result<()> {
        run_pragma(&self.connection, "PRAGMA incremental_vacuum")?;
        // A copy in progress reads the file as it is.
        if self.copy_source.is_being_copied() { Ok(()) } else { checkpoint(&self.connection) }
    }

    #[cfg(test)]
    pub(crate) fn limit_to_current_size(&self) {
        let pages: i64 = self.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        self.connection.pragma_update(None, "max_page_count", pages).unwrap();
    }
}

impl Store for SqliteStore {
    fn get(&self, key: &str) -> Result<Option<VersionedValue>, Error> {
        const GET: &str = "SELECT key, value, version, seal FROM entries WHERE key = ?1";
        let found = self.read_one(GET, params![key], read_entry)?;
        found.map(|found| found.open(&self.folder)).transpose()
    }

    fn compare_and_swap(&mut self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error> {
        check_key(key).and(check_value(key, value))?;
        self.check_reserve(value.len() as u64)?;
        self.make(|changes| changes.swap(key, version, value))
    }

    fn remove_if(&mut self, key: &str, version: u64) -> Result<bool, Error> {
        self.make(|changes| changes.remove_if(key, version))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        batch.check()?;
        let added = batch.puts.iter().map(|record| record.value.len() as u64);
        if let Some(len_bytes) = added.reduce(u64::saturating_add) {
            self.check_reserve(len_bytes)?;
        }
        let make = |changes: &mut Changes<'_>| {
            batch.puts.iter().try_for_each(|put| changes.put(&put.key, &put.value))?;
            batch.removes.iter().try_for_each(|key| changes.remove(key))?;
            Ok(true)
        };
        self.make(make).map(drop)
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        const SCAN: &str = "SELECT key, value, version, seal FROM entries
            WHERE key >= ?1 AND key < ?2 AND key > ?3 ORDER BY key LIMIT ?4";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let values = params![prefix, end_of(prefix), after.unwrap_or_default(), limit];
        self.records(self.read_all(SCAN, values, read_entry)?)
    }

    fn scan_back(&self, prefix: &str, before: Option<&str>, limit: usize) -> Result<Vec<StoreRecord>, Error> {
        const SCAN: &str = "SELECT key, value, version, seal FROM entries
            WHERE key >= ?1 AND key < ?2 ORDER BY key DESC LIMIT ?3";
        let end = before.map_or_else(|| end_of(prefix), str::to_owned);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.records(self.read_all(SCAN, params![prefix, end, limit], read_entry)?)
    }

    fn put_blob_part(&mut self, part: BlobPart<'_>, data: &[u8]) -> Result<(), Error> {
        const PUT: &str = "INSERT OR REPLACE INTO blobs VALUES (?1, ?2, ?3)";
        check_part(data)?;
        self.check_reserve(data.len() as u64)?;
        self.write("write to", PUT, params![part.digest, part.index, data]).map(drop)
    }

    fn blob_part(&self, part: BlobPart<'_>) -> Result<Option<Vec<u8>>, Error> {
        const GET: &str = "SELECT data FROM blobs WHERE digest = ?1 AND part = ?2";
        self.read_one(GET, params![part.digest, part.index], |row| row.get(0))
    }

    fn remove_blob(&mut self, digest: &str) -> Result<(), Error> {
        self.write("write to", "DELETE FROM blobs WHERE digest = ?1", params![digest])?;
        self.shrink().map_err(|error| self.failure("shrink", &error))
    }

    fn blobs(&self) -> Result<Vec<Blob>, Error> {
        const LIST: &str = "SELECT digest, count(*), sum(length(data)) FROM blobs GROUP BY digest";
        self.read_all(LIST, params![], |row| {
            Ok(Blob { digest: row.get(0)?, parts: row.get(1)?, bytes: row.get(2)? })
        })
    }

    fn blob_parts(&self, digest: &str) -> Result<u32, Error> {
        const COUNT: &str = "SELECT count(*) FROM blobs WHERE digest = ?1";
        Ok(self.read_one(COUNT, params![digest], |row| row.get(0))?.unwrap_or_default())
    }

    fn size(&self, prefix: &str) -> Result<RecordsSize, Error> {
        const SIZE: &str =
            "SELECT count(*), coalesce(sum(length(value)), 0) FROM entries WHERE key >= ?1 AND key < ?2";
        let size = self.read_one(SIZE, params![prefix, end_of(prefix)], |row| {
            Ok(RecordsSize { records: row.get(0)?, bytes: row.get(1)? })
        })?;
        Ok(size.unwrap_or_default())
    }

    fn begin_copy(&mut self) -> Result<StoreCopy, Error> {
        if self.copy_source.is_being_copied() {
            return Err(Error::new(Code::TryLater, "another backup is being made"));
        }
        let prepare = || -> rusqlite::Result<()> {
            checkpoint(&self.connection)?;
            set_automatic_checkpoints(&self.connection, 0)
        };
        prepare().map_err(|error| self.failure("copy", &error))?;
        Ok(self.copy_source.begin())
    }

    fn set_reserve(&mut self, reserve: Reserve) {
        self.reserve = reserve;
    }

    fn unsynced(&mut self) -> Option<Arc<SyncGroup>> {
        std::mem::take(&mut self.is_unsynced).then(|| Arc::clone(&self.sync))
    }
}

/// Sets the number of pages of the log at which SQLite writes it to the file, or 0 for never.
fn set_automatic_checkpoints(connection: &Connection, pages: u32) -> rusqlite::Result<()> {
    connection.pragma_update(None, "wal_autocheckpoint", pages)
}

/// Returns the number of reserved bytes of a disk.
fn reserved_bytes(disk_bytes: u64) -> u64 {
    (disk_bytes / RESERVE_PARTS).clamp(MIN_RESERVE_BYTES, MAX_RESERVE_BYTES)
}

/// A row with its seal.
struct SealedRow {
    key: String,
    found: VersionedValue,
    seal: Option<Vec<u8>>,
}

impl SealedRow {
    /// The value, if its seal is right.
    fn open(self, folder: &Path) -> Result<VersionedValue, Error> {
        let right = seal(&self.key, self.found.version, &self.found.value);
        if self.seal.as_deref() == Some(&right) {
            return Ok(self.found);
        }
        Err(damaged_record(folder, &self.key))
    }
}

fn damaged(file: &Path, report: &AuditReport) -> Error {
    let file = file.display();
    let message = format!(
        "the store {file} has lost records: {}. `sublet store check` lists all of them, `sublet store repair` continues \
         without them; or put a backup in its place",
        listed(&report.lost)
    );
    Error::new(Code::StoreDamaged, message)
}

/// Lists the first of several names, and the number of the others.
pub(crate) fn listed(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

fn damaged_record(folder: &Path, key: &str) -> Error {
    let message = format!(
        "the store in {} is damaged: the record {key:?} does not match its checksum (`sublet store check`)",
        folder.display()
    );
    Error::new(Code::StoreDamaged, message)
}

/// Returns a key behind every key of this prefix: no key continues with the last of all characters.
fn end_of(prefix: &str) -> String {
    format!("{prefix}{}", char::MAX)
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<SealedRow> {
    let found = VersionedValue { value: row.get(1)?, version: row.get(2)? };
    Ok(SealedRow { key: row.get(0)?, found, seal: row.get(3)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MAX_VALUE_BYTES;

    fn store() -> (tempfile::TempDir, SqliteStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        (folder, store)
    }

    fn put(store: &mut SqliteStore, key: &str, value: &[u8]) -> Result<(), Error> {
        let mut batch = Batch::default();
        batch.put(key.into(), value.into());
        store.commit(&batch)
    }

    #[test]
    fn a_removed_blob_leaves_its_space_to_the_disk() {
        let (folder, mut store) = store();
        let used = || -> u64 {
            let files = std::fs::read_dir(folder.path()).unwrap();
            files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
        };
        let before = used();
        for index in 0..16 {
            store.put_blob_part(BlobPart { digest: "d", index }, &[7; 256 << 10]).unwrap();
        }
        assert!(used() > before + (4 << 20));
        store.remove_blob("d").unwrap();
        assert!(used() <= before, "{} bytes of {before} before", used());
    }

    #[test]
    fn a_full_disk_is_named_and_leaves_what_was_there() {
        let (folder, mut store) = store();
        put(&mut store, "t/a", b"1").unwrap();
        store.limit_to_current_size();
        let error = put(&mut store, "t/a", &vec![0; MAX_VALUE_BYTES]).unwrap_err();
        assert_eq!(error.code, Code::StoreFull);
        assert!(error.message.contains(&folder.path().display().to_string()), "{error}");
        assert_eq!(store.get("t/a").unwrap().unwrap().value, b"1");
    }

    #[test]
    fn record_damaged_under_a_running_store_is_an_error() {
        let (_folder, mut store) = store();
        put(&mut store, "token/a", b"revoked").unwrap();
        put(&mut store, "token/b", b"good").unwrap();
        let alter = "UPDATE entries SET value = x'00' WHERE key = 'token/a'";
        store.connection.execute_batch(alter).unwrap();
        let error = store.get("token/a").unwrap_err();
        assert!(error.code == Code::StoreDamaged && error.message.contains("token/a"), "{error}");
        assert!(store.scan("token/", None, 9).is_err() && store.scan_back("token/", None, 9).is_err());
        assert_eq!(store.get("token/b").unwrap().unwrap().value, b"good");
    }

    #[test]
    fn begins_a_new_journal_when_it_has_grown() {
        let (folder, mut store) = store();
        let len = || std::fs::metadata(folder.path().join("store.journal")).unwrap().len();
        let mut longest = 0;
        for number in 0..200 {
            put(&mut store, "lease/a", &vec![number; 16 << 10]).unwrap();
            longest = len().max(longest);
        }
        assert!(longest < 2 << 20 && len() < longest, "{longest}, {}", len());
    }

    #[test]
    fn a_file_that_is_no_store_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        std::fs::write(&file, vec![b'x'; 8192]).unwrap();
        assert_eq!(SqliteStore::open(&file).err().unwrap().code, Code::StoreDamaged);
    }
}
