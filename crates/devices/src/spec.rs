//! What a sandbox on a device is made of, and what of that is refused before any driver sees it.

use sha2::{Digest as _, Sha256};

use crate::{DeviceError, Kind, Tenant};

/// Longest program, in bytes: strangers' sources and binaries are read into memory.
pub const MAX_PROGRAM_BYTES: usize = 16 << 20;
/// Longest options for a compiler, in bytes.
pub const MAX_OPTIONS_BYTES: usize = 1024;
/// Longest name of a kernel, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Most work-items of one launch along one dimension.
const MAX_ITEMS: u64 = 1 << 31;

/// A digest of SHA-256.
pub(crate) type Digest = [u8; 32];

/// One function: a kernel of a program, and how many work-items execute it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSpec {
    /// Whose it is.
    pub tenant: Tenant,
    /// What the kernel is called in its program. Kernels of several programs may be called the same.
    pub kernel: String,
    /// Where it comes from.
    pub program: Program,
    /// How many work-items a launch has.
    pub work: WorkSize,
}

/// Where a kernel comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Program {
    /// OpenCL C, or PTX for CUDA, in UTF-8.
    Source {
        /// The text.
        text: String,
        /// Definitions (`-DNAME`, `-DNAME=value`) and the compiler's `-cl-` switches: nothing that names a file. CUDA
        /// takes none.
        options: String,
    },
    /// What the device's own tools made: an OpenCL program binary; a cubin or fatbin.
    Binary(Vec<u8>),
}

/// How many work-items execute a launch, in one dimension. A kernel may be executed by more than was asked for, up to a
/// whole work-group, and must look at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkSize {
    /// Input bytes for each work-item; none: `items` of them whatever the input.
    pub bytes_per_item: Option<u32>,
    /// The least number of work-items, at least 1.
    pub items: u32,
    /// Work-items of a group; none: the driver chooses.
    pub group: Option<u32>,
}

impl WorkSize {
    /// One work-item.
    pub const ONE: WorkSize = WorkSize { bytes_per_item: None, items: 1, group: None };

    /// One for each so many bytes of input.
    pub const fn per_bytes(bytes: u32) -> WorkSize {
        WorkSize { bytes_per_item: Some(bytes), ..WorkSize::ONE }
    }

    /// How many for an input of this size: whole groups.
    pub(crate) fn items_for(self, input_bytes: u32) -> u64 {
        let by_input = self.bytes_per_item.map_or(0, |bytes| input_bytes.div_ceil(bytes.max(1)));
        u64::from(by_input.max(self.items)).next_multiple_of(u64::from(self.group.unwrap_or(1)))
    }
}

impl KernelSpec {
    /// Refuses what no driver should see.
    pub(crate) fn check(&self) -> Result<(), DeviceError> {
        let refuse = |reason: String| {
            let name = self.kernel.chars().take(MAX_NAME_BYTES).collect();
            Err(DeviceError::Spec { name, reason })
        };
        if !is_name(&self.kernel) {
            return refuse(format!(
                "a name has 1 to {MAX_NAME_BYTES} letters, digits and '_', no digit first"
            ));
        }
        if let Err(reason) = self.program.check() {
            return refuse(reason);
        }
        let WorkSize { bytes_per_item, items, group } = self.work;
        if bytes_per_item == Some(0) || items == 0 || group == Some(0) || u64::from(items) > MAX_ITEMS {
            return refuse(format!("a work size has no zero in it, and at most {MAX_ITEMS} work-items"));
        }
        Ok(())
    }

    /// What the function is, for the cache in memory: never the same for two tenants, since a program may have variables.
    pub(crate) fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        hash.update(self.tenant.0.to_le_bytes());
        hash.update(self.program.digest());
        hash.update(self.kernel.as_bytes());
        hash.finalize().into()
    }
}

impl Program {
    fn check(&self) -> Result<(), String> {
        let len = match self {
            Program::Source { text, .. } => text.len(),
            Program::Binary(bytes) => bytes.len(),
        };
        if len == 0 || len > MAX_PROGRAM_BYTES {
            return Err(format!("its program has {len} bytes, and 1 to {MAX_PROGRAM_BYTES} are taken"));
        }
        match self {
            Program::Source { text, .. } if text.contains('\0') => Err("its source has a zero byte".into()),
            Program::Source { options, .. } => check_options(options),
            Program::Binary(_) => Ok(()),
        }
    }

    pub(crate) fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        match self {
            Program::Source { text, options } => {
                hash.update(b"source\0");
                hash.update(options.as_bytes());
                hash.update([0]);
                hash.update(text.as_bytes());
            }
            Program::Binary(bytes) => {
                hash.update(b"binary\0");
                hash.update(bytes);
            }
        }
        hash.finalize().into()
    }
}

/// Whether this is a name in C and PTX, which no compiler takes for an option.
pub(crate) fn is_name(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && name.len() <= MAX_NAME_BYTES && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn check_options(options: &str) -> Result<(), String> {
    if options.len() > MAX_OPTIONS_BYTES {
        return Err(format!("its options have more than {MAX_OPTIONS_BYTES} bytes"));
    }
    match options.split_ascii_whitespace().find(|word| !is_option(word)) {
        Some(word) => Err(format!("the option {word:?} is neither -DNAME[=VALUE] nor a switch -cl-*")),
        None => Ok(()),
    }
}

fn is_option(word: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_.-+".contains(c);
    if let Some(definition) = word.strip_prefix("-D") {
        let (name, value) = definition.split_once('=').unwrap_or((definition, ""));
        return is_name(name) && value.chars().all(is_plain);
    }
    word.strip_prefix("-cl-").is_some_and(|rest| rest.chars().all(|c| is_plain(c) || c == '='))
}

/// The digest of a program image: what it is made of, for which device and driver, and by whom it was formatted.
pub(crate) fn image_digest<'a>(
    kind: Kind,
    identity: &str,
    parts: impl Iterator<Item = (Digest, &'a [String])>,
) -> Digest {
    let mut hash = Sha256::new();
    hash.update(format!("sublet image 1\0{kind}\0{}\0{identity}\0", env!("CARGO_PKG_VERSION")));
    for (program, kernels) in parts {
        hash.update(program);
        hash.update(kernels.join(","));
        hash.update([0]);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kernel: &str, options: &str) -> KernelSpec {
        let program = Program::Source { text: "kernel void f() {}".into(), options: options.into() };
        KernelSpec { tenant: Tenant(1), kernel: kernel.into(), program, work: WorkSize::ONE }
    }

    #[test]
    fn names_with_odd_characters_are_refused() {
        for name in ["", "1f", "f g", "f-DX", "-cl-x", "f\n", "f\0", "ö", "f;", "f\"", &"f".repeat(129)] {
            assert!(spec(name, "").check().is_err(), "{name:?}");
        }
        assert!(spec("_main_kernel2", "").check().is_ok());
    }

    #[test]
    fn options_that_could_name_a_file_are_refused() {
        for options in
            ["-I/etc", "-I /etc", "-include x", "@file", "-DX=\"/etc\"", "-Xclang -load", "-s x", "-D"]
        {
            assert!(spec("f", options).check().is_err(), "{options:?}");
        }
        assert!(spec("f", "-DN=16 -DFAST -cl-std=CL1.2 -cl-fast-relaxed-math").check().is_ok());
    }

    #[test]
    fn programs_of_no_size_or_too_large_and_empty_work_are_refused() {
        let mut large = spec("f", "");
        large.program = Program::Binary(vec![0; MAX_PROGRAM_BYTES + 1]);
        assert!(large.check().is_err());
        let mut idle = spec("f", "");
        idle.work.items = 0;
        assert!(idle.check().is_err());
    }

    #[test]
    fn work_follows_the_input_in_whole_groups() {
        let work = WorkSize { bytes_per_item: Some(4), items: 2, group: Some(64) };
        assert_eq!([0, 4, 256, 257, u32::MAX].map(|size| work.items_for(size)), [64, 64, 64, 128, 1 << 30]);
        assert_eq!(WorkSize::ONE.items_for(1000), 1);
    }

    #[test]
    fn a_function_of_two_tenants_is_two_functions() {
        let (one, mut two) = (spec("f", ""), spec("f", ""));
        two.tenant = Tenant(2);
        assert_ne!(one.digest(), two.digest());
        assert_eq!(one.program.digest(), two.program.digest());
    }
}
