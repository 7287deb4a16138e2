//! Chooses the transport of a lease's calls: the client's choice, or the best that client and node both have.
//!
//! A client on the node's own operating system shares memory with its workers. Any other client gets the first of the
//! networks that the node offers, best first, which this machine can use, too. An impossible choice is an error that
//! names the transports that the node offers, those that this client can use, and the reason against the others. No
//! other transport is chosen in its place.

use std::cell::OnceCell;
use std::fmt;
use std::str::FromStr;

use sublet_fabric::ofi::{self, ProviderInfo};
use sublet_proto::network::Fabric;
use sublet_proto::v1::{self, NodeNetwork};
use sublet_proto::{Code, Error};

mod check;

/// Transports that any client may use, for messages.
const CLIENT_HAS: &str = "this client can use shm on its own host, tcp, tcp+tls, and what libfabric finds";
/// File in which the kernel reports the id of this start of the operating system.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Variable with the transport for allocations that choose none.
pub const FABRIC_VARIABLE: &str = "SUBLET_FABRIC";
/// Variable with the interface for allocations that name none.
pub const INTERFACE_VARIABLE: &str = "SUBLET_INTERFACE";

/// Transport of a lease's calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FabricChoice {
    /// Memory that is shared with the workers if they are on this machine, and else the best common network.
    #[default]
    Auto,
    /// Shared memory and nothing else.
    Shm,
    /// TCP, even within a machine.
    Tcp {
        /// Whether TLS is requested. A node that insists on TLS gets it in any case.
        encrypted: bool,
    },
    /// A network that libfabric reaches.
    Ofi {
        /// Provider, as libfabric names it. `None` chooses the best that both sides have.
        provider: Option<String>,
    },
}

/// A network between client and node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NetworkPath {
    Tcp { encrypted: bool },
    Ofi { provider: String },
}

/// The providers that libfabric finds on this machine.
pub(crate) trait Providers {
    /// Whether this provider can be used here, and without being named.
    fn usable(&self, provider: &str) -> Result<Usable, String>;

    /// Whether any can be used here, be it by name alone.
    fn any(&self) -> Result<(), String>;
}

/// Condition for the use of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usable {
    /// The provider may be chosen without being named.
    ByItself,
    /// The provider is used only if the client names it.
    ByName,
}

/// This machine's, as they are when they are first asked for: listing them takes libfabric milliseconds.
#[derive(Default)]
pub(crate) struct Here(OnceCell<Result<Vec<ProviderInfo>, String>>);

impl Here {
    fn all(&self) -> Result<&[ProviderInfo], String> {
        let found = self.0.get_or_init(|| ofi::providers().map_err(|error| error.to_string()));
        found.as_deref().map_err(String::clone)
    }
}

impl Providers for Here {
    fn usable(&self, provider: &str) -> Result<Usable, String> {
        let named: Vec<_> = self.all()?.iter().filter(|found| found.name == provider).collect();
        if named.iter().any(|found| found.is_automatic()) {
            return Ok(Usable::ByItself);
        }
        match named.iter().map(|found| &found.usable).find(|usable| usable.is_ok()) {
            Some(_) => Ok(Usable::ByName),
            None => Err(named
                .into_iter()
                .find_map(|found| found.usable.clone().err())
                .unwrap_or_else(|| "libfabric does not have it here".to_owned())),
        }
    }

    fn any(&self) -> Result<(), String> {
        match self.all()?.iter().any(|found| found.usable.is_ok()) {
            true => Ok(()),
            false => Err("libfabric finds no network here".to_owned()),
        }
    }
}

/// A client's choices for a lease that makes none of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientTerms {
    pub(crate) fabric: FabricChoice,
    /// The interface, by its name or one of its addresses, that connections go out by.
    pub(crate) interface: Option<String>,
}

impl FabricChoice {
    /// Whether shared memory would do.
    pub(crate) fn allows_sharing(&self) -> bool {
        matches!(self, FabricChoice::Auto | FabricChoice::Shm)
    }

    /// Chooses the network by which a node is reached: the first that the node offers, that the choice allows, and that
    /// this machine can use. The error says why there is none.
    pub(crate) fn network(
        &self,
        offered: &NodeNetwork,
        here: &impl Providers,
    ) -> Result<NetworkPath, String> {
        let mut why = Vec::new();
        for fabric in offered.fabrics.iter().filter_map(|fabric| fabric.parse::<Fabric>().ok()) {
            match self.by(&fabric, offered.encrypted, here) {
                Ok(network) => return Ok(network),
                Err(reason) => why.push(format!("{fabric}: {reason}")),
            }
        }
        Err(why.join("; "))
    }

    fn by(&self, fabric: &Fabric, insists: bool, here: &impl Providers) -> Result<NetworkPath, String> {
        let meant = match (self, fabric) {
            (FabricChoice::Auto, _) | (FabricChoice::Tcp { .. }, Fabric::Tcp) => true,
            (FabricChoice::Ofi { provider: wanted }, Fabric::Ofi(provider)) => {
                wanted.as_ref().is_none_or(|wanted| wanted == provider)
            }
            _ => false,
        };
        if !meant {
            return Err("another one was asked for".to_owned());
        }
        let wants = matches!(self, FabricChoice::Tcp { encrypted: true });
        match fabric {
            Fabric::Tcp => Ok(NetworkPath::Tcp { encrypted: insists || wants }),
            Fabric::Ofi(provider) => match (here.usable(provider)?, self) {
                (Usable::ByName, FabricChoice::Auto) => Err("it has to be asked for".to_owned()),
                _ => Ok(NetworkPath::Ofi { provider: provider.clone() }),
            },
        }
    }
}

impl FromStr for FabricChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<FabricChoice, Error> {
        match text {
            "auto" => Ok(FabricChoice::Auto),
            "shm" => Ok(FabricChoice::Shm),
            "tcp" => Ok(FabricChoice::Tcp { encrypted: false }),
            "tcp+tls" => Ok(FabricChoice::Tcp { encrypted: true }),
            "ofi" => Ok(FabricChoice::Ofi { provider: None }),
            _ => match text.strip_prefix("ofi:").filter(|provider| !provider.is_empty()) {
                _ if text.ends_with("+tls") => Err(no_fabric(text, "; tcp alone can be encrypted")),
                Some(provider) => Ok(FabricChoice::Ofi { provider: Some(provider.to_owned()) }),
                None => Err(no_fabric(text, "")),
            },
        }
    }
}

fn no_fabric(text: &str, why: &str) -> Error {
    let message =
        format!("{text:?} is no fabric: there are auto, shm, tcp, tcp+tls, ofi and ofi:PROVIDER{why}");
    Error::new(Code::InvalidArgument, message)
}

impl fmt::Display for FabricChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FabricChoice::Auto => f.write_str("auto"),
            FabricChoice::Shm => f.write_str("shm"),
            FabricChoice::Tcp { encrypted: false } => f.write_str("tcp"),
            FabricChoice::Tcp { encrypted: true } => f.write_str("tcp+tls"),
            FabricChoice::Ofi { provider: None } => f.write_str("ofi"),
            FabricChoice::Ofi { provider: Some(provider) } => write!(f, "ofi:{provider}"),
        }
    }
}

impl NetworkPath {
    /// The choice as the node's agent receives it.
    pub(crate) fn message(&self) -> v1::FabricChoice {
        match self {
            NetworkPath::Tcp { encrypted } => Fabric::Tcp.choice(*encrypted),
            NetworkPath::Ofi { provider } => Fabric::Ofi(provider.clone()).choice(false),
        }
    }

    /// The choice as a client names it.
    pub(crate) fn choice(&self) -> FabricChoice {
        match self {
            NetworkPath::Tcp { encrypted } => FabricChoice::Tcp { encrypted: *encrypted },
            NetworkPath::Ofi { provider } => FabricChoice::Ofi { provider: Some(provider.clone()) },
        }
    }
}

impl ClientTerms {
    /// Takes the allocation's choices, or the environment's for those that the allocation does not make.
    pub(crate) fn new(fabric: Option<FabricChoice>, interface: Option<String>) -> Result<ClientTerms, Error> {
        let fabric = match fabric {
            Some(fabric) => fabric,
            None => match variable(FABRIC_VARIABLE) {
                Some(text) => text.parse().map_err(|error: Error| {
                    Error::new(error.code, format!("{FABRIC_VARIABLE}: {}", error.message))
                })?,
                None => FabricChoice::Auto,
            },
        };
        Ok(ClientTerms { fabric, interface: interface.or_else(|| variable(INTERFACE_VARIABLE)) })
    }
}

/// Returns the error that a node cannot be reached, with its transports, those of this client, and the reasons against
/// each.
pub(crate) fn unavailable(choice: &FabricChoice, grant: &v1::LeaseGrant, why: &[String]) -> Error {
    let node = grant.lease.as_ref().map_or("", |lease| lease.node.as_str());
    let offers = match &grant.network {
        Some(network) if !network.fabrics.is_empty() => {
            format!("{}, and shm to clients on its own host", network.fabrics.join(", "))
        }
        _ => "shm to clients on its own host alone".to_owned(),
    };
    let message = format!(
        "no network carries calls to node {node} by {choice}: it offers {offers}; {CLIENT_HAS}: {}",
        why.join("; ")
    );
    Error::new(Code::FabricUnavailable, message)
}

/// Returns whether a node's operating system is this one. An empty `host` comes from a node that does not report its
/// id: for it, the caller relies on the node's socket.
pub(crate) fn is_own_host(host: &str) -> bool {
    host.is_empty() || own_host().is_ok_and(|own| own == host)
}

/// The id of this start of this operating system: no other that runs has it, nor this one after its next start.
pub fn own_host() -> Result<String, Error> {
    let id = std::fs::read_to_string(BOOT_ID)
        .map_err(|error| Error::new(Code::System, format!("reading {BOOT_ID}: {error}")))?;
    Ok(id.trim().to_owned())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(fabrics: &[&str], encrypted: bool) -> NodeNetwork {
        let fabrics = fabrics.iter().map(|&fabric| fabric.to_owned()).collect();
        NodeNetwork { address: "node:1".into(), certificate: vec![1], fabrics, encrypted }
    }

    #[test]
    fn choices_are_displayed_as_parsed_and_others_rejected() {
        for text in ["auto", "shm", "tcp", "tcp+tls", "ofi", "ofi:verbs", "ofi:tcp;ofi_rxm"] {
            assert_eq!(text.parse::<FabricChoice>().unwrap().to_string(), text);
        }
        for text in ["", "TCP", "ofi:", "tls", "shm+tls", "rdma", "ofi+tls", "ofi:verbs+tls"] {
            let error = text.parse::<FabricChoice>().unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(
                error.message.contains("tcp+tls") && error.message.contains(&format!("{text:?}")),
                "{error}"
            );
        }
    }

    /// A machine with a card, and with a provider that is used only by name.
    struct Card;

    impl Providers for Card {
        fn usable(&self, provider: &str) -> Result<Usable, String> {
            match provider {
                "verbs" => Ok(Usable::ByItself),
                "tcp;ofi_rxm" => Ok(Usable::ByName),
                _ => Err("no card".to_owned()),
            }
        }

        fn any(&self) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn chooses_the_best_common_network_encrypted_if_either_requires() {
        let tcp = |encrypted| FabricChoice::Tcp { encrypted };
        for (choice, insists, encrypted) in [
            (FabricChoice::Auto, false, false),
            (FabricChoice::Auto, true, true),
            (tcp(false), false, false),
            (tcp(false), true, true),
            (tcp(true), false, true),
        ] {
            let network = choice.network(&offered(&["ofi:cxi", "tcp"], insists), &Card);
            assert_eq!(network, Ok(NetworkPath::Tcp { encrypted }), "{choice}");
        }
        let ofi = |provider: Option<&str>| FabricChoice::Ofi { provider: provider.map(str::to_owned) };
        let verbs = Ok(NetworkPath::Ofi { provider: "verbs".into() });
        let all = offered(&["ofi:cxi", "ofi:tcp;ofi_rxm", "ofi:verbs", "tcp"], false);
        for choice in [FabricChoice::Auto, ofi(Some("verbs"))] {
            assert_eq!(choice.network(&all, &Card), verbs, "{choice}");
        }
        let rxm = Ok(NetworkPath::Ofi { provider: "tcp;ofi_rxm".into() });
        assert_eq!(ofi(None).network(&all, &Card), rxm);
        assert!(ofi(Some("cxi")).network(&all, &Card).unwrap_err().contains("no card"));
        assert!(tcp(false).network(&offered(&["ofi:verbs"], false), &Card).is_err());
        assert!(FabricChoice::Auto.network(&offered(&[], false), &Card).is_err());
        assert!(FabricChoice::Shm.network(&all, &Card).is_err());
    }

    #[test]
    fn what_cannot_be_is_said_with_what_could() {
        let lease = Some(v1::Lease { node: "n1".into(), ..v1::Lease::default() });
        let network = Some(offered(&["ofi:verbs"], false));
        let grant = v1::LeaseGrant { lease, network, ..v1::LeaseGrant::default() };
        let error = unavailable(&FabricChoice::Tcp { encrypted: false }, &grant, &["no tcp".into()]);
        assert_eq!(error.code, Code::FabricUnavailable);
        for part in ["node n1", "by tcp", "ofi:verbs", "no tcp"] {
            assert!(error.message.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn this_host_is_its_own_and_no_other() {
        assert!(is_own_host(&own_host().unwrap()) && is_own_host(""));
        assert!(!is_own_host("0b0e2c3a-0000-4000-8000-000000000000"));
    }
}
