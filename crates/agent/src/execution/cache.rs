//! The bound of what a node keeps of packages and images: how much there may be, and which entries are evicted first.
//!
//! An entry is an unpacked package, with what is built of its kernels, or an image that a lease had pulled. Its size is
//! what the files seem to have, holes and zeros included, and their number, so that neither a sparse file nor a million
//! empty ones pass unnoticed. Space is reserved before anything is written. Where there is none, entries are evicted:
//! first of tenants that have more than their share, then the least recently used. An entry that a lease uses stays.
//!
//! `STATE/cache` has a file for each entry: its content is the tenant that the entry is charged to, its time the last
//! use. Nothing depends on these files but the order of evictions. An image without such a file was imported or pulled by the
//! node's operator: it counts, and is never evicted.

mod index;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use sublet_fabric::sync::lock;
use sublet_image::{Digest, Image, ImageStore};
use sublet_proto::package::is_digest;
use sublet_proto::v1::CacheUse;
use sublet_proto::{Code, Error};
use tracing::{info, warn};

use index::{CacheIndex, CacheRefusal};
pub(crate) use index::{CacheLookup, DiskSize, EntryKind, EntryUse, Key};

use crate::machine::state::system;

/// Name of the subfolder of the state folder that has a file for each cache entry.
const CACHE: &str = "cache";
/// The folder of packages in the state folder.
pub(crate) const PACKAGES: &str = "packages";
/// How the folder of a package begins while it is not complete, or no longer.
pub(crate) const UNFINISHED: &str = ".unfinished-";
/// Bytes of the limit for each file that may be kept: file systems have about one inode for this many bytes.
const BYTES_OF_A_FILE: u64 = 16 << 10;
/// Divisor of the file system's size that gives the default limit of the cache.
const DISK_PARTS: u64 = 4;
/// Lower bound of the default limit, in bytes. Half of the file system bounds it in turn.
const LEAST_BYTES: u64 = 1 << 30;
/// Longest name of a tenant that is read from an entry's file, in bytes.
const MAX_TENANT_BYTES: usize = 256;

/// The packages and images of one node, as far as their bound goes.
pub(crate) struct NodeCache {
    folder: PathBuf,
    packages: PathBuf,
    images: ImageStore,
    index: Mutex<CacheIndex>,
    /// Evictions since the agent's start.
    evicted: AtomicU64,
}

/// Reserved cache space that no other entry gets. Dropping the reservation releases it.
pub(crate) struct CacheReservation<'cache> {
    cache: &'cache NodeCache,
    pub(crate) size: DiskSize,
}

impl Drop for CacheReservation<'_> {
    fn drop(&mut self) {
        lock(&self.cache.index).release(self.size);
    }
}

impl NodeCache {
    /// The cache of a state folder, with the entries that an earlier agent has left there.
    pub(crate) fn open(
        state: &Path,
        images: ImageStore,
        limit_bytes: Option<u64>,
    ) -> Result<NodeCache, Error> {
        let (folder, packages) = (state.join(CACHE), state.join(PACKAGES));
        for folder in [&folder, &packages] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| system("making the folder", folder, &error))?;
        }
        let limit_bytes = limit_bytes.map_or_else(|| default_limit(state), Ok)?;
        let limit = DiskSize { bytes: limit_bytes, files: limit_bytes / BYTES_OF_A_FILE };
        let index = Mutex::new(CacheIndex::new(limit));
        let cache = NodeCache { folder, packages, images, index, evicted: AtomicU64::new(0) };
        cache.images.prune_if_alone()?;
        cache.find_entries()?;
        cache.shrink();
        Ok(cache)
    }

    /// An entry, in use until the token is dropped.
    pub(crate) fn find(&self, key: &Key, tenant: &str) -> CacheLookup {
        let found = lock(&self.index).find(key, tenant);
        if matches!(found, CacheLookup::Here(_)) {
            self.note(key);
        }
        found
    }

    /// Reserves up to a size, and at least another one, for an entry that is to be made. Evicts what has to be.
    ///
    /// # Errors
    /// [`Code::StoreFull`], with how much there is and how much of that is in use.
    pub(crate) fn reserve(
        &self,
        what: &str,
        (least, most): (DiskSize, DiskSize),
        tenant: &str,
    ) -> Result<CacheReservation<'_>, Error> {
        let mut kept = Vec::new();
        let outcome = loop {
            let images = self.images_size()?;
            let reserved = lock(&self.index).reserve((least, most), images, tenant);
            let victim = match reserved {
                Ok(size) => break Ok(CacheReservation { cache: self, size }),
                Err(CacheRefusal::Evict(victim)) => victim,
                Err(CacheRefusal::Full) => break Err(self.full(what, least, images)),
            };
            if !self.evict(&victim) {
                kept.push(victim);
            }
        };
        // Another attempt may have more luck with them.
        kept.iter().for_each(|key| lock(&self.index).stays(key));
        outcome
    }

    /// Makes an entry of what was written, or finds the one that is there; in use until the token is dropped.
    pub(crate) fn keep(&self, key: &Key, size: DiskSize, tenant: &str) -> EntryUse {
        // Only the order of evictions depends on it.
        let _ = fs::write(self.file(key), tenant);
        lock(&self.index).insert(key, size, tenant)
    }

    /// Makes an entry as [`NodeCache::keep`] does, of others that are kept for as long as this one.
    pub(crate) fn keep_composed(
        &self,
        key: &Key,
        size: DiskSize,
        tenant: &str,
        parts: Vec<EntryUse>,
    ) -> EntryUse {
        let in_use = self.keep(key, size, tenant);
        lock(&self.index).compose(key, parts);
        in_use
    }

    /// Says before an image is pulled whose it is to be.
    pub(crate) fn announce(&self, image: &str, tenant: &str) {
        let _ = fs::write(self.file(&(EntryKind::Image, image.to_owned())), tenant);
    }

    /// Forgets an entry that is to be made anew.
    pub(crate) fn forget(&self, key: &Key) {
        lock(&self.index).remove(key);
    }

    /// Counts a package again to which something was added, and evicts others if there is too much now.
    pub(crate) fn measure(&self, digest: &str) {
        if let Ok(size) = size_of(&self.packages.join(digest)) {
            lock(&self.index).resize(&(EntryKind::Package, digest.to_owned()), size);
            self.shrink();
        }
    }

    /// The most that there may be.
    pub(crate) fn limit(&self) -> DiskSize {
        lock(&self.index).limit
    }

    /// Usage of the cache, as operators see it.
    pub(crate) fn usage(&self) -> CacheUse {
        let images = self.images_size().unwrap_or_default();
        let index = lock(&self.index);
        let (used, limit) = (index.used(images), index.limit);
        CacheUse {
            used_bytes: used.bytes,
            limit_bytes: limit.bytes,
            files: used.files,
            limit_files: limit.files,
            entries: u32::try_from(index.len()).unwrap_or(u32::MAX),
            entries_in_use: u32::try_from(index.in_use().0).unwrap_or(u32::MAX),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Evicts what is beyond the bound, as after a start with a lower one.
    fn shrink(&self) {
        if let Err(error) = self.reserve("", (DiskSize::default(), DiskSize::default()), "") {
            warn!(%error, "the cache is beyond its bound");
        }
    }

    /// Removes an entry that the index has marked. Returns `false` if another process works in the entry's store.
    fn evict(&self, key: &Key) -> bool {
        let is_removed = match key.0 {
            EntryKind::Package => self.remove_package(key),
            EntryKind::Image => self.remove_image(key),
        };
        match is_removed {
            Ok(true) => {
                let _ = fs::remove_file(self.file(key));
                self.evicted.fetch_add(1, Ordering::Relaxed);
                info!(entry = key.1, "evicted from the cache");
                true
            }
            Ok(false) => false,
            Err(error) => {
                warn!(entry = key.1, %error, "cannot be evicted from the cache");
                false
            }
        }
    }

    /// Removes a package. The folder is renamed first, so that the next agent removes the rest if this one is killed.
    fn remove_package(&self, key: &Key) -> Result<bool, Error> {
        let folder = self.packages.join(&key.1);
        let number = self.evicted.load(Ordering::Relaxed);
        let leaving = self.packages.join(format!("{UNFINISHED}evicted-{number}-{}", key.1));
        match fs::rename(&folder, &leaving) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(system("renaming to", &leaving, &error));
            }
            _ => {}
        }
        lock(&self.index).remove(key);
        match fs::remove_dir_all(&leaving) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(system("removing", &leaving, &error))
            }
            _ => Ok(true),
        }
    }

    fn remove_image(&self, key: &Key) -> Result<bool, Error> {
        let digest: Digest = key.1.parse()?;
        let is_removed = self.images.remove_if_alone(&digest)?;
        if is_removed {
            lock(&self.index).remove(key);
        }
        Ok(is_removed)
    }

    /// Size of all images on the disk, including the operator's own and unfinished ones.
    fn images_size(&self) -> Result<DiskSize, Error> {
        let (bytes, files) = self.images.layers_size()?;
        Ok(DiskSize { bytes, files })
    }

    fn full(&self, what: &str, least: DiskSize, images: DiskSize) -> Error {
        let index = lock(&self.index);
        let (limit, used, (entries, in_use)) = (index.limit, index.used(images), index.in_use());
        let message = format!(
            "{what} needs {} bytes and {} files of this node's cache, which has {} bytes and {} files: {} bytes and {} \
             files are taken, {} bytes of those by {entries} packages and images that leases use (raise cache)",
            least.bytes, least.files, limit.bytes, limit.files, used.bytes, used.files, in_use.bytes
        );
        Error::new(Code::StoreFull, message)
    }

    fn file(&self, (kind, digest): &Key) -> PathBuf {
        self.folder.join(format!("{}-{digest}", kind.name()))
    }

    /// Notes the time of a use.
    fn note(&self, key: &Key) {
        let touched = File::options().append(true).open(self.file(key));
        let _ = touched.and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// When an entry was used last, and the tenant that it is charged to; `None` if it has no file.
    fn noted(&self, key: &Key) -> Option<(SystemTime, String)> {
        let path = self.file(key);
        let used = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?;
        let tenant = fs::read_to_string(path).ok().filter(|tenant| tenant.len() <= MAX_TENANT_BYTES);
        Some((used, tenant.unwrap_or_default()))
    }

    /// Takes the entries in that are on the disk, in the order of their last use, and removes files of others.
    fn find_entries(&self) -> Result<(), Error> {
        let mut found: Vec<(SystemTime, Key, DiskSize, String)> = Vec::new();
        let failed = |error: io::Error| system("reading", &self.packages, &error);
        for entry in fs::read_dir(&self.packages).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Some(digest) = entry.file_name().to_str().filter(|name| is_digest(name)).map(str::to_owned)
            else {
                continue;
            };
            let (key, size) = ((EntryKind::Package, digest), size_of(&entry.path()).map_err(failed)?);
            let (used, tenant) = self.noted(&key).unwrap_or((SystemTime::UNIX_EPOCH, String::new()));
            found.push((used, key, size, tenant));
        }
        for image in self.images.list()? {
            if let Some((used, tenant)) = self.noted_image(&image) {
                let key = (EntryKind::Image, image.digest.to_string());
                let _ = fs::write(self.file(&key), &tenant);
                found.push((used, key, DiskSize::of_image(&image), tenant));
            }
        }
        found.sort_by(|one, other| (one.0, &one.1).cmp(&(other.0, &other.1)));
        let mut index = lock(&self.index);
        for (_, key, size, tenant) in &found {
            index.insert(key, *size, tenant);
        }
        drop(index);
        self.remove_files_but(&found.into_iter().map(|(_, key, ..)| self.file(&key)).collect())
    }

    fn remove_files_but(&self, known: &BTreeSet<PathBuf>) -> Result<(), Error> {
        let failed = |error: io::Error| system("reading", &self.folder, &error);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if !known.contains(&path) {
                fs::remove_file(&path).map_err(|error| system("removing", &path, &error))?;
            }
        }
        Ok(())
    }

    /// When an image was used last, and its tenant. A name that is a digest counts, too: that of an index by which it
    /// was pulled.
    fn noted_image(&self, image: &Image) -> Option<(SystemTime, String)> {
        let names = std::iter::once(image.digest.to_string()).chain(image.names.iter().cloned());
        names
            .filter(|name| name.parse::<Digest>().is_ok())
            .find_map(|name| self.noted(&(EntryKind::Image, name)))
    }
}

/// A share of the file system in which a folder is, in bytes.
fn default_limit(folder: &Path) -> Result<u64, Error> {
    let disk = rustix::fs::statvfs(folder)
        .map_err(|error| system("asking for the size of the disk of", folder, &error.into()))?;
    let disk_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
    Ok((disk_bytes / DISK_PARTS).max(LEAST_BYTES.min(disk_bytes / 2)))
}

/// Size of a folder: the apparent sizes of its files in bytes, and the number of all its files and folders.
pub(crate) fn size_of(folder: &Path) -> io::Result<DiskSize> {
    let (mut waiting, mut size) = (vec![folder.to_owned()], DiskSize::default());
    while let Some(path) = waiting.pop() {
        let metadata = fs::symlink_metadata(&path)?;
        size.files += 1;
        if metadata.is_dir() {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        } else {
            size.bytes = size.bytes.saturating_add(metadata.len());
        }
    }
    Ok(size)
}
