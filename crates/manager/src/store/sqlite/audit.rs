//! Looks for damage in an opened store, and restores records from their copies in the journal.
//!
//! Records are compared with their seals, the records of each kind with the tally of the kind, and the number of the
//! last change with the journal's. Damaged or missing records that the journal has are put back. The others are lost,
//! and the store is not changed unless the loss is accepted.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, params};

use super::super::journal::{Content, RecordChange, is_copied};
use super::super::seal::{SEAL_BYTES, Tallies, seal};
use super::changes::{Changes, StoreSummary, kind_of};

/// Most lines of SQLite's check for one table.
const MAX_COMPLAINTS: u32 = 8;

/// Result of an examination of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    /// Records that were damaged or missing, and put back from the journal.
    pub restored: Vec<String>,
    /// Records and contents that are lost.
    pub lost: Vec<String>,
    /// Notes that are no losses.
    pub notes: Vec<String>,
    /// Number of records that were read, by kind.
    pub records: BTreeMap<String, u64>,
}

/// Whether losses are accepted, refused without any change, or only reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Losses {
    Refused,
    Accepted,
    OnlySaid,
}

/// Result of a scan.
#[derive(Default)]
struct Scan {
    tallies: Tallies,
    /// Keys, as far as they can be read, with their tables and the raw bytes.
    damaged: Vec<DamagedRecord>,
}

struct DamagedRecord {
    shown: String,
    /// The key as SQLite knows it: the row can be removed by this.
    key: rusqlite::types::Value,
}

/// Examines the store, and mends it in one transaction. The account is read from the file, and afterwards matches the
/// records.
pub(super) fn examine(
    connection: &mut Connection,
    account: &mut StoreSummary,
    journal: Option<&Content>,
    losses: Losses,
) -> rusqlite::Result<AuditReport> {
    let mut report = AuditReport::default();
    for table in ["entries", "tallies"] {
        report.lost.extend(complaints(connection, table)?);
    }
    if !report.lost.is_empty() {
        return Ok(report);
    }
    note_journal(journal, &mut report);
    let empty = Content::default();
    let journal = journal.unwrap_or(&empty);
    let is_older = account.change < journal.base_change;
    let savepoint = connection.transaction()?;
    let found = mend(&savepoint, (account, journal), losses, &mut report)?;
    match losses {
        Losses::OnlySaid => savepoint.rollback()?,
        Losses::Accepted | Losses::Refused => savepoint.commit()?,
    }
    if is_older {
        let (has, knows) = (account.change, journal.base_change);
        report.lost.push(format!(
            "the store is an older copy: it ends with change {has}, and changes up to {knows} were made. What leases, bills \
             and runs had since then is lost; tokens, tenants, packages and graphs are in the journal"
        ));
    }
    let missing = missing(account, journal);
    match losses {
        Losses::OnlySaid => {
            report.restored.extend(missing.into_iter().map(|operation| operation.key.clone()))
        }
        Losses::Refused if !report.lost.is_empty() => {}
        _ => redo(connection, account, missing, &mut report)?,
    }
    let is_kept = losses == Losses::Accepted || losses == Losses::Refused && report.lost.is_empty();
    if is_kept && account.change < journal.last_change() {
        account.change = journal.last_change();
        account.write(connection)?;
    }
    let is_as_found = report.restored.is_empty() && report.lost.is_empty();
    let scan = if is_as_found { found } else { scan(connection)? };
    report.records = scan.tallies.iter().map(|(kind, tally)| (kind.clone(), tally.count)).collect();
    if losses == Losses::Accepted {
        for damaged in &scan.damaged {
            remove(connection, damaged)?;
        }
        account.tallies = scan.tallies;
        account.write(connection)?;
    }
    Ok(report)
}

fn note_journal(journal: Option<&Content>, report: &mut AuditReport) {
    match journal {
        None => report.notes.push(
            "the journal is missing: it is unknown whether the store has the last changes before the last stop"
                .into(),
        ),
        Some(journal) if journal.is_damaged() => report.notes.push(format!(
            "the journal is damaged ({} frames): changes that the store had lost as well could not be identified",
            journal.damaged_frames
        )),
        Some(_) => {}
    }
}

/// Returns SQLite's complaints about the pages of a table.
fn complaints(connection: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("PRAGMA quick_check({table})"))?;
    let mut rows = statement.query([])?;
    let mut complaints = Vec::new();
    while let Some(row) = rows.next()? {
        let said: String = row.get(0)?;
        if said != "ok" && complaints.len() < MAX_COMPLAINTS as usize {
            complaints.push(format!("records of the table {table}: {}", said.replace('\n', " ")));
        }
    }
    Ok(complaints)
}

/// Puts back damaged or missing records as of the last change that the store has, and returns the records as they are
/// then.
fn mend(
    connection: &Connection,
    (account, journal): (&StoreSummary, &Content),
    losses: Losses,
    report: &mut AuditReport,
) -> rusqlite::Result<Scan> {
    let found = scan(connection)?;
    let mut suspect: BTreeSet<String> = account
        .tallies
        .iter()
        .filter(|(kind, tally)| found.tallies.get(*kind).copied().unwrap_or_default() != **tally)
        .map(|(kind, _)| kind.clone())
        .collect();
    suspect.extend(found.tallies.keys().filter(|kind| !account.tallies.contains_key(*kind)).cloned());
    if suspect.is_empty() && found.damaged.is_empty() {
        return Ok(found);
    }
    connection.execute_batch("SAVEPOINT mending")?;
    for damaged in &found.damaged {
        remove(connection, damaged)?;
    }
    for operation in state_at(journal, account.change).values() {
        if suspect.contains(&kind_of(&operation.key)) && put_back(connection, operation)? {
            report.restored.push(operation.key.clone());
        }
    }
    let mended = scan(connection)?;
    let before = report.lost.len();
    for kind in &suspect {
        let (want, have) = (account.tallies.get(kind).copied(), mended.tallies.get(kind).copied());
        let (want, have) = (want.unwrap_or_default(), have.unwrap_or_default());
        if want != have {
            report
                .lost
                .push(format!("{kind}: {} records are there, {} were written", have.count, want.count));
        }
    }
    if report.lost.len() > before {
        let named = found.damaged.iter().map(|damaged| format!("{}: its checksum is wrong", damaged.shown));
        report.lost.extend(named);
        if losses == Losses::Refused {
            connection.execute_batch("ROLLBACK TO mending")?;
            report.restored.clear();
        }
    }
    connection.execute_batch("RELEASE mending")?;
    Ok(mended)
}

/// The records that the journal has as of a change, by their keys.
fn state_at(journal: &Content, change: u64) -> BTreeMap<&str, &RecordChange> {
    let mut state = BTreeMap::new();
    if change < journal.base_change {
        return state;
    }
    let changes = journal.changes.iter().filter(|(number, _)| *number <= change);
    for operation in journal.copies.iter().chain(changes.flat_map(|(_, operations)| operations)) {
        if operation.is_removal {
            state.remove(operation.key.as_str());
        } else {
            state.insert(&operation.key, operation);
        }
    }
    state
}

/// Writes a record unless the stored one is right, and tells whether it wrote.
fn put_back(connection: &Connection, operation: &RecordChange) -> rusqlite::Result<bool> {
    const PUT: &str = "INSERT INTO entries (key, value, version, seal) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT DO UPDATE SET value = excluded.value, version = excluded.version, seal = excluded.seal
        WHERE entries.version < excluded.version";
    let RecordChange { key, version, value: Some(value), .. } = operation else { return Ok(false) };
    let mut statement = connection.prepare_cached(PUT)?;
    Ok(statement.execute(params![key, value, version.cast_signed(), seal(key, *version, value)])? > 0)
}

/// The changes that the journal has and the store has not. A store that ends before the journal begins lacks its base, too.
fn missing<'a>(account: &StoreSummary, journal: &'a Content) -> Vec<&'a RecordChange> {
    let is_older = account.change < journal.base_change;
    let copies = if is_older { journal.copies.as_slice() } else { &[] };
    let changes = journal.changes.iter().filter(|(number, _)| *number > account.change);
    copies.iter().chain(changes.flat_map(|(_, operations)| operations)).collect()
}

/// Makes changes again.
fn redo(
    connection: &mut Connection,
    account: &mut StoreSummary,
    operations: Vec<&RecordChange>,
    report: &mut AuditReport,
) -> rusqlite::Result<()> {
    if operations.is_empty() {
        return Ok(());
    }
    let mut changes = Changes::begin(connection, account)?;
    for operation in operations {
        match operation {
            RecordChange { is_removal: true, key, .. } => changes.remove(key)?,
            RecordChange { value: None, .. } => {
                report.lost.push(format!("{}: too large for the journal", operation.key));
                continue;
            }
            RecordChange { key, version, value: Some(value), .. } => changes.put_as(key, *version, value)?,
        }
        report.restored.push(operation.key.clone());
    }
    *account = changes.commit()?.account;
    Ok(())
}

/// Reads every record.
fn scan(connection: &Connection) -> rusqlite::Result<Scan> {
    let mut found = Scan::default();
    let mut entries = connection.prepare("SELECT key, version, value, seal FROM entries")?;
    let mut rows = entries.query([])?;
    while let Some(row) = rows.next()? {
        match sealed(row) {
            Some((kind, seal)) => found.tallies.entry(kind).or_default().add(&seal),
            None => found.damaged.push(DamagedRecord::of(row.get_ref(0)?)),
        }
    }
    Ok(found)
}

/// Returns kind and seal of a row whose seal is right.
fn sealed(row: &Row<'_>) -> Option<(String, [u8; SEAL_BYTES])> {
    let key = row.get_ref(0).ok()?.as_str().ok()?;
    let version = row.get_ref(1).ok()?.as_i64().ok()?.cast_unsigned();
    let value = row.get_ref(2).ok()?.as_blob().ok()?;
    let kept = row.get_ref(3).ok()?.as_blob().ok()?;
    let right = seal(key, version, value);
    (kept == right).then(|| (kind_of(key), right))
}

impl DamagedRecord {
    fn of(key: ValueRef<'_>) -> DamagedRecord {
        let shown = key.as_bytes().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        DamagedRecord { shown, key: key.into() }
    }
}

fn remove(connection: &Connection, damaged: &DamagedRecord) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM entries WHERE key = ?1", params![damaged.key]).map(drop)
}

/// Every record of a kind that the journal has copies of.
pub(super) fn copied(connection: &Connection) -> rusqlite::Result<Vec<RecordChange>> {
    let mut copies = Vec::new();
    let mut kinds = connection.prepare("SELECT kind FROM tallies WHERE kind > ''")?;
    let kinds: Vec<String> = kinds.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut entries =
        connection.prepare("SELECT key, version, value FROM entries WHERE key >= ?1 AND key < ?2")?;
    for kind in kinds.iter().filter(|kind| is_copied(kind)) {
        let mut rows = entries.query(params![format!("{kind}/"), format!("{kind}0")])?;
        while let Some(row) = rows.next()? {
            let (key, version, value): (String, i64, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(2)?);
            copies.push(RecordChange::put(&key, version.cast_unsigned(), &value));
        }
    }
    Ok(copies)
}
