//! Digests, which name every part of an image, and a reader that computes one.

mod text;

use std::fmt;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

const BYTES: usize = 32;
const PREFIX: &str = "sha256:";

/// The SHA-256 of some bytes; the one algorithm that registries have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; BYTES]);

impl Digest {
    /// Digest of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// The digest in hexadecimal, without the name of the algorithm, as in a file's name.
    pub fn hex(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        debug_assert_eq!(Digest::from_hex(&hex).as_ref(), Some(self), "{hex} is read as another digest");
        hex
    }

    /// Reads a digest from a file's name.
    pub(crate) fn from_hex(hex: &str) -> Option<Digest> {
        let is_ours =
            hex.len() == 2 * BYTES && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut bytes = [0; BYTES];
        for (byte, index) in bytes.iter_mut().zip((0..hex.len()).step_by(2)).filter(|_| is_ours) {
            *byte = u8::from_str_radix(&hex[index..index + 2], 16).ok()?;
        }
        is_ours.then_some(Digest(bytes))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

/// Passes bytes on, counts them and computes their digest.
pub(crate) struct Hashing<R> {
    inner: R,
    hash: Sha256,
    bytes: u64,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(inner: R) -> Hashing<R> {
        Hashing { inner, hash: Sha256::new(), bytes: 0 }
    }

    /// Number of bytes that were passed on.
    pub(crate) fn passed_bytes(&self) -> u64 {
        self.bytes
    }

    /// Digest of the bytes that were passed on.
    pub(crate) fn digest(self) -> Digest {
        Digest(self.hash.finalize().into())
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_written_as_it_is_read() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
        for wrong in ["", "sha256:", &empty[7..], &empty[..70], &empty.to_uppercase(), &format!("{empty}0")] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
        assert!(
            "sha256:\u{20ac}3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b8"
                .parse::<Digest>()
                .is_err()
        );
    }

    #[test]
    fn a_reader_computes_the_digest_of_what_it_passes_on() {
        let mut hashing = Hashing::new(&b"some bytes"[..]);
        io::copy(&mut hashing, &mut io::sink()).unwrap();
        assert_eq!((hashing.passed_bytes(), hashing.digest()), (10, Digest::of(b"some bytes")));
    }
}
