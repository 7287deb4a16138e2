//! Executes a graph's functions on the processors and devices of one computer, called by a process (Molecule 4.1 and
//! 4.3: chains and DAGs of functions on any units, kept on one unit where nothing else is specified).
//!
//! Each component is executed by an [executor](crate::executor) on the unit of its kind, or on the process's own unit
//! if it names none. Components that follow each other on one unit without other successors or predecessors are one
//! call (`resize|compress`): intermediate outputs stay on that unit. Components that may be executed at the same time
//! have an executor each, as far as there are cores. A device has one executor, whose memory all components on it
//! share. An output that only several components on the device read stays there as well. An output for a component on
//! another unit passes through this process, which also decides which components an output triggers.
//!
//! Invariants:
//! - A component is called when all components that may trigger it have answered or were left out, and one of them has
//!   triggered it.
//! - A call that fails or is given up leaves nothing that a later one could take for its own.
//! - From the second call with the same sizes on, a call allocates nothing, and makes no system calls while all
//!   executors are awake.

mod plan;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sublet_fabric::SharedBytes;
use sublet_proto::graph::{Component, Edge, Graph, Problem};
use sublet_proto::{Code, Error, graph, run};

use crate::capability::GlobalId;
use crate::executor::Executor;
use crate::process::Process;
use plan::{ChainStage, StagePlan, check, triggers_from, triggers_to};

/// Number of polls of all executors before the chain waits for one of them.
const LOOKS: u32 = 2000;
/// Longest wait for one executor while others may answer before, in each round.
const SLICE: Duration = Duration::from_micros(200);
/// See the [module](self). When it is dropped, its executors end.
pub struct Chain {
    plan: StagePlan,
    executors: Vec<Executor>,
    /// Index of the executor of each stage.
    by: Vec<usize>,
    /// State of each stage in the current call.
    stages: Vec<StageState>,
    /// Stages that can be submitted.
    ready: VecDeque<usize>,
    /// Stages that were submitted to each executor and not answered, the oldest first.
    given: Vec<VecDeque<usize>>,
    is_begun: bool,
    /// Result of the call, until the caller takes it.
    outcome: Option<Result<(), Error>>,
    input: Vec<u8>,
    /// Several outputs, as one input or as the call's output.
    joined: Vec<u8>,
}

/// Reason why a call stopped.
enum Halt {
    /// The deadline has passed: the call can be continued.
    Late(Error),
    Failed(Error),
}

/// State of a stage in a call.
#[derive(Default)]
struct StageState {
    /// Number of triggering components that are not settled.
    awaits: usize,
    is_triggered: bool,
    has_output: bool,
    output: Vec<u8>,
}

impl Process {
    /// Starts executors for the components of a graph, given as its document. They execute functions on bytes: the
    /// graph has only compute components of one instance and triggers, and specifies no resources but the kind of
    /// processing unit. Inputs and outputs have at most `max_bytes` bytes; 0 stands for
    /// [`DEFAULT_BYTES`](crate::executor::DEFAULT_BYTES).
    ///
    /// # Errors
    /// `invalid_graph` with all problems; `agent_unreachable` if there is no unit of a kind; as
    /// [`Process::executor_of`].
    pub fn chain(&self, document: &[u8], max_bytes: u64, deadline: Option<Instant>) -> Result<Chain, Error> {
        let refused = |problems: Vec<Problem>| graph::error("the document", &problems);
        let graph = Graph::parse(document).map_err(refused)?;
        check(&graph).map_err(refused)?;
        let units =
            graph.components.iter().map(|component| self.unit_for(component)).collect::<Result<_, _>>()?;
        let plan = StagePlan::new(graph, units);
        let reached: Vec<Vec<bool>> = (0..plan.stages.len()).map(|stage| plan.reached_from(stage)).collect();
        let (mut executors, mut by): (Vec<Executor>, Vec<usize>) = (Vec::new(), Vec::new());
        for (stage, own) in plan.stages.iter().enumerate() {
            let (package, unit) = plan.place(own.first);
            // An executor that only executes stages before this one is free when it begins.
            let is_alike = |other: &usize| plan.place(plan.stages[*other].first) == (package, unit);
            let shared: Vec<usize> = (0..stage).filter(is_alike).map(|other| by[other]).collect();
            let is_free = |executor: &&usize| {
                let mut others = (0..stage).filter(|other| by[*other] == **executor);
                others.all(|other| reached[other][stage])
            };
            let found = shared.iter().find(|executor| plan.is_on_device(own.first) || is_free(executor));
            if let Some(&free) = found {
                by.push(free);
                continue;
            }
            let load = |executor: &&usize| by.iter().filter(|other| other == executor).count();
            match (self.executor_of(package, unit, max_bytes, deadline), shared.iter().min_by_key(load)) {
                (Ok(executor), _) => {
                    by.push(executors.len());
                    executors.push(executor);
                }
                // Then they take turns.
                (Err(error), Some(&least)) if error.code.may_pass_by_waiting() => by.push(least),
                (Err(error), _) => return Err(error),
            }
        }
        let given = executors.iter().map(|_| VecDeque::with_capacity(by.len())).collect();
        let stages: Vec<StageState> = by.iter().map(|_| StageState::default()).collect();
        let (ready, input, joined) = (VecDeque::with_capacity(by.len()), Vec::new(), Vec::new());
        Ok(Chain { plan, executors, by, stages, ready, given, is_begun: false, outcome: None, input, joined })
    }

    fn unit_for(&self, component: &Component) -> Result<u32, Error> {
        match component.compute().and_then(|compute| compute.resources.pu.as_ref()) {
            Some(kind) => self.find(kind),
            None => self.unit(0),
        }
    }
}

impl Chain {
    /// The processes that execute it: of each stage in turn, which of them may be the same.
    pub fn pids(&self) -> impl Iterator<Item = GlobalId> {
        self.by.iter().map(|&executor| self.executors[executor].pid())
    }

    /// Number of the chain in this process: that of its first executor.
    pub fn descriptor(&self) -> u32 {
        self.executors[0].descriptor()
    }

    /// Calls the chain. The input is the entry's. The output is that of the only component that triggers no other;
    /// several such outputs are joined, each behind its length ([`run::message`]).
    ///
    /// # Errors
    /// The error of the first function that fails, with its name; as [`Executor::call`].
    pub fn call<'input>(
        &mut self,
        input: impl Into<SharedBytes<'input>>,
        deadline: Option<Instant>,
    ) -> Result<&[u8], Error> {
        self.begin(input);
        self.wait(deadline).inspect_err(|_| self.give_up())?;
        self.result()
    }

    /// Begins a call. One that was not waited for is given up.
    pub fn begin<'input>(&mut self, input: impl Into<SharedBytes<'input>>) {
        let input = input.into();
        self.give_up();
        self.input.resize(input.len(), 0);
        input.copy_to(&mut self.input);
        for (stage, standing) in self.stages.iter_mut().enumerate() {
            standing.awaits = triggers_to(&self.plan.graph, self.plan.stages[stage].first).count();
            (standing.is_triggered, standing.has_output) = (false, false);
        }
        self.ready.push_back(self.plan.of[self.plan.graph.entry()]);
        self.is_begun = true;
    }

    /// Gives the current call up: its result is dropped.
    pub fn give_up(&mut self) {
        (self.is_begun, self.outcome) = (false, None);
        self.ready.clear();
        self.given.iter_mut().for_each(VecDeque::clear);
        self.executors.iter_mut().for_each(Executor::give_up);
    }

    /// Continues the current call until it succeeds or fails.
    ///
    /// # Errors
    /// `deadline_exceeded`, after which the call can be waited for again; `invalid_argument` if none was begun.
    pub fn wait(&mut self, deadline: Option<Instant>) -> Result<(), Error> {
        if self.outcome.is_some() {
            return Ok(());
        }
        if !self.is_begun {
            return Err(Error::new(Code::InvalidArgument, "no call of the chain was begun"));
        }
        let outcome = match self.go_on(deadline) {
            Ok(()) => Ok(()),
            Err(Halt::Late(error)) => return Err(error),
            Err(Halt::Failed(error)) => Err(error),
        };
        self.give_up();
        self.outcome = Some(outcome);
        Ok(())
    }

    /// Returns the result of the call that was waited for.
    ///
    /// # Errors
    /// The error of the first function that has failed, with its name; `worker_died` if an executor has ended;
    /// `invalid_argument` if there is no result to take.
    pub fn result(&mut self) -> Result<&[u8], Error> {
        let none = || Err(Error::new(Code::InvalidArgument, "no call of the chain has come to anything"));
        self.outcome.take().unwrap_or_else(none)?;
        let StagePlan { graph, stages, .. } = &self.plan;
        let is_last = |stage: &ChainStage| triggers_from(graph, stage.last).next().is_none();
        let last = stages.iter().zip(&self.stages).filter(|(stage, of)| is_last(stage) && of.has_output);
        Ok(join(last.map(|(_, of)| of.output.as_slice()), &mut self.joined))
    }

    fn go_on(&mut self, deadline: Option<Instant>) -> Result<(), Halt> {
        loop {
            self.submit(deadline).map_err(Halt::of_waiting)?;
            let Some(executor) = self.next_answered(deadline).map_err(Halt::of_waiting)? else {
                return Ok(());
            };
            let Some(stage) = self.given[executor].pop_front() else { continue };
            let standing = &mut self.stages[stage];
            standing.output.clear();
            let answer = self.executors[executor].result(deadline).map_err(Halt::Failed)?;
            standing.output.extend_from_slice(answer);
            standing.has_output = true;
            self.settle(stage);
        }
    }

    /// Submits stages that are ready, as far as executors accept them.
    fn submit(&mut self, deadline: Option<Instant>) -> Result<(), Error> {
        for _ in 0..self.ready.len() {
            let Some(stage) = self.ready.pop_front() else { return Ok(()) };
            let (executor, functions) = (self.by[stage], &self.plan.stages[stage].functions);
            let first = self.plan.stages[stage].first;
            let input = if self.plan.graph.entry() == first {
                self.input.as_slice()
            } else {
                let handed = triggers_to(&self.plan.graph, first)
                    .filter_map(|edge| handed(&self.plan, &self.stages, edge));
                join(handed, &mut self.joined)
            };
            match self.executors[executor].submit(functions, input, deadline) {
                Ok(()) => self.given[executor].push_back(stage),
                Err(error) if error.code == Code::TooManyInFlight && !self.given[executor].is_empty() => {
                    self.ready.push_back(stage);
                }
                Err(error) => {
                    self.ready.push_front(stage);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Waits for the next executor that has answered. `None` if no executor has a call.
    fn next_answered(&mut self, deadline: Option<Instant>) -> Result<Option<usize>, Error> {
        let busy = |given: &[VecDeque<usize>]| {
            let mut busy = (0..given.len()).filter(|executor| !given[*executor].is_empty());
            busy.next().map(|first| (first, busy.count()))
        };
        let Some((mut waited_for, others)) = busy(&self.given) else { return Ok(None) };
        if others == 0 {
            self.executors[waited_for].wait(deadline)?;
            return Ok(Some(waited_for));
        }
        loop {
            for _ in 0..LOOKS {
                for (number, executor) in self.executors.iter_mut().enumerate() {
                    if !self.given[number].is_empty() && executor.is_answered()? {
                        executor.wait(deadline)?;
                        return Ok(Some(number));
                    }
                }
                std::hint::spin_loop();
            }
            let slice = Instant::now() + SLICE;
            let last = deadline.filter(|deadline| *deadline <= slice);
            match self.executors[waited_for].wait(Some(last.unwrap_or(slice))) {
                Ok(()) => return Ok(Some(waited_for)),
                Err(error) if error.code != Code::DeadlineExceeded || last.is_some() => return Err(error),
                Err(_) => {}
            }
            let after = (1..=self.executors.len()).map(|step| (waited_for + step) % self.executors.len());
            let mut after = after.filter(|executor| !self.given[*executor].is_empty());
            waited_for = after.next().unwrap_or(waited_for);
        }
    }

    /// A stage has answered, or was left out: those that it may trigger may be ready, or left out themselves.
    fn settle(&mut self, stage: usize) {
        let last = self.plan.stages[stage].last;
        for at in 0..self.plan.graph.edges.len() {
            let edge = &self.plan.graph.edges[at];
            if edge.from != last {
                continue;
            }
            let is_triggered = handed(&self.plan, &self.stages, edge).is_some();
            let next = self.plan.of[edge.to];
            let standing = &mut self.stages[next];
            standing.is_triggered |= is_triggered;
            standing.awaits -= 1;
            match (standing.awaits, standing.is_triggered) {
                (0, true) => self.ready.push_back(next),
                // No deeper than the graph is long.
                (0, false) => self.settle(next),
                _ => {}
            }
        }
    }
}

impl Halt {
    fn of_waiting(error: Error) -> Halt {
        if error.code == Code::DeadlineExceeded { Halt::Late(error) } else { Halt::Failed(error) }
    }
}

/// The output that a trigger passes on. `None` if the condition is not met.
fn handed<'stages>(plan: &StagePlan, stages: &'stages [StageState], edge: &Edge) -> Option<&'stages [u8]> {
    let standing = &stages[plan.of[edge.from]];
    let does_trigger = standing.has_output && plan.graph.does_trigger(edge, &standing.output);
    does_trigger.then_some(standing.output.as_slice())
}

/// Returns one output as it is, and several as one message.
fn join<'bytes>(
    mut outputs: impl Iterator<Item = &'bytes [u8]> + Clone,
    joined: &'bytes mut Vec<u8>,
) -> &'bytes [u8] {
    match (outputs.clone().next(), outputs.clone().nth(1)) {
        (Some(output), None) => output,
        _ => {
            joined.clear();
            outputs.by_ref().for_each(|output| run::push(joined, output));
            joined
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_several_outputs_as_a_run_does() {
        let mut joined = vec![1, 2, 3];
        let all = [&b"abc"[..], b"", b"12345678"];
        assert_eq!(join(all.into_iter(), &mut joined), run::message(&all));
        assert_eq!(join([&b"abc"[..]].into_iter(), &mut joined), b"abc");
        assert_eq!(join([].into_iter(), &mut joined), b"");
    }
}
