//! Network interfaces, as the kernel describes them in `/sys/class/net`.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use super::addresses::{InterfaceAddress, addresses};

const INTERFACES: &str = "/sys/class/net";
/// Content of the file `speed` if the kernel does not know the speed.
const UNKNOWN_SPEED: i64 = -1;
const IFF_UP: u32 = 1;
const IFF_LOOPBACK: u32 = 8;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) is_loopback: bool,
    /// Reason why the interface cannot be used.
    pub(super) down: Option<&'static str>,
    pub(super) mtu_bytes: Option<u64>,
    pub(super) bits_per_s: Option<u64>,
    pub(super) addresses: Vec<IpAddr>,
}

/// Returns all network interfaces, sorted by name.
pub(super) fn interfaces() -> io::Result<Vec<Interface>> {
    let assigned = addresses()?;
    let mut found = Vec::new();
    for entry in fs::read_dir(INTERFACES)? {
        // An interface that vanishes meanwhile is left out.
        found.extend(interface(&entry?.path(), &assigned));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn interface(folder: &Path, assigned: &[InterfaceAddress]) -> Option<Interface> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_owned());
    let index: u32 = read("ifindex")?.parse().ok()?;
    let flags = u32::from_str_radix(read("flags")?.trim_start_matches("0x"), 16).ok()?;
    let addresses: Vec<_> =
        assigned.iter().filter(|one| one.interface == index).map(|one| one.address).collect();
    Some(Interface {
        name: folder.file_name()?.to_string_lossy().into_owned(),
        is_loopback: flags & IFF_LOOPBACK != 0,
        down: down(flags, &read("operstate").unwrap_or_default(), &addresses),
        mtu_bytes: read("mtu").and_then(|mtu| mtu.parse().ok()),
        bits_per_s: read("speed").and_then(|speed| bits_per_s(&speed)),
        addresses,
    })
}

fn down(flags: u32, state: &str, addresses: &[IpAddr]) -> Option<&'static str> {
    if flags & IFF_UP == 0 {
        Some("the interface is down")
    } else if matches!(state, "down" | "lowerlayerdown" | "notpresent") {
        Some("the interface has no carrier")
    } else if addresses.is_empty() {
        Some("the interface has no address")
    } else {
        None
    }
}

/// The file's text is in megabits.
fn bits_per_s(speed: &str) -> Option<u64> {
    let speed = speed.parse().ok().filter(|&speed: &i64| speed > 0 && speed != UNKNOWN_SPEED)?;
    u64::try_from(speed).ok()?.checked_mul(1_000_000)
}

/// Returns the interface of the default route, if there is one.
pub(super) fn default_route() -> Option<String> {
    default_in(&fs::read_to_string("/proc/net/route").unwrap_or_default())
}

/// In the table's text: interface, destination and so on, a line for each route; destination and mask of the default
/// route are 0.
fn default_in(table: &str) -> Option<String> {
    let routes = table.lines().skip(1).map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let mut defaults = routes.filter(|route| {
        route.get(1).is_some_and(|to| *to == "00000000")
            && route.get(7).is_some_and(|mask| *mask == "00000000")
    });
    defaults.next().map(|route| route[0].to_owned())
}

/// Whether an address is link-local, and so valid only together with an interface.
pub(super) fn is_link_local(address: &str) -> bool {
    match address.parse() {
        Ok(IpAddr::V4(address)) => address.is_link_local(),
        Ok(IpAddr::V6(address)) => address.is_unicast_link_local(),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), format!("{text}\n")).unwrap();
        }
        folder
    }

    #[test]
    fn an_interface_is_what_its_files_say() {
        let here = InterfaceAddress { interface: 7, address: "192.0.2.1".parse().unwrap() };
        let files =
            [("ifindex", "7"), ("flags", "0x1003"), ("operstate", "up"), ("mtu", "9000"), ("speed", "25000")];
        let up = interface(folder(&files).path(), &[here]).unwrap();
        assert_eq!((up.mtu_bytes, up.bits_per_s, up.down), (Some(9000), Some(25_000_000_000), None));
        assert_eq!((up.is_loopback, up.addresses), (false, vec![here.address]));
        let elsewhere = InterfaceAddress { interface: 8, ..here };
        assert_eq!(
            interface(folder(&files).path(), &[elsewhere]).unwrap().down,
            Some("the interface has no address")
        );
    }

    #[test]
    fn what_keeps_an_interface_from_use_is_said() {
        let address = ["192.0.2.1".parse().unwrap()];
        assert_eq!(down(0x1002, "down", &address), Some("the interface is down"));
        assert_eq!(down(0x1003, "lowerlayerdown", &address), Some("the interface has no carrier"));
        assert_eq!(down(0x9, "unknown", &address), None);
    }

    #[test]
    fn a_speed_that_the_kernel_does_not_know_is_none() {
        assert_eq!((bits_per_s("-1"), bits_per_s(""), bits_per_s("0")), (None, None, None));
        assert_eq!(bits_per_s("100000"), Some(100_000_000_000));
    }

    #[test]
    fn the_default_route_is_found_in_the_kernels_table() {
        let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let table = format!(
            "{head}eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\neth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        );
        assert_eq!(default_in(&table), Some("eth0".to_owned()));
        assert_eq!((default_in(head), default_in("")), (None, None));
    }

    #[test]
    fn the_loopback_of_this_machine_is_found() {
        assert!(interfaces().unwrap().iter().any(|interface| interface.is_loopback));
    }
}
