//! Drives a run: executes the steps that [`RunProgress`] decides on, one after the other, and reports events to it.

mod end;
mod preparation;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sublet_proto::graph::{Compute, InstancesFrom};
use sublet_proto::v1::{ComponentState, ComponentUse, ReportRunRequest};
use sublet_proto::{Code, Error};

use super::application::Application;
use super::budget::RunBudget;
use super::event::{ComponentFailure, ExecutionResult, RunEvent};
use super::execute::{Cancel, Environment, Go};
use super::instances::{NumberRule, parts_of};
use super::journal::RunJournal;
use super::lease::DriverLease;
use super::log::RunLog;
use super::mailboxes::end_of;
use super::memory::{Channels, MemoryComponent};
use super::memory_usage::MemoryComponentUsage;
use super::news::{News, RunResult};
use super::progress::{ComponentPhase, KeptRecord, Outputs, RunProgress, RunStep};
use super::report::RunReporter;
use super::uses::{Now, Uses, micros};
use super::workers::ComponentWorkers;

/// Sampling interval for the usage of memory components.
const SAMPLE: Duration = Duration::from_millis(50);

/// Time after which a run is first reported to the managers, and the interval of further reports. Shorter runs are
/// reported when they have ended.
const FIRST_REPORT: Duration = Duration::from_millis(200);
const REPORT: Duration = Duration::from_secs(1);

/// Result of a run: the outputs of the components that trigger no other, and the usage of each component.
pub(super) struct Driven {
    pub(super) outcome: Result<Vec<(usize, Outputs)>, Error>,
    /// The memory component that is the result of a run that succeeded.
    pub(super) result: Option<RunResult>,
    pub(super) uses: Vec<ComponentUse>,
}

/// Preparation of workers before their component begins.
#[derive(Default)]
struct Preparation {
    /// Longest wait for their resources.
    wait: Duration,
    /// The memory components that they join.
    channels: Option<Channels>,
}

/// A thread for a component.
struct ComponentThread {
    go: Sender<Go>,
    cancel: Arc<Cancel>,
    has_begun: bool,
}

/// See the [module](self).
pub(super) struct RunDriver<'run> {
    application: &'run Application,
    journal: RunJournal,
    progress: RunProgress,
    running: HashMap<usize, ComponentThread>,
    /// Numbers of instances of components that have begun, where they follow from data.
    instances: HashMap<usize, u32>,
    /// Workers of components that are done, for those that follow.
    idle: HashMap<Environment, Vec<ComponentWorkers>>,
    memories: HashMap<usize, Arc<MemoryComponent>>,
    /// Bytes that memory components begin with.
    contents: HashMap<usize, Arc<Vec<u8>>>,
    /// Memory components whose segments are being given back, in the background.
    leaving: Vec<(usize, JoinHandle<MemoryComponentUsage>)>,
    uses: Uses,
    log: RunLog,
    lease: Arc<DriverLease>,
    account: Arc<RunBudget>,
    /// Components that have ended, of which the account does not know yet.
    over: Vec<usize>,
    reporter: RunReporter,
    report_at: Instant,
    /// Nodes that the run uses, the latest first.
    nodes: Vec<String>,
    /// Time at which upcoming components are to be prepared.
    prewarm_at: Option<Instant>,
    events: Receiver<RunEvent>,
    tell: Sender<RunEvent>,
    news: &'run mut dyn FnMut(&News),
    /// Checked repeatedly: the run continues while this returns true.
    goes_on: Option<&'run mut dyn FnMut() -> bool>,
    /// Set when this process is to leave the run to another.
    leaves: Option<&'run AtomicBool>,
}

impl<'run> RunDriver<'run> {
    pub(super) fn new(
        application: &'run Application,
        mut journal: RunJournal,
        input: Vec<u8>,
        news: &'run mut dyn FnMut(&News),
    ) -> RunDriver<'run> {
        let graph = application.graph.clone();
        let (tell, events) = channel();
        let failed = tell.clone();
        journal.start_writing(move |error| {
            // If the receiver is gone, the run is over.
            let _ = failed.send(RunEvent::NotRecorded { error });
        });
        let uses = Uses::new(&graph);
        RunDriver {
            account: RunBudget::new(graph.clone(), &application.described),
            over: Vec::new(),
            reporter: RunReporter::new(journal.lease().clone()),
            log: RunLog::default(),
            lease: journal.lease().clone(),
            report_at: uses.began() + FIRST_REPORT,
            progress: RunProgress::new(graph, input, application.options.retries),
            application,
            journal,
            running: HashMap::new(),
            instances: HashMap::new(),
            idle: HashMap::new(),
            memories: HashMap::new(),
            contents: HashMap::new(),
            leaving: Vec::new(),
            uses,
            nodes: Vec::new(),
            prewarm_at: None,
            events,
            tell,
            news,
            goes_on: None,
            leaves: None,
        }
    }

    /// Continues the log of the processes that drove the run before.
    pub(super) fn with_log(self, log: RunLog) -> RunDriver<'run> {
        RunDriver { log, ..self }
    }

    /// Makes the driver hand the run back when `leaves` is set: it does not end then, and another process continues it.
    pub(super) fn until(self, leaves: &'run AtomicBool) -> RunDriver<'run> {
        RunDriver { leaves: Some(leaves), ..self }
    }

    /// Makes memory components begin with these bytes.
    pub(super) fn with_contents(self, contents: HashMap<usize, Arc<Vec<u8>>>) -> RunDriver<'run> {
        RunDriver { contents, ..self }
    }

    /// Makes the driver give the run up when `goes_on` returns false.
    pub(super) fn for_as_long_as(self, goes_on: &'run mut dyn FnMut() -> bool) -> RunDriver<'run> {
        RunDriver { goes_on: Some(goes_on), ..self }
    }

    /// Drives the run until it has ended, and holds no resources any more. With records, continues from where it
    /// stopped.
    pub(super) fn run(mut self, records: Option<&[KeptRecord]>) -> Driven {
        if records.is_some() {
            // Another process may take the run if its lease is not renewed while the first steps wait for the store.
            self.reporter.start();
        }
        let outcome = self.drive(records);
        self.end(outcome)
    }

    /// Returns an error if this process is not to drive the run any more.
    fn check_driver(&mut self) -> Result<(), Error> {
        if let Some(error) = self.lease.lost() {
            return Err(error.clone());
        }
        if is_set(self.leaves) {
            return Err(Error::new(Code::LeaseEnded, "the run was handed back by its runner"));
        }
        if self.goes_on.as_mut().is_some_and(|goes_on| !goes_on()) {
            return Err(Error::new(Code::LeaseEnded, "the run was given up by its client"));
        }
        Ok(())
    }

    /// Tells an event to the caller of the run, and to the log.
    fn announce(&mut self, news: &News) {
        self.log.add(news);
        (self.news)(news);
    }

    fn drive(&mut self, records: Option<&[KeptRecord]>) -> Result<Vec<(usize, Outputs)>, Error> {
        let first = match records {
            None => self.progress.begin()?,
            Some(records) => self.progress.resume(records)?,
        };
        if let Some(outputs) = self.take(first)? {
            return Ok(outputs);
        }
        loop {
            let now = Instant::now();
            let due = self.prewarm_at.map_or(SAMPLE, |at| at.saturating_duration_since(now).min(SAMPLE));
            let steps = match self.events.recv_timeout(due) {
                Ok(event) => self.hear(event)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Vec::new(),
            };
            self.check_driver()?;
            if let Some(outputs) = self.take(steps)? {
                return Ok(outputs);
            }
            self.look();
            if self.prewarm_at.is_some_and(|at| Instant::now() >= at) {
                self.prewarm();
            }
        }
    }

    fn hear(&mut self, event: RunEvent) -> Result<Vec<RunStep>, Error> {
        match event {
            RunEvent::Called => {
                let tau = self.application.options.prewarm;
                self.prewarm_at = self.prewarm_at.or(tau.map(|tau| Instant::now() + tau));
                Ok(Vec::new())
            }
            RunEvent::Ended(ended) => self.ended(*ended),
            RunEvent::NotRecorded { error } => Err(error),
            RunEvent::Wanting { component, error } => {
                self.tell_waiting(component, error);
                self.spare();
                let kept = self.application.take_kept();
                let_go(kept.into_iter());
                Ok(Vec::new())
            }
            RunEvent::Waits { component, error } => {
                self.tell_waiting(component, error);
                Ok(Vec::new())
            }
            RunEvent::Released { component, memory, generation, told } => {
                if self.is_current(memory, generation) && self.progress.released(component, memory) {
                    self.drop_memory(memory);
                }
                drop(told);
                Ok(Vec::new())
            }
            RunEvent::MemoryLost { memory, generation, error } => {
                if !self.is_current(memory, generation) {
                    return Ok(Vec::new());
                }
                let name = &self.application.graph.components[memory].name;
                self.announce(&News::Lost { component: name.clone(), error: error.clone() });
                self.progress.lost_memory(memory, error)
            }
        }
    }

    /// Returns whether an event concerns the memory component's current generation.
    fn is_current(&self, memory: usize, generation: usize) -> bool {
        self.memories.get(&memory).is_some_and(|component| component.generation() == generation)
    }

    fn tell_waiting(&mut self, component: usize, error: Error) {
        let component = self.application.graph.components[component].name.clone();
        self.announce(&News::Waits { component, error });
    }

    /// Gives back workers that components which have not begun hold, and idle workers, for components that have begun.
    fn spare(&mut self) {
        let account = &self.account;
        self.running.retain(|&component, running| {
            if !running.has_begun {
                account.turn([component], []);
                running.cancel.cancel();
            }
            running.has_begun
        });
        let_go(self.idle.drain().flat_map(|(_, workers)| workers));
    }

    /// Takes a sample of the run's current resources.
    fn look(&mut self) {
        if self.account.is_wanting() {
            self.spare();
        }
        let mut all = Now::default();
        let mut add = |now: Now| all = [all, now].into_iter().sum();
        for (&component, running) in &self.running {
            let (now, nodes) = running.cancel.look();
            add(now);
            self.uses.note(component, now);
            self.uses.place(component, nodes);
        }
        let idle = self.idle.values().flatten().map(ComponentWorkers::memory_bytes).sum();
        add(Now { allocated_bytes: idle, used_bytes: 0 });
        for (&memory, component) in &self.memories {
            let MemoryComponentUsage { capacity_bytes, len_bytes, .. } = component.used();
            self.uses.count_traffic(memory, component.take_traffic());
            let now = Now { allocated_bytes: capacity_bytes, used_bytes: len_bytes };
            add(now);
            self.uses.note(memory, now);
            if capacity_bytes > 0 {
                self.uses.place(memory, component.nodes());
            }
        }
        self.uses.note_all(all);
        let now = Instant::now();
        if now >= self.report_at {
            self.report_at = now + REPORT;
            self.report();
        }
    }

    fn report(&mut self) {
        self.tell_states();
        for (component, why) in self.account.waiting() {
            self.uses.components[component].waits_for = why;
        }
        let (run, components) = (self.journal.run().to_owned(), self.uses.components.clone());
        let (epoch, notes) = (self.lease.epoch(), self.log.notes());
        self.reporter.tell(ReportRunRequest { run, components, points: self.uses.points(), epoch, notes });
    }

    /// Puts down how far each component is.
    fn tell_states(&mut self) {
        let memories = &self.memories;
        let is_in_use = |index: usize| memories.get(&index).is_some_and(|memory| memory.has_begun());
        for (index, used) in self.uses.components.iter_mut().enumerate() {
            used.waits_for.clear();
            let state = match self.progress.standing(index) {
                ComponentPhase::Memory if is_in_use(index) => ComponentState::Running,
                ComponentPhase::Memory if used.attempts == 0 => ComponentState::Waiting,
                ComponentPhase::Running => ComponentState::Running,
                ComponentPhase::Waiting => ComponentState::Waiting,
                ComponentPhase::Memory | ComponentPhase::Done => ComponentState::Done,
                ComponentPhase::Skipped => ComponentState::Skipped,
            };
            used.set_state(state);
            if state != ComponentState::Running {
                (used.allocated_now_bytes, used.used_now_bytes) = (0, 0);
            }
        }
    }

    fn ended(&mut self, ended: ExecutionResult) -> Result<Vec<RunStep>, Error> {
        let ExecutionResult {
            component,
            attempt,
            outputs,
            began,
            workers,
            memory_bytes,
            allocated_byte_us,
            readings,
            joined_ahead,
        } = ended;
        let used = &mut self.uses.components[component];
        used.allocated_bytes = used.allocated_bytes.max(memory_bytes);
        used.joined_ahead = joined_ahead;
        used.allocated_byte_us = used.allocated_byte_us.saturating_add(allocated_byte_us);
        self.uses.count_workers(component, readings);
        if !self.progress.is_current(component, attempt) {
            return Ok(Vec::new());
        }
        self.running.remove(&component);
        let begin = self.uses.began();
        let used = &mut self.uses.components[component];
        used.begin_us = micros(began.saturating_duration_since(begin));
        used.end_us = micros(begin.elapsed());
        let name = used.component.clone();
        match outputs {
            Ok(outputs) => {
                let took = began.elapsed();
                self.announce(&News::Ended { component: name, took });
                self.end_messages(component);
                if let Some(workers) = workers {
                    self.uses.place(component, workers.nodes());
                    self.nodes.splice(0..0, workers.nodes());
                    self.nodes.truncate(8);
                    let compute = self.compute_of(component);
                    if let Some(environment) = compute.as_ref().map(Environment::of) {
                        self.idle.entry(environment).or_default().push(workers.rest());
                    }
                }
                self.over.push(component);
                self.progress.ended(component, attempt, outputs)
            }
            Err(ComponentFailure::Lost(error)) => {
                self.announce(&News::Lost { component: name, error: error.clone() });
                self.over.push(component);
                self.progress.lost(component, attempt, error)
            }
            Err(ComponentFailure::Failed(error, report)) => {
                self.announce(&News::Failed { component: name, error: error.clone(), report });
                Err(error)
            }
        }
    }

    /// A component sends nothing any more.
    fn end_messages(&self, component: usize) {
        let graph = &self.application.graph;
        for edge in graph.edges_from(component) {
            let memory = self.memories.get(&edge.to);
            if let (Some(memory), Some(end)) = (memory, end_of(graph, edge.to, component)) {
                memory.set_ended(end);
            }
        }
    }

    /// Does steps. If the last is that the run has ended, these are its outputs.
    fn take(&mut self, steps: Vec<RunStep>) -> Result<Option<Vec<(usize, Outputs)>>, Error> {
        // Before the first step requests resources: otherwise a request could be refused because no other component
        // seems to run.
        let (mut over, mut begun) = (std::mem::take(&mut self.over), Vec::new());
        for step in &steps {
            match step {
                RunStep::Cancel { component } => over.push(*component),
                RunStep::Start { component, .. } => begun.push(*component),
                RunStep::Record { .. } | RunStep::Drop { .. } | RunStep::Finish { .. } => {}
            }
        }
        self.account.turn(over, begun);
        for step in steps {
            match step {
                RunStep::Record { from, to, outputs } => {
                    self.journal.record(from, &to, &outputs)?;
                    self.settle_effects(from)?;
                }
                RunStep::Start { component, attempt, input } => self.start(component, attempt, input)?,
                RunStep::Cancel { component } => {
                    if let Some(running) = self.running.remove(&component) {
                        running.cancel.cancel();
                    }
                }
                RunStep::Drop { memory } => self.drop_memory(memory),
                RunStep::Finish { outputs } => {
                    self.journal.flush()?;
                    return Ok(Some(outputs));
                }
            }
        }
        self.release_idle();
        Ok(None)
    }

    /// Waits until everything is recorded after a component with external effects has ended: its effects survive this
    /// process, so the records must, too.
    fn settle_effects(&self, component: usize) -> Result<(), Error> {
        let compute = self.application.graph.components[component].compute();
        if compute.is_some_and(|compute| compute.has_external_effects) {
            self.journal.flush()
        } else {
            Ok(())
        }
    }

    /// Gives back the workers that no component will use.
    fn release_idle(&mut self) {
        if self.idle.is_empty() || !self.application.options.keep_alive.is_zero() {
            return;
        }
        let graph = &self.application.graph;
        let wanted: HashSet<Environment> = self
            .progress
            .waiting()
            .filter_map(|component| graph.components[component].compute())
            .filter(|compute| compute.instances_from.is_none())
            .map(Environment::of)
            .collect();
        let unwanted = self.idle.extract_if(|environment, _| !wanted.contains(environment));
        let_go(unwanted.flat_map(|(_, workers)| workers));
    }

    /// The compute part of a component, with the number of instances of its latest execution.
    fn compute_of(&self, component: usize) -> Option<Compute> {
        let compute = self.application.graph.components[component].compute()?;
        let parallelism = self.instances.get(&component).copied().unwrap_or(compute.parallelism);
        Some(Compute { parallelism, ..compute.clone() })
    }

    /// Determines the number of instances of a component that begins, if it follows from data. A number by an output
    /// follows from what is recorded. A number by the size of memory is recorded: a component that begins again keeps
    /// it, also in a resumed run.
    fn count_instances(&mut self, component: usize) -> Result<(), Error> {
        let components = &self.application.graph.components;
        let Some(compute) = components[component].compute() else { return Ok(()) };
        let limit = compute.parallelism;
        let instances = match compute.instances_from {
            None => return Ok(()),
            Some(InstancesFrom::Output { component: from }) => {
                let outputs = self.progress.outputs_to(from, component);
                let output = outputs.and_then(|outputs| outputs.first()).map_or(&[][..], Vec::as_slice);
                let (component, from) = (&components[component].name, &components[from].name);
                NumberRule { component, from, limit }.read(output)?
            }
            Some(InstancesFrom::Memory { memory, bytes_each }) => match self.journal.instances(component) {
                Some(instances) => instances.min(limit),
                None => {
                    let len_bytes = match self.memories.get(&memory) {
                        Some(memory) => memory.known_bytes(),
                        // Memory that nothing has accessed has the bytes that it begins with.
                        None => self.content(memory)?.map_or(0, |content| content.len() as u64),
                    };
                    let instances = parts_of(len_bytes, bytes_each, limit);
                    self.journal.record_instances(component, instances)?;
                    instances
                }
            },
        };
        self.instances.insert(component, instances);
        let used = &mut self.uses.components[component];
        used.instances = instances;
        used.cores = instances.saturating_mul(compute.resources.cores_each());
        Ok(())
    }

    fn start(&mut self, component: usize, attempt: u32, input: Arc<Vec<u8>>) -> Result<(), Error> {
        self.count_instances(component)?;
        self.record_effects(component)?;
        let channels = self.channels(component)?;
        for access in channels.iter().filter(|access| access.memory.begin()) {
            self.uses.components[access.memory.index].attempts += 1;
        }
        let mut go = Go { attempt, input, channels };
        self.uses.components[component].attempts += 1;
        let name = self.uses.components[component].component.clone();
        self.announce(&News::Began { component: name, attempt });
        // A thread that has ended counts as missing.
        if let Some(running) = self.running.get_mut(&component) {
            running.has_begun = true;
            match running.go.send(go) {
                Ok(()) => return Ok(()),
                Err(unsent) => go = unsent.0,
            }
        }
        self.spawn(component, attempt, Preparation::default())?;
        let running = self.running.get_mut(&component).expect("it was spawned");
        running.has_begun = true;
        running.go.send(go).map_err(|_| Error::new(Code::Internal, "a component's thread has ended at once"))
    }

    /// Records that a component with external effects begins: no process executes it a second time, whatever becomes of
    /// this one. Everything recorded before it is stored, too, when this returns.
    fn record_effects(&mut self, component: usize) -> Result<(), Error> {
        let compute = self.application.graph.components[component].compute();
        match compute.is_some_and(|compute| compute.has_external_effects) {
            true => self.journal.record_beginning(component),
            false => Ok(()),
        }
    }

    fn drop_memory(&mut self, memory: usize) {
        // Memory of components that have not begun has no segments.
        let Some(component) = self.memories.remove(&memory).filter(|memory| memory.has_begun()) else {
            return;
        };
        self.uses.count_traffic(memory, component.take_traffic());
        // Before another component requests its share.
        let share = self.account.leave_memory(memory).map(Arc::new);
        let (ending, held) = (component.clone(), share.clone());
        let end = move || {
            let used = ending.end();
            drop(held);
            used
        };
        match std::thread::Builder::new().name("sublet leaving".into()).spawn(end) {
            Ok(thread) => self.leaving.push((memory, thread)),
            Err(_) => self.uses.count_memory(memory, component.end()),
        }
    }
}

fn is_set(flag: Option<&AtomicBool>) -> bool {
    flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Gives workers back in the background, as their agents may take time to answer.
pub(super) fn let_go(workers: impl Iterator<Item = ComponentWorkers>) {
    let workers: Vec<ComponentWorkers> = workers.collect();
    if !workers.is_empty() {
        // If there is no thread for it, it is done here.
        let _ = std::thread::Builder::new().name("sublet leaving".into()).spawn(move || drop(workers));
    }
}
