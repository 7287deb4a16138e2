//! Reads digests from text, and stores them as text.

use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Digest, PREFIX};
use crate::error::ImageError;

impl FromStr for Digest {
    type Err = ImageError;

    /// `sha256:` and 64 digits in lower case.
    fn from_str(text: &str) -> Result<Digest, ImageError> {
        let digest = text.strip_prefix(PREFIX).and_then(Digest::from_hex);
        digest.ok_or_else(|| ImageError::NoDigest { text: text.chars().take(100).collect() })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
