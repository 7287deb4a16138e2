//! Layers of environments on a node: wheels, fetched from the manager once, checked, and unpacked.
//!
//! The manager is not trusted to send the requested wheel: its digest is computed. The wheel is not trusted either: each
//! path stays in the layer's folder, each file has the size and the hash of the wheel's record, and the space that it
//! takes is reserved before anything is written. Nothing of it is executed. A folder with the name of a digest was
//! complete; after an agent's start it is used only once its files were found to be those of its record. So nothing is
//! written through to the disk: a file that a crash has damaged is found then, and the wheel is fetched again.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use prost::Message;
use sublet_fabric::sync::lock;
use sublet_proto::package::wheel::{self, Wheel};
use sublet_proto::package::{EnvironmentLayer, INFO_FILE, digest as digest_of, validate};
use sublet_proto::v1::PackageInfo;
use sublet_proto::{Code, Error, decode};
use tracing::{info, warn};

use super::{NodePackages, RemovalGuard, UNFINISHED, failed, key, remove};
use crate::execution::cache::{self, CacheLookup, DiskSize, EntryUse};

impl NodePackages {
    /// Makes a layer be here, and returns the token of its use.
    pub(super) fn ensure_layer(&self, layer: &EnvironmentLayer, tenant: &str) -> Result<EntryUse, Error> {
        let digest = &layer.digest;
        if let Some(in_use) = self.layer_at_hand(digest, tenant) {
            return Ok(in_use);
        }
        let fetch = || self.verify_or_fetch_layer(digest, tenant);
        let in_use = self.environments.layers.execute(digest, tenant, fetch)?;
        self.note_use(digest, tenant);
        Ok(in_use)
    }

    /// The token of a layer that was unpacked or verified since the agent's start.
    fn layer_at_hand(&self, digest: &str, tenant: &str) -> Option<EntryUse> {
        // The token comes first, so that the entry is not evicted during the lookup.
        let CacheLookup::Here(in_use) = self.cache.find(&key(digest), tenant) else { return None };
        let verified = lock(&self.environments.verified).find(digest, tenant, Instant::now());
        verified.map(|()| in_use)
    }

    /// Does the work of [`NodePackages::ensure_layer`].
    fn verify_or_fetch_layer(&self, digest: &str, tenant: &str) -> Result<EntryUse, Error> {
        if let Some(in_use) = self.layer_at_hand(digest, tenant) {
            return Ok(in_use);
        }
        let folder = self.folder.join(digest);
        if folder.exists() {
            match verify(&folder) {
                Ok(()) => {
                    let size = cache::size_of(&folder).map_err(|error| failed("reading", &folder, error))?;
                    self.remember_layer(digest, tenant);
                    return Ok(match self.cache.find(&key(digest), tenant) {
                        CacheLookup::Here(in_use) => in_use,
                        _ => self.cache.keep(&key(digest), size, tenant),
                    });
                }
                Err(Error { message, .. }) => {
                    warn!(digest, damage = message, "an unpacked wheel is damaged, and fetched again");
                }
            }
        }
        self.fetch(digest).and_then(|encoded| self.store_layer(digest, &encoded, tenant))
    }

    /// Unpacks a wheel.
    pub(super) fn store_layer(&self, digest: &str, encoded: &[u8], tenant: &str) -> Result<EntryUse, Error> {
        let actual = digest_of(encoded);
        if actual != digest {
            let message = format!("the manager sent layer {actual} instead of {digest}");
            return Err(Error::new(Code::InvalidPackage, message));
        }
        let (wheel, info) = (Wheel::read(encoded)?, validate(encoded)?.info().encode_to_vec());
        // Only now: a digest that is not a wheel's leaves the entry of what is here under it.
        self.cache.forget(&key(digest));
        let size = size(&wheel, info.len() as u64);
        let reservation = self.cache.reserve(&format!("the wheel {}", wheel.name), (size, size), tenant)?;
        let unfinished = RemovalGuard(self.folder.join(format!("{UNFINISHED}{digest}")));
        remove(&unfinished.0)?;
        unpack(&wheel, &info, &unfinished.0)?;
        let folder = self.folder.join(digest);
        self.set_aside(digest, &folder)?;
        fs::rename(&unfinished.0, &folder).map_err(|error| failed("renaming to", &folder, error))?;
        info!(wheel = wheel.name, digest, "a wheel is unpacked");
        self.remember_layer(digest, tenant);
        Ok(self.cache.keep(&key(digest), reservation.size, tenant))
    }

    fn remember_layer(&self, digest: &str, tenant: &str) {
        lock(&self.environments.verified).insert(&digest.to_owned(), tenant, (), None);
    }
}

/// Size of an unpacked wheel, with its folders.
fn size(wheel: &Wheel<'_>, info_bytes: u64) -> DiskSize {
    let folders = wheel.files.iter().flat_map(|file| {
        let above = Path::new(file.path).ancestors().skip(1);
        above.map(move |folder| (file.scheme, folder))
    });
    let folders: BTreeSet<_> = folders.collect();
    DiskSize {
        bytes: wheel.unpacked_bytes().saturating_add(info_bytes),
        // The folder of the layer, and its information.
        files: (wheel.files.len() + folders.len() + 2) as u64,
    }
}

/// Writes a wheel into a folder that is not there yet.
fn unpack(wheel: &Wheel<'_>, info: &[u8], folder: &Path) -> Result<(), Error> {
    let mut made = BTreeSet::new();
    make_folders(folder, folder, &mut made)?;
    write(&folder.join(INFO_FILE), info, false)?;
    for file in &wheel.files {
        let content = wheel.content(file)?;
        let path = folder.join(file.scheme.folder()).join(file.path);
        make_folders(folder, path.parent().unwrap_or(folder), &mut made)?;
        write(&path, &content, file.is_executable())?;
    }
    Ok(())
}

/// Makes a folder and those between it and the first one, which every user can read.
fn make_folders(first: &Path, folder: &Path, made: &mut BTreeSet<PathBuf>) -> Result<(), Error> {
    if !made.insert(folder.to_owned()) {
        return Ok(());
    }
    if folder != first {
        folder.parent().map_or(Ok(()), |above| make_folders(first, above, made))?;
    }
    let make = || {
        fs::create_dir(folder)?;
        fs::set_permissions(folder, Permissions::from_mode(0o755))
    };
    make().map_err(|error| failed("making the folder", folder, error))
}

/// Makes a new file that every user can read and no process changes.
fn write(path: &Path, content: &[u8], is_executable: bool) -> Result<(), Error> {
    let mode = if is_executable { 0o555 } else { 0o444 };
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(content)?;
        file.set_permissions(Permissions::from_mode(mode))
    };
    write().map_err(|error| failed("writing", path, error))
}

/// Compares the files of an unpacked wheel with its record.
fn verify(folder: &Path) -> Result<(), Error> {
    let read = |path: PathBuf| fs::read(&path).map_err(|error| failed("reading", &path, error));
    let info: PackageInfo = decode("the information of a layer", &read(folder.join(INFO_FILE))?)?;
    let record = read(folder.join(wheel::record_path(&info.name)))?;
    for (scheme, path, hash) in wheel::recorded_files(&info.name, &record)? {
        let content = read(folder.join(scheme.folder()).join(&path))?;
        if !wheel::has_hash(&content, &hash) {
            let message = format!("{path:?} of the wheel {} was changed", info.name);
            return Err(Error::new(Code::InvalidPackage, message));
        }
    }
    Ok(())
}
