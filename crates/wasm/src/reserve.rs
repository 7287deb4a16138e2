//! Reserves space for small inputs and outputs in the initial memory of every instance: growing the memory for each call,
//! and undoing that, costs more than the rest of a call.
//!
//! The module is loaded with an additional page. It cannot distinguish this from a memory that was grown for the call if
//! none of its code runs before: modules with a start function, an initializer or an allocator stay unchanged.

use crate::limits::PAGE_BYTES;

const HEADER_BYTES: usize = 8;
const MEMORIES: u8 = 5;
const EXPORTS: u8 = 7;
const START: u8 = 8;
/// Kinds of limits: a minimum, or a minimum and a maximum.
const WITHOUT_MOST: u8 = 0;
const WITH_MOST: u8 = 1;

/// Size of the reserved space, in bytes.
pub(crate) const RESERVED_BYTES: u64 = PAGE_BYTES;

/// A module with reserved space, and the address of that space.
pub(crate) struct ReservedModule {
    pub(crate) module: Vec<u8>,
    pub(crate) at: u64,
}

/// Reserves space, if the limit of memory allows it and the module exports none of the functions that run before. Invalid
/// modules are left to the engine, which reports the error.
pub(crate) fn make(module: &[u8], memory_bytes: u64, before: &[&str]) -> Option<ReservedModule> {
    let mut rest = module.get(HEADER_BYTES..)?;
    let mut made = None;
    while let Some((&id, after)) = rest.split_first() {
        let (size, content) = number(after)?;
        let (content, next) = content.split_at_checked(size as usize)?;
        match id {
            START => return None,
            MEMORIES => {
                let (section, at) = enlarge(content, memory_bytes)?;
                let front = &module[..module.len() - rest.len()];
                made = Some(ReservedModule { module: [front, &section, next].concat(), at });
            }
            EXPORTS if exports_any(content, before)? => return None,
            _ => {}
        }
        rest = next;
    }
    made
}

/// Returns whether one of these names is exported.
fn exports_any(content: &[u8], names: &[&str]) -> Option<bool> {
    let (count, mut rest) = number(content)?;
    for _ in 0..count {
        let (len, after) = number(rest)?;
        let (name, after) = after.split_at_checked(len as usize)?;
        if names.iter().any(|known| known.as_bytes() == name) {
            return Some(true);
        }
        // The kind and the index of the export.
        rest = number(after.get(1..)?)?.1;
    }
    Some(false)
}

/// Returns the section of a single memory with an additional page, and the address of that page.
fn enlarge(content: &[u8], memory_bytes: u64) -> Option<(Vec<u8>, u64)> {
    let [1, kind, sizes @ ..] = content else { return None };
    let (pages, most) = number(sizes)?;
    let most_pages = match *kind {
        WITHOUT_MOST if most.is_empty() => u64::MAX,
        WITH_MOST => u64::from(number(most)?.0),
        _ => return None,
    };
    let at = u64::from(pages) * PAGE_BYTES;
    if u64::from(pages) + 1 > most_pages || at + RESERVED_BYTES > memory_bytes {
        return None;
    }
    let content = [&[1, *kind][..], &encode(pages + 1), most].concat();
    let len = u32::try_from(content.len()).ok()?;
    Some(([&[MEMORIES][..], &encode(len), &content].concat(), at))
}

/// Decodes an unsigned number in groups of 7 bits, and returns the remaining bytes.
fn number(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let end = bytes.iter().take(5).position(|byte| byte & 0x80 == 0)? + 1;
    let value = bytes[..end].iter().rev().fold(0u64, |value, byte| value << 7 | u64::from(byte & 0x7f));
    Some((u32::try_from(value).ok()?, &bytes[end..]))
}

fn encode(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
    debug_assert!(bytes.len() <= 5, "a number of 32 bits has 1 to 5 groups of 7: {bytes:?}");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = b"\0asm\x01\0\0\0";

    fn made(sections: &[u8]) -> Option<(Vec<u8>, u64)> {
        let made = make(&[HEADER, sections].concat(), 1 << 32, &["first"])?;
        Some((made.module[HEADER.len()..].to_vec(), made.at))
    }

    #[test]
    fn a_memory_gets_a_page_more_and_all_else_stays() {
        assert_eq!(
            made(b"\x03\x01\0\x05\x03\x01\0\x02\0\x01x"),
            Some((b"\x03\x01\0\x05\x03\x01\0\x03\0\x01x".to_vec(), 2 << 16))
        );
        assert_eq!(made(b"\x05\x04\x01\x01\x7f\x7f"), None, "it is as large as it may be");
        let grown = made(b"\x05\x05\x01\x01\x7f\x80\x01").unwrap();
        assert_eq!(grown, (b"\x05\x06\x01\x01\x80\x01\x80\x01".to_vec(), 127 << 16));
        assert!(make(&[HEADER, b"\x05\x03\x01\0\x02"].concat(), 2 << 16, &[]).is_none(), "beyond the limit");
    }

    #[test]
    fn leaves_invalid_modules_and_modules_that_run_early_unchanged() {
        for sections in [
            &b""[..],
            b"\x05\x03\x01\0\x02\x08\x01\0",
            b"\x05\x03\x01\0\x02\x07\x0d\x02\x01a\0\0\x05first\0\0",
            b"\x05\x03\x01\0\x02\x07\x02\x02\x01",
            b"\x05\x03\x01\x04\x02",
            b"\x05\x05\x02\0\x01\0\x01",
            b"\x05\x09\x01\0\x02",
            b"\x05\xff\xff\xff\xff\xff\x01",
            b"\x05\x03\x01\0\xff",
        ] {
            assert!(made(sections).is_none(), "{sections:?}");
        }
        assert!(make(b"\0asm", 1 << 32, &[]).is_none());
    }
}
