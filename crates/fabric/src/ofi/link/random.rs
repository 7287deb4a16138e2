//! Random bytes for keys and tokens.

use crate::FabricError;

/// Fills `bytes` with random bytes that a peer cannot guess.
pub fn random(bytes: &mut [u8]) -> Result<(), FabricError> {
    getrandom::fill(bytes)
        .map_err(|error| FabricError::system("getrandom for a key", std::io::Error::other(error.to_string())))
}
