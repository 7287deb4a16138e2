//! The embedded store: one SQLite file in the manager's state folder.
//!
//! The manager alone has the file open, so it is locked exclusively; the index of the write-ahead log then lives
//! on the heap, and a full disk is an error of a write, never a fault of a mapping. Commits reach the disk with
//! the next checkpoint: a crash of the machine may lose the last ones, but never half of one.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, OptionalExtension, Params, Row, ffi, params};
use sublet_proto::{Code, Error};

use super::{Batch, BlobPart, Record, Store, Versioned, check_key, check_part, check_value};

const FORMAT: i64 = 1;
/// How much of the disk packages leave free. Leases and the ledger need it when the disk is nearly full, and so does
/// the log: its pages must find room in the file before anything, even the removal of a package, can shrink it.
const RESERVE_BYTES: u64 = 8 << 20;

const OPEN: &str = "
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA temp_store = MEMORY;
PRAGMA journal_size_limit = 67108864;
";

const SCHEMA: &str = "
BEGIN;
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (
    log TEXT NOT NULL, sequence INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (log, sequence)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blobs (
    digest TEXT NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (digest, part)
);
PRAGMA user_version = 1;
COMMIT;
";

/// A [`Store`] in one file.
pub struct SqliteStore {
    connection: Connection,
    folder: PathBuf,
}

impl SqliteStore {
    /// Opens the store in this file, which is made if it is not there.
    pub fn open(file: &Path) -> Result<SqliteStore, Error> {
        let folder = file.parent().unwrap_or(file).to_owned();
        make_private(file)?;
        let failed = |error: rusqlite::Error| failure(&folder, "open", &error);
        let connection = Connection::open(file).map_err(failed)?;
        connection.execute_batch(OPEN).map_err(failed)?;
        let format: i64 =
            connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
        if !(0..=FORMAT).contains(&format) {
            return Err(Error::new(
                Code::System,
                format!("{} has format {format}, this version reads up to {FORMAT}", file.display()),
            ));
        }
        connection.execute_batch(SCHEMA).map_err(failed)?;
        Ok(SqliteStore { connection, folder })
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

    fn read_one<T>(
        &self,
        sql: &str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Error> {
        let run = || self.connection.prepare_cached(sql)?.query_row(values, read).optional();
        run().map_err(|error| self.failure("read", &error))
    }

    /// That so many bytes more leave enough of the disk to everything else.
    fn check_reserve(&self, len_bytes: u64) -> Result<(), Error> {
        let folder = self.folder.display();
        let disk = rustix::fs::statvfs(&self.folder).map_err(|error| {
            Error::new(
                Code::System,
                format!("cannot ask for the free space of the state folder {folder}: {error}"),
            )
        })?;
        let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
        if free_bytes >= RESERVE_BYTES.saturating_add(len_bytes) {
            return Ok(());
        }
        let message = format!(
            "the disk of the state folder {folder} is full: it has {free_bytes} bytes left, and packages leave \
             {RESERVE_BYTES} of them free"
        );
        Err(Error::new(Code::StoreFull, message))
    }

    /// Gives free pages and the log back to the disk: it may be full, and others need it, too.
    fn shrink(&self) -> rusqlite::Result<()> {
        for step in ["PRAGMA incremental_vacuum", "PRAGMA wal_checkpoint(TRUNCATE)"] {
            let mut statement = self.connection.prepare_cached(step)?;
            let mut rows = statement.query([])?;
            while rows.next()?.is_some() {}
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn limit_to_current_size(&self) {
        let pages: i64 = self.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
        self.connection.pragma_update(None, "max_page_count", pages).unwrap();
    }
}

impl Store for SqliteStore {
    fn get(&self, key: &str) -> Result<Option<Versioned>, Error> {
        self.read_one("SELECT value, version FROM entries WHERE key = ?1", params![key], |row| {
            Ok(Versioned { value: row.get(0)?, version: row.get(1)? })
        })
    }

    fn compare_and_swap(&mut self, key: &str, version: u64, value: &[u8]) -> Result<bool, Error> {
        check_key(key).and(check_value(key, value))?;
        let changed = if version == 0 {
            const INSERT: &str = "INSERT INTO entries VALUES (?1, ?2, 1) ON CONFLICT DO NOTHING";
            self.write("write to", INSERT, params![key, value])?
        } else {
            const UPDATE: &str =
                "UPDATE entries SET value = ?2, version = version + 1 WHERE key = ?1 AND version = ?3";
            self.write("write to", UPDATE, params![key, value, version])?
        };
        Ok(changed == 1)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        batch.check()?;
        commit(&mut self.connection, batch).map_err(|error| failure(&self.folder, "write to", &error))
    }

    fn scan(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, Error> {
        const SCAN: &str = "SELECT key, value FROM entries
            WHERE key >= ?1 AND key < ?2 AND key > ?3 ORDER BY key LIMIT ?4";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let values = params![prefix, end_of(prefix), after.unwrap_or_default(), limit];
        self.read_all(SCAN, values, read_record)
    }

    fn scan_back(&self, prefix: &str, before: Option<&str>, limit: usize) -> Result<Vec<Record>, Error> {
        const SCAN: &str =
            "SELECT key, value FROM entries WHERE key >= ?1 AND key < ?2 ORDER BY key DESC LIMIT ?3";
        let end = before.map_or_else(|| end_of(prefix), str::to_owned);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read_all(SCAN, params![prefix, end, limit], read_record)
    }

    fn read_log(&self, log: &str, after: u64, limit: usize) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        const READ: &str =
            "SELECT sequence, record FROM logs WHERE log = ?1 AND sequence > ?2 ORDER BY sequence LIMIT ?3";
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.read_all(READ, params![log, after, limit], |row| Ok((row.get(0)?, row.get(1)?)))
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
}

/// The file holds the key of tickets, so it is for this user alone from its first byte on.
fn make_private(file: &Path) -> Result<(), Error> {
    let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file);
    made.map(drop).map_err(|error| {
        Error::new(Code::System, format!("cannot open the store {}: {error}", file.display()))
    })
}

/// What stands behind every key of this prefix: no key goes on with the last of all characters.
fn end_of(prefix: &str) -> String {
    format!("{prefix}{}", char::MAX)
}

fn read_record(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record { key: row.get(0)?, value: row.get(1)? })
}

fn commit(connection: &mut Connection, batch: &Batch) -> rusqlite::Result<()> {
    const PUT: &str = "INSERT INTO entries VALUES (?1, ?2, 1)
        ON CONFLICT DO UPDATE SET value = excluded.value, version = version + 1";
    const APPEND: &str = "INSERT INTO logs
        SELECT ?1, coalesce(max(sequence), 0) + 1, ?2 FROM logs WHERE log = ?1";
    const REMOVE: &str = "DELETE FROM entries WHERE key = ?1";
    let transaction = connection.transaction()?;
    for record in &batch.puts {
        transaction.prepare_cached(PUT)?.execute(params![record.key, record.value])?;
    }
    for record in &batch.appends {
        transaction.prepare_cached(APPEND)?.execute(params![record.key, record.value])?;
    }
    for key in &batch.removes {
        transaction.prepare_cached(REMOVE)?.execute(params![key])?;
    }
    transaction.commit()
}

fn failure(folder: &Path, doing: &str, error: &rusqlite::Error) -> Error {
    let folder = folder.display();
    if is_full(error) {
        return Error::new(Code::StoreFull, format!("the disk of the state folder {folder} is full"));
    }
    Error::new(Code::System, format!("cannot {doing} the store in {folder}: {error}"))
}

fn is_full(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(error, _) = error else { return false };
    error.code == ErrorCode::DiskFull || error.extended_code == ffi::SQLITE_IOERR_SHMSIZE
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
    fn a_file_that_is_no_store_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite");
        std::fs::write(&file, vec![b'x'; 8192]).unwrap();
        assert_eq!(SqliteStore::open(&file).err().unwrap().code, Code::System);
    }
}
