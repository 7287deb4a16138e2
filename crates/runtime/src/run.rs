//! Runs of graphs: applications of compute and memory components, driven by a client (Scad 3.1, 4.1, 4.2.4).
//!
//! An [`Application`] is a deployed graph. [`Application::run`] leases workers for each compute component when its
//! predecessors are done, passes it their outputs, and gives its workers the memory components that its edges allow.
//! The managers record the outputs of a component before the next one begins. If a component, a memory component or a
//! node is lost, only the components that communicate with it begin again, from the recorded outputs.
//!
//! ```text
//! application.rs  a deployed graph, and what is kept between its runs
//! progress.rs  what is to be done next: pure
//! driver.rs    does it
//!   execute.rs a compute component: workers, and the calls of its instances
//!   memory.rs  a memory component, and how it reaches workers
//!   mailboxes.rs  what messages are carried by
//!   instances.rs how many instances a component has, if that follows from data
//!   journal.rs what was recorded
//!   uses.rs    what components have and had, told by report.rs and over time by series.rs
//! budget.rs    what the graph's limits leave
//! sizes.rs     how large components are made, by history.rs
//! ```
//!
//! Components and memory may be on any machines. Pieces of a memory component on a worker's own machine are mapped
//! there, whichever machine the client is on. The worker reaches the others over a connection from machine to machine,
//! which carries nothing through the client.

use std::sync::Arc;

use sublet_proto::Error;
use sublet_proto::graph::{self, Graph};

use crate::access::Access;
use crate::invoker::Invoker;
use crate::lease::link::lock;
use crate::manager::ManagerClient;
use driver::{Driven, RunDriver};
use journal::RunJournal;

pub use application::Application;
pub use news::{News, Outcome, RunResult};
pub use options::RunOptions;

mod application;
mod budget;
mod driver;
mod event;
mod execute;
mod history;
mod instances;
mod journal;
mod mailboxes;
mod memory;
mod memory_usage;
mod news;
mod options;
mod planned;
mod progress;
mod report;
mod series;
mod sizes;
mod swapping;
mod traffic;
mod uses;
mod workers;

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
        let result = driven.result.map(Arc::new);
        Ok(Outcome { run, outputs, components: driven.uses, result })
    }
}
