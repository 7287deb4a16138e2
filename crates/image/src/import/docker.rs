//! The list of images of `docker save`, as it was before layouts: `manifest.json`, which names files by their paths.

use std::collections::BTreeMap;
use std::io;

use serde::Deserialize;

use super::files::ImageFiles;
use super::named_image::NamedImage;
use crate::digest::{Digest, Hashing};
use crate::error::{DocumentPart, ImageError};
use crate::limits::MAX_LAYERS;
use crate::manifest::{Descriptor, ImageManifest, json};
use crate::reference::Reference;

/// Most images in one archive; each layer of each is read once to compute its digest.
const MAX_IMAGES: usize = 256;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Item {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Returns the images of the list, and the paths of their blobs.
pub(super) fn images(
    files: &ImageFiles,
    list: &[u8],
) -> Result<(Vec<NamedImage>, BTreeMap<Digest, String>), ImageError> {
    let items: Vec<Item> = json(DocumentPart::Index, list)?;
    if items.len() > MAX_IMAGES {
        return Err(ImageError::TooLarge {
            part: DocumentPart::Index,
            limit: MAX_IMAGES as u64,
            unit: "images",
        });
    }
    let mut known = KnownFiles { files, paths: BTreeMap::new(), described: BTreeMap::new() };
    let images = items.into_iter().map(|item| known.image(item)).collect::<Result<_, _>>()?;
    Ok((images, known.paths))
}

/// Files that were looked up.
struct KnownFiles<'a> {
    files: &'a ImageFiles,
    paths: BTreeMap<Digest, String>,
    /// Descriptors by path, because images have layers in common.
    described: BTreeMap<String, Descriptor>,
}

impl KnownFiles<'_> {
    fn image(&mut self, item: Item) -> Result<NamedImage, ImageError> {
        if item.layers.len() > MAX_LAYERS {
            return Err(ImageError::Layers(item.layers.len()));
        }
        let config = self.describe(DocumentPart::Config, item.config)?;
        let layers = item.layers.into_iter().map(|path| self.describe(DocumentPart::Layer, path));
        let manifest = ImageManifest { config, layers: layers.collect::<Result<_, _>>()? };
        let names = item.repo_tags.unwrap_or_default().into_iter();
        let names = names.filter_map(|name| name.parse::<Reference>().ok()).map(|name| name.to_string());
        Ok(NamedImage::ByConfig { manifest, names: names.collect() })
    }

    fn describe(&mut self, part: DocumentPart, path: String) -> Result<Descriptor, ImageError> {
        if let Some(described) = self.described.get(&path) {
            return Ok(described.clone());
        }
        let problem = "it names a file that is not there";
        let (content, _) = self
            .files
            .open_file(&path)?
            .ok_or(ImageError::Document { part: DocumentPart::Index, problem })?;
        let mut content = Hashing::new(content);
        io::copy(&mut content, &mut io::sink()).map_err(|source| ImageError::Damaged { part, source })?;
        let size_bytes = content.passed_bytes();
        let described = Descriptor { media_type: String::new(), digest: content.digest(), size_bytes };
        self.paths.insert(described.digest, path.clone());
        self.described.insert(path, described.clone());
        Ok(described)
    }
}
