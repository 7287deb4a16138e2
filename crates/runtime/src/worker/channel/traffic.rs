//! Counts what the functions of a process move through a channel: operations and bytes, on the same machine as between
//! machines.
//!
//! An operation adds to two counters, without a lock. Threads add to different lines as long as there are not more of
//! them than lines, so that they do not write the same cache line.

use std::sync::atomic::AtomicUsize;

use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_proto::v1;

/// Number of lines of counters.
const LINES: usize = 8;

/// Number of threads that have counted.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Line of this thread.
    static LINE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % LINES;
}

/// See the [module](self).
#[derive(Default)]
pub(in crate::worker) struct TrafficCounters {
    lines: [CounterLine; LINES],
}

/// Counters on a cache line that no other data shares.
#[derive(Default)]
#[repr(align(128))]
struct CounterLine {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    maps: AtomicU64,
    mapped_bytes: AtomicU64,
}

impl TrafficCounters {
    /// Counts a read, or a received message.
    #[inline]
    pub(in crate::worker) fn count_read(&self, bytes: u64) {
        let line = self.line();
        add(&line.reads, &line.read_bytes, bytes);
    }

    /// Counts a write, or a sent message.
    #[inline]
    pub(in crate::worker) fn count_write(&self, bytes: u64) {
        let line = self.line();
        add(&line.writes, &line.written_bytes, bytes);
    }

    /// Counts mapped bytes whose address a function has received.
    #[inline]
    pub(super) fn count_map(&self, bytes: u64) {
        let line = self.line();
        add(&line.maps, &line.mapped_bytes, bytes);
    }

    /// Takes what was counted since the previous call. `None` if nothing was.
    pub(super) fn take(&self) -> Option<v1::Traffic> {
        let sum = |of: fn(&CounterLine) -> &AtomicU64| {
            self.lines.iter().fold(0_u64, |sum, line| sum.saturating_add(of(line).swap(0, Ordering::Relaxed)))
        };
        let taken = v1::Traffic {
            reads: sum(|line| &line.reads),
            read_bytes: sum(|line| &line.read_bytes),
            writes: sum(|line| &line.writes),
            written_bytes: sum(|line| &line.written_bytes),
            maps: sum(|line| &line.maps),
            mapped_bytes: sum(|line| &line.mapped_bytes),
        };
        (taken != v1::Traffic::default()).then_some(taken)
    }

    #[inline]
    fn line(&self) -> &CounterLine {
        &self.lines[LINE.with(|line| *line)]
    }
}

#[inline]
fn add(operations: &AtomicU64, moved: &AtomicU64, bytes: u64) {
    operations.fetch_add(1, Ordering::Relaxed);
    moved.fetch_add(bytes, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::thread::scope;

    use super::*;

    #[test]
    fn counts_of_all_threads_are_taken_once() {
        let counters = TrafficCounters::default();
        scope(|scope| {
            for _ in 0..2 * LINES {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counters.count_read(3);
                        counters.count_write(5);
                    }
                    counters.count_map(4096);
                });
            }
        });
        let threads = 2 * LINES as u64;
        let expected = v1::Traffic {
            reads: 1000 * threads,
            read_bytes: 3000 * threads,
            writes: 1000 * threads,
            written_bytes: 5000 * threads,
            maps: threads,
            mapped_bytes: 4096 * threads,
        };
        assert_eq!(counters.take(), Some(expected));
        assert_eq!(counters.take(), None);
        counters.count_read(0);
        assert_eq!(counters.take(), Some(v1::Traffic { reads: 1, ..v1::Traffic::default() }));
    }
}
