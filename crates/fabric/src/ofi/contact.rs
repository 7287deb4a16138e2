//! Encodes an endpoint's address for its peer. For all other code it is opaque bytes.

use super::ffi::TOKEN_BYTES;
use crate::FabricError;

const VERSION: u8 = 1;
const MAX_NAME_BYTES: usize = 256;
const MAX_PROVIDER_BYTES: usize = 64;

/// See the [module](self). Encoded little-endian, in the order of its fields; names have their length before them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// libfabric's name of the provider: both ends must use the same.
    pub provider: String,
    /// Kind of the endpoint, as the shim numbers the kinds. Both ends must use the same.
    pub kind: u8,
    /// Address of the endpoint, in the provider's own form.
    pub name: Vec<u8>,
    /// Token that a connecting peer must show to an endpoint that listens.
    pub token: [u8; TOKEN_BYTES],
    /// Key of the memory in which messages for this endpoint land.
    pub landing_key: u64,
    /// Start of that memory.
    pub landing_base: u64,
}

impl Contact {
    /// Encodes the contact.
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(
            self.provider.len() <= MAX_PROVIDER_BYTES && self.name.len() <= MAX_NAME_BYTES,
            "the names of a contact have {} and {} bytes",
            self.provider.len(),
            self.name.len()
        );
        #[expect(clippy::cast_possible_truncation, reason = "asserted: the shim's names are no longer")]
        let (provider_bytes, name_bytes) = (self.provider.len() as u8, self.name.len() as u16);
        let mut bytes = vec![VERSION, self.kind, provider_bytes];
        bytes.extend_from_slice(self.provider.as_bytes());
        bytes.extend_from_slice(&name_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.name);
        bytes.extend_from_slice(&self.token);
        bytes.extend_from_slice(&self.landing_key.to_le_bytes());
        bytes.extend_from_slice(&self.landing_base.to_le_bytes());
        bytes
    }

    /// Decodes a contact that a peer sent.
    pub fn decode(bytes: &[u8]) -> Result<Contact, FabricError> {
        let broken =
            || FabricError::Protocol(format!("{} bytes are not a contact of an ofi end", bytes.len()));
        let mut rest = bytes;
        let [version, kind, provider_bytes] = array(&mut rest).ok_or_else(broken)?;
        if version != VERSION {
            return Err(FabricError::Protocol(format!(
                "a contact of version {version}; this end speaks version {VERSION}"
            )));
        }
        let provider = take(&mut rest, usize::from(provider_bytes)).ok_or_else(broken)?;
        let provider = std::str::from_utf8(provider).map_err(|_| broken())?.to_owned();
        let name_bytes = usize::from(u16::from_le_bytes(array(&mut rest).ok_or_else(broken)?));
        let name = take(&mut rest, name_bytes).ok_or_else(broken)?.to_vec();
        let token = array(&mut rest).ok_or_else(broken)?;
        let landing_key = u64::from_le_bytes(array(&mut rest).ok_or_else(broken)?);
        let landing_base = u64::from_le_bytes(array(&mut rest).ok_or_else(broken)?);
        if !rest.is_empty() || name_bytes > MAX_NAME_BYTES || provider.len() > MAX_PROVIDER_BYTES {
            return Err(broken());
        }
        Ok(Contact { provider, kind, name, token, landing_key, landing_base })
    }

    /// Checks that memory of this length at the stated address ends within the address space: messages are sent to
    /// offsets within it. Whether the memory is the peer's is for the provider to check, by the key.
    pub fn check_landing(&self, len_bytes: u64) -> Result<(), FabricError> {
        match self.landing_base.checked_add(len_bytes) {
            Some(_) => Ok(()),
            None => Err(FabricError::Protocol(format!(
                "a contact whose memory of {len_bytes} bytes begins at {:#x}",
                self.landing_base
            ))),
        }
    }

    /// The IP address of the endpoint, where the provider uses IP addresses as names.
    pub fn ip(&self) -> Option<std::net::IpAddr> {
        let family = u16::from_ne_bytes(self.name.get(..2)?.try_into().ok()?);
        const INET: u16 = 2;
        const INET6: u16 = 10;
        match (family, self.name.len()) {
            (INET, 16) => Some(std::net::IpAddr::from(<[u8; 4]>::try_from(&self.name[4..8]).ok()?)),
            (INET6, 28) => Some(std::net::IpAddr::from(<[u8; 16]>::try_from(&self.name[8..24]).ok()?)),
            _ => None,
        }
    }
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, after) = rest.split_at_checked(count)?;
    *rest = after;
    Some(taken)
}

fn array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    take(rest, N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contact() -> Contact {
        let mut name = vec![0; 16];
        name[..8].copy_from_slice(&[2, 0, 0x1f, 0x90, 10, 0, 0, 1]);
        Contact {
            provider: "tcp;ofi_rxm".into(),
            kind: 0,
            name,
            token: [7; 16],
            landing_key: 1 << 60,
            landing_base: 5,
        }
    }

    #[test]
    fn a_contact_comes_back_and_says_where_it_is() {
        let bytes = contact().encode();
        assert_eq!(Contact::decode(&bytes).unwrap(), contact());
        assert_eq!(contact().ip(), Some([10, 0, 0, 1].into()));
    }

    #[test]
    fn refuses_landing_memory_beyond_the_address_space() {
        let at = |landing_base| Contact { landing_base, ..contact() }.check_landing(8192);
        assert!(at(u64::MAX - 8192).is_ok());
        assert!(at(u64::MAX - 8191).unwrap_err().to_string().contains("8192 bytes"));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = contact().encode();
        bytes[0] = 9;
        let said = Contact::decode(&bytes).unwrap_err().to_string();
        assert!(said.contains("version 9") && said.contains("version 1"), "{said}");
    }

    proptest! {
        #[test]
        fn no_bytes_are_trusted(bytes: Vec<u8>, cut in 0usize..80, at in 0usize..80, value: u8) {
            let _ = Contact::decode(&bytes);
            let mut known = contact().encode();
            prop_assert!(Contact::decode(&known[..cut.min(known.len() - 1)]).is_err());
            let at = at % known.len();
            known[at] = value;
            let _ = Contact::decode(&known).map(|contact| contact.ip());
        }
    }
}
