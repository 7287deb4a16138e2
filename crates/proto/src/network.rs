//! Describes how clients on other machines reach a node; agent, manager and client use the same description.

use std::fmt;
use std::str::FromStr;

use crate::v1::{FabricChoice, NodeNetwork};
use crate::{Code, Error};

/// Longest `host:port`, in bytes: a host name of the DNS and a port.
pub const MAX_ADDRESS_BYTES: usize = 253 + 6;
/// Largest certificate of an agent, DER, in bytes.
pub const MAX_CERTIFICATE_BYTES: usize = 4096;
/// Fabrics that a node may name.
pub const MAX_FABRICS: usize = 16;
/// Longest name of a provider of libfabric, in bytes.
pub const MAX_PROVIDER_BYTES: usize = 60;

const OFI_PREFIX: &str = "ofi:";

/// Fabric that carries calls between nodes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fabric {
    /// `tcp`
    Tcp,
    /// `ofi:` and libfabric's name of a provider, as `ofi:verbs` or `ofi:tcp;ofi_rxm`.
    Ofi(String),
}

impl Fabric {
    /// Returns the choice by which a client asks for this fabric.
    pub fn choice(&self, encrypted: bool) -> FabricChoice {
        let (name, provider) = match self {
            Fabric::Tcp => ("tcp", ""),
            Fabric::Ofi(provider) => ("ofi", provider.as_str()),
        };
        FabricChoice { name: name.to_owned(), provider: provider.to_owned(), encrypted }
    }

    /// Returns the fabric that a client has asked for; `None` is shared memory.
    ///
    /// # Errors
    /// [`Code::FabricUnavailable`] if this build has no such fabric.
    pub fn chosen(choice: Option<&FabricChoice>) -> Result<Option<Fabric>, Error> {
        let Some(choice) = choice else { return Ok(None) };
        match (choice.name.as_str(), choice.provider.as_str()) {
            ("" | "shm", "") => Ok(None),
            ("tcp", "") => Ok(Some(Fabric::Tcp)),
            ("ofi", provider) if is_provider(provider) => Ok(Some(Fabric::Ofi(provider.to_owned()))),
            (name, provider) => {
                let shown: String = format!("{name} {provider}").chars().take(MAX_PROVIDER_BYTES).collect();
                Err(Error::new(Code::FabricUnavailable, format!("there is no fabric {shown:?}")))
            }
        }
    }
}

impl FromStr for Fabric {
    type Err = Error;

    fn from_str(text: &str) -> Result<Fabric, Error> {
        match text.strip_prefix(OFI_PREFIX) {
            None if text == "tcp" => Ok(Fabric::Tcp),
            Some(provider) if is_provider(provider) => Ok(Fabric::Ofi(provider.to_owned())),
            _ => Err(invalid(format!(
                "{text:?} is no fabric between nodes: tcp, or ofi: and libfabric's name of a provider, as ofi:verbs"
            ))),
        }
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fabric::Tcp => f.write_str("tcp"),
            Fabric::Ofi(provider) => write!(f, "{OFI_PREFIX}{provider}"),
        }
    }
}

/// Whether libfabric could name a provider so: `verbs`, or layers as `tcp;ofi_rxm`.
fn is_provider(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b';');
    (1..=MAX_PROVIDER_BYTES).contains(&name.len()) && name.bytes().all(is_part)
}

/// Splits `host:port` into host and port; the host may be a name, or an address, of version 6 in brackets.
///
/// # Errors
/// [`Code::InvalidArgument`] for any other form, as an address with a scheme.
pub fn host_and_port(address: &str) -> Result<(&str, u16), Error> {
    let shown: String = address.chars().take(MAX_ADDRESS_BYTES).collect();
    let refused = |why: &str| invalid(format!("{shown:?} is no address as HOST:PORT: {why}"));
    if address.len() > MAX_ADDRESS_BYTES {
        return Err(refused(&format!("it has more than {MAX_ADDRESS_BYTES} bytes")));
    }
    let (host, port) = address.rsplit_once(':').ok_or_else(|| refused("it has no port"))?;
    let is_whole = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_whole).ok_or_else(|| refused("a port is 0 to 65535"))?;
    let bare = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(Some(host)) if host.parse::<std::net::Ipv6Addr>().is_ok() => host,
        Some(_) => return Err(refused("in brackets stands an address of IP version 6")),
        None => host,
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if host.len() == bare.len() && (host.is_empty() || !host.bytes().all(is_name)) {
        return Err(refused("its host is neither a name nor an address"));
    }
    debug_assert!(!bare.is_empty() && !bare.contains(['[', ']']), "{address:?} has the host {bare:?}");
    Ok((bare, port))
}

/// Refuses descriptions that no node's network can have.
///
/// # Errors
/// [`Code::InvalidArgument`] with the fault.
pub fn check_network(network: &NodeNetwork) -> Result<(), Error> {
    if host_and_port(&network.address)?.1 == 0 {
        return Err(invalid(format!("{:?} has no port that can be reached", network.address)));
    }
    let bytes = network.certificate.len();
    if !(1..=MAX_CERTIFICATE_BYTES).contains(&bytes) {
        return Err(invalid(format!("a certificate of {bytes} bytes: 1 to {MAX_CERTIFICATE_BYTES}")));
    }
    if !(1..=MAX_FABRICS).contains(&network.fabrics.len()) {
        return Err(invalid(format!("{} fabrics: 1 to {MAX_FABRICS}", network.fabrics.len())));
    }
    network.fabrics.iter().try_for_each(|fabric| fabric.parse::<Fabric>().map(drop))
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_exactly_a_host_and_a_port() {
        for (address, parts) in [
            ("node1.example.org:7441", ("node1.example.org", 7441)),
            ("192.0.2.7:1", ("192.0.2.7", 1)),
            ("[2001:db8::7]:7441", ("2001:db8::7", 7441)),
            ("n:0", ("n", 0)),
        ] {
            assert_eq!(host_and_port(address).unwrap(), parts);
        }
        let long = format!("{}:1", "a".repeat(MAX_ADDRESS_BYTES));
        for address in [
            "",
            ":",
            "n",
            "n:",
            ":1",
            "n:65536",
            "n:+1",
            "n:-1",
            "tcp://n:1",
            "n/x:1",
            "[n]:1",
            "[::1:1",
            "::1:1",
            "a b:1",
            "n\n:1",
            &long,
        ] {
            let error = host_and_port(address).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{address:?}: {error}");
        }
    }

    #[test]
    fn a_fabric_is_read_as_it_is_written() {
        for fabric in [Fabric::Tcp, Fabric::Ofi("verbs".into()), Fabric::Ofi("tcp;ofi_rxm".into())] {
            assert_eq!(fabric.to_string().parse::<Fabric>().unwrap(), fabric);
            assert_eq!(Fabric::chosen(Some(&fabric.choice(false))).unwrap(), Some(fabric));
        }
        assert_eq!(Fabric::chosen(None).unwrap(), None);
        for text in ["", "shm", "ofi", "ofi:", "TCP", "tcp ", "ofi:a b", "ofi:a,b"] {
            assert!(text.parse::<Fabric>().is_err(), "{text:?}");
        }
        let choice = |name: &str, provider: &str| FabricChoice {
            name: name.into(),
            provider: provider.into(),
            encrypted: false,
        };
        for (name, provider) in [("tcp", "x"), ("ofi", ""), ("rdma", ""), ("shm", "x")] {
            let error = Fabric::chosen(Some(&choice(name, provider))).unwrap_err();
            assert_eq!(error.code, Code::FabricUnavailable, "{name} {provider}");
        }
    }

    #[test]
    fn a_network_that_cannot_be_is_refused() {
        let network = NodeNetwork {
            address: "n:1".into(),
            certificate: vec![1; MAX_CERTIFICATE_BYTES],
            fabrics: vec!["tcp".into(); MAX_FABRICS],
            encrypted: false,
        };
        check_network(&network).unwrap();
        let many = vec!["tcp".to_owned(); MAX_FABRICS + 1];
        for wrong in [
            NodeNetwork { address: "n:0".into(), ..network.clone() },
            NodeNetwork { address: "https://n:1".into(), ..network.clone() },
            NodeNetwork { certificate: Vec::new(), ..network.clone() },
            NodeNetwork { certificate: vec![1; MAX_CERTIFICATE_BYTES + 1], ..network.clone() },
            NodeNetwork { fabrics: Vec::new(), ..network.clone() },
            NodeNetwork { fabrics: many, ..network.clone() },
            NodeNetwork { fabrics: vec!["homing pigeon".into()], ..network.clone() },
        ] {
            assert_eq!(check_network(&wrong).unwrap_err().code, Code::InvalidArgument, "{wrong:?}");
        }
    }
}
