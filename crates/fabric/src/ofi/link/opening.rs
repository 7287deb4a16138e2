//! Chooses the network of a connection, and opens an interface of it.

use std::ffi::{CString, c_int};
use std::net::IpAddr;
use std::ptr::NonNull;

use super::{MSG, OfiLink, RDM};
use crate::FabricError;
use crate::ofi::ffi::{self, FfiFacts, FfiTable, Query};

/// The network of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OfiNetwork {
    /// libfabric's full name of the provider: "verbs", "efa", "tcp;ofi_rxm".
    pub provider: String,
    /// The interface, as the provider names its domain, or its IP address. `None`: the interface that leads to the
    /// peer, or the first.
    pub interface: Option<String>,
    /// Address of the peer, if known. It selects among the interfaces.
    pub toward: Option<IpAddr>,
}

impl OfiNetwork {
    /// Selects the provider's interface that leads to the peer.
    pub fn of(provider: &str) -> OfiNetwork {
        OfiNetwork { provider: provider.into(), ..OfiNetwork::default() }
    }

    /// Selects the interface that leads to this peer.
    pub fn toward(mut self, peer: IpAddr) -> OfiNetwork {
        self.toward = Some(peer);
        self
    }
}

impl OfiLink {
    /// Opens an interface of the provider, without a connection.
    pub fn open(network: &OfiNetwork) -> Result<OfiLink, FabricError> {
        let table = ffi::table()?;
        let named = network.interface.as_deref().filter(|name| name.parse::<IpAddr>().is_ok());
        let toward = network.toward.and_then(source_toward).map(|address| address.to_string());
        let sources: &[Option<&str>] = match (named, &toward) {
            (Some(_), _) => &[named],
            // The route to the peer may use an interface that is not the provider's; then its first one is used.
            (None, Some(toward)) => &[Some(toward), None],
            (None, None) => &[None],
        };
        let tries = [RDM, MSG].into_iter().flat_map(|kind| sources.iter().map(move |source| (kind, *source)));
        let mut last = -ffi::ENODATA;
        for (kind, source) in tries {
            match open_one(table, network, kind, source)? {
                Ok(link) => return Ok(link),
                // The error of an interface that failed is more useful than the one of an interface that was not found.
                Err(rc) if last == -ffi::ENODATA => last = rc,
                Err(_) => {}
            }
        }
        Err(open_error(table, network, last))
    }
}

/// Opens an interface. The outer error ends the search, the inner one lets it continue.
fn open_one(
    table: &'static FfiTable,
    network: &OfiNetwork,
    kind: u32,
    source: Option<&str>,
) -> Result<Result<OfiLink, c_int>, FabricError> {
    let text = |text: &str| {
        CString::new(text).map_err(|_| FabricError::Protocol(format!("{text:?} is not a name of a network")))
    };
    let provider = text(&network.provider)?;
    let domain = network.interface.as_deref().filter(|name| name.parse::<IpAddr>().is_err());
    let domain = domain.map(text).transpose()?;
    let source = source.map(text).transpose()?;
    let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |text| text.as_ptr());
    let query = Query {
        provider: provider.as_ptr(),
        domain: pointer(&domain),
        source: pointer(&source),
        kind,
        want_descriptor: 1,
    };
    let (mut raw, mut facts) = (std::ptr::null_mut(), FfiFacts::empty());
    // SAFETY: the query's strings outlive the call, and both results are writable.
    let rc = unsafe { (table.open)(&raw const query, &raw mut raw, &raw mut facts) };
    match NonNull::new(raw).filter(|_| rc == 0) {
        Some(raw) => {
            let separates_data = dies_of_null_contexts(&facts.provider());
            if separates_data {
                facts.inject_bytes = 0;
            }
            Ok(Ok(OfiLink { table, raw, registrations: Vec::new(), separates_data, facts }))
        }
        None => Ok(Err(rc)),
    }
}

/// Whether the provider crashes on a failed operation that has no context: ofi_rxm over tcp does.
///
/// `rxm_handle_comp_error` (prov/rxm/src/rxm_cq.c) reads the state of a failed operation through its context without a
/// check. The tcp provider below reports failures whose context is null in two cases, and then the process is killed by
/// SIGSEGV inside of `fi_cq_read` or `fi_close`:
/// - A connection breaks while a write is queued that was injected (`fi_inject_write`, `fi_inject_writedata`):
///   `tcpx_rma_inject_common` (prov/tcp/src/tcpx_rma.c) does not mark it with `TCPX_INJECT_OP`, as the functions that
///   inject messages do, so `tcpx_cq_report_error` does not suppress its failure.
/// - An end is closed while a write with immediate data is half received: `tcpx_ep_flush_all_queues` reports the write
///   as canceled, although it is the peer's operation and has no context here.
///
/// Both were found in libfabric 1.17.0 with a debugger. Later versions call the functions `xnet_` instead of `tcpx_`;
/// `xnet_rma_inject_common` still lacks the mark on the main branch of August 2026. So over such a provider nothing is
/// injected, and immediate data follows in a write of its own that has no bytes, which cannot be half received.
///
/// Without ofi_rxm, the null context comes to this provider, which ends the connection. libfabric's verbs provider does
/// not report failed injections, and takes posted receives for immediate data, which have contexts.
fn dies_of_null_contexts(provider: &str) -> bool {
    provider.ends_with(";ofi_rxm") && !provider.starts_with("verbs")
}

fn open_error(table: &FfiTable, network: &OfiNetwork, rc: c_int) -> FabricError {
    let OfiNetwork { provider, interface, .. } = network;
    let on = interface.as_ref().map(|name| format!(" on interface {name}")).unwrap_or_default();
    if rc == -ffi::ENODATA {
        return FabricError::Unsupported(format!(
            "libfabric finds nothing here that provider {provider}{on} could use; `sublet fabrics` lists what it finds"
        ));
    }
    FabricError::system(format!("opening {provider}{on}"), std::io::Error::other(table.text(rc)))
}

/// The address of this machine from which packets to the peer are sent. Sends nothing.
fn source_toward(peer: IpAddr) -> Option<IpAddr> {
    const ANY_PORT: u16 = 9;
    let any: IpAddr = if peer.is_ipv4() { [0u8; 4].into() } else { [0u8; 16].into() };
    let socket = std::net::UdpSocket::bind((any, 0)).ok()?;
    socket.connect((peer, ANY_PORT)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_this_machine_is_this_machine() {
        assert_eq!(source_toward([127, 0, 0, 1].into()), Some([127, 0, 0, 1].into()));
    }
}
