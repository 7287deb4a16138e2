//! A deployed graph in a client, and what it keeps between its runs: workers, and the usage of earlier runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use sublet_proto::graph::Graph;
use sublet_proto::v1::GraphInfo;

use super::execute::Environment;
use super::history::RunHistory;
use super::options::RunOptions;
use super::planned::PlannedNode;
use super::workers::ComponentWorkers;
use super::{mailboxes, swapping};
use crate::lease::link::lock;
use crate::manager::ManagerClient;

/// A deployed graph, to be run any number of times, and by several threads at once.
pub struct Application {
    pub(super) manager: Arc<ManagerClient>,
    /// The graph as its document describes it.
    pub(super) described: Graph,
    /// The graph with the memory components that carry its messages.
    pub(super) graph: Arc<Graph>,
    pub(super) digest: String,
    pub(super) options: RunOptions,
    /// Workers of earlier runs.
    kept: Mutex<HashMap<Environment, Vec<ComponentWorkers>>>,
    /// The usage of earlier runs, once it was needed.
    pub(super) history: OnceLock<Mutex<RunHistory>>,
}

impl Application {
    /// An application that is deployed.
    pub(super) fn new(
        manager: Arc<ManagerClient>,
        graph: Graph,
        GraphInfo { digest, swaps, .. }: GraphInfo,
        options: RunOptions,
    ) -> Application {
        let (kept, history) = (Mutex::default(), OnceLock::new());
        let driven = Arc::new(swapping::with_swap_space(&mailboxes::with_mailboxes(&graph), swaps));
        Application { manager, described: graph, graph: driven, digest, options, kept, history }
    }

    /// A value that is derived from earlier runs.
    pub(super) fn past<T>(&self, ask: impl FnOnce(&RunHistory) -> T) -> T {
        let read = || Mutex::new(RunHistory::read(&self.manager, &self.graph));
        ask(&lock(self.history.get_or_init(read)))
    }

    /// Keeps workers for the next run.
    pub(super) fn keep(&self, environment: Environment, workers: Vec<ComponentWorkers>) {
        if !self.options.keep_alive.is_zero() {
            lock(&self.kept).entry(environment).or_default().extend(workers);
        }
    }

    /// Workers that were kept and suit a planned node, if there are any.
    pub(super) fn kept(&self, environment: &Environment, planned: &PlannedNode) -> Option<ComponentWorkers> {
        let mut kept = lock(&self.kept);
        let all = kept.get_mut(environment)?;
        all.retain(ComponentWorkers::are_there);
        planned.take(all)
    }

    /// Takes all kept workers, because a component waits for their resources.
    pub(super) fn take_kept(&self) -> HashMap<Environment, Vec<ComponentWorkers>> {
        std::mem::take(&mut *lock(&self.kept))
    }
}
