//! Collects what the components of a run lease and use. Leases are known here, memory components are measured here, and
//! agents report the workers' own memory.
//!
//! Agents are queried without waiting for their answers. The usage of a lease only grows; a component's part of it is
//! the difference between its begin and its end. A worker process has some memory before it executes anything, which no
//! client leases: the memory that it has when it is ready is not counted. The counted usage never exceeds the leased
//! amount.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sublet_proto::graph::{Compute, Graph};
use sublet_proto::run::{MAX_CHANNELS, MAX_NODES};
use sublet_proto::v1::{ChannelUse, ComponentUse, Measured, UsagePoint};

use super::memory_usage::MemoryComponentUsage;
use super::series::MemorySeries;
use super::traffic::{self, TrafficByComponent};
use crate::lease::ClientLease;
use crate::lease::link::Asked;

/// Interval at which the memory of a component's workers is requested.
const ASK: Duration = Duration::from_millis(100);
/// Longest wait for the agents' answers when the run has ended, and the polling interval.
const LAST_WORDS: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(1);

/// Usage of a lease at a time, once its agent has reported it.
#[derive(Clone)]
pub(super) struct UsageReading {
    lease: Arc<ClientLease>,
    asked: Asked,
}

impl UsageReading {
    /// Requests the current usage.
    pub(super) fn ask(lease: &Arc<ClientLease>) -> UsageReading {
        UsageReading { lease: lease.clone(), asked: lease.ask_usage() }
    }

    pub(super) fn lease(&self) -> &Arc<ClientLease> {
        &self.lease
    }

    /// Whether its agent has answered, or is known to be gone.
    pub(super) fn is_settled(&self) -> bool {
        self.asked.get().is_some() || self.lease.is_over()
    }
}

/// Usage of the lease of a component's workers.
pub(super) struct Readings {
    /// When the worker process was ready.
    pub(super) first: UsageReading,
    /// When the component began.
    pub(super) before: UsageReading,
    pub(super) after: UsageReading,
}

/// Usage of a lease's workers between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Between {
    bytes: u64,
    byte_us: u64,
    cpu_ns: u64,
}

fn between(lease_bytes: u64, first: &Measured, before: &Measured, after: &Measured) -> Between {
    let own_bytes = first.memory_bytes;
    let (earlier, later) = (before.usage.unwrap_or_default(), after.usage.unwrap_or_default());
    let elapsed_us = later.allocated_ns.saturating_sub(earlier.allocated_ns) / 1000;
    let byte_us = later.memory_byte_us.saturating_sub(earlier.memory_byte_us);
    // A peak that was there before is another's.
    let has_peaked = later.memory_peak_bytes > earlier.memory_peak_bytes;
    let bytes = match has_peaked {
        true => later.memory_peak_bytes,
        false => before.memory_bytes.max(after.memory_bytes),
    };
    Between {
        bytes: bytes.saturating_sub(own_bytes).min(lease_bytes),
        byte_us: byte_us
            .saturating_sub(own_bytes.saturating_mul(elapsed_us))
            .min(lease_bytes.saturating_mul(elapsed_us)),
        cpu_ns: after.cpu_ns.saturating_sub(before.cpu_ns),
    }
}

/// Current memory of the workers of a running component.
#[derive(Clone)]
pub(super) struct WorkerMemory {
    first: UsageReading,
    latest: UsageReading,
    asked_at: Instant,
    used_bytes: u64,
}

impl WorkerMemory {
    pub(super) fn new(first: UsageReading) -> WorkerMemory {
        WorkerMemory { latest: first.clone(), first, asked_at: Instant::now(), used_bytes: 0 }
    }

    pub(super) fn lease(&self) -> &Arc<ClientLease> {
        self.first.lease()
    }

    /// Returns the last reported values, and sends a new request if it is time and the last one was answered.
    pub(super) fn look(&mut self) -> Now {
        let allocated_bytes = self.lease().memory_bytes();
        if let (Some(first), Some(latest)) = (self.first.asked.get(), self.latest.asked.get()) {
            self.used_bytes = latest.memory_bytes.saturating_sub(first.memory_bytes).min(allocated_bytes);
            if self.asked_at.elapsed() >= ASK {
                self.latest = UsageReading::ask(self.first.lease());
                self.asked_at = Instant::now();
            }
        }
        Now { allocated_bytes, used_bytes: self.used_bytes }
    }
}

/// Memory that is leased and used at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Now {
    pub(super) allocated_bytes: u64,
    pub(super) used_bytes: u64,
}

impl std::iter::Sum for Now {
    fn sum<I: Iterator<Item = Now>>(all: I) -> Now {
        all.fold(Now::default(), |sum, now| Now {
            allocated_bytes: sum.allocated_bytes.saturating_add(now.allocated_bytes),
            used_bytes: sum.used_bytes.saturating_add(now.used_bytes),
        })
    }
}

/// See the [module](self).
pub(super) struct Uses {
    began: Instant,
    pub(super) components: Vec<ComponentUse>,
    series: MemorySeries,
    /// Readings of components that have ended and whose agents have not answered yet.
    unread: Vec<(usize, Vec<Readings>)>,
}

impl Uses {
    pub(super) fn new(graph: &Graph) -> Uses {
        let named = |component: &sublet_proto::graph::Component| ComponentUse {
            component: component.name.clone(),
            instances: component.compute().map_or(0, |compute| compute.parallelism),
            cores: component.compute().map_or(0, Compute::cores),
            ..ComponentUse::default()
        };
        let components = graph.components.iter().map(named).collect();
        Uses { began: Instant::now(), components, series: MemorySeries::new(), unread: Vec::new() }
    }

    /// Time at which the run began, as far as this client drives it.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// Memory over time.
    pub(super) fn points(&self) -> Vec<UsagePoint> {
        self.series.points().to_vec()
    }

    /// Records the current memory of a component.
    pub(super) fn note(&mut self, component: usize, now: Now) {
        let used = &mut self.components[component];
        (used.allocated_now_bytes, used.used_now_bytes) = (now.allocated_bytes, now.used_bytes);
        used.allocated_bytes = used.allocated_bytes.max(now.allocated_bytes);
        used.used_bytes = used.used_bytes.max(now.used_bytes);
    }

    /// Records the current memory of the whole run.
    pub(super) fn note_all(&mut self, now: Now) {
        let Now { allocated_bytes, used_bytes } = now;
        self.series.note(UsagePoint { at_us: micros(self.began.elapsed()), allocated_bytes, used_bytes });
    }

    /// Records the nodes of a component.
    pub(super) fn place(&mut self, component: usize, nodes: Vec<String>) {
        let known = &mut self.components[component].nodes;
        *known = nodes;
        known.dedup();
        known.truncate(MAX_NODES);
    }

    /// Counts the workers that have executed a component, once their usage is known.
    pub(super) fn count_workers(&mut self, component: usize, readings: Vec<Readings>) {
        self.unread.push((component, readings));
        self.read();
    }

    /// A memory component was this, and is not any more.
    pub(super) fn count_memory(&mut self, memory: usize, used: MemoryComponentUsage) {
        let MemoryComponentUsage { since, until, capacity_bytes, len_bytes, allocated_byte_us, used_byte_us } =
            used;
        let since_begin =
            |at: Option<Instant>| at.map_or(0, |at| micros(at.saturating_duration_since(self.began)));
        let (begin_us, end_us) = (since_begin(since), since_begin(until));
        let uses = &mut self.components[memory];
        (uses.begin_us, uses.end_us) = (begin_us, end_us);
        uses.allocated_bytes = uses.allocated_bytes.max(capacity_bytes);
        uses.used_bytes = uses.used_bytes.max(len_bytes);
        uses.allocated_byte_us = uses.allocated_byte_us.saturating_add(allocated_byte_us);
        uses.used_byte_us = uses.used_byte_us.saturating_add(used_byte_us);
    }

    /// Counts what compute components have moved to and from a memory component.
    pub(super) fn count_traffic(&mut self, memory: usize, moved: TrafficByComponent) {
        for (component, more) in moved {
            let memory = self.components[memory].component.clone();
            let is_full =
                || self.components.iter().map(|used| used.channels.len()).sum::<usize>() >= MAX_CHANNELS;
            let known =
                self.components[component].channels.iter().position(|channel| channel.memory == memory);
            if known.is_none() && is_full() {
                continue;
            }
            let channels = &mut self.components[component].channels;
            let at = known.unwrap_or_else(|| {
                channels.push(ChannelUse { memory, traffic: None });
                channels.len() - 1
            });
            traffic::add(channels[at].traffic.get_or_insert_default(), &more);
        }
    }

    /// Counts the readings that agents have answered meanwhile.
    fn read(&mut self) {
        let is_settled = |readings: &Readings| {
            [&readings.first, &readings.before, &readings.after].iter().all(|of| of.is_settled())
        };
        for (component, readings) in self.unread.extract_if(.., |(_, all)| all.iter().all(is_settled)) {
            let of = |readings: &Readings| {
                let Readings { first, before, after } = readings;
                let lease_bytes = first.lease.memory_bytes();
                Some(between(lease_bytes, first.asked.get()?, before.asked.get()?, after.asked.get()?))
            };
            let used = readings.iter().filter_map(of).fold(Between::default(), |sum, of| Between {
                bytes: sum.bytes.saturating_add(of.bytes),
                byte_us: sum.byte_us.saturating_add(of.byte_us),
                cpu_ns: sum.cpu_ns.saturating_add(of.cpu_ns),
            });
            let uses = &mut self.components[component];
            uses.used_bytes = uses.used_bytes.max(used.bytes);
            uses.cpu_ns = uses.cpu_ns.saturating_add(used.cpu_ns);
            // Times of the two are not measured by one clock.
            uses.used_byte_us = uses.used_byte_us.saturating_add(used.byte_us).min(uses.allocated_byte_us);
        }
    }

    /// All that there is to know: agents that do not answer soon are not waited for.
    pub(super) fn finish(mut self) -> (Vec<ComponentUse>, Vec<UsagePoint>) {
        let until = Instant::now() + LAST_WORDS;
        self.read();
        while !self.unread.is_empty() && Instant::now() < until {
            sleep(LOOK);
            self.read();
        }
        for used in &mut self.components {
            (used.allocated_now_bytes, used.used_now_bytes) = (0, 0);
            used.waits_for.clear();
        }
        self.note_all(Now::default());
        let points = self.points();
        (self.components, points)
    }
}

/// The time in whole microseconds.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1::{Traffic, Usage};

    use super::*;

    fn measured(at_us: u64, memory_bytes: u64, memory_byte_us: u64, memory_peak_bytes: u64) -> Measured {
        let usage =
            Usage { allocated_ns: at_us * 1000, memory_byte_us, memory_peak_bytes, ..Usage::default() };
        Measured { usage: Some(usage), memory_bytes, cpu_ns: at_us * 10 }
    }

    #[test]
    fn usage_is_the_difference_beyond_the_memory_at_start() {
        let first = measured(100, 40, 4000, 50);
        let before = measured(1000, 60, 50_000, 90);
        let after = measured(3000, 70, 50_000 + 2000 * 65, 90);
        let used = between(1000, &first, &before, &after);
        let expected = Between { bytes: 30, byte_us: 2000 * 25, cpu_ns: 20_000 };
        assert_eq!(used, expected, "the peak was before");
        let peaked = measured(3000, 70, 50_000 + 2000 * 65, 190);
        assert_eq!(between(1000, &first, &before, &peaked).bytes, 150);
    }

    #[test]
    fn usage_stays_between_zero_and_the_leased_amount() {
        let first = measured(0, 40, 0, 40);
        let after = measured(1000, 4000, 1000 * 4000, 5000);
        let expected = Between { bytes: 100, byte_us: 100 * 1000, cpu_ns: 10_000 };
        assert_eq!(between(100, &first, &first, &after), expected);
        let less = Measured { cpu_ns: 0, ..measured(1000, 10, 1000 * 10, 40) };
        assert_eq!(between(100, &first, &first, &less), Between::default());
    }

    #[test]
    fn traffic_is_kept_by_component_and_memory_within_a_bound() {
        let document = br#"{"version":1,"name":"g","components":[
            {"name":"a","type":"compute","package":"p","function":"f","entry":true},
            {"name":"m","type":"memory"}],"edges":[{"type":"access","from":"a","to":"m","rights":"write"}]}"#;
        let mut uses = Uses::new(&Graph::parse(document).unwrap());
        let moved = Traffic { writes: 2, written_bytes: 5, ..Traffic::default() };
        for _ in 0..3 {
            uses.count_traffic(1, TrafficByComponent::from([(0, moved)]));
        }
        let expected = Traffic { writes: 6, written_bytes: 15, ..Traffic::default() };
        let channel = ChannelUse { memory: "m".to_owned(), traffic: Some(expected) };
        assert_eq!(uses.components[0].channels, std::slice::from_ref(&channel));
        uses.components[1].channels = vec![ChannelUse::default(); MAX_CHANNELS - 1];
        uses.count_traffic(1, TrafficByComponent::from([(0, moved), (1, moved)]));
        assert_eq!(uses.components[1].channels.len(), MAX_CHANNELS - 1, "the record is full");
        assert_eq!(uses.components[0].channels[0].traffic.map(|traffic| traffic.writes), Some(8));
    }
}
