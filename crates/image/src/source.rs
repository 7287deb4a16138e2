//! Reads the blobs of an image from their source.

use std::fs::File;
use std::io::{self, Read, Write};

use crate::digest::{Digest, Hashing};
use crate::error::{ImageError, Part};
use crate::limits::MAX_DOCUMENT_BYTES;
use crate::manifest::Descriptor;

/// A registry, a folder or an archive. What it gives is believed by nobody: see [`document`] and [`copy`].
pub(crate) trait Source {
    /// The bytes of a blob.
    fn open<'a>(&'a mut self, part: Part, blob: &Descriptor) -> Result<Box<dyn Read + 'a>, ImageError>;

    /// That reading what was opened has failed: whose fault that is, the source knows.
    fn damaged(&self, part: Part, error: io::Error) -> ImageError {
        ImageError::Damaged { part, source: error }
    }
}

/// A document, whole and verified.
pub(crate) fn document(
    source: &mut dyn Source,
    part: Part,
    blob: &Descriptor,
) -> Result<Vec<u8>, ImageError> {
    if blob.size_bytes > MAX_DOCUMENT_BYTES {
        return Err(ImageError::TooLarge { part, limit: MAX_DOCUMENT_BYTES, unit: "bytes" });
    }
    let mut bytes = Vec::new();
    copy(source, part, blob, &mut Collecting(&mut bytes), &mut |_| ())?;
    Ok(bytes)
}

/// Writes a blob to where it is kept until it was verified: it fails if those are not its bytes.
pub(crate) fn copy(
    source: &mut dyn Source,
    part: Part,
    blob: &Descriptor,
    to: &mut dyn Sink,
    read_bytes: &mut dyn FnMut(u64),
) -> Result<(), ImageError> {
    const PIECE_BYTES: usize = 128 << 10;
    let Descriptor { digest, size_bytes: expected_bytes, .. } = *blob;
    let wrong_size = |relation| ImageError::Size { part, digest, relation, expected_bytes };
    let mut piece = vec![0; PIECE_BYTES];
    // A byte more than announced is enough to know.
    let mut reader = Hashing::new(source.open(part, blob)?.take(expected_bytes.saturating_add(1)));
    let failed = loop {
        match reader.read(&mut piece) {
            Ok(0) => break None,
            Ok(_) if reader.passed_bytes() > expected_bytes => return Err(wrong_size("more than")),
            Ok(read) => {
                to.write(&piece[..read])?;
                read_bytes(read as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break Some(error),
        }
    };
    let (bytes, actual) = (reader.passed_bytes(), reader.digest());
    debug_assert!(bytes <= expected_bytes, "{bytes} bytes were taken, and {expected_bytes} announced");
    if let Some(error) = failed {
        return Err(source.damaged(part, error));
    }
    match bytes == expected_bytes {
        false => Err(wrong_size("fewer than")),
        true if actual != digest => Err(ImageError::DigestMismatch { part, expected: digest, actual }),
        true => Ok(()),
    }
}

/// Where a blob is kept until it was verified.
pub(crate) trait Sink {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError>;
}

struct Collecting<'a>(&'a mut Vec<u8>);

impl Sink for Collecting<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// A file without a name, gone with this process.
pub(crate) struct Nameless<'a>(pub(crate) &'a mut File);

impl Sink for Nameless<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.0.write_all(bytes).map_err(|error| ImageError::system("writing", "a fetched blob", error))
    }
}

/// The descriptor of bytes that are at hand.
pub(crate) fn describe(bytes: &[u8]) -> Descriptor {
    Descriptor { media_type: String::new(), digest: Digest::of(bytes), size_bytes: bytes.len() as u64 }
}
