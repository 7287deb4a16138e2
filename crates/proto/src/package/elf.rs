//! Reads a shared object for a package: its processor, the functions that it exports, and the libraries that it needs.
//!
//! Every read is checked against the file's length, and no bytes are copied. A file whose headers point behind its end
//! is reported as truncated here, so that it never reaches the dynamic loader, which would crash.

use std::collections::BTreeSet;

use object::LittleEndian;
use object::elf::{self, FileHeader64, Sym64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, SectionTable, Sym};

use super::build::MAX_SYMBOL_BYTES;
use super::kind::PackageKind;
use super::library::LibraryFile;

/// Most dynamic symbols that are read.
const MAX_SYMBOLS: usize = 1 << 18;
/// Most needed libraries that are read.
const MAX_LIBRARIES: usize = 1 << 10;

const ENDIAN: LittleEndian = LittleEndian;
type Header = FileHeader64<LittleEndian>;

/// Reads a shared object, or says why it cannot be run.
pub(super) fn read(data: &[u8]) -> Result<LibraryFile<'_>, String> {
    check_identity(data)?;
    let header = Header::parse(data).map_err(truncated)?;
    let kind = header.e_type.get(ENDIAN);
    if kind != elf::ET_DYN {
        return Err(format!("is not a shared object (ELF type {kind}, not {})", elf::ET_DYN));
    }
    let architecture = architecture(header.e_machine.get(ENDIAN))?;
    check_segments(header, data)?;
    let sections = header.sections(ENDIAN, data).map_err(truncated)?;
    check_sections(&sections, data)?;
    Ok(LibraryFile {
        kind: PackageKind::Native,
        architecture: architecture.into(),
        functions: exported_functions(&sections, data)?,
        layers: Vec::new(),
    })
}

/// Returns the names of the libraries that are loaded with a shared object, in their order; none for a damaged file.
pub fn needed_libraries(data: &[u8]) -> Vec<&str> {
    dynamic_names(data, elf::DT_NEEDED).unwrap_or_default()
}

/// Returns the names in the entries of a kind in the dynamic section, if there is one.
fn dynamic_names(data: &[u8], kind: u32) -> Option<Vec<&str>> {
    let sections = Header::parse(data).ok()?.sections(ENDIAN, data).ok()?;
    let (entries, strings) = sections.dynamic(ENDIAN, data).ok()??;
    let strings = sections.section(strings).ok()?.data(ENDIAN, data).ok()?;
    let of_kind = entries.iter().filter(|entry| entry.d_tag(ENDIAN) == u64::from(kind));
    let names = of_kind.filter_map(|entry| name(strings, u32::try_from(entry.d_val(ENDIAN)).ok()?));
    Some(names.take(MAX_LIBRARIES).collect())
}

fn truncated(error: object::Error) -> String {
    format!("is truncated or damaged: {error}")
}

fn check_identity(data: &[u8]) -> Result<(), String> {
    let Some(identity) = data.first_chunk::<16>() else {
        return Err(format!("is not an ELF file: it has {} bytes", data.len()));
    };
    if identity[..4] != elf::ELFMAG {
        return Err("is not an ELF file".to_owned());
    }
    if identity[4] != elf::ELFCLASS64 || identity[5] != elf::ELFDATA2LSB {
        return Err("is not a 64-bit little-endian ELF file".to_owned());
    }
    Ok(())
}

fn architecture(machine: u16) -> Result<&'static str, String> {
    let other = match machine {
        elf::EM_X86_64 => return Ok("x86_64"),
        elf::EM_AARCH64 => return Ok("aarch64"),
        elf::EM_RISCV => "riscv",
        elf::EM_PPC64 => "powerpc64",
        elf::EM_S390 => "s390x",
        elf::EM_LOONGARCH => "loongarch",
        _ => "unknown",
    };
    Err(format!("is for the processor {other} (ELF machine {machine}); supported are x86_64 and aarch64"))
}

fn check_segments(header: &Header, data: &[u8]) -> Result<(), String> {
    let segments = header.program_headers(ENDIAN, data).map_err(truncated)?;
    if !segments.iter().any(|segment| segment.p_type(ENDIAN) == elf::PT_DYNAMIC) {
        return Err("is not a shared object: it has no dynamic segment".to_owned());
    }
    segments.iter().try_for_each(|segment| {
        let range = FileRange { offset: segment.p_offset(ENDIAN), len_bytes: segment.p_filesz(ENDIAN) };
        range.check("segment", data)
    })
}

fn check_sections(sections: &SectionTable<'_, Header>, data: &[u8]) -> Result<(), String> {
    sections.iter().filter(|section| section.sh_type(ENDIAN) != elf::SHT_NOBITS).try_for_each(|section| {
        let range = FileRange { offset: section.sh_offset(ENDIAN), len_bytes: section.sh_size(ENDIAN) };
        range.check("section", data)
    })
}

/// A part of the file, as a header claims it.
struct FileRange {
    offset: u64,
    len_bytes: u64,
}

impl FileRange {
    fn check(&self, what: &str, data: &[u8]) -> Result<(), String> {
        let FileRange { offset, len_bytes } = *self;
        match offset.checked_add(len_bytes) {
            Some(end) if end <= data.len() as u64 => Ok(()),
            _ => Err(format!(
                "is truncated: a {what} of {len_bytes} bytes at offset {offset} is not in its {} bytes",
                data.len()
            )),
        }
    }
}

fn exported_functions<'data>(
    sections: &SectionTable<'data, Header>,
    data: &'data [u8],
) -> Result<BTreeSet<&'data str>, String> {
    let table = sections.symbols(ENDIAN, data, elf::SHT_DYNSYM).map_err(truncated)?;
    if table.len() > MAX_SYMBOLS {
        return Err(format!("has {} dynamic symbols, at most {MAX_SYMBOLS} are taken", table.len()));
    }
    if table.is_empty() {
        return Err("has no dynamic symbols".to_owned());
    }
    let strings = sections.section(table.string_section()).map_err(truncated)?;
    let strings = strings.data(ENDIAN, data).map_err(truncated)?;
    Ok(table
        .iter()
        .filter(|symbol| is_exported_function(symbol))
        .filter_map(|symbol| name(strings, symbol.st_name(ENDIAN)))
        .collect())
}

fn is_exported_function(symbol: &Sym64<LittleEndian>) -> bool {
    symbol.st_shndx(ENDIAN) != elf::SHN_UNDEF
        && symbol.st_type() == elf::STT_FUNC
        && matches!(symbol.st_bind(), elf::STB_GLOBAL | elf::STB_WEAK)
        && matches!(symbol.st_visibility(), elf::STV_DEFAULT | elf::STV_PROTECTED)
}

/// Returns a name. It reads no further than the longest name, so that overlapping strings of a hostile file cost
/// nothing.
fn name(strings: &[u8], offset: u32) -> Option<&str> {
    let rest = strings.get(usize::try_from(offset).ok()?..)?;
    let window = &rest[..rest.len().min(MAX_SYMBOL_BYTES + 1)];
    let end = window.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(&window[..end]).ok().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_libraries_that_an_object_needs() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let libraries = needed_libraries(&program);
        assert!(libraries.iter().any(|name| name.starts_with("libc.")), "{libraries:?}");
        for damaged in [&program[..program.len() / 2], &program[..40], b"#!/bin/sh\n"] {
            assert!(needed_libraries(damaged).is_empty());
        }
    }
}
