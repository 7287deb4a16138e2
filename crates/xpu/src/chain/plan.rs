//! Plans the stages of a chain: which components are one call, and which outputs stay on their device.

use std::collections::VecDeque;

use sublet_proto::graph::{self, Component, Compute, Edge, Graph, Problem, Relation, Resources, Role};
use sublet_proto::package::is_device;

use crate::executor::MAX_PLACES;

/// Longest list of functions in one call, in bytes, without the buffer names before and behind them.
const MAX_FUNCTIONS_BYTES: usize = 255 - 2 * "|@99".len();

/// The stages of a graph.
pub(super) struct StagePlan {
    pub(super) graph: Graph,
    /// The unit of each component.
    units: Vec<u32>,
    pub(super) stages: Vec<ChainStage>,
    /// The stage of each component.
    pub(super) of: Vec<usize>,
}

/// Components that follow each other on one unit.
#[derive(Debug, PartialEq)]
pub(super) struct ChainStage {
    /// The first and the last.
    pub(super) first: usize,
    pub(super) last: usize,
    /// The functions of all components of the stage, as an executor calls them.
    pub(super) functions: String,
}

impl StagePlan {
    /// Plans the stages in an order in which each comes after those that may trigger it.
    pub(super) fn new(graph: Graph, units: Vec<u32>) -> StagePlan {
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
    pub(super) fn is_on_device(&self, component: usize) -> bool {
        let pu = self.graph.components[component].compute().and_then(|compute| compute.resources.pu.as_ref());
        pu.is_some_and(|kind| is_device(kind))
    }

    /// The package of a component, and the unit that executes it.
    pub(super) fn place(&self, component: usize) -> (&str, u32) {
        let compute = self.graph.components[component].compute().expect("a chain has no others");
        (&compute.package, self.units[component])
    }

    /// The stages to which triggers lead from one, itself among them.
    pub(super) fn reached_from(&self, stage: usize) -> Vec<bool> {
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

/// Reports every feature of a graph that executors do not have.
pub(super) fn check(graph: &Graph) -> Result<(), Vec<Problem>> {
    let mut problems = Vec::new();
    let mut add = |at: String, message: &str| problems.push(Problem { at, message: message.into() });
    for (index, Component { role, .. }) in graph.components.iter().enumerate() {
        let at = |field: &str| format!("components[{index}]{field}");
        match role {
            Role::Memory(_) => add(at(".type"), "a chain of executors has no memory components"),
            Role::Compute(Compute { parallelism, instances_from, resources, .. }) => {
                if *parallelism > 1 || instances_from.is_some() {
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

/// The triggers that lead from a component.
pub(super) fn triggers_from(graph: &Graph, component: usize) -> impl Iterator<Item = &Edge> + Clone {
    graph.edges.iter().filter(move |edge| edge.from == component && edge.relation == Relation::Trigger)
}

/// The triggers that lead to a component.
pub(super) fn triggers_to(graph: &Graph, component: usize) -> impl Iterator<Item = &Edge> + Clone {
    graph.edges.iter().filter(move |edge| edge.to == component && edge.relation == Relation::Trigger)
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
}
