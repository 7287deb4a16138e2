//! Takes one image from a source of any kind into the store.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use crate::digest::Digest;
use crate::error::{DocumentPart, ImageError};
use crate::import;
use crate::layer::{self, UnpackedLayer};
use crate::limits::{ImageLimits, MAX_INDEX_DEPTH};
use crate::manifest::{Config, Descriptor, ImageDocument, ImageManifest, choose};
use crate::reference::Reference;
use crate::registry::{Registry, RegistryAccess};
use crate::source::{BlobSource, Nameless, copy, document};
use crate::store::{Image, ImageRecord, ImageStore, LayerClaim, LayerFacts, PullProgress};

/// Number of times that a layer is made which is removed before it is locked.
const MAX_ATTEMPTS: usize = 8;

/// One image on its way into a store. While its source sends a layer, nothing of the store is locked but this layer and
/// those that are here already: other images can be removed meanwhile.
struct Acquisition<'a> {
    store: &'a ImageStore,
    source: &'a mut dyn BlobSource,
    told: &'a mut dyn FnMut(PullProgress),
    progress: PullProgress,
    /// Limits that remain for the image's layers.
    limits: ImageLimits,
    /// Locks on the layers that are here, which no image may have yet.
    held: Vec<File>,
}

impl<'a> Acquisition<'a> {
    fn new(
        store: &'a ImageStore,
        source: &'a mut dyn BlobSource,
        told: &'a mut dyn FnMut(PullProgress),
    ) -> Acquisition<'a> {
        let (progress, limits) = (PullProgress::default(), store.limits());
        Acquisition { store, source, told, progress, limits, held: Vec::new() }
    }

    /// Uses these limits in place of the store's.
    fn within(self, limits: ImageLimits) -> Acquisition<'a> {
        Acquisition { limits, ..self }
    }

    /// Takes the image to which an index or a manifest leads on this machine.
    fn image(&mut self, root: &Descriptor, names: &[String]) -> Result<Image, ImageError> {
        let mut names = names.to_vec();
        let mut next = root.clone();
        for _ in 0..=MAX_INDEX_DEPTH {
            let bytes = document(self.source, DocumentPart::Manifest, &next)?;
            match ImageDocument::read(&bytes)? {
                ImageDocument::Manifest(manifest) => return self.manifest(next.digest, &manifest, &names),
                ImageDocument::Index(entries) => {
                    names.push(next.digest.to_string());
                    next = choose(&entries)?.descriptor.clone();
                }
            }
        }
        Err(ImageError::Depth)
    }

    /// Takes the image of a manifest that was read.
    fn manifest(
        &mut self,
        digest: Digest,
        manifest: &ImageManifest,
        names: &[String],
    ) -> Result<Image, ImageError> {
        let config = Config::read(&document(self.source, DocumentPart::Config, &manifest.config)?)?;
        if config.diff_ids.len() != manifest.layers.len() {
            let problem = "it has another number of layers than the manifest";
            return Err(ImageError::Document { part: DocumentPart::Config, problem });
        }
        let wanted = manifest.layers.iter().map(|layer| layer.size_bytes);
        self.progress.wanted_bytes = wanted.fold(0, u64::saturating_add);
        self.progress.layers = manifest.layers.len();
        for (blob, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
            self.layer(blob, diff_id)?;
        }
        let record = ImageRecord { digest, config };
        let presence = self.store.be_present()?;
        self.store.keep(&record, names, &presence)?;
        self.store.image(record)
    }

    /// Fetches and unpacks a layer, unless the store has it.
    fn layer(&mut self, blob: &Descriptor, diff_id: &Digest) -> Result<(), ImageError> {
        let held = self.here(blob, diff_id)?;
        self.held.push(held);
        self.progress.layers_done += 1;
        debug_assert!(self.progress.layers_done <= self.progress.layers, "{:?}", self.progress);
        (self.told)(self.progress);
        Ok(())
    }

    /// Makes a layer be here, and locks it.
    fn here(&mut self, blob: &Descriptor, diff_id: &Digest) -> Result<File, ImageError> {
        let mut is_fetched = false;
        for _ in 0..MAX_ATTEMPTS {
            if let Some(claim) = self.store.claim(diff_id)? {
                is_fetched = true;
                self.unpack(claim, blob, diff_id)?;
            }
            // Another process may have removed it since.
            if let Some(held) = self.store.hold_layer(diff_id)? {
                let saved = if is_fetched { 0 } else { blob.size_bytes };
                self.progress.wanted_bytes = self.progress.wanted_bytes.saturating_sub(saved);
                return Ok(held);
            }
        }
        Err(ImageError::LayerRemoved { diff_id: *diff_id })
    }

    fn unpack(&mut self, claim: LayerClaim, blob: &Descriptor, expected: &Digest) -> Result<(), ImageError> {
        let fetched = self.fetch(blob)?;
        let UnpackedLayer { diff_id: actual, bytes: unpacked_bytes, files, skipped } =
            layer::unpack(fetched, claim.folder(), &mut self.limits)?;
        if actual != *expected {
            return Err(ImageError::DigestMismatch {
                part: DocumentPart::Layer,
                expected: *expected,
                actual,
            });
        }
        let presence = self.store.be_present()?;
        self.store.keep_facts(expected, LayerFacts { unpacked_bytes, files, skipped }, &presence)?;
        claim.finish(&presence)
    }

    /// Fetches a blob into a file without a name, so that no failure leaves anything of it.
    fn fetch(&mut self, blob: &Descriptor) -> Result<std::fs::File, ImageError> {
        let limit = self.limits.unpacked_bytes;
        if blob.size_bytes > limit {
            return Err(ImageError::TooLarge { part: DocumentPart::Layer, limit, unit: "bytes" });
        }
        let failed = |error| ImageError::system("making a file in", self.store.folder(), error);
        let mut file = tempfile::tempfile_in(self.store.folder()).map_err(failed)?;
        let (progress, told) = (&mut self.progress, &mut self.told);
        copy(self.source, DocumentPart::Layer, blob, &mut Nameless(&mut file), &mut |bytes| {
            progress.fetched_bytes = progress.fetched_bytes.saturating_add(bytes);
            told(*progress);
        })?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok(file)
    }
}

impl ImageStore {
    /// Fetches an image from its registry; layers in the store are not fetched again.
    pub fn pull(
        &self,
        reference: &Reference,
        access: &RegistryAccess,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<Image, ImageError> {
        self.pull_within(reference, access, self.limits(), progress)
    }

    /// Fetches an image like [`ImageStore::pull`], with other limits for what has to be unpacked.
    pub fn pull_within(
        &self,
        reference: &Reference,
        access: &RegistryAccess,
        limits: ImageLimits,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<Image, ImageError> {
        let mut registry = Registry::new(reference, access)?;
        let root = registry.root(reference)?;
        let mut acquisition = Acquisition::new(self, &mut registry, progress).within(limits);
        acquisition.image(&root, &[reference.to_string()])
    }

    /// Imports the images for this machine of an OCI layout, in a folder or in a tar, or of a tar by `docker save`. A
    /// tar may be compressed. It is an error if there is no image.
    pub fn import(
        &self,
        path: &Path,
        progress: &mut dyn FnMut(PullProgress),
    ) -> Result<Vec<Image>, ImageError> {
        // The files are on this machine: nothing is removed until they are unpacked.
        let _presence = self.be_present()?;
        let import::FoundImages { mut source, images } = import::open(path, self.folder(), &self.limits())?;
        let mut taken = Vec::new();
        for image in &images {
            let mut acquisition = Acquisition::new(self, &mut *source, &mut *progress);
            taken.push(match image {
                import::NamedImage::ByManifest { root, names } => acquisition.image(root, names)?,
                import::NamedImage::ByConfig { manifest, names } => {
                    acquisition.manifest(manifest.config.digest, manifest, names)?
                }
            });
        }
        Ok(taken)
    }
}
