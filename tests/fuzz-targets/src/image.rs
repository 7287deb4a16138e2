//! An image of an unknown author: no bytes may panic the readers of its documents, and none that are unpacked as a layer
//! may change anything outside of the layer's folder.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use sublet_image::manifest::{Config, ImageDocument, choose};
use sublet_image::{Digest, ImageLimits, Reference, layer};

use crate::values;

/// Limits of an image, so low that a thousand inputs in a second do not fill a disk.
const LIMITS: ImageLimits = ImageLimits { unpacked_bytes: 1 << 20, files: 64 };

/// Reads a document, a configuration or a reference, or unpacks a layer; the first byte is the kind.
///
/// # Panics
/// If the result is inconsistent, or anything outside of the layer's folder has changed.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = values::<(u8, &[u8])>(input) else { return };
    match kind % 4 {
        0 => document(bytes),
        1 => drop(Config::read(bytes)),
        2 => reference(bytes),
        _ => unpack(bytes),
    }
}

fn document(bytes: &[u8]) {
    if let Ok(ImageDocument::Index(entries)) = ImageDocument::read(bytes) {
        // Whatever it chooses is one of them, and what it says of the others can be shown.
        match choose(&entries) {
            Ok(chosen) => assert!(entries.contains(chosen)),
            Err(error) => drop(error.to_string()),
        }
    }
}

/// A reference that is formatted and parsed again is the same.
fn reference(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(reference) = text.parse::<Reference>() {
        let again: Reference = reference.to_string().parse().expect("what was written can be read");
        assert_eq!(again, reference);
    }
}

fn unpack(bytes: &[u8]) {
    let outer = std::env::temp_dir().join(format!("sublet-fuzz-image-{}", std::process::id()));
    let (folder, witness) = (outer.join("layer"), outer.join("witness"));
    let _ = fs::remove_dir_all(&outer);
    fs::create_dir_all(&folder).expect("a folder can be made");
    fs::write(&witness, "untouched").expect("a file can be written");
    let opened = File::open(&folder).expect("the folder is there");
    if let Ok(unpacked) = layer::unpack(bytes, opened.as_fd(), &mut LIMITS.clone()) {
        assert!(unpacked.bytes <= LIMITS.unpacked_bytes && unpacked.files <= LIMITS.files);
        if !bytes.starts_with(&[0x1f, 0x8b]) && unpacked.bytes == bytes.len() as u64 {
            assert_eq!(unpacked.diff_id, Digest::of(bytes));
        }
    }
    assert_eq!(names(&outer), ["layer", "witness"]);
    assert_eq!(fs::read(&witness).expect("the file is there"), b"untouched");
    fs::remove_dir_all(&outer).expect("it can be removed");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut names: Vec<_> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
