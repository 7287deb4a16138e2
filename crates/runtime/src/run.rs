//! Runs of graphs: applications of compute and memory components, driven by a client (Scad 3.1, 4.1, 4.2.4).
//!
//! An [`Application`] is a deployed graph. [`Application::run`] leases workers for each compute component when its
//! predecessors are done, passes it their outputs, and gives its workers the memory components that its edges allow.
//! The managers record the outputs of a component before the next one begins. If a component, a memory component or a
//! node is lost, only the components that communicate with it begin again, from the recorded outputs.
//!
//! ```text
//! progress.rs  what is to be done next: pure
//! driver.rs    does it
//!   execute.rs a compute component: workers, and the calls of its instances
//!   memory.rs  a memory component, and how it reaches workers
//!   mailboxes.rs  what messages are carried by
//!   journal.rs what was recorded
//!   uses.rs    what components have and had, told by report.rs and over time by series.rs
//! budget.rs    what the graph's limits leave
//! sizes.rs     how large components are made, by history.rs
//! ```
//!
//! Components and memory may be on any machines. Pieces of a memory component on a worker's own machine are mapped
//! there, whichever machine the client is on. The worker reaches the others over a connection from machine to machine,
//! which carries nothing through the client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sublet_proto::graph::{self, Graph};
use sublet_proto::{Code, Error, v1};

use crate::access::Access;
use crate::fabrics::FabricChoice;
use crate::invocation::is_repeatable;
use crate::invoker::Invoker;
use crate::lease::link::lock;
use crate::manager::ManagerClient;
use driver::{Driven, RunDriver};
use execute::Environment;
use history::RunHistory;
use journal::RunJournal;
use workers::ComponentWorkers;

mod budget;
mod driver;
mod event;
mod execute;
mod history;
mod journal;
mod mailboxes;
mod memory;
mod memory_usage;
mod progress;
mod report;
mod series;
mod sizes;
mod swapping;
mod uses;
mod workers;

/// Options for the runs of an application.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Longest time that a component waits for cores or memory, in the managers' fair queue. The default is 30 s.
    pub patience: Duration,
    /// Number of times that a component may be lost and begin again. The default is 3.
    pub retries: u32,
    /// Time after the beginning of their predecessors when the environments of the next components are prepared (Scad's
    /// tau). The default is zero: at once. `None` prepares them when the components begin.
    pub prewarm: Option<Duration>,
    /// Time for which workers are kept for the next run of the same application. The default is zero.
    pub keep_alive: Duration,
    /// Time for which workers poll after a call, see [`Policy`](crate::Policy).
    pub hot_timeout: Duration,
    /// Longest time that anything in a run may take: its leases end by themselves after this time. The default is an
    /// hour.
    pub lease_timeout: Duration,
    /// Transport of the calls of components, and of the bytes of memory to and from other machines. The default is
    /// shared memory on the same machine, and the best common network otherwise.
    pub fabric: Option<FabricChoice>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions {
            patience: Duration::from_secs(30),
            retries: 3,
            prewarm: Some(Duration::ZERO),
            keep_alive: Duration::ZERO,
            hot_timeout: Duration::ZERO,
            lease_timeout: Duration::from_secs(3600),
            fabric: None,
        }
    }
}

/// A deployed graph, to be run any number of times, and by several threads at once.
pub struct Application {
    manager: Arc<ManagerClient>,
    /// The graph as its document describes it.
    described: Graph,
    /// The graph with the memory components that carry its messages.
    graph: Arc<Graph>,
    digest: String,
    options: RunOptions,
    /// Workers of earlier runs.
    kept: Mutex<HashMap<Environment, Vec<ComponentWorkers>>>,
    /// The usage of earlier runs, once it was needed.
    history: OnceLock<Mutex<RunHistory>>,
}

/// Result of a run that succeeded.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run's identifier.
    pub run: String,
    /// Name of each component that triggers no other, with the outputs of its instances.
    pub outputs: Vec<(String, Vec<Vec<u8>>)>,
    /// Usage of each component.
    pub components: Vec<v1::ComponentUse>,
}

/// Event of a run.
#[derive(Clone, Debug)]
pub enum News {
    /// A component begins, for the first or a further time.
    Began {
        /// Name of the component.
        component: String,
        /// Number of the attempt, from 1.
        attempt: u32,
    },
    /// A component is done.
    Ended {
        /// Name of the component.
        component: String,
        /// Time since its instances were called.
        took: Duration,
    },
    /// A component is ready and waits for resources.
    Waits {
        /// Name of the component.
        component: String,
        /// The missing resources, and the reason why they are not available yet.
        error: Error,
    },
    /// The workers of a compute component, or the bytes of a memory component, are lost.
    Lost {
        /// Name of the component.
        component: String,
        /// Reason for the loss.
        error: Error,
    },
    /// A component's function has failed, which ends the run with the same error.
    Failed {
        /// Name of the component.
        component: String,
        /// Error of the function.
        error: Error,
        /// The failure report (see SPECIFICATION.md) of a function in Python; empty if there is none. The author of the
        /// function controls its content.
        report: Vec<u8>,
    },
}

impl Invoker {
    /// Gives the managers the document of a graph, and opens it.
    ///
    /// # Errors
    /// As for [`Application::deploy`].
    pub fn deploy_graph(&self, document: &[u8], options: RunOptions) -> Result<Application, Error> {
        Application::deploy_by(self.manager.clone(), document, options)
    }

    /// Opens a deployed graph by its name or digest.
    ///
    /// # Errors
    /// `unknown_graph`.
    pub fn open_graph(&self, name: &str, options: RunOptions) -> Result<Application, Error> {
        Application::open_by(self.manager.clone(), name, options)
    }
}

impl Application {
    /// Deploys the document of a graph, and opens it.
    ///
    /// # Errors
    /// `invalid_graph` with all problems, and the managers' errors.
    pub fn deploy(access: Access, document: &[u8], options: RunOptions) -> Result<Application, Error> {
        Application::deploy_by(Arc::new(ManagerClient::connect_with(access)?), document, options)
    }

    pub(crate) fn deploy_by(
        manager: Arc<ManagerClient>,
        document: &[u8],
        options: RunOptions,
    ) -> Result<Application, Error> {
        let graph = Graph::parse(document).map_err(|problems| graph::error("the document", &problems))?;
        let digest = manager.deploy_graph(document.to_vec())?.digest;
        Ok(Application::new(manager, graph, digest, options))
    }

    /// Opens a deployed graph by its name or digest.
    ///
    /// # Errors
    /// `unknown_graph`.
    pub fn open(access: Access, name: &str, options: RunOptions) -> Result<Application, Error> {
        Application::open_by(Arc::new(ManagerClient::connect_with(access)?), name, options)
    }

    pub(crate) fn open_by(
        manager: Arc<ManagerClient>,
        name: &str,
        options: RunOptions,
    ) -> Result<Application, Error> {
        let found = manager.find_graph(name)?;
        let graph = Graph::parse(&found.document).map_err(|problems| graph::error(name, &problems))?;
        let digest = found.info.map(|info| info.digest).unwrap_or_default();
        Ok(Application::new(manager, graph, digest, options))
    }

    fn new(manager: Arc<ManagerClient>, graph: Graph, digest: String, options: RunOptions) -> Application {
        let (kept, history) = (Mutex::default(), OnceLock::new());
        let driven = Arc::new(swapping::with_swap_space(&mailboxes::with_mailboxes(&graph)));
        Application { manager, described: graph, graph: driven, digest, options, kept, history }
    }

    /// The digest of its document, by which it can be opened.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The graph as its document describes it.
    pub fn graph(&self) -> &Graph {
        &self.described
    }

    /// Runs the graph, with this input of its entry.
    ///
    /// # Errors
    /// The error of the first component that fails, with its name; of one that is lost too often; `store_full` and
    /// other errors of the managers if something cannot be recorded. The run then holds no resources.
    pub fn run(&self, input: &[u8]) -> Result<Outcome, Error> {
        self.run_with(input, |_| {})
    }

    /// Runs the graph like [`Application::run`], and reports its events.
    pub fn run_with(&self, input: &[u8], news: impl FnMut(&News)) -> Result<Outcome, Error> {
        self.run_while(input, news, || true)
    }

    /// Runs the graph like [`Application::run_with`], as long as `goes_on`, which is called repeatedly, returns true.
    ///
    /// # Errors
    /// `lease_ended` if `goes_on` returns false: the run has ended, and cannot be resumed.
    pub fn run_while(
        &self,
        input: &[u8],
        mut news: impl FnMut(&News),
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        let journal = RunJournal::begin(&self.manager, (&self.graph, &self.digest), input)?;
        let run = journal.run().to_owned();
        let driver = RunDriver::new(self, journal, input.to_vec(), &mut news);
        self.outcome(run, driver.for_as_long_as(&mut goes_on).run(None))
    }

    /// Resumes a run whose client is gone, from its recorded outputs. No other client may resume it at the same time.
    ///
    /// # Errors
    /// `unknown_run` if no such run is unfinished, `worker_died` if a component with external effects had begun whose
    /// memory is lost; and as for [`Application::run`].
    pub fn resume(&self, run: &str, news: impl FnMut(&News)) -> Result<Outcome, Error> {
        self.resume_while(run, news, || true)
    }

    /// Resumes a run like [`Application::resume`], as long as `goes_on` returns true; see [`Application::run_while`].
    ///
    /// # Errors
    /// As for [`Application::resume`] and [`Application::run_while`].
    pub fn resume_while(
        &self,
        run: &str,
        mut news: impl FnMut(&News),
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        let (journal, input, records) = RunJournal::open(&self.manager, &self.graph, run)?;
        let driver = RunDriver::new(self, journal, input, &mut news).for_as_long_as(&mut goes_on);
        self.outcome(run.to_owned(), driver.run(Some(&records)))
    }

    fn outcome(&self, run: String, driven: Driven) -> Result<Outcome, Error> {
        if let Some(history) = self.history.get() {
            lock(history).add(driven.outcome.is_ok(), driven.uses.clone());
        }
        let named = |(component, outputs): (usize, progress::Outputs)| {
            (self.graph.components[component].name.clone(), Vec::clone(&outputs))
        };
        let outputs = driven.outcome?.into_iter().map(named).collect();
        Ok(Outcome { run, outputs, components: driven.uses })
    }

    /// A value that is derived from earlier runs.
    fn past<T>(&self, ask: impl FnOnce(&RunHistory) -> T) -> T {
        let read = || Mutex::new(RunHistory::read(&self.manager, &self.graph));
        ask(&lock(self.history.get_or_init(read)))
    }

    /// Keeps workers for the next run.
    fn keep(&self, environment: Environment, workers: Vec<ComponentWorkers>) {
        if !self.options.keep_alive.is_zero() {
            lock(&self.kept).entry(environment).or_default().extend(workers);
        }
    }

    /// Workers that were kept, if there are any.
    fn kept(&self, environment: &Environment) -> Option<ComponentWorkers> {
        let mut kept = lock(&self.kept);
        let all = kept.get_mut(environment)?;
        all.retain(ComponentWorkers::are_there);
        all.pop()
    }

    /// Takes all kept workers, because a component waits for their resources.
    fn take_kept(&self) -> HashMap<Environment, Vec<ComponentWorkers>> {
        std::mem::take(&mut *lock(&self.kept))
    }
}

/// Returns whether a repetition may succeed after this error. A lease that is ended between its grant and its
/// attachment is refused by its agent (`permission_denied`).
fn is_lost(code: Code) -> bool {
    is_repeatable(code) || matches!(code, Code::PermissionDenied | Code::TicketSuperseded)
}
