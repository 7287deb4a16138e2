//! Tests the checks of packages against real shared objects of a C compiler.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use proptest::prelude::*;
use sublet_proto::package::{self, CheckedPackage};
use sublet_proto::v1::{self, PackageFile};
use sublet_proto::{Code, Error};

const SOURCE: &str = r#"
#include <stdint.h>
uint32_t beta(void* in, uint32_t size, void* out) { return 0; }
uint32_t alpha(void* in, uint32_t size, void* out) { return size; }
__attribute__((weak)) uint32_t gamma_weak(void* in, uint32_t size, void* out) { return size; }
__attribute__((visibility("hidden"))) uint32_t hidden(void) { return 0; }
uint32_t _underscore(void) { return 0; }
static uint32_t local(void) { return 0; }
int data = 1;
uint32_t (*keep)(void) = local;
"#;

fn library() -> &'static [u8] {
    static LIBRARY: OnceLock<Vec<u8>> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let (source, object) = (folder.join("package.c"), folder.join("package.so"));
        std::fs::write(&source, SOURCE).unwrap();
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status();
        assert!(made.unwrap().success(), "cc failed");
        std::fs::read(object).unwrap()
    })
}

fn with_manifest(functions: &str) -> Result<CheckedPackage, Error> {
    let manifest = format!("name = 'p'\nlibrary = 'lib/p.so'\n{functions}");
    let file = PackageFile { path: "lib/p.so".into(), data: library().to_vec(), executable: true };
    package::validate(&package::encode(&package::from_files(&manifest, vec![file])?))
}

fn bare(bytes: Vec<u8>) -> Result<CheckedPackage, Error> {
    package::validate(&package::encode(&package::from_library("libx.so", bytes)?))
}

fn names(checked: &CheckedPackage) -> Vec<&str> {
    checked.functions.iter().map(String::as_str).collect()
}

#[test]
fn a_bare_library_offers_every_exported_c_function_by_name() {
    let checked = bare(library().to_vec()).unwrap();
    assert_eq!(names(&checked), ["alpha", "beta", "gamma_weak"]);
    let [build] = &checked.builds[..] else { panic!("{checked:?}") };
    assert_eq!((checked.name.as_str(), build.library.as_str()), ("libx", "libx.so"));
    assert_eq!((build.kind.as_str(), build.architecture.as_str()), ("native", std::env::consts::ARCH));
    assert_eq!(build.symbols, names(&checked));
    assert!(package::is_digest(&checked.digest));
    let info = checked.info();
    assert_eq!((info.digest, info.size_bytes), (checked.digest, checked.size_bytes));
}

#[test]
fn a_manifest_chooses_functions_and_their_order() {
    let checked =
        with_manifest("[[function]]\nname='run'\nsymbol='beta'\n[[function]]\nname='alpha'\n").unwrap();
    assert_eq!(names(&checked), ["run", "alpha"]);
    assert_eq!(checked.builds[0].symbols, ["beta", "alpha"]);
}

#[test]
fn error_names_the_missing_symbol_and_the_exported_ones() {
    for symbol in ["delta", "hidden", "local", "data"] {
        let error = with_manifest(&format!("[[function]]\nname='f'\nsymbol='{symbol}'\n")).unwrap_err();
        assert_eq!(error.code, Code::MissingSymbol);
        assert!(error.message.contains(symbol) && error.message.contains("alpha"), "{error}");
    }
}

#[test]
fn another_processor_is_named() {
    let machine = |number: u16| bare(of_machine(number));
    assert_eq!(machine(62).unwrap().builds[0].architecture, "x86_64");
    assert_eq!(machine(183).unwrap().builds[0].architecture, "aarch64");
    let error = machine(243).unwrap_err();
    assert!(error.code == Code::InvalidPackage && error.message.contains("riscv"), "{error}");
}

/// The library, as if it were for the processor of this ELF number.
fn of_machine(number: u16) -> Vec<u8> {
    let mut bytes = library().to_vec();
    bytes[18..20].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn of_builds(functions: &str, builds: &str) -> Result<CheckedPackage, Error> {
    let file = |path: &str, data: Vec<u8>| PackageFile { path: path.into(), data, executable: false };
    let files = vec![
        file("x86.so", of_machine(62)),
        file("arm.so", of_machine(183)),
        file("p.cl", b"kernel void beta() {} kernel void run() {}".to_vec()),
    ];
    let manifest = format!("name = 'p'\n{functions}{builds}");
    package::validate(&package::encode(&package::from_files(&manifest, files)?))
}

#[test]
fn builds_have_the_same_functions_at_the_same_indexes() {
    let native = "[[build]]\nlibrary='arm.so'\n[[build]]\nlibrary='x86.so'\n";
    let checked = of_builds("", native).unwrap();
    assert_eq!(names(&checked), ["alpha", "beta", "gamma_weak"]);
    let of = |checked: &CheckedPackage| -> Vec<String> {
        let line = |build: &v1::PackageBuild| format!("{} {}", build.architecture, build.symbols.join(" "));
        checked.builds.iter().map(line).collect()
    };
    assert_eq!(of(&checked), ["aarch64 alpha beta gamma_weak", "x86_64 alpha beta gamma_weak"]);
    let functions = "[[function]]\nname='run'\nsymbol='beta'\nbytes_per_item=1\n[[function]]\nname='alpha'\n";
    let kernels =
        "[[build]]\nkind='opencl'\nlibrary='p.cl'\n[[build.function]]\nname='alpha'\nsymbol='run'\n";
    let checked = of_builds(functions, &format!("{native}{kernels}")).unwrap();
    assert_eq!(names(&checked), ["run", "alpha"]);
    assert_eq!(of(&checked), ["aarch64 beta alpha", "x86_64 beta alpha", "opencl beta run"]);
    let info = checked.info();
    assert_eq!(info.build(2).unwrap().kind, "opencl");
    assert_eq!(info.build(3).unwrap_err().code, Code::InvalidPackage);
    assert_eq!(info.architectures(), "aarch64, x86_64, opencl");
}

#[test]
fn each_build_is_checked() {
    let refused = |functions: &str, builds: &str, code: Code, named: &str| {
        let error = of_builds(functions, builds).unwrap_err();
        assert!(error.code == code && error.message.contains(named), "{error}");
    };
    let one = "[[build]]\nlibrary='x86.so'\n";
    let missing = format!("{one}[[build]]\nlibrary='other.so'\n");
    refused("", &missing, Code::InvalidPackage, "other.so");
    refused("", &format!("{one}{one}"), Code::InvalidPackage, "both for x86_64");
    let text = format!("{one}[[build]]\nlibrary='p.cl'\n");
    refused("", &text, Code::InvalidPackage, "p.cl: is not an ELF file");
    let bare = format!("{one}[[build]]\nkind='opencl'\nlibrary='p.cl'\n");
    refused("", &bare, Code::InvalidPackage, "names 0 functions");
    let limits = format!("{one}[[build]]\nlibrary='arm.so'\nwasm = {{ fuel = 1 }}\n");
    refused("", &limits, Code::InvalidPackage, "arm.so is not");
    let functions = "[[function]]\nname='f'\nsymbol='beta'\n";
    let symbol = format!("{one}[[build]]\nlibrary='arm.so'\n[[build.function]]\nname='f'\nsymbol='delta'\n");
    refused(functions, &symbol, Code::MissingSymbol, "arm.so does not export a function \"delta\"");
}

#[test]
fn other_files_are_not_shared_objects() {
    let object = |edit: fn(&mut Vec<u8>)| {
        let mut bytes = library().to_vec();
        edit(&mut bytes);
        bare(bytes).unwrap_err().message
    };
    assert!(object(|b| b[16] = 1).contains("not a shared object"));
    assert!(object(|b| b[4] = 1).contains("64-bit"));
    assert!(object(|b| b[5] = 2).contains("little-endian"));
    assert!(object(|b| b[0] = b'#').contains("not an ELF file"));
    assert!(object(Vec::clear).contains("0 bytes"));
}

#[test]
fn a_library_cut_anywhere_is_refused() {
    let whole = library();
    for len in (0..whole.len()).step_by(61).chain([whole.len() - 1]) {
        let error = bare(whole[..len].to_vec()).expect_err("a truncated library was accepted");
        assert_eq!(error.code, Code::InvalidPackage, "{len}: {error}");
    }
}

#[test]
fn only_the_canonical_encoding_is_a_package() {
    let package = package::from_library("libx.so", library().to_vec()).unwrap();
    let mut encoded = package::encode(&package);
    encoded.extend([0x78, 1]);
    assert!(package::validate(&encoded).unwrap_err().message.contains("canonical"));
    let part = |manifest: &str, files: &[PackageFile]| {
        prost::Message::encode_to_vec(&v1::Package { manifest: manifest.into(), files: files.to_vec() })
    };
    let reordered = [part("", &package.files), part(&package.manifest, &[])].concat();
    assert!(
        package::validate(&reordered).unwrap_err().message.contains("canonical"),
        "as long, in another order"
    );
    let unsorted = v1::Package {
        files: ["b", "a"].map(|path| PackageFile { path: path.into(), ..PackageFile::default() }).to_vec(),
        ..package
    };
    let encoded = prost::Message::encode_to_vec(&unsorted);
    assert!(package::validate(&encoded).unwrap_err().message.contains("sorted"));
}

#[test]
fn names_that_a_node_needs_for_itself_are_refused() {
    for path in ["sublet.toml", "manifest.pb", "manifest.pb/x"] {
        let files = ["p.so", path].map(|path| PackageFile { path: path.into(), ..PackageFile::default() });
        let error = package::from_files("name='p'\nlibrary='p.so'", files.to_vec()).unwrap_err();
        assert!(error.message.contains("taken"), "{error}");
    }
}

#[test]
fn a_package_without_its_library_is_refused() {
    let error = package::from_files("name='p'\nlibrary='p.so'", vec![]).unwrap_err();
    assert!(error.message.contains("p.so"), "{error}");
}

#[test]
fn rejects_too_large_packages_by_size() {
    assert!(package::check_size(package::MAX_PACKAGE_BYTES).is_ok());
    let error = package::check_size(package::MAX_PACKAGE_BYTES + 1).unwrap_err();
    assert_eq!(error.code, Code::InvalidPackage);
}

proptest! {
    #[test]
    fn no_bytes_make_validate_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        let _ = package::validate(&bytes);
        let _ = bare(bytes);
    }

    #[test]
    fn no_damage_to_a_library_makes_validate_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
        headers in any::<bool>(),
    ) {
        let mut bytes = library().to_vec();
        let reach = if headers { 1024.min(bytes.len()) } else { bytes.len() };
        for (at, value) in damage {
            bytes[at.index(reach)] = value;
        }
        let _ = bare(bytes);
    }

    #[test]
    fn no_damage_to_an_encoded_package_makes_validate_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = package::encode(&package::from_library("libx.so", library().to_vec()).unwrap());
        for (at, value) in damage {
            bytes[at.index(128)] = value;
        }
        let _ = package::validate(&bytes);
    }
}
