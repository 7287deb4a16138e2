//! Drives a run: does the steps that [`Progress`] says, one after the other, and tells it what happens.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sublet_proto::graph::Relation;
use sublet_proto::v1::ComponentUse;
use sublet_proto::{Code, Error};

use super::execute::{Cancel, Ended, Environment, Executor, Failure, Go, Job, Workers};
use super::journal::Journal;
use super::mailboxes::{end_of, mailbox};
use super::memory::{Access, Channels, Component, Used};
use super::progress::{Outputs, Progress, Record, Step};
use super::{Application, News};
use crate::memory::MemoryPlan;

/// How often it is looked how much of the memory components is used.
const SAMPLE: Duration = Duration::from_millis(50);

/// How long an environment that is made ready ahead is waited for: those of components that have just ended take a while to go.
const EARLY_WAIT: Duration = Duration::from_millis(100);

/// What happens to a run.
pub(super) enum Event {
    /// The instances of a component are about to be called.
    Called,
    Ended(Box<Ended>),
    /// A component that has begun waits for what others may have that have not, and why.
    Wanting {
        component: usize,
        error: Error,
    },
    MemoryLost {
        memory: usize,
        generation: usize,
        error: Error,
    },
}

/// What came of a run: the outputs of the components that trigger no other, and what each component had.
pub(super) struct Driven {
    pub(super) outcome: Result<Vec<(usize, Outputs)>, Error>,
    pub(super) uses: Vec<ComponentUse>,
}

/// A thread for a component.
struct Running {
    go: Sender<Go>,
    cancel: Arc<Cancel>,
    has_begun: bool,
}

/// See the [module](self).
pub(super) struct Driver<'run> {
    application: &'run Application,
    journal: Journal,
    progress: Progress,
    running: HashMap<usize, Running>,
    /// Workers of components that are done, for those that follow.
    idle: HashMap<Environment, Vec<Workers>>,
    memories: HashMap<usize, Arc<Component>>,
    /// Those whose segments are being given back, which nothing waits for.
    leaving: Vec<(usize, JoinHandle<Used>)>,
    uses: Vec<ComponentUse>,
    began: Instant,
    /// Where the run is, the latest first.
    nodes: Vec<String>,
    /// When components that are upcoming are to be made ready.
    prewarm_at: Option<Instant>,
    events: Receiver<Event>,
    tell: Sender<Event>,
    news: &'run mut dyn FnMut(&News),
    /// Whether anybody still waits for it.
    goes_on: Option<&'run mut dyn FnMut() -> bool>,
}

impl<'run> Driver<'run> {
    pub(super) fn new(
        application: &'run Application,
        journal: Journal,
        input: Vec<u8>,
        news: &'run mut dyn FnMut(&News),
    ) -> Driver<'run> {
        let graph = application.graph.clone();
        let named = |component: &sublet_proto::graph::Component| ComponentUse {
            component: component.name.clone(),
            instances: component.compute().map_or(0, |compute| compute.parallelism),
            ..ComponentUse::default()
        };
        let uses = graph.components.iter().map(named).collect();
        let (tell, events) = channel();
        Driver {
            progress: Progress::new(graph, input, application.options.retries),
            application,
            journal,
            running: HashMap::new(),
            idle: HashMap::new(),
            memories: HashMap::new(),
            leaving: Vec::new(),
            uses,
            began: Instant::now(),
            nodes: Vec::new(),
            prewarm_at: None,
            events,
            tell,
            news,
            goes_on: None,
        }
    }

    /// Gives the run up when this says no.
    pub(super) fn for_as_long_as(self, goes_on: &'run mut dyn FnMut() -> bool) -> Driver<'run> {
        Driver { goes_on: Some(goes_on), ..self }
    }

    /// Until the run has ended, and nothing of it is held any more. With records, from where it stopped.
    pub(super) fn run(mut self, records: Option<&[Record]>) -> Driven {
        let outcome = self.drive(records);
        for (_, running) in self.running.drain() {
            running.cancel.cancel();
        }
        for (environment, workers) in std::mem::take(&mut self.idle) {
            self.application.keep(environment, workers);
        }
        let left: Vec<usize> = self.memories.keys().copied().collect();
        left.into_iter().for_each(|memory| self.drop_memory(memory));
        for (memory, thread) in std::mem::take(&mut self.leaving) {
            if let Ok(used) = thread.join() {
                self.count_memory(memory, used);
            }
        }
        // A store that does not take the end has the run as one that goes on.
        let _ = self.journal.end(outcome.as_ref().err(), self.uses.clone());
        Driven { outcome, uses: self.uses }
    }

    fn drive(&mut self, records: Option<&[Record]>) -> Result<Vec<(usize, Outputs)>, Error> {
        let first = match records {
            None => self.progress.begin(),
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
            if self.goes_on.as_mut().is_some_and(|goes_on| !goes_on()) {
                return Err(Error::new(Code::LeaseEnded, "the run was given up by its client"));
            }
            if let Some(outputs) = self.take(steps)? {
                return Ok(outputs);
            }
            self.memories.values().for_each(|memory| memory.sample());
            if self.prewarm_at.is_some_and(|at| Instant::now() >= at) {
                self.prewarm();
            }
        }
    }

    fn hear(&mut self, event: Event) -> Result<Vec<Step>, Error> {
        match event {
            Event::Called => {
                let tau = self.application.options.prewarm;
                self.prewarm_at = self.prewarm_at.or(tau.map(|tau| Instant::now() + tau));
                Ok(Vec::new())
            }
            Event::Ended(ended) => self.ended(*ended),
            Event::Wanting { component, error } => {
                let component = self.application.graph.components[component].name.clone();
                (self.news)(&News::Waits { component, error });
                // What was made ready is given to whoever has begun.
                self.running.retain(|_, running| {
                    if !running.has_begun {
                        running.cancel.cancel();
                    }
                    running.has_begun
                });
                let_go(
                    self.idle.drain().chain(self.application.take_kept()).flat_map(|(_, workers)| workers),
                );
                Ok(Vec::new())
            }
            Event::MemoryLost { memory, generation, error } => {
                let is_current =
                    self.memories.get(&memory).is_some_and(|component| component.generation() == generation);
                if !is_current {
                    return Ok(Vec::new());
                }
                let name = &self.application.graph.components[memory].name;
                (self.news)(&News::Lost { component: name.clone(), error: error.clone() });
                self.progress.lost_memory(memory, error)
            }
        }
    }

    fn ended(&mut self, ended: Ended) -> Result<Vec<Step>, Error> {
        let Ended { component, attempt, outputs, began, workers, memory_bytes, allocated_byte_us } = ended;
        let used = &mut self.uses[component];
        used.allocated_bytes = used.allocated_bytes.max(memory_bytes);
        used.allocated_byte_us += allocated_byte_us;
        if !self.progress.is_current(component, attempt) {
            return Ok(Vec::new());
        }
        self.running.remove(&component);
        used.begin_us = micros(began.saturating_duration_since(self.began));
        used.end_us = micros(self.began.elapsed());
        let name = used.component.clone();
        match outputs {
            Ok(outputs) => {
                let took = began.elapsed();
                (self.news)(&News::Ended { component: name, took });
                self.end_messages(component);
                if let Some(workers) = workers {
                    self.nodes.splice(0..0, workers.nodes());
                    self.nodes.truncate(8);
                    let compute = self.application.graph.components[component].compute();
                    if let Some(environment) = compute.map(Environment::of) {
                        self.idle.entry(environment).or_default().push(workers.rest());
                    }
                }
                Ok(self.progress.ended(component, attempt, outputs))
            }
            Err(Failure::Lost(error)) => {
                (self.news)(&News::Lost { component: name, error: error.clone() });
                self.progress.lost(component, attempt, error)
            }
            Err(Failure::Failed(error)) => Err(error),
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
    fn take(&mut self, steps: Vec<Step>) -> Result<Option<Vec<(usize, Outputs)>>, Error> {
        for step in steps {
            match step {
                Step::Record { from, to, outputs } => self.journal.record(from, &to, &outputs)?,
                Step::Start { component, attempt, input } => self.start(component, attempt, input)?,
                Step::Cancel { component } => {
                    if let Some(running) = self.running.remove(&component) {
                        running.cancel.cancel();
                    }
                }
                Step::Drop { memory } => self.drop_memory(memory),
                Step::Finish { outputs } => return Ok(Some(outputs)),
            }
        }
        self.release_idle();
        Ok(None)
    }

    /// Gives back the workers that no component will want.
    fn release_idle(&mut self) {
        if self.idle.is_empty() || !self.application.options.keep_alive.is_zero() {
            return;
        }
        let graph = &self.application.graph;
        let wanted: HashSet<Environment> = self
            .progress
            .waiting()
            .filter_map(|component| graph.components[component].compute().map(Environment::of))
            .collect();
        let unwanted = self.idle.extract_if(|environment, _| !wanted.contains(environment));
        let_go(unwanted.flat_map(|(_, workers)| workers));
    }

    fn start(&mut self, component: usize, attempt: u32, input: Arc<Vec<u8>>) -> Result<(), Error> {
        let channels = self.channels(component)?;
        let mut go = Go { attempt, input, channels };
        self.uses[component].attempts += 1;
        let name = self.uses[component].component.clone();
        (self.news)(&News::Began { component: name, attempt });
        // A thread that has ended is as good as none.
        if let Some(running) = self.running.get_mut(&component) {
            running.has_begun = true;
            match running.go.send(go) {
                Ok(()) => return Ok(()),
                Err(unsent) => go = unsent.0,
            }
        }
        self.spawn(component, Duration::ZERO)?;
        let running = self.running.get_mut(&component).expect("it was spawned");
        running.has_begun = true;
        running.go.send(go).map_err(|_| Error::new(Code::Internal, "a component's thread has ended at once"))
    }

    /// Starts a component's thread, which makes its environment ready.
    fn spawn(&mut self, component: usize, early_wait: Duration) -> Result<(), Error> {
        let Application { manager, graph, options, .. } = self.application;
        let of = &graph.components[component];
        let Some(compute) = of.compute().cloned() else {
            return Err(Error::new(Code::Internal, format!("component {} executes nothing", of.name)));
        };
        // By what it communicates with, and then by the rest of the run (Scad 4.1.1).
        let memories = graph.edges_from(component).filter_map(|edge| self.memories.get(&edge.to));
        let mut near: Vec<String> = memories.flat_map(|memory| memory.nodes()).collect();
        near.extend(self.nodes.iter().cloned());
        near.dedup();
        near.truncate(8);
        let job = Job {
            component,
            name: of.name.clone(),
            application: graph.name.clone(),
            compute,
            near,
            options: options.clone(),
        };
        let environment = Environment::of(&job.compute);
        let (go, going) = channel();
        let cancel = Arc::new(Cancel::default());
        let executor = Executor {
            manager: manager.clone(),
            job,
            cancel: cancel.clone(),
            kept: self.take_idle(&environment),
            early_wait,
            go: going,
            tell: self.tell.clone(),
        };
        std::thread::Builder::new()
            .name(format!("sublet {}", of.name))
            .spawn(move || executor.run())
            .map_err(|error| Error::new(Code::System, format!("starting a component's thread: {error}")))?;
        self.running.insert(component, Running { go, cancel, has_begun: false });
        Ok(())
    }

    /// Makes the environments of upcoming components ready. What cannot be had now is had when they begin.
    fn prewarm(&mut self) {
        self.prewarm_at = None;
        let upcoming: Vec<usize> = self.progress.upcoming().collect();
        // Each component that runs leaves its workers to one of those that it triggers.
        let mut heirs: HashSet<usize> = HashSet::new();
        for component in upcoming {
            if self.running.contains_key(&component) || self.inherits(component, &mut heirs) {
                continue;
            }
            let _ = self.spawn(component, EARLY_WAIT);
        }
    }

    /// Whether a component will have the workers of one that triggers it, which no other has yet.
    fn inherits(&self, component: usize, heirs: &mut HashSet<usize>) -> bool {
        let graph = &self.application.graph;
        let environment = |at: usize| graph.components[at].compute().map(Environment::of);
        let before = graph.edges_to(component).filter(|edge| edge.relation == Relation::Trigger);
        let running = before.map(|edge| edge.from).filter(|before| self.running.contains_key(before));
        let mut alike = running.filter(|&before| environment(before) == environment(component));
        alike.any(|before| heirs.insert(before))
    }

    /// Workers that can be used, of this run or of an earlier one.
    fn take_idle(&mut self, environment: &Environment) -> Option<Workers> {
        let idle = self.idle.get_mut(environment).and_then(Vec::pop);
        idle.or_else(|| self.application.kept(environment))
    }

    /// The memory components that one may access, made where they are not there.
    fn channels(&mut self, component: usize) -> Result<Channels, Error> {
        let graph = &self.application.graph;
        let mut channels = Channels::new();
        for edge in graph.edges_from(component) {
            let Relation::Access(rights) = edge.relation else { continue };
            let memory = match self.memories.get(&edge.to) {
                Some(memory) => memory.clone(),
                None => {
                    let of = &graph.components[edge.to];
                    let memory = of.memory().expect("an access edge leads to memory");
                    let options = &self.application.options;
                    let mut plan = MemoryPlan::new().timeout(options.lease_timeout).wait(options.patience);
                    if let Some(fabric) = &options.fabric {
                        plan = plan.fabric(fabric.clone());
                    }
                    let made = Component::new(
                        &self.application.manager,
                        (edge.to, &of.name),
                        (memory, plan),
                        self.tell.clone(),
                    )?;
                    self.uses[edge.to].attempts += 1;
                    self.memories.insert(edge.to, made.clone());
                    made
                }
            };
            let mailbox = mailbox(graph, edge.to, component);
            channels.push(Access { memory, rights, mailbox });
        }
        Ok(channels)
    }

    fn drop_memory(&mut self, memory: usize) {
        let Some(component) = self.memories.remove(&memory) else { return };
        let ending = component.clone();
        let thread = std::thread::Builder::new().name("sublet leaving".into()).spawn(move || ending.end());
        match thread {
            Ok(thread) => self.leaving.push((memory, thread)),
            Err(_) => self.count_memory(memory, component.end()),
        }
    }

    fn count_memory(&mut self, memory: usize, used: Used) {
        let Used { since, until, capacity_bytes, len_bytes, allocated_byte_us, used_byte_us } = used;
        let uses = &mut self.uses[memory];
        let since_begin =
            |at: Option<Instant>| at.map_or(0, |at| micros(at.saturating_duration_since(self.began)));
        (uses.begin_us, uses.end_us) = (since_begin(since), since_begin(until));
        uses.allocated_bytes = uses.allocated_bytes.max(capacity_bytes);
        uses.used_bytes = uses.used_bytes.max(len_bytes);
        uses.allocated_byte_us += allocated_byte_us;
        uses.used_byte_us += used_byte_us;
    }
}

/// Gives workers back, which nobody waits for: it takes as long as their agents do.
fn let_go(workers: impl Iterator<Item = Workers>) {
    let workers: Vec<Workers> = workers.collect();
    if !workers.is_empty() {
        // If there is no thread for it, it is done here.
        let _ = std::thread::Builder::new().name("sublet leaving".into()).spawn(move || drop(workers));
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
