//! Lists the providers of libfabric on this machine, beside the kernel's description of the same devices.

use sublet_fabric::Provider;
use sublet_fabric::ofi::{self, ProviderInfo};

use super::interfaces::{Interface, is_link_local};
use super::rdma::{MemoryLock, Port, mtu_warning};
use super::report::FabricReport;

/// The provider of RDMA devices as the kernel knows them.
const VERBS: &str = "verbs";

/// The interfaces, ports and limits of this machine, which libfabric's providers are compared with.
pub(super) struct LocalMachine<'a> {
    pub(super) interfaces: &'a [Interface],
    pub(super) ports: &'a [Port],
    pub(super) memory_lock: MemoryLock,
}

impl LocalMachine<'_> {
    /// A way for each provider and interface that libfabric names, or why there is none.
    pub(super) fn ofi(&self) -> Vec<FabricReport> {
        match ofi::providers() {
            Ok(providers) => {
                let mut fabrics: Vec<FabricReport> = Vec::new();
                for fabric in providers.iter().map(|provider| self.provider(provider)) {
                    // A provider with several kinds of endpoints is found as often.
                    if !fabrics.contains(&fabric) && !fabric.address.as_deref().is_some_and(is_link_local) {
                        fabrics.push(fabric);
                    }
                }
                fabrics
            }
            Err(error) => {
                let reason = Some(error.to_string());
                vec![FabricReport { fabric: Provider::Ofi.name(), reason, ..FabricReport::default() }]
            }
        }
    }

    fn provider(&self, found: &ProviderInfo) -> FabricReport {
        let domain = Some(found.domain.clone()).filter(|domain| !domain.is_empty());
        let port = self.ports.iter().find(|port| Some(&port.device) == domain.as_ref());
        let name = port.and_then(|port| port.interface.as_ref()).or(domain.as_ref());
        let interface = self.interfaces.iter().find(|interface| Some(&interface.name) == name);
        let reason = self.reason(found);
        FabricReport {
            fabric: Provider::Ofi.name(),
            provider: Some(found.name.clone()),
            address: found.address.clone(),
            bits_per_s: found
                .link_bits_per_second
                .or(port.and_then(|port| port.bits_per_s))
                .or(interface.and_then(|interface| interface.bits_per_s)),
            mtu_bytes: found.mtu_bytes.or(interface.and_then(|interface| interface.mtu_bytes)),
            usable: reason.is_none(),
            reason,
            warning: port
                .and(mtus(found, interface))
                .and_then(|(interface, port)| mtu_warning(interface, port)),
            interface: domain,
            is_loopback: interface.is_some_and(|interface| interface.is_loopback),
            measured: None,
        }
    }

    fn reason(&self, found: &ProviderInfo) -> Option<String> {
        match &found.usable {
            Ok(()) if is_rdma(&found.name) => self.memory_lock.too_low(),
            Ok(()) => None,
            Err(why) if found.name != VERBS || !found.domain.is_empty() => Some(why.clone()),
            Err(why) if self.ports.is_empty() => Some(format!("{why}: there is no RDMA device")),
            Err(why) => {
                let states = self.ports.iter().map(|port| format!("{} {}", port.device, port.state));
                Some(format!("{why}: {}", states.collect::<Vec<_>>().join(", ")))
            }
        }
    }
}

/// Whether a provider's memory must stay where it is: software providers copy.
fn is_rdma(provider: &str) -> bool {
    !provider.starts_with(Provider::Tcp.name())
}

/// Returns the MTUs of the interface and of the port, in bytes, where both are known.
fn mtus(found: &ProviderInfo, interface: Option<&Interface>) -> Option<(u64, u64)> {
    Some((interface?.mtu_bytes?, found.mtu_bytes?))
}
