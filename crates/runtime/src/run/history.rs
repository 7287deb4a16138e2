//! Summarizes the usage of earlier runs of an application, from which sizes are chosen.
//!
//! The client chooses, and not the managers, for three reasons: it requests the leases; it knows the usage of its
//! latest run without a request; and further runs of an open application need no request for the history. The managers'
//! records are read once, when the application first runs.

use std::collections::VecDeque;

use sublet_proto::graph::{Compute, Graph, MemoryNeed};
use sublet_proto::v1::{ComponentUse, RunInfo};

use super::sizes::{self, EarlierUsage, HISTORY_RUNS, Sizes, SwapUsage};
use super::swapping::is_swap_space;
use crate::manager::ManagerClient;

/// The latest first.
#[derive(Default)]
pub(super) struct RunHistory {
    runs: VecDeque<Past>,
}

struct Past {
    has_ended_well: bool,
    components: Vec<ComponentUse>,
}

impl Past {
    /// Use of the swap space of a compute component. `None` if the component did not have any.
    fn swap_of(&self, used: &ComponentUse) -> Option<SwapUsage> {
        let name = used.component.as_str();
        let mut spaces = self.components.iter().filter(|of| is_swap_space(&of.component, name)).peekable();
        spaces.peek()?;
        let channels = used.channels.iter().filter(|channel| is_swap_space(&channel.memory, name));
        let returned = channels.map(|channel| channel.traffic.map_or(0, |traffic| traffic.read_bytes));
        Some(SwapUsage {
            swapped_bytes: spaces.map(|space| space.used_bytes).fold(0, u64::saturating_add),
            returned_bytes: returned.fold(0, u64::saturating_add),
        })
    }
}

impl RunHistory {
    /// Reads the usage of earlier runs from the managers. If they do not answer, the history is empty.
    pub(super) fn read(manager: &ManagerClient, graph: &Graph) -> RunHistory {
        #[expect(clippy::cast_possible_truncation, reason = "a small constant")]
        let runs = manager.runs(&graph.name, HISTORY_RUNS as u32).unwrap_or_default();
        let ended = runs.into_iter().filter(|run| run.ended_unix_ms != 0);
        let past = |RunInfo { code, components, .. }| Past { has_ended_well: code == 0, components };
        RunHistory { runs: ended.map(past).collect() }
    }

    /// A run has ended.
    pub(super) fn add(&mut self, has_ended_well: bool, components: Vec<ComponentUse>) {
        self.runs.truncate(HISTORY_RUNS - 1);
        self.runs.push_front(Past { has_ended_well, components });
    }

    /// The sizes of a memory component.
    pub(super) fn memory(&self, name: &str, of: &MemoryNeed) -> Sizes {
        // One that failed may have been on its way.
        let well = self.of(name).filter(|(has_ended_well, used)| *has_ended_well && used.attempts > 0);
        let used: Vec<u64> = well.map(|(_, used)| used.used_bytes).collect();
        sizes::memory(of, &used)
    }

    /// The memory for each worker of a compute component that begins for the `attempt`-th time, in bytes. `None` leaves
    /// it to the managers.
    pub(super) fn worker(&self, name: &str, of: &Compute, attempt: u32) -> Option<u64> {
        let worked = self.runs.iter().filter_map(|run| {
            let used = run.components.iter().find(|used| used.component == name)?;
            let worked = EarlierUsage {
                allocated_bytes: used.allocated_bytes,
                used_bytes: used.used_bytes,
                instances: used.instances,
                swap: run.swap_of(used),
            };
            // A failed run counts if its component failed for lack of memory.
            let counts = run.has_ended_well || worked.is_short();
            (counts && used.used_bytes > 0 && used.instances > 0).then_some(worked)
        });
        // A component that cannot be executed a second time needs enough memory the first time.
        let attempt = if of.has_external_effects { attempt.max(2) } else { attempt };
        sizes::worker(&worked.collect::<Vec<_>>(), attempt)
    }

    fn of(&self, name: &str) -> impl Iterator<Item = (bool, &ComponentUse)> {
        self.runs.iter().filter_map(move |run| {
            let used = run.components.iter().find(|used| used.component == name)?;
            Some((run.has_ended_well, used))
        })
    }
}

#[cfg(test)]
mod tests {
    use sublet_proto::graph::Medium;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn used(component: &str, instances: u32, allocated_bytes: u64, used_bytes: u64) -> ComponentUse {
        ComponentUse {
            component: component.to_owned(),
            attempts: 1,
            instances,
            allocated_bytes,
            used_bytes,
            ..ComponentUse::default()
        }
    }

    fn compute() -> Compute {
        let document = br#"{"version":1,"name":"g","components":[{"name":"c","type":"compute","package":"p","function":"f","entry":true}]}"#;
        Graph::parse(document).unwrap().components[0].compute().unwrap().clone()
    }

    #[test]
    fn runs_that_failed_say_only_what_was_too_little() {
        let mut history = RunHistory::default();
        let memory = MemoryNeed {
            initial_bytes: None,
            increment_bytes: None,
            limit_bytes: 1 << 40,
            pool: None,
            is_result: false,
            medium: Medium::Memory,
        };
        history.add(true, vec![used("m", 0, 64 * MIB, 50 * MIB), used("c", 1, 128 * MIB, 10 * MIB)]);
        let (sizes, worker) = (history.memory("m", &memory), history.worker("c", &compute(), 1));
        history.add(false, vec![used("m", 0, MIB, 4096), used("c", 1, 128 * MIB, MIB)]);
        assert_eq!((history.memory("m", &memory), history.worker("c", &compute(), 1)), (sizes, worker));
        history.add(false, vec![used("c", 1, 128 * MIB, 120 * MIB)]);
        assert!(history.worker("c", &compute(), 1) >= Some(256 * MIB), "it was killed for want of memory");
        assert_eq!(history.worker("other", &compute(), 1), None);
    }

    #[test]
    fn history_keeps_a_bounded_number_of_runs() {
        let mut history = RunHistory::default();
        let memory = MemoryNeed {
            initial_bytes: None,
            increment_bytes: None,
            limit_bytes: 1 << 34,
            pool: None,
            is_result: false,
            medium: Medium::Memory,
        };
        for _ in 0..HISTORY_RUNS {
            history.add(true, vec![used("m", 0, MIB, MIB)]);
        }
        assert_eq!(history.runs.len(), HISTORY_RUNS);
        for _ in 0..HISTORY_RUNS {
            history.add(true, vec![used("m", 0, 256 * MIB, 256 * MIB)]);
        }
        assert_eq!(history.runs.len(), HISTORY_RUNS);
        assert_eq!(history.memory("m", &memory).initial_bytes, 256 * MIB);
    }
}
