//! Makes and compares the secrets that protect connections.

use sublet_fabric::greeting::Secret;
use sublet_proto::{Code, Error};

/// Makes a random secret.
pub(crate) fn new_secret() -> Result<Secret, Error> {
    let mut secret = Secret::default();
    getrandom::fill(&mut secret)
        .map_err(|error| Error::new(Code::System, format!("no random number could be had: {error}")))?;
    Ok(secret)
}

/// Compares secrets in constant time.
pub(crate) fn is_same(one: &Secret, other: &Secret) -> bool {
    one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}
