//! Opens a store's file and looks for damage, and begins the journal beside it.

use std::path::Path;

use rusqlite::Connection;
use sublet_proto::{Code, Error};

use super::super::journal::{NewBase, StoreJournal};
use super::audit::{self, AuditReport};
use super::changes::StoreSummary;
use super::failure::failure;
use super::schema;

/// Opens a file, brings it to this format, and looks for damage.
pub(super) fn audit_file(
    file: &Path,
    losses: audit::Losses,
) -> Result<(Connection, StoreSummary, AuditReport), Error> {
    let folder = file.parent().unwrap_or(file);
    let failed = |error: rusqlite::Error| failure(folder, "open", &error);
    let journal = StoreJournal::read(&file.with_extension("journal"))?;
    let mut connection = schema::open(file, journal.as_ref())?;
    let mut account = StoreSummary::read(&connection).map_err(failed)?;
    // A store that has just been made has no journal yet.
    let is_new = journal.is_none() && account == StoreSummary::default();
    let mut report =
        audit::examine(&mut connection, &mut account, journal.as_ref(), losses).map_err(failed)?;
    if is_new {
        report.notes.clear();
    }
    Ok((connection, account, report))
}

/// Begins a journal with a copy of the important records, when all of the store up to now is on the disk.
pub(super) fn begin_journal(
    connection: &Connection,
    folder: &Path,
    file: &Path,
    account: &StoreSummary,
) -> Result<StoreJournal, Error> {
    let failed = |error: rusqlite::Error| failure(folder, "read", &error);
    checkpoint(connection).map_err(failed)?;
    let copies = audit::copied(connection).map_err(failed)?;
    let base = NewBase { change: account.change, tallies: &account.tallies, copies: copies.len() as u64 };
    let path = file.with_extension("journal");
    StoreJournal::begin(&path, &base, &mut copies.into_iter().map(Ok)).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Code::StoreFull,
            _ => Code::System,
        };
        Error::new(code, format!("cannot write the store's journal {}: {error}", path.display()))
    })
}

/// Brings the write-ahead log into the file, and both to the disk.
pub(super) fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    run_pragma(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
}

/// Runs a pragma, to the last of its rows.
pub(super) fn run_pragma(connection: &Connection, pragma: &str) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(pragma)?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    Ok(())
}
