//! Random numbers of the system.

use sublet_proto::{Code, Error};

/// Returns 128 random bits, for names that are unique.
pub(crate) fn random_bits() -> Result<u128, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(Code::System, format!("no random numbers: {error}")))?;
    Ok(u128::from_le_bytes(bytes))
}
