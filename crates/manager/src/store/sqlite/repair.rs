//! Checks all of a store that no manager has open, and repairs it as far as that is possible.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, params};
use sha2::{Digest, Sha256};
use sublet_proto::package::is_digest;
use sublet_proto::{Code, Error};

use super::super::journal::StoreJournal;
use super::super::keys::{self, hex};
use super::audit::{self, AuditReport, Losses};
use super::changes::{Changes, StoreSummary};
use super::failure::failure;
use super::open::{audit_file, begin_journal, checkpoint};
use super::schema;

/// Reads every record and every package of a store, and changes none.
///
/// # Errors
/// `system` if the file cannot be read as a store at all.
pub fn check(file: &Path) -> Result<AuditReport, Error> {
    let (connection, _, mut report) = audit_file(file, Losses::OnlySaid)?;
    let folder = file.parent().unwrap_or(file);
    let damaged = damaged_blobs(&connection).map_err(|error| failure(folder, "read", &error))?;
    report.lost.extend(damaged.into_iter().map(|(digest, why)| format!("content of {digest}: {why}")));
    Ok(report)
}

/// Puts back the records that the journal has, and drops the others. A copy of the files as they were is kept.
///
/// # Errors
/// `system` and `store_full` if the store cannot be read or written, `version_mismatch` if it is of a later version.
pub fn repair(file: &Path) -> Result<(AuditReport, PathBuf), Error> {
    let folder = file.parent().unwrap_or(file);
    let failed = |error: rusqlite::Error| failure(folder, "repair", &error);
    let journal = match StoreJournal::read(&file.with_extension("journal")) {
        Err(error) if error.code == Code::VersionMismatch => return Err(error),
        read => read.unwrap_or_default(),
    };
    refuse_later(file)?;
    let kept = keep_copy(file)?;
    let mut connection = open_or_begin(file)?;
    let mut account = StoreSummary::read(&connection).unwrap_or_default();
    let mut report =
        audit::examine(&mut connection, &mut account, journal.as_ref(), Losses::OnlySaid).map_err(failed)?;
    let is_malformed = report.records.is_empty() && !report.lost.is_empty();
    if is_malformed {
        let said = report.lost;
        connection = rebuild(connection, file, &account)?;
        account = StoreSummary::read(&connection).map_err(failed)?;
        report = audit::examine(&mut connection, &mut account, journal.as_ref(), Losses::Accepted)
            .map_err(failed)?;
        report.notes.extend(said);
    } else {
        report = audit::examine(&mut connection, &mut account, journal.as_ref(), Losses::Accepted)
            .map_err(failed)?;
    }
    for (digest, why) in damaged_blobs(&connection).map_err(failed)? {
        // A package without its record can be deployed again.
        let mut changes = Changes::begin(&mut connection, &account).map_err(failed)?;
        changes.remove(&format!("{}{digest}", keys::PACKAGE)).map_err(failed)?;
        account = changes.commit().map_err(failed)?.account;
        connection.execute("DELETE FROM blobs WHERE digest = ?1", params![digest]).map_err(failed)?;
        report.lost.push(format!("content of {digest}: {why}"));
    }
    begin_journal(&connection, folder, file, &account)?;
    Ok((report, kept))
}

/// Refuses a file of a later version, and no other: a file that cannot be read is to be repaired.
fn refuse_later(file: &Path) -> Result<(), Error> {
    let Ok(connection) = Connection::open(file) else { return Ok(()) };
    match schema::refuse_later(file, &connection) {
        Err(error) if error.code == Code::VersionMismatch => Err(error),
        _ => Ok(()),
    }
}

/// Opens the file, whatever its format mark says. A file that is no store at all is replaced by a new one: the journal
/// has a copy of the important records.
fn open_or_begin(file: &Path) -> Result<Connection, Error> {
    let Err(error) = schema::open(file, None) else { return schema::open(file, None) };
    if schema::restore_mark(file).unwrap_or(false) {
        return schema::open(file, None);
    }
    tracing::warn!(%error, "the store cannot be read, and is begun anew");
    for path in [file.to_owned(), PathBuf::from(format!("{}-wal", file.display()))] {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                let message = format!("cannot remove {}: {error}", path.display());
                return Err(Error::new(Code::System, message));
            }
            _ => {}
        }
    }
    schema::open(file, None)
}

/// Copies the store's files into a folder of their own beside them.
fn keep_copy(file: &Path) -> Result<PathBuf, Error> {
    let folder = file.parent().unwrap_or(file);
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let kept = folder.join(format!("damaged-{now_ms}"));
    let copied = || {
        std::fs::create_dir(&kept)?;
        let wal = PathBuf::from(format!("{}-wal", file.display()));
        for path in [file.to_owned(), wal, file.with_extension("journal")] {
            if let (true, Some(name)) = (path.exists(), path.file_name()) {
                std::fs::copy(&path, kept.join(name))?;
            }
        }
        Ok(())
    };
    copied().map_err(|error: std::io::Error| {
        Error::new(Code::System, format!("cannot copy the store to {}: {error}", kept.display()))
    })?;
    Ok(kept)
}

/// Makes a new file with all readable rows of a file whose pages are damaged.
fn rebuild(damaged: Connection, file: &Path, account: &StoreSummary) -> Result<Connection, Error> {
    let folder = file.parent().unwrap_or(file);
    let failed = |error: rusqlite::Error| failure(folder, "repair", &error);
    let new = file.with_extension("sqlite-new");
    let _ = std::fs::remove_file(&new);
    let mut rebuilt = schema::open(&new, None)?;
    let transaction = rebuilt.transaction().map_err(failed)?;
    for (table, columns, order) in
        [("entries", "key, value, version, seal", "key"), ("blobs", "digest, part, data, NULL", "rowid")]
    {
        salvage(&damaged, &transaction, (table, columns, order)).map_err(failed)?;
    }
    account.write(&transaction).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    drop(damaged);
    checkpoint(&rebuilt).map_err(failed)?;
    drop(rebuilt);
    let wal = PathBuf::from(format!("{}-wal", file.display()));
    std::fs::rename(&new, file)
        .and_then(|()| if wal.exists() { std::fs::remove_file(&wal) } else { Ok(()) })
        .map_err(|error| Error::new(Code::System, format!("cannot write {}: {error}", file.display())))?;
    schema::open(file, None)
}

/// Copies rows from the front until one cannot be read, and from the end until one cannot be read.
fn salvage(
    from: &Connection,
    to: &Connection,
    (table, columns, order): (&str, &str, &str),
) -> rusqlite::Result<()> {
    let places = if table == "blobs" { "?1, ?2, ?3" } else { "?1, ?2, ?3, ?4" };
    let insert = format!("INSERT OR IGNORE INTO {table} VALUES ({places})");
    let mut insert = to.prepare(&insert)?;
    for direction in ["ASC", "DESC"] {
        let order: Vec<_> = order.split(", ").map(|column| format!("{column} {direction}")).collect();
        let read = format!("SELECT {columns} FROM {table} ORDER BY {}", order.join(", "));
        let Ok(mut read) = from.prepare(&read) else { continue };
        let Ok(mut rows) = read.query([]) else { continue };
        while let Ok(Some(row)) = rows.next() {
            let values = [0, 1, 2, 3].map(|column| row.get::<_, rusqlite::types::Value>(column));
            let [Ok(one), Ok(two), Ok(three), Ok(four)] = values else { continue };
            // A row that does not fit its table is damaged.
            let _ = match table {
                "blobs" => insert.execute(params![one, two, three]),
                _ => insert.execute(params![one, two, three, four]),
            };
        }
    }
    Ok(())
}

/// Returns blobs whose content does not match their digest, and packages without content.
fn damaged_blobs(connection: &Connection) -> rusqlite::Result<Vec<(String, &'static str)>> {
    let mut damaged = Vec::new();
    let mut digests = connection.prepare("SELECT DISTINCT digest FROM blobs")?;
    let digests: Vec<String> = digests.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut parts = connection.prepare("SELECT data FROM blobs WHERE digest = ?1 ORDER BY part")?;
    for digest in digests.iter().filter(|digest| is_digest(digest)) {
        let mut hash = Sha256::new();
        let mut rows = parts.query(params![digest])?;
        let is_read = loop {
            match rows.next() {
                Ok(Some(row)) => match row.get_ref(0)?.as_blob() {
                    Ok(data) => hash.update(data),
                    Err(_) => break false,
                },
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        let actual = hex(&hash.finalize());
        if !is_read || digest.strip_prefix("sha256:") != Some(&actual) {
            damaged.push((digest.clone(), "it is not what was deployed: deploy it again"));
        }
    }
    const PACKAGES: &str = "SELECT key FROM entries WHERE key >= 'package/' AND key < 'package0'";
    let mut packages = connection.prepare(PACKAGES)?;
    let packages: Vec<String> = packages.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for key in packages {
        let digest = key.strip_prefix(keys::PACKAGE).unwrap_or_default();
        if is_digest(digest) && !digests.iter().any(|known| known == digest) {
            damaged.push((digest.to_owned(), "it is missing: deploy it again"));
        }
    }
    Ok(damaged)
}
