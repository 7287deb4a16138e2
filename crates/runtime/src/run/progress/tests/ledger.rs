//! Implements the rule of replay a second time, as an oracle: everything that follows from a run's graph and records
//! alone. Nothing here uses [`RunProgress`].
//!
//! The latest record in which a component hands on to another says whether it triggers that, and with which outputs. A
//! component is executed if one that is executed triggers it, or if a run begins with it; all others are skipped. From
//! this follow every input, the components that must have written into a memory component before another accesses it,
//! and the result of the run.
//!
//! [`RunProgress`]: super::super::Progress

use std::sync::Arc;

use sublet_proto::graph::{Condition, Edge, Graph, MemoryRights, Relation};
use sublet_proto::run;

use super::super::{KeptRecord, Outputs};

/// The order in which triggers put the components of a graph. Computed once per graph, since a story uses it thousands
/// of times.
pub(super) struct Precedence {
    /// For each component, whether triggers lead to it from each other one.
    before: Vec<Vec<bool>>,
}

impl Precedence {
    pub(super) fn of(graph: &Graph) -> Precedence {
        let count = graph.components.len();
        let mut before = vec![vec![false; count]; count];
        let mut has_changed = true;
        while std::mem::take(&mut has_changed) {
            for edge in graph.edges.iter().filter(|edge| edge.relation == Relation::Trigger) {
                let mut found = before[edge.from].clone();
                found[edge.from] = true;
                for (known, found) in before[edge.to].iter_mut().zip(found) {
                    has_changed |= found && !*known;
                    *known |= found;
                }
            }
        }
        Precedence { before }
    }

    /// Whether triggers lead from one component to another.
    pub(super) fn is_before(&self, first: usize, second: usize) -> bool {
        self.before[second][first]
    }

    /// All components from which triggers lead to this one, in the order of the graph.
    pub(super) fn before(&self, component: usize) -> impl Iterator<Item = usize> {
        (0..self.before.len()).filter(move |&at| self.is_before(at, component))
    }
}

/// See the [module](self).
pub(super) struct ReplayOracle<'run> {
    graph: &'run Graph,
    precedence: &'run Precedence,
    input: &'run [u8],
    records: &'run [KeptRecord],
    /// For each edge, the latest record of outputs that were handed on along it.
    latest: Vec<Option<usize>>,
    executed: Vec<bool>,
}

impl<'run> ReplayOracle<'run> {
    pub(super) fn of(
        graph: &'run Graph,
        precedence: &'run Precedence,
        input: &'run [u8],
        records: &'run [KeptRecord],
    ) -> ReplayOracle<'run> {
        let latest = |edge: &Edge| {
            let is_along = |record: &KeptRecord| record.from == edge.from && record.to.contains(&edge.to);
            records.iter().rposition(is_along).filter(|_| edge.relation == Relation::Trigger)
        };
        let latest = graph.edges.iter().map(latest).collect();
        let mut ledger = ReplayOracle { graph, precedence, input, records, latest, executed: Vec::new() };
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

    /// For each component after this one, whether this one triggers it, in the order of the edges.
    pub(super) fn choice(&self, component: usize) -> Vec<bool> {
        let triggers = |(index, edge): (usize, &Edge)| {
            (edge.from == component && edge.relation == Relation::Trigger).then(|| self.does_trigger(index))
        };
        self.graph.edges.iter().enumerate().filter_map(triggers).collect()
    }

    /// The input of a component that begins now.
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
        let writes =
            |edge: &&Edge| edge.to == memory && edge.relation == Relation::Access(MemoryRights::Write);
        let writers = self.graph.edges.iter().filter(writes).map(|edge| edge.from);
        writers
            .filter(|&writer| self.executed[writer] && self.precedence.is_before(writer, component))
            .collect()
    }

    /// The result of the run, if everything that is executed is recorded.
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

    /// The components that have ended and are executed again if all memory is lost now: those that have accessed memory
    /// which an unfinished component may access, those that have accessed memory which they need, and so on.
    pub(super) fn executed_again(&self) -> Vec<usize> {
        let accesses = |component: usize, memory: usize| {
            let is_access = |edge: &Edge| matches!(edge.relation, Relation::Access(_));
            self.graph.edges_from(component).any(|edge| is_access(edge) && edge.to == memory)
        };
        let mut ended = self.ended();
        let mut again = Vec::new();
        loop {
            let may_be_executed = self.may_be_executed(&ended);
            let count = self.graph.components.len();
            let is_needed =
                |memory| (0..count).any(|at| may_be_executed[at] && !ended[at] && accesses(at, memory));
            let needed: Vec<usize> = (0..count).filter(|&memory| is_needed(memory)).collect();
            let misses_memory = |&at: &usize| ended[at] && needed.iter().any(|&memory| accesses(at, memory));
            let found: Vec<usize> = (0..count).filter(misses_memory).collect();
            if found.is_empty() {
                return again;
            }
            found.iter().for_each(|&at| ended[at] = false);
            again.extend(found);
        }
    }

    /// For each component, whether it has ended, by the records alone. A component that was handed new outputs
    /// afterwards has not.
    pub(super) fn ended(&self) -> Vec<bool> {
        let count = self.graph.components.len();
        let mut ended = vec![false; count];
        for (index, record) in self.records.iter().enumerate() {
            let [before, after] = [index, index + 1].map(|records| {
                let records = &self.records[..records];
                ReplayOracle::of(self.graph, self.precedence, self.input, records).choice(record.from)
            });
            let is_void = |at| match before == after {
                true => record.to.contains(&at),
                false => self.precedence.is_before(record.from, at),
            };
            (0..count).filter(|&at| is_void(at)).for_each(|at| ended[at] = false);
            ended[record.from] = true;
        }
        ended
    }

    /// For each component, whether it may still be executed, or was. The choice of a component is certain if it, or any
    /// component after it, has ended.
    fn may_be_executed(&self, ended: &[bool]) -> Vec<bool> {
        let count = self.graph.components.len();
        let is_certain = |from: usize| {
            ended[from] || (0..count).any(|at| ended[at] && self.precedence.is_before(from, at))
        };
        let mut may_be = vec![false; count];
        may_be[self.graph.entry()] = true;
        for _ in 0..count {
            for (index, edge) in self.graph.edges.iter().enumerate() {
                let is_trigger = edge.relation == Relation::Trigger;
                may_be[edge.to] |=
                    is_trigger && may_be[edge.from] && (!is_certain(edge.from) || self.does_trigger(index));
            }
        }
        may_be
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
