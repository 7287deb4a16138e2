//! A reader of ELF files: which libraries a file loads, and which versions of their symbols it needs.
//!
//! Reads 64-bit little-endian files only: those of every target that Sublet is made for. A program may carry shared objects
//! in its data, which it writes to files and loads later; [`images`] finds these, too.

/// The first bytes of a 64-bit little-endian file of version 1.
const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01";
const HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;

const SECTION_DYNAMIC: u32 = 6;
const SECTION_VERSIONS_NEEDED: u32 = 0x6fff_fffe;
const TAG_NEEDED: u64 = 1;

const TYPE_PROGRAM: u16 = 2;
const TYPE_SHARED: u16 = 3;

/// Most entries of one table that are read: a damaged file may have a list that never ends.
const MOST_ENTRIES: usize = 65_536;

/// What a program or shared object needs of the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElfImage {
    /// Number of the processor's architecture.
    pub machine: u16,
    /// Names of the libraries that the loader loads with it.
    pub libraries: Vec<String>,
    /// Names of the symbol versions that it needs, such as `GLIBC_2.28`.
    pub versions: Vec<String>,
}

/// Whether a file begins as an ELF file.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Reads a file and each program and shared object in its data. Returns `None` if one of them is damaged.
pub fn images(bytes: &[u8]) -> Option<Vec<ElfImage>> {
    let outer = image(bytes)?;
    let machine = outer.machine;
    let mut images = vec![outer];
    let carried = |&at: &usize| at > 0 && is_image_of(&bytes[at..], machine);
    for at in positions(bytes).filter(carried) {
        images.push(image(&bytes[at..])?);
    }
    Some(images)
}

/// Returns the positions of the first bytes of an ELF file.
fn positions(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let windows = bytes.windows(MAGIC.len()).enumerate();
    windows.filter(|(_, window)| *window == MAGIC).map(|(at, _)| at)
}

/// Whether these bytes begin with the header of a program or shared object, and not only with [`MAGIC`], which programs that
/// read such files contain as a constant.
fn is_image_of(bytes: &[u8], machine: u16) -> bool {
    let has = |at, value| number::<2>(bytes, at) == Some(value);
    let is_type = has(16, u64::from(TYPE_PROGRAM)) || has(16, u64::from(TYPE_SHARED));
    is_type && has(18, u64::from(machine)) && has(52, HEADER_BYTES as u64)
}

struct Section {
    kind: u32,
    start: usize,
    len_bytes: usize,
    link: usize,
}

fn image(bytes: &[u8]) -> Option<ElfImage> {
    if !is_elf(bytes) {
        return None;
    }
    let machine = u16::try_from(number::<2>(bytes, 18)?).ok()?;
    let mut image = ElfImage { machine, ..ElfImage::default() };
    let sections = sections(bytes)?;
    for section in &sections {
        let data = || bytes.get(section.start..section.start.checked_add(section.len_bytes)?);
        let names = || {
            let names = sections.get(section.link)?;
            bytes.get(names.start..names.start.checked_add(names.len_bytes)?)
        };
        match section.kind {
            SECTION_DYNAMIC => image.libraries = libraries(data()?, names()?)?,
            SECTION_VERSIONS_NEEDED => image.versions = versions(data()?, names()?)?,
            _ => {}
        }
    }
    Some(image)
}

fn sections(bytes: &[u8]) -> Option<Vec<Section>> {
    let table = usize::try_from(number::<8>(bytes, 40)?).ok()?;
    let count = usize::try_from(number::<2>(bytes, 60)?).ok()?;
    let read = |index: usize| {
        let at = table.checked_add(index * SECTION_BYTES)?;
        let field = |offset| usize::try_from(number::<8>(bytes, at + offset)?).ok();
        Some(Section {
            kind: u32::try_from(number::<4>(bytes, at + 4)?).ok()?,
            start: field(24)?,
            len_bytes: field(32)?,
            link: usize::try_from(number::<4>(bytes, at + 40)?).ok()?,
        })
    };
    (0..count).map(read).collect()
}

fn libraries(dynamic: &[u8], names: &[u8]) -> Option<Vec<String>> {
    let entries = dynamic.chunks_exact(16);
    let needed = entries.filter(|entry| number::<8>(entry, 0) == Some(TAG_NEEDED));
    needed.map(|entry| text(names, number::<8>(entry, 8)?)).collect()
}

/// Walks the list of libraries, and for each library the list of versions that are needed of it.
fn versions(needed: &[u8], names: &[u8]) -> Option<Vec<String>> {
    let mut versions = Vec::new();
    let mut library = 0;
    for _ in 0..MOST_ENTRIES {
        let mut version = library + usize::try_from(number::<4>(needed, library + 8)?).ok()?;
        for _ in 0..number::<2>(needed, library + 2)? {
            versions.push(text(names, number::<4>(needed, version + 8)?)?);
            version += usize::try_from(number::<4>(needed, version + 12)?).ok()?;
        }
        match usize::try_from(number::<4>(needed, library + 12)?).ok()? {
            0 => return Some(versions),
            next => library += next,
        }
    }
    None
}

fn text(names: &[u8], at: u64) -> Option<String> {
    let bytes = names.get(usize::try_from(at).ok()?..)?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

/// Reads a little-endian number of `N` bytes, at most 8.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let read = bytes.get(at..at.checked_add(N)?)?;
    Some(read.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the program of this test, which is linked with the C library of this machine.
    fn own_program() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn reads_libraries_and_versions() {
        let image = image(&own_program()).unwrap();
        assert!(image.libraries.iter().any(|name| name.starts_with("libc.so.")), "{image:?}");
        assert!(image.versions.iter().any(|name| name.starts_with("GLIBC_2.")), "{image:?}");
    }

    #[test]
    fn finds_images_inside_of_an_image() {
        let program = own_program();
        let mut both = program.clone();
        both.extend(b"data");
        both.extend(&program);
        let (one, two) = (images(&program).unwrap(), images(&both).unwrap());
        assert_eq!(two.len(), 2 * one.len());
        assert_eq!(two[one.len()..], one);
    }

    #[test]
    fn refuses_damaged_files() {
        let program = own_program();
        assert_eq!(images(&program[..program.len() / 2]), None);
        assert_eq!(images(b"#!/bin/sh\n"), None);
        let mut both = program.clone();
        both.extend(&program[..program.len() / 2]);
        assert_eq!(images(&both), None);
    }
}
