//! Changes of records in one transaction, with their seals, the tallies of their kinds, and the operations for the
//! journal.

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::super::journal::RecordChange;
use super::super::keys::kind;
use super::super::seal::{Seal, Tallies, seal};

/// Summary in the file beside its records: the number of the last change, and the tallies of all kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoreSummary {
    pub(super) change: u64,
    pub(super) tallies: Tallies,
}

impl StoreSummary {
    /// Reads the account of a file.
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<StoreSummary> {
        let mut account = StoreSummary::default();
        let mut statement =
            connection.prepare("SELECT kind, count, sum FROM tallies WHERE kind NOT LIKE 'log %'")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (kind, count, sum): (String, u64, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if kind == CHANGES {
                account.change = count;
                continue;
            }
            let sum = sum.try_into().map_or(0, u128::from_le_bytes);
            account.tallies.insert(kind, super::super::seal::RecordTally { count, sum });
        }
        Ok(account)
    }

    /// Writes all of it.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.execute("DELETE FROM tallies", [])?;
        self.tallies.keys().try_for_each(|kind| self.write_kind(connection, kind))?;
        self.write_change(connection)
    }

    fn write_kind(&self, connection: &Connection, kind: &str) -> rusqlite::Result<()> {
        let tally = self.tallies.get(kind).copied().unwrap_or_default();
        let sum = tally.sum.to_le_bytes();
        let mut statement = connection.prepare_cached(WRITE_TALLY)?;
        statement.execute(params![kind, tally.count.cast_signed(), sum]).map(drop)
    }

    fn write_change(&self, connection: &Connection) -> rusqlite::Result<()> {
        let mut statement = connection.prepare_cached(WRITE_TALLY)?;
        statement.execute(params![CHANGES, self.change.cast_signed(), [0u8; 0]]).map(drop)
    }
}

/// The row of the tallies that has the number of the last change. No kind is empty.
const CHANGES: &str = "";
const WRITE_TALLY: &str = "INSERT INTO tallies VALUES (?1, ?2, ?3)
    ON CONFLICT DO UPDATE SET count = excluded.count, sum = excluded.sum";

/// Changes that are being made.
pub(super) struct Changes<'a> {
    transaction: Transaction<'a>,
    account: StoreSummary,
    touched: Vec<String>,
    operations: Vec<RecordChange>,
}

/// Changes that were made.
pub(super) struct CommittedChanges {
    pub(super) account: StoreSummary,
    pub(super) operations: Vec<RecordChange>,
}

impl<'a> Changes<'a> {
    pub(super) fn begin(
        connection: &'a mut Connection,
        account: &StoreSummary,
    ) -> rusqlite::Result<Changes<'a>> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let account = account.clone();
        Ok(Changes { transaction, account, touched: Vec::new(), operations: Vec::new() })
    }

    /// Gives a key a value.
    pub(super) fn put(&mut self, key: &str, value: &[u8]) -> rusqlite::Result<()> {
        let version = self.known(key)?.map_or(0, |(version, _)| version) + 1;
        self.put_as(key, version, value)
    }

    /// Gives a key a value if it has this version; whether it did.
    pub(super) fn swap(&mut self, key: &str, version: u64, value: &[u8]) -> rusqlite::Result<bool> {
        if self.known(key)?.map_or(0, |(version, _)| version) != version {
            return Ok(false);
        }
        self.put_as(key, version + 1, value)?;
        Ok(true)
    }

    /// Gives a key a value and a version.
    pub(super) fn put_as(&mut self, key: &str, version: u64, value: &[u8]) -> rusqlite::Result<()> {
        const PUT: &str = "INSERT INTO entries (key, value, version, seal) VALUES (?1, ?2, ?3, ?4)
            ON CONFLICT DO UPDATE SET value = excluded.value, version = excluded.version, seal = excluded.seal";
        let (before, seal) = (self.known(key)?, seal(key, version, value));
        let mut statement = self.transaction.prepare_cached(PUT)?;
        statement.execute(params![key, value, version.cast_signed(), seal])?;
        drop(statement);
        self.count(kind_of(key), before.map(|(_, seal)| seal), Some(seal));
        self.operations.push(RecordChange::put(key, version, value));
        Ok(())
    }

    /// Removes a key, if it exists.
    pub(super) fn remove(&mut self, key: &str) -> rusqlite::Result<()> {
        let Some((_, before)) = self.known(key)? else { return Ok(()) };
        self.transaction.prepare_cached("DELETE FROM entries WHERE key = ?1")?.execute(params![key])?;
        self.count(kind_of(key), Some(before), None);
        self.operations.push(RecordChange::remove(key));
        Ok(())
    }

    /// Takes a key away if it has this version; whether it did.
    pub(super) fn remove_if(&mut self, key: &str, version: u64) -> rusqlite::Result<bool> {
        if self.known(key)?.is_none_or(|(known, _)| known != version) {
            return Ok(false);
        }
        self.remove(key).map(|()| true)
    }

    /// Tells whether no record was changed so far.
    pub(super) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Makes all of it, as the change of the next number.
    pub(super) fn commit(mut self) -> rusqlite::Result<CommittedChanges> {
        self.account.change += 1;
        self.touched.sort_unstable();
        self.touched.dedup();
        self.touched.iter().try_for_each(|kind| self.account.write_kind(&self.transaction, kind))?;
        self.account.write_change(&self.transaction)?;
        self.transaction.commit()?;
        Ok(CommittedChanges { account: self.account, operations: self.operations })
    }

    /// Version and seal of a key. A seal that is missing counts as the one of no record: the sums then no longer match.
    fn known(&self, key: &str) -> rusqlite::Result<Option<(u64, Seal)>> {
        const KNOWN: &str = "SELECT version, seal FROM entries WHERE key = ?1";
        let known = self.transaction.prepare_cached(KNOWN)?.query_row(params![key], |row| {
            let seal: Option<Vec<u8>> = row.get(1)?;
            Ok((row.get(0)?, seal.and_then(|seal| seal.try_into().ok()).unwrap_or_default()))
        });
        known.optional()
    }

    fn count(&mut self, kind: String, before: Option<Seal>, after: Option<Seal>) {
        let tally = self.account.tallies.entry(kind.clone()).or_default();
        before.iter().for_each(|seal| tally.remove(seal));
        after.iter().for_each(|seal| tally.add(seal));
        self.touched.push(kind);
    }
}

/// The kind under which a key is counted. A damaged key may have none.
pub(super) fn kind_of(key: &str) -> String {
    kind(key).unwrap_or("unknown").to_owned()
}
