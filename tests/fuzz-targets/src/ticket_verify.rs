//! A ticket that a client shows: no bytes may panic the agent, and none may pass but what the manager signed.
//!
//! The first byte chooses how the rest is used: as a signed ticket, or as a ticket that the manager's key signs, which
//! reaches the checks behind the signature.

use std::sync::LazyLock;

use prost::Message;
use sublet_proto::ticket::{Signing, Verifying};
use sublet_proto::v1::{SignedTicket, Ticket};

use crate::values;

static SIGNING: LazyLock<Signing> = LazyLock::new(|| Signing::from_seed(&[7; 32]));
static VERIFYING: LazyLock<Verifying> = LazyLock::new(|| {
    Verifying::from_bytes(&SIGNING.verifying_key()).expect("a signing key's own verifying key is one")
});

/// Opens a ticket that the input is, or, if its first byte is odd, that was signed.
///
/// # Panics
/// If a ticket is opened that the key has not signed, or one that it has signed is opened as another.
pub fn run(input: &[u8]) {
    let Some((sign, bytes)) = values::<(bool, &[u8])>(input) else { return };
    if !sign {
        // Whatever passes was signed: nothing in the corpus is, but by this key.
        if let Ok(ticket) = VERIFYING.open(bytes) {
            let signed = SignedTicket::decode(bytes).expect("a verified ticket was decoded before");
            assert_eq!(Ticket::decode(&*signed.ticket).as_ref(), Ok(&ticket));
        }
        let _ = Verifying::from_bytes(bytes);
    } else if let Ok(ticket) = Ticket::decode(bytes) {
        let opened = VERIFYING.open(&SIGNING.sign(&ticket)).ok();
        assert_eq!(opened, Some(ticket).filter(|ticket| ticket.lease.is_some()));
    }
}
