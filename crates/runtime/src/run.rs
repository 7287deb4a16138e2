//! Runs of graphs: applications of compute and memory components, driven by a client (Scad 3.1, 4.1, 4.2.4).
//!
//! An [`Application`] is a deployed graph. [`Application::run`] leases workers for each compute component when those before it
//! are done, hands it their outputs, and gives its workers the memory components that its edges allow. What one component
//! hands to the next is recorded by the managers before the next begins; if a component, a memory component or a node is lost,
//! those that communicate with it begin again from what was recorded, and nothing else does.
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
//! Components and memory may be on any machines. What of a memory component is on a worker's own is mapped there, whichever machine
//! the client is on; the rest is reached over a connection from machine to machine, which carries nothing through the client.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use sublet_proto::graph::{self, Graph};
use sublet_proto::{Code, Error, v1};

use crate::access::Access;
use crate::fabrics::FabricChoice;
use crate::invocation::is_repeatable;
use crate::lease::link::lock;
use crate::manager::ManagerClient;
use driver::{Driven, Driver};
use execute::{Environment, Workers};
use history::History;
use journal::Journal;

mod budget;
mod driver;
mod execute;
mod history;
mod journal;
mod mailboxes;
mod memory;
mod progress;
mod report;
mod series;
mod sizes;
mod swapping;
mod uses;

/// How an application is run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// How long a component waits for cores or memory, in the managers' fair queue. 30 s if nothing is said.
    pub patience: Duration,
    /// How often a component may be lost and begin again. 3 if nothing is said.
    pub retries: u32,
    /// The environments of the next components are made ready so long after those before them have begun (Scad's tau); none:
    /// when they begin. At once if nothing is said.
    pub prewarm: Option<Duration>,
    /// How long workers are kept for the next run of the same application. Not at all if nothing is said.
    pub keep_alive: Duration,
    /// How long workers poll after a call, see [`Policy`](crate::Policy).
    pub hot_timeout: Duration,
    /// Leases end by themselves after so long; nothing of a run may take longer. An hour if nothing is said.
    pub lease_timeout: Duration,
    /// What carries the calls of components, and the bytes of memory to and from other machines. If nothing is said: shared
    /// memory on the same machine, and the best common network else.
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
    /// As the document has it,
    described: Graph,
    /// and with what its messages are carried by.
    graph: Arc<Graph>,
    digest: String,
    options: RunOptions,
    /// Workers of earlier runs.
    kept: Mutex<HashMap<Environment, Vec<Workers>>>,
    /// What those used, once it is asked for.
    history: OnceLock<Mutex<History>>,
}

/// What a run has come to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The run's identifier.
    pub run: String,
    /// Of each component that triggers no other its name, and what each of its instances has returned.
    pub outputs: Vec<(String, Vec<Vec<u8>>)>,
    /// What each component had.
    pub components: Vec<v1::ComponentUse>,
}

/// What happens to a run.
#[derive(Clone, Debug)]
pub enum News {
    /// A component begins, for the first or a further time.
    Began {
        /// Its name.
        component: String,
        /// From 1.
        attempt: u32,
    },
    /// A component is done.
    Ended {
        /// Its name.
        component: String,
        /// Since its instances were called.
        took: Duration,
    },
    /// A component is to begin and waits for what it needs.
    Waits {
        /// Its name.
        component: String,
        /// What that is, and why it is not to be had yet.
        error: Error,
    },
    /// What executed a component, or held its bytes, is gone.
    Lost {
        /// Its name.
        component: String,
        /// Why.
        error: Error,
    },
    /// A component's function has failed, which ends the run with the same error.
    Failed {
        /// Its name.
        component: String,
        /// Why.
        error: Error,
        /// The failure report (see SPECIFICATION.md) of a function in Python; empty if there is none. Whoever wrote the
        /// function wrote this.
        report: Vec<u8>,
    },
}

impl Application {
    /// Deploys the document of a graph, and opens it.
    ///
    /// # Errors
    /// `invalid_graph` with all that is wrong, and what the managers say.
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

    /// Its graph.
    pub fn graph(&self) -> &Graph {
        &self.described
    }

    /// Runs it, with this input of its entry.
    ///
    /// # Errors
    /// That of the first component that fails, with its name; of one that is lost too often; `store_full` and others of the
    /// managers if something cannot be recorded. Nothing is held then.
    pub fn run(&self, input: &[u8]) -> Result<Outcome, Error> {
        self.run_with(input, |_| {})
    }

    /// As [`Application::run`]; says what happens meanwhile.
    pub fn run_with(&self, input: &[u8], news: impl FnMut(&News)) -> Result<Outcome, Error> {
        self.run_while(input, news, || true)
    }

    /// The same, for as long as `goes_on` says so, which is asked again and again.
    ///
    /// # Errors
    /// `lease_ended` if it says no: the run has ended, and cannot be resumed.
    pub fn run_while(
        &self,
        input: &[u8],
        mut news: impl FnMut(&News),
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        let journal = Journal::begin(&self.manager, (&self.graph, &self.digest), input)?;
        let run = journal.run().to_owned();
        let driver = Driver::new(self, journal, input.to_vec(), &mut news);
        self.outcome(run, driver.for_as_long_as(&mut goes_on).run(None))
    }

    /// Goes on with a run whose client is gone, from what it has recorded. Nobody else may do so at the same time.
    ///
    /// # Errors
    /// `unknown_run` if there is none that has not ended, `worker_died` if a component with external effects had begun
    /// whose memory is lost; and as for [`Application::run`].
    pub fn resume(&self, run: &str, news: impl FnMut(&News)) -> Result<Outcome, Error> {
        self.resume_while(run, news, || true)
    }

    /// The same, for as long as `goes_on` says so; see [`Application::run_while`].
    ///
    /// # Errors
    /// As for both.
    pub fn resume_while(
        &self,
        run: &str,
        mut news: impl FnMut(&News),
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        let (journal, input, records) = Journal::open(&self.manager, &self.graph, run)?;
        let driver = Driver::new(self, journal, input, &mut news).for_as_long_as(&mut goes_on);
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

    /// Something that earlier runs say.
    fn past<T>(&self, ask: impl FnOnce(&History) -> T) -> T {
        let read = || Mutex::new(History::read(&self.manager, &self.graph));
        ask(&lock(self.history.get_or_init(read)))
    }

    /// Keeps workers for the next run.
    fn keep(&self, environment: Environment, workers: Vec<Workers>) {
        if !self.options.keep_alive.is_zero() {
            lock(&self.kept).entry(environment).or_default().extend(workers);
        }
    }

    /// Workers that were kept, if there are any.
    fn kept(&self, environment: &Environment) -> Option<Workers> {
        let mut kept = lock(&self.kept);
        let all = kept.get_mut(environment)?;
        all.retain(Workers::are_there);
        all.pop()
    }

    /// All that are kept, for somebody waits for what they have.
    fn take_kept(&self) -> HashMap<Environment, Vec<Workers>> {
        std::mem::take(&mut *lock(&self.kept))
    }
}

/// Whether what ended so may do better another time. A lease that is ended between its grant and its attachment is refused by its
/// agent (`permission_denied`).
fn is_lost(code: Code) -> bool {
    is_repeatable(code) || matches!(code, Code::PermissionDenied | Code::TicketSuperseded)
}
