//! Links between nodes, and their reports to agents: single stories, and random ones against a look at all nodes.

use proptest::prelude::*;

use super::*;
use crate::core::Neighbourhood;

fn naming(name: &str, neighbours: &[&str]) -> NodeDescription {
    let neighbours = neighbours.iter().map(|name| name.to_string()).collect();
    NodeDescription { neighbours, ..node(name, 1) }
}

/// Agents, and the neighbourhood that each was sent last.
struct Street {
    fixture: CoreFixture,
    agents: Vec<Agent>,
}

struct Agent {
    name: &'static str,
    registration: u64,
    sequence: u64,
    told: Neighbourhood,
    is_silent: bool,
}

impl Street {
    fn new() -> Street {
        Street { fixture: CoreFixture::new(), agents: Vec::new() }
    }

    fn register(&mut self, name: &'static str, neighbours: &[&str]) {
        self.fixture.generation += 1;
        let joining = Joining {
            description: naming(name, neighbours),
            instance: InstanceId(7),
            generation: self.fixture.generation,
            leases: Vec::new(),
        };
        let answer = self.fixture.event(CoreEvent::Register(Box::new(joining))).pop();
        let Some(CoreAction::Registered { registration, neighbours: told, .. }) = answer else {
            panic!("{answer:?}")
        };
        self.agents.retain(|agent| agent.name != name);
        self.agents.push(Agent { name, registration, sequence: 0, told, is_silent: false });
    }

    /// All agents that are not silent report; returns those that were sent a new neighbourhood.
    fn reports(&mut self) -> Vec<&'static str> {
        let mut told = Vec::new();
        for agent in self.agents.iter_mut().filter(|agent| !agent.is_silent) {
            agent.sequence += 1;
            let Some(node) = self.fixture.core.node_key(agent.name) else { continue };
            let report = AgentReport {
                node,
                registration: agent.registration,
                sequence: agent.sequence,
                answered: 0,
                clock_ms: self.fixture.now_ms,
                lending: LendingState::Open,
                leases: Vec::new(),
                neighbours: agent.told.version,
            };
            let answer = self.fixture.event(CoreEvent::Report(report)).remove(0);
            if let CoreAction::Reported(ReportAnswer { neighbours: Some(neighbours), .. }) = answer {
                assert_ne!(neighbours.version, agent.told.version);
                agent.told = neighbours;
                told.push(agent.name);
            }
        }
        told
    }

    /// Lets `count` ticks pass, with reports of the agents that are not silent.
    fn ticks(&mut self, count: u32) {
        for _ in 0..count {
            self.fixture.ticks(1);
            self.reports();
        }
    }

    fn silence(&mut self, name: &str, is_silent: bool) {
        let agent = self.agents.iter_mut().find(|agent| agent.name == name).unwrap();
        agent.is_silent = is_silent;
    }

    fn told(&self, name: &str) -> Vec<(&str, u64)> {
        let agent = self.agents.iter().find(|agent| agent.name == name).unwrap();
        let linked = agent.told.all.iter().filter(|marked| marked.bridge.is_none());
        linked.map(|marked| (&*marked.node, marked.registration)).collect()
    }

    /// Returns the nodes that it reaches by a bridge, each with its bridge.
    fn bridged(&self, name: &str) -> Vec<(&str, &str)> {
        let agent = self.agents.iter().find(|agent| agent.name == name).unwrap();
        let all = agent.told.all.iter();
        all.filter_map(|marked| Some((&*marked.node, marked.bridge.as_deref()?))).collect()
    }

    fn registration(&self, name: &str) -> u64 {
        self.agents.iter().find(|agent| agent.name == name).unwrap().registration
    }

    /// Asserts that each registered agent that has just reported knows exactly the nodes that it names, that name it
    /// and that are registered.
    fn check(&self) {
        let node = |name: &str| self.fixture.core.node(self.fixture.core.node_key(name)?);
        let is_here = |name: &str| node(name).filter(|node| node.registration != 0 && !node.is_lost());
        for agent in self.agents.iter().filter(|agent| !agent.is_silent) {
            let Some(own) = is_here(agent.name).filter(|own| own.registration == agent.registration) else {
                continue;
            };
            let named = own.description.neighbours.iter().filter_map(|name| is_here(name));
            let marked =
                named.filter(|other| other.description.neighbours.iter().any(|name| name == agent.name));
            let marked: Vec<_> = marked.map(|other| (&*other.name, other.registration)).collect();
            let mut beyond: Vec<(&str, &str)> = Vec::new();
            for (bridge, _) in &marked {
                let bridge = is_here(bridge).unwrap();
                for name in &bridge.description.neighbours {
                    let is_new = name != agent.name
                        && marked.iter().all(|(known, _)| known != name)
                        && beyond.iter().all(|(known, _)| known != name);
                    let is_linked = |other: &&ManagedNode| {
                        other.description.neighbours.contains(&bridge.name.to_string())
                    };
                    if let Some(other) = is_here(name).filter(is_linked).filter(|_| is_new) {
                        beyond.push((&other.name, &bridge.name));
                    }
                }
            }
            assert_eq!(self.bridged(agent.name), beyond, "{}", agent.name);
            assert_eq!(self.told(agent.name), marked, "{}", agent.name);
            let units = self.fixture.core.info(own).units;
            let shown: Vec<&str> = units[0].neighbours.iter().map(String::as_str).collect();
            assert_eq!(shown, marked.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        }
    }
}

#[test]
fn nodes_that_name_each_other_are_linked_and_notified() {
    let mut street = Street::new();
    street.register("host", &["dpu"]);
    assert_eq!(street.told("host"), []);
    street.register("dpu", &["host"]);
    assert_eq!(street.told("dpu"), [("host", street.registration("host"))], "at once");
    assert_eq!(street.reports(), ["host"], "with its next report");
    assert_eq!(street.told("host"), [("dpu", street.registration("dpu"))]);
    assert!(street.reports().is_empty(), "once");
    let before = street.registration("dpu");
    street.register("dpu", &["host"]);
    assert_eq!(street.reports(), ["host"]);
    assert_eq!(street.told("host"), [("dpu", before + 1)]);
}

#[test]
fn one_sided_neighbour_gets_no_links_and_no_news() {
    let mut street = Street::new();
    street.register("victim", &["friend"]);
    street.register("friend", &["victim"]);
    street.reports();
    for round in 0..3 {
        street.register("liar", &["victim", "friend", "nobody"]);
        assert_eq!(street.told("liar"), [], "{round}");
        assert!(street.reports().is_empty(), "no node has news");
    }
    assert_eq!(street.told("victim"), [("friend", street.registration("friend"))]);
    let liar = street.fixture.core.node(street.fixture.core.node_key("liar").unwrap()).unwrap();
    assert!(street.fixture.core.info(liar).units[0].neighbours.is_empty());
    // Its links are cut as soon as it is not named any more.
    street.register("victim", &["liar", "friend"]);
    assert_eq!(street.reports(), ["friend", "liar"]);
    street.register("victim", &["friend"]);
    assert_eq!(street.reports(), ["friend", "liar"]);
    assert_eq!(street.told("liar"), []);
    street.check();
}

#[test]
fn lost_and_moved_nodes_have_no_links_until_they_return() {
    let mut street = Street::new();
    street.register("a", &["b"]);
    street.register("b", &["a"]);
    street.reports();
    street.silence("b", true);
    street.ticks(SILENCE_TICKS);
    assert_eq!(street.told("a").len(), 1);
    street.ticks(1);
    assert_eq!(street.told("a"), []);
    street.silence("b", false);
    street.reports();
    street.reports();
    street.check();
    assert_eq!((street.told("a").len(), street.told("b").len()), (1, 1));
    let (key, generation) = (street.fixture.core.node_key("b").unwrap(), street.fixture.generation);
    street.fixture.event(CoreEvent::Moved(key, generation + 1));
    assert_eq!(street.reports(), ["a"]);
    assert_eq!(street.told("a"), []);
    street.register("b", &["a"]);
    street.reports();
    assert_eq!(street.told("a"), [("b", street.registration("b"))]);
}

#[test]
fn node_bridges_two_nodes_that_are_linked_with_it() {
    let mut street = Street::new();
    street.register("host", &["a", "b", "stranger"]);
    street.register("a", &["host"]);
    assert_eq!(street.bridged("a"), []);
    street.register("b", &["host"]);
    assert_eq!(street.bridged("b"), [("a", "host")]);
    assert_eq!(street.reports(), ["host", "a"]);
    assert_eq!((street.bridged("a"), street.bridged("host")), (vec![("b", "host")], vec![]));
    let key = street.fixture.core.node_key("a").unwrap();
    let there = sublet_proto::pu::id("b", sublet_proto::pu::PROCESSOR);
    assert_eq!(street.fixture.core.beside(key, there).map(|(node, _)| &*node.name), Some("b"));
    // A node that the host does not name is bridged with none.
    street.register("stranger", &["a", "b"]);
    assert_eq!(street.bridged("stranger"), []);
    // Linked nodes need no bridge.
    street.register("b", &["host", "a"]);
    street.register("a", &["host", "b"]);
    street.reports();
    assert_eq!((street.bridged("a"), street.told("a").len()), (vec![], 2));
    // A bridge that is gone bridges no nodes.
    street.register("a", &["host"]);
    street.reports();
    assert_eq!(street.bridged("b"), [("a", "host")]);
    street.silence("host", true);
    street.ticks(SILENCE_TICKS + 1);
    assert_eq!((street.bridged("a"), street.bridged("b")), (vec![], vec![]));
}

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// An event for one of five nodes: it registers with these names, falls silent, speaks again, goes to another manager,
/// or time passes.
#[derive(Clone, Debug)]
enum Step {
    Register(usize, u8),
    Silence(usize, bool),
    Moves(usize),
    Ticks(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..5usize, any::<u8>()).prop_map(|(node, named)| Step::Register(node, named)),
        2 => (0..5usize, any::<bool>()).prop_map(|(node, is_silent)| Step::Silence(node, is_silent)),
        1 => (0..5usize).prop_map(Step::Moves),
        2 => (1..10u32).prop_map(Step::Ticks),
    ]
}

proptest! {
    #[test]
    fn reporting_agents_always_know_their_current_links(steps in prop::collection::vec(step(), 1..60)) {
        let mut street = Street::new();
        for step in steps {
            match step {
                Step::Register(node, named) => {
                    let named: Vec<&str> = (0..5).filter(|at| *at != node && named >> at & 1 == 1).map(|at| NAMES[at]).collect();
                    street.register(NAMES[node], &named);
                }
                Step::Silence(node, is_silent) => {
                    if street.agents.iter().any(|agent| agent.name == NAMES[node]) {
                        street.silence(NAMES[node], is_silent);
                    }
                }
                Step::Moves(node) => {
                    if let Some(key) = street.fixture.core.node_key(NAMES[node]) {
                        street.fixture.generation += 1;
                        street.fixture.event(CoreEvent::Moved(key, street.fixture.generation));
                    }
                }
                Step::Ticks(count) => street.ticks(count),
            }
            // The nodes learn of the change with their reports.
            street.reports();
            street.reports();
            street.check();
            prop_assert!(street.reports().is_empty(), "a report is left");
        }
    }
}
