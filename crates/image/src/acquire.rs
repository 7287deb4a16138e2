//! Takes one image from a source of any kind into the store.

use std::io::{Seek, SeekFrom};

use crate::digest::Digest;
use crate::error::{DocumentPart, ImageError};
use crate::layer::{self, UnpackedLayer};
use crate::limits::{ImageLimits, MAX_INDEX_DEPTH};
use crate::manifest::{Config, Descriptor, ImageDocument, ImageManifest, choose};
use crate::source::{BlobSource, Nameless, copy, document};
use crate::store::{Image, ImageRecord, ImageStore, LayerClaim, LayerFacts, Presence, PullProgress};

/// One image on its way into a store.
pub(crate) struct Acquisition<'a> {
    store: &'a ImageStore,
    presence: &'a Presence,
    source: &'a mut dyn BlobSource,
    told: &'a mut dyn FnMut(PullProgress),
    progress: PullProgress,
    /// Limits that remain for the image's layers.
    limits: ImageLimits,
}

impl<'a> Acquisition<'a> {
    /// Creates an acquisition. The caller holds the store's presence lock, so that no layer is removed meanwhile.
    pub(crate) fn new(
        store: &'a ImageStore,
        presence: &'a Presence,
        source: &'a mut dyn BlobSource,
        told: &'a mut dyn FnMut(PullProgress),
    ) -> Acquisition<'a> {
        Acquisition {
            store,
            presence,
            source,
            told,
            progress: PullProgress::default(),
            limits: store.limits(),
        }
    }

    /// Uses these limits in place of the store's.
    pub(crate) fn within(self, limits: ImageLimits) -> Acquisition<'a> {
        Acquisition { limits, ..self }
    }

    /// Takes the image to which an index or a manifest leads on this machine.
    pub(crate) fn image(&mut self, root: &Descriptor, names: &[String]) -> Result<Image, ImageError> {
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
    pub(crate) fn manifest(
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
        self.store.keep(&record, names, self.presence)?;
        self.store.image(record)
    }

    /// Fetches and unpacks a layer, unless the store has it.
    fn layer(&mut self, blob: &Descriptor, diff_id: &Digest) -> Result<(), ImageError> {
        match self.store.claim(diff_id, self.presence)? {
            Some(claim) => self.unpack(claim, blob, diff_id)?,
            None => self.progress.wanted_bytes = self.progress.wanted_bytes.saturating_sub(blob.size_bytes),
        }
        self.progress.layers_done += 1;
        debug_assert!(self.progress.layers_done <= self.progress.layers, "{:?}", self.progress);
        (self.told)(self.progress);
        Ok(())
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
        self.store.keep_facts(expected, LayerFacts { unpacked_bytes, files, skipped }, self.presence)?;
        claim.finish()
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
