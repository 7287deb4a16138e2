//! A worker process that does nothing but use time: what a lease has truly used.

use sublet_manager::core::LeaseId;
use sublet_proto::v1::Usage;

use super::random::Random;
use crate::numbers::narrow;

/// Duty is counted in this many parts.
const PARTS: u64 = 256;

/// How a lease's workers spend their time.
#[derive(Clone, Copy, Debug)]
pub struct SimWorker {
    workers: u64,
    executing_parts: u64,
    polling_parts: u64,
    call_ns: u64,
}

impl SimWorker {
    /// Makes the workers of a lease: the lease's name decides what share of their time they execute and poll.
    pub fn of(lease: LeaseId, workers: u32) -> SimWorker {
        let random = &mut Random::from_seed(narrow(lease.0 & u128::from(u64::MAX)));
        let executing_parts = random.below(PARTS + 1);
        let polling_parts = random.below(PARTS - executing_parts + 1);
        let call_ns = random.between(1_000, 1_000_000_000);
        SimWorker { workers: workers.into(), executing_parts, polling_parts, call_ns }
    }

    /// Usage of the workers this long after their start, by their node's clock.
    pub fn used(&self, elapsed_ns: u64) -> Usage {
        let all_ns = elapsed_ns * self.workers;
        let share_ns = |parts: u64| all_ns / PARTS * parts;
        let calls = elapsed_ns / self.call_ns * self.workers;
        Usage {
            allocated_ns: elapsed_ns,
            executing_ns: share_ns(self.executing_parts),
            polling_ns: share_ns(self.polling_parts),
            calls,
            failed_calls: calls / 8,
            ..Usage::default()
        }
    }
}

/// Whether nothing of `usage` is more than of `most`.
pub fn is_within(usage: &Usage, most: &Usage) -> bool {
    usage.allocated_ns <= most.allocated_ns
        && usage.executing_ns <= most.executing_ns
        && usage.polling_ns <= most.polling_ns
        && usage.calls <= most.calls
        && usage.failed_calls <= most.failed_calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_grows_and_is_never_more_than_time_allows() {
        let mut random = Random::from_seed(6);
        for lease in 0..1_000 {
            let worker = SimWorker::of(LeaseId(lease), 4);
            let (early, late) = (worker.used(random.below(1 << 40)), worker.used(1 << 41));
            assert!(is_within(&early, &late) && !is_within(&late, &early));
            assert!(late.executing_ns + late.polling_ns <= 4 * late.allocated_ns);
        }
    }
}
