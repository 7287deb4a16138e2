//! The entries of an archive, one after the other, each with the extended headers that belong to it.
//!
//! The library reads extended headers of any length into memory. So the library only returns the raw headers, and this
//! module reads the extended ones within a bound.

use std::io::{self, Read};

use tar::{Archive, EntryType, Header, PaxExtensions};

use super::padded::PaddedReader;
use crate::error::{DocumentPart, EntryProblem, ImageError};
use crate::limits::{MAX_EXTENSION_BYTES, MAX_PATH_BYTES, MAX_TARGET_BYTES};

/// Prefix of the keys by which GNU's tar describes sparse files.
const GNU_SPARSE: &[u8] = b"GNU.sparse.";

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Folder,
    SymbolicLink,
    HardLink,
    /// A device node, a FIFO or a socket.
    Special,
    /// An entry that does not belong into a layer.
    Foreign,
}

/// Description of one file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArchiveEntry {
    pub(crate) kind: FileKind,
    /// The path as the archive has it.
    pub(crate) path: Vec<u8>,
    /// The target of a link.
    pub(crate) target: Vec<u8>,
    /// Permissions and other mode bits.
    pub(crate) mode: u32,
    /// When it was modified, in seconds of Unix time.
    pub(crate) modified_s: i64,
    /// Length of the content, in bytes.
    pub(crate) bytes: u64,
    /// Position in the archive at which the content begins.
    pub(crate) position: u64,
}

/// Fields of extended headers for the entry after them.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    bytes: Option<u64>,
    modified_s: Option<i64>,
    is_sparse: bool,
}

/// Calls `take` for each entry, with its content.
pub(crate) fn for_each(
    archive: impl Read,
    mut take: impl FnMut(&ArchiveEntry, &mut dyn Read) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let archive = PaddedReader::new(archive);
    let is_padding = archive.is_padding();
    let mut archive = Archive::new(archive);
    let mut extension = Extension::default();
    for raw in archive.entries().map_err(damaged)?.raw(true) {
        let mut raw = raw.map_err(damaged)?;
        if !extension.read(&mut raw)? {
            let entry = entry(&raw, std::mem::take(&mut extension))?;
            take(&entry, &mut raw)?;
            // Zeros may be missing after a file's content, but no bytes within it.
            if is_padding.get() {
                return Err(damaged(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
    Ok(())
}

fn entry<R: Read>(raw: &tar::Entry<'_, R>, extension: Extension) -> Result<ArchiveEntry, ImageError> {
    let header = raw.header();
    let path = extension.path.unwrap_or_else(|| header.path_bytes().into_owned());
    if extension.is_sparse {
        return Err(ImageError::entry(&path, EntryProblem::Kind));
    }
    // A size other than that of the header would hide entries, because the position of the next header follows from it.
    if extension.bytes.is_some_and(|bytes| bytes != raw.size()) {
        return Err(ImageError::entry(&path, EntryProblem::Size));
    }
    let header_target = || header.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
    let header_time = || i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(i64::MAX);
    Ok(ArchiveEntry {
        kind: kind(header, &path),
        target: extension.target.unwrap_or_else(header_target),
        mode: header.mode().map_err(damaged)?,
        modified_s: extension.modified_s.unwrap_or_else(header_time),
        bytes: raw.size(),
        position: raw.raw_file_position(),
        path,
    })
}

fn kind(header: &Header, path: &[u8]) -> FileKind {
    match header.entry_type() {
        // Archives without an entry type for folders mark them with a slash.
        EntryType::Regular if path.ends_with(b"/") => FileKind::Folder,
        EntryType::Regular | EntryType::Continuous => FileKind::File,
        EntryType::Directory => FileKind::Folder,
        EntryType::Symlink => FileKind::SymbolicLink,
        EntryType::Link => FileKind::HardLink,
        EntryType::Char | EntryType::Block | EntryType::Fifo => FileKind::Special,
        _ => FileKind::Foreign,
    }
}

impl Extension {
    /// Reads an extended header for the next entry. Returns `false` if this is an entry itself.
    fn read<R: Read>(&mut self, raw: &mut tar::Entry<'_, R>) -> Result<bool, ImageError> {
        match raw.header().entry_type() {
            EntryType::GNULongName => self.path = Some(long(raw, MAX_PATH_BYTES)?),
            EntryType::GNULongLink => self.target = Some(long(raw, MAX_TARGET_BYTES)?),
            EntryType::XHeader => {
                let bytes = content(raw)?;
                for record in PaxExtensions::new(&bytes) {
                    let record = record.map_err(damaged)?;
                    self.keep(record.key_bytes(), record.value_bytes())?;
                }
            }
            // A header for all entries names none of them.
            EntryType::XGlobalHeader => drop(content(raw)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn keep(&mut self, key: &[u8], value: &[u8]) -> Result<(), ImageError> {
        match key {
            b"path" => self.path = Some(value.to_owned()),
            b"linkpath" => self.target = Some(value.to_owned()),
            b"size" => self.bytes = Some(number(value).ok_or_else(|| no_number(key))?),
            // Only whole seconds count; a fraction may follow, and times before 1970 have a sign.
            b"mtime" => {
                let whole = value.split(|&byte| byte == b'.').next().unwrap_or_default();
                self.modified_s = Some(number(whole).ok_or_else(|| no_number(key))?);
            }
            _ => self.is_sparse |= key.starts_with(GNU_SPARSE),
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn no_number(key: &[u8]) -> ImageError {
    let message = format!("an extended header's {} is no number", String::from_utf8_lossy(key));
    damaged(io::Error::new(io::ErrorKind::InvalidData, message))
}

/// Reads a path or target that is the content of an entry, without its final zero byte.
fn long<R: Read>(raw: &mut tar::Entry<'_, R>, max_bytes: usize) -> Result<Vec<u8>, ImageError> {
    let mut bytes = content(raw)?;
    if bytes.last() == Some(&0) {
        bytes.pop();
    }
    match bytes.len() {
        too_long if too_long > max_bytes => Err(ImageError::entry(&bytes, EntryProblem::TooLong)),
        _ => Ok(bytes),
    }
}

fn content<R: Read>(raw: &mut tar::Entry<'_, R>) -> Result<Vec<u8>, ImageError> {
    let size = raw.size();
    if size > MAX_EXTENSION_BYTES {
        let unit = "bytes in an extended header";
        return Err(ImageError::TooLarge { part: DocumentPart::Archive, limit: MAX_EXTENSION_BYTES, unit });
    }
    let mut bytes = Vec::new();
    raw.read_to_end(&mut bytes).map_err(damaged)?;
    match bytes.len() as u64 {
        read if read == size => Ok(bytes),
        _ => Err(damaged(io::ErrorKind::UnexpectedEof.into())),
    }
}

fn damaged(source: io::Error) -> ImageError {
    ImageError::Damaged { part: DocumentPart::Archive, source }
}
