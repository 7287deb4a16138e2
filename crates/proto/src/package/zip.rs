//! Reads zip archives, as wheels are: the list of their files, and the content of each.
//!
//! Only the central directory says which files there are. Encryption, links, archives of several parts and those of more
//! than 4 GiB are refused. Nothing is larger than the directory says: a file that unpacks to more ends with an error.

use std::io::Read;

use flate2::read::DeflateDecoder;

/// Most files of an archive.
pub const MAX_ENTRIES: usize = 65_000;
/// Most bytes of all files of an archive together, unpacked.
pub const MAX_UNPACKED_BYTES: u64 = 2 << 30;

const LOCAL_MAGIC: u32 = 0x0403_4b50;
const CENTRAL_MAGIC: u32 = 0x0201_4b50;
const END_MAGIC: u32 = 0x0605_4b50;
const LOCAL_BYTES: usize = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
/// Longest comment behind the directory, in bytes.
const MAX_COMMENT_BYTES: usize = 0xffff;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
const ENCRYPTED: u16 = 1;
const ANY_EXECUTE: u32 = 0o111;
const TYPE_MASK: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZipEntry<'data> {
    /// The path as the archive has it: the caller checks it.
    pub path: &'data str,
    /// Size when it is unpacked.
    pub size_bytes: u64,
    /// Whether it may be executed.
    pub executable: bool,
    method: u16,
    packed: &'data [u8],
}

/// Whether data begins like an archive.
pub fn is_zip(data: &[u8]) -> bool {
    word32(data, 0) == Some(LOCAL_MAGIC)
}

/// The files of an archive, without its folders, in the order of the directory.
///
/// # Errors
/// What is wrong with it.
pub fn entries(data: &[u8]) -> Result<Vec<ZipEntry<'_>>, String> {
    let end = find_end(data).ok_or("it has no zip directory")?;
    let field = |at| word16(data, end + at).unwrap_or_default();
    let (disk, first_disk, here, count) = (field(4), field(6), field(8), field(10));
    if disk != 0 || first_disk != 0 || here != count {
        return Err("the zip archive has several parts".to_owned());
    }
    if usize::from(count) > MAX_ENTRIES {
        return Err(format!("it has {count} files or more, at most {MAX_ENTRIES} are taken"));
    }
    let start = word32(data, end + 16).unwrap_or(u32::MAX) as usize;
    let (mut at, mut entries, mut unpacked) = (start, Vec::with_capacity(count.into()), 0u64);
    for _ in 0..count {
        let (entry, next) = read_central(data, at, end)?;
        debug_assert!(at < next && next <= end, "the entry at {at} of a directory to {end} ends at {next}");
        at = next;
        let Some(entry) = entry else { continue };
        unpacked = unpacked.saturating_add(entry.size_bytes);
        if unpacked > MAX_UNPACKED_BYTES {
            return Err(format!("it unpacks to more than {MAX_UNPACKED_BYTES} bytes"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

impl ZipEntry<'_> {
    /// Returns the content, which has exactly the size that the directory says.
    ///
    /// # Errors
    /// If it cannot be unpacked, or has another size.
    pub fn content(&self) -> Result<Vec<u8>, String> {
        let size = usize::try_from(self.size_bytes).map_err(|error| error.to_string())?;
        let mut content = Vec::with_capacity(size.min(self.packed.len().saturating_mul(1100)));
        let read = match self.method {
            STORED => self.packed.take(self.size_bytes + 1).read_to_end(&mut content),
            _ => DeflateDecoder::new(self.packed).take(self.size_bytes + 1).read_to_end(&mut content),
        };
        match read {
            Err(error) => Err(format!("{:?} cannot be unpacked: {error}", self.path)),
            Ok(read) if read != size => Err(format!("{:?} has not the size in the zip directory", self.path)),
            Ok(_) => Ok(content),
        }
    }
}

fn find_end(data: &[u8]) -> Option<usize> {
    let last = data.len().checked_sub(END_BYTES)?;
    let first = last.saturating_sub(MAX_COMMENT_BYTES);
    let is_end = |at: &usize| {
        let comment = word16(data, at + 20).map(usize::from);
        word32(data, *at) == Some(END_MAGIC) && comment == Some(data.len() - at - END_BYTES)
    };
    (first..=last).rev().find(is_end)
}

/// The file at a place of the directory, unless it is a folder, and the place of the next one.
fn read_central(data: &[u8], at: usize, end: usize) -> Result<(Option<ZipEntry<'_>>, usize), String> {
    const BROKEN: &str = "its zip directory is damaged";
    let head = data.get(at..end).and_then(|rest| rest.get(..CENTRAL_BYTES)).ok_or(BROKEN)?;
    if word32(head, 0) != Some(CENTRAL_MAGIC) {
        return Err(BROKEN.to_owned());
    }
    let short = |at| word16(head, at).unwrap_or_default();
    let long = |at| word32(head, at).unwrap_or_default();
    let [name, extra, comment] = [short(28), short(30), short(32)].map(usize::from);
    let next = at + CENTRAL_BYTES + name + extra + comment;
    let path = data.get(at + CENTRAL_BYTES..at + CENTRAL_BYTES + name).ok_or(BROKEN)?;
    let path = std::str::from_utf8(path).map_err(|_| "a path in it is not UTF-8")?;
    if next > end {
        return Err(BROKEN.to_owned());
    }
    let (flags, method) = (short(8), short(10));
    let (packed_len, size, local, mode) = (long(20), long(24), long(42), long(38) >> 16);
    let refuse = |why: &str| Err(format!("{path:?} in it {why}"));
    if path.ends_with('/') || mode & TYPE_MASK == FOLDER {
        return Ok((None, next));
    }
    if flags & ENCRYPTED != 0 {
        return refuse("is encrypted");
    }
    if !matches!(method, STORED | DEFLATED) {
        return refuse("is compressed by a method other than deflate");
    }
    if ![0, REGULAR].contains(&(mode & TYPE_MASK)) {
        return refuse("is a link or a special file");
    }
    if [packed_len, size, local].contains(&u32::MAX) {
        return refuse("has a size of zip64");
    }
    let local = local as usize;
    let packed = packed_of(data, local, packed_len as usize, path).ok_or(BROKEN)?;
    let executable = mode & ANY_EXECUTE != 0;
    Ok((Some(ZipEntry { path, size_bytes: size.into(), executable, method, packed }), next))
}

/// The packed bytes behind a local header, which has to name the same path.
fn packed_of<'data>(data: &'data [u8], at: usize, len: usize, path: &str) -> Option<&'data [u8]> {
    let head = data.get(at..)?.get(..LOCAL_BYTES)?;
    let (name, extra) = (usize::from(word16(head, 26)?), usize::from(word16(head, 28)?));
    let begin = at + LOCAL_BYTES;
    let is_same = word32(head, 0)? == LOCAL_MAGIC && data.get(begin..begin + name)? == path.as_bytes();
    let begin = begin + name + extra;
    is_same.then(|| data.get(begin..begin.checked_add(len)?)).flatten()
}

fn word16(data: &[u8], at: usize) -> Option<u16> {
    let bytes = data.get(at..)?.first_chunk::<2>()?;
    Some(u16::from_le_bytes(*bytes))
}

fn word32(data: &[u8], at: usize) -> Option<u32> {
    let bytes = data.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use sublet_wheels::zip as write;

    use super::*;

    /// Changes bytes of the first occurrence of a pattern.
    fn changed(data: &[u8], of: u32, at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut data = data.to_vec();
        let head = data.windows(4).position(|window| window == of.to_le_bytes()).unwrap();
        data[head + at..head + at + bytes.len()].copy_from_slice(bytes);
        data
    }

    #[test]
    fn an_archive_is_read_as_it_was_written() {
        let data = write(&[("a/b.py", b"x = 1"), ("c", b"")]);
        assert!(is_zip(&data) && !is_zip(b"\x0a\x05"));
        let entries = entries(&data).unwrap();
        let read: Vec<_> = entries.iter().map(|entry| (entry.path, entry.content().unwrap())).collect();
        assert_eq!(read, [("a/b.py", b"x = 1".to_vec()), ("c", Vec::new())]);
        assert!(!entries[0].executable);
    }

    #[test]
    fn rejects_archives_that_are_not_plain() {
        let data = write(&[("a", b"x")]);
        for (at, bytes, named) in [
            (8, &[1u8, 0][..], "encrypted"),
            (10, &[12, 0], "deflate"),
            (38, &[0, 0, 0xff, 0xa1], "link"),
            (24, &[0xff; 4], "zip64"),
            (42, &[9, 0, 0, 0], "damaged"),
            (0, &[0; 4], "damaged"),
        ] {
            let error = entries(&changed(&data, CENTRAL_MAGIC, at, bytes)).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
        assert!(entries(&data[..data.len() - 1]).unwrap_err().contains("no zip directory"));
        let renamed = changed(&data, LOCAL_MAGIC, 30, b"b");
        assert!(entries(&renamed).unwrap_err().contains("damaged"), "two names of one file");
    }

    #[test]
    fn a_file_never_unpacks_to_more_than_its_size() {
        let data = write(&[("a", b"xyz")]);
        let small = changed(&data, CENTRAL_MAGIC, 24, &[2, 0, 0, 0]);
        let error = entries(&small).unwrap()[0].content().unwrap_err();
        assert!(error.contains("not the size"), "{error}");
        let large = changed(&data, CENTRAL_MAGIC, 24, &[0xfe, 0xff, 0xff, 0xff]);
        assert!(entries(&large).unwrap_err().contains("unpacks to more"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_archive_or_an_error(flips in proptest::collection::vec((0..200usize, 0..=255u8), 0..8)) {
            let mut data = write(&[("a/b.py", b"x = 1"), ("c", b"y")]);
            for (at, byte) in flips {
                let at = at % data.len();
                data[at] = byte;
            }
            for entry in entries(&data).unwrap_or_default() {
                let _ = entry.content();
            }
        }
    }
}
