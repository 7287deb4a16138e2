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

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sublet_fabric::SharedBytes;
use sublet_proto::graph::{Component, Compute, Edge, Graph, Problem, Relation, Resources, Role};
use sublet_proto::package::is_device;
use sublet_proto::{Code, Error, graph, run};

use crate::capability::GlobalId;
use crate::executor::{Executor, MAX_PLACES};
use crate::process::Process;

/// Number of polls of all executors before the chain waits for one of them.
const LOOKS: u32 = 2000;
/// Longest wait for one executor while others may answer before, in each round.
const SLICE: Duration = Duration::from_micros(200);
/// Longest list of functions in one call, in bytes, without the buffer names before and behind them.
const MAX_FUNCTIONS_BYTES: usize = 255 - 2 * "|@99".len();

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

/// The stages of a graph.
struct StagePlan {
    graph: Graph,
    /// The unit of each component.
    units: Vec<u32>,
    stages: Vec<ChainStage>,
    /// The stage of each component.
    of: Vec<usize>,
}

/// Components that follow each other on one unit.
#[derive(Debug, PartialEq)]
struct ChainStage {
    /// The first and the last.
    first: usize,
    last: usize,
    /// The functions of all components of the stage, as an executor calls them.
    functions: String,
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

/// All that executors do not have.
fn check(graph: &Graph) -> Result<(), Vec<Problem>> {
    let mut problems = Vec::new();
    let mut add = |at: String, message: &str| problems.push(Problem { at, message: message.into() });
    for (index, Component { role, .. }) in graph.components.iter().enumerate() {
        let at = |field: &str| format!("components[{index}]{field}");
        match role {
            Role::Memory(_) => add(at(".type"), "a chain of executors has no memory components"),
            Role::Compute(Compute { parallelism, resources, .. }) => {
                if *parallelism > 1 {
                    add(at(".parallelism"), "a component of a chain of executors has one instance");
                }
                if *resources != (Resources { pu: resources.pu.clone(), ..Resources::default() }) {
                    add(
                        at(".resources"),
                        "a component of a chain of executors says of resources \"pu\" alone",
                    );
                }
            }
        }
    }
    for (index, edge) in graph.edges.iter().enumerate() {
        if edge.relation == Relation::Message {
            add(format!("edges[{index}].type"), "components of a chain of executors exchange no messages");
        }
    }
    if graph.limits != graph::RunLimits::default() {
        add("limits".into(), "a chain of executors has none");
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn triggers_from(graph: &Graph, component: usize) -> impl Iterator<Item = &Edge> + Clone {
    graph.edges.iter().filter(move |edge| edge.from == component && edge.relation == Relation::Trigger)
}

fn triggers_to(graph: &Graph, component: usize) -> impl Iterator<Item = &Edge> + Clone {
    graph.edges.iter().filter(move |edge| edge.to == component && edge.relation == Relation::Trigger)
}

impl StagePlan {
    /// Plans the stages in an order in which each comes after those that may trigger it.
    fn new(graph: Graph, units: Vec<u32>) -> StagePlan {
        let compute = |component: usize| graph.components[component].compute();
        let place = |component: usize| (compute(component).map(|compute| &compute.package), units[component]);
        let mut awaits: Vec<usize> =
            (0..graph.components.len()).map(|to| triggers_to(&graph, to).count()).collect();
        let mut stages: Vec<ChainStage> = Vec::new();
        let mut of = vec![0; graph.components.len()];
        let mut next = VecDeque::from([graph.entry()]);
        while let Some(component) = next.pop_front() {
            let Some(function) = compute(component).map(|compute| &compute.function) else { continue };
            let before = only(triggers_to(&graph, component))
                .filter(|edge| edge.condition.is_none() && only(triggers_from(&graph, edge.from)).is_some())
                .map(|edge| edge.from)
                .filter(|from| place(*from) == place(component))
                .filter(|from| stages[of[*from]].functions.len() + function.len() < MAX_FUNCTIONS_BYTES);
            match before {
                Some(from) => {
                    of[component] = of[from];
                    let stage = &mut stages[of[from]];
                    stage.last = component;
                    stage.functions = format!("{}|{function}", stage.functions);
                }
                None => {
                    of[component] = stages.len();
                    let functions = function.clone();
                    stages.push(ChainStage { first: component, last: component, functions });
                }
            }
            for edge in triggers_from(&graph, component) {
                awaits[edge.to] -= 1;
                if awaits[edge.to] == 0 {
                    next.push_back(edge.to);
                }
            }
        }
        let mut plan = StagePlan { graph, units, stages, of };
        plan.keep_on_devices();
        plan
    }

    /// Keeps an output in a named buffer on its device if only stages on that device read it.
    fn keep_on_devices(&mut self) {
        let mut places = 0..MAX_PLACES;
        for stage in 0..self.stages.len() {
            let last = self.stages[stage].last;
            let next: Vec<&Edge> = triggers_from(&self.graph, last).collect();
            let stays = |edge: &&Edge| {
                edge.condition.is_none()
                    && self.place(edge.to) == self.place(last)
                    && only(triggers_to(&self.graph, edge.to)).is_some()
            };
            if !self.is_on_device(last) || next.is_empty() || !next.iter().all(stays) {
                continue;
            }
            let Some(place) = places.next() else { return };
            let next: Vec<usize> = next.iter().map(|edge| self.of[edge.to]).collect();
            self.stages[stage].functions.push_str(&format!("|@{place}"));
            for next in next {
                self.stages[next].functions.insert_str(0, &format!("@{place}|"));
            }
        }
    }

    /// Whether a component is executed on a device.
    fn is_on_device(&self, component: usize) -> bool {
        let pu = self.graph.components[component].compute().and_then(|compute| compute.resources.pu.as_ref());
        pu.is_some_and(|kind| is_device(kind))
    }

    /// The package of a component, and the unit that executes it.
    fn place(&self, component: usize) -> (&str, u32) {
        let compute = self.graph.components[component].compute().expect("a chain has no others");
        (&compute.package, self.units[component])
    }

    /// The stages to which triggers lead from one, itself among them.
    fn reached_from(&self, stage: usize) -> Vec<bool> {
        let mut reached = vec![false; self.stages.len()];
        let mut next = vec![stage];
        while let Some(stage) = next.pop() {
            if !std::mem::replace(&mut reached[stage], true) {
                let edges = triggers_from(&self.graph, self.stages[stage].last);
                next.extend(edges.map(|edge| self.of[edge.to]));
            }
        }
        reached
    }
}

fn only<T>(mut all: impl Iterator<Item = T>) -> Option<T> {
    all.next().filter(|_| all.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Components by their names, each its own function; edges as `ab`, on a device those in upper case.
    fn graph(names: &str, edges: &[&str]) -> Graph {
        let component = |name: char| {
            let entry = if names.starts_with(name) { r#","entry":true"# } else { "" };
            let pu = if name.is_uppercase() { r#","resources":{"pu":"opencl"}"# } else { "" };
            format!(r#"{{"name":"{name}","type":"compute","package":"p","function":"{name}"{entry}{pu}}}"#)
        };
        let edge = |edge: &&str| {
            let (ends, when) = edge.split_at(2);
            let when = if when.is_empty() { String::new() } else { format!(r#","when":"{when}""#) };
            format!(r#"{{"type":"trigger","from":"{}","to":"{}"{when}}}"#, &ends[..1], &ends[1..])
        };
        let components: Vec<String> = names.chars().map(component).collect();
        let edges: Vec<String> = edges.iter().map(edge).collect();
        let (components, edges) = (components.join(","), edges.join(","));
        let json = format!(r#"{{"version":1,"name":"g","components":[{components}],"edges":[{edges}]}}"#);
        Graph::parse(json.as_bytes()).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    fn plan(names: &str, edges: &[&str]) -> StagePlan {
        StagePlan::new(graph(names, edges), names.chars().map(|name| name.is_uppercase().into()).collect())
    }

    fn stages(names: &str, edges: &[&str]) -> Vec<String> {
        plan(names, edges).stages.into_iter().map(|stage| stage.functions).collect()
    }

    #[test]
    fn what_follows_each_other_on_one_unit_is_one_call() {
        assert_eq!(stages("abc", &["ab", "bc"]), ["a|b|c"]);
        assert_eq!(stages("aBCd", &["aB", "BC", "Cd"]), ["a", "B|C", "d"], "by the unit");
        assert_eq!(
            stages("abcd", &["ab", "ac", "bd", "cd"]),
            ["a", "b", "c", "d"],
            "who has two before or behind"
        );
        assert_eq!(stages("abc", &["abx", "bc"]), ["a", "b|c"], "nor on a condition");
        assert_eq!(stages("dcba", &["dc", "cb", "da"]), ["d", "c|b", "a"]);
        let plan = plan("abcd", &["ab", "ac", "bd", "cd"]);
        let reached = |from| (0..4).filter(|to| plan.reached_from(from)[*to]).collect::<Vec<_>>();
        assert_eq!([0, 1, 2, 3].map(reached), [vec![0, 1, 2, 3], vec![1, 3], vec![2, 3], vec![3]]);
    }

    #[test]
    fn outputs_read_only_on_their_device_stay_there() {
        assert_eq!(
            stages("ABCd", &["AB", "AC", "Bd", "Cd"]),
            ["A|@0", "@0|B", "@0|C", "d"],
            "and what else needs it does not"
        );
        assert_eq!(stages("aBCD", &["aB", "BC", "BD"]), ["a", "B|@0", "@0|C", "@0|D"]);
        assert_eq!(stages("ABCDE", &["AB", "AC", "BD", "BE"]), ["A|@0", "@0|B|@1", "@0|C", "@1|D", "@1|E"]);
        assert_eq!(stages("ABc", &["AB", "Ac"]), ["A", "B", "c"], "a stage elsewhere is sent the output");
        assert_eq!(stages("ABC", &["ABx", "AC"]), ["A", "B", "C"], "the stage that decides reads the output");
        assert_eq!(
            stages("ABCD", &["AB", "AC", "BD", "CD"]),
            ["A|@0", "@0|B", "@0|C", "D"],
            "a stage that joins two reads both outputs"
        );
        assert_eq!(stages("abc", &["ab", "ac"]), ["a", "b", "c"], "stages on cores begin at once");
    }

    #[test]
    fn plans_graphs_of_very_many_paths_in_bounded_time() {
        let edges = ["abcd", "efgh", "ijkl", "mnop", "qrst", "uvwx"].windows(2).flat_map(|layers| {
            layers[0].chars().flat_map(|from| layers[1].chars().map(move |to| format!("{from}{to}")))
        });
        let all: Vec<String> = "abcd".chars().map(|to| format!("z{to}")).chain(edges).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let plan = plan("zabcdefghijklmnopqrstuvwx", &all);
        assert_eq!(plan.stages.len(), 25);
        assert!(plan.reached_from(0).iter().all(|reached| *reached));
    }

    #[test]
    fn reports_unsupported_features_of_chains_with_their_position() {
        let json = r#"{"version":1,"name":"g","limits":{"cores":2},"components":[
            {"name":"a","type":"compute","package":"p","function":"f","entry":true,"parallelism":2},
            {"name":"b","type":"compute","package":"p","function":"f","resources":{"memory_bytes":4096}},
            {"name":"c","type":"compute","package":"p","function":"f"},
            {"name":"m","type":"memory"}],"edges":[
            {"type":"trigger","from":"a","to":"b"},{"type":"trigger","from":"a","to":"c"},
            {"type":"message","from":"b","to":"c"},{"type":"access","from":"a","to":"m","rights":"read"}]}"#;
        let problems = check(&Graph::parse(json.as_bytes()).unwrap()).unwrap_err();
        let at: Vec<&str> = problems.iter().map(|problem| problem.at.as_str()).collect();
        let expected = [
            "components[0].parallelism",
            "components[1].resources",
            "components[3].type",
            "edges[2].type",
            "limits",
        ];
        assert_eq!(at, expected);
        check(&graph("aB", &["aB"])).unwrap();
    }

    #[test]
    fn joins_several_outputs_as_a_run_does() {
        let mut joined = vec![1, 2, 3];
        let all = [&b"abc"[..], b"", b"12345678"];
        assert_eq!(join(all.into_iter(), &mut joined), run::message(&all));
        assert_eq!(join([&b"abc"[..]].into_iter(), &mut joined), b"abc");
        assert_eq!(join([].into_iter(), &mut joined), b"");
    }
}
