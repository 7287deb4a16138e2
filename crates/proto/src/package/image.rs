//! The image in which a package's functions run: named in the manifest, and pinned by its digest in whatever is stored, so
//! that a package means the same for ever and on every node.

use super::digest::{DIGEST_PREFIX, is_digest};
use super::rules::{MANIFEST_FILE, invalid};
use crate::Error;

/// Longest name of an image, with its digest, in bytes.
const MAX_IMAGE_BYTES: usize = 512;

/// Whether a name ends with a digest.
pub fn is_pinned(image: &str) -> bool {
    image.split_once('@').is_some_and(|(name, digest)| !name.is_empty() && is_digest(digest))
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
