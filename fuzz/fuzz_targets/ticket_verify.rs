//! A ticket that a client shows: no bytes may panic the agent, and none may pass but what the manager signed.
//!
//! The first byte chooses how the rest is used: as a signed ticket, or as a ticket that the manager's key signs, which
//! reaches the checks behind the signature.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use sublet_proto::ticket::{Signing, Verifying};
use sublet_proto::v1::{SignedTicket, Ticket};

static SIGNING: LazyLock<Signing> = LazyLock::new(|| Signing::from_seed(&[7; 32]));
static VERIFYING: LazyLock<Verifying> = LazyLock::new(|| {
    Verifying::from_bytes(&SIGNING.verifying_key()).expect("a signing key's own verifying key is one")
});

fuzz_target!(|input: (bool, &[u8])| {
    let (sign, bytes) = input;
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
});
