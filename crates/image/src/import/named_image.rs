//! An image of a file or a folder, as either format lists it.

use crate::manifest::{Descriptor, ImageManifest};

/// An image of the file or folder.
pub(crate) enum NamedImage {
    /// An image with an index or a manifest, whose digest is the image's.
    ByManifest { root: Descriptor, names: Vec<String> },
    /// An image without a manifest: the digest of its configuration is the image's.
    ByConfig { manifest: ImageManifest, names: Vec<String> },
}
