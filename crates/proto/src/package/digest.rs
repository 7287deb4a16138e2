//! Digests, which identify packages and layers by their content.

use sha2::{Digest, Sha256};

/// The first characters of each digest.
pub(super) const DIGEST_PREFIX: &str = "sha256:";
const DIGEST_HEX_DIGITS: usize = 64;

/// Returns the digest of an encoded package: "sha256:" and 64 hexadecimal digits.
pub fn digest(encoded: &[u8]) -> String {
    let hash = Sha256::digest(encoded);
    let mut text = String::with_capacity(DIGEST_PREFIX.len() + DIGEST_HEX_DIGITS);
    text.push_str(DIGEST_PREFIX);
    for byte in hash {
        for nibble in [byte >> 4, byte & 0xf] {
            text.push(char::from(b"0123456789abcdef"[usize::from(nibble)]));
        }
    }
    debug_assert!(is_digest(&text), "{text:?} has not the form of a digest");
    text
}

/// Tells whether this is a digest as [`digest`] writes it, which also makes it safe as the name of a file.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix(DIGEST_PREFIX).is_some_and(|hex| {
        hex.len() == DIGEST_HEX_DIGITS && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}
