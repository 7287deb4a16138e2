//! References of packages to others: to environments, and of these to their layers.

use std::collections::HashSet;

use sublet_proto::Error;
use sublet_proto::package;
use sublet_proto::v1::PackageInfo;

use super::names::name_key;
use super::records::known;
use crate::store::{Store, each_record};

/// Digests of the packages that a package needs beside itself.
pub(super) fn references(info: &PackageInfo) -> impl Iterator<Item = &str> {
    info.environments().chain(info.layers())
}

/// Adds the environments and layers that packages need to a set of packages.
pub(crate) fn add_references(store: &dyn Store, digests: &mut HashSet<String>) -> Result<(), Error> {
    let mut left: Vec<String> = digests.iter().cloned().collect();
    while let Some(digest) = left.pop() {
        let Some(info) = known(store, &digest)? else { continue };
        for needed in references(&info) {
            if digests.insert(needed.to_owned()) {
                left.push(needed.to_owned());
            }
        }
    }
    Ok(())
}

/// Layers of a tenant that only these of its environments list.
pub(super) fn layers_of_removed(
    store: &dyn Store,
    owner: &str,
    removed: &[String],
) -> Result<Vec<String>, Error> {
    let mut layers = HashSet::new();
    for digest in removed {
        layers.extend(known(store, digest)?.iter().flat_map(PackageInfo::layers).map(str::to_owned));
    }
    if layers.is_empty() {
        return Ok(Vec::new());
    }
    let prefix = name_key(owner, "");
    each_record(store, &prefix, |found| {
        let digest = &found.key[prefix.len()..];
        if package::is_digest(digest) && !removed.iter().any(|removed| removed == digest) {
            for kept in known(store, digest)?.iter().flat_map(PackageInfo::layers) {
                layers.remove(kept);
            }
        }
        Ok(())
    })?;
    Ok(layers.into_iter().collect())
}
