//! The format of the file, and how files of earlier versions are brought to it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};
use sublet_proto::{Code, Error};

use super::super::journal::Content;
use super::super::seal::seal;
use super::changes::{StoreSummary, kind_of};
use super::failure::failure;

/// 1: without seals. 2: with seals, tallies, and a journal beside the file.
const FORMAT: i64 = 2;
/// Largest number that is taken for the format of a later version. A larger one is damage.
const LATEST_FORMAT: i64 = 999;
/// Size of the part of SQLite's header that ends with the format (`user_version`).
const HEADER_BYTES: usize = 64;
/// Records that are sealed at a time.
const PAGE_RECORDS: i64 = 256;

/// Exclusive before the first read: then the index of the write-ahead log is no file, and a store on a full disk can be
/// opened.
const LOCK: &str = "PRAGMA locking_mode = EXCLUSIVE";
const SETTINGS: &str = "
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA temp_store = MEMORY;
PRAGMA journal_size_limit = 67108864;
";

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blobs (
    digest TEXT NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (digest, part)
);
ALTER TABLE entries ADD COLUMN seal BLOB;
CREATE TABLE tallies (kind TEXT PRIMARY KEY, count INTEGER NOT NULL, sum BLOB NOT NULL) WITHOUT ROWID;
PRAGMA user_version = 2;
";

/// Opens a file, which is made if it does not exist, and brings it to this format.
pub(super) fn open(file: &Path, journal: Option<&Content>) -> Result<Connection, Error> {
    let folder = file.parent().unwrap_or(file);
    make_private(file)?;
    let failed = |error: rusqlite::Error| failure(folder, "open", &error);
    let mut connection = Connection::open(file).map_err(failed)?;
    refuse_later(file, &connection)?;
    set_up(&connection).map_err(failed)?;
    let format = format(&connection).map_err(failed)?;
    let is_sealed = has_table(&connection, "tallies").map_err(failed)?;
    let refused =
        |code: Code, message: String| Err(Error::new(code, format!("{} {message}", file.display())));
    match (format, is_sealed) {
        (FORMAT, true) => {}
        (..0, _) | (3.., _) => {
            return refused(Code::StoreDamaged, format!("is damaged: it says that its format is {format}"));
        }
        // Records without checksums are accepted from files that never had any, and from no others.
        (FORMAT, false) => {
            let message = "is damaged: it has lost its checksums (restore a backup)";
            return refused(Code::StoreDamaged, message.into());
        }
        (_, true) => {
            return refused(
                Code::StoreDamaged,
                format!("is damaged: it has checksums, and says that its format is {format}"),
            );
        }
        (_, false) if journal.is_some() => {
            let journal = file.with_extension("journal");
            let message = format!(
                "is missing, empty or of an earlier version, although its journal {} says what was in it: put the file or a \
                 backup back, or run `sublet store repair`",
                journal.display()
            );
            return refused(Code::StoreDamaged, message);
        }
        (_, false) => upgrade(&mut connection).map_err(failed)?,
    }
    if let Err(error) = drop_logs(&mut connection) {
        tracing::warn!(%error, "the logs of an earlier version stay in the store for now");
    }
    Ok(connection)
}

/// Refuses a file of a later version, and leaves it and its write-ahead log unchanged.
///
/// # Errors
/// `version_mismatch`, which names both formats.
pub(super) fn refuse_later(file: &Path, connection: &Connection) -> Result<(), Error> {
    let found = match has_log(file) {
        false => format_in_header(file).unwrap_or_default(),
        true => format_by_log(connection)
            .map_err(|error| failure(file.parent().unwrap_or(file), "open", &error))?,
    };
    if (FORMAT + 1..=LATEST_FORMAT).contains(&found) {
        let message = format!(
            "{} has format {found}, and this version reads up to {FORMAT}: start the version that wrote it, or restore \
             a backup of before",
            file.display()
        );
        return Err(Error::new(Code::VersionMismatch, message));
    }
    let set = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
    set.map(drop).map_err(|error| failure(file.parent().unwrap_or(file), "open", &error))
}

/// Whether there are changes that are not in the file yet.
fn has_log(file: &Path) -> bool {
    fs::metadata(format!("{}-wal", file.display())).is_ok_and(|log| log.len() > 0)
}

/// Reads the format from the file's header: SQLite would create a write-ahead log beside the file.
fn format_in_header(file: &Path) -> io::Result<i64> {
    let mut header = [0; HEADER_BYTES];
    File::open(file)?.read_exact(&mut header)?;
    let [.., a, b, c, d] = header;
    Ok(i32::from_be_bytes([a, b, c, d]).into())
}

/// Reads the format of a file with a write-ahead log, which is not brought into the file when the connection closes.
fn format_by_log(connection: &Connection) -> rusqlite::Result<i64> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.execute_batch(LOCK)?;
    format(connection)
}

fn format(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Makes the settings that a connection needs. If a file has them already, nothing is written.
fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    const INCREMENTAL: i64 = 2;
    connection.execute_batch(LOCK)?;
    let vacuum: i64 = connection.query_row("PRAGMA auto_vacuum", [], |row| row.get(0))?;
    if vacuum != INCREMENTAL {
        connection.pragma_update(None, "auto_vacuum", INCREMENTAL)?;
    }
    connection.execute_batch(SETTINGS)
}

/// Restores the format mark of a file that has checksums, if it was altered, and tells whether the file has checksums.
pub(super) fn restore_mark(file: &Path) -> rusqlite::Result<bool> {
    let connection = Connection::open(file)?;
    let is_sealed = has_table(&connection, "tallies")?;
    if is_sealed {
        connection.pragma_update(None, "user_version", FORMAT)?;
    }
    Ok(is_sealed)
}

fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    const COUNT: &str = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1";
    connection.query_row(COUNT, params![name], |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

/// Drops the append-only logs of earlier versions, which are not read any more.
fn drop_logs(connection: &mut Connection) -> rusqlite::Result<()> {
    const DROP: &str = "DROP TABLE logs; DELETE FROM tallies WHERE kind LIKE 'log %'";
    if !has_table(connection, "logs")? {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    transaction.execute_batch(DROP)?;
    transaction.commit()
}

/// Makes the tables, and seals the existing records.
pub(super) fn upgrade(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    transaction.execute_batch(TABLES)?;
    let mut account = StoreSummary::default();
    let mut entry = Some(String::new());
    while let Some(after) = entry {
        entry = seal_entries(&transaction, &mut account, &after)?;
    }
    account.write(&transaction)?;
    transaction.commit()
}

/// Seals some of the entries behind a key, and gives the last of them.
fn seal_entries(
    connection: &Connection,
    account: &mut StoreSummary,
    after: &str,
) -> rusqlite::Result<Option<String>> {
    const READ: &str = "SELECT key, version, value FROM entries WHERE key > ?2 ORDER BY key LIMIT ?1";
    let mut statement = connection.prepare_cached(READ)?;
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let found: Vec<(String, u64, Vec<u8>)> =
        statement.query_map(params![PAGE_RECORDS, after], read)?.collect::<rusqlite::Result<_>>()?;
    for (key, version, value) in &found {
        let seal = seal(key, *version, value);
        connection
            .prepare_cached("UPDATE entries SET seal = ?2 WHERE key = ?1")?
            .execute(params![key, seal])?;
        account.tallies.entry(kind_of(key)).or_default().add(&seal);
    }
    Ok(found.into_iter().last().map(|(key, ..)| key))
}

/// The file holds the key of tickets, so it is for this user alone from its first byte on.
fn make_private(file: &Path) -> Result<(), Error> {
    let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(file);
    made.map(drop).map_err(|error| {
        Error::new(Code::System, format!("cannot open the store {}: {error}", file.display()))
    })
}
