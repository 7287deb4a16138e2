//! The rule of replay a second time, as an oracle: what a run's graph and records say by themselves. Nothing here asks [`Progress`].
//!
//! The latest record in which a component hands on to another says whether it triggers that, and with which outputs. A component is
//! executed if one that is executed triggers it, or if a run begins with it; all others are skipped. From this follow every input,
//! who must have written into a memory component before another accesses it, and what the run comes to.
//!
//! [`Progress`]: super::super::Progress

use std::sync::Arc;

use sublet_proto::graph::{Condition, Edge, Graph, Relation, Rights};
use sublet_proto::run;

use super::super::{Outputs, Record};

/// See the [module](self).
pub(super) struct Ledger<'run> {
    graph: &'run Graph,
    input: &'run [u8],
    records: &'run [Record],
    /// By edge: the latest record of a hand-over along it.
    latest: Vec<Option<usize>>,
    executed: Vec<bool>,
}

impl<'run> Ledger<'run> {
    pub(super) fn of(graph: &'run Graph, input: &'run [u8], records: &'run [Record]) -> Ledger<'run> {
        let latest = |edge: &Edge| {
            let is_along = |record: &Record| record.from == edge.from && record.to.contains(&edge.to);
            records.iter().rposition(is_along).filter(|_| edge.relation == Relation::Trigger)
        };
        let latest = graph.edges.iter().map(latest).collect();
        let mut ledger = Ledger { graph, input, records, latest, executed: Vec::new() };
        let count = graph.components.len();
        let mut executed = vec![false; count];
        executed[graph.entry()] = true;
        // The longest way has fewer steps than there are components.
        for _ in 0..count {
            for (index, edge) in graph.edges.iter().enumerate() {
                executed[edge.to] |= executed[edge.from] && ledger.does_trigger(index);
            }
        }
        ledger.executed = executed;
        ledger
    }

    /// Whether the component is executed in this run, as far as the records go.
    pub(super) fn is_executed(&self, component: usize) -> bool {
        self.executed[component]
    }

    /// Which of the components after one it triggers, in the order of the edges.
    pub(super) fn choice(&self, component: usize) -> Vec<bool> {
        let triggers = |(index, edge): (usize, &Edge)| {
            (edge.from == component && edge.relation == Relation::Trigger).then(|| self.does_trigger(index))
        };
        self.graph.edges.iter().enumerate().filter_map(triggers).collect()
    }

    /// What a component that begins now gets.
    pub(super) fn input(&self, component: usize) -> Vec<u8> {
        if component == self.graph.entry() {
            return self.input.to_vec();
        }
        let edges = self.graph.edges.iter().enumerate();
        let given = edges.filter(|&(index, edge)| {
            edge.to == component && self.executed[edge.from] && self.does_trigger(index)
        });
        let outputs =
            given.flat_map(|(index, _)| self.outputs_along(index).into_iter().flat_map(|all| all.iter()));
        let outputs: Vec<&[u8]> = outputs.map(Vec::as_slice).collect();
        run::message(&outputs)
    }

    /// The components that must have written into a memory component before this one begins.
    pub(super) fn writers(&self, memory: usize, component: usize) -> Vec<usize> {
        let writes = |edge: &&Edge| edge.to == memory && edge.relation == Relation::Access(Rights::Write);
        let writers = self.graph.edges.iter().filter(writes).map(|edge| edge.from);
        writers.filter(|&writer| self.executed[writer] && self.is_before(writer, component)).collect()
    }

    /// Whether triggers lead from one component to another.
    pub(super) fn is_before(&self, first: usize, second: usize) -> bool {
        let mut before =
            self.graph.edges.iter().filter(|edge| edge.to == second && edge.relation == Relation::Trigger);
        before.any(|edge| edge.from == first || self.is_before(first, edge.from))
    }

    /// What the run has come to, if all that is executed is recorded.
    pub(super) fn outcome(&self) -> Option<Vec<(usize, Outputs)>> {
        let compute = |&at: &usize| self.executed[at] && self.graph.components[at].compute().is_some();
        let executed: Vec<usize> = (0..self.graph.components.len()).filter(compute).collect();
        let mut outcome = Vec::new();
        for component in executed {
            let latest = self.records.iter().rfind(|record| record.from == component)?;
            if self.choice(component).is_empty() {
                outcome.push((component, latest.outputs.clone()));
            }
        }
        Some(outcome)
    }

    fn outputs_along(&self, edge: usize) -> Option<&Arc<Vec<Vec<u8>>>> {
        self.latest[edge].map(|record| &self.records[record].outputs)
    }

    fn does_trigger(&self, edge: usize) -> bool {
        let Some(outputs) = self.outputs_along(edge) else { return false };
        let is_case = |text: &str| outputs[0].starts_with(text.as_bytes());
        let from = self.graph.edges[edge].from;
        match &self.graph.edges[edge].condition {
            None => true,
            Some(Condition::When(text)) => is_case(text),
            Some(Condition::Otherwise) => {
                let others = self.graph.edges.iter().filter(|other| other.from == from);
                let mut cases = others.filter_map(|other| match &other.condition {
                    Some(Condition::When(text)) => Some(text),
                    _ => None,
                });
                !cases.any(|text| is_case(text))
            }
        }
    }
}
