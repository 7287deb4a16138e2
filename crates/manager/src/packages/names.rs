//! Names of packages: their owners, and the tenants that may use them.
//!
//! A name belongs to a tenant, or to [`PUBLIC`] if an operator has published it. Under `named/` the store has a
//! [`NameRecord`] for each name, and one for each digest that the owner may use without a name. Only compare-and-swap
//! changes the record of a name: a removed name keeps a record without a digest for a day, since a change that a server did
//! not answer may still be made until then.

use prost::Message;
use sublet_proto::package::{PUBLIC, is_digest, is_name, is_owner};
use sublet_proto::v1::{PackageGrant, PackageInfo, PackageRight};
use sublet_proto::{Code, Error, decode};

use super::records::known;
use crate::auth::CallerIdentity;
use crate::store::{Batch, PAGE_RECORDS, Store, StoreRecord, keys};

/// Most tenants that are granted the use of one name.
pub(crate) const MAX_GRANTS: usize = 1024;
/// Most attempts to change one name while other managers change it.
const ATTEMPTS: u32 = 16;

/// Record of a name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NameRecord {
    /// Digest of the package; empty once the name is removed.
    #[prost(string, tag = "1")]
    pub(crate) digest: String,
    #[prost(uint64, tag = "2")]
    pub(crate) deployed_unix_ms: u64,
    /// Tenants other than the owner, each at most once.
    #[prost(message, repeated, tag = "3")]
    pub(crate) grants: Vec<PackageGrant>,
    /// Time at which the name was removed; 0 if it was not, or by a version that did not note it.
    #[prost(uint64, tag = "4")]
    pub(crate) removed_unix_ms: u64,
}

impl NameRecord {
    /// Creates the record that is left of a removed name.
    pub(crate) fn removed(now_ms: u64) -> NameRecord {
        NameRecord { removed_unix_ms: now_ms, ..NameRecord::default() }
    }
}

/// The caller of a method, as far as names depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) tenant: &'a str,
    pub(crate) is_operator: bool,
}

impl<'a> Asker<'a> {
    pub(crate) fn of(identity: &'a CallerIdentity) -> Asker<'a> {
        Asker { tenant: &identity.tenant, is_operator: identity.is_operator() }
    }

    /// A tenant that is known by one of its leases.
    pub(crate) fn tenant(tenant: &'a str) -> Asker<'a> {
        Asker { tenant, is_operator: false }
    }
}

/// Whether the caller has a right to a name of this owner.
pub(crate) fn is_allowed(asker: Asker<'_>, owner: &str, record: &NameRecord, right: PackageRight) -> bool {
    let is_granted = |grant: &PackageGrant| grant.tenant == asker.tenant && grant.right >= right as i32;
    owner == asker.tenant || owner == PUBLIC || asker.is_operator || record.grants.iter().any(is_granted)
}

/// The owner and the name of a package that the caller may change: its own, and for operators any.
pub(crate) fn owned<'a>(asker: Asker<'a>, name: &'a str) -> Result<(&'a str, &'a str), Error> {
    let (owner, package) = name.split_once('/').unwrap_or((asker.tenant, name));
    if !is_owner(owner) || !is_name(package) {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("{:?} is not the name of a package: NAME or TENANT/NAME", shown(name)),
        ));
    }
    if owner == asker.tenant || asker.is_operator {
        return Ok((owner, package));
    }
    let message =
        format!("package {owner}/{package} belongs to {owner}: only {owner} and operators change it");
    Err(Error::new(Code::PermissionDenied, message))
}

/// Changes a tenant's right to a name; an unspecified right revokes it.
pub(crate) fn grant(owner: &str, record: &mut NameRecord, granted: &PackageGrant) -> Result<(), Error> {
    let invalid = |message: String| Err(Error::new(Code::InvalidArgument, message));
    if !is_owner(&granted.tenant) {
        return invalid(format!("{:?} is not the name of a tenant", shown(&granted.tenant)));
    }
    if granted.tenant == owner || owner == PUBLIC || granted.tenant == PUBLIC {
        let message = match owner {
            PUBLIC => "every tenant may use a public package: it cannot be granted".to_owned(),
            _ if granted.tenant == PUBLIC => "only operators publish a package for all tenants".to_owned(),
            _ => format!("{owner} owns the package: it needs no grant"),
        };
        return invalid(message);
    }
    let Ok(right) = PackageRight::try_from(granted.right) else {
        return invalid(format!("{} is not a right to a package", granted.right));
    };
    record.grants.retain(|known| known.tenant != granted.tenant);
    if right == PackageRight::Unspecified {
        return Ok(());
    }
    if record.grants.len() >= MAX_GRANTS {
        return invalid(format!("the package is granted to {MAX_GRANTS} tenants, which is the most"));
    }
    record.grants.push(granted.clone());
    Ok(())
}

/// Tells whether a record can have this owner and name; other names are not looked up in the store.
pub(crate) fn is_possible(owner: &str, name: &str) -> bool {
    is_owner(owner) && (is_name(name) || is_digest(name))
}

/// Returns the part of a caller's text that a message shows.
pub(crate) fn shown(text: &str) -> String {
    const SHOWN: usize = 128;
    text.chars().take(SHOWN).collect()
}

pub(crate) fn name_key(owner: &str, name: &str) -> String {
    format!("{}{owner}/{name}", keys::NAMED)
}

/// Returns the key of the record that a tenant may use another one's name, for lists.
pub(crate) fn granted_key(tenant: &str, owner: &str, name: &str) -> String {
    format!("{}{tenant}/{owner}/{name}", keys::GRANTED)
}

/// The record of a name or digest, if there is one that was not removed, and which writing of it that is.
pub(crate) fn read(store: &dyn Store, owner: &str, name: &str) -> Result<(Option<NameRecord>, u64), Error> {
    let Some(found) = store.get(&name_key(owner, name))? else { return Ok((None, 0)) };
    let record: NameRecord = decode("a stored name", &found.value)?;
    Ok(((!record.digest.is_empty()).then_some(record), found.version))
}

/// Changes the record of a name, which may race with other managers; returns the record before.
pub(crate) fn change(
    store: &mut dyn Store,
    (owner, name): (&str, &str),
    change: impl Fn(Option<&NameRecord>) -> Result<NameRecord, Error>,
) -> Result<Option<NameRecord>, Error> {
    for _ in 0..ATTEMPTS {
        let (before, version) = read(store, owner, name)?;
        let after = change(before.as_ref())?;
        if store.compare_and_swap(&name_key(owner, name), version, &after.encode_to_vec())? {
            return Ok(before);
        }
    }
    Err(Error::new(Code::TryLater, format!("other managers keep changing package {owner}/{name}")))
}

/// Removes the records, out of a page, of names that were removed before this time, and returns their number.
pub(crate) fn expire_page(
    store: &mut dyn Store,
    page: &[StoreRecord],
    before_ms: u64,
    now_ms: u64,
) -> Result<u32, Error> {
    let mut expired = 0;
    for found in page {
        let record: NameRecord = decode("a stored name", &found.value)?;
        if !record.digest.is_empty() || record.removed_unix_ms >= before_ms {
            continue;
        }
        // It may have been deployed again since the page was read.
        let Some(current) = store.get(&found.key)?.filter(|current| current.value == found.value) else {
            continue;
        };
        if record.removed_unix_ms == 0 {
            let dated = NameRecord::removed(now_ms).encode_to_vec();
            store.compare_and_swap(&found.key, current.version, &dated)?;
        } else if store.remove_if(&found.key, current.version)? {
            expired += 1;
        }
    }
    Ok(expired)
}

/// Gives each name of a store in which names had no owners to [`PUBLIC`]; returns their number.
///
/// Such a store does not record who deployed a package. A public name keeps its meaning for every tenant, and no tenant
/// can change it; a tenant that deploys the name again gets one of its own.
pub(crate) fn migrate(store: &mut dyn Store) -> Result<usize, Error> {
    let mut migrated = 0;
    loop {
        let page = store.scan(keys::UNOWNED_NAME, None, PAGE_RECORDS)?;
        if page.is_empty() {
            return Ok(migrated);
        }
        let mut batch = Batch::default();
        for old in &page {
            let digest = String::from_utf8_lossy(&old.value).into_owned();
            let name = old.key.strip_prefix(keys::UNOWNED_NAME).unwrap_or_default();
            let info: Option<PackageInfo> = known(store, &digest)?;
            if let Some(info) = info.filter(|_| is_possible(PUBLIC, name)) {
                let deployed_unix_ms = info.deployed_unix_ms;
                let record = NameRecord { digest: digest.clone(), deployed_unix_ms, ..NameRecord::default() };
                store.compare_and_swap(&name_key(PUBLIC, name), 0, &record.encode_to_vec())?;
                batch.put(name_key(PUBLIC, &digest), record.encode_to_vec());
            }
            batch.remove(old.key.clone());
        }
        migrated += page.len();
        store.commit(&batch)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::SqliteStore;

    fn asker(tenant: &str) -> Asker<'_> {
        Asker { tenant, is_operator: false }
    }

    fn granted(tenant: &str, right: PackageRight) -> PackageGrant {
        PackageGrant { tenant: tenant.into(), right: right.into() }
    }

    #[test]
    fn only_owner_and_operators_change_a_name() {
        assert_eq!(owned(asker("alice"), "x").unwrap(), ("alice", "x"));
        assert_eq!(owned(asker("alice"), "alice/x").unwrap(), ("alice", "x"));
        let operator = Asker { tenant: "uid:0", is_operator: true };
        assert_eq!(owned(operator, "alice/x").unwrap(), ("alice", "x"));
        for name in ["alice/x", "public/x"] {
            assert_eq!(owned(asker("mallory"), name).unwrap_err().code, Code::PermissionDenied);
        }
        for name in ["", "a/b/c", "../x", "alice/", "/x", "alice/x@sha256:0"] {
            assert_eq!(owned(operator, name).unwrap_err().code, Code::InvalidArgument, "{name}");
        }
    }

    #[test]
    fn a_granted_right_holds_until_it_is_revoked() {
        let mut record = NameRecord { digest: "d".into(), ..NameRecord::default() };
        let may = |record: &NameRecord, right| is_allowed(asker("bob"), "alice", record, right);
        assert!(!may(&record, PackageRight::Read));
        grant("alice", &mut record, &granted("bob", PackageRight::Read)).unwrap();
        assert!(may(&record, PackageRight::Read) && !may(&record, PackageRight::Execute));
        grant("alice", &mut record, &granted("bob", PackageRight::Execute)).unwrap();
        assert!(may(&record, PackageRight::Read) && may(&record, PackageRight::Execute));
        assert_eq!(record.grants.len(), 1);
        assert!(!is_allowed(asker("carol"), "alice", &record, PackageRight::Read));
        grant("alice", &mut record, &granted("bob", PackageRight::Unspecified)).unwrap();
        assert!(!may(&record, PackageRight::Read) && record.grants.is_empty());
    }

    #[test]
    fn rejects_grants_that_mean_nothing() {
        let mut record = NameRecord::default();
        let read = |tenant: &str| granted(tenant, PackageRight::Read);
        let unknown = PackageGrant { tenant: "bob".into(), right: 7 };
        for (owner, refused) in [
            ("alice", read("alice")),
            ("alice", read("")),
            ("alice", read(PUBLIC)),
            ("alice", read("a/b")),
            (PUBLIC, read("bob")),
            ("alice", unknown),
        ] {
            let error = grant(owner, &mut record, &refused).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{refused:?}");
        }
        let tenants: Vec<_> = (0..MAX_GRANTS).map(|number| format!("t{number}")).collect();
        record.grants = tenants.iter().map(|tenant| read(tenant)).collect();
        assert!(grant("alice", &mut record, &read("one-more")).is_err());
        grant("alice", &mut record, &granted("t7", PackageRight::Execute)).unwrap();
    }

    #[test]
    fn record_of_a_removed_name_expires_unless_deployed_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        let deployed = NameRecord { digest: "d".into(), deployed_unix_ms: 1, ..NameRecord::default() };
        for (name, record) in [
            ("deployed", deployed.clone()),
            ("again", NameRecord::removed(1000)),
            ("old", NameRecord::removed(1000)),
            ("undated", NameRecord::default()),
            ("young", NameRecord::removed(3000)),
        ] {
            change(&mut store, ("alice", name), |_| Ok(record.clone())).unwrap();
        }
        let page = store.scan(keys::NAMED, None, 9).unwrap();
        change(&mut store, ("alice", "again"), |_| Ok(deployed.clone())).unwrap();
        assert_eq!(expire_page(&mut store, &page, 2000, 5000).unwrap(), 1);
        let names = |store: &SqliteStore| {
            let page = store.scan(keys::NAMED, None, 9).unwrap();
            page.into_iter().map(|found| found.key["named/alice/".len()..].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&store), ["again", "deployed", "undated", "young"]);
        let page = store.scan(keys::NAMED, None, 9).unwrap();
        assert_eq!(expire_page(&mut store, &page, 4000, 6000).unwrap(), 1);
        let page = store.scan(keys::NAMED, None, 9).unwrap();
        assert_eq!(expire_page(&mut store, &page, 5001, 6000).unwrap(), 1);
        assert_eq!(names(&store), ["again", "deployed"]);
    }

    #[test]
    fn names_without_owners_become_public_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(&folder.path().join("store.sqlite")).unwrap();
        let digest = format!("sha256:{}", "a".repeat(64));
        let info = PackageInfo {
            name: "x".into(),
            digest: digest.clone(),
            deployed_unix_ms: 7,
            ..Default::default()
        };
        let mut batch = Batch::default();
        batch.put(format!("{}{digest}", keys::PACKAGE), info.encode_to_vec());
        batch.put(format!("{}x", keys::UNOWNED_NAME), digest.clone().into_bytes());
        batch.put(format!("{}lost", keys::UNOWNED_NAME), b"sha256:of nothing".to_vec());
        store.commit(&batch).unwrap();

        assert_eq!(migrate(&mut store).unwrap(), 2);
        assert_eq!(migrate(&mut store).unwrap(), 0);
        for name in ["x", &digest] {
            let record = read(&store, PUBLIC, name).unwrap().0.unwrap();
            assert_eq!((record.digest, record.deployed_unix_ms), (digest.clone(), 7));
        }
        assert_eq!(read(&store, PUBLIC, "lost").unwrap().0, None);
    }
}
