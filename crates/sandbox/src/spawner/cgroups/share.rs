//! The processor time of a sandbox beside that of its neighbours. Pure: the two versions write what this module decides.
//!
//! Where several sandboxes want the same core, the kernel shares it out by their weights, whatever number of processes each of
//! them has. A weight is proportional to the workers of a sandbox, so a sandbox with 104 processes and one worker has the share of
//! another one with one worker. A sandbox is bound to its cores by `cpuset`; a quota replaces that where no cpuset is to be had.

use std::ops::RangeInclusive;

use crate::SandboxLimits;

/// Shares of a worker in version 1, and what the kernel takes.
const SHARES: u64 = 1024;
const KERNEL_SHARES: RangeInclusive<u64> = 2..=262_144;
/// Weight of a worker in version 2, and what the kernel takes.
const WEIGHT: u64 = 100;
const KERNEL_WEIGHTS: RangeInclusive<u64> = 1..=10_000;
/// The time in which a quota is counted, in microseconds.
pub(super) const PERIOD_US: u64 = 100_000;

/// Returns `cpu.shares` of a group with this number of workers, version 1.
pub(super) fn shares(workers: usize) -> u64 {
    proportional(workers, SHARES, &KERNEL_SHARES)
}

/// Returns `cpu.weight` of a group with this number of workers, version 2.
pub(super) fn weight(workers: usize) -> u64 {
    proportional(workers, WEIGHT, &KERNEL_WEIGHTS)
}

/// Returns the processor time of a sandbox in a period, in microseconds, if a quota must limit it.
pub(super) fn quota_us(limits: &SandboxLimits, has_cpuset: bool) -> Option<u64> {
    let cores = limits.distinct_cores().len() as u64;
    (cores > 0 && !has_cpuset).then(|| PERIOD_US.saturating_mul(cores))
}

/// Returns the number of workers for the weight of all sandboxes together, as against the machine's other programs: one
/// per core.
pub(super) fn machine_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn proportional(workers: usize, each: u64, kernel: &RangeInclusive<u64>) -> u64 {
    (workers.max(1) as u64).saturating_mul(each).clamp(*kernel.start(), *kernel.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(cores: &[u32]) -> SandboxLimits {
        let cores = cores.to_vec();
        SandboxLimits {
            cores,
            memory_bytes: None,
            shown_memory_bytes: None,
            processes: None,
            scratch_bytes: 0,
        }
    }

    #[test]
    fn weights_are_proportional_to_workers_within_what_the_kernel_takes() {
        for workers in (0..2_000).chain([usize::MAX]) {
            let (shares, weight) = (shares(workers), weight(workers));
            assert!(KERNEL_SHARES.contains(&shares) && KERNEL_WEIGHTS.contains(&weight), "{workers}");
            let counted = workers.max(1) as u64;
            if counted <= 100 {
                assert_eq!((shares, weight), (1024 * counted, 100 * counted));
            }
            assert!(shares >= super::shares(workers.saturating_sub(1)), "never less for more workers");
            assert!(weight >= super::weight(workers.saturating_sub(1)), "never less for more workers");
        }
    }

    #[test]
    fn workers_on_shared_core_add_weight_but_no_quota() {
        let crowded = limits(&[3, 1, 3, 3]);
        assert_eq!((crowded.workers(), crowded.distinct_cores()), (4, vec![1, 3]));
        assert_eq!(quota_us(&crowded, false), Some(2 * PERIOD_US));
        assert_eq!(limits(&[]).workers(), 1);
    }

    #[test]
    fn a_quota_stands_in_for_a_missing_cpuset_only() {
        assert_eq!(quota_us(&limits(&[0, 1]), true), None);
        assert_eq!(quota_us(&limits(&[]), false), None, "such a sandbox may use every core");
    }
}
