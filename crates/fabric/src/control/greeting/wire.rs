//! Encoding of a greeting and of its answer. Numbers are little-endian.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use sublet_proto::text::printable_line;
use sublet_proto::{Code, Error, version};

/// Version of this protocol: the greeting, the control messages and the frames after it. Ends of different versions
/// refuse each other.
pub const VERSION: u32 = version::CALLS;

/// Bytes that begin every greeting and answer. No text and no TLS record begins with them.
const MAGIC: [u8; 8] = *b"\x89Sublet\n";

const VERSION_AT: usize = 8;
/// Size of the magic and the version together.
const BEGINNING: usize = 12;
const KIND_AT: usize = 12;
const LEASE_AT: usize = 16;
const WORKER_AT: usize = 32;
const ZERO_AT: usize = 36;
const COUNTER_AT: usize = 40;
const PROOF_AT: usize = 48;
/// Size of a greeting.
pub const HELLO_BYTES: usize = 80;

const CODE_AT: usize = 12;
const REASON_AT: usize = 16;
/// Size of an answer.
pub const ANSWER_BYTES: usize = 256;

const CONTROL: u32 = 1;
const DATA: u32 = 2;
const BRIDGE: u32 = 3;

/// Offset of a bridge's first node, in place of the lease.
const FROM_AT: usize = LEASE_AT;
const TO_AT: usize = FROM_AT + 4;

const _: () = assert!(KIND_AT == BEGINNING && CODE_AT == BEGINNING && VERSION_AT == MAGIC.len());
const _: () = assert!(HELLO_BYTES == PROOF_AT + 32 && PROOF_AT == COUNTER_AT + 8);

/// Secret of a lease, known only to its client and its agent.
pub type Secret = [u8; 32];

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPurpose {
    /// The messages between a client and its lease's agent. TLS follows.
    Control,
    /// The calls of one worker.
    Data(DataLink),
    /// A bridge to another node: the receiver forwards the bytes that follow, which begin with a greeting.
    Bridge(BridgeLink),
}

/// The nodes that a bridge connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BridgeLink {
    /// Node that connects, by the id of its processor.
    pub from: u32,
    /// Node to which the bridge leads.
    pub to: u32,
    /// Counter of the connecting node's bridges, from 1 on, strictly increasing.
    pub counter: u64,
}

/// The worker that a data connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataLink {
    /// The lease's id.
    pub lease: [u8; 16],
    /// The worker's number in its lease.
    pub worker: u32,
    /// Counter of the connections that a client makes for this lease, from 1 on, strictly increasing.
    pub counter: u64,
}

/// A greeting as the agent has received it.
#[derive(Debug)]
pub struct Greeting {
    /// Purpose of the connection. For data and bridges it is a claim until [`Greeting::is_by`] has confirmed it.
    pub kind: ConnectionPurpose,
    bytes: [u8; HELLO_BYTES],
}

impl Greeting {
    /// Decodes a greeting; see [`Greeting::receive`].
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Greeting, Error> {
        check_beginning(bytes, &|| "a client".into())?;
        let kind = match word(bytes, KIND_AT) {
            CONTROL if bytes[LEASE_AT..].iter().all(|&byte| byte == 0) => ConnectionPurpose::Control,
            DATA if word(bytes, ZERO_AT) == 0 => ConnectionPurpose::Data(DataLink {
                lease: array(bytes, LEASE_AT),
                worker: word(bytes, WORKER_AT),
                counter: u64::from_le_bytes(array(bytes, COUNTER_AT)),
            }),
            BRIDGE if bytes[TO_AT + 4..COUNTER_AT].iter().all(|&byte| byte == 0) => {
                ConnectionPurpose::Bridge(BridgeLink {
                    from: word(bytes, FROM_AT),
                    to: word(bytes, TO_AT),
                    counter: u64::from_le_bytes(array(bytes, COUNTER_AT)),
                })
            }
            kind => {
                return Err(Error::new(Code::Protocol, format!("a greeting of kind {kind} is malformed")));
            }
        };
        Ok(Greeting { kind, bytes: *bytes })
    }

    /// Whether the sender of the greeting knows this secret. Takes the same time for a wrong secret as for the right
    /// one. Always false for a control connection, which TLS authenticates.
    pub fn is_by(&self, secret: &Secret) -> bool {
        let (signed, proof) = self.bytes.split_at(PROOF_AT);
        !matches!(self.kind, ConnectionPurpose::Control) && mac(secret, signed).verify_slice(proof).is_ok()
    }
}

/// The greeting for a connection of this kind.
pub(super) fn hello(kind: &ConnectionPurpose, secret: Option<&Secret>) -> Result<[u8; HELLO_BYTES], Error> {
    let mut bytes = [0; HELLO_BYTES];
    begin(&mut bytes);
    match (kind, secret) {
        (ConnectionPurpose::Control, _) => put(&mut bytes, KIND_AT, &CONTROL.to_le_bytes()),
        (ConnectionPurpose::Data(link), Some(secret)) => {
            put(&mut bytes, KIND_AT, &DATA.to_le_bytes());
            put(&mut bytes, LEASE_AT, &link.lease);
            put(&mut bytes, WORKER_AT, &link.worker.to_le_bytes());
            put(&mut bytes, COUNTER_AT, &link.counter.to_le_bytes());
            sign(&mut bytes, secret);
        }
        (ConnectionPurpose::Bridge(link), Some(secret)) => {
            put(&mut bytes, KIND_AT, &BRIDGE.to_le_bytes());
            put(&mut bytes, FROM_AT, &link.from.to_le_bytes());
            put(&mut bytes, TO_AT, &link.to.to_le_bytes());
            put(&mut bytes, COUNTER_AT, &link.counter.to_le_bytes());
            sign(&mut bytes, secret);
        }
        (ConnectionPurpose::Data(_), None) => {
            return Err(Error::new(Code::InvalidArgument, "a greeting for data needs the lease's secret"));
        }
        (ConnectionPurpose::Bridge(_), None) => {
            return Err(Error::new(
                Code::InvalidArgument,
                "a greeting for a bridge needs the neighbours' secret",
            ));
        }
    }
    Ok(bytes)
}

fn sign(bytes: &mut [u8; HELLO_BYTES], secret: &Secret) {
    let proof: [u8; 32] = mac(secret, &bytes[..PROOF_AT]).finalize().into_bytes().into();
    put(bytes, PROOF_AT, &proof);
}

/// The agent's answer to a greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GreetingAnswer {
    /// Reason why the connection is refused, if it is.
    pub refusal: Option<Error>,
}

impl GreetingAnswer {
    /// Encodes the answer. A reason that is too long is cut.
    pub fn encode(&self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        begin(&mut bytes);
        if let Some(error) = &self.refusal {
            put(&mut bytes, CODE_AT, &error.code.number().to_le_bytes());
            put(&mut bytes, REASON_AT, cut(&error.message, ANSWER_BYTES - REASON_AT).as_bytes());
        }
        bytes
    }

    /// Decodes an answer. Control characters in the reason are escaped.
    pub fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<GreetingAnswer, Error> {
        check_beginning(bytes, &|| "the agent".into())?;
        let number = word(bytes, CODE_AT);
        let reason = bytes[REASON_AT..].split(|&byte| byte == 0).next().unwrap_or_default();
        let reason = printable_line(&String::from_utf8_lossy(reason)).into_owned();
        Ok(GreetingAnswer { refusal: (number != 0).then(|| Error::new(Code::from_number(number), reason)) })
    }
}

/// Refuses bytes that cannot become a greeting of this version or its answer, as soon as that is certain.
pub(super) fn check_beginning(bytes: &[u8], peer: &dyn Fn() -> String) -> Result<(), Error> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] {
        let said = bytes[..bytes.len().min(16)].escape_ascii();
        return Err(Error::new(
            Code::Protocol,
            format!("{} does not speak Sublet: it said \"{said}\"", peer()),
        ));
    }
    match bytes.len() >= BEGINNING && word(bytes, VERSION_AT) != VERSION {
        true => Err(Error::new(
            Code::VersionMismatch,
            format!(
                "{} speaks version {} of Sublet's network protocol, and this end version {VERSION}",
                peer(),
                word(bytes, VERSION_AT)
            ),
        )),
        false => Ok(()),
    }
}

/// Cuts a text to whole characters of at most `most_bytes` bytes in all.
fn cut(text: &str, most_bytes: usize) -> &str {
    let end =
        (0..=text.len().min(most_bytes)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    &text[..end]
}

fn begin(bytes: &mut [u8]) {
    put(bytes, 0, &MAGIC);
    put(bytes, VERSION_AT, &VERSION.to_le_bytes());
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

fn mac(secret: &Secret, signed: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("a key of any length will do").chain_update(signed)
}
