//! Predicts the default transport of calls: the first that a node offers and this machine can use.

use sublet_fabric::Provider;
use sublet_proto::network;

use super::report::{Chosen, FabricClients, FabricReport};

/// Chooses a fabric for clients of this machine, and one for clients of other machines, if they can connect at all.
/// `offered` is the list that an agent here would offer, best first.
pub(super) fn choose(
    offered: &[network::Fabric],
    fabrics: &[FabricReport],
    default_route: Option<&str>,
) -> Vec<Chosen> {
    let here = Chosen {
        clients: FabricClients::ThisMachine,
        fabric: Provider::Shm.name(),
        provider: None,
        interface: None,
        why: "nothing is faster than memory that both sides share".to_owned(),
    };
    let elsewhere = offered.iter().find_map(|offer| match offer {
        network::Fabric::Ofi(provider) => by_libfabric(provider, fabrics),
        network::Fabric::Tcp => by_tcp(fabrics, default_route),
    });
    std::iter::once(here).chain(elsewhere).collect()
}

fn by_libfabric(provider: &str, fabrics: &[FabricReport]) -> Option<Chosen> {
    let fabric =
        fabrics.iter().find(|fabric| fabric.usable && fabric.provider.as_deref() == Some(provider))?;
    let why =
        "the best network here for memory of other machines; clients that have none of its kind get tcp";
    Some(chosen(fabric, why))
}

/// The kernel's routes choose the interface: the one named here is where most of them lead.
fn by_tcp(fabrics: &[FabricReport], default_route: Option<&str>) -> Option<Chosen> {
    let usable =
        || fabrics.iter().filter(|one| one.usable && one.fabric == Provider::Tcp.name() && !one.is_loopback);
    let routed =
        |fabric: &&FabricReport| default_route.is_some() && fabric.interface.as_deref() == default_route;
    match usable().find(routed) {
        Some(fabric) => {
            Some(chosen(fabric, "no RDMA network is usable; the default route leads through this interface"))
        }
        None => {
            let fabric = usable().max_by_key(|fabric| fabric.bits_per_s)?;
            Some(chosen(fabric, "no RDMA network is usable; no interface that is up is known to be faster"))
        }
    }
}

fn chosen(fabric: &FabricReport, why: &str) -> Chosen {
    debug_assert!(fabric.usable, "a fabric is chosen that is not usable: {fabric:?}");
    Chosen {
        clients: FabricClients::OtherMachines,
        fabric: fabric.fabric,
        provider: fabric.provider.clone(),
        interface: fabric.interface.clone(),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(interface: &str, bits_per_s: Option<u64>) -> FabricReport {
        FabricReport {
            fabric: "tcp",
            interface: Some(interface.into()),
            is_loopback: interface == "lo",
            bits_per_s,
            usable: true,
            ..FabricReport::default()
        }
    }

    fn elsewhere(offered: &[&str], fabrics: &[FabricReport], route: Option<&str>) -> Option<String> {
        let offered: Vec<_> = offered.iter().map(|offer| offer.parse().unwrap()).collect();
        let mut chosen = choose(&offered, fabrics, route);
        assert_eq!((chosen[0].clients, chosen[0].fabric), (FabricClients::ThisMachine, "shm"));
        chosen.drain(..).nth(1).and_then(|chosen| chosen.interface)
    }

    #[test]
    fn other_machines_use_default_route_or_fastest_interface_never_loopback() {
        let fabrics = [tcp("eth0", None), tcp("eth1", Some(1)), tcp("lo", Some(2))];
        assert_eq!(elsewhere(&["tcp"], &fabrics, Some("eth0")).as_deref(), Some("eth0"));
        assert_eq!(elsewhere(&["tcp"], &fabrics, None).as_deref(), Some("eth1"));
        assert_eq!(elsewhere(&["tcp"], &fabrics, Some("lo")).as_deref(), Some("eth1"));
        assert_eq!(elsewhere(&["tcp"], &fabrics[2..], None), None);
    }

    #[test]
    fn what_is_offered_first_and_usable_is_chosen() {
        let rdma = |usable| FabricReport {
            fabric: "ofi",
            provider: Some("verbs".into()),
            interface: Some("mlx5_0".into()),
            usable,
            ..FabricReport::default()
        };
        let offered = ["ofi:verbs", "tcp"];
        let fabrics = |usable| [tcp("eth0", None), rdma(usable)];
        assert_eq!(elsewhere(&offered, &fabrics(true), None).as_deref(), Some("mlx5_0"));
        assert_eq!(elsewhere(&offered, &fabrics(false), None).as_deref(), Some("eth0"));
        assert_eq!(elsewhere(&["tcp"], &fabrics(true), None).as_deref(), Some("eth0"));
    }
}
