//! An archive whose members are read in any order, after the position of each was looked up once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{DocumentPart, ImageError};
use crate::layer::{FileKind, decompressed, for_each};
use crate::limits::{ImageLimits, MAX_ARCHIVE_MEMBERS};

/// A file's content and its length.
pub(super) type Opened<'a> = (Box<dyn Read + 'a>, u64);

/// Most links that may lead to one another.
const MAX_LINKS: usize = 8;
const PIECE_BYTES: usize = 128 << 10;

/// An uncompressed tar with the positions of its members.
pub(super) struct Archive {
    file: File,
    members: BTreeMap<Vec<u8>, ArchiveMember>,
}

enum ArchiveMember {
    Content {
        position: u64,
        bytes: u64,
    },
    /// A link to another member, by its name. Older versions of Docker link a layer that several images have.
    Link(Vec<u8>),
}

impl Archive {
    /// Looks up the positions of all members. A compressed archive is first unpacked into a file without a name.
    pub(super) fn open(mut file: File, scratch: &Path, limits: &ImageLimits) -> Result<Archive, ImageError> {
        if is_compressed(&file)? {
            file = unpacked(file, scratch, limits)?;
        }
        file.seek(SeekFrom::Start(0)).map_err(damaged)?;
        let mut members = BTreeMap::new();
        for_each(&file, |entry, _| {
            let name = normal(b"", &entry.path);
            let member = match entry.kind {
                FileKind::File => ArchiveMember::Content { position: entry.position, bytes: entry.bytes },
                FileKind::SymbolicLink => ArchiveMember::Link(normal(folder_of(&name), &entry.target)),
                FileKind::HardLink => ArchiveMember::Link(normal(b"", &entry.target)),
                _ => return Ok(()),
            };
            members.insert(name, member);
            match members.len() > MAX_ARCHIVE_MEMBERS {
                true => {
                    let limit = MAX_ARCHIVE_MEMBERS as u64;
                    Err(ImageError::TooLarge { part: DocumentPart::Archive, limit, unit: "files" })
                }
                false => Ok(()),
            }
        })?;
        Ok(Archive { file, members })
    }

    /// Opens a member and returns its content and length; `None` if there is none of that name.
    pub(super) fn open_member<'a>(&'a self, name: &[u8]) -> Option<Opened<'a>> {
        let mut name = normal(b"", name);
        for _ in 0..MAX_LINKS {
            match self.members.get(&name)? {
                ArchiveMember::Link(target) => name = target.clone(),
                &ArchiveMember::Content { position, bytes } => {
                    return Some((
                        Box::new(Section { file: &self.file, position, left_bytes: bytes }),
                        bytes,
                    ));
                }
            }
        }
        None
    }
}

/// A part of a file, read without moving the file's position.
struct Section<'a> {
    file: &'a File,
    position: u64,
    left_bytes: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left_bytes).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..most], self.position)?;
        self.position += read as u64;
        self.left_bytes -= read as u64;
        Ok(read)
    }
}

fn is_compressed(file: &File) -> Result<bool, ImageError> {
    let mut first = [0; 4];
    let read = file.read_at(&mut first, 0).map_err(damaged)?;
    Ok(first[..read].starts_with(&[0x1f, 0x8b]) || first[..read] == [0x28, 0xb5, 0x2f, 0xfd])
}

fn unpacked(file: File, scratch: &Path, limits: &ImageLimits) -> Result<File, ImageError> {
    let limit = limits.unpacked_bytes;
    let failed = |error| ImageError::system("writing a file in", scratch, error);
    let mut plain = tempfile::tempfile_in(scratch).map_err(failed)?;
    let mut content = decompressed(file).map_err(damaged)?.take(limit.saturating_add(1));
    let mut piece = vec![0; PIECE_BYTES];
    while let read @ 1.. = content.read(&mut piece).map_err(damaged)? {
        plain.write_all(&piece[..read]).map_err(failed)?;
    }
    match content.limit() {
        0 => Err(ImageError::TooLarge {
            part: DocumentPart::Archive,
            limit,
            unit: "bytes when it is unpacked",
        }),
        _ => Ok(plain),
    }
}

/// Normalizes a member's name: parts that do not change where it leads are removed. A name that leads out of the
/// archive stays within it.
fn normal(folder: &[u8], path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in folder.split(|&byte| byte == b'/').chain(path.split(|&byte| byte == b'/')) {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

fn folder_of(name: &[u8]) -> &[u8] {
    name.iter().rposition(|&byte| byte == b'/').map_or(b"", |slash| &name[..slash])
}

fn damaged(source: io::Error) -> ImageError {
    ImageError::Damaged { part: DocumentPart::Archive, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        assert_eq!(normal(b"", b"./a//b/./c"), b"a/b/c");
        assert_eq!(normal(b"a/b", b"../c/layer.tar"), b"a/c/layer.tar");
        assert_eq!(normal(b"a", b"../../../etc/passwd"), b"etc/passwd");
        assert_eq!(folder_of(b"a/b/c"), b"a/b");
        assert_eq!(folder_of(b"c"), b"");
    }
}
