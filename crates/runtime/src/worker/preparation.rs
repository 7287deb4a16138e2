//! Steps by which every worker process prepares: limits, cores, the package's manifest and passed descriptors.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;
use sublet_proto::package::INFO_FILE;
use sublet_proto::v1;
use sublet_proto::{Code, Error, decode};

/// Memory that a worker process needs for itself beside the lease's, in bytes: its stacks and the dynamic loader's
/// tables.
const OWN_MEMORY_BYTES: u64 = 16 << 20;
/// Stack of each thread, in bytes.
pub(super) const STACK_BYTES: u64 = 8 << 20;

/// Reads the description of an unpacked package.
pub(super) fn read_manifest(folder: &Path) -> Result<v1::PackageInfo, Error> {
    let path = folder.join(INFO_FILE);
    let bytes = std::fs::read(&path)
        .map_err(|error| Error::new(Code::System, format!("reading {}: {error}", path.display())))?;
    decode("a package's manifest", &bytes)
}

/// Limits the process's allocations to the lease's memory without the copies of its client's buffers, unless its control group
/// alone does.
pub(super) fn limit_memory(setup: &v1::WorkerSetup, copies_bytes: u64) -> Result<(), Error> {
    if setup.uncounted_addresses {
        return Ok(());
    }
    let stacks = STACK_BYTES.saturating_mul(setup.cores.len() as u64);
    let own = OWN_MEMORY_BYTES.saturating_add(stacks);
    let own = own.saturating_add(inherited_bytes());
    // Swapped memory is counted by its pager. The array's addresses were inherited, too.
    let data = setup.memory_bytes.saturating_sub(copies_bytes).saturating_sub(setup.local_bytes);
    // The sandbox may have a limit of its own.
    let most = rustix::process::getrlimit(Resource::Data).maximum.unwrap_or(u64::MAX);
    let data = data.saturating_add(own).min(most);
    let limit = Rlimit { current: Some(data), maximum: Some(data) };
    rustix::process::setrlimit(Resource::Data, limit)
        .map_err(|error| Error::new(Code::System, format!("RLIMIT_DATA: {error}")))
}

/// Memory that the process had before it was a worker, in bytes: a copy of a warm interpreter has its modules, and a
/// process that swaps has the array.
fn inherited_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let data = status.lines().find_map(|line| line.strip_prefix("VmData:")?.strip_suffix("kB"));
        data.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or_default().saturating_mul(1024)
    })
}

/// Binds this thread to these cores. Threads and processes that it starts inherit them.
pub(super) fn pin(cores: &[u32]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for &core in cores {
        let index = core as usize;
        if index >= CpuSet::MAX_CPU {
            return Err(Error::new(Code::Protocol, format!("there is no core {core}")));
        }
        set.set(index);
    }
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| Error::new(Code::System, format!("binding a worker to cores {cores:?}: {error}")))
}

/// The exit status of a worker process.
pub(super) fn status(ended: Result<u8, Error>) -> u8 {
    match ended {
        Ok(status) => status,
        Err(error) => {
            eprintln!("sublet-worker: {error}");
            error.code.exit_status()
        }
    }
}

/// Takes the descriptors of a message.
pub(super) fn descriptors<const N: usize>(what: &str, fds: Vec<OwnedFd>) -> Result<[OwnedFd; N], Error> {
    <[OwnedFd; N]>::try_from(fds).map_err(|fds| {
        Error::new(Code::Protocol, format!("{what} with {} descriptors instead of {N}", fds.len()))
    })
}
