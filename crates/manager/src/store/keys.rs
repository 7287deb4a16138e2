//! The keys that the manager uses. The part of a key before its first `/` is its kind.

use sublet_proto::{Code, Error};

/// Format of the records: eight bytes, little endian.
pub const RECORDS: &str = "manager/records";
/// Number of starts of a manager on this store: eight bytes, little endian.
pub const EPOCH: &str = "manager/epoch";
/// The secret from which the key of tickets is made: 32 bytes.
pub const SIGNING_SEED: &str = "manager/signing-seed";
/// Hash by which managers recognize the key of secrets, which is not in the store.
pub const SECRETS_KEY: &str = "manager/secrets-key";
/// Before a tenant's name, `/` and a secret's: the encoded `SecretRecord`.
pub const SECRET: &str = "secret/";
/// Before a lease's identifier: the encoded `Lease`. Identifiers sort by the time of the grant.
pub const LEASE: &str = "lease/";
/// Before a minute, `/` and a lease's identifier: the lease's usage in that minute of the ledger.
pub const USAGE: &str = "usage/";
/// Before `ever/` or `day/`, a day's first minute and `/`, and a digest: the encoded sum of the usage of folded
/// leases.
pub const FOLDED: &str = "folded/";
/// Before a digest: the encoded `PackageInfo`. It is written after the last part of the package's blob.
pub const PACKAGE: &str = "package/";
/// Before a tenant's name, `/` and a package's name or digest: the encoded `NameRecord`.
pub const NAMED: &str = "named/";
/// Before a tenant's name, `/`, an owner's, `/` and a package's: the tenant may use that package. Empty.
pub const GRANTED: &str = "granted/";
/// Before a package's name, in stores of versions in which names had no owners: the package's digest.
pub const UNOWNED_NAME: &str = "name/";
/// Before a token's identifier: the token and the hash of its secret.
pub const TOKEN: &str = "token/";
/// Before a tenant's name: the encoded `Tenant`.
pub const TENANT: &str = "tenant/";
/// Before a manager's epoch (see [`epoch`]): the encoded `PeerRecord`, written each second while it lives.
pub const PEER: &str = "peer/";
/// Before a manager's epoch, `/` and a tenant's name: the encoded `SpendRecord`. Those of managers that are gone are merged
/// into one of epoch 0.
pub const SPEND: &str = "spend/";
/// Before a tenant's name, `/` and a graph's: the encoded `GraphInfo`. The document is a blob.
pub const GRAPH: &str = "graph/";
/// Before a tenant's name, `/` and a run's identifier: the encoded `RunInfo`.
pub const RUN: &str = "run/";
/// Before a tenant's name, `/`, a run's identifier, `/` and a number: the encoded `JournalEntry`. Number 0 is the input.
pub const JOURNAL: &str = "journal/";
/// Before a tenant's name, `/` and a run's identifier: the encoded `RunReport`.
pub const REPORT: &str = "report/";
/// Before a tenant's name, `/` and a run's identifier: the run is detached and has not ended. Empty.
pub const DETACHED: &str = "detached/";

/// Formats an epoch for keys, so that keys sort as epochs do.
pub fn epoch(epoch: u64) -> String {
    format!("{epoch:016x}")
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A key's kind: lower-case letters, digits and `-` before its first `/`.
pub(super) fn kind(key: &str) -> Result<&str, Error> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    match key.split_once('/') {
        Some((kind, _)) if !kind.is_empty() && kind.bytes().all(is_plain) => Ok(kind),
        _ => Err(Error::new(Code::InvalidArgument, format!("the store's key {key:?} does not say its kind"))),
    }
}
