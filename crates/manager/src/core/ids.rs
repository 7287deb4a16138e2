//! The names of things in the core: small, copied, compared in a cycle.

use std::fmt;
use std::str::FromStr;

use sublet_proto::{Code, Error};

const HEX_DIGITS: usize = 32;

macro_rules! hex_id {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<$name, Error> {
                parse($what, text).map($name)
            }
        }
    )*};
}

hex_id! {
    /// A lease. Its 48 highest bits are the time of the grant, so that leases sort by it.
    LeaseId, "lease";
    /// A request, as its client names it.
    RequestId, "request";
    /// One start of an agent.
    InstanceId, "agent's instance";
}

fn parse(what: &str, text: &str) -> Result<u128, Error> {
    let is_hex = text.len() == HEX_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let id = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten();
    id.ok_or_else(|| {
        let shown: String = text.chars().take(2 * HEX_DIGITS).collect();
        Error::new(
            Code::InvalidArgument,
            format!("{shown:?} names no {what}: it is {HEX_DIGITS} hexadecimal digits"),
        )
    })
}

const TIME_BITS: u32 = 48;
const CHANCE_BITS: u32 = u128::BITS - TIME_BITS;

impl LeaseId {
    /// Creates the ID of a lease that is granted now; the lower bits are random.
    pub fn new(now_ms: u64, chance: u128) -> LeaseId {
        LeaseId(u128::from(now_ms) << CHANCE_BITS | chance & ((1 << CHANCE_BITS) - 1))
    }

    /// Returns the time of the grant, in milliseconds since 1970.
    pub fn granted_ms(self) -> u64 {
        (self.0 >> CHANCE_BITS) as u64
    }
}

/// A node of this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeKey(pub(super) u32);

/// A rack of this core. Nodes that name no rack share the key `RackKey::NONE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RackKey(pub(super) u16);

impl RackKey {
    pub(super) const NONE: RackKey = RackKey(0);
}

/// A tenant of this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantKey(pub(super) u32);

/// A kind of processing unit and its architecture: nodes of one class run the same packages at one price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassKey(pub(super) u16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_its_digits() {
        let id = LeaseId::new(5, u128::MAX);
        assert_eq!(id.to_string().parse::<LeaseId>().unwrap(), id);
        assert!(LeaseId::new(6, 0) > id);
        for text in ["", "12", "+0000000000000000000000000000001", &"g".repeat(32), &"0".repeat(33)] {
            assert_eq!(text.parse::<LeaseId>().unwrap_err().code, Code::InvalidArgument, "{text}");
        }
    }
}
