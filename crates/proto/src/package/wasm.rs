//! Reads a WebAssembly module for a package: the functions that it exports and its imports.
//!
//! Every read is checked against the remaining bytes, every count against the possible content, and no bytes are
//! copied. The bodies of functions are not examined: the engine that compiles a module validates all of it, inside of a
//! sandbox.

use std::collections::BTreeSet;

use super::build::MAX_SYMBOL_BYTES;
use super::kind::{PORTABLE, PackageKind};
use super::library::LibraryFile;

/// The modules whose functions a module may import: Sublet's own, and the supported part of WASI.
const OFFERED: [&str; 2] = ["sublet", "wasi_snapshot_preview1"];
/// Name under which a module exports the memory that inputs are placed in.
const MEMORY: &str = "memory";

const HEADER: &[u8] = b"\0asm\x01\0\0\0";
const FUNCTION_TYPE: u8 = 0x60;
const I32: u8 = 0x7f;
/// Numbers, vectors, and references to functions and to the host's values.
const VALUE_TYPES: [u8; 7] = [I32, 0x7e, 0x7d, 0x7c, 0x7b, 0x70, 0x6f];

/// The sections that are read.
mod section {
    pub(super) const CUSTOM: u8 = 0;
    pub(super) const TYPES: u8 = 1;
    pub(super) const IMPORTS: u8 = 2;
    pub(super) const FUNCTIONS: u8 = 3;
    pub(super) const EXPORTS: u8 = 7;
    pub(super) const LAST: u8 = 13;
}

/// Kinds of imports and exports.
mod external {
    pub(super) const FUNCTION: u8 = 0;
    pub(super) const MEMORY: u8 = 2;
}

/// Reads a module, or says why it cannot be run.
pub(super) fn read(data: &[u8]) -> Result<LibraryFile<'_>, String> {
    let Some(body) = data.strip_prefix(HEADER) else {
        return Err("is not a WebAssembly module of version 1 (components are not taken)".to_owned());
    };
    let mut module = ParsedModule::default();
    let mut sections = ByteCursor { rest: body };
    while !sections.rest.is_empty() {
        let (id, size) = (sections.byte()?, sections.number()?);
        let mut content = ByteCursor { rest: sections.bytes(size)? };
        module.enter(id)?;
        module.read_section(id, &mut content)?;
    }
    if !module.has_memory {
        return Err(format!("exports no memory named {MEMORY:?}, in which inputs could be placed"));
    }
    Ok(LibraryFile {
        kind: PackageKind::Wasm,
        architecture: PORTABLE.into(),
        functions: module.callable,
        layers: Vec::new(),
    })
}

/// The parts of a module that have been read.
#[derive(Default)]
struct ParsedModule<'data> {
    /// Bits of the sections that were there.
    seen: u32,
    /// For each type, whether a function of the type can be called.
    types: Vec<bool>,
    /// For each function, the imported ones first, whether it can be called.
    functions: Vec<bool>,
    callable: BTreeSet<&'data str>,
    has_memory: bool,
}

impl<'data> ParsedModule<'data> {
    /// Notes a section. Every section but those of tools occurs once in a module.
    fn enter(&mut self, id: u8) -> Result<(), String> {
        if id == section::CUSTOM {
            return Ok(());
        }
        if id > section::LAST || self.seen & (1 << id) != 0 {
            return Err(format!("is damaged: section {id} is unknown or stands there twice"));
        }
        self.seen |= 1 << id;
        Ok(())
    }

    fn read_section(&mut self, id: u8, content: &mut ByteCursor<'data>) -> Result<(), String> {
        match id {
            section::TYPES => content.each(|content| self.read_type(content)),
            section::IMPORTS => content.each(|content| self.read_import(content)),
            section::FUNCTIONS => content.each(|content| self.read_function(content)),
            section::EXPORTS => content.each(|content| self.read_export(content)),
            _ => Ok(()),
        }
    }

    fn read_type(&mut self, content: &mut ByteCursor<'data>) -> Result<(), String> {
        let form = content.byte()?;
        if form != FUNCTION_TYPE {
            return Err(format!("has a type of the form {form:#x}; only function types are taken"));
        }
        let (parameters, results) = (content.values()?, content.values()?);
        let is_callable = matches!(parameters, [I32, I32, I32] | [I32, I32, I32, I32]) && results == [I32];
        self.types.push(is_callable);
        Ok(())
    }

    fn read_import(&mut self, content: &mut ByteCursor<'data>) -> Result<(), String> {
        let (module, name, kind) = (content.name()?, content.name()?, content.byte()?);
        if kind != external::FUNCTION || !OFFERED.contains(&module) {
            return Err(format!("imports {}.{}, which is not offered", shown(module), shown(name)));
        }
        self.read_function(content)
    }

    fn read_function(&mut self, content: &mut ByteCursor<'data>) -> Result<(), String> {
        let index = content.number()?;
        let is_callable = self.types.get(index).ok_or_else(|| format!("is damaged: no type {index}"))?;
        self.functions.push(*is_callable);
        Ok(())
    }

    fn read_export(&mut self, content: &mut ByteCursor<'data>) -> Result<(), String> {
        let (name, kind, index) = (content.name()?, content.byte()?, content.number()?);
        self.has_memory |= kind == external::MEMORY && name == MEMORY;
        if kind == external::FUNCTION {
            let is_callable =
                *self.functions.get(index).ok_or_else(|| format!("is damaged: no function {index}"))?;
            if is_callable && (1..=MAX_SYMBOL_BYTES).contains(&name.len()) {
                self.callable.insert(name);
            }
        }
        Ok(())
    }
}

/// Returns the part of a name that fits a message.
fn shown(name: &str) -> String {
    const SHOWN: usize = 64;
    name.chars().take(SHOWN).flat_map(char::escape_debug).collect()
}

/// The bytes that have not been read yet.
struct ByteCursor<'data> {
    rest: &'data [u8],
}

impl<'data> ByteCursor<'data> {
    fn bytes(&mut self, count: usize) -> Result<&'data [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| {
            format!("is truncated: {count} bytes are missing where {} are", self.rest.len())
        })?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, String> {
        Ok(self.bytes(1)?[0])
    }

    /// Reads an unsigned number of 32 bits in groups of 7, the lowest first.
    fn number(&mut self) -> Result<usize, String> {
        let mut number = 0u64;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(number)
                    .map(|number| number as usize)
                    .map_err(|_| format!("is damaged: the number {number} is too large"));
            }
        }
        Err("is damaged: a number has more than 5 bytes".to_owned())
    }

    fn name(&mut self) -> Result<&'data str, String> {
        let count = self.number()?;
        std::str::from_utf8(self.bytes(count)?).map_err(|_| "is damaged: a name is not UTF-8".to_owned())
    }

    fn values(&mut self) -> Result<&'data [u8], String> {
        let count = self.number()?;
        let values = self.bytes(count)?;
        match values.iter().find(|value| !VALUE_TYPES.contains(value)) {
            Some(value) => Err(format!("uses the value type {value:#x}, which is not taken")),
            None => Ok(values),
        }
    }

    /// Reads as many entries as a count names, of at least a byte each, and checks that no bytes are left.
    fn each(&mut self, mut read: impl FnMut(&mut Self) -> Result<(), String>) -> Result<(), String> {
        for _ in 0..self.number()? {
            let before = self.rest.len();
            read(self)?;
            debug_assert!(
                self.rest.len() < before,
                "an entry took none of the {before} bytes of its section"
            );
        }
        match self.rest.len() {
            0 => Ok(()),
            left => Err(format!("is damaged: {left} bytes are left at the end of a section")),
        }
    }
}
