//! Turns errors of SQLite into errors of the store.

use std::path::Path;

use rusqlite::{ErrorCode, ffi};
use sublet_proto::{Code, Error};

/// The error for an operation on the store in a folder that SQLite has refused.
pub(super) fn failure(folder: &Path, doing: &str, error: &rusqlite::Error) -> Error {
    let folder = folder.display();
    if is_full(error) {
        return Error::new(Code::StoreFull, format!("the disk of the state folder {folder} is full"));
    }
    let code = if is_damaged(error) { Code::StoreDamaged } else { Code::System };
    Error::new(code, format!("cannot {doing} the store in {folder}: {error}"))
}

/// Whether SQLite has found its file to be damaged, or none of its own.
fn is_damaged(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

fn is_full(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(error, _) = error else { return false };
    error.code == ErrorCode::DiskFull || error.extended_code == ffi::SQLITE_IOERR_SHMSIZE
}
