//! The folder of one node's images, which several processes may use at once.
//!
//! ```text
//! lock            locked shared by processes that add something, for as long as they write, exclusively by those that remove
//! images/HEX      a record that describes the image with this digest
//! names/HEX       which image a name means; HEX is the digest of the name
//! layers/HEX/     the files of the layer with this diff id
//! facts/HEX       the numbers that were counted when they were unpacked
//! */.unfinished-  files that a process is making, or has left when it was killed
//! ```
//!
//! A file or folder gets its final name when it is complete and on the disk. Locks are the kernel's (`flock`), so they are
//! gone with their processes. A layer that is in use is locked shared by its users: see [`Image::hold`]. So is a layer of an
//! image that is pulled, until the image has its record; a layer that is being made is locked exclusively.

mod claim;
mod lock;
mod record;
mod removal;

use std::fs;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::error::ImageError;
use crate::limits::ImageLimits;
use crate::manifest::Config;

pub(crate) use claim::LayerClaim;
use lock::Alone;
pub use lock::InUse;
pub(crate) use lock::Presence;
pub(crate) use record::{ImageRecord, LayerFacts};

const LOCK: &str = "lock";
const IMAGES: &str = "images";
const NAMES: &str = "names";
const LAYERS: &str = "layers";
const FACTS: &str = "facts";
/// Prefix of the name of an incomplete file or folder.
const UNFINISHED: &str = ".unfinished-";

/// The images of one node.
#[derive(Clone, Debug)]
pub struct ImageStore {
    /// Absolute.
    folder: PathBuf,
    limits: ImageLimits,
}

/// An image whose layers are all here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Digest of the image's manifest, or of its configuration if it came without one, as `docker save` used to write
    /// them.
    pub digest: Digest,
    /// Names of the image here, and the digests of indexes that have led to it.
    pub names: Vec<String>,
    /// How it is run.
    pub config: Config,
    /// Absolute paths of the layers' folders, from the bottom to the top. No process may change anything in them.
    pub layers: Vec<PathBuf>,
    /// Bytes of the unpacked layers, as they were in their archives.
    pub unpacked_bytes: u64,
    /// Files, folders and links of the unpacked layers.
    pub files: u64,
    /// Device nodes, FIFOs and sockets of the layers that were not made.
    pub skipped: u64,
}

/// State of a pull or an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// Compressed bytes of layers that were fetched.
    pub fetched_bytes: u64,
    /// Compressed bytes of layers that have to be fetched in all.
    pub wanted_bytes: u64,
    /// Layers that are here.
    pub layers_done: usize,
    /// Layers of the image.
    pub layers: usize,
}

/// Result of pruning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneResult {
    /// Layers that were removed because no image has them any more.
    pub layers: usize,
    /// Layers that no image has, but that are still in use.
    pub in_use: usize,
}

impl ImageStore {
    /// Opens the store in a folder, which is created if it is missing. Unfinished files of killed processes are
    /// removed, if no other process works in the store.
    pub fn open(folder: impl AsRef<Path>) -> Result<ImageStore, ImageError> {
        ImageStore::open_with(folder, ImageLimits::default())
    }

    /// Opens the store with other limits for its images.
    pub fn open_with(folder: impl AsRef<Path>, limits: ImageLimits) -> Result<ImageStore, ImageError> {
        let folder = folder.as_ref();
        for name in ["", IMAGES, NAMES, LAYERS, FACTS] {
            record::make_folder(&folder.join(name))?;
        }
        let folder =
            fs::canonicalize(folder).map_err(|error| ImageError::system("finding", folder, error))?;
        let store = ImageStore { folder, limits };
        if let Some(alone) = store.try_alone()? {
            store.remove_unfinished(&alone)?;
        }
        Ok(store)
    }

    /// Finds the image of a digest: of its manifest, or of an index that has led to it.
    pub fn find(&self, digest: &Digest) -> Result<Option<Image>, ImageError> {
        match self.record(digest)? {
            Some(record) => self.image(record).map(Some),
            None => self.named(&digest.to_string()),
        }
    }

    /// Finds the image of a name as [`Reference`] writes it, or of a digest as text.
    pub fn named(&self, name: &str) -> Result<Option<Image>, ImageError> {
        let Some(digest) = self.meaning(name)? else { return Ok(None) };
        self.record(&digest)?.map(|record| self.image(record)).transpose()
    }

    /// Lists all images, in the order of their digests.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let mut images = Vec::new();
        for digest in self.digests(IMAGES)? {
            if let Some(record) = self.record(&digest)? {
                images.push(self.image(record)?);
            }
        }
        Ok(images)
    }

    /// Removes an image and its names. Its layers stay until [`ImageStore::prune`], because other images or processes may
    /// use them.
    pub fn remove(&self, digest: &Digest) -> Result<(), ImageError> {
        let _alone = self.be_alone()?;
        if !self.remove_record(digest)? {
            return Err(ImageError::Unknown(digest.to_string()));
        }
        self.remove_names(digest)
    }

    /// Removes the layers that no image has and no process uses. Waits for imports that are under way.
    pub fn prune(&self) -> Result<PruneResult, ImageError> {
        let alone = self.be_alone()?;
        self.prune_alone(&alone)
    }

    /// Prunes like [`ImageStore::prune`], unless another process works in the store.
    pub fn prune_if_alone(&self) -> Result<(), ImageError> {
        match self.try_alone()? {
            Some(alone) => self.prune_alone(&alone).map(drop),
            None => Ok(()),
        }
    }

    /// Removes an image with its names, and all layers that no image has and no process uses. Returns `false`, and
    /// removes nothing, if another process works in the store.
    pub fn remove_if_alone(&self, digest: &Digest) -> Result<bool, ImageError> {
        let Some(alone) = self.try_alone()? else { return Ok(false) };
        self.remove_record(digest)?;
        self.remove_names(digest)?;
        self.prune_alone(&alone).map(|_| true)
    }

    /// Returns the bytes and the files of all layers, whether an image has them or not.
    pub fn layers_size(&self) -> Result<(u64, u64), ImageError> {
        let (mut bytes, mut files) = (0u64, 0u64);
        for layer in self.digests(LAYERS)? {
            let facts = self.facts(&layer)?;
            bytes = bytes.saturating_add(facts.unpacked_bytes);
            files = files.saturating_add(facts.files);
        }
        Ok((bytes, files))
    }

    fn prune_alone(&self, alone: &Alone) -> Result<PruneResult, ImageError> {
        self.remove_unfinished(alone)?;
        let mut wanted = Vec::new();
        for digest in self.digests(IMAGES)? {
            wanted.extend(self.record(&digest)?.into_iter().flat_map(|record| record.config.diff_ids));
        }
        wanted.sort();
        let mut pruned = PruneResult::default();
        for layer in self.digests(LAYERS)? {
            if wanted.binary_search(&layer).is_err() {
                match self.remove_layer(&layer, alone)? {
                    true => pruned.layers += 1,
                    false => pruned.in_use += 1,
                }
            }
        }
        Ok(pruned)
    }

    pub(crate) fn limits(&self) -> ImageLimits {
        self.limits
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.folder.join(LAYERS).join(diff_id.hex())
    }

    pub(crate) fn image(&self, record: ImageRecord) -> Result<Image, ImageError> {
        let ImageRecord { digest, config } = record;
        let diff_ids = topmost(&config.diff_ids);
        debug_assert!(self.folder.is_absolute(), "the store is at {}", self.folder.display());
        let layers = diff_ids.iter().map(|diff_id| self.layer(diff_id)).collect();
        let names = self.names(&digest)?;
        let mut image = Image { digest, names, config, layers, unpacked_bytes: 0, files: 0, skipped: 0 };
        for diff_id in diff_ids {
            let facts = self.facts(&diff_id)?;
            image.unpacked_bytes = image.unpacked_bytes.saturating_add(facts.unpacked_bytes);
            image.files = image.files.saturating_add(facts.files);
            image.skipped = image.skipped.saturating_add(facts.skipped);
        }
        Ok(image)
    }
}

/// Keeps each layer once, at its last position. Overlayfs takes no folder twice, and nothing is lost: whatever a layer
/// makes or hides, it makes or hides above all layers in between.
fn topmost(diff_ids: &[Digest]) -> Vec<Digest> {
    let is_last = |&(index, diff_id): &(usize, &Digest)| !diff_ids[index + 1..].contains(diff_id);
    let topmost: Vec<Digest> =
        diff_ids.iter().enumerate().filter(is_last).map(|(_, diff_id)| *diff_id).collect();
    debug_assert!(
        diff_ids.iter().all(|diff_id| topmost.contains(diff_id)),
        "of {diff_ids:?} only {topmost:?}"
    );
    debug_assert_eq!(topmost.last(), diff_ids.last(), "another layer is on top");
    topmost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_an_image_saturate() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::open(folder.path()).unwrap();
        let presence = store.be_present().unwrap();
        let diff_ids = [b"a", b"b"].map(|bytes| Digest::of(bytes)).to_vec();
        let most = LayerFacts { unpacked_bytes: u64::MAX, files: u64::MAX, skipped: u64::MAX };
        for diff_id in &diff_ids {
            fs::create_dir(store.layer(diff_id)).unwrap();
            store.keep_facts(diff_id, most, &presence).unwrap();
        }
        let record =
            ImageRecord { digest: Digest::of(b"image"), config: Config { diff_ids, ..Config::default() } };
        store.keep(&record, &[], &presence).unwrap();
        let image = store.find(&record.digest).unwrap().unwrap();
        assert_eq!((image.unpacked_bytes, image.files, image.skipped), (u64::MAX, u64::MAX, u64::MAX));
    }

    #[test]
    fn keeps_the_topmost_position_of_a_repeated_layer() {
        let [a, b, c] = [b"a", b"b", b"c"].map(|bytes| Digest::of(bytes));
        assert_eq!(topmost(&[a, b, a, c, b]), [a, c, b]);
        assert_eq!(topmost(&[]), []);
    }
}
