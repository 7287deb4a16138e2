//! Completes and checks the terms of a request for a lease.

use sublet_proto::inbox::InboxShape;
pub use sublet_proto::limits::MEMORY_PER_CORE_BYTES;
use sublet_proto::limits::{
    MAX_CORES, MAX_SEGMENT_BYTES, MAX_SWAP_BYTES, MAX_TIMEOUT_MS, MIN_SEGMENT_BYTES, MIN_SWAP_BYTES,
};
use sublet_proto::pool::Pool;
use sublet_proto::v1::{LeaseRequest, Price, WorkerOptions};
use sublet_proto::{ALWAYS_HOT_NS, Code, Error};

/// Lease time if the client does not say: ten minutes.
pub const DEFAULT_TIMEOUT_MS: u64 = 10 * 60 * 1000;
/// Options of workers if the client names none.
pub const DEFAULT_OPTIONS: WorkerOptions = WorkerOptions {
    slots: 8,
    slot_bytes: 64 << 10,
    hot_timeout_ns: 100_000_000,
    swap_bytes: 0,
    cores: 0,
    swap_if_possible: false,
};
/// Most workers of one request, over all of its nodes.
pub const MAX_WORKERS: u32 = 65_536;
/// Longest time that a request may wait for capacity, in milliseconds.
pub const MAX_WAIT_MS: u64 = 10 * 60 * 1000;

/// Largest weight of time beside price.
pub(super) const MAX_WEIGHT_PERMILLE: u32 = 1000;

/// Resources and options of a request's leases, all of them together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeaseTerms {
    /// Cores of all workers, or slots of shared ones. 0: a segment, which is only memory.
    pub workers: u32,
    /// Whether the workers share cores with those of other leases.
    pub shared: bool,
    /// Memory of all workers.
    pub memory_bytes: u64,
    /// Lease time, from the grant on.
    pub timeout_ms: u64,
    /// Idle timeout; 0: the node's default.
    pub idle_timeout_ms: u64,
    /// How the workers wait, and the size of their inboxes.
    pub options: WorkerOptions,
    /// Most nodes; 0: no limit.
    pub max_nodes: u32,
    /// Weight of time beside price where there is a choice of processing units, in thousandths.
    pub time_weight_permille: u32,
    /// Whether the request itself names the memory; otherwise it is a default.
    pub(super) says_memory: bool,
    /// Part of the memory that the inboxes take.
    inbox_bytes: u64,
}

impl LeaseTerms {
    /// Returns the cost of a second in which all workers execute, by which processing units are compared; in nano-units
    /// times the bytes of a GiB, so that nothing is rounded.
    pub(super) fn busy_second(&self, price: &Price) -> u128 {
        let allocation = u128::from(price.allocation_nano_per_gib_s) * u128::from(self.memory_bytes);
        let compute = u128::from(price.compute_nano_per_core_s) * u128::from(self.workers);
        allocation.saturating_add(compute << 30)
    }

    /// Reads the terms of a request.
    ///
    /// # Errors
    /// `invalid_argument` with the limit if the request exceeds it.
    pub fn of(asked: &LeaseRequest) -> Result<LeaseTerms, Error> {
        if asked.is_segment() {
            return LeaseTerms::of_segment(asked);
        }
        if asked.pool == Pool::Flash.name() {
            let message = "nodes of the flash pool lend parts of disks, and no cores";
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let options = asked.options.unwrap_or(DEFAULT_OPTIONS);
        let one_node = if asked.max_nodes == 1 { MAX_CORES } else { MAX_WORKERS };
        within("cores", asked.cores.into(), 1, one_node.into())?;
        check_cores_each(asked, options.cores_each())?;
        let worker = InboxShape::of(1, &options)?;
        check_times(asked)?;
        within(
            "thousandths that time counts",
            asked.time_weight_permille.into(),
            0,
            MAX_WEIGHT_PERMILLE.into(),
        )?;
        if options.swap_bytes > 0 {
            within(
                "bytes to be swapped for each worker",
                options.swap_bytes,
                MIN_SWAP_BYTES,
                MAX_SWAP_BYTES,
            )?;
        }
        if asked.shared && options.hot_timeout_ns == ALWAYS_HOT_NS {
            let message =
                "workers on shared cores cannot poll for ever: they would never leave their core to others";
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let inbox_bytes = worker.len_bytes.saturating_mul((asked.cores / options.cores_each()).into());
        Ok(LeaseTerms {
            workers: asked.cores,
            shared: asked.shared,
            memory_bytes: memory_bytes(asked, &options, inbox_bytes)?,
            timeout_ms: timeout_ms(asked.timeout_ms),
            idle_timeout_ms: asked.idle_timeout_ms,
            options,
            max_nodes: asked.max_nodes,
            time_weight_permille: asked.time_weight_permille,
            says_memory: asked.memory_bytes > 0,
            inbox_bytes,
        })
    }

    fn of_segment(asked: &LeaseRequest) -> Result<LeaseTerms, Error> {
        within("bytes of memory", asked.memory_bytes, MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES)?;
        check_times(asked)?;
        if asked.shared || !asked.pu.is_empty() || asked.idle_timeout_ms != 0 {
            let message = "a segment has no workers: it is on no kind of processing unit, shares no cores, and is never idle";
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(LeaseTerms {
            workers: 0,
            shared: false,
            memory_bytes: asked.memory_bytes.next_multiple_of(MIN_SEGMENT_BYTES),
            timeout_ms: timeout_ms(asked.timeout_ms),
            idle_timeout_ms: 0,
            options: DEFAULT_OPTIONS,
            max_nodes: 1,
            time_weight_permille: 0,
            says_memory: true,
            inbox_bytes: 0,
        })
    }

    /// Returns the terms with this much memory for each worker, and at least the memory of their inboxes.
    pub(super) fn with_memory_of_each(&self, memory_bytes: u64) -> LeaseTerms {
        let memory_bytes =
            memory_bytes.saturating_mul((self.workers / self.cores_together()).into()).max(self.inbox_bytes);
        LeaseTerms { memory_bytes, ..*self }
    }

    /// Returns the number of cores that have to be on the same node: those of one worker.
    pub(super) fn cores_together(&self) -> u32 {
        self.options.cores_each()
    }

    /// Tells whether it is a segment, which is only memory.
    pub(super) fn is_segment(&self) -> bool {
        self.workers == 0
    }

    /// Returns the share of `workers` workers in the memory, rounded up.
    pub(super) fn memory_of(&self, workers: u32) -> u64 {
        debug_assert!(workers <= self.workers.max(1), "the memory of {workers} of {} workers", self.workers);
        let share = u128::from(self.memory_bytes) * u128::from(workers);
        u64::try_from(share.div_ceil(u128::from(self.workers.max(1)))).unwrap_or(u64::MAX)
    }
}

/// Checks the cores of each worker. A worker of several cores has them alone: it does not take turns on them.
fn check_cores_each(asked: &LeaseRequest, each: u32) -> Result<(), Error> {
    within("cores of each worker", each.into(), 1, MAX_CORES.into())?;
    let invalid = |message: String| Err(Error::new(Code::InvalidArgument, message));
    if !asked.cores.is_multiple_of(each) {
        return invalid(format!(
            "{} cores asked, and workers of {each} cores: ask for a multiple",
            asked.cores
        ));
    }
    if each > 1 && asked.shared {
        return invalid(format!("workers of {each} cores asked on shared cores, where a worker has one"));
    }
    Ok(())
}

fn check_times(asked: &LeaseRequest) -> Result<(), Error> {
    within("ms of lease time", asked.timeout_ms, 0, MAX_TIMEOUT_MS)?;
    within("ms of idle time", asked.idle_timeout_ms, 0, MAX_TIMEOUT_MS)?;
    within("ms of waiting", asked.wait_ms, 0, MAX_WAIT_MS)
}

/// Reads the lease time that a client asks for, within its limits.
pub(super) fn timeout_ms(asked_ms: u64) -> u64 {
    if asked_ms == 0 { DEFAULT_TIMEOUT_MS } else { asked_ms.min(MAX_TIMEOUT_MS) }
}

fn memory_bytes(asked: &LeaseRequest, options: &WorkerOptions, inbox_bytes: u64) -> Result<u64, Error> {
    match asked.memory_bytes {
        0 => Ok(inbox_bytes.saturating_add(u64::from(asked.cores) * MEMORY_PER_CORE_BYTES)),
        memory_bytes if memory_bytes >= inbox_bytes => Ok(memory_bytes),
        memory_bytes => Err(Error::new(
            Code::InvalidArgument,
            format!(
                "{memory_bytes} bytes of memory asked, but the inboxes alone take {inbox_bytes} ({} cores with {} \
                 slots of {} bytes)",
                asked.cores, options.slots, options.slot_bytes
            ),
        )),
    }
}

fn within(what: &str, asked: u64, least: u64, most: u64) -> Result<(), Error> {
    if (least..=most).contains(&asked) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, format!("{asked} {what} asked, a lease has {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> LeaseRequest {
        let options = WorkerOptions {
            slots: 2,
            slot_bytes: 5_000,
            hot_timeout_ns: 7,
            swap_bytes: 0,
            cores: 0,
            swap_if_possible: false,
        };
        LeaseRequest { cores: 1, options: Some(options), ..LeaseRequest::default() }
    }

    fn message(asked: &LeaseRequest) -> String {
        let error = LeaseTerms::of(asked).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        error.message
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let terms = LeaseTerms::of(&LeaseRequest { cores: 2, ..LeaseRequest::default() }).unwrap();
        assert_eq!((terms.options, terms.timeout_ms), (DEFAULT_OPTIONS, DEFAULT_TIMEOUT_MS));
        assert_eq!(terms.memory_bytes, 2 * (MEMORY_PER_CORE_BYTES + 8 * (64 << 10) + 4096));
    }

    #[test]
    fn inboxes_are_whole_pages_and_belong_to_the_memory() {
        let inbox = InboxShape::of(1, &asked().options.unwrap()).unwrap().len_bytes;
        assert_eq!(inbox, (1 + 2 * 2) * 4096);
        assert_eq!(
            LeaseTerms::of(&LeaseRequest { memory_bytes: inbox, ..asked() }).unwrap().memory_bytes,
            inbox
        );
        let refusal = message(&LeaseRequest { memory_bytes: inbox - 1, ..asked() });
        assert!(refusal.contains("20479") && refusal.contains("20480"), "{refusal}");
    }

    #[test]
    fn cores_of_workers_divide_all_cores() {
        let of = |cores, each| {
            let options = WorkerOptions { cores: each, ..asked().options.unwrap() };
            LeaseRequest { cores, options: Some(options), ..asked() }
        };
        let terms = LeaseTerms::of(&of(6, 3)).unwrap();
        assert_eq!((terms.workers, terms.cores_together()), (6, 3));
        let inbox_bytes = 2 * 5 * 4096;
        assert_eq!(terms.memory_bytes, inbox_bytes + 6 * MEMORY_PER_CORE_BYTES, "an inbox for each worker");
        assert!(message(&of(7, 3)).contains("7 cores asked, and workers of 3 cores"));
        assert!(message(&of(2, 3)).contains("2 cores asked, and workers of 3 cores"));
        assert!(message(&of(1025, 1025)).contains("1025 cores of each worker asked, a lease has 1 to 1024"));
        let shared = LeaseRequest { shared: true, ..of(4, 2) };
        assert!(message(&shared).contains("workers of 2 cores asked on shared cores"));
    }

    #[test]
    fn the_shares_of_a_request_make_its_memory() {
        let terms = LeaseTerms::of(&LeaseRequest { cores: 3, memory_bytes: 100_000_000, ..asked() }).unwrap();
        assert_eq!(terms.memory_of(3), 100_000_000);
        assert_eq!((terms.memory_of(1), terms.memory_of(2)), (33_333_334, 66_666_667));
    }

    #[test]
    fn segment_is_whole_pages_and_refuses_options_of_workers() {
        let segment = |memory_bytes| LeaseRequest { memory_bytes, ..LeaseRequest::default() };
        let terms = LeaseTerms::of(&segment(5000)).unwrap();
        assert_eq!((terms.workers, terms.memory_bytes, terms.max_nodes), (0, 8192, 1));
        assert!(message(&segment(0)).contains("0 bytes of memory asked, a lease has 4096 to"));
        assert!(message(&segment((1 << 40) + 1)).contains("a lease has 4096 to"));
        assert!(message(&LeaseRequest { timeout_ms: u64::MAX, ..segment(4096) }).contains("lease time"));
        for other in [
            LeaseRequest { shared: true, ..segment(4096) },
            LeaseRequest { pu: "cpu".into(), ..segment(4096) },
            LeaseRequest { idle_timeout_ms: 1, ..segment(4096) },
        ] {
            assert!(message(&other).contains("no workers"), "{other:?}");
        }
    }

    #[test]
    fn what_no_lease_can_have_is_refused_with_the_limit() {
        let options =
            |slots, slot_bytes| Some(WorkerOptions { slots, slot_bytes, ..WorkerOptions::default() });
        let without_cores = LeaseRequest { cores: 0, package: "p".into(), ..asked() };
        assert!(message(&without_cores).contains("0 cores asked"));
        assert!(message(&LeaseRequest { cores: MAX_WORKERS + 1, ..asked() }).contains("1 to 65536"));
        assert!(message(&LeaseRequest { cores: 1025, max_nodes: 1, ..asked() }).contains("1 to 1024"));
        assert!(message(&LeaseRequest { options: options(0, 1), ..asked() }).contains("slots: 0"));
        assert!(message(&LeaseRequest { options: options(257, 1), ..asked() }).contains("slots: 257"));
        assert!(message(&LeaseRequest { options: options(1, 1 << 32), ..asked() }).contains("slot bytes"));
        assert!(message(&LeaseRequest { timeout_ms: MAX_TIMEOUT_MS + 1, ..asked() }).contains("lease time"));
        assert!(message(&LeaseRequest { wait_ms: MAX_WAIT_MS + 1, ..asked() }).contains("waiting"));
        let hot = WorkerOptions { hot_timeout_ns: ALWAYS_HOT_NS, ..DEFAULT_OPTIONS };
        assert!(
            message(&LeaseRequest { shared: true, options: Some(hot), ..asked() }).contains("poll for ever")
        );
    }
}
