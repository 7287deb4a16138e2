//! Tests the checks of WebAssembly packages against modules written byte by byte.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use sublet_proto::package::{self, CheckedPackage};
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error};

/// Memory "memory"; functions `short` and `long` of the two forms, `other` and `_hidden` that are not offered; imports
/// `sublet.fail`, which is exported again.
const MODULE: &[u8] = b"\0asm\x01\0\0\0\
    \x01\x17\x04\
        \x60\x03\x7f\x7f\x7f\x01\x7f\
        \x60\x04\x7f\x7f\x7f\x7f\x01\x7f\
        \x60\0\0\
        \x60\x01\x7f\0\
    \x02\x0f\x01\x06sublet\x04fail\0\x03\
    \x03\x05\x04\0\x01\x02\0\
    \x05\x03\x01\0\x01\
    \x07\x34\x06\
        \x06memory\x02\0\
        \x05short\0\x01\
        \x04long\0\x02\
        \x05other\0\x03\
        \x07_hidden\0\x04\
        \x06refail\0\0\
    \x0a\x13\x04\
        \x04\0\x20\x01\x0b\x04\0\x20\x01\x0b\x02\0\x0b\x04\0\x20\x01\x0b\
    \0\x06\x04nameX";

fn package_of(module: &[u8], manifest: &str) -> Result<CheckedPackage, Error> {
    let manifest = format!("name = 'm'\nlibrary = 'm.wasm'\n{manifest}");
    let file = PackageFile { path: "m.wasm".into(), data: module.to_vec(), executable: false };
    package::validate(&package::encode(&package::from_files(&manifest, vec![file])?))
}

fn bare(module: &[u8]) -> Result<CheckedPackage, Error> {
    package::validate(&package::encode(&package::from_library("m.wasm", module.to_vec())?))
}

#[track_caller]
fn assert_refused(module: &[u8], why: &str) {
    let error = bare(module).unwrap_err();
    assert!(error.code == Code::InvalidPackage && error.message.contains(why), "{why:?}: {error}");
}

/// The module with one run of bytes in place of another.
fn with(old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = MODULE.windows(old.len()).position(|window| window == old).unwrap();
    [&MODULE[..at], new, &MODULE[at + old.len()..]].concat()
}

#[test]
fn bare_module_offers_exported_functions_of_both_forms() {
    let checked = bare(MODULE).unwrap();
    assert_eq!(checked.functions, ["long", "short"]);
    let [build] = &checked.builds[..] else { panic!("{checked:?}") };
    assert_eq!((build.kind.as_str(), build.architecture.as_str()), ("wasm", "wasm32"));
    assert_eq!((checked.name.as_str(), build.library.as_str()), ("m", "m.wasm"));
    for node in ["x86_64", "aarch64"] {
        assert!(package::runs_on(&build.architecture, node) && !package::runs_on("riscv64", node));
    }
    assert!(!package::runs_on(&build.architecture, "opencl"), "a device executes none");
}

#[test]
fn a_manifest_chooses_functions_and_limits() {
    let manifest = "[[function]]\nname='f'\nsymbol='_hidden'\n[wasm]\ndeadline_ms = 5\nfuel = 7";
    assert_eq!(package_of(MODULE, manifest).unwrap().builds[0].symbols, ["_hidden"]);
    for symbol in ["other", "memory", "refail", "nothing"] {
        let error = package_of(MODULE, &format!("[[function]]\nname='f'\nsymbol='{symbol}'")).unwrap_err();
        assert_eq!(error.code, Code::MissingSymbol);
        assert!(error.message.contains(symbol) && error.message.contains("short"), "{error}");
    }
    for limits in ["deadline_ms = 0", "deadline_ms = 86400001", "memory_bytes = 0", "fuel = 0", "fule = 1"] {
        let error = package_of(MODULE, &format!("[wasm]\n{limits}")).unwrap_err();
        assert!(error.code == Code::InvalidPackage && error.message.contains("sublet.toml"), "{error}");
    }
}

#[test]
fn a_shared_object_has_no_limits_of_a_module() {
    let manifest = "name = 'm'\nlibrary = 'm.so'\n[wasm]\ndeadline_ms = 5";
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let file = PackageFile { path: "m.so".into(), data: own, executable: true };
    let error = package::validate(&package::encode(&package::from_files(manifest, vec![file]).unwrap()));
    assert!(error.unwrap_err().message.contains("limits for a WebAssembly module"));
}

#[test]
fn what_is_no_module_that_could_run_says_why() {
    assert_refused(b"\0asm", "version 1");
    assert_refused(b"\0asm\x0d\0\x01\0", "components are not taken");
    assert_refused(&MODULE[..8], "exports no memory");
    assert_refused(&with(b"\x06memory\x02\0", b"\x06memorx\x02\0"), "exports no memory");
    assert_refused(&with(b"\x06sublet", b"\x06suplet"), "imports suplet.fail, which is not offered");
    assert_refused(&with(b"\x04fail\0\x03", b"\x04fail\x02\x03"), "imports sublet.fail");
    assert_refused(&with(b"\x60\0\0", b"\x5f\0\0"), "only function types");
    assert_refused(&with(b"\x60\x01\x7f\0", b"\x60\x01\x6e\0"), "value type 0x6e");
    assert_refused(&with(b"\x05short\0\x01", b"\x05short\0\x09"), "no function 9");
    assert_refused(&with(b"\x04\0\x01\x02\0\x05", b"\x04\0\x01\x09\0\x05"), "no type 9");
    assert_refused(&with(b"\x05short", b"\x05sho\xff\xfe"), "not UTF-8");
    assert_refused(&[MODULE, b"\x05\x03\x01\0\x01"].concat(), "section 5");
    assert_refused(&[MODULE, b"\x0e\x00"].concat(), "section 14");
    assert_refused(&[MODULE, b"\x0c\x80\x80\x80\x80\x80\x00"].concat(), "more than 5 bytes");
    assert_refused(&[MODULE, b"\x0c\xff\xff\xff\xff\x7f"].concat(), "too large");
    assert_refused(&[MODULE, b"\x0c\xff\xff\xff\xff\x0f"].concat(), "truncated");
    let short = b"\x60\x03\x7f\x7f\x7f\x01\x7f";
    assert_eq!(bare(&with(short, b"\x60\x03\x7f\x7f\x7e\x01\x7f")).unwrap().functions.len(), 1);
    let none = with(b"\x60\x04\x7f", b"\x60\x04\x7e");
    let at = none.windows(7).position(|window| window == short).unwrap();
    assert_refused(&[&none[..at + 2], b"\x7e", &none[at + 3..]].concat(), "exports no function of the type");
}

/// Sections that only tools read may be missing at the end; all others are required.
#[test]
fn a_module_cut_anywhere_is_refused() {
    let whole = MODULE.len() - 8;
    for len in 4..whole {
        let cut = bare(&MODULE[..len]);
        let ends_a_section = cut.is_ok();
        assert!(!ends_a_section || MODULE[len] == 0x0a, "{len} bytes were accepted");
    }
    assert!(bare(&MODULE[..whole]).is_ok());
}

proptest! {
    #[test]
    fn no_damage_to_a_module_makes_validate_panic(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = MODULE.to_vec();
        for (at, value) in damage {
            bytes[at.index(MODULE.len())] = value;
        }
        let _ = bare(&bytes);
    }
}
