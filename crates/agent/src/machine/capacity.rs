//! Determines what a node lends: the cores that this process may use, and most of the memory.

use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity};
use sublet_fabric::packet::MAX_PACKET_FDS;
use sublet_proto::pu::cleaned;
use sublet_proto::{Code, Error, saturating_u64, to_usize};
use sublet_sandbox::Allowance;

/// File in which the kernel reports the machine's memory.
const MEMORY_INFO: &str = "/proc/meminfo";
/// File in which the kernel reports the machine's processors.
const PROCESSOR_INFO: &str = "/proc/cpuinfo";
/// Bytes that stay free on the machine when segments allocate their pages.
const SPARE_BYTES: u64 = 64 << 20;

/// Cores that workers of several leases share, beside those that are lent to one lease each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedCores {
    /// How many cores, 1 to [`MAX_SHARED_CORES`].
    pub cores: u32,
    /// How many workers they take in all: at least one for each core, at most [`MAX_WORKERS_PER_CORE`].
    pub places: u32,
}

/// Shared cores of a node. A worker process is passed a descriptor for each core that it is on, all in one packet.
#[expect(clippy::cast_possible_truncation, reason = "a small constant")]
pub const MAX_SHARED_CORES: u32 = MAX_PACKET_FDS as u32 - 2;
/// Workers on one shared core.
pub const MAX_WORKERS_PER_CORE: u32 = 1024;

/// The numbers of the cores that the node lends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    /// Cores that are lent to one lease each.
    pub(crate) exclusive: Vec<u32>,
    /// Cores that workers of several leases share.
    pub(crate) shared: Vec<u32>,
}

/// Selects the highest-numbered of the cores on which this process may run: `wanted` exclusive ones, then the shared
/// ones. By default all that are not shared are exclusive. A quota of processor time counts as that number of whole
/// cores, because polling workers would use the quota up for each other.
pub(crate) fn cores(wanted: Option<u32>, shared: Option<SharedCores>) -> Result<Cores, Error> {
    let set = sched_getaffinity(None)
        .map_err(|errno| Error::new(Code::System, format!("reading the usable cores failed: {errno}")))?;
    let usable: Vec<u32> = (0..CpuSet::MAX_CPU)
        .rev()
        .filter(|&core| set.is_set(core))
        .filter_map(|core| u32::try_from(core).ok())
        .collect();
    choose(within_quota(usable, Allowance::own().cores), wanted, shared)
}

/// Returns the first of the cores: the number that a quota is worth, and at least one.
fn within_quota(mut usable: Vec<u32>, quota_cores: Option<f64>) -> Vec<u32> {
    if let Some(quota) = quota_cores {
        usable.truncate(to_usize(saturating_u64(quota)).max(1));
    }
    usable
}

fn choose(usable: Vec<u32>, wanted: Option<u32>, shared: Option<SharedCores>) -> Result<Cores, Error> {
    debug_assert!(usable.iter().skip(1).zip(&usable).all(|(core, before)| core <= before), "{usable:?}");
    let shared_count = shared.map_or(Ok(0), |shared| shared.check().map(|()| shared.cores as usize))?;
    let count = wanted.map_or(usable.len().saturating_sub(shared_count), |wanted| wanted as usize);
    let in_all = count.saturating_add(shared_count);
    if in_all == 0 {
        return Err(Error::new(Code::InvalidArgument, "a node without cores cannot lend anything"));
    }
    if in_all > usable.len() {
        let message = format!(
            "{count} cores and {shared_count} shared ones are to be lent, but only {} are usable here (by this process's \
             CPU affinity and its control groups' quota)",
            usable.len()
        );
        return Err(Error::new(Code::InsufficientResources, message));
    }
    let mut exclusive = usable;
    exclusive.truncate(in_all);
    let shared = exclusive.split_off(count);
    debug_assert_eq!((exclusive.len(), shared.len()), (count, shared_count), "cores that were chosen");
    Ok(Cores { exclusive, shared })
}

impl SharedCores {
    fn check(self) -> Result<(), Error> {
        let SharedCores { cores, places } = self;
        let most = u64::from(cores) * u64::from(MAX_WORKERS_PER_CORE);
        if (1..=MAX_SHARED_CORES).contains(&cores) && places >= cores && u64::from(places) <= most {
            return Ok(());
        }
        let message = format!(
            "{cores} shared cores with {places} places: a node shares 1 to {MAX_SHARED_CORES} cores, \
             each with 1 to {MAX_WORKERS_PER_CORE} places"
        );
        Err(Error::new(Code::InvalidArgument, message))
    }
}

/// Least memory that a node lends, in bytes: what is less is a number without its unit.
const MIN_MEMORY_BYTES: u64 = 4 << 20;

/// `wanted` bytes, or three quarters of what there is: the rest is for the node's own programs.
pub(crate) fn memory_bytes(wanted: Option<u64>) -> Result<u64, Error> {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit));
    let usable = Allowance::own().memory_bytes.map_or(machine, |limit| limit.min(machine));
    match wanted {
        None => Ok(usable / 4 * 3),
        Some(wanted) if wanted < MIN_MEMORY_BYTES => {
            let message = format!(
                "cannot lend {wanted} bytes of memory: a node lends at least {MIN_MEMORY_BYTES} bytes (4MiB)"
            );
            Err(Error::new(Code::InvalidArgument, message))
        }
        Some(wanted) if wanted <= usable => Ok(wanted),
        Some(wanted) => {
            let message = format!(
                "cannot lend {wanted} bytes of memory: {usable} are usable here (by the machine and this process's control \
                 groups)"
            );
            Err(Error::new(Code::InsufficientResources, message))
        }
    }
}

/// Least memory for processes on standby, in bytes: an interpreter with large modules.
const MIN_STANDBY_BYTES: u64 = 64 << 20;

/// Memory that is left to lend when processes on standby may take `standby_bytes` of it.
pub(crate) fn without_standby(memory_bytes: u64, standby_bytes: u64) -> Result<u64, Error> {
    if standby_bytes == 0 {
        return Ok(memory_bytes);
    }
    let left = memory_bytes.checked_sub(standby_bytes).filter(|&left| left >= MIN_MEMORY_BYTES);
    match left {
        Some(left) if standby_bytes >= MIN_STANDBY_BYTES => Ok(left),
        Some(_) => {
            let message = format!(
                "cannot keep processes on standby with {standby_bytes} bytes of memory: use at least \
                 {MIN_STANDBY_BYTES} bytes (64MiB), or 0 for none"
            );
            Err(Error::new(Code::InvalidArgument, message))
        }
        None => {
            let message = format!(
                "cannot keep processes on standby with {standby_bytes} of the {memory_bytes} bytes of memory: at least \
                 {MIN_MEMORY_BYTES} bytes must be left to lend"
            );
            Err(Error::new(Code::InvalidArgument, message))
        }
    }
}

/// Checks that this much memory can be allocated now without the kernel killing a process for lack of memory: lent
/// memory was free when the agent started, and other programs may use it meanwhile.
pub(crate) fn check_available(len_bytes: u64) -> Result<(), Error> {
    let available = fs::read_to_string(MEMORY_INFO).ok().and_then(|info| available_bytes(&info));
    match available {
        Some(available) if available < len_bytes.saturating_add(SPARE_BYTES) => {
            let message = format!(
                "{len_bytes} bytes of memory asked, the machine has {available} left, of which {SPARE_BYTES} are spared"
            );
            Err(Error::new(Code::NoCapacity, message))
        }
        // A kernel that does not report it is trusted.
        _ => Ok(()),
    }
}

fn available_bytes(info: &str) -> Option<u64> {
    let kib = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.trim().strip_suffix(" kB")?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

/// The machine's name for its processor; empty if it has none.
pub(crate) fn processor_model() -> String {
    let info = fs::read_to_string(PROCESSOR_INFO).unwrap_or_default();
    model(&info).map(cleaned).unwrap_or_default()
}

fn model(info: &str) -> Option<&str> {
    let named = info.lines().find_map(|line| line.strip_prefix("model name"));
    named?.trim_start().strip_prefix(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(cores: u32, places: u32) -> Option<SharedCores> {
        Some(SharedCores { cores, places })
    }

    #[test]
    fn lends_the_highest_cores_and_at_most_all() {
        let choose = |wanted, shared| choose(vec![7, 3, 0], wanted, shared);
        assert_eq!(choose(Some(2), None).unwrap().exclusive, [7, 3]);
        assert_eq!(choose(None, None).unwrap().exclusive, [7, 3, 0]);
        assert_eq!(choose(Some(0), None).unwrap_err().code, Code::InvalidArgument);
        let error = choose(Some(4), None).unwrap_err();
        assert!(error.code == Code::InsufficientResources && error.message.contains('4'), "{error}");
        assert_eq!(choose(Some(3), shared(1, 1)).unwrap_err().code, Code::InsufficientResources);
    }

    #[test]
    fn a_quota_bounds_the_cores() {
        let cores = |quota| within_quota(vec![7, 3, 0], quota).len();
        assert_eq!([None, Some(2.5), Some(0.5), Some(64.0)].map(cores), [3, 2, 1, 3]);
    }

    #[test]
    fn a_core_is_lent_exclusively_or_shared() {
        let choose = |wanted, shared| {
            let Cores { exclusive, shared } = choose(vec![7, 3, 0], wanted, shared).unwrap();
            (exclusive, shared)
        };
        assert_eq!(choose(Some(1), shared(1, 2)), (vec![7], vec![3]));
        assert_eq!(choose(None, shared(1, 2)), (vec![7, 3], vec![0]));
        assert_eq!(choose(Some(0), shared(2, 2)), (vec![], vec![7, 3]));
        assert_eq!(choose(None, shared(3, 3)), (vec![], vec![7, 3, 0]));
    }

    #[test]
    fn shared_cores_without_places_or_with_too_many_are_refused() {
        for (cores, places) in [(0, 0), (0, 1), (2, 1), (1, 1025), (MAX_SHARED_CORES + 1, 1000)] {
            let error = choose(vec![0; 1000], None, shared(cores, places)).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn memory_that_is_not_there_now_is_not_taken() {
        let info = "MemTotal:       24682592 kB\nMemFree:        18000000 kB\nMemAvailable:   21000000 kB\n";
        assert_eq!(available_bytes(info), Some(21_000_000 * 1024));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
        check_available(4096).unwrap();
        let error = check_available(1 << 50).unwrap_err();
        assert_eq!(error.code, Code::NoCapacity);
        assert!(error.message.contains("1125899906842624"), "{error}");
    }

    #[test]
    fn a_processor_is_called_what_the_kernel_calls_it() {
        let info =
            "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC  9B45\n\nprocessor\t: 1\nmodel name\t: x\n";
        assert_eq!(model(info).map(cleaned).as_deref(), Some("AMD EPYC 9B45"));
        assert_eq!(model("processor\t: 0\nBogoMIPS\t: 50.00\n"), None);
        assert_eq!(model("model name"), None);
    }

    #[test]
    fn this_machine_has_something_to_lend() {
        assert!(!cores(None, None).unwrap().exclusive.is_empty());
        let all = memory_bytes(None).unwrap();
        assert!(all > 0);
        assert_eq!(memory_bytes(Some(MIN_MEMORY_BYTES)).unwrap(), MIN_MEMORY_BYTES);
        for too_little in [0, 1, MIN_MEMORY_BYTES - 1] {
            assert_eq!(memory_bytes(Some(too_little)).unwrap_err().code, Code::InvalidArgument);
        }
        assert_eq!(memory_bytes(Some(u64::MAX)).unwrap_err().code, Code::InsufficientResources);
    }
}
