//! Writes modules byte by byte, for modules that no compiler would create.

/// The types of a function of either form, and of one without parameters and results.
pub const SHORT: u32 = 0;
pub const LONG: u32 = 1;
pub const NOTHING: u32 = 2;
/// Type of an allocator: takes an i32 and returns an i32.
pub const ALLOCATOR: u32 = 3;

const I32: u8 = 0x7f;
/// The start of a module.
pub const HEADER: &[u8] = b"\0asm\x01\0\0\0";

/// Encodes an unsigned number as modules have it, in groups of 7 bits.
pub fn number(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn name(name: &str) -> Vec<u8> {
    [number(name.len() as u32), name.into()].concat()
}

/// Encodes the number of entries, and the entries.
fn vector(entries: &[Vec<u8>]) -> Vec<u8> {
    [number(entries.len() as u32), entries.concat()].concat()
}

/// Encodes a section of a module.
pub fn section(id: u8, content: &[u8]) -> Vec<u8> {
    [&[id][..], &number(content.len() as u32), content].concat()
}

fn types() -> Vec<Vec<u8>> {
    let of = |parameters: u8, results: u8| {
        let values = |count: u8| [vec![count], vec![I32; usize::from(count)]].concat();
        [vec![0x60], values(parameters), values(results)].concat()
    };
    vec![of(3, 1), of(4, 1), of(0, 0), of(1, 1)]
}

/// A module that is being written.
#[derive(Clone, Debug, Default)]
pub struct Module {
    imports: Vec<Vec<u8>>,
    functions: Vec<Vec<u8>>,
    tables: Vec<Vec<u8>>,
    memory: Option<(u32, Option<u32>)>,
    exports: Vec<Vec<u8>>,
    start: Option<u32>,
    bodies: Vec<Vec<u8>>,
}

impl Module {
    /// Creates a module with an exported memory of `pages` pages.
    pub fn with_memory(pages: u32, most: Option<u32>) -> Module {
        let mut module = Module { memory: Some((pages, most)), ..Module::default() };
        module.exports.push([name("memory"), vec![2, 0]].concat());
        module
    }

    /// Imports a function. Imports come before the module's own functions.
    pub fn import(mut self, module: &str, function: &str, of_type: u32) -> Module {
        self.imports.push([name(module), name(function), vec![0], number(of_type)].concat());
        self
    }

    /// Adds a function of this code; exported if it has a name.
    pub fn function(mut self, exported: Option<&str>, of_type: u32, code: &[u8]) -> Module {
        let index = (self.imports.len() + self.functions.len()) as u32;
        self.functions.push(number(of_type));
        // No variables, the code, its end.
        let body = [&[0][..], code, &[0x0b]].concat();
        self.bodies.push([number(body.len() as u32), body].concat());
        if let Some(exported) = exported {
            self.exports.push([name(exported), vec![0], number(index)].concat());
        }
        self
    }

    /// Adds a table of references to functions.
    pub fn table(mut self, elements: u32) -> Module {
        self.tables.push([vec![0x70, 0], number(elements)].concat());
        self
    }

    /// Sets the function that is called when an instance is created.
    pub fn start(mut self, function: u32) -> Module {
        self.start = Some(function);
        self
    }

    /// Encodes the module.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = [HEADER, &section(1, &vector(&types()))].concat();
        let memory = self.memory.map(|(pages, most)| match most {
            None => [vec![0], number(pages)].concat(),
            Some(most) => [vec![1], number(pages), number(most)].concat(),
        });
        let memory: Vec<_> = memory.into_iter().collect();
        for (id, entries) in
            [(2, &self.imports), (3, &self.functions), (4, &self.tables), (5, &memory), (7, &self.exports)]
        {
            if !entries.is_empty() {
                bytes.extend(section(id, &vector(entries)));
            }
        }
        if let Some(start) = self.start {
            bytes.extend(section(8, &number(start)));
        }
        bytes.extend(section(10, &vector(&self.bodies)));
        bytes
    }
}

/// Code of hand-made functions.
pub mod code {
    /// Returns 0.
    pub const ZERO: &[u8] = &[0x41, 0];
    /// Returns the second parameter: the size.
    pub const SIZE: &[u8] = &[0x20, 1];
    /// Runs for ever.
    pub const LOOP: &[u8] = &[0x03, 0x40, 0x0c, 0, 0x0b];
    /// Runs for ever, in a function that should return a number.
    pub const LOOP_AND_ZERO: &[u8] = &[0x03, 0x40, 0x0c, 0, 0x0b, 0x41, 0];
    /// Grows the table by a million references to nothing, and answers with what that says.
    pub const GROW_TABLE: &[u8] = &[0xd0, 0x70, 0x41, 0xc0, 0x84, 0x3d, 0xfc, 0x0f, 0, 0x41, 1, 0x6a];
}
