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

const NOW_UNIX_MS: u64 = 1_000_000;

static SIGNING: LazyLock<Signing> = LazyLock::new(|| Signing::from_seed(&[7; 32]));
static VERIFYING: LazyLock<Verifying> = LazyLock::new(|| {
    Verifying::from_bytes(&SIGNING.verifying_key()).expect("a signing key's own verifying key is one")
});

fuzz_target!(|input: (bool, &[u8])| {
    let (sign, bytes) = input;
    if !sign {
        // Whatever passes was signed: nothing in the corpus is, but by this key and time.
        if let Ok(ticket) = VERIFYING.verify(bytes, NOW_UNIX_MS) {
            let signed = SignedTicket::decode(bytes).expect("a verified ticket was decoded before");
            assert_eq!(Ticket::decode(&*signed.ticket).as_ref(), Ok(&ticket));
        }
        let _ = Verifying::from_bytes(bytes);
    } else if let Ok(ticket) = Ticket::decode(bytes) {
        if let Ok(verified) = VERIFYING.verify(&SIGNING.sign(&ticket), NOW_UNIX_MS) {
            assert!(verified.lease.is_some_and(|lease| lease.expires_unix_ms > NOW_UNIX_MS));
        }
    }
});
