//! Defines the limits of images. Whatever is larger is refused before it can do harm.

/// Most layers of one image; overlayfs takes 500, Docker makes no more than these.
pub const MAX_LAYERS: usize = 127;
/// Largest index, manifest or configuration, in bytes: what registries take.
pub const MAX_DOCUMENT_BYTES: u64 = 4 << 20;
/// How many indexes may stand between a name and a manifest.
pub(crate) const MAX_INDEX_DEPTH: usize = 4;
/// Longest path of a file in a layer, in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 2048;
/// Most names in such a path.
pub(crate) const MAX_PATH_NAMES: usize = 128;
/// Longest name in such a path, in bytes: what file systems take.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// Longest target of a symbolic link, in bytes: what the kernel takes.
pub(crate) const MAX_TARGET_BYTES: usize = 4095;
/// Largest extended header in a layer's archive, in bytes: attributes that are dropped may be there, too.
pub(crate) const MAX_EXTENSION_BYTES: u64 = 1 << 20;
/// Bytes of the paths of all folders of one layer, which are kept in memory until it is unpacked.
pub(crate) const MAX_FOLDER_PATHS_BYTES: usize = 64 << 20;
/// Largest window of a layer that is compressed by zstd, in bytes: it is held in memory.
pub(crate) const MAX_ZSTD_WINDOW_BYTES: u64 = 128 << 20;
/// Most files in an archive of images.
pub(crate) const MAX_ARCHIVE_MEMBERS: usize = 65_536;

/// What the layers of one image may at most need, together, beside those that are there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Unpacked, in bytes; and nothing that is fetched may be larger.
    pub unpacked_bytes: u64,
    /// Files, folders and links.
    pub files: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { unpacked_bytes: 32 << 30, files: 1_000_000 }
    }
}
