//! Reads packages of the store by their owner and name.

use std::sync::Arc;

use sublet_proto::v1::PackageInfo;
use sublet_proto::{Code, Error};

use super::names::{self, NameRecord, shown};
use super::records::known;
use crate::store::Store;

/// A package under one of its owner's names, or under its digest.
#[derive(Debug)]
pub(super) struct NamedPackage {
    pub(super) record: NameRecord,
    pub(super) info: Arc<PackageInfo>,
}

/// Reads the package that an owner has under a name or digest.
pub(super) fn look_up(store: &dyn Store, owner: &str, name: &str) -> Result<Option<NamedPackage>, Error> {
    let Some(record) = names::read(store, owner, name)?.0 else { return Ok(None) };
    let info = known(store, &record.digest)?;
    Ok(info.map(|info| NamedPackage { info: Arc::new(info_of(info, owner, &record)), record }))
}

/// Returns the package as its owner deployed it.
pub(super) fn info_of(info: PackageInfo, owner: &str, record: &NameRecord) -> PackageInfo {
    PackageInfo { owner: owner.to_owned(), deployed_unix_ms: record.deployed_unix_ms, ..info }
}

/// The error for an address that means no package for its caller.
pub(super) fn unknown(address: &str) -> Error {
    let message = format!(
        "no package {:?} is deployed by this tenant, is public, or is granted to it (see `sublet package list`)",
        shown(address)
    );
    Error::new(Code::UnknownPackage, message)
}
