//! A package from an untrusted user: no bytes may panic its validation, and a valid package must be safe to unpack and
//! have only one digest.
//!
//! The first byte chooses whether the rest is an encoded package, a shared object alone, or a manifest for a shared
//! object.

use std::path::{Component, Path};

use sublet_proto::package::{self, Manifest};

use crate::values;

/// Validates a package, or makes one and validates it, or parses a manifest.
///
/// # Panics
/// If a valid package is not safe to unpack, has two encodings, or has nothing that can run.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = values::<(u8, &[u8])>(input) else { return };
    match kind % 3 {
        0 => validate(bytes),
        1 => {
            if let Ok(made) = package::from_library("libfuzz.so", bytes.to_vec()) {
                validate(&package::encode(&made));
            }
        }
        _ => {
            if let Ok(text) = std::str::from_utf8(bytes) {
                let _ = Manifest::parse(text);
            }
        }
    }
}

fn validate(encoded: &[u8]) {
    let Ok(checked) = package::validate(encoded) else { return };
    assert!(package::is_digest(&checked.digest));
    assert_eq!(checked.digest, package::digest(encoded));
    assert_eq!(package::encode(&checked.package), encoded, "two encodings of one package");
    for file in &checked.package.files {
        let inside = |part| matches!(part, Component::Normal(_));
        assert!(Path::new(&file.path).components().all(inside), "{:?} leaves the folder", file.path);
    }
    assert!(!checked.builds.is_empty(), "a package that nothing can run");
    for build in &checked.builds {
        assert!(checked.package.files.iter().any(|file| file.path == build.library));
        assert_eq!(build.symbols.len(), checked.functions.len(), "a function without an index");
    }
    let _ = checked.info();
}
