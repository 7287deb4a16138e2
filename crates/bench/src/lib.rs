//! `sublet bench`: the cost of calls beside the cost of the machine itself, in one run.
//!
//! Absolute times drift with the machine; ratios within one interleaved run are stable. For that reason every latency
//! is measured in short blocks, a block of calls after a block of raw round trips, between the same two pinned threads
//! in the same two processes: the raw side is a function as well. `raw` in `functions/bench.c` answers a flag in shared
//! memory with a flag, `raw_tcp` answers bytes of a TCP connection with bytes.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use sublet_fabric::clock::ticks_ordered;
use sublet_proto::package;
use sublet_proto::v1::PackageFile;
use sublet_proto::{Code, Error, saturating_u64, to_usize};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Allocation, Invoker};

pub mod bandwidth;
pub mod calls;
pub mod chain;
pub mod cold;
pub mod cold_result;
pub mod connections;
pub mod fifo;
pub mod graph;
mod instance;
pub mod latency;
pub mod lease;
pub mod memory;
mod pairs;
mod peer_process;
mod private_instance;
mod raw;
pub mod reject;
mod rounds;
mod simulated_nodes;
pub mod spinning;
mod subject;
pub mod swap;
pub mod template;
pub mod throughput;
pub mod transport;

pub use raw::connect_ofi;
pub use rounds::MAX_PAYLOAD_BYTES;

const FUNCTIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bench.so"));

/// Package of the measured functions.
pub(crate) const PACKAGE: &str = "sublet-bench";
/// Package of the same functions for a raw side that opens a connection.
pub(crate) const DIALLING_PACKAGE: &str = "sublet-bench-network";

/// Package of the same functions in an image.
pub(crate) const CONTAINED_PACKAGE: &str = "sublet-bench-container";
/// Package of a function as a kernel.
pub(crate) const KERNELS_PACKAGE: &str = "sublet-bench-opencl";
const KERNELS: &[u8] = include_bytes!("../functions/bench.cl");

/// Deploys the measured functions.
pub(crate) fn deploy(manager: &ManagerClient) -> Result<(), Error> {
    deploy_as(manager, PACKAGE, "")?;
    deploy_as(manager, DIALLING_PACKAGE, "network = true\n")
}

/// Deploys the functions for a pinned image.
pub(crate) fn deploy_in_image(manager: &ManagerClient, image: &str) -> Result<(), Error> {
    deploy_as(manager, CONTAINED_PACKAGE, &format!("image = \"{image}\"\n"))
}

/// Deploys the function that is a kernel.
pub(crate) fn deploy_kernels(manager: &ManagerClient) -> Result<(), Error> {
    let manifest = format!(
        "name = \"{KERNELS_PACKAGE}\"\nkind = \"opencl\"\nlibrary = \"bench.cl\"\n\
         [[function]]\nname = \"echo\"\nbytes_per_item = 1\n"
    );
    let file = PackageFile { path: "bench.cl".to_owned(), data: KERNELS.to_vec(), executable: false };
    manager.deploy(package::encode(&package::from_files(&manifest, vec![file])?)).map(drop)
}

fn deploy_as(manager: &ManagerClient, name: &str, more: &str) -> Result<(), Error> {
    let library = format!("{name}.so");
    let manifest = format!("name = \"{name}\"\nlibrary = \"{library}\"\n{more}");
    let file = PackageFile { path: library, data: FUNCTIONS.to_vec(), executable: true };
    manager.deploy(package::encode(&package::from_files(&manifest, vec![file])?)).map(drop)
}

/// Allocates a lease of the measured functions.
pub(crate) fn allocate(invoker: &mut Invoker, allocation: &Allocation) -> Result<(), Error> {
    deploy(invoker.manager())?;
    invoker.allocate(allocation)
}

/// Times in ticks, which are summarized in nanoseconds.
pub(crate) struct Samples {
    ticks: Vec<u64>,
}

/// Median and 99th percentile, in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Summary {
    /// Half of the samples are not above it.
    pub median_ns: f64,
    /// 99 of 100 samples are not above it.
    pub p99_ns: f64,
}

impl Samples {
    pub(crate) fn with_capacity(samples: usize) -> Samples {
        Samples { ticks: Vec::with_capacity(samples) }
    }

    /// Number of samples.
    pub(crate) fn len(&self) -> usize {
        self.ticks.len()
    }

    /// Adds another's samples.
    pub(crate) fn extend(&mut self, other: Samples) {
        self.ticks.extend(other.ticks);
    }

    /// Measures from `since_ticks` to now.
    #[inline(always)]
    pub(crate) fn since(&mut self, since_ticks: u64) {
        self.ticks.push(ticks_ordered().saturating_sub(since_ticks));
    }

    pub(crate) fn push(&mut self, sample: u64) {
        self.ticks.push(sample);
    }

    /// Summarizes the samples, each divided by `per_ns`, which is 1 where the samples are nanoseconds.
    pub(crate) fn summary(&mut self, per_ns: f64) -> Summary {
        debug_assert!(per_ns > 0.0, "{per_ns} ticks in a nanosecond");
        self.ticks.sort_unstable();
        let at = |share: f64| {
            let index = to_usize(saturating_u64(self.ticks.len() as f64 * share));
            self.ticks.get(index.min(self.ticks.len().saturating_sub(1))).map_or(0.0, |&t| t as f64 / per_ns)
        };
        let summary = Summary { median_ns: at(0.5), p99_ns: at(0.99) };
        debug_assert!(summary.median_ns <= summary.p99_ns, "the percentiles are not in order: {summary:?}");
        summary
    }
}

/// A core that the calling thread is pinned to.
#[derive(Clone, Copy, Debug)]
pub enum PinnedCore {
    /// The first core that the process may use.
    First,
    /// The last core.
    Last,
}

/// Pins the client to the first core: workers get cores from the last one down.
pub(crate) fn pin_client() -> Result<(), Error> {
    pin(PinnedCore::First)
}

/// Pins the calling thread to a core of this process, even if its parent thread is pinned to another.
///
/// # Errors
/// `system`: the kernel refuses it.
pub fn pin(to: PinnedCore) -> Result<(), Error> {
    pin_process(None, to)
}

/// Pins the only thread of a process, or else the calling thread.
pub(crate) fn pin_process(process: Option<Pid>, to: PinnedCore) -> Result<(), Error> {
    let core = match (to, cores().map_err(unpinnable)?) {
        (_, []) => return Ok(()),
        (PinnedCore::First, [first, ..]) => *first,
        (PinnedCore::Last, [.., last]) => *last,
    };
    run_on(process, &[core])
}

/// Lets the calling thread run on every core of this process again.
pub(crate) fn unpin() -> Result<(), Error> {
    run_on(None, cores().map_err(unpinnable)?)
}

fn run_on(process: Option<Pid>, cores: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    sched_setaffinity(process, &set).map_err(unpinnable)
}

fn unpinnable(error: Errno) -> Error {
    Error::new(Code::System, format!("pinning a thread to a core: {error}"))
}

/// The cores that this process had before any of its threads was pinned: threads inherit what their starter has left.
fn cores() -> Result<&'static [usize], Errno> {
    static CORES: OnceLock<Result<Vec<usize>, Errno>> = OnceLock::new();
    let look = || {
        let allowed = sched_getaffinity(None)?;
        Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
    };
    CORES.get_or_init(look).as_deref().map_err(|error| *error)
}

/// Formats nanoseconds for display.
pub fn human_ns(ns: f64) -> String {
    match ns {
        ns if ns < 10_000.0 => format!("{ns:.0} ns"),
        ns if ns < 10_000_000.0 => format!("{:.1} us", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity};
    use std::thread;

    #[test]
    fn thread_of_a_pinned_one_can_use_the_last_core() {
        let of_process = sched_getaffinity(None).unwrap();
        let last = (0..CpuSet::MAX_CPU).rev().find(|&core| of_process.is_set(core)).unwrap();
        let pinned = || {
            pin(PinnedCore::Last).unwrap();
            sched_getaffinity(None).unwrap()
        };
        let far = thread::scope(|scope| {
            let near = scope.spawn(|| {
                pin(PinnedCore::First).unwrap();
                scope.spawn(pinned).join().unwrap()
            });
            near.join().unwrap()
        });
        assert!(far.is_set(last) && far.count() == 1, "not on core {last} alone");
    }
}
