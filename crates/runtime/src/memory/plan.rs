//! Describes a memory component to create.

use std::ops::RangeInclusive;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use sublet_fabric::region::PAGE_BYTES;
use sublet_proto::graph::DEFAULT_SEGMENT_BYTES;
use sublet_proto::limits::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};
use sublet_proto::pool::Pool;
use sublet_proto::v1;
use sublet_proto::{Code, Error};

use super::cache::MIN_LINES;
use super::pieces::CacheSize;
use crate::fabrics::{ClientTerms, FabricChoice};
use crate::invoker::allocation::milliseconds;

/// Default limit of the size, in bytes. It takes address space, and no memory before it is needed.
const DEFAULT_LIMIT_BYTES: u64 = 1 << 40;
const MAX_CACHE_BYTES: u64 = 1 << 40;
const LINE_BYTES: RangeInclusive<u64> = 64..=1 << 20;

/// Properties of a memory component to create. Made by [`MemoryPlan::new`] and changed by its methods.
#[derive(Clone, Debug)]
pub struct MemoryPlan {
    initial_bytes: u64,
    increment_bytes: u64,
    pub(super) limit_bytes: u64,
    timeout: Duration,
    wait: Duration,
    near: Vec<String>,
    pool: Option<Pool>,
    /// Name of the graph whose runs are limited together; empty: none.
    application: String,
    /// The run of that graph; empty: none.
    run: String,
    fabric: Option<FabricChoice>,
    cache: CacheSize,
}

/// The default limit: half of the address space if that is limited, which leaves the rest to the process.
fn default_limit_bytes() -> u64 {
    let limit = getrlimit(Resource::As).current.unwrap_or(u64::MAX);
    (limit / 2).min(DEFAULT_LIMIT_BYTES) / PAGE_BYTES * PAGE_BYTES
}

impl Default for MemoryPlan {
    fn default() -> MemoryPlan {
        MemoryPlan::new()
    }
}

impl MemoryPlan {
    /// 16 MiB at first and with each segment that is added, up to a tebibyte, or to half of the address space that this
    /// process may have (`ulimit -v`).
    pub fn new() -> MemoryPlan {
        MemoryPlan {
            initial_bytes: DEFAULT_SEGMENT_BYTES,
            increment_bytes: DEFAULT_SEGMENT_BYTES,
            limit_bytes: default_limit_bytes(),
            timeout: Duration::ZERO,
            wait: Duration::ZERO,
            near: Vec::new(),
            pool: None,
            application: String::new(),
            run: String::new(),
            fabric: None,
            cache: CacheSize::DEFAULT,
        }
    }

    /// Sets the initial size in bytes, in whole pages.
    pub fn initial_bytes(mut self, initial_bytes: u64) -> MemoryPlan {
        self.initial_bytes = initial_bytes;
        self
    }

    /// Sets the size in bytes of each segment that is added, in whole pages.
    pub fn increment_bytes(mut self, increment_bytes: u64) -> MemoryPlan {
        self.increment_bytes = increment_bytes;
        self
    }

    /// Sets the largest size in bytes: the component grows no further.
    pub fn limit_bytes(mut self, limit_bytes: u64) -> MemoryPlan {
        self.limit_bytes = limit_bytes;
        self
    }

    /// Sets the duration of each segment's lease. The default is the manager's. [`Memory::renew`](super::Memory::renew)
    /// gives them a later end.
    pub fn timeout(mut self, timeout: Duration) -> MemoryPlan {
        self.timeout = timeout;
        self
    }

    /// Sets the longest wait for each segment, in the manager's queue. The default is not to wait.
    pub fn wait(mut self, wait: Duration) -> MemoryPlan {
        self.wait = wait;
        self
    }

    /// Prefers these nodes, the first with enough memory, and then the nodes of their rack: the nodes of the workers
    /// that will access the component.
    pub fn near<N: Into<String>>(mut self, nodes: impl IntoIterator<Item = N>) -> MemoryPlan {
        self.near = nodes.into_iter().map(Into::into).collect();
        self
    }

    /// Restricts the component to nodes of this pool. Without this, nodes of the memory pool are preferred. In
    /// [`Pool::Flash`] its bytes are on disks: they are read and written, over TCP also on the same machine, and neither
    /// mapped nor changed atomically.
    pub fn pool(mut self, pool: Pool) -> MemoryPlan {
        self.pool = Some(pool);
        self
    }

    /// Counts the segments under the limits over all runs of an application, for one of these runs.
    pub(crate) fn application(mut self, name: &str, run: &str) -> MemoryPlan {
        name.clone_into(&mut self.application);
        run.clone_into(&mut self.run);
        self
    }

    /// Sets the transport of the segments. The default is shared memory on this machine and TCP elsewhere.
    pub fn fabric(mut self, fabric: FabricChoice) -> MemoryPlan {
        self.fabric = Some(fabric);
        self
    }

    /// Sets the size of the cache of remote memory, in bytes; 64 MiB by default. With 0 there is no cache, and writes
    /// have arrived when they return. The cache takes memory as it fills.
    pub fn cache_bytes(mut self, cache_bytes: u64) -> MemoryPlan {
        self.cache.bytes = cache_bytes;
        self
    }

    /// Sets the size of the cache's lines, in bytes, a power of two; 4 KiB by default.
    pub fn line_bytes(mut self, line_bytes: u64) -> MemoryPlan {
        self.cache.line_bytes = line_bytes;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let sizes = [("initial", self.initial_bytes), ("incremental", self.increment_bytes)];
        for (what, bytes) in sizes {
            if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes) {
                let message = format!(
                    "{bytes} bytes of {what} size, a segment has {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}"
                );
                return Err(Error::new(Code::InvalidArgument, message));
            }
        }
        self.check_cache()
    }

    fn check_cache(&self) -> Result<(), Error> {
        let CacheSize { bytes: cache, line_bytes: line } = self.cache;
        let message = if !line.is_power_of_two() || !LINE_BYTES.contains(&line) {
            let (least, most) = (LINE_BYTES.start(), LINE_BYTES.end());
            format!("lines of {line} bytes: they have a power of two, from {least} to {most}")
        } else if cache > MAX_CACHE_BYTES || (cache > 0 && cache / line < MIN_LINES) {
            let least = MIN_LINES * line;
            format!(
                "a cache of {cache} bytes: with lines of {line} it has {least} to {MAX_CACHE_BYTES}, or 0"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(Code::InvalidArgument, message))
    }

    /// Size of the cache of remote memory.
    pub(super) fn cache(&self) -> CacheSize {
        self.cache
    }

    /// The terms by which the segments are reached.
    pub(super) fn terms(&self) -> Result<ClientTerms, Error> {
        let mut terms = ClientTerms::new(self.fabric.clone(), None)?;
        match terms.fabric {
            FabricChoice::Auto if self.pool == Some(Pool::Flash) => {
                terms.fabric = FabricChoice::Tcp { encrypted: false };
            }
            FabricChoice::Shm | FabricChoice::Ofi { .. } if self.pool == Some(Pool::Flash) => {
                let message = format!("flash is reached over tcp, and not over {}", terms.fabric);
                return Err(Error::new(Code::FabricUnavailable, message));
            }
            _ => {}
        }
        Ok(terms)
    }

    /// Size of the reserved address space, in bytes. The last segment may extend beyond the limit.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        let segment = self.increment_bytes.max(self.initial_bytes);
        let whole = |bytes: u64| bytes.checked_next_multiple_of(MIN_SEGMENT_BYTES);
        let reserved = whole(self.limit_bytes.max(1)).and_then(|limit| whole(limit.checked_add(segment)?));
        reserved.unwrap_or(u64::MAX)
    }

    /// The number of leased bytes for a component of `len_bytes` bytes.
    pub(crate) fn capacity_for(&self, len_bytes: u64) -> u64 {
        if len_bytes == 0 {
            return 0;
        }
        let first = self.segment_bytes(0);
        let more = self.segment_bytes(first);
        let steps = len_bytes.saturating_sub(first).div_ceil(more);
        first.saturating_add(steps.saturating_mul(more))
    }

    /// Size of the segment at this offset, in bytes.
    pub(super) fn segment_bytes(&self, offset: u64) -> u64 {
        let bytes = if offset == 0 { self.initial_bytes } else { self.increment_bytes };
        bytes.next_multiple_of(MIN_SEGMENT_BYTES)
    }

    pub(super) fn request(&self, memory_bytes: u64) -> v1::LeaseRequest {
        v1::LeaseRequest {
            memory_bytes,
            timeout_ms: milliseconds(self.timeout),
            wait_ms: milliseconds(self.wait),
            near: self.near.clone(),
            pool: self.pool.map(|pool| pool.to_string()).unwrap_or_default(),
            application: self.application.clone(),
            run: self.run.clone(),
            ..v1::LeaseRequest::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_the_capacity_that_segmentwise_growth_reaches() {
        for (initial, increment) in [(4096, 4096), (5000, 9000), (1 << 20, 4096), (4096, 1 << 20)] {
            let plan = MemoryPlan::new().initial_bytes(initial).increment_bytes(increment);
            for len in [0, 1, 4096, 4097, 20_000, 1 << 20, (1 << 20) + 1, 3 << 20] {
                let mut capacity = 0;
                while capacity < len {
                    capacity += plan.segment_bytes(capacity);
                }
                assert_eq!(plan.capacity_for(len), capacity, "{len} bytes of {initial} + {increment}");
            }
        }
    }
}
