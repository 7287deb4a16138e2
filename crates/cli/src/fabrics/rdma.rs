//! RDMA ports, as the kernel describes them in `/sys/class/infiniband`, and the limit that memory for them has.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use sublet_proto::saturating_u64;

const DEVICES: &str = "/sys/class/infiniband";
/// A state's text begins with its number.
const ACTIVE: &str = "4:";
/// Bytes of headers and checks that a packet of RDMA over Ethernet has beside its payload, as the kernel counts them.
const ROCE_HEADERS_BYTES: u64 = 96;
/// The sizes that a packet's payload may have, in bytes.
const RDMA_MTUS_BYTES: [u64; 5] = [256, 512, 1024, 2048, 4096];
/// The capability of a process to lock memory without a limit.
const CAP_IPC_LOCK: u32 = 14;
/// A lease of one worker with a few buffers registers about as much.
const MEMORY_LOCK_NEEDED_BYTES: u64 = 64 << 20;

/// One port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) device: String,
    pub(super) port: String,
    /// State of the port; `ACTIVE` if it is usable.
    pub(super) state: String,
    pub(super) is_active: bool,
    pub(super) bits_per_s: Option<u64>,
    /// `InfiniBand` or `Ethernet`.
    pub(super) link_layer: String,
    /// The network interface of the same port.
    pub(super) interface: Option<String>,
}

/// Returns all ports, by device.
pub(super) fn ports() -> Vec<Port> {
    let mut found = ports_in(Path::new(DEVICES));
    found.sort_by(|a, b| (&a.device, &a.port).cmp(&(&b.device, &b.port)));
    found
}

/// Where there is no such folder there is no device.
fn ports_in(devices: &Path) -> Vec<Port> {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    folders(devices)
        .flat_map(|device| folders(&device.join("ports")))
        .filter_map(|folder| port(&folder))
        .collect()
}

fn port(folder: &Path) -> Option<Port> {
    let read = |file: &str| fs::read_to_string(folder.join(file)).ok().map(|text| text.trim().to_owned());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let state = read("state")?;
    Some(Port {
        device: name(folder.parent()?.parent()?)?,
        port: name(folder)?,
        is_active: state.starts_with(ACTIVE),
        state: state.split_once(": ").map_or(state.clone(), |(_, word)| word.to_owned()),
        bits_per_s: read("rate").and_then(|rate| bits_per_s(&rate)),
        link_layer: read("link_layer").unwrap_or_default(),
        interface: read("gid_attrs/ndevs/0"),
    })
}

/// Parses a rate such as `100 Gb/sec (4X EDR)`.
fn bits_per_s(rate: &str) -> Option<u64> {
    let (gigabits, _) = rate.split_once(" Gb/sec")?;
    gigabits
        .parse()
        .ok()
        .filter(|gigabits: &f64| *gigabits > 0.0)
        .map(|gigabits| saturating_u64(gigabits * 1e9))
}

/// Returns a warning if the port's packets are smaller than the interface can carry, or larger.
pub(super) fn mtu_warning(interface_bytes: u64, port_bytes: u64) -> Option<String> {
    debug_assert!(RDMA_MTUS_BYTES.is_sorted(), "the largest is searched from the end: {RDMA_MTUS_BYTES:?}");
    let room = interface_bytes.saturating_sub(ROCE_HEADERS_BYTES);
    let fits = RDMA_MTUS_BYTES.into_iter().rev().find(|&mtu| mtu <= room)?;
    let differ = format!(
        "the interface's MTU of {interface_bytes} carries packets of {fits}, the port sends {port_bytes}"
    );
    match port_bytes {
        port if port > fits => {
            Some(format!("{differ}: they are lost; set the interface's MTU to {}", port + ROCE_HEADERS_BYTES))
        }
        port if port < fits => {
            Some(format!("{differ}: take the port down and up, so that it sees the interface's MTU"))
        }
        _ => None,
    }
}

/// Memory that this process may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryLock {
    Unlimited,
    Bytes(u64),
}

/// Reads this process's limit of locked memory from the kernel.
pub(super) fn memory_lock() -> MemoryLock {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    match getrlimit(Resource::Memlock).current {
        Some(bytes) if !is_capable(&status) => MemoryLock::Bytes(bytes),
        _ => MemoryLock::Unlimited,
    }
}

fn is_capable(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or_default();
    bits >> CAP_IPC_LOCK & 1 == 1
}

impl MemoryLock {
    /// Returns why memory cannot be registered, if the limit is too low.
    pub(super) fn too_low(self) -> Option<String> {
        match self {
            MemoryLock::Bytes(bytes) if bytes < MEMORY_LOCK_NEEDED_BYTES => Some(format!(
                "the limit of locked memory (RLIMIT_MEMLOCK, `ulimit -l`) is {} KiB, and buffers of {} KiB must be \
                 registered: raise it by `ulimit -l unlimited`, by a line `* - memlock unlimited` in \
                 /etc/security/limits.conf, or for a service by LimitMEMLOCK=infinity in its unit",
                bytes >> 10,
                MEMORY_LOCK_NEEDED_BYTES >> 10
            )),
            _ => None,
        }
    }

    /// Returns the limit in bytes; `None` without a limit.
    pub(super) fn bytes(self) -> Option<u64> {
        match self {
            MemoryLock::Unlimited => None,
            MemoryLock::Bytes(bytes) => Some(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_what_its_files_say() {
        let devices = tempfile::tempdir().unwrap();
        let port = devices.path().join("mlx5_0/ports/1");
        fs::create_dir_all(port.join("gid_attrs/ndevs")).unwrap();
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("rate", "100 Gb/sec (4X EDR)\n"),
            ("link_layer", "Ethernet\n"),
            ("gid_attrs/ndevs/0", "eth2\n"),
        ] {
            fs::write(port.join(file), text).unwrap();
        }
        let found = ports_in(devices.path());
        let expected = Port {
            device: "mlx5_0".into(),
            port: "1".into(),
            state: "ACTIVE".into(),
            is_active: true,
            bits_per_s: Some(100_000_000_000),
            link_layer: "Ethernet".into(),
            interface: Some("eth2".into()),
        };
        assert_eq!(found, [expected]);
        assert_eq!(ports_in(Path::new("/nonexistent")), []);
    }

    #[test]
    fn a_rate_may_have_a_fraction() {
        assert_eq!(bits_per_s("2.5 Gb/sec (1X SDR)"), Some(2_500_000_000));
        assert_eq!((bits_per_s("fast"), bits_per_s("")), (None, None));
    }

    #[test]
    fn warns_if_mtus_of_port_and_interface_differ() {
        assert_eq!(
            (mtu_warning(1500, 1024), mtu_warning(4200, 4096), mtu_warning(9000, 4096)),
            (None, None, None)
        );
        assert!(mtu_warning(1500, 4096).unwrap().contains("set the interface's MTU to 4192"));
        assert!(mtu_warning(9000, 1024).unwrap().contains("carries packets of 4096, the port sends 1024"));
    }

    #[test]
    fn low_limit_of_locked_memory_is_explained_with_a_remedy() {
        let message = MemoryLock::Bytes(8 << 20).too_low().unwrap();
        for part in ["RLIMIT_MEMLOCK", "8192 KiB", "ulimit -l unlimited", "limits.conf", "LimitMEMLOCK"] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(MemoryLock::Unlimited.too_low(), None);
        assert_eq!(MemoryLock::Bytes(1 << 30).too_low(), None);
        assert!(is_capable("Name:\tx\nCapEff:\t000001ffffffffff\n"));
        assert!(!is_capable("CapEff:\t0000000000000000\n") && !is_capable(""));
    }
}
