//! Decides the next steps of a run: every decision, without threads, clocks or I/O.
//!
//! A component waits until all that trigger it are done, then its instances execute, then it is done. The outputs that
//! it hands to the next components are recorded. When a component or a memory component is lost, its *communicating set*
//! is discarded and begins again from the records (Scad 4.2.4): all components that have begun and are connected with it
//! by accesses and messages, in either direction. No other component is affected.
//!
//! Invariants:
//! - A component begins only when a record of each of its inputs is there, or is the [`RunStep`] before.
//! - It begins when all that lead to it are done or skipped, including those that are executed again: their writes are
//!   complete.
//! - It is skipped when none of them has triggered it, and none will: each is done or skipped, or its choice is final.
//! - A component that has begun and is not discarded keeps its input, and everything before it stays as the component
//!   found it: done components are at most executed again, skipped ones stay skipped. So the choice of a component
//!   which is executed again is final while anything after it, over any number of triggers, has begun: if it chooses
//!   otherwise, it hands nothing on. Once nothing after it has begun, it chooses anew, and the components that it
//!   skipped wait again.
//! - A component begins with everything that the components before it wrote into its memory. Memory that was dropped
//!   because its component was skipped counts as lost if that component begins after all.
//! - The records alone decide which executions are void: a component to which another hands on had not begun then.
//! - A component with external effects is not executed a second time: the run fails instead.
//! - Memory is dropped when all that may access it are done or have released it, and made anew by the next access. The
//!   run's result is needed until the run is done: if it is lost, its writers are executed again.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_proto::graph::{Edge, Graph, Relation};
use sublet_proto::{Code, Error, run};

/// The outputs of a component, by instance.
pub(crate) type Outputs = Arc<Vec<Vec<u8>>>;

/// A step that the driver must execute, in this order. Components are named by their index in the graph.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RunStep {
    /// Outputs that a component hands to others. Nothing leaves the run before these, and all before them, are stored
    /// where a failure does not reach them: no output of the run, and no external effect of a component.
    Record { from: usize, to: Vec<usize>, outputs: Outputs },
    /// A component begins, with this input.
    Start { component: usize, attempt: u32, input: Arc<Vec<u8>> },
    /// The component's executor no longer belongs to this run.
    Cancel { component: usize },
    /// A memory component's bytes are not needed any more, or are lost.
    Drop { memory: usize },
    /// The run is done: the outputs of the components that trigger no other.
    Finish { outputs: Vec<(usize, Outputs)> },
}

/// A record that was kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeptRecord {
    pub(crate) from: usize,
    pub(crate) to: Vec<usize>,
    pub(crate) outputs: Outputs,
}

/// State of a component, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ComponentPhase {
    /// A memory component. It exists as long as a component may access it.
    Memory,
    Waiting,
    Running,
    Done,
    /// No component has triggered it, and none will.
    Skipped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Done,
    Skipped,
}

impl State {
    /// Returns whether the component executes nothing any more.
    fn is_over(self) -> bool {
        matches!(self, State::Done | State::Skipped)
    }

    /// Returns whether the component has, or had, its input.
    fn has_begun(self) -> bool {
        matches!(self, State::Running | State::Done)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct RunProgress {
    graph: Arc<Graph>,
    input: Arc<Vec<u8>>,
    /// Number of times that a component may be lost.
    retries: u32,
    states: Vec<State>,
    /// Number of times that each component has begun.
    attempts: Vec<u32>,
    /// Number of times that each component was lost.
    losses: Vec<u32>,
    /// Pairs of a component that runs or is done, and a memory component that it has released.
    released: BTreeSet<(usize, usize)>,
    /// Memory components that were dropped and have not been made anew: the writes of components that have begun are
    /// lost.
    gone: BTreeSet<usize>,
    /// The outputs that each component has last handed on: to each component that it triggers, or to the run if it
    /// triggers none.
    handed: Vec<Vec<HandedOutputs>>,
}

#[derive(Clone, Debug)]
struct HandedOutputs {
    to: Option<usize>,
    /// `None` as long as the component has not ended, or if it did not trigger `to`.
    outputs: Option<Outputs>,
}

impl RunProgress {
    /// The progress of a run that has not begun.
    pub(crate) fn new(graph: Arc<Graph>, input: Vec<u8>, retries: u32) -> RunProgress {
        let count = graph.components.len();
        let handed = |from| {
            let mut all: Vec<HandedOutputs> =
                next(&graph, from).map(|to| HandedOutputs { to: Some(to), outputs: None }).collect();
            if all.is_empty() {
                all.push(HandedOutputs { to: None, outputs: None });
            }
            all
        };
        RunProgress {
            input: Arc::new(input),
            retries,
            states: vec![State::Waiting; count],
            attempts: vec![0; count],
            losses: vec![0; count],
            released: BTreeSet::new(),
            gone: BTreeSet::new(),
            handed: (0..count).map(handed).collect(),
            graph,
        }
    }

    /// The first steps.
    ///
    /// # Errors
    /// As for [`RunProgress::lost`].
    pub(crate) fn begin(&mut self) -> Result<Vec<RunStep>, Error> {
        self.go_on(Vec::new())
    }

    /// Continues a run whose client is gone, from its records. Its memory is lost.
    ///
    /// # Errors
    /// As for [`RunProgress::lost`].
    pub(crate) fn resume(&mut self, records: &[KeptRecord]) -> Result<Vec<RunStep>, Error> {
        records.iter().for_each(|record| self.read(record));
        let memories = (0..self.states.len()).filter(|&at| self.graph.components[at].memory().is_some());
        self.gone = memories.collect();
        // Those need no memory. Nothing of them is there to be given back.
        self.skip_all(&mut Vec::new());
        let seeds = self.gone.iter().copied().filter(|&memory| self.is_needed(memory)).collect();
        let steps = self.discard(seeds)?;
        self.go_on(steps)
    }

    /// Applies a record. None of the components in it had begun when it was made, and if it chooses otherwise than the
    /// previous one, nothing after it had begun. Records of their earlier executions are therefore void.
    fn read(&mut self, record: &KeptRecord) {
        let KeptRecord { from, to, outputs } = record;
        let void = match !to.is_empty() && self.chooses_otherwise(*from, outputs) {
            true => self.all_after(vec![*from]),
            false => to.clone(),
        };
        void.into_iter().for_each(|component| self.states[component] = State::Waiting);
        self.states[*from] = State::Done;
        self.hand_on(*from, to, outputs);
    }

    /// A component's instances have returned.
    ///
    /// # Errors
    /// As for [`RunProgress::lost`].
    pub(crate) fn ended(
        &mut self,
        component: usize,
        attempt: u32,
        outputs: Outputs,
    ) -> Result<Vec<RunStep>, Error> {
        if !self.is_current(component, attempt) {
            return Ok(Vec::new());
        }
        self.states[component] = State::Done;
        let to = self.takers(component, &outputs);
        self.hand_on(component, &to, &outputs);
        let mut steps = vec![RunStep::Record { from: component, to, outputs }];
        self.drop_unneeded(component, &mut steps);
        self.go_on(steps)
    }

    /// A component that runs does not access a memory component any more. Whether that may be dropped.
    pub(crate) fn released(&mut self, component: usize, memory: usize) -> bool {
        if self.states[component] == State::Running {
            self.released.insert((component, memory));
        }
        let is_over = !self.is_needed(memory);
        if is_over {
            self.gone.insert(memory);
        }
        is_over
    }

    /// Reports that the workers of a component are lost.
    ///
    /// # Errors
    /// `error` if the component was lost too often, and if a component with external effects would have to be executed
    /// again.
    pub(crate) fn lost(
        &mut self,
        component: usize,
        attempt: u32,
        error: Error,
    ) -> Result<Vec<RunStep>, Error> {
        if !self.is_current(component, attempt) {
            return Ok(Vec::new());
        }
        self.begin_again("component", component, &error)
    }

    /// The bytes of a memory component are gone.
    ///
    /// # Errors
    /// As for [`RunProgress::lost`].
    pub(crate) fn lost_memory(&mut self, memory: usize, error: Error) -> Result<Vec<RunStep>, Error> {
        if !self.is_needed(memory) {
            return Ok(Vec::new());
        }
        self.begin_again("memory component", memory, &error)
    }

    /// Begins the communicating set of a lost component again, unless that was lost too often.
    fn begin_again(&mut self, what: &str, lost: usize, error: &Error) -> Result<Vec<RunStep>, Error> {
        self.losses[lost] += 1;
        if self.losses[lost] > self.retries {
            let (name, losses) = (&self.graph.components[lost].name, self.losses[lost]);
            let message = format!("{what} {name} was lost {losses} times, at last: {error}");
            return Err(Error::new(error.code, message));
        }
        let steps = self.discard(vec![lost])?;
        self.go_on(steps)
    }

    /// Whether this attempt is the component's current execution.
    pub(crate) fn is_current(&self, component: usize, attempt: u32) -> bool {
        self.states[component] == State::Running && self.attempts[component] == attempt
    }

    /// State of a component.
    pub(crate) fn standing(&self, component: usize) -> ComponentPhase {
        match self.states[component] {
            _ if self.graph.components[component].memory().is_some() => ComponentPhase::Memory,
            State::Waiting => ComponentPhase::Waiting,
            State::Running => ComponentPhase::Running,
            State::Done => ComponentPhase::Done,
            State::Skipped => ComponentPhase::Skipped,
        }
    }

    /// The components that will begin when those that execute now are done: their environments may be made ready. A
    /// component that is done may have one before it that is to be executed again.
    pub(crate) fn upcoming(&self) -> impl Iterator<Item = usize> {
        let left: Vec<usize> =
            (0..self.states.len()).filter(|&at| self.states[at] == State::Waiting).collect();
        let after_left: BTreeSet<usize> = self.all_after(left).into_iter().collect();
        self.waiting().filter(move |component| !after_left.contains(component))
    }

    /// Whether a component other than this one has begun that may access a memory component.
    pub(crate) fn is_begun_by_another(&self, memory: usize, component: usize) -> bool {
        accessors(&self.graph, memory).any(|other| other != component && self.states[other].has_begun())
    }

    /// Returns whether a component that is not done and has not released a memory component may access it, or the
    /// caller of the run.
    fn is_needed(&self, memory: usize) -> bool {
        let may_access = |component: usize| {
            !self.states[component].is_over() && !self.released.contains(&(component, memory))
        };
        self.graph.components[memory].is_result() || accessors(&self.graph, memory).any(may_access)
    }

    /// The compute components that have not begun, or are to begin again.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = usize> {
        let compute = |&component: &usize| self.graph.components[component].compute().is_some();
        (0..self.states.len()).filter(|&at| self.states[at] == State::Waiting).filter(compute)
    }

    /// Drops the memory of a component that is over, as far as no other may access it.
    fn drop_unneeded(&mut self, component: usize, steps: &mut Vec<RunStep>) {
        let graph = self.graph.clone();
        for memory in accessed(&graph, component) {
            if !self.is_needed(memory) {
                self.gone.insert(memory);
                steps.push(RunStep::Drop { memory });
            }
        }
    }

    /// The components that take the output of a component, without those that have begun, which have their input. If
    /// the component was executed again, its earlier choice is final, and this one differs, no component takes the
    /// output.
    fn takers(&self, from: usize, outputs: &Outputs) -> Vec<usize> {
        if self.begun_after()[from] && self.chooses_otherwise(from, outputs) {
            return Vec::new();
        }
        next(&self.graph, from).filter(|&to| self.states[to] == State::Waiting).collect()
    }

    /// Whether a component has triggered others than it does with these outputs.
    fn chooses_otherwise(&self, from: usize, outputs: &Outputs) -> bool {
        let is_new =
            |edge: &Edge| self.does_trigger(edge, outputs) != self.outputs_to(from, edge.to).is_some();
        triggers(&self.graph, from).any(is_new)
    }

    /// Whether outputs of the component from which an edge leads trigger the other.
    fn does_trigger(&self, edge: &Edge, outputs: &Outputs) -> bool {
        // A component that triggers only some of its successors has one instance.
        self.graph.does_trigger(edge, outputs.first().map_or(&[][..], Vec::as_slice))
    }

    /// Records the outputs for the components in `to` that they trigger, and removes earlier outputs for the others in
    /// `to`.
    fn hand_on(&mut self, from: usize, to: &[usize], outputs: &Outputs) {
        let triggers = triggers(&self.graph, from).map(|edge| (edge.to, self.does_trigger(edge, outputs)));
        let triggers: Vec<(usize, bool)> = triggers.collect();
        for handed in &mut self.handed[from] {
            let Some(taker) = handed.to else {
                handed.outputs = Some(outputs.clone());
                continue;
            };
            if to.contains(&taker) {
                let is_triggered = triggers.contains(&(taker, true));
                handed.outputs = is_triggered.then(|| outputs.clone());
            }
        }
    }

    /// Discards the communicating set of these components.
    fn discard(&mut self, seeds: Vec<usize>) -> Result<Vec<RunStep>, Error> {
        let set = self.communicating(seeds);
        let effects = set.iter().find(|&&at| {
            self.graph.components[at].compute().is_some_and(|compute| compute.has_external_effects)
        });
        if let Some(&component) = effects {
            let name = &self.graph.components[component].name;
            let message = format!(
                "component {name} has external effects, and would have to be executed again: what it communicates with was lost"
            );
            return Err(Error::new(Code::WorkerDied, message));
        }
        self.released.retain(|(component, _)| !set.contains(component));
        let mut steps = Vec::new();
        for component in set {
            if self.graph.components[component].memory().is_some() {
                // All that have written there are executed again.
                self.gone.remove(&component);
                steps.push(RunStep::Drop { memory: component });
                continue;
            }
            if self.states[component] == State::Running {
                steps.push(RunStep::Cancel { component });
            }
            self.states[component] = State::Waiting;
        }
        self.choose_anew();
        // The component's memory is not accessed any more when it is dropped.
        steps.sort_by_key(|step| matches!(step, RunStep::Drop { .. }));
        Ok(steps)
    }

    /// Makes components wait again that were skipped after components which are executed again, if nothing after the
    /// latter has begun.
    fn choose_anew(&mut self) {
        let begun_after = self.begun_after();
        let is_choosing = |&at: &usize| !self.states[at].is_over() && !begun_after[at];
        let choosing = (0..self.states.len()).filter(is_choosing).collect();
        // None of these components has begun: each waits already, or was skipped.
        self.all_after(choosing).into_iter().for_each(|after| self.states[after] = State::Waiting);
    }

    /// The components after these, over any number of triggers.
    fn all_after(&self, mut left: Vec<usize>) -> Vec<usize> {
        let (mut found, mut seen) = (Vec::new(), vec![false; self.states.len()]);
        while let Some(at) = left.pop() {
            let new = next(&self.graph, at).filter(|&next| !std::mem::replace(&mut seen[next], true));
            let before = found.len();
            found.extend(new);
            left.extend(&found[before..]);
        }
        found
    }

    /// For each component, whether anything after it has begun, over any number of triggers.
    fn begun_after(&self) -> Vec<bool> {
        fn visit(progress: &RunProgress, at: usize, known: &mut [Option<bool>]) -> bool {
            if let Some(known) = known[at] {
                return known;
            }
            let has = next(&progress.graph, at)
                .any(|next| visit(progress, next, known) || progress.states[next].has_begun());
            known[at] = Some(has);
            has
        }
        let mut known = vec![None; self.states.len()];
        (0..self.states.len()).map(|at| visit(self, at, &mut known)).collect()
    }

    /// All that have begun and that accesses and messages connect with these, and the memory between them.
    fn communicating(&self, seeds: Vec<usize>) -> BTreeSet<usize> {
        let has_begun =
            |at: usize| self.graph.components[at].memory().is_some() || self.states[at].has_begun();
        let mut set = BTreeSet::new();
        let mut left = seeds;
        while let Some(at) = left.pop() {
            if !set.insert(at) {
                continue;
            }
            for edge in self.graph.edges.iter().filter(|edge| edge.relation != Relation::Trigger) {
                let other = match (edge.from == at, edge.to == at) {
                    (true, _) => edge.to,
                    (_, true) => edge.from,
                    _ => continue,
                };
                if has_begun(other) {
                    left.push(other);
                }
            }
        }
        set
    }

    /// Starts the components that can begin, and finishes when none is left.
    ///
    /// # Errors
    /// An error if a component with external effects would have to be executed again, since it wrote into memory that
    /// is gone.
    fn go_on(&mut self, mut steps: Vec<RunStep>) -> Result<Vec<RunStep>, Error> {
        let ready = loop {
            let ready = self.skip_all(&mut steps);
            let memories = ready.iter().flat_map(|&component| accessed(&self.graph, component));
            let missed: Vec<usize> = memories.filter(|memory| self.gone.contains(memory)).collect();
            if missed.is_empty() {
                break ready;
            }
            // Components that wrote there are executed again, although the memory was not needed when it was dropped.
            steps.extend(self.discard(missed)?);
        };
        for component in ready {
            debug_assert_eq!(self.states[component], State::Waiting, "component {component} begins");
            debug_assert!(
                previous(&self.graph, component).all(|before| self.states[before].is_over()),
                "component {component} begins before all that lead to it are over: {:?}",
                self.states
            );
            self.states[component] = State::Running;
            self.attempts[component] += 1;
            let (attempt, input) = (self.attempts[component], self.input_of(component));
            steps.push(RunStep::Start { component, attempt, input });
        }
        self.finish(&mut steps);
        debug_assert!(
            steps
                .iter()
                .skip_while(|step| !matches!(step, RunStep::Start { .. }))
                .all(|step| !matches!(step, RunStep::Record { .. })),
            "a record comes after what it is for: {steps:?}"
        );
        Ok(steps)
    }

    /// Skips components that can no longer be triggered, and returns those that are ready.
    fn skip_all(&mut self, steps: &mut Vec<RunStep>) -> Vec<usize> {
        loop {
            let (settled, begun_after) = (self.settled(), self.begun_after());
            let is_ready = |component: usize| previous(&self.graph, component).all(|before| settled[before]);
            // A component before it that is executed again chooses as it did, if anything after that has begun.
            let has_chosen = |before: usize| self.states[before].is_over() || begun_after[before];
            let is_skipped = |component: usize| {
                !self.is_triggered(component) && previous(&self.graph, component).all(has_chosen)
            };
            let skipped: Vec<usize> = self.waiting().filter(|&component| is_skipped(component)).collect();
            if skipped.is_empty() {
                return self.waiting().filter(|&component| is_ready(component)).collect();
            }
            // Those after them may be ready, then.
            skipped.into_iter().for_each(|component| self.skip(component, steps));
        }
    }

    fn is_triggered(&self, component: usize) -> bool {
        let mut before = previous(&self.graph, component).peekable();
        before.peek().is_none() || before.any(|before| self.outputs_to(before, component).is_some())
    }

    /// Marks a component as skipped. Resources prepared for it are given back, and so is memory that only it could
    /// access.
    fn skip(&mut self, component: usize, steps: &mut Vec<RunStep>) {
        debug_assert_eq!(self.states[component], State::Waiting, "component {component} is skipped");
        self.states[component] = State::Skipped;
        // No component after it that has begun uses its output. An output read from records may be of a void execution.
        self.handed[component].iter_mut().for_each(|handed| handed.outputs = None);
        steps.push(RunStep::Cancel { component });
        self.drop_unneeded(component, steps);
    }

    /// For each component, whether it and all that lead to it are done or skipped. A component before those that
    /// trigger a component may be executed again, for the memory that it writes.
    fn settled(&self) -> Vec<bool> {
        fn visit(progress: &RunProgress, at: usize, known: &mut [Option<bool>]) -> bool {
            if let Some(known) = known[at] {
                return known;
            }
            let is_over = progress.states[at].is_over();
            let is = previous(&progress.graph, at)
                .fold(is_over, |is, before| visit(progress, before, known) && is);
            known[at] = Some(is);
            is
        }
        let mut known = vec![None; self.states.len()];
        (0..self.states.len()).map(|at| visit(self, at, &mut known)).collect()
    }

    fn input_of(&self, component: usize) -> Arc<Vec<u8>> {
        if self.graph.entry() == component {
            return self.input.clone();
        }
        let before = previous(&self.graph, component);
        let handed = before.filter_map(|before| self.outputs_to(before, component));
        let outputs: Vec<&[u8]> = handed.flat_map(|outputs| outputs.iter().map(Vec::as_slice)).collect();
        Arc::new(run::message(&outputs))
    }

    /// The outputs that a component has handed on to one that it triggers.
    pub(crate) fn outputs_to(&self, from: usize, to: usize) -> Option<&Outputs> {
        self.handed[from].iter().find(|handed| handed.to == Some(to))?.outputs.as_ref()
    }

    fn finish(&self, steps: &mut Vec<RunStep>) {
        let compute = |at: &usize| self.graph.components[*at].compute().is_some();
        if (0..self.states.len()).filter(compute).any(|at| !self.states[at].is_over()) {
            return;
        }
        let last = (0..self.states.len()).filter_map(|at| {
            let handed = self.handed[at].iter().find(|handed| handed.to.is_none())?;
            Some((at, handed.outputs.clone()?))
        });
        steps.push(RunStep::Finish { outputs: last.collect() });
    }
}

fn triggers(graph: &Graph, from: usize) -> impl Iterator<Item = &Edge> {
    graph.edges_from(from).filter(|edge| edge.relation == Relation::Trigger)
}

/// The components that one triggers, or may.
fn next(graph: &Graph, from: usize) -> impl Iterator<Item = usize> {
    triggers(graph, from).map(|edge| edge.to)
}

/// The components that trigger one, in the order of the edges.
fn previous(graph: &Graph, to: usize) -> impl Iterator<Item = usize> {
    graph.edges_to(to).filter(|edge| edge.relation == Relation::Trigger).map(|edge| edge.from)
}

/// The memory components that a component may access.
fn accessed(graph: &Graph, from: usize) -> impl Iterator<Item = usize> {
    graph.edges_from(from).filter(|edge| matches!(edge.relation, Relation::Access(_))).map(|edge| edge.to)
}

/// The components that may access a memory component. Only accesses lead to it.
fn accessors(graph: &Graph, memory: usize) -> impl Iterator<Item = usize> {
    graph.edges_to(memory).map(|edge| edge.from)
}

#[cfg(test)]
mod tests;
