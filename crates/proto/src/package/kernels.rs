//! Packages of kernels: functions on accelerators, by OpenCL or CUDA.
//!
//! Such a build names its kind (`kind`), and each of its functions: the kernel, its program, and the number of
//! work-items that execute it. A program is a text (OpenCL C, PTX) or a binary that the device's own tools have made.
//! This module examines only its first bytes: untrusted programs are read by a process with nothing to lose, on the
//! node that executes them.
//!
//! The rules for a kernel's name, options and sizes are here, for the manager that stores a package and the node that
//! executes it.

use super::build::{Build, MAX_DEADLINE_MS, ManifestFunction};
use super::files::{check_path, find_file};
use super::kind::PackageKind;
use super::library::LibraryFile;
use super::rules::{MANIFEST_FILE, invalid};
use crate::v1::PackageFile;
use crate::{Code, Error};

/// Most functions of a package of kernels: they become one program image.
pub const MAX_KERNELS: usize = 32;
/// Longest program, in bytes.
pub const MAX_PROGRAM_BYTES: usize = 16 << 20;
/// Longest name of a kernel, in bytes.
pub const MAX_KERNEL_NAME_BYTES: usize = 128;
/// Longest options for a compiler, in bytes.
pub const MAX_OPTIONS_BYTES: usize = 1024;
/// Most work-items of one launch along one dimension.
pub const MAX_ITEMS: u64 = 1 << 31;
/// Largest image that a node builds of a package, in bytes.
pub const MAX_IMAGE_BYTES: u64 = 256 << 20;

/// The first word of SPIR-V, in either order of bytes.
const SPIR_V: [[u8; 4]; 2] = [0x0723_0203_u32.to_le_bytes(), 0x0723_0203_u32.to_be_bytes()];
const ELF: &[u8] = b"\x7fELF";
const FATBIN: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();

/// Number of work-items that execute a launch, in one dimension. More may execute a kernel than were asked for, up to a
/// whole work-group, so a kernel must check its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkSize {
    /// Input bytes for each work-item; `None`: `items` work-items for any input.
    pub bytes_per_item: Option<u32>,
    /// The least number of work-items, at least 1.
    pub items: u32,
    /// Work-items of a group; `None`: the driver chooses.
    pub group: Option<u32>,
}

impl WorkSize {
    /// One work-item.
    pub const ONE: WorkSize = WorkSize { bytes_per_item: None, items: 1, group: None };

    /// One work-item for each `bytes` bytes of input.
    pub const fn per_bytes(bytes: u32) -> WorkSize {
        WorkSize { bytes_per_item: Some(bytes), ..WorkSize::ONE }
    }

    /// Returns the number of work-items for an input of this size: whole groups.
    pub fn items_for(self, input_bytes: u32) -> u64 {
        let by_input = self.bytes_per_item.map_or(0, |bytes| input_bytes.div_ceil(bytes.max(1)));
        u64::from(by_input.max(self.items)).next_multiple_of(u64::from(self.group.unwrap_or(1)))
    }

    /// Refuses a size that cannot be executed.
    ///
    /// # Errors
    /// The reason.
    pub fn check(self) -> Result<(), String> {
        let WorkSize { bytes_per_item, items, group } = self;
        if bytes_per_item == Some(0) || items == 0 || group == Some(0) || u64::from(items) > MAX_ITEMS {
            return Err(format!("a work size has no zero in it, and at most {MAX_ITEMS} work-items"));
        }
        Ok(())
    }
}

/// Whether this is a name in C and PTX, which no compiler takes for an option.
pub fn is_kernel_name(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts
        && name.len() <= MAX_KERNEL_NAME_BYTES
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Refuses options that could name a file.
///
/// # Errors
/// The reason.
pub fn check_options(options: &str) -> Result<(), String> {
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
        return is_kernel_name(name) && value.chars().all(is_plain);
    }
    word.strip_prefix("-cl-").is_some_and(|rest| rest.chars().all(|c| is_plain(c) || c == '='))
}

/// Returns a program's text, if it is one; otherwise it is a binary.
pub fn source(program: &[u8]) -> Option<&str> {
    std::str::from_utf8(program).ok().filter(|text| !text.contains('\0'))
}

impl Build {
    /// Returns its named kind, if that is one of kernels.
    ///
    /// # Errors
    /// [`Code::InvalidPackage`] if it names a kind that need not, or cannot, be named.
    pub fn kernel_kind(&self) -> Result<Option<PackageKind>, Error> {
        Ok(self.said_kind()?.filter(|kind| kind.is_of_kernels()))
    }

    /// Returns the path of a function's program.
    pub fn program_of<'a>(&'a self, function: &'a ManifestFunction) -> &'a str {
        function.program.as_deref().unwrap_or(&self.library)
    }
}

impl ManifestFunction {
    /// Returns the number of work-items that execute it.
    pub fn work(&self) -> WorkSize {
        WorkSize { bytes_per_item: self.bytes_per_item, items: self.items.unwrap_or(1), group: self.group }
    }

    fn says_of_kernels(&self) -> Option<&'static str> {
        [
            (self.program.is_some(), "program"),
            (self.items.is_some(), "items"),
            (self.bytes_per_item.is_some(), "bytes_per_item"),
            (self.group.is_some(), "group"),
        ]
        .into_iter()
        .find_map(|(is_said, what)| is_said.then_some(what))
    }
}

/// Checks the fields of a build that concern kernels, and that the required ones are set.
pub(super) fn check_build(build: &Build) -> Result<(), Error> {
    let Some(kind) = build.kernel_kind()? else {
        return if build.kernels.is_some() { Err(needs_kind("[kernels]")) } else { Ok(()) };
    };
    let said = build.kernels.clone().unwrap_or_default();
    let options = said.options.unwrap_or_default();
    check_options(&options).map_err(|reason| invalid(format!("{MANIFEST_FILE}: of [kernels] {reason}")))?;
    if kind == PackageKind::Cuda && !options.trim().is_empty() {
        return Err(invalid(format!("{MANIFEST_FILE}: CUDA's driver takes no options, {options:?}")));
    }
    if said.deadline_ms.is_some_and(|ms| !(1..=MAX_DEADLINE_MS).contains(&ms)) {
        return Err(invalid(format!("{MANIFEST_FILE}: deadline_ms is not 1 to {MAX_DEADLINE_MS}")));
    }
    let count = build.functions.len();
    if !(1..=MAX_KERNELS).contains(&count) {
        let message = format!(
            "{MANIFEST_FILE} names {count} functions: a package of kernels names each of them, 1 to {MAX_KERNELS}"
        );
        return Err(invalid(message));
    }
    build.functions.iter().try_for_each(check_function)
}

fn check_function(function: &ManifestFunction) -> Result<(), Error> {
    let (name, kernel) = (&function.name, function.symbol());
    if !is_kernel_name(kernel) {
        let message = format!(
            "the kernel {kernel:?} of function {name} is no name: 1 to {MAX_KERNEL_NAME_BYTES} letters, digits and '_', no digit first"
        );
        return Err(invalid(message));
    }
    function.program.as_deref().map_or(Ok(()), check_path)?;
    function.work().check().map_err(|reason| invalid(format!("of function {name}: {reason}")))
}

/// Refuses fields that concern only kernels, unless the package has kernels.
pub(super) fn check_words(functions: &[ManifestFunction], has_kernels: bool) -> Result<(), Error> {
    let said = functions.iter().find_map(ManifestFunction::says_of_kernels);
    said.filter(|_| !has_kernels).map_or(Ok(()), |what| Err(needs_kind(what)))
}

fn needs_kind(what: &str) -> Error {
    invalid(format!("{MANIFEST_FILE} has {what}, which is of kernels: kind = \"opencl\" or \"cuda\""))
}

/// Returns the kernels of a build with a checked manifest, each with its program.
pub(super) fn read<'a>(
    kind: PackageKind,
    build: &'a Build,
    files: &[PackageFile],
) -> Result<LibraryFile<'a>, Error> {
    for function in &build.functions {
        let path = build.program_of(function);
        let file = find_file(files, path)?;
        check_program(kind, &file.data).map_err(|reason| invalid(format!("{path}: {reason}")))?;
    }
    let functions = build.functions.iter().map(ManifestFunction::symbol).collect();
    Ok(LibraryFile { kind, architecture: kind.name().into(), functions, layers: Vec::new() })
}

/// Checks that a program has an accepted form.
fn check_program(kind: PackageKind, program: &[u8]) -> Result<(), String> {
    if !(1..=MAX_PROGRAM_BYTES).contains(&program.len()) {
        return Err(format!("has {} bytes, and a program has 1 to {MAX_PROGRAM_BYTES}", program.len()));
    }
    match (kind, source(program)) {
        (PackageKind::Cuda, Some(text)) if !text.contains(".version") => {
            Err("is a text and no PTX, which begins with .version (nvcc --ptx makes it)".to_owned())
        }
        (PackageKind::Cuda, None) if !program.starts_with(ELF) && !program.starts_with(&FATBIN) => {
            Err("is neither PTX nor a cubin nor a fatbin".to_owned())
        }
        (_, None) if SPIR_V.iter().any(|magic| program.starts_with(magic)) => {
            Err("is SPIR-V, which is not taken: OpenCL C is, and binaries of the device's own tools"
                .to_owned())
        }
        _ => Ok(()),
    }
}

/// Refuses a bare file that is a program of kernels by its name: kernels need a manifest that names the functions.
pub(super) fn check_bare(file_name: &str) -> Result<(), Error> {
    if [".cl", ".ptx", ".cubin", ".fatbin"].iter().any(|ending| file_name.ends_with(ending)) {
        let message =
            format!("{file_name} is a program of kernels: deploy a folder with it and a {MANIFEST_FILE}");
        return Err(invalid(message));
    }
    Ok(())
}

/// Refuses fields that a build of kernels cannot have: an image, a network, limits of WebAssembly.
pub(super) fn check_alone(build: &Build) -> Result<(), Error> {
    let others = [
        (build.image.is_some(), "an image"),
        (build.network, "the network"),
        (build.wasm.is_some(), "[wasm]"),
    ];
    match others.into_iter().find(|(is_said, _)| *is_said) {
        Some((_, what)) => {
            Err(Error::new(Code::InvalidPackage, format!("{MANIFEST_FILE}: kernels have nothing of {what}")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::{Manifest, encode, from_files, validate};

    const SOURCE: &str = "kernel void f() {}";

    fn message(manifest: &str) -> String {
        let error = Manifest::parse(manifest).unwrap_err();
        assert_eq!(error.code, Code::InvalidPackage);
        error.message
    }

    fn manifest(more: &str) -> String {
        format!("name='p'\nkind='opencl'\nlibrary='p.cl'\n{more}")
    }

    fn file(path: &str, data: &[u8]) -> PackageFile {
        PackageFile { path: path.into(), data: data.into(), executable: false }
    }

    fn deployed(manifest: &str, program: &[u8]) -> Result<super::super::CheckedPackage, Error> {
        validate(&encode(&from_files(manifest, vec![file("p.cl", program)])?))
    }

    #[test]
    fn a_package_says_which_kernel_each_function_is() {
        let text = manifest("[[function]]\nname='add'\nsymbol='add_bytes'\nbytes_per_item=4\ngroup=64");
        let checked = deployed(&text, SOURCE.as_bytes()).unwrap();
        assert_eq!(checked.functions, ["add"]);
        let [build] = &checked.builds[..] else { panic!("{checked:?}") };
        assert_eq!((build.kind.as_str(), build.architecture.as_str()), ("opencl", "opencl"));
        assert_eq!(build.symbols, ["add_bytes"]);
        let parsed = Manifest::parse(&text).unwrap();
        let work = WorkSize { bytes_per_item: Some(4), items: 1, group: Some(64) };
        assert_eq!(parsed.builds[0].functions[0].work(), work);
    }

    #[test]
    fn rejects_invalid_kernels_at_deployment() {
        let function = |more: &str| message(&manifest(&format!("[[function]]\nname='f'\n{more}")));
        assert!(message(&manifest("")).contains("names 0 functions"));
        assert!(function("symbol='f g'").contains("\"f g\""));
        assert!(function("symbol='-Dx'").contains("is no name"));
        assert!(function("items=0").contains("zero"));
        assert!(function("group=0").contains("zero"));
        assert!(function("bytes_per_item=0").contains("zero"));
        assert!(function("program='../x'").contains("../x"));
        assert!(function("[kernels]\noptions='-I/etc'").contains("-I/etc"));
        assert!(function("[kernels]\ndeadline_ms=0").contains("deadline_ms"));
        assert!(function("[kernels]\ncolour='red'").contains("colour"));
        let many: String = (0..33).map(|n| format!("[[function]]\nname='f{n}'\n")).collect();
        assert!(message(&manifest(&many)).contains("33 functions"));
        assert!(message("name='p'\nkind='abacus'\nlibrary='p'").contains("abacus"));
        assert!(message("name='p'\nlibrary='p'\n[[function]]\nname='f'\nitems=2").contains("items"));
        assert!(message("name='p'\nlibrary='p'\n[kernels]\ndeadline_ms=2").contains("[kernels]"));
        let cuda = "name='p'\nkind='cuda'\nlibrary='p'\n[kernels]\noptions='-DX'\n[[function]]\nname='f'";
        assert!(message(cuda).contains("no options"));
    }

    #[test]
    fn rejects_missing_programs_and_unknown_forms() {
        let refused = |text: &str, program: &[u8]| {
            let error = deployed(text, program).unwrap_err();
            assert_eq!(error.code, Code::InvalidPackage);
            error.message
        };
        let elsewhere = manifest("[[function]]\nname='f'\nprogram='other.cl'");
        assert!(refused(&elsewhere, SOURCE.as_bytes()).contains("other.cl"));
        let one = manifest("[[function]]\nname='f'");
        assert!(refused(&one, b"").contains("0 bytes"));
        assert!(refused(&one, &[0x03, 0x02, 0x23, 0x07, 0, 0]).contains("SPIR-V"));
        assert!(deployed(&one, b"poclbin\0\xff").is_ok(), "only its device can tell");
        let cuda = one.replace("opencl", "cuda");
        assert!(refused(&cuda, b"__global__ void f() {}").contains("no PTX"));
        assert!(refused(&cuda, &[0xff; 8]).contains("neither PTX"));
        assert!(deployed(&cuda, b".version 7.0\n").is_ok() && deployed(&cuda, b"\x7fELF\0\xff").is_ok());
        assert!(check_bare("a/p.cl").is_err() && check_bare("libcl.so").is_ok());
        for more in ["network=true\n", "image='x'\n"] {
            assert!(refused(&format!("{more}{one}"), SOURCE.as_bytes()).contains("kernels"));
        }
    }

    #[test]
    fn work_follows_the_input_in_whole_groups() {
        let work = WorkSize { bytes_per_item: Some(4), items: 2, group: Some(64) };
        assert_eq!([0, 4, 256, 257, u32::MAX].map(|size| work.items_for(size)), [64, 64, 64, 128, 1 << 30]);
        assert_eq!(WorkSize::ONE.items_for(1000), 1);
    }

    #[test]
    fn names_that_a_compiler_could_misread_are_none() {
        for name in ["", "1f", "f g", "f-DX", "-cl-x", "f\n", "f\0", "\u{f6}", "f;", "f\"", &"f".repeat(129)]
        {
            assert!(!is_kernel_name(name), "{name:?}");
        }
        assert!(is_kernel_name("_main_kernel2"));
    }

    #[test]
    fn options_that_could_name_a_file_are_refused() {
        for options in
            ["-I/etc", "-I /etc", "-include x", "@file", "-DX=\"/etc\"", "-Xclang -load", "-s x", "-D"]
        {
            assert!(check_options(options).is_err(), "{options:?}");
        }
        assert!(check_options("-DN=16 -DFAST -cl-std=CL1.2 -cl-fast-relaxed-math").is_ok());
    }
}
