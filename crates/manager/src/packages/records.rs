//! Records of packages in the store, by their digests.

use sublet_proto::v1::PackageInfo;
use sublet_proto::{Error, decode};

use crate::store::{Store, keys};

/// Returns the package of this digest, if all of it is in the store.
pub(crate) fn known(store: &dyn Store, digest: &str) -> Result<Option<PackageInfo>, Error> {
    let found = store.get(&format!("{}{digest}", keys::PACKAGE))?;
    found.map(|found| decode("a stored package", &found.value)).transpose()
}
