//! Lease tickets: signed by a manager, verified by an agent without a request to others (R11).
//!
//! The ticket is the whole authority to attach to an agent: every holder of it may use the lease, so it travels only
//! where the connection keeps it secret. Its signature covers the encoded bytes as they travel; they are not encoded
//! anew to be verified.

use ed25519_dalek::{Signature, Signer, SigningKey, Verifier, VerifyingKey};
use prost::Message;

use crate::v1::{SignedTicket, Ticket};
use crate::{Code, Error, decode};

/// Time after its issue at which a ticket may still be shown to an agent for the first time, in milliseconds. After
/// this time the manager takes back leases without an attached client.
pub const ATTACH_GRACE_MS: u64 = 5_000;

/// Signs tickets. Its seed is the manager's secret.
pub struct Signing(SigningKey);

impl Signing {
    /// Creates the signer from the 32 secret bytes that the manager keeps.
    pub fn from_seed(seed: &[u8; 32]) -> Signing {
        Signing(SigningKey::from_bytes(seed))
    }

    /// Returns the public key with which agents verify tickets.
    pub fn verifying_key(&self) -> [u8; 32] {
        self.0.verifying_key().to_bytes()
    }

    /// Returns the encoded [`SignedTicket`].
    pub fn sign(&self, ticket: &Ticket) -> Vec<u8> {
        let ticket = ticket.encode_to_vec();
        let signature = self.0.sign(&ticket).to_bytes().to_vec();
        SignedTicket { ticket, signature }.encode_to_vec()
    }
}

/// Verifies tickets against one manager's key.
#[derive(Clone)]
pub struct Verifying(VerifyingKey);

impl Verifying {
    /// Creates the verifier from the public key that the manager gave.
    pub fn from_bytes(key: &[u8]) -> Result<Verifying, Error> {
        let key: [u8; 32] = key.try_into().map_err(|_| {
            Error::new(Code::Protocol, format!("a verifying key has 32 bytes, not {}", key.len()))
        })?;
        VerifyingKey::from_bytes(&key)
            .map(Verifying)
            .map_err(|_| Error::new(Code::Protocol, "the verifying key is not a point of the curve"))
    }

    /// Returns the ticket, if this manager signed it and it names a lease. The agent's book decides whether it is still
    /// valid.
    pub fn open(&self, encoded: &[u8]) -> Result<Ticket, Error> {
        let signed: SignedTicket = decode("a ticket", encoded)?;
        let signature = Signature::from_slice(&signed.signature)
            .map_err(|_| denied("the ticket's signature does not have 64 bytes"))?;
        self.0
            .verify(&signed.ticket, &signature)
            .map_err(|_| denied("the ticket was not signed by this node's manager"))?;
        let ticket: Ticket = decode("a ticket", &signed.ticket)?;
        match ticket.lease {
            Some(_) => Ok(ticket),
            None => Err(denied("the ticket names no lease")),
        }
    }
}

fn denied(message: &str) -> Error {
    Error::new(Code::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1::Lease;
    use proptest::prelude::*;

    fn ticket() -> Ticket {
        let lease = Lease { id: "l".into(), expires_unix_ms: 10_000, ..Lease::default() };
        Ticket { lease: Some(lease), registration: 1, issued_unix_ms: 1_000, ..Ticket::default() }
    }

    fn pair() -> (Signing, Verifying) {
        let signing = Signing::from_seed(&[7; 32]);
        let verifying = Verifying::from_bytes(&signing.verifying_key()).unwrap();
        (signing, verifying)
    }

    #[test]
    fn a_signed_ticket_opens_if_it_names_a_lease() {
        let (signing, verifying) = pair();
        assert_eq!(verifying.open(&signing.sign(&ticket())).unwrap(), ticket());
        let nameless = signing.sign(&Ticket { lease: None, ..ticket() });
        assert_eq!(verifying.open(&nameless).unwrap_err().code, Code::PermissionDenied);
    }

    #[test]
    fn another_managers_ticket_is_refused() {
        let (_, verifying) = pair();
        let signed = Signing::from_seed(&[8; 32]).sign(&ticket());
        assert_eq!(verifying.open(&signed).unwrap_err().code, Code::PermissionDenied);
    }

    proptest! {
        #[test]
        fn no_changed_bit_is_accepted(bit in 0usize..8 * 80) {
            let (signing, verifying) = pair();
            let mut signed = signing.sign(&ticket());
            let bit = bit % (signed.len() * 8);
            signed[bit / 8] ^= 1 << (bit % 8);
            let accepted = verifying.open(&signed);
            prop_assert!(accepted.is_err() || accepted.unwrap() == ticket());
        }
    }
}
