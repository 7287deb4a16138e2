//! Changes which packages the names of an owner refer to, and which tenants may use them.

use prost::Message;
use sublet_proto::v1::{PackageGrant, PackageInfo, PackageRight};
use sublet_proto::{Error, package};

use super::named::{NamedPackage, info_of, look_up, unknown};
use super::names::{self, NameRecord, name_key};
use super::records::known;
use super::references;
use crate::runs;
use crate::store::{Batch, Store, each_record, keys};

/// Points a name at a package, and lets its owner use the digest; returns the package that the name referred to before.
pub(super) fn point(
    store: &mut dyn Store,
    owner: &str,
    info: &PackageInfo,
) -> Result<Option<PackageInfo>, Error> {
    let (digest, deployed_unix_ms) = (&info.digest, info.deployed_unix_ms);
    let record =
        |grants| NameRecord { digest: digest.clone(), deployed_unix_ms, grants, ..NameRecord::default() };
    let mut batch = Batch::default();
    batch.put(format!("{}{}", keys::PACKAGE, info.digest), info.encode_to_vec());
    batch.put(name_key(owner, &info.digest), record(Vec::new()).encode_to_vec());
    store.commit(&batch)?;
    if info.is_layer() {
        // Only environments refer to it.
        return Ok(None);
    }
    let grants_of =
        |before: Option<&NameRecord>| before.map(|before| before.grants.clone()).unwrap_or_default();
    let before = names::change(store, (owner, &info.name), |before| Ok(record(grants_of(before))))?;
    let Some(before) = before else { return Ok(None) };
    Ok(known(store, &before.digest)?.map(|info| info_of(info, owner, &before)))
}

/// Changes which right a tenant has to a name, and returns the package of the name.
pub(super) fn grant(
    store: &mut dyn Store,
    (owner, name): (&str, &str),
    granted: &PackageGrant,
) -> Result<PackageInfo, Error> {
    let missing = || unknown(&format!("{owner}/{name}"));
    names::change(store, (owner, name), |before| {
        let mut record = before.cloned().ok_or_else(missing)?;
        names::grant(owner, &mut record, granted)?;
        Ok(record)
    })?;
    // This record is only for lists: the right is in the name's record.
    let key = names::granted_key(&granted.tenant, owner, name);
    let mut batch = Batch::default();
    match granted.right() {
        PackageRight::Unspecified => batch.remove(key),
        PackageRight::Read | PackageRight::Execute => batch.put(key, Vec::new()),
    }
    store.commit(&batch)?;
    let NamedPackage { record, info } = look_up(store, owner, name)?.ok_or_else(missing)?;
    Ok(PackageInfo { grants: record.grants, ..info.as_ref().clone() })
}

/// Versions of a package that are to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    /// Versions that the name does not refer to any more, and that no unfinished run of the owner needs.
    Old,
    /// All versions, and the name.
    All,
}

/// Versions that were removed from an owner's package.
pub(super) struct PackageRemoval {
    /// Package that the name refers to, or referred to.
    pub(super) info: PackageInfo,
    /// Digests of the removed versions.
    pub(super) digests: Vec<String>,
}

/// Removes versions of a package from its owner; `None` if the owner has no such name.
pub(super) fn remove(
    store: &mut dyn Store,
    (owner, name): (&str, &str),
    which: Versions,
    now_ms: u64,
) -> Result<Option<PackageRemoval>, Error> {
    let Some(named) = look_up(store, owner, name)? else { return Ok(None) };
    let mut digests = versions(store, owner, name)?;
    let mut batch = Batch::default();
    match which {
        Versions::Old => {
            let needed = runs::digests_of_unfinished(store, owner)?;
            digests.retain(|digest| *digest != named.record.digest && !needed.contains(digest));
        }
        Versions::All => {
            let removed = names::change(store, (owner, name), |_| Ok(NameRecord::removed(now_ms)))?;
            for grant in removed.unwrap_or_default().grants {
                batch.remove(names::granted_key(&grant.tenant, owner, name));
            }
        }
    }
    let layers = references::layers_of_removed(store, owner, &digests)?;
    digests.iter().chain(&layers).for_each(|digest| batch.remove(name_key(owner, digest)));
    store.commit(&batch)?;
    Ok(Some(PackageRemoval { info: named.info.as_ref().clone(), digests }))
}

/// Digests of an owner's packages of this name.
fn versions(store: &dyn Store, owner: &str, name: &str) -> Result<Vec<String>, Error> {
    let mut digests = Vec::new();
    let prefix = name_key(owner, "");
    each_record(store, &prefix, |found| {
        let digest = &found.key[prefix.len()..];
        let is_version = |info: PackageInfo| info.name == name && !info.is_layer();
        if package::is_digest(digest) && known(store, digest)?.is_some_and(is_version) {
            digests.push(digest.to_owned());
        }
        Ok(())
    })?;
    Ok(digests)
}
