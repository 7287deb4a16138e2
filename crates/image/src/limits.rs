//! Defines the limits of images. Anything larger is refused before it can do harm.

/// Most layers of one image. Overlayfs takes 500, and Docker creates no more than this.
pub const MAX_LAYERS: usize = 127;
/// Largest index, manifest or configuration, in bytes: the limit of registries.
pub const MAX_DOCUMENT_BYTES: u64 = 4 << 20;
/// Most indexes between a name and a manifest.
pub(crate) const MAX_INDEX_DEPTH: usize = 4;
/// Longest path of a file in a layer, in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 2048;
/// Most names in such a path.
pub(crate) const MAX_PATH_NAMES: usize = 128;
/// Longest name in such a path, in bytes: the limit of file systems.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Longest target of a symbolic link, in bytes: the limit of the kernel.
pub(crate) const MAX_TARGET_BYTES: usize = 4095;
/// Largest extended header in a layer's archive, in bytes; it may have attributes that are dropped.
pub(crate) const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Bytes of the paths of all folders of one layer, which are kept in memory until it is unpacked.
pub(crate) const MAX_FOLDER_PATHS_BYTES: usize = 64 << 20;
/// Largest window of a layer that is compressed by zstd, in bytes: it is held in memory.
pub(crate) const MAX_ZSTD_WINDOW_BYTES: u64 = 128 << 20;
/// Most files in an archive of images.
pub(crate) const MAX_ARCHIVE_MEMBERS: usize = 65_536;

/// Limits for all layers of one image together that the store does not have already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Unpacked bytes. Also the largest size of anything that is fetched.
    pub unpacked_bytes: u64,
    /// Files, folders and links.
    pub files: u64,
}

impl Default for ImageLimits {
    fn default() -> ImageLimits {
        ImageLimits { unpacked_bytes: 32 << 30, files: 1_000_000 }
    }
}
