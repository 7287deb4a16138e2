//! Images from a file or a folder: an OCI layout, or what `docker save` writes.
//!
//! Both consist of blobs and a list of images. Newer versions of Docker write a layout that has both lists; then the
//! layout's list counts. Files that the older format names by path are indexed by their digests here, so that all later
//! steps are the same for both formats.

mod archive;
mod docker;
mod files;
mod layout;
mod named_image;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use crate::digest::Digest;
use crate::error::{DocumentPart, ImageError};
use crate::limits::{ImageLimits, MAX_DOCUMENT_BYTES};
use crate::manifest::Descriptor;
use crate::source::BlobSource;

use files::ImageFiles;

pub(crate) use named_image::NamedImage;

/// Images of a file or a folder, and the source of their blobs.
pub(crate) struct FoundImages {
    pub(crate) source: Box<dyn BlobSource>,
    /// The images; at least one.
    pub(crate) images: Vec<NamedImage>,
}

/// Lists the images of a file or folder. A compressed archive is unpacked into a file without a name in `scratch`.
pub(crate) fn open(path: &Path, scratch: &Path, limits: &ImageLimits) -> Result<FoundImages, ImageError> {
    let files = ImageFiles::open(path, scratch, limits)?;
    let (images, paths) = match (files.document("index.json")?, files.document("manifest.json")?) {
        (Some(index), _) => (layout::images(&index)?, BTreeMap::new()),
        (None, Some(manifest)) => docker::images(&files, &manifest)?,
        (None, None) => return Err(ImageError::NoImages { path: path.to_owned() }),
    };
    match images.is_empty() {
        true => Err(ImageError::NoImages { path: path.to_owned() }),
        false => Ok(FoundImages { source: Box::new(Blobs { files, paths }), images }),
    }
}

/// Blobs by their digests.
struct Blobs {
    files: ImageFiles,
    /// Paths of blobs that are not at their usual place in a layout.
    paths: BTreeMap<Digest, String>,
}

impl BlobSource for Blobs {
    fn open<'a>(
        &'a mut self,
        part: DocumentPart,
        blob: &Descriptor,
    ) -> Result<Box<dyn Read + 'a>, ImageError> {
        let usual = || format!("blobs/sha256/{}", blob.digest.hex());
        let path = self.paths.get(&blob.digest).cloned().unwrap_or_else(usual);
        let missing = || ImageError::Size {
            part,
            digest: blob.digest,
            relation: "none of",
            expected_bytes: blob.size_bytes,
        };
        self.files.open_file(&path)?.ok_or_else(missing).map(|(reader, _)| reader)
    }
}

impl ImageFiles {
    /// Reads a small file whole; `None` if there is none of that name.
    fn document(&self, name: &str) -> Result<Option<Vec<u8>>, ImageError> {
        let Some((reader, bytes)) = self.open_file(name)? else { return Ok(None) };
        if bytes > MAX_DOCUMENT_BYTES {
            return Err(ImageError::TooLarge {
                part: DocumentPart::Index,
                limit: MAX_DOCUMENT_BYTES,
                unit: "bytes",
            });
        }
        let mut content = Vec::new();
        let read = reader.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut content);
        read.map_err(|source| ImageError::Damaged { part: DocumentPart::Archive, source })?;
        Ok(Some(content))
    }
}
