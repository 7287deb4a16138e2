//! The image in which a package's functions run: named in the manifest, and pinned by its digest in whatever is stored, so
//! that a package means the same for ever and on every node.

use super::{DIGEST_PREFIX, MANIFEST_FILE, Manifest, invalid, is_digest};
use crate::{Error, v1};

/// Longest name of an image, with its digest, in bytes.
const MAX_IMAGE_BYTES: usize = 512;

/// Whether a name ends with a digest.
pub fn is_pinned(image: &str) -> bool {
    image.split_once('@').is_some_and(|(name, digest)| !name.is_empty() && is_digest(digest))
}

/// The first image that a package names and that is not pinned yet.
pub fn unpinned_image(package: &v1::Package) -> Result<Option<String>, Error> {
    let builds = Manifest::parse(&package.manifest)?.builds;
    Ok(builds.into_iter().filter_map(|build| build.image).find(|image| !is_pinned(image)))
}

/// Pins that image: adds the digest to its name in the manifest.
pub fn pin_image(package: &mut v1::Package, digest: &str) -> Result<(), Error> {
    let Some(image) = unpinned_image(package)? else { return Ok(()) };
    let pinned = format!("{image}@{digest}");
    let are_pinned = |manifest: &str| {
        let builds = Manifest::parse(manifest).map(|manifest| manifest.builds).unwrap_or_default();
        builds.iter().filter(|build| build.image.as_ref() == Some(&pinned)).count()
    };
    let before = are_pinned(&package.manifest);
    for quote in ['"', '\''] {
        let changed = package.manifest.replacen(
            &format!("{quote}{image}{quote}"),
            &format!("{quote}{pinned}{quote}"),
            1,
        );
        // A change of another occurrence of the same text has no effect.
        if are_pinned(&changed) > before {
            package.manifest = changed;
            return Ok(());
        }
    }
    Err(invalid(format!("{MANIFEST_FILE}: pin the image by hand, as image = {pinned:?}")))
}

/// Checks an image's name, in every manifest.
pub(super) fn check_image(image: &str) -> Result<(), Error> {
    let is_text = image.bytes().all(|byte| byte.is_ascii_graphic());
    if is_text && !matches!(image, "" | "@") && image.len() <= MAX_IMAGE_BYTES {
        return Ok(());
    }
    Err(invalid(format!(
        "{MANIFEST_FILE}: an image's name has 1 to {MAX_IMAGE_BYTES} printable characters, and no spaces"
    )))
}

/// Checks that an image is pinned, in every stored package.
pub(super) fn check_pinned(image: Option<&str>) -> Result<(), Error> {
    match image {
        Some(image) if !is_pinned(image) => Err(invalid(format!(
            "the image {image} is not pinned: it has to end with @{DIGEST_PREFIX} and 64 digits; `sublet deploy` adds them"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn package(image: &str) -> v1::Package {
        let manifest = format!("# \"x\"\nname = \"x\"\nlibrary = \"x\"\nimage = {image} # as it was\n");
        v1::Package { manifest, files: Vec::new() }
    }

    #[test]
    fn pins_an_image_and_changes_nothing_else() {
        for image in ["\"host:5000/a/b:1\"", "'host:5000/a/b:1'", "\"x\""] {
            let mut package = package(image);
            let before = package.manifest.clone();
            assert_eq!(unpinned_image(&package).unwrap().as_deref(), Some(image.trim_matches(['"', '\''])));
            if image == "\"x\"" {
                // The name of the package is the same text, and comes before it.
                assert!(pin_image(&mut package, DIGEST).unwrap_err().message.contains("by hand"));
                continue;
            }
            pin_image(&mut package, DIGEST).unwrap();
            assert_eq!(unpinned_image(&package).unwrap(), None);
            assert_eq!(package.manifest, before.replace(":1", &format!(":1@{DIGEST}")));
            pin_image(&mut package, "sha256:other").unwrap();
            assert_eq!(package.manifest, before.replace(":1", &format!(":1@{DIGEST}")));
        }
    }

    #[test]
    fn only_what_ends_with_a_digest_is_pinned() {
        assert!(is_pinned(&format!("a@{DIGEST}")) && is_pinned(&format!("a:1@{DIGEST}")));
        for image in ["a", "a:1", "a@", "a@sha256:12", &format!("@{DIGEST}"), &format!("a@{DIGEST}0")] {
            assert!(!is_pinned(image), "{image}");
            assert!(check_pinned(Some(image)).is_err());
        }
        for image in ["", "@", "a b", "a\n", "\u{e4}", &"a".repeat(MAX_IMAGE_BYTES + 1)] {
            assert!(check_image(image).is_err(), "{image:?}");
        }
    }
}
