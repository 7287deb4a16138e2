//! A deployed graph in a client, and what it keeps between its runs: workers, and the usage of earlier runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

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

/// Idle workers of the applications that have these names, by what they can execute.
pub(super) type KeptWorkers = Mutex<HashMap<(String, Environment), Vec<ComponentWorkers>>>;

/// A deployed graph, to be run any number of times, and by several threads at once.
pub struct Application {
    pub(super) manager: Arc<ManagerClient>,
    /// The graph as its document describes it.
    pub(super) described: Graph,
    /// The graph with the memory components that carry its messages.
    pub(super) graph: Arc<Graph>,
    pub(super) digest: String,
    pub(super) options: RunOptions,
    /// Workers of earlier runs, and the part of them that this application uses.
    kept: Arc<KeptWorkers>,
    kept_for: String,
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
        let (kept, kept_for, history) = (Arc::default(), String::new(), OnceLock::new());
        let driven = Arc::new(swapping::with_swap_space(&mailboxes::with_mailboxes(&graph), swaps));
        Application { manager, described: graph, graph: driven, digest, options, kept, kept_for, history }
    }

    /// Keeps workers for so long, together with those of other applications, and uses those that are there under the same
    /// name.
    pub(super) fn keeping(
        self,
        keep_alive: Duration,
        kept: Arc<KeptWorkers>,
        kept_for: String,
    ) -> Application {
        Application { options: RunOptions { keep_alive, ..self.options }, kept, kept_for, ..self }
    }

    /// A value that is derived from earlier runs.
    pub(super) fn past<T>(&self, ask: impl FnOnce(&RunHistory) -> T) -> T {
        let read = || Mutex::new(RunHistory::read(&self.manager, &self.graph));
        ask(&lock(self.history.get_or_init(read)))
    }

    /// Time after which agents end idle workers. A runner gives kept workers back by itself.
    pub(super) fn idle_timeout(&self) -> Option<Duration> {
        let keep_alive = self.options.keep_alive;
        (self.kept_for.is_empty() && !keep_alive.is_zero()).then_some(keep_alive)
    }

    /// Keeps workers for the next run.
    pub(super) fn keep(&self, environment: Environment, workers: Vec<ComponentWorkers>) {
        let keep_alive = self.options.keep_alive;
        if keep_alive.is_zero() {
            return;
        }
        let until = (!self.kept_for.is_empty()).then(|| Instant::now() + keep_alive);
        let workers = workers.into_iter().map(|workers| ComponentWorkers { until, ..workers });
        let key = (self.kept_for.clone(), environment);
        lock(&self.kept).entry(key).or_default().extend(workers);
    }

    /// Workers that were kept and suit a planned node, if there are any.
    pub(super) fn kept(&self, environment: &Environment, planned: &PlannedNode) -> Option<ComponentWorkers> {
        let mut kept = lock(&self.kept);
        let all = kept.get_mut(&(self.kept_for.clone(), environment.clone()))?;
        all.retain(ComponentWorkers::are_there);
        planned.take(all)
    }

    /// Takes all kept workers, also those of other applications, because a component waits for their resources.
    pub(super) fn take_kept(&self) -> Vec<ComponentWorkers> {
        std::mem::take(&mut *lock(&self.kept)).into_values().flatten().collect()
    }
}
