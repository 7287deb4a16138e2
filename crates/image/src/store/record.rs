//! Stores the records of images and of names: small files, complete when they have their names.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{FACTS, IMAGES, ImageStore, NAMES, Presence, UNFINISHED};
use crate::digest::Digest;
use crate::error::{DocumentPart, ImageError};
use crate::manifest::{Config, json};

/// An image as the store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageRecord {
    pub(crate) digest: Digest,
    pub(crate) config: Config,
}

/// Numbers that were counted when a layer was unpacked.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LayerFacts {
    pub(crate) unpacked_bytes: u64,
    /// Files, folders and links; not counted by earlier versions.
    #[serde(default)]
    pub(crate) files: u64,
    pub(crate) skipped: u64,
}

/// A name as the store keeps it.
#[derive(Serialize, Deserialize)]
struct ImageName {
    name: String,
    digest: Digest,
}

impl ImageStore {
    /// Keeps an image whose layers are all here. From now on these names mean the image.
    pub(crate) fn keep(
        &self,
        record: &ImageRecord,
        names: &[String],
        _present: &Presence,
    ) -> Result<(), ImageError> {
        debug_assert!(
            record.config.diff_ids.iter().all(|layer| self.layer(layer).exists()),
            "image {} is kept before all of its layers are",
            record.digest
        );
        self.write(IMAGES, &record.digest, record)?;
        for name in names {
            self.write(
                NAMES,
                &Digest::of(name.as_bytes()),
                &ImageName { name: name.clone(), digest: record.digest },
            )?;
        }
        Ok(())
    }

    /// Keeps the numbers of a layer, which gets its final name afterwards.
    pub(crate) fn keep_facts(
        &self,
        diff_id: &Digest,
        facts: LayerFacts,
        _present: &Presence,
    ) -> Result<(), ImageError> {
        self.write(FACTS, diff_id, &facts)
    }

    /// Reads the numbers of a layer.
    pub(super) fn facts(&self, diff_id: &Digest) -> Result<LayerFacts, ImageError> {
        self.read(FACTS, diff_id).map(Option::unwrap_or_default)
    }

    /// Removes the numbers of a layer.
    pub(super) fn remove_facts(&self, diff_id: &Digest) -> Result<(), ImageError> {
        self.remove_file(FACTS, diff_id).map(drop)
    }

    /// Reads the record of an image with this digest.
    pub(crate) fn record(&self, digest: &Digest) -> Result<Option<ImageRecord>, ImageError> {
        self.read(IMAGES, digest)
    }

    /// Finds the digest that a name means.
    pub(super) fn meaning(&self, name: &str) -> Result<Option<Digest>, ImageError> {
        let known: Option<ImageName> = self.read(NAMES, &Digest::of(name.as_bytes()))?;
        Ok(known.map(|known| known.digest))
    }

    /// Lists the names of an image, sorted.
    pub(super) fn names(&self, digest: &Digest) -> Result<Vec<String>, ImageError> {
        let mut names = Vec::new();
        for key in self.digests(NAMES)? {
            let known: Option<ImageName> = self.read(NAMES, &key)?;
            names.extend(known.filter(|known| known.digest == *digest).map(|known| known.name));
        }
        names.sort();
        Ok(names)
    }

    /// Removes the record of an image. Returns `false` if there is none.
    pub(super) fn remove_record(&self, digest: &Digest) -> Result<bool, ImageError> {
        self.remove_file(IMAGES, digest)
    }

    /// Removes all names of an image.
    pub(super) fn remove_names(&self, digest: &Digest) -> Result<(), ImageError> {
        for key in self.digests(NAMES)? {
            let known: Option<ImageName> = self.read(NAMES, &key)?;
            if known.is_some_and(|known| known.digest == *digest) {
                self.remove_file(NAMES, &key)?;
            }
        }
        Ok(())
    }

    /// Lists the digests that are names of files in a folder of the store, sorted.
    pub(super) fn digests(&self, folder: &str) -> Result<Vec<Digest>, ImageError> {
        let folder = self.folder.join(folder);
        let failed = |error| ImageError::system("reading", &folder, error);
        let mut digests = Vec::new();
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            digests.extend(name.to_str().and_then(Digest::from_hex));
        }
        digests.sort();
        debug_assert!(digests.is_sorted_by(|one, next| one < next), "a digest is there twice: {digests:?}");
        Ok(digests)
    }

    fn remove_file(&self, folder: &str, key: &Digest) -> Result<bool, ImageError> {
        let folder = self.folder.join(folder);
        let path = folder.join(key.hex());
        match fs::remove_file(&path) {
            Ok(()) => sync(&folder).map(|()| true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(ImageError::system("removing", path, error)),
        }
    }

    fn read<T: DeserializeOwned>(&self, folder: &str, key: &Digest) -> Result<Option<T>, ImageError> {
        let path = self.folder.join(folder).join(key.hex());
        match fs::read(&path) {
            Ok(bytes) => json(DocumentPart::Config, &bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ImageError::system("reading", path, error)),
        }
    }

    fn write(&self, folder: &str, key: &Digest, value: &impl Serialize) -> Result<(), ImageError> {
        let folder = self.folder.join(folder);
        let path = folder.join(key.hex());
        let written = || {
            let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&folder)?;
            file.write_all(&serde_json::to_vec(value)?)?;
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)
        };
        written().map_err(|error| ImageError::system("writing", &path, error))?;
        sync(&folder)
    }
}

/// Creates a folder with access for its owner only, and those above it, unless it exists.
pub(super) fn make_folder(path: &Path) -> Result<(), ImageError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| ImageError::system("making the folder", path, error))
}

/// Creates a folder with access for its owner only.
pub(super) fn make_private(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Writes the entries of a folder to the disk.
pub(super) fn sync(folder: &Path) -> Result<(), ImageError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| ImageError::system("writing", folder, error))
}
