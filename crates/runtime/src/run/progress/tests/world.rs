//! Simulates components that mark the memory that they access, send each other messages, are lost and lose their
//! client. After each step the state is compared with the [`ReplayOracle`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_proto::Error;
use sublet_proto::graph::{Graph, MemoryRights, Relation};

use super::super::{ComponentPhase, KeptRecord, Outputs, RunProgress, RunStep, accessed, accessors, next};
use super::ledger::{Precedence, ReplayOracle};

/// Input of the run.
const INPUT: &[u8] = b"in";
/// Longest input that is copied into an output, in bytes. A longer input is replaced by its hash.
const MOST_BYTES: usize = 256;

/// See the [module](self).
pub(super) struct ComponentWorld {
    pub(super) graph: Arc<Graph>,
    precedence: Precedence,
    pub(super) progress: RunProgress,
    pub(super) recorded: Vec<KeptRecord>,
    pub(super) finished: Option<Vec<(usize, Outputs)>>,
    pub(super) running: BTreeMap<usize, RunningComponent>,
    /// The components that have written, by memory component.
    written: BTreeMap<usize, BTreeMap<usize, Mark>>,
    /// Number of executions of each component, by all clients.
    executions: Vec<u32>,
    /// The state that each component found when it began.
    found: BTreeMap<usize, PriorStates>,
    /// Components with external effects that this client has begun.
    had_effects: BTreeSet<usize>,
}

pub(super) struct RunningComponent {
    pub(super) attempt: u32,
    input: Arc<Vec<u8>>,
    released: BTreeSet<usize>,
}

/// Mark of a component in a memory component.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    execution: u32,
    /// Set if the component has written everything.
    is_whole: bool,
}

/// State of the components before one when it began: their index, whether they are executed, and their choice.
#[derive(Debug, PartialEq)]
struct PriorStates(Vec<(usize, bool, Vec<bool>)>);

impl ComponentWorld {
    pub(super) fn new(graph: Arc<Graph>) -> ComponentWorld {
        ComponentWorld {
            precedence: Precedence::of(&graph),
            progress: RunProgress::new(graph.clone(), INPUT.to_vec(), u32::MAX),
            recorded: Vec::new(),
            finished: None,
            running: BTreeMap::new(),
            written: BTreeMap::new(),
            executions: vec![0; graph.components.len()],
            found: BTreeMap::new(),
            had_effects: BTreeSet::new(),
            graph,
        }
    }

    /// The run begins.
    pub(super) fn begin(graph: Arc<Graph>) -> ComponentWorld {
        let mut world = ComponentWorld::new(graph);
        let steps = world.progress.begin();
        world.take(steps).expect("nothing has begun before");
        world
    }

    /// Lets another client continue the run after its own has died.
    pub(super) fn resume(self) -> Result<ComponentWorld, Error> {
        let (ended, again) = (self.ledger().ended(), self.ledger().executed_again());
        let mut world = ComponentWorld::new(self.graph);
        (world.recorded, world.executions) = (self.recorded, self.executions);
        let steps = world.progress.resume(&world.recorded).inspect_err(|error| {
            let name = |&at: &usize| format!("component {} ", world.graph.components[at].name);
            assert!(again.iter().map(name).any(|name| error.message.contains(&name)), "{again:?}: {error}");
        })?;
        for component in (0..ended.len()).filter(|at| ended[*at] && !again.contains(at)) {
            let standing = world.progress.standing(component);
            assert_eq!(
                standing,
                ComponentPhase::Done,
                "{component} has ended, and is executed again for nothing"
            );
        }
        world.found = self.found;
        world.found.retain(|&component, _| world.progress.standing(component) == ComponentPhase::Done);
        // This client has not seen how they began.
        for component in (0..ended.len()).filter(|&at| world.progress.standing(at) == ComponentPhase::Done) {
            let found = world.found_by(component, &world.ledger());
            world.found.entry(component).or_insert(found);
        }
        world.take(Ok(steps))?;
        Ok(world)
    }

    /// Executes steps, and checks that the world agrees with the records.
    ///
    /// # Errors
    /// The reason why the run has failed.
    pub(super) fn take(&mut self, steps: Result<Vec<RunStep>, Error>) -> Result<(), Error> {
        for step in steps? {
            match step {
                RunStep::Record { from, to, outputs } => {
                    let has_begun_after = self.found.keys().any(|&at| self.precedence.is_before(from, at));
                    let all: Vec<usize> = next(&self.graph, from).collect();
                    assert!(has_begun_after || to == all, "{from} hands on to {to:?} of {all:?} only");
                    self.recorded.push(KeptRecord { from, to, outputs });
                }
                RunStep::Start { component, attempt, input } => self.start(component, attempt, input),
                RunStep::Cancel { component } => {
                    // A component that is skipped may wait again at once: memory that was dropped is written again by those before it.
                    let standing = self.progress.standing(component);
                    let was_skipped = matches!(standing, ComponentPhase::Skipped | ComponentPhase::Waiting);
                    let did_run = self.running.remove(&component).is_some();
                    assert!(did_run || was_skipped, "{component} did not run");
                }
                RunStep::Drop { memory } => self.drop_memory(memory),
                RunStep::Finish { outputs } => {
                    let expected = self.ledger().outcome();
                    assert_eq!(Some(&outputs), expected.as_ref(), "the run comes to what its records say");
                    assert!(self.finished.replace(outputs).is_none());
                }
            }
        }
        self.check();
        Ok(())
    }

    fn ledger(&self) -> ReplayOracle<'_> {
        ReplayOracle::of(&self.graph, &self.precedence, INPUT, &self.recorded)
    }

    fn start(&mut self, component: usize, attempt: u32, input: Arc<Vec<u8>>) {
        let ledger = self.ledger();
        assert!(ledger.is_executed(component), "nothing that is kept triggers {component}, and it begins");
        assert_eq!(*input, ledger.input(component), "{component} gets what is kept for it");
        self.found.insert(component, self.found_by(component, &ledger));
        self.executions[component] += 1;
        if self.graph.components[component].compute().is_some_and(|compute| compute.has_external_effects) {
            assert!(self.had_effects.insert(component), "{component} has external effects, and begins again");
        }
        for memory in self.writable(component) {
            self.mark(component, memory, false);
        }
        let running = RunningComponent { attempt, input, released: BTreeSet::new() };
        assert!(self.running.insert(component, running).is_none(), "{component} runs already");
    }

    /// The memory components that one may write.
    fn writable(&self, component: usize) -> Vec<usize> {
        let writes = self
            .graph
            .edges_from(component)
            .filter(|edge| edge.relation == Relation::Access(MemoryRights::Write));
        writes.map(|edge| edge.to).collect()
    }

    fn mark(&mut self, component: usize, memory: usize, is_whole: bool) {
        let mark = Mark { execution: self.executions[component], is_whole };
        self.written.entry(memory).or_default().insert(component, mark);
    }

    fn drop_memory(&mut self, memory: usize) {
        for who in accessors(&self.graph, memory) {
            let has_it = self.running.get(&who).is_some_and(|running| !running.released.contains(&memory));
            assert!(!has_it, "memory {memory} is dropped under {who}");
        }
        self.written.remove(&memory);
    }

    fn found_by(&self, component: usize, ledger: &ReplayOracle) -> PriorStates {
        PriorStates(
            self.precedence
                .before(component)
                .map(|at| (at, ledger.is_executed(at), ledger.choice(at)))
                .collect(),
        )
    }

    /// Checks three properties. Each running component has all that its predecessors wrote. No memory has writes of a
    /// lost execution, and none is kept that no component may access. The predecessors of a component that has begun
    /// are still as it found them.
    fn check(&self) {
        let ledger = self.ledger();
        let nothing = BTreeMap::new();
        for (&component, running) in &self.running {
            for memory in accessed(&self.graph, component).filter(|memory| !running.released.contains(memory))
            {
                let there = self.written.get(&memory).unwrap_or(&nothing);
                for before in ledger.writers(memory, component) {
                    let whole = Mark { execution: self.executions[before], is_whole: true };
                    let is_there = there.get(&before) == Some(&whole);
                    assert!(is_there, "{component} misses what {before} wrote into {memory}");
                }
            }
        }
        for (&memory, marks) in &self.written {
            let is_needed = accessors(&self.graph, memory).any(|who| match self.progress.standing(who) {
                ComponentPhase::Waiting => true,
                _ => self.running.get(&who).is_some_and(|running| !running.released.contains(&memory)),
            });
            assert!(is_needed, "memory {memory} is kept, and no component may access it any more");
            assert!(!self.progress.gone.contains(&memory), "memory {memory} is there, and taken for lost");
            for (&who, mark) in marks {
                assert_eq!(
                    mark.execution, self.executions[who],
                    "{memory} has what a lost execution of {who} wrote"
                );
            }
        }
        for (&component, found) in &self.found {
            if matches!(self.progress.standing(component), ComponentPhase::Running | ComponentPhase::Done) {
                assert_eq!(
                    &self.found_by(component, &ledger),
                    found,
                    "before {component} it is as when that began"
                );
            }
        }
    }

    /// Whether a running component has the messages of its peers.
    fn has_messages(&self, component: usize) -> bool {
        let is_mailbox = |memory: &usize| self.graph.components[*memory].name.contains('~');
        let mut mailboxes = accessed(&self.graph, component).filter(is_mailbox);
        mailboxes.all(|memory| {
            let there = self.written.get(&memory);
            accessors(&self.graph, memory).all(|peer| {
                let mark = there.and_then(|marks| marks.get(&peer));
                mark.is_some_and(|mark| mark.execution == self.executions[peer])
            })
        })
    }

    /// The running components, and those of them that can end.
    pub(super) fn running(&self) -> (Vec<usize>, Vec<usize>) {
        let running: Vec<usize> = self.running.keys().copied().collect();
        let able: Vec<usize> =
            running.iter().copied().filter(|&component| self.has_messages(component)).collect();
        assert!(!able.is_empty(), "of {running:?} none can end, and the run has not ended");
        (running, able)
    }

    /// Lets a running component finish its work. Its output begins with `word`, or is determined by its input.
    pub(super) fn end(&mut self, component: usize, word: Option<u8>) -> Result<(), Error> {
        let RunningComponent { attempt, input, released } = self.running.remove(&component).expect("it runs");
        for memory in self.writable(component).into_iter().filter(|memory| !released.contains(memory)) {
            self.mark(component, memory, true);
        }
        let outputs = self.outputs(component, word, &input);
        let steps = self.progress.ended(component, attempt, outputs);
        self.take(steps)
    }

    fn outputs(&self, component: usize, word: Option<u8>, input: &[u8]) -> Outputs {
        // Some outputs choose one successor, and some the other.
        let usual = if (input.len() + component).is_multiple_of(3) { b'n' } else { b'y' };
        let instances = self.graph.components[component].compute().map_or(1, |compute| compute.parallelism);
        let output = |instance: u32| {
            let mut output = vec![word.unwrap_or(usual)];
            match input.len() <= MOST_BYTES {
                true => output.extend_from_slice(input),
                false => output.extend(hash(input).to_le_bytes()),
            }
            output.push(component as u8);
            if instances > 1 {
                output.push(instance as u8);
            }
            if word.is_some() {
                output.extend(self.executions[component].to_le_bytes());
            }
            output
        };
        Arc::new((0..instances).map(output).collect())
    }

    /// All instances of one that runs release a memory component, if it has one: the first from this one on.
    pub(super) fn release(&mut self, component: usize, which: usize) {
        let running = &self.running[&component];
        let is_there = |memory: &usize| {
            !running.released.contains(memory) && !self.graph.components[*memory].name.contains('~')
        };
        let there: Vec<usize> = accessed(&self.graph, component).filter(is_there).collect();
        let Some(&memory) = there.get(which % there.len().max(1)) else { return };
        if self.writable(component).contains(&memory) {
            self.mark(component, memory, true);
        }
        self.running.get_mut(&component).expect("it runs").released.insert(memory);
        if self.progress.released(component, memory) {
            self.drop_memory(memory);
        }
        self.check();
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
