//! Defines the format of the store's files: a header, then the payload.
//!
//! ```text
//! 0..8 magic and version   8..40 digest of what it was made of   40..48 time to make, us   48..56 payload's length
//! 56..88 digest of the above and of the payload                  88.. payload
//! ```

use sha2::{Digest as _, Sha256};

use crate::spec::Digest;

pub const HEADER_BYTES: usize = 88;
const MAGIC: &[u8; 8] = b"sublet\x00\x01";
const SEALED: usize = 56;

/// Content of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub made_of: Digest,
    pub load_us: u64,
    pub len_bytes: u64,
    pub seal: Digest,
}

impl Header {
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let digest = |at: usize| std::array::from_fn(|byte| bytes[at + byte]);
        let header =
            Header { made_of: digest(8), load_us: word(40), len_bytes: word(48), seal: digest(SEALED) };
        bytes.starts_with(MAGIC).then_some(header)
    }
}

pub fn encode(made_of: &Digest, load_us: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(made_of);
    bytes.extend_from_slice(&load_us.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    let seal = seal(&bytes, payload);
    bytes.extend_from_slice(&seal);
    bytes.extend_from_slice(payload);
    bytes
}

/// The header and the payload, if this is a complete file with this digest.
pub fn decode(mut bytes: Vec<u8>, made_of: &Digest) -> Option<(Header, Vec<u8>)> {
    let header = Header::decode(bytes.first_chunk()?)?;
    let payload = &bytes[HEADER_BYTES..];
    let is_whole = header.len_bytes == payload.len() as u64 && header.made_of == *made_of;
    if !is_whole || seal(&bytes[..SEALED], payload) != header.seal {
        return None;
    }
    bytes.drain(..HEADER_BYTES);
    Some((header, bytes))
}

fn seal(head: &[u8], payload: &[u8]) -> Digest {
    Sha256::new().chain_update(head).chain_update(payload).finalize().into()
}
