//! Checks that a program for CUDA has a known format and is complete.
//!
//! The driver receives only the address of a cubin or fatbin, and trusts the sizes in it. They are checked here, so
//! that the driver does not read past the end of an untrusted program.

use sublet_proto::to_usize;

/// Format of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Machine code for one kind of GPU: an ELF file.
    Cubin,
    /// Several cubins and PTX.
    Fatbin,
}

const FATBIN: u32 = 0xBA55_ED50;
/// Magic number of a structure that compilers put around a fatbin, and that contains a pointer.
const WRAPPER: u32 = 0x4662_43B1;
const FATBIN_HEADER_BYTES: usize = 16;
const ENTRY_HEADER_BYTES: usize = 24;
const MACHINE_CUDA: u16 = 190;
const ELF_HEADER_BYTES: usize = 64;
const SECTION_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// Type of a section that takes no space in the file.
const NO_BITS: u32 = 8;

/// Format of these bytes, or the part of them that is incomplete.
pub(crate) fn check(bytes: &[u8]) -> Result<Format, String> {
    match number::<4>(bytes, 0).and_then(|magic| u32::try_from(magic).ok()) {
        Some(0x464C_457F) => check_cubin(bytes).map(|()| Format::Cubin),
        Some(FATBIN) => check_fatbin(bytes).map(|()| Format::Fatbin),
        Some(WRAPPER) => Err("it is a fatbin's wrapper, whose content lies elsewhere".into()),
        _ => Err("it is neither a cubin nor a fatbin".into()),
    }
}

/// Checks that a text may be PTX for these kernels. The driver's compiler checks the rest.
pub(super) fn check_ptx(text: &str, kernels: &[String]) -> Result<(), String> {
    for directive in [".version", ".target", ".address_size"] {
        if !text.contains(directive) {
            return Err(format!("it is no PTX: it has no {directive}"));
        }
    }
    let is_entry = |kernel: &String| {
        let mut entries = text.split(".entry").skip(1);
        entries.any(|rest| {
            let name =
                rest.trim_start().split(|c: char| !c.is_ascii_alphanumeric() && !"_$%".contains(c)).next();
            name == Some(kernel.as_str())
        })
    };
    match kernels.iter().find(|kernel| !is_entry(kernel)) {
        Some(kernel) => Err(format!("it has no .entry {kernel}")),
        None => Ok(()),
    }
}

fn check_fatbin(bytes: &[u8]) -> Result<(), String> {
    let broken = |what: &str| format!("it is a fatbin whose {what} is broken");
    let header = to_usize(number::<2>(bytes, 6).ok_or_else(|| broken("header"))?);
    let content = number::<8>(bytes, 8).and_then(|len| usize::try_from(len).ok());
    let end = content.and_then(|len| header.checked_add(len)).filter(|end| *end <= bytes.len());
    let end = end.filter(|_| header >= FATBIN_HEADER_BYTES).ok_or_else(|| broken("size"))?;
    let mut at = header;
    while at < end {
        let entry = || -> Option<usize> {
            let header = to_usize(number::<4>(bytes, at + 4)?);
            let payload = usize::try_from(number::<8>(bytes, at + 8)?).ok()?;
            let next = at.checked_add(header)?.checked_add(payload)?;
            (header >= ENTRY_HEADER_BYTES && next <= end).then_some(next)
        };
        at = entry().ok_or_else(|| broken("content"))?;
    }
    Ok(())
}

fn check_cubin(bytes: &[u8]) -> Result<(), String> {
    let broken = |what: &str| format!("it is a cubin whose {what} is broken");
    // 64 bits, least byte first.
    if bytes.get(4..6) != Some(&[2, 1]) || bytes.len() < ELF_HEADER_BYTES {
        return Err(broken("header"));
    }
    if number::<2>(bytes, 18) != Some(u64::from(MACHINE_CUDA)) {
        return Err("it is a program, but not for a GPU".into());
    }
    check_table(bytes, 40, 58, SECTION_BYTES, |entry| {
        let is_empty = number::<4>(entry, 4) == Some(u64::from(NO_BITS));
        Some((number::<8>(entry, 24)?, if is_empty { 0 } else { number::<8>(entry, 32)? }))
    })
    .ok_or_else(|| broken("table of sections"))?;
    check_table(bytes, 32, 54, SEGMENT_BYTES, |entry| Some((number::<8>(entry, 8)?, number::<8>(entry, 32)?)))
        .ok_or_else(|| broken("table of segments"))
}

/// Checks that a table, and the ranges that its entries name, lie in the file. The header has the table's offset at
/// `offset_at`, and the size and number of entries at `size_at`.
fn check_table(
    bytes: &[u8],
    offset_at: usize,
    size_at: usize,
    least_bytes: usize,
    extent: impl Fn(&[u8]) -> Option<(u64, u64)>,
) -> Option<()> {
    let offset = usize::try_from(number::<8>(bytes, offset_at)?).ok()?;
    let (size, count) = (to_usize(number::<2>(bytes, size_at)?), to_usize(number::<2>(bytes, size_at + 2)?));
    if count == 0 {
        return Some(());
    }
    let table = bytes.get(offset..offset.checked_add(size.checked_mul(count)?)?)?;
    if size < least_bytes {
        return None;
    }
    table.chunks_exact(size).try_for_each(|entry| {
        let (offset, len) = extent(entry)?;
        (len == 0 || offset.checked_add(len)? <= bytes.len() as u64).then_some(())
    })
}

/// Reads a number of `BYTES` bytes.
fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(BYTES)?)?;
    Some(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cubin() -> Vec<u8> {
        let mut bytes = vec![0u8; ELF_HEADER_BYTES + SECTION_BYTES + 8];
        bytes[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        bytes[18] = MACHINE_CUDA as u8;
        bytes[40] = ELF_HEADER_BYTES as u8;
        bytes[58] = SECTION_BYTES as u8;
        bytes[60] = 1;
        bytes[64 + 4] = 1;
        bytes[64 + 24] = 128;
        bytes[64 + 32] = 8;
        bytes
    }

    fn fatbin() -> Vec<u8> {
        let mut bytes = vec![0u8; 16 + 24 + 8];
        bytes[..4].copy_from_slice(&FATBIN.to_le_bytes());
        bytes[6] = 16;
        bytes[8] = 32;
        bytes[16] = 1;
        bytes[16 + 4] = 24;
        bytes[16 + 8] = 8;
        bytes
    }

    #[test]
    fn whole_programs_are_known_by_what_they_are() {
        assert_eq!(check(&cubin()), Ok(Format::Cubin));
        assert_eq!(check(&fatbin()), Ok(Format::Fatbin));
    }

    #[test]
    fn programs_that_are_cut_are_refused_wherever_they_are() {
        for whole in [cubin(), fatbin()] {
            for len in 0..whole.len() {
                assert!(check(&whole[..len]).is_err(), "{len} of {}", whole.len());
            }
        }
    }

    #[test]
    fn sizes_that_lead_outside_are_refused() {
        let broken = |mut bytes: Vec<u8>, at: usize| {
            bytes[at..at + 8].fill(0xff);
            check(&bytes)
        };
        for at in [40, 64 + 24, 64 + 32] {
            assert!(broken(cubin(), at).is_err(), "{at}");
        }
        for at in [8, 16 + 8] {
            assert!(broken(fatbin(), at).is_err(), "{at}");
        }
        // A size that is one byte too large; and entries of size 0.
        for (mut bytes, at, value) in [(fatbin(), 16 + 8, 9), (cubin(), 58, 0)] {
            bytes[at] = value;
            assert!(check(&bytes).is_err(), "{at}");
        }
    }

    #[test]
    fn refuses_programs_for_another_machine_and_garbage() {
        let mut other = cubin();
        other[18] = 62;
        assert!(check(&other).unwrap_err().contains("not for a GPU"));
        assert!(check(b"").is_err() && check(b"garbage garbage").is_err());
        assert!(check(&WRAPPER.to_le_bytes()).unwrap_err().contains("wrapper"));
    }

    #[test]
    fn ptx_has_the_kernels_that_are_wanted() {
        let text = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry main_kernel(\n)";
        let wants = |kernel: &str| check_ptx(text, &[kernel.to_owned()]);
        assert_eq!(wants("main_kernel"), Ok(()));
        assert!(wants("main").is_err() && wants("kernel").is_err());
        assert!(check_ptx("kernel void main_kernel() {}", &[]).is_err());
    }

    proptest! {
        #[test]
        fn nothing_makes_it_look_outside(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0..3usize) {
            let mut bytes = bytes;
            let start = [vec![0x7f, b'E', b'L', b'F', 2, 1], FATBIN.to_le_bytes().to_vec(), vec![]][kind].clone();
            bytes.splice(0..0, start);
            let _ = check(&bytes);
        }
    }
}
