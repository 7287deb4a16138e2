//! Tests random runs by the million, each determined by its number: any graph, with conditions, several instances,
//! messages, memory that is released and components with external effects; and any losses, in any order, with deaths of
//! the client at any time.
//!
//! `make test` executes the first of them. This command executes more, or others:
//!
//! ```text
//! SUBLET_STORIES=10000000 SUBLET_FIRST_STORY=0 cargo test --release -p sublet-runtime keeps_what_was_written
//! ```

use std::sync::Arc;

use sublet_proto::graph::{
    Component, Compute, Condition, Edge, Graph, Medium, MemoryNeed, MemoryRights, Relation, Resources, Role,
    RunLimits, Warmth,
};
use sublet_proto::{Code, Error};

use super::super::Outputs;
use super::world::ComponentWorld;
use crate::run::mailboxes::with_mailboxes;

/// Number of stories that are executed by default.
const STORIES: u64 = 20_000;
/// Largest number of events in a story.
const EVENTS: usize = 60;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }

    /// Returns true with the probability 1 / `times`.
    fn is_once_in(&mut self, times: usize) -> bool {
        self.roll(times) == 0
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}

/// A run ends whatever is lost, and whenever its client dies, and its result agrees with its records. No component ever
/// accesses memory in which its predecessors have not written. If the components return the same for the same input,
/// the result is that of a run without losses.
#[test]
fn keeps_what_was_written() {
    let first = number("SUBLET_FIRST_STORY", 0);
    for story in first..first + number("SUBLET_STORIES", STORIES) {
        if let Err(panic) = std::panic::catch_unwind(|| tell(story)) {
            eprintln!("this was story {story}: SUBLET_FIRST_STORY={story} SUBLET_STORIES=1 tells it alone");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn stories_are_of_valid_graphs() {
    for story in 0..500 {
        let graph = any_graph(&mut Dice(story));
        let parsed = Graph::parse(graph.to_json().as_bytes());
        assert_eq!(parsed.as_ref(), Ok(&graph), "story {story}");
    }
}

/// Behaviour of the components of a story.
struct Habits {
    /// Components return other outputs when they are executed again.
    is_fickle: bool,
    /// A component that ends only when no other can, and is the first to release memory: so components after others are executed,
    /// skipped and lost while it still runs.
    slow: Option<usize>,
}

impl Habits {
    fn any(graph: &Graph, dice: &mut Dice) -> Habits {
        let is_fickle = dice.is_once_in(2);
        let slow = dice.is_once_in(2).then(|| dice.roll(graph.components.len()));
        Habits { is_fickle, slow }
    }

    fn next_to_end(&self, able: &[usize], dice: &mut Dice) -> usize {
        let quick: Vec<usize> = able.iter().copied().filter(|&at| Some(at) != self.slow).collect();
        let able = if quick.is_empty() { able } else { &quick };
        able[dice.roll(able.len())]
    }

    fn word(&self, dice: &mut Dice) -> Option<u8> {
        self.is_fickle.then(|| b"yno"[dice.roll(3)])
    }
}

fn tell(story: u64) {
    let mut dice = Dice(story);
    let graph = Arc::new(with_mailboxes(&any_graph(&mut dice)));
    let habits = Habits::any(&graph, &mut dice);
    let expected = (!habits.is_fickle).then(|| undisturbed(&graph));
    let mut world = ComponentWorld::begin(graph);
    for _ in 0..dice.roll(EVENTS) {
        if world.finished.is_some() {
            break;
        }
        world = match happen(world, &mut dice, &habits) {
            Ok(world) => world,
            Err(error) => return check_failure(&error),
        };
    }
    let Some(world) = finish(world, &mut dice, &habits) else { return };
    if let Some(expected) = &expected {
        assert_eq!(world.finished.as_ref(), Some(expected), "losses change nothing");
    }
    if dice.is_once_in(8) {
        resume_everywhere(world, &mut dice, &habits, expected.as_ref());
    }
}

/// Lets the client die after each record, and another continue the run.
fn resume_everywhere(
    world: ComponentWorld,
    dice: &mut Dice,
    habits: &Habits,
    expected: Option<&Vec<(usize, Outputs)>>,
) {
    for records in 0..=world.recorded.len() {
        let mut again = ComponentWorld::new(world.graph.clone());
        again.recorded = world.recorded[..records].to_vec();
        match again.resume() {
            Ok(again) => {
                let again = finish(again, dice, habits);
                let outcome = again.as_ref().and_then(|again| again.finished.as_ref());
                assert!(
                    outcome.is_none() || expected.is_none() || outcome == expected,
                    "{records} records change nothing"
                );
            }
            Err(error) => check_failure(&error),
        }
    }
}

/// Lets a random event happen to a run.
fn happen(mut world: ComponentWorld, dice: &mut Dice, habits: &Habits) -> Result<ComponentWorld, Error> {
    let (running, able) = world.running();
    let any = running[dice.roll(running.len())];
    let attempt = world.running[&any].attempt;
    let gone = || Error::new(Code::WorkerDied, "gone");
    match dice.roll(16) {
        0..8 => world.end(habits.next_to_end(&able, dice), habits.word(dice))?,
        8..11 => {
            let steps = world.progress.lost(any, attempt, gone());
            world.take(steps)?;
        }
        11 => {
            let is_memory = |at: &usize| world.graph.components[*at].memory().is_some();
            let memories: Vec<usize> = (0..world.graph.components.len()).filter(is_memory).collect();
            if !memories.is_empty() {
                let steps = world.progress.lost_memory(memories[dice.roll(memories.len())], gone());
                world.take(steps)?;
            }
        }
        12 | 13 => {
            let slow = habits.slow.filter(|slow| running.contains(slow));
            world.release(slow.unwrap_or(any), dice.roll(4));
        }
        14 => {
            // Late events of an earlier execution have no effect.
            let late = world.progress.ended(any, attempt - 1, Arc::new(vec![Vec::new()]));
            assert_eq!(late, Ok(Vec::new()));
            assert_eq!(world.progress.lost(any, attempt - 1, gone()), Ok(Vec::new()));
        }
        _ => world = world.resume()?,
    }
    Ok(world)
}

/// Executes the run to its end without further losses. `None` if the run fails, as it may.
fn finish(mut world: ComponentWorld, dice: &mut Dice, habits: &Habits) -> Option<ComponentWorld> {
    while world.finished.is_none() {
        let (_, able) = world.running();
        if let Err(error) = world.end(habits.next_to_end(&able, dice), habits.word(dice)) {
            check_failure(&error);
            return None;
        }
    }
    Some(world)
}

/// A run fails for nothing but a component with external effects that would have to be executed again.
fn check_failure(error: &Error) {
    assert!(error.message.contains("has external effects"), "{error}");
}

fn undisturbed(graph: &Arc<Graph>) -> Vec<(usize, Outputs)> {
    let world =
        finish(ComponentWorld::begin(graph.clone()), &mut Dice(0), &Habits { is_fickle: false, slow: None });
    world.and_then(|world| world.finished).expect("a run without losses ends")
}

/// Compute components 0 to n - 1, each triggered by some before it, memory that some of them share, and messages.
fn any_graph(dice: &mut Dice) -> Graph {
    let count = 2 + dice.roll(8);
    let mut edges = Vec::new();
    for to in 1..count {
        let mut before: Vec<usize> = (0..=dice.roll(3)).map(|_| dice.roll(to)).collect();
        before.sort_unstable();
        before.dedup();
        for from in before {
            let text = ["y", "n", "", "", ""][dice.roll(5)];
            let condition = (!text.is_empty()).then(|| Condition::When(text.into()));
            edges.push(Edge { from, to, relation: Relation::Trigger, condition });
        }
    }
    with_otherwise(&mut edges, dice);
    let has_effects = dice.is_once_in(8);
    let mut components: Vec<Component> = Vec::new();
    for at in 0..count {
        let has_conditions = edges.iter().any(|edge| edge.from == at && edge.condition.is_some());
        let parallelism = if has_conditions || !dice.is_once_in(3) { 1 } else { 2 + dice.roll(2) as u32 };
        components.push(Component {
            name: format!("c{at}"),
            role: Role::Compute(Compute {
                package: "p".into(),
                function: "f".into(),
                is_entry: at == 0,
                parallelism,
                instances_from: None,
                has_external_effects: has_effects && dice.is_once_in(4),
                resources: Resources::default(),
            }),
        });
    }
    add_messages(&mut edges, count, dice);
    for memory in 0..dice.roll(5) {
        let mut who: Vec<usize> = (0..=dice.roll(4)).map(|_| dice.roll(count)).collect();
        who.sort_unstable();
        who.dedup();
        let rights =
            |dice: &mut Dice| if dice.is_once_in(4) { MemoryRights::Read } else { MemoryRights::Write };
        edges.extend(who.into_iter().map(|from| Edge {
            from,
            to: count + memory,
            relation: Relation::Access(rights(dice)),
            condition: None,
        }));
        let (initial_bytes, increment_bytes, limit_bytes) = (Some(4096), Some(4096), 4096);
        let role = Role::Memory(MemoryNeed {
            initial_bytes,
            increment_bytes,
            limit_bytes,
            pool: None,
            is_result: false,
            medium: Medium::Memory,
        });
        components.push(Component { name: format!("m{memory}"), role });
    }
    let graph =
        Graph { name: "g".into(), components, edges, limits: RunLimits::default(), warm: Warmth::default() };
    rotated(graph, dice)
}

/// Rotates the components, which may be in any order in a document: memory before those that access it, and the entry
/// anywhere.
fn rotated(mut graph: Graph, dice: &mut Dice) -> Graph {
    let count = graph.components.len();
    let by = dice.roll(count);
    graph.components.rotate_right(by);
    for edge in &mut graph.edges {
        (edge.from, edge.to) = ((edge.from + by) % count, (edge.to + by) % count);
    }
    graph
}

/// Some triggers become those of all other cases.
fn with_otherwise(edges: &mut [Edge], dice: &mut Dice) {
    for index in 0..edges.len() {
        let is_case = |edge: &Edge| edge.from == edges[index].from && edge.condition.is_some();
        let has_cases = edges.iter().any(is_case);
        if edges[index].condition.is_none() && has_cases && dice.is_once_in(3) {
            edges[index].condition = Some(Condition::Otherwise);
        }
    }
}

/// Adds messages between components that are always executed, and none of which waits for the other's end.
fn add_messages(edges: &mut Vec<Edge>, count: usize, dice: &mut Dice) {
    let mut certain = vec![true];
    for to in 1..count {
        let mut before = edges.iter().filter(|edge| edge.to == to && edge.condition.is_none());
        certain.push(before.any(|edge| certain[edge.from]));
    }
    for from in 0..count {
        for to in from + 1..count {
            if certain[from] && certain[to] && dice.is_once_in(3) {
                edges.push(Edge { from, to, relation: Relation::Message, condition: None });
                if !can_all_end(edges, count) {
                    edges.pop();
                }
            }
        }
    }
}

/// Returns whether all components can end, if each begins when all before it have ended, and ends when those that send
/// it messages have begun.
fn can_all_end(edges: &[Edge], count: usize) -> bool {
    let (mut begun, mut ended) = (vec![false; count], vec![false; count]);
    for _ in 0..2 * count {
        for at in 0..count {
            begun[at] = edges
                .iter()
                .all(|edge| edge.relation != Relation::Trigger || edge.to != at || ended[edge.from]);
            ended[at] = begun[at]
                && edges.iter().all(|edge| match (edge.from == at, edge.to == at) {
                    _ if edge.relation != Relation::Message => true,
                    (true, _) => begun[edge.to],
                    (_, true) => begun[edge.from],
                    _ => true,
                });
        }
    }
    ended.into_iter().all(|has_ended| has_ended)
}
