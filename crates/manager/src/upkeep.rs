//! Upkeep of the store by operators: check, repair, backup and restore.
//!
//! Operations on an embedded store lock the state folder as a manager does, so no manager runs meanwhile: a running
//! manager makes a backup [itself](back_up). A store on NATS is checked and repaired while its managers use it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use sublet_proto::{Code, Error};

use crate::database::{Database, blocking};
use crate::folder::ManagerStateFolder;
use crate::start;
use crate::store::{
    self, AuditReport, NatsOptions, NatsStore, SqliteStore, Store, StoreCopy, listed, version,
};

const STORE_FILE: &str = "store.sqlite";
const JOURNAL_FILE: &str = "store.journal";
const WAL_FILE: &str = "store.sqlite-wal";

/// Whether a lost signing key may be replaced by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningKey {
    /// The existing key.
    Keep,
    /// A new key, if the store has none any more.
    Replace,
}

/// Whether an existing store may be replaced. It is kept beside in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overwrite {
    /// An existing store may not be replaced.
    No,
    /// An existing store may be replaced.
    Yes,
}

/// Opens the store for a manager, and logs the records that had to be put back.
pub(crate) fn open(folder: &ManagerStateFolder) -> Result<SqliteStore, Error> {
    let store = SqliteStore::open(&folder.file(STORE_FILE))?;
    let AuditReport { restored, notes, .. } = store.report();
    if !restored.is_empty() {
        let records = listed(restored);
        tracing::warn!(
            count = restored.len(),
            records,
            "the store had lost records, which its journal has put back"
        );
    }
    for note in notes {
        tracing::warn!("{note}");
    }
    Ok(store)
}

/// Checks everything in the store of a state folder.
///
/// # Errors
/// `invalid_argument` if there is no store, `already_running` if a manager uses it, `system` if it cannot be read at all.
pub fn check(state: &Path) -> Result<AuditReport, Error> {
    let folder = take(state)?;
    store::check(&folder.file(STORE_FILE))
}

/// Puts back the records that the journal has, and drops the others. Returns the path where the files are kept as they
/// were.
///
/// # Errors
/// As [`check`], and `store_full` if no space is left.
pub fn repair(state: &Path, key: SigningKey) -> Result<(AuditReport, PathBuf), Error> {
    let folder = take(state)?;
    let repaired = store::repair(&folder.file(STORE_FILE))?;
    if key == SigningKey::Replace {
        let mut store = SqliteStore::open(&folder.file(STORE_FILE))?;
        start::replace_signing(&mut store, state)?;
    }
    Ok(repaired)
}

/// Writes a consistent copy of the store to a file that does not exist yet.
///
/// # Errors
/// As [`check`], `invalid_argument` if the file exists, and `system` if the store is damaged.
pub fn backup(state: &Path, to: &Path) -> Result<(), Error> {
    let folder = take(state)?;
    let mut store = SqliteStore::open(&folder.file(STORE_FILE))?;
    write_backup(to, || store.begin_copy()).map(drop)
}

/// Writes a copy of a store in use, as it is now, to a file that does not exist yet. Returns its length.
///
/// # Errors
/// As [`backup`], and `try_later` while another backup is being made.
pub(crate) async fn back_up(database: &Database, to: PathBuf) -> Result<u64, Error> {
    let copy = database.with(|store| store.begin_copy()).await?;
    blocking(move || write_backup(&to, || Ok(copy))).await
}

/// Writes a copy to a file that does not exist yet, and through to the disk. Returns its length.
fn write_backup(to: &Path, copy: impl FnOnce() -> Result<StoreCopy, Error>) -> Result<u64, Error> {
    if !to.is_absolute() {
        let message =
            format!("{} is no absolute path: a manager has another working directory", to.display());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if to.exists() {
        let message = format!("{} exists already: a backup replaces no file", to.display());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    // The file is only for this user from the first byte on: it holds the key of tickets.
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to);
    let made = made.map_err(|error| failed("write", to, &error))?;
    let copied = copy().and_then(|copy| {
        let written = copy.write_to(&made).and_then(|len| made.sync_all().map(|()| len));
        written.map_err(|error| failed("write", to, &error))
    });
    if copied.is_err() {
        // A part of a store is no backup.
        let _ = fs::remove_file(to);
    }
    copied
}

/// Looks at everything in a store on NATS.
///
/// # Errors
/// `store_unreachable` if no server answers.
pub fn check_nats(servers: &NatsOptions) -> Result<AuditReport, Error> {
    open_nats(servers)?.check()
}

/// Looks at everything in a store on NATS as [`check_nats`] does, and writes the copies of records that have none.
///
/// # Errors
/// As [`check_nats`], and `store_full` if no space is left.
pub(crate) fn check_and_copy_nats(servers: &NatsOptions) -> Result<AuditReport, Error> {
    open_nats(servers)?.check_and_copy()
}

/// Puts back the records that a store on NATS has copies of, and drops the others.
///
/// # Errors
/// As [`check_nats`], and `store_full` if no space is left.
pub fn repair_nats(servers: &NatsOptions) -> Result<AuditReport, Error> {
    open_nats(servers)?.repair()
}

/// Opens a store on NATS whose records this version can read.
fn open_nats(servers: &NatsOptions) -> Result<NatsStore, Error> {
    let store = NatsStore::open(servers)?;
    version::check(&store)?;
    Ok(store)
}

/// Puts a backup in the place of the store. The previous store is kept in a folder beside; the path of that is
/// returned.
///
/// # Errors
/// `invalid_argument` if there is a store and it may not be replaced, `system` if the backup is damaged.
pub fn restore(state: &Path, from: &Path, overwrite: Overwrite) -> Result<Option<PathBuf>, Error> {
    if !from.is_file() {
        let message = format!("there is no backup {}", from.display());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let folder = ManagerStateFolder::open(state)?;
    let files = [STORE_FILE, WAL_FILE, JOURNAL_FILE, start::SIGNING_FILE];
    let there: Vec<_> = files.into_iter().filter(|name| folder.file(name).exists()).collect();
    if !there.is_empty() && overwrite == Overwrite::No {
        let message = format!("{} has a store already: --overwrite replaces it", state.display());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let checked = checked_copy(&folder, from)?;
    let kept = (!there.is_empty()).then(|| folder.file(&format!("replaced-{}", now_ms())));
    if let Some(kept) = &kept {
        fs::create_dir(kept).map_err(|error| failed("make", kept, &error))?;
        for name in there {
            let (from, to) = (folder.file(name), kept.join(name));
            fs::rename(&from, &to).map_err(|error| failed("move", &from, &error))?;
        }
    }
    let file = folder.file(STORE_FILE);
    fs::rename(&checked, &file).map_err(|error| failed("write", &file, &error))?;
    drop(SqliteStore::open(&file)?);
    Ok(kept)
}

/// A copy of a backup in the state folder that was found to be whole.
fn checked_copy(folder: &ManagerStateFolder, from: &Path) -> Result<PathBuf, Error> {
    let copy = folder.file("restoring.sqlite");
    for name in ["restoring.sqlite", "restoring.sqlite-wal", "restoring.journal"] {
        let _ = fs::remove_file(folder.file(name));
    }
    fs::copy(from, &copy).map_err(|error| failed("copy", from, &error))?;
    let report = store::check(&copy)?;
    if report.lost.is_empty() {
        return Ok(copy);
    }
    let _ = fs::remove_file(&copy);
    let message = format!("the backup {} is damaged: {}", from.display(), listed(&report.lost));
    Err(Error::new(Code::System, message))
}

/// Opens the state folder, if it has a store or remains of one.
fn take(state: &Path) -> Result<ManagerStateFolder, Error> {
    if !state.join(STORE_FILE).exists() && !state.join(JOURNAL_FILE).exists() {
        let message = format!("{} has no {STORE_FILE}: name a manager's state folder", state.display());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    ManagerStateFolder::open(state)
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()
}

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Code::StoreFull,
        _ => Code::System,
    };
    Error::new(code, format!("cannot {doing} {}: {error}", path.display()))
}
