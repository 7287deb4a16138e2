//! The list of images of an OCI layout: its `index.json`.

use super::named_image::NamedImage;
use crate::error::{DocumentPart, ImageError};
use crate::manifest::{Annotations, HERE, ImageDocument, IndexEntry, Platform};
use crate::reference::Reference;

/// Returns the images of the list that are for this machine, or that do not state their machines.
pub(super) fn images(index: &[u8]) -> Result<Vec<NamedImage>, ImageError> {
    let entries = match ImageDocument::read(index)? {
        ImageDocument::Index(entries) => entries,
        // The file's name promises an index.
        ImageDocument::Manifest(_) => {
            let problem = "it is a manifest in place of an index";
            return Err(ImageError::Document { part: DocumentPart::Index, problem });
        }
    };
    let is_possible = |entry: &&IndexEntry| entry.platform.as_ref().is_none_or(Platform::is_here);
    let images: Vec<_> = entries.iter().filter(is_possible).map(named).collect();
    match images.is_empty() && !entries.is_empty() {
        true => Err(ImageError::Architecture { found: format!("{} others", entries.len()), here: HERE }),
        false => Ok(images),
    }
}

fn named(entry: &IndexEntry) -> NamedImage {
    let names = entry.annotations.as_ref().map(names).unwrap_or_default();
    NamedImage::ByManifest { root: entry.descriptor.clone(), names }
}

/// Returns the whole name of an image, if it has one. A tag without a name means nothing outside of its layout.
fn names(annotations: &Annotations) -> Vec<String> {
    let whole = annotations.name.as_ref();
    let is_whole = |name: &&String| name.contains(['/', ':']);
    let reference = annotations.reference.as_ref().filter(is_whole);
    let names = whole.or(reference).and_then(|name| name.parse::<Reference>().ok());
    names.map(|name| name.to_string()).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::describe;

    fn index(entries: &str) -> Vec<u8> {
        format!(r#"{{"schemaVersion": 2, "manifests": [{entries}]}}"#).into_bytes()
    }

    fn entry(rest: &str) -> String {
        let digest = describe(b"x").digest;
        format!(r#"{{"mediaType": "m", "digest": "{digest}", "size": 1{rest}}}"#)
    }

    #[test]
    fn skips_images_for_other_machines_and_keeps_whole_names() {
        let other = entry(r#", "platform": {"os": "linux", "architecture": "s390x"}"#);
        let tag = entry(r#", "annotations": {"org.opencontainers.image.ref.name": "latest"}"#);
        let name = entry(r#", "annotations": {"io.containerd.image.name": "debian:12", "x": "y"}"#);
        let found = images(&index(&[other.clone(), tag, name].join(","))).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|named| match named {
                NamedImage::ByManifest { names, .. } => names.clone(),
                NamedImage::ByConfig { .. } => panic!("a layout names manifests"),
            })
            .collect();
        assert_eq!(names, [vec![], vec!["docker.io/library/debian:12".to_owned()]]);
        assert!(matches!(images(&index(&other)), Err(ImageError::Architecture { .. })));
        assert!(images(&index("")).unwrap().is_empty());
    }
}
