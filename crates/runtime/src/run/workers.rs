//! The leased workers of a compute component.

use std::time::{Duration, Instant};

use sublet_proto::v1;

use super::budget::BudgetShare;
use super::uses::{Readings, UsageReading};
use crate::invoker::Invoker;
use crate::lease::link::AGENT_TIMEOUT;

/// Interval at which the answers of agents are checked.
const LOOK_FOR_AGENTS: Duration = Duration::from_millis(1);

/// The workers of a compute component. They are given back when this is dropped.
pub(super) struct ComponentWorkers {
    pub(super) invoker: Invoker,
    pub(super) since: Instant,
    /// When a runner gives them back, if it keeps them for the next run.
    pub(super) until: Option<Instant>,
    /// Usage of each lease when its process was ready, and when the current component began.
    pub(super) first: Vec<UsageReading>,
    pub(super) before: Vec<UsageReading>,
    /// Share of the run's limits. It is declared last, since it must be returned after the workers.
    pub(super) share: Option<BudgetShare>,
}

impl ComponentWorkers {
    /// Whether all of them can be called.
    pub(super) fn are_there(&self) -> bool {
        self.invoker.leases_held().all(|lease| lease.running() && !lease.is_ending())
    }

    /// Passes their share of the run's limits to a component of the run.
    pub(super) fn hand_on(&self, to: usize) {
        self.share.iter().for_each(|share| share.hand_on(Some(to)));
    }

    /// Marks their share of the run's limits as being returned, until another component takes them over.
    pub(super) fn rest(self) -> ComponentWorkers {
        self.share.iter().for_each(|share| share.hand_on(None));
        ComponentWorkers { since: Instant::now(), ..self }
    }

    /// Returns their share of the run's limits: the workers no longer belong to the run.
    pub(super) fn leave_run(self) -> ComponentWorkers {
        ComponentWorkers { share: None, ..self }
    }

    /// The usage since they began, or since the previous call.
    pub(super) fn read(&mut self) -> Vec<Readings> {
        let after: Vec<UsageReading> =
            self.first.iter().map(|first| UsageReading::ask(first.lease())).collect();
        let before = std::mem::replace(&mut self.before, after.clone());
        let all = self.first.iter().cloned().zip(before).zip(after);
        all.map(|((first, before), after)| Readings { first, before, after }).collect()
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.invoker.leases_held().map(|lease| lease.memory_bytes()).sum()
    }

    /// The nodes that they are on.
    pub(super) fn nodes(&self) -> Vec<String> {
        self.invoker.leases().into_iter().map(|lease: v1::Lease| lease.node).collect()
    }

    /// Waits until the workers' agents have answered, or are known to be gone.
    pub(super) fn await_agents(&self) {
        let asked: Vec<UsageReading> = self.invoker.leases_held().map(UsageReading::ask).collect();
        let until = Instant::now() + AGENT_TIMEOUT;
        while !asked.iter().all(UsageReading::is_settled) && Instant::now() < until {
            std::thread::sleep(LOOK_FOR_AGENTS);
        }
    }
}
