//! Checks a graph document: the bounds of each field, the ends of each edge, and that a run of it can finish.

use std::collections::HashMap;

use super::device_memory;
use super::document::{ComponentDocument, ComponentType, EdgeDocument, EdgeType, GraphSource};
use super::model::{
    Component, Compute, Condition, DEFAULT_SEGMENT_BYTES, Edge, Graph, MAX_COMPONENT_CORES, MAX_COMPONENTS,
    MAX_CONDITION_BYTES, MAX_EDGES, MAX_MEMORY_BYTES, MAX_SEGMENTS, MAX_SWAPPING, MAX_WARM_S, Medium,
    MemoryNeed, MemoryRights, Problem, Relation, Resources, Role, RunLimits, VERSION, Warmth,
};
use super::parallelism::{self, Parallelism};
use super::problems::Problems;
use crate::limits::{
    MAX_CORES, MAX_SEGMENT_BYTES, MAX_SWAP_BYTES, MIN_SEGMENT_BYTES, MIN_SWAP_BYTES, MIN_SWAPPING_BYTES,
};
use crate::package::is_package;
use crate::pool::Pool;

/// Returns the graph of a document, or all problems of it. The whole is checked only when the parts are valid.
pub(super) fn graph(document: GraphSource) -> Result<Graph, Vec<Problem>> {
    let mut problems = Problems::default();
    if document.version != VERSION {
        let message = format!("this is version {}, and only version {VERSION} is known", document.version);
        problems.add("version", message);
    }
    problems.check_name("name".into(), &document.name);
    check_limits(&document.limits, &mut problems);
    let warm = document.warm.unwrap_or_default();
    check_warm(warm, &mut problems);
    let (components, edges) = (document.components.len(), document.edges.len());
    for (what, count, least, most) in
        [("components", components, 1, MAX_COMPONENTS), ("edges", edges, 0, MAX_EDGES)]
    {
        if !(least..=most).contains(&count) {
            problems.add(what, format!("there are {count}, and a graph has {least} to {most}"));
            return Err(problems.0);
        }
    }
    let names = names(&document.components, &mut problems);
    let types: Vec<ComponentType> = document.components.iter().map(|component| component.r#type).collect();
    let edges = edges_of(&document.edges, &names, &types, &mut problems);
    let parallelism: Vec<Parallelism> = document
        .components
        .iter()
        .enumerate()
        .map(|(index, component)| parallelism::of((index, component), (&names, &types), &mut problems))
        .collect();
    let components =
        (0..).zip(document.components).zip(parallelism).map(|((index, component), parallelism)| {
            self::component(index, component, parallelism, &mut problems)
        });
    let components = components.collect();
    let graph = Graph { name: document.name, components, edges, limits: document.limits, warm };
    check_swap_medium(&graph, &mut problems);
    if problems.0.is_empty() {
        Whole::new(&graph).check(&mut problems);
    }
    if !problems.0.is_empty() {
        return Err(problems.0);
    }
    debug_assert_eq!(
        graph.components.iter().filter(|component| component.is_entry()).count(),
        1,
        "entries of the checked graph {}",
        graph.name
    );
    debug_assert!(
        graph.edges.iter().all(|edge| edge.from.max(edge.to) < graph.components.len()),
        "an edge of the checked graph {} leads nowhere: {:?}",
        graph.name,
        graph.edges
    );
    Ok(graph)
}

fn check_warm(warm: Warmth, problems: &mut Problems) {
    if let Warmth::For(seconds) = warm
        && !(1..=MAX_WARM_S).contains(&seconds)
    {
        let message =
            format!("{seconds} s: idle workers are kept for 1 to {MAX_WARM_S} s, \"auto\" or \"off\"");
        problems.add("warm", message);
    }
}

fn check_limits(limits: &RunLimits, problems: &mut Problems) {
    for (field, cores) in [("cores", limits.cores), ("application_cores", limits.application_cores)] {
        if cores == Some(0) {
            problems.add(format!("limits.{field}"), "without a core nothing is executed");
        }
    }
    for (field, bytes) in
        [("memory_bytes", limits.memory_bytes), ("application_memory_bytes", limits.application_memory_bytes)]
    {
        if let Some(bytes) = bytes {
            problems.check_within(format!("limits.{field}"), bytes, MIN_SEGMENT_BYTES..=MAX_MEMORY_BYTES);
        }
    }
}

/// Checks that a graph that names what holds swapped data has components that swap by its own statements.
fn check_swap_medium(graph: &Graph, problems: &mut Problems) {
    let swaps = |component: &Component| {
        component.compute().is_some_and(|compute| compute.resources.swap_bytes.is_some())
    };
    let is_off = graph.limits.swap != Some(true) && !graph.components.iter().any(swaps);
    if graph.limits.swap_medium.is_some() && is_off {
        let message =
            "no component swaps: set limits.swap to true, or swap_bytes in the resources of a component";
        problems.add("limits.swap_medium", message);
    }
}

/// The index of each name.
fn names<'document>(
    components: &'document [ComponentDocument],
    problems: &mut Problems,
) -> HashMap<&'document str, usize> {
    let mut names = HashMap::new();
    for (index, component) in components.iter().enumerate() {
        let at = format!("components[{index}].name");
        problems.check_name(at.clone(), &component.name);
        if let Some(first) = names.insert(component.name.as_str(), index) {
            problems.add(at, format!("{:?} is the name of components[{first}] already", component.name));
        }
    }
    names
}

fn component(
    index: usize,
    component: ComponentDocument,
    parallelism: Parallelism,
    problems: &mut Problems,
) -> Component {
    let other = match component.r#type {
        ComponentType::Compute => ComponentType::Memory,
        ComponentType::Memory => ComponentType::Compute,
    };
    for field in component.fields_of(other) {
        let message = format!("a component of type {} has no such field", component.r#type.name());
        problems.add(format!("components[{index}].{field}"), message);
    }
    let name = component.name.clone();
    let role = match component.r#type {
        ComponentType::Compute => Role::Compute(compute(index, component, parallelism, problems)),
        ComponentType::Memory => Role::Memory(memory(index, &component, problems)),
    };
    Component { name, role }
}

fn compute(
    index: usize,
    component: ComponentDocument,
    parallelism: Parallelism,
    problems: &mut Problems,
) -> Compute {
    let Parallelism { most: parallelism, from: instances_from } = parallelism;
    let at = |field: &str| format!("components[{index}].{field}");
    let (package, function) = (component.package.unwrap_or_default(), component.function.unwrap_or_default());
    for (field, value) in [("package", &package), ("function", &function)] {
        if value.is_empty() {
            problems.add(at(field), "a component of type compute needs this field");
        } else if field == "function" {
            problems.check_name(at(field), value);
        } else if !is_package(value) {
            let message = format!(
                "{value:?} is no name or digest of a package, of this or another tenant (tenant/name)"
            );
            problems.add(at(field), message);
        }
    }
    let resources = component.resources.unwrap_or_default();
    if let Some(pu) = &resources.pu {
        problems.check_name(at("resources.pu"), pu);
    }
    check_pool(resources.pool, at("resources.pool"), problems);
    if let Some(cores) = resources.cores {
        check_cores(cores, parallelism, at("resources.cores"), problems);
    }
    if let Some(bytes) = resources.memory_bytes {
        problems.check_within(at("resources.memory_bytes"), bytes, 1..=MAX_MEMORY_BYTES);
    }
    if let Some(bytes) = resources.swap_bytes {
        check_swap(bytes, (parallelism, &resources), at("resources.swap_bytes"), problems);
    }
    Compute {
        package,
        function,
        is_entry: component.entry.unwrap_or_default(),
        parallelism,
        instances_from,
        has_external_effects: component.external_effects.unwrap_or_default(),
        resources,
    }
}

/// Refuses the pool of disks, which hold swapped data and nothing else of a graph.
fn check_pool(pool: Option<Pool>, at: String, problems: &mut Problems) {
    if pool == Some(Pool::Flash) {
        problems.add(at, "flash holds no component, but its swapped data: set limits.swap_medium");
    }
}

fn check_cores(cores: u32, parallelism: u32, at: String, problems: &mut Problems) {
    let before = problems.0.len();
    problems.check_within(at.clone(), cores.into(), 1..=MAX_CORES.into());
    let all = u64::from(cores) * u64::from(parallelism);
    if problems.0.len() == before && all > u64::from(MAX_COMPONENT_CORES) {
        let message = format!(
            "{parallelism} instances with {cores} cores each have {all} cores, and a component has at most {MAX_COMPONENT_CORES}"
        );
        problems.add(at, message);
    }
}

fn check_swap(bytes: u64, of: (u32, &Resources), at: String, problems: &mut Problems) {
    let (parallelism, resources) = of;
    let before = problems.0.len();
    problems.check_within(at.clone(), bytes, MIN_SWAP_BYTES..=MAX_SWAP_BYTES);
    let all_bytes = bytes.saturating_mul(parallelism.into());
    if problems.0.len() == before && all_bytes > MAX_SWAP_BYTES {
        let message = format!(
            "{parallelism} instances with {bytes} bytes each are {all_bytes}, and at most {MAX_SWAP_BYTES} are swapped"
        );
        problems.add(at.clone(), message);
    }
    if let Some(own) = resources.memory_bytes.filter(|own| *own < MIN_SWAPPING_BYTES) {
        let message = format!("with {own} memory_bytes nothing is swapped: it takes {MIN_SWAPPING_BYTES}");
        problems.add(at, message);
    }
}

fn memory(index: usize, component: &ComponentDocument, problems: &mut Problems) -> MemoryNeed {
    if component.medium == Some(Medium::Device) {
        return device_memory::of(index, component, problems);
    }
    let at = |field: &str| format!("components[{index}].{field}");
    check_pool(component.pool, at("pool"), problems);
    let given = [
        ("initial_bytes", component.initial_bytes),
        ("increment_bytes", component.increment_bytes),
        ("limit_bytes", component.limit_bytes),
    ];
    let before = problems.0.len();
    for (field, bytes) in given {
        let most = if field == "limit_bytes" { MAX_MEMORY_BYTES } else { MAX_SEGMENT_BYTES };
        if let Some(bytes) = bytes {
            problems.check_within(at(field), bytes, MIN_SEGMENT_BYTES..=most);
        }
    }
    let initial_bytes = component
        .initial_bytes
        .unwrap_or(DEFAULT_SEGMENT_BYTES.min(component.limit_bytes.unwrap_or(u64::MAX)));
    let increment_bytes = component.increment_bytes.unwrap_or(DEFAULT_SEGMENT_BYTES);
    let most_bytes = increment_bytes.saturating_mul(MAX_SEGMENTS - 1).saturating_add(initial_bytes);
    let limit_bytes = component.limit_bytes.unwrap_or(most_bytes.min(MAX_MEMORY_BYTES));
    if problems.0.len() == before {
        if limit_bytes < initial_bytes {
            let message = format!("{limit_bytes} is less than the initial size of {initial_bytes}");
            problems.add(at("limit_bytes"), message);
        }
        if limit_bytes > most_bytes {
            let message = format!(
                "{limit_bytes} bytes would be more than {MAX_SEGMENTS} segments of {increment_bytes}: let it grow by more"
            );
            problems.add(at("increment_bytes"), message);
        }
    }
    let (initial_bytes, increment_bytes) = (component.initial_bytes, component.increment_bytes);
    let is_result = component.result.unwrap_or_default();
    let (pool, medium) = (component.pool, Medium::Memory);
    MemoryNeed { initial_bytes, increment_bytes, limit_bytes, pool, is_result, medium }
}

/// Returns the edges with two existing ends of the right type.
fn edges_of(
    documents: &[EdgeDocument],
    names: &HashMap<&str, usize>,
    types: &[ComponentType],
    problems: &mut Problems,
) -> Vec<Edge> {
    let (mut edges, mut seen) = (Vec::new(), HashMap::new());
    for (index, document) in documents.iter().enumerate() {
        let EdgeDocument { r#type, from, to, rights, .. } = document;
        let before = problems.0.len();
        let end = |field: &str, name: &String, wanted: ComponentType, problems: &mut Problems| {
            let at = format!("edges[{index}].{field}");
            let found = names.get(name.as_str()).copied();
            match found {
                None => problems.add(at, format!("there is no component {name:?}")),
                Some(found) if types[found] != wanted => {
                    let (edge, is, wanted) = (r#type.name(), types[found].name(), wanted.name());
                    problems.add(
                        at,
                        format!("{name:?} is of type {is}, and {edge} edges have one of type {wanted} here"),
                    );
                }
                Some(_) => {}
            }
            found.unwrap_or_default()
        };
        let target = if *r#type == EdgeType::Access { ComponentType::Memory } else { ComponentType::Compute };
        let from_index = end("from", from, ComponentType::Compute, problems);
        let to_index = end("to", to, target, problems);
        let relation = relation(index, *r#type, *rights, problems);
        let condition = condition(index, document, problems);
        if problems.0.len() > before {
            continue;
        }
        if from_index == to_index {
            problems.add(format!("edges[{index}]"), format!("it leads from {from:?} to itself"));
            continue;
        }
        // Messages go both ways.
        let is_turned = *r#type == EdgeType::Message && from_index > to_index;
        let ends = if is_turned { (to_index, from_index) } else { (from_index, to_index) };
        if let Some(first) = seen.insert((*r#type, ends), index) {
            problems.add(format!("edges[{index}]"), format!("it says the same as edges[{first}]"));
        }
        edges.push(Edge { from: from_index, to: to_index, relation, condition });
    }
    edges
}

fn relation(
    index: usize,
    r#type: EdgeType,
    rights: Option<MemoryRights>,
    problems: &mut Problems,
) -> Relation {
    let at = format!("edges[{index}].rights");
    match (r#type, rights) {
        (EdgeType::Access, Some(rights)) => return Relation::Access(rights),
        (EdgeType::Access, None) => problems.add(at, "an access edge needs this field: read or write"),
        (_, Some(_)) => problems.add(at, format!("edges of type {} have no such field", r#type.name())),
        (_, None) => {}
    }
    match r#type {
        EdgeType::Trigger => Relation::Trigger,
        EdgeType::Access => Relation::Access(MemoryRights::Read),
        EdgeType::Message => Relation::Message,
    }
}

fn condition(index: usize, document: &EdgeDocument, problems: &mut Problems) -> Option<Condition> {
    let at = |field: &str| format!("edges[{index}].{field}");
    let EdgeDocument { r#type, when, otherwise, .. } = document;
    for (field, is_given) in [("when", when.is_some()), ("otherwise", otherwise.is_some())] {
        if is_given && *r#type != EdgeType::Trigger {
            problems.add(at(field), format!("edges of type {} have no such field", r#type.name()));
        }
    }
    let is_other = otherwise.unwrap_or_default();
    if let Some(text) = when {
        if !(1..=MAX_CONDITION_BYTES).contains(&text.len()) {
            let len = text.len();
            problems.add(at("when"), format!("a text of {len} bytes: it has 1 to {MAX_CONDITION_BYTES}"));
        }
        if is_other {
            problems.add(at("otherwise"), "this edge says \"when\", too: one of the two");
        }
    }
    match when {
        Some(text) => Some(Condition::When(text.clone())),
        None => is_other.then_some(Condition::Otherwise),
    }
}

/// The graph as a whole, with valid parts.
struct Whole<'graph> {
    graph: &'graph Graph,
    /// For each component, the components that it triggers.
    triggers: Vec<Vec<usize>>,
}

impl<'graph> Whole<'graph> {
    fn new(graph: &'graph Graph) -> Whole<'graph> {
        let mut triggers = vec![Vec::new(); graph.components.len()];
        for edge in graph.edges.iter().filter(|edge| edge.relation == Relation::Trigger) {
            triggers[edge.from].push(edge.to);
        }
        Whole { graph, triggers }
    }

    fn check(&self, problems: &mut Problems) {
        if let Some(circle) = self.circle() {
            debug_assert!(circle.len() > 1 && circle.first() == circle.last(), "{circle:?} is no circle");
            let circle: Vec<&str> = circle.into_iter().map(|component| self.name(component)).collect();
            return problems.add("edges", format!("triggers lead in a circle: {}", circle.join(" -> ")));
        }
        self.check_entry(problems);
        self.check_memory(problems);
        self.check_swapping(problems);
        self.check_messages(problems);
        device_memory::check(self.graph, |at| self.reached_from(at), &self.certain(), problems);
        parallelism::check_sources(self.graph, |at| self.reached_from(at), &self.certain(), problems);
        self.check_conditions(problems);
    }

    fn name(&self, component: usize) -> &'graph str {
        &self.graph.components[component].name
    }

    /// A circle of triggers, with its first component at both ends. Each component is left for good when all that it
    /// triggers have been.
    fn circle(&self) -> Option<Vec<usize>> {
        #[derive(Clone, Copy, PartialEq)]
        enum VisitState {
            Not,
            OnTheWay,
            Left,
        }
        let mut seen = vec![VisitState::Not; self.triggers.len()];
        for start in 0..self.triggers.len() {
            let mut way: Vec<(usize, usize)> = Vec::new();
            if seen[start] == VisitState::Not {
                seen[start] = VisitState::OnTheWay;
                way.push((start, 0));
            }
            while let Some((component, next)) = way.last_mut() {
                let Some(&to) = self.triggers[*component].get(*next) else {
                    seen[*component] = VisitState::Left;
                    way.pop();
                    continue;
                };
                *next += 1;
                match seen[to] {
                    VisitState::Not => {
                        seen[to] = VisitState::OnTheWay;
                        way.push((to, 0));
                    }
                    VisitState::OnTheWay => {
                        let way = way.iter().map(|(component, _)| *component);
                        return Some(way.skip_while(|component| *component != to).chain([to]).collect());
                    }
                    VisitState::Left => {}
                }
            }
        }
        None
    }

    fn check_entry(&self, problems: &mut Problems) {
        let components = &self.graph.components;
        let entries: Vec<usize> =
            (0..components.len()).filter(|index| components[*index].is_entry()).collect();
        let &[entry] = entries.as_slice() else {
            let names: Vec<&str> = entries.iter().map(|&entry| self.name(entry)).collect();
            let message = match names.as_slice() {
                [] => "no component is the entry: let one have \"entry\": true".into(),
                names => format!("{} are all the entry, and a graph has one", names.join(", ")),
            };
            return problems.add("components", message);
        };
        if let Some(edge) = self.graph.edges_to(entry).find(|edge| edge.relation == Relation::Trigger) {
            let message =
                format!("{:?} is the entry, and {:?} triggers it", self.name(entry), self.name(edge.from));
            return problems.add(format!("components[{entry}].entry"), message);
        }
        let reached = self.reached_from(entry);
        for (index, component) in self.graph.components.iter().enumerate() {
            if component.compute().is_some() && !reached[index] {
                let message = format!(
                    "{:?} is never executed: no triggers lead to it from {:?}",
                    component.name,
                    self.name(entry)
                );
                problems.add(format!("components[{index}]"), message);
            }
        }
    }

    fn check_memory(&self, problems: &mut Problems) {
        for (index, component) in self.graph.components.iter().enumerate() {
            if component.memory().is_some() && self.graph.edges_to(index).next().is_none() {
                let message = format!("{:?} is never accessed", component.name);
                problems.add(format!("components[{index}]"), message);
            }
        }
        self.check_result(problems);
    }

    /// Checks that a run has at most one result, and that a component writes it.
    fn check_result(&self, problems: &mut Problems) {
        let components = &self.graph.components;
        let results: Vec<usize> =
            (0..components.len()).filter(|index| components[*index].is_result()).collect();
        if let [_, others @ ..] = results.as_slice() {
            let names: Vec<&str> = results.iter().map(|&result| self.name(result)).collect();
            for other in others {
                let message = format!("{} are all the result, and a run has at most one", names.join(", "));
                problems.add(format!("components[{other}].result"), message);
            }
        }
        for &result in &results {
            let is_write = |edge: &Edge| edge.relation == Relation::Access(MemoryRights::Write);
            if !self.graph.edges_to(result).any(is_write) {
                let message = format!("no component writes {:?}, which is the result", self.name(result));
                problems.add(format!("components[{result}].result"), message);
            }
        }
    }

    /// Each instance that swaps has memory of the run's, which the run keeps and reports.
    fn check_swapping(&self, problems: &mut Problems) {
        let computes = self.graph.components.iter().filter_map(|component| component.compute());
        let swapping = computes.filter(|compute| compute.resources.swap_bytes.is_some());
        // Each of them may exceed its own limit, which is another problem.
        let instances = swapping.map(|compute| u64::from(compute.parallelism)).fold(0, u64::saturating_add);
        if instances > u64::from(MAX_SWAPPING) {
            let message = format!("{instances} instances have swap_bytes, and at most {MAX_SWAPPING} may");
            problems.add("components", message);
        }
    }

    /// Checks that of two components that exchange messages, neither starts only when the other has ended.
    fn check_messages(&self, problems: &mut Problems) {
        let is_message = |(_, edge): &(usize, &Edge)| edge.relation == Relation::Message;
        let mut reached: HashMap<usize, Vec<bool>> = HashMap::new();
        for (index, edge) in self.graph.edges.iter().enumerate().filter(is_message) {
            for (first, second) in [(edge.from, edge.to), (edge.to, edge.from)] {
                if reached.entry(first).or_insert_with(|| self.reached_from(first))[second] {
                    let message = format!(
                        "{:?} starts when {:?} has ended: they cannot exchange messages",
                        self.name(second),
                        self.name(first)
                    );
                    problems.add(format!("edges[{index}]"), message);
                }
            }
        }
    }

    /// Checks that a condition is of one output, that `otherwise` has another case beside it, and that a component that
    /// may be left out exchanges no messages.
    fn check_conditions(&self, problems: &mut Problems) {
        for (index, edge) in self.graph.edges.iter().enumerate() {
            let Some(condition) = &edge.condition else { continue };
            let instances = self.graph.components[edge.from].compute().map_or(1, |from| from.parallelism);
            if instances > 1 {
                let message = format!(
                    "{:?} has {instances} instances, and a condition is of one output",
                    self.name(edge.from)
                );
                problems.add(format!("edges[{index}]"), message);
            }
            let is_when = |other: &Edge| matches!(other.condition, Some(Condition::When(_)));
            if *condition == Condition::Otherwise && !self.graph.edges_from(edge.from).any(is_when) {
                let message = format!("{:?} has no trigger with \"when\"", self.name(edge.from));
                problems.add(format!("edges[{index}].otherwise"), message);
            }
        }
        let certain = self.certain();
        for (index, edge) in self.graph.edges.iter().enumerate() {
            let ends = [edge.from, edge.to];
            if let Some(&end) = ends.iter().find(|end| edge.relation == Relation::Message && !certain[**end])
            {
                let message = format!("{:?} may be left out: it cannot exchange messages", self.name(end));
                problems.add(format!("edges[{index}]"), message);
            }
        }
    }

    /// Returns the components that are executed in each run: the entry, and those that it triggers without a condition.
    fn certain(&self) -> Vec<bool> {
        let mut certain = vec![false; self.triggers.len()];
        let mut next = vec![self.graph.entry()];
        while let Some(component) = next.pop() {
            if !std::mem::replace(&mut certain[component], true) {
                let edges = self.graph.edges_from(component);
                let always =
                    edges.filter(|edge| edge.relation == Relation::Trigger && edge.condition.is_none());
                next.extend(always.map(|edge| edge.to));
            }
        }
        certain
    }

    /// Returns the components that run because this one does, including itself.
    fn reached_from(&self, component: usize) -> Vec<bool> {
        let mut reached = vec![false; self.triggers.len()];
        let mut next = vec![component];
        while let Some(component) = next.pop() {
            if !std::mem::replace(&mut reached[component], true) {
                next.extend(&self.triggers[component]);
            }
        }
        reached
    }
}
