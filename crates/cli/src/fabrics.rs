//! `sublet fabrics`: lists the fabrics that could carry calls here, why others cannot, and which one would be chosen.
//!
//! Everything is read from the kernel and from libfabric, where there is one; nothing is kept. The client
//! and the node choose the fabric together, anew for each lease: see `sublet_runtime`.

mod addresses;
mod choice;
mod interfaces;
mod measure;
mod providers;
mod rdma;
mod report;

use std::net::IpAddr;

use serde::Serialize;
use sublet_fabric::Provider;
use sublet_fabric::ofi::OfiNetwork;
use sublet_proto::{Code, Error};

use choice::choose;
use interfaces::{Interface, default_route, interfaces, is_link_local};
pub(crate) use measure::FabricMeasurement;
use providers::LocalMachine;
use rdma::{memory_lock, ports};

pub(crate) use report::{Chosen, FabricClients, FabricReport};

/// The fabrics of this machine, and the chosen ones.
#[derive(Debug, Serialize)]
pub(crate) struct Fabrics {
    pub(crate) fabrics: Vec<FabricReport>,
    pub(crate) chosen: Vec<Chosen>,
    /// Memory that this process may lock for RDMA, in bytes; null: without a limit.
    pub(crate) memory_lock_bytes: Option<u64>,
}

/// Lists the fabrics of this machine, and chooses among them.
pub(crate) fn look() -> Result<Fabrics, Error> {
    let failed =
        |error| Error::new(Code::System, format!("the network interfaces cannot be listed: {error}"));
    let interfaces = interfaces().map_err(failed)?;
    let mut fabrics = vec![shared_memory()];
    fabrics.extend(interfaces.iter().flat_map(tcp));
    let machine = LocalMachine { interfaces: &interfaces, ports: &ports(), memory_lock: memory_lock() };
    fabrics.extend(machine.ofi());
    debug_assert!(
        fabrics.iter().all(|fabric| fabric.usable == fabric.reason.is_none()),
        "a fabric that is not usable has a reason, and no other has one: {fabrics:?}"
    );
    let offered = sublet_agent::automatic_fabrics(false);
    let chosen = choose(&offered, &fabrics, default_route().as_deref());
    Ok(Fabrics { fabrics, chosen, memory_lock_bytes: machine.memory_lock.bytes() })
}

/// Measures each usable fabric in turn, and calls `progress` after each. A failed measurement becomes the fabric's
/// warning.
pub(crate) fn measure(fabrics: &mut Fabrics, mut progress: impl FnMut()) {
    for fabric in fabrics.fabrics.iter_mut().filter(|fabric| fabric.usable) {
        match fabric.measure() {
            Ok(measured) => fabric.measured = Some(measured),
            Err(error) => fabric.warning = Some(format!("it could not be measured: {error}")),
        }
        progress();
    }
}

impl FabricReport {
    fn measure(&self) -> Result<FabricMeasurement, Error> {
        if let Some(provider) = &self.provider {
            let network = OfiNetwork { interface: self.interface.clone(), ..OfiNetwork::of(provider) };
            return measure::measure(|bytes| measure::Ofi::connect(&network, bytes));
        }
        match self.address.as_deref().map(str::parse::<IpAddr>) {
            Some(Ok(address)) => measure::measure(|bytes| measure::Tcp::connect(address, bytes)),
            _ => measure::measure(|bytes| Ok(measure::SharedMemoryEnd::connect(bytes))),
        }
    }
}

fn shared_memory() -> FabricReport {
    FabricReport { fabric: Provider::Shm.name(), usable: true, ..FabricReport::default() }
}

/// Returns a fabric for each address. A link-local address is not usable: it is valid only together with an interface.
fn tcp(interface: &Interface) -> Vec<FabricReport> {
    let fabric = |address: Option<&IpAddr>, reason: Option<&str>| FabricReport {
        fabric: Provider::Tcp.name(),
        interface: Some(interface.name.clone()),
        is_loopback: interface.is_loopback,
        address: address.map(IpAddr::to_string),
        bits_per_s: interface.bits_per_s,
        mtu_bytes: interface.mtu_bytes,
        usable: reason.is_none(),
        reason: reason.map(str::to_owned),
        ..FabricReport::default()
    };
    let global: Vec<_> =
        interface.addresses.iter().filter(|address| !is_link_local(&address.to_string())).collect();
    match interface.down {
        None if global.is_empty() => vec![fabric(None, Some("the interface has link-local addresses alone"))],
        Some(_) if global.is_empty() => vec![fabric(None, interface.down)],
        down => global.into_iter().map(|address| fabric(Some(address), down)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, down: Option<&'static str>, address: &str) -> Interface {
        Interface {
            name: name.into(),
            is_loopback: name == "lo",
            down,
            mtu_bytes: Some(1500),
            bits_per_s: None,
            addresses: vec![address.parse().unwrap()],
        }
    }

    #[test]
    fn unusable_address_has_a_reason() {
        let ways =
            |interface: &Interface| tcp(interface).into_iter().map(|way| way.reason).collect::<Vec<_>>();
        assert_eq!(ways(&interface("eth0", None, "192.0.2.1")), [None]);
        let down = interface("eth0", Some("the interface is down"), "192.0.2.1");
        assert_eq!(ways(&down), [Some("the interface is down".to_owned())]);
        let reasons = ways(&interface("eth0", None, "fe80::1"));
        assert!(reasons[0].as_ref().unwrap().contains("link-local"), "{reasons:?}");
    }
}
