//! Reads the blobs of an image from their source.

use std::fs::File;
use std::io::{self, Read, Write};

use crate::digest::{Digest, Hashing};
use crate::error::{DocumentPart, ImageError};
use crate::limits::MAX_DOCUMENT_BYTES;
use crate::manifest::Descriptor;

/// A registry, a folder or an archive. Its bytes are not trusted: see [`document`] and [`copy`].
pub(crate) trait BlobSource {
    /// Opens a blob and returns its bytes.
    fn open<'a>(
        &'a mut self,
        part: DocumentPart,
        blob: &Descriptor,
    ) -> Result<Box<dyn Read + 'a>, ImageError>;

    /// Creates the error of a failed read. The source knows whose fault that is.
    fn damaged(&self, part: DocumentPart, error: io::Error) -> ImageError {
        ImageError::Damaged { part, source: error }
    }
}

/// Reads a document whole and verifies it.
pub(crate) fn document(
    source: &mut dyn BlobSource,
    part: DocumentPart,
    blob: &Descriptor,
) -> Result<Vec<u8>, ImageError> {
    if blob.size_bytes > MAX_DOCUMENT_BYTES {
        return Err(ImageError::TooLarge { part, limit: MAX_DOCUMENT_BYTES, unit: "bytes" });
    }
    let mut bytes = Vec::new();
    copy(source, part, blob, &mut Collecting(&mut bytes), &mut |_| ())?;
    Ok(bytes)
}

/// Writes a blob to a sink, where it stays until it is verified. Fails if the bytes are not the blob's.
pub(crate) fn copy(
    source: &mut dyn BlobSource,
    part: DocumentPart,
    blob: &Descriptor,
    to: &mut dyn BlobSink,
    read_bytes: &mut dyn FnMut(u64),
) -> Result<(), ImageError> {
    const PIECE_BYTES: usize = 128 << 10;
    let Descriptor { digest, size_bytes: expected_bytes, .. } = *blob;
    let wrong_size = |relation| ImageError::Size { part, digest, relation, expected_bytes };
    let mut piece = vec![0; PIECE_BYTES];
    // A byte more than announced is enough to detect a wrong size.
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

/// Place for the bytes of a blob until they are verified.
pub(crate) trait BlobSink {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError>;
}

struct Collecting<'a>(&'a mut Vec<u8>);

impl BlobSink for Collecting<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// A file without a name, which is gone with this process.
pub(crate) struct Nameless<'a>(pub(crate) &'a mut File);

impl BlobSink for Nameless<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.0.write_all(bytes).map_err(|error| ImageError::system("writing", "a fetched blob", error))
    }
}

/// Creates the descriptor of bytes in memory.
pub(crate) fn describe(bytes: &[u8]) -> Descriptor {
    Descriptor { media_type: String::new(), digest: Digest::of(bytes), size_bytes: bytes.len() as u64 }
}
