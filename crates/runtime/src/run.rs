//! Runs of graphs: applications of compute and memory components, driven by a client or a runner (Scad 3.1, 4.1, 4.2.4).
//!
//! An [`Application`] is a deployed graph. [`Application::run`] leases workers for each compute component when its
//! predecessors are done, passes it their outputs, and gives its workers the memory components that its edges allow.
//! The managers record the outputs of each component. If a component, a memory component or a node is lost, only the
//! components that communicate with it begin again, from the recorded outputs.
//!
//! [`Application::detach`] leaves the run to a [`Runner`]; a [`RunHandle`] waits for its result. Whichever process drives
//! a run has the run's lease, and another takes it when that process is gone.
//!
//! ```text
//! application.rs  a deployed graph, and what is kept between its runs
//! progress.rs  what is to be done next: pure
//! driver.rs    does it; driver/preparation.rs leases workers, ahead if possible
//!   execute.rs a compute component: workers, and the calls of its instances
//!   memory.rs  a memory component, and how it reaches workers
//!   mailboxes.rs  what messages are carried by
//!   instances.rs how many instances a component has, if that follows from data
//!   journal.rs what was recorded; journal/writer.rs has it stored
//!   lease.rs   the right to drive the run, which report.rs renews
//!   log.rs     the latest events
//!   uses.rs    what components have and had, told by report.rs and over time by series.rs
//! handle.rs    a run that another process drives: its result, its end, its log
//! runner.rs    drives detached runs
//! budget.rs    what the graph's limits leave
//! sizes.rs     how large components are made, by history.rs
//! ```
//!
//! Components and memory may be on any machines. Pieces of a memory component on a worker's own machine are mapped
//! there, whichever machine the client is on. The worker reaches the others over a connection from machine to machine,
//! which carries nothing through the client.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sublet_proto::graph::{self, Graph, Medium};
use sublet_proto::v1::RunInfo;
use sublet_proto::{Code, Error};

use crate::access::Access;
use crate::invoker::Invoker;
use crate::lease::link::lock;
use crate::manager::ManagerClient;
use driver::{Driven, RunDriver};
use journal::{KeptRun, RunJournal};
use lease::DriverLease;
use log::RunLog;

pub use application::Application;
pub use handle::{LogLine, RunHandle};
pub use news::{News, Outcome, RunResult};
pub use options::RunOptions;
pub use runner::{Runner, RunnerNews, RunnerOptions};
pub use sizes::{HISTORY_RUNS, Sizes, memory as memory_sizes};

mod application;
mod budget;
mod driver;
mod event;
mod execute;
mod handle;
mod history;
mod instances;
mod journal;
mod lease;
mod log;
mod mailboxes;
mod memory;
mod memory_usage;
mod news;
mod options;
mod parking;
mod planned;
mod progress;
mod report;
mod runner;
mod series;
mod sizes;
mod swapping;
mod traffic;
mod uses;
mod warmth;
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

    /// A run of the caller's tenant, by its identifier. That there is such a run shows when it is used.
    pub fn open_run(&self, run: &str) -> RunHandle {
        RunHandle::new(self.manager.clone(), run.to_owned())
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
        let info = manager.deploy_graph(document.to_vec())?;
        Ok(Application::new(manager, graph, info, options))
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
        Ok(Application::new(manager, graph, found.info.unwrap_or_default(), options))
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
        news: impl FnMut(&News),
        goes_on: impl FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        self.run_filled(input, Vec::new(), news, goes_on)
    }

    /// Runs the graph like [`Application::run_while`]. Memory components begin with the bytes that `contents` has for
    /// their names: input that is larger than a message. They are not recorded, so a run that still needs them cannot
    /// be resumed.
    ///
    /// # Errors
    /// `invalid_argument` if the graph has no such memory component, or its limit is less; and as for
    /// [`Application::run_while`].
    pub fn run_filled(
        &self,
        input: &[u8],
        contents: Vec<(String, Vec<u8>)>,
        mut news: impl FnMut(&News),
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Outcome, Error> {
        let filled = contents.iter().map(|(name, _)| name.clone()).collect();
        let contents: HashMap<usize, Arc<Vec<u8>>> =
            contents.into_iter().map(|content| self.content(content)).collect::<Result<_, Error>>()?;
        let journal = RunJournal::begin(&self.manager, (&self.graph, &self.digest), (input, filled))?;
        let run = journal.run().to_owned();
        let driver = RunDriver::new(self, journal, input.to_vec(), &mut news).with_contents(contents);
        self.outcome(run, driver.for_as_long_as(&mut goes_on).run(None))
    }

    /// The bytes that a memory component begins with, by its index.
    fn content(&self, (name, bytes): (String, Vec<u8>)) -> Result<(usize, Arc<Vec<u8>>), Error> {
        let components = &self.graph.components;
        let found = components.iter().position(|component| component.name == name);
        let need = found.and_then(|index| components.get(index)?.memory().map(|need| (index, need)));
        let invalid = |message: String| Error::new(Code::InvalidArgument, message);
        let (index, need) = need.ok_or_else(|| {
            invalid(format!("{name} is to begin with {} bytes, and is no memory component", bytes.len()))
        })?;
        if need.medium == Medium::Device {
            return Err(invalid(format!(
                "memory component {name} is on a device, and begins with no bytes: have a component write them there"
            )));
        }
        if bytes.len() as u64 > need.limit_bytes {
            let (len, limit) = (bytes.len(), need.limit_bytes);
            return Err(invalid(format!(
                "{len} bytes for memory component {name}, which has at most {limit}"
            )));
        }
        Ok((index, Arc::new(bytes)))
    }

    /// Begins a run that does not depend on this process: it is stored, and a [`Runner`] drives it, with the options of
    /// this application except those about workers after a call or a run.
    ///
    /// # Errors
    /// `invalid_argument` if the graph has a memory component as its result, `store_full`, and other errors of the
    /// managers.
    pub fn detach(&self, input: &[u8]) -> Result<RunHandle, Error> {
        let run = journal::detach(&self.manager, &self.digest, input, self.options.to_terms())?;
        Ok(RunHandle::new(self.manager.clone(), run))
    }

    /// Resumes a run whose client is gone, from its recorded outputs. Waits for some seconds if that client may still be
    /// there.
    ///
    /// # Errors
    /// `unknown_run` if no such run is unfinished, `invalid_argument` if it is a run of another graph, `run_taken` if
    /// another process drives it. `worker_died` if a component with external effects had begun, and its memory or its
    /// outcome is lost, or if the run needs bytes that only its client had. Others as for [`Application::run`].
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
        let taken = lease::take(&self.manager, run, &mut goes_on)?;
        let epoch = journal::epoch_of(&taken);
        let (journal, KeptRun { input, records, notes }) = self.open_taken(taken).inspect_err(|_| {
            // Another process may take the run at once.
            DriverLease::new(self.manager.clone(), run.to_owned(), epoch).hand_back();
        })?;
        let mut log = RunLog::new(notes);
        log.note("", "resumed by a client".to_owned());
        let driver = RunDriver::new(self, journal, input, &mut news).with_log(log);
        self.outcome(run.to_owned(), driver.for_as_long_as(&mut goes_on).run(Some(&records)))
    }

    /// Reads the records of a run whose lease this process has taken.
    ///
    /// # Errors
    /// `invalid_argument` if it is a run of another graph, and the managers' errors.
    fn open_taken(&self, taken: RunInfo) -> Result<(RunJournal, KeptRun), Error> {
        if taken.digest != self.digest {
            let (run, graph, own) = (&taken.run, &taken.graph, &self.graph.name);
            let message = format!("run {run} is of graph {graph}, in another version than {own} has here");
            return Err(Error::new(Code::InvalidArgument, message));
        }
        RunJournal::open(&self.manager, &self.graph, taken)
    }

    /// Drives a detached run until it ends, or until `leaves` is set: then it is handed back.
    fn drive_taken(
        &self,
        runner: &str,
        (journal, kept): (RunJournal, KeptRun),
        leaves: &AtomicBool,
    ) -> Result<(), Error> {
        let run = journal.run().to_owned();
        let mut log = RunLog::new(kept.notes);
        log.note("", format!("driven by {runner}"));
        let mut news = |_: &News| {};
        let driver = RunDriver::new(self, journal, kept.input, &mut news).with_log(log).until(leaves);
        self.outcome(run, driver.run(Some(&kept.records))).map(drop)
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
