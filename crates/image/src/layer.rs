//! A layer: an untrusted archive, unpacked into a folder that overlayfs takes as a lower layer.
//!
//! Files are made relative to a descriptor of that folder. Each folder on the way is opened by the kernel under rules
//! that no path can break (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`, see [`tree`]), files are made and
//! never opened for writing when they are there, and links are made but not followed.
//!
//! Kept: names, contents, links, the permissions and times of modification. Not kept: owners (all files belong to one
//! user, see [`tree::FileOwner`]), set-user-ID and set-group-ID, extended attributes with file capabilities among them.
//! Device nodes, FIFOs and sockets are only counted. Whiteouts become those of overlayfs: a character device 0/0, which
//! every user may create, and the attribute `user.overlay.opaque`.
//!
//! Invariants:
//! - Nothing outside of the folder is made, changed, read or linked to, whatever the archive holds.
//! - Memory does not grow with the archive, but for the paths of folders, which are bounded.
//! - The owner of the files can read them and enter the folders.

mod bounded;
mod decompress;
mod entries;
mod entry;
mod padded;
mod path;
mod tree;

use std::io::{self, Read};
use std::os::fd::BorrowedFd;

use crate::digest::{Digest, Hashing};
use crate::error::{DocumentPart, ImageError};
use crate::limits::ImageLimits;

use bounded::BoundedReader;
pub(crate) use decompress::decompressed;
pub(crate) use entries::{FileKind, for_each};
use tree::{Tree, damaged};

/// Measurements of an unpacked layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackedLayer {
    /// The digest of the uncompressed archive.
    pub diff_id: Digest,
    /// The length of the uncompressed archive, in bytes.
    pub bytes: u64,
    /// Files, folders, links and whiteouts that were made.
    pub files: u64,
    /// Device nodes, FIFOs and sockets that were not made.
    pub skipped: u64,
}

/// Unpacks a layer (gzip, zstd or plain) into an empty folder. It keeps within the limits, and reduces them by what it
/// has used. After an error, files that were made stay for the caller to remove.
pub fn unpack(
    layer: impl Read,
    folder: BorrowedFd<'_>,
    limits: &mut ImageLimits,
) -> Result<UnpackedLayer, ImageError> {
    let archive = decompressed(layer).map_err(damaged)?;
    let mut archive = BoundedReader::new(Hashing::new(archive), limits.unpacked_bytes);
    let mut tree = Tree::new(folder, limits.files)?;
    let unpacked = for_each(&mut archive, |entry, content| entry::place(&mut tree, entry, content))
        .and_then(|()| tree.finish())
        // Bytes after the archive's end count for the digest.
        .and_then(|()| io::copy(&mut archive, &mut io::sink()).map(drop).map_err(damaged));
    if archive.is_exceeded() {
        let limit = limits.unpacked_bytes;
        return Err(ImageError::TooLarge {
            part: DocumentPart::Layer,
            limit,
            unit: "bytes when it is unpacked",
        });
    }
    unpacked?;
    let archive = archive.into_inner();
    let (bytes, files) = (archive.passed_bytes(), tree.made());
    *limits = ImageLimits { unpacked_bytes: limits.unpacked_bytes - bytes, files: limits.files - files };
    Ok(UnpackedLayer { diff_id: archive.digest(), bytes, files, skipped: tree.skipped() })
}
