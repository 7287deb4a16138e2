//! The core against single stories, and against random ones for its invariants.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use sublet_proto::price::DEFAULT_PRICE;
use sublet_proto::v1::WorkerOptions;

const GIB: u64 = 1 << 30;

fn node(name: &str, cores: u32) -> NodeDescription {
    NodeDescription {
        name: name.into(),
        agent: format!("unix:/{name}"),
        architecture: "x86_64".into(),
        cores,
        memory_bytes: GIB,
    }
}

fn request(lease: &str, cores: u32) -> Event {
    let options = WorkerOptions { slots: 1, slot_bytes: 64, hot_timeout_ns: 0 };
    let asked = LeaseRequest {
        cores,
        memory_bytes: 1 << 20,
        timeout_ms: 60_000,
        options: Some(options),
        ..LeaseRequest::default()
    };
    let package = PackageInfo { name: "p".into(), architecture: "x86_64".into(), ..PackageInfo::default() };
    Event::Request(Box::new(Request { lease: lease.into(), tenant: "uid:0".into(), package, asked }))
}

fn usage(executing_ns: u64) -> Usage {
    Usage {
        allocated_ns: executing_ns * 2,
        executing_ns,
        polling_ns: 0,
        calls: executing_ns,
        failed_calls: 0,
    }
}

fn report(node: &str, lease: &str, state: LeaseState, executing_ns: u64) -> Event {
    let lease = LeaseReport {
        lease: lease.into(),
        state: state.into(),
        usage: Some(usage(executing_ns)),
        end_reason: "released".into(),
    };
    Event::Report(NodeReport { node: node.into(), leases: vec![lease] })
}

/// A core with a store that always works.
struct House {
    core: Core,
    now_ms: u64,
}

impl House {
    fn with_node(cores: u32) -> House {
        let mut house = House { core: Core::new(DEFAULT_PRICE), now_ms: 1_000 };
        house.event(Event::Register(node("n", cores)));
        house
    }

    /// What the event leads to, without the saves.
    fn event(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.core.on_event(self.now_ms, event, &mut out);
        let mut done = Vec::new();
        while let Some(action) = out.pop() {
            match action {
                Action::Save { lease, revision } => {
                    let saved = Event::Saved(Version { lease: lease.id, revision });
                    self.core.on_event(self.now_ms, saved, &mut out);
                }
                other => done.push(other),
            }
        }
        done
    }

    fn grant(&mut self, lease: &str, cores: u32) {
        let actions = self.event(request(lease, cores));
        assert!(matches!(&actions[..], [Action::Granted { .. }]), "{actions:?}");
    }

    fn refusal(&mut self, event: Event) -> Error {
        match self.event(event).pop() {
            Some(Action::Refused { error, .. }) => error,
            other => panic!("not refused: {other:?}"),
        }
    }

    fn ticks(&mut self, count: u64) {
        for _ in 0..count {
            self.now_ms += TICK_MS;
            self.event(Event::Tick);
        }
    }

    fn state(&self, lease: &str) -> LeaseState {
        self.core.lease(lease).map_or(LeaseState::Unspecified, |lease| lease.state())
    }

    fn cores_leased(&self) -> u32 {
        self.core.nodes().map(|node| node.cores_leased).sum()
    }
}

#[test]
fn refusals_say_what_was_asked_and_what_there_is() {
    let mut house = House::with_node(2);
    let error = house.refusal(request("a", 4));
    assert_eq!(error, Error::new(Code::InsufficientResources, "4 cores asked, the largest node has 2"));
    house.grant("b", 1);
    let error = house.refusal(request("c", 2));
    assert_eq!(error, Error::new(Code::NoCapacity, "2 cores asked, 1 of 2 free"));
    let error = house.refusal(request("d", 0));
    assert_eq!(error.code, Code::InvalidArgument);
}

#[test]
fn memory_is_refused_like_cores() {
    let mut house = House::with_node(4);
    let ask = |lease: &str, memory_bytes: u64| match request(lease, 1) {
        Event::Request(mut request) => {
            request.asked.memory_bytes = memory_bytes;
            Event::Request(request)
        }
        other => other,
    };
    let error = house.refusal(ask("a", 2 * GIB));
    assert_eq!(error.code, Code::InsufficientResources);
    house.event(ask("b", GIB - 4096));
    let error = house.refusal(ask("c", 8192));
    assert_eq!(error, Error::new(Code::NoCapacity, "8192 bytes of memory asked, 4096 of 1073741824 free"));
}

#[test]
fn a_lease_goes_only_to_a_node_of_its_architecture_that_is_there() {
    let mut house = House { core: Core::new(DEFAULT_PRICE), now_ms: 1 };
    assert!(house.refusal(request("a", 1)).message.contains("x86_64"));
    house.event(Event::Register(NodeDescription { architecture: "aarch64".into(), ..node("other", 8) }));
    assert_eq!(house.refusal(request("b", 1)).code, Code::InsufficientResources);
    house.event(Event::Register(node("n", 1)));
    house.ticks(u64::from(SILENCE_TICKS) + 1);
    assert_eq!(house.refusal(request("c", 1)).code, Code::InsufficientResources);
    house.event(Event::Report(NodeReport { node: "n".into(), leases: vec![] }));
    house.grant("d", 1);
    assert_eq!(house.core.lease("d").unwrap().node, "n");
}

#[test]
fn the_fullest_node_that_fits_is_taken() {
    let mut house = House::with_node(8);
    house.event(Event::Register(node("small", 2)));
    house.grant("a", 2);
    house.grant("b", 8);
    assert_eq!(house.core.lease("a").unwrap().node, "small");
}

#[test]
fn a_lease_that_nobody_attaches_to_is_taken_back() {
    let mut house = House::with_node(2);
    house.grant("a", 2);
    house.ticks((ATTACH_GRACE_MS + REPORT_SLACK_MS) / TICK_MS - 1);
    assert_eq!(house.state("a"), LeaseState::Granted);
    house.ticks(1);
    assert_eq!((house.state("a"), house.cores_leased()), (LeaseState::Ended, 0));
    let actions = house.event(report("n", "a", LeaseState::Attached, 1));
    assert!(matches!(&actions[..], [Action::EndOnNode(lease)] if lease == "a"));
}

#[test]
fn a_lease_ends_when_its_agent_says_so_and_frees_its_cores_at_once() {
    let mut house = House::with_node(2);
    house.grant("a", 2);
    house.event(report("n", "a", LeaseState::Attached, 5));
    assert_eq!(house.state("a"), LeaseState::Attached);
    assert!(house.event(report("n", "a", LeaseState::Ended, 7)).is_empty());
    let lease = house.core.lease("a").unwrap();
    assert_eq!((lease.end_reason.as_str(), lease.usage.unwrap()), ("released", usage(7)));
    house.grant("b", 2);
}

#[test]
fn a_lease_ends_at_its_expiry_even_if_its_agent_forgets() {
    let mut house = House::with_node(2);
    house.grant("a", 2);
    for _ in 0..(60_000 + EXPIRY_SLACK_MS) / TICK_MS {
        assert_ne!(house.state("a"), LeaseState::Ended);
        house.event(report("n", "a", LeaseState::Attached, 1));
        house.ticks(1);
    }
    assert_eq!(house.state("a"), LeaseState::Ended);
    assert!(house.core.lease("a").unwrap().end_reason.contains("time"));
}

#[test]
fn a_silent_node_loses_its_leases_and_its_late_report_still_counts() {
    let mut house = House::with_node(2);
    house.grant("a", 2);
    house.event(report("n", "a", LeaseState::Attached, 5));
    house.ticks(u64::from(SILENCE_TICKS));
    assert_eq!(house.state("a"), LeaseState::Attached);
    house.ticks(1);
    assert_eq!((house.state("a"), house.cores_leased()), (LeaseState::Ended, 0));
    let actions = house.event(report("n", "a", LeaseState::Attached, 9));
    assert!(matches!(&actions[..], [Action::EndOnNode(_)]));
    assert_eq!(house.core.lease("a").unwrap().usage.unwrap(), usage(9));
    assert_eq!(house.state("a"), LeaseState::Ended);
}

#[test]
fn a_repeated_or_older_report_changes_nothing() {
    let mut house = House::with_node(2);
    house.grant("a", 1);
    house.event(report("n", "a", LeaseState::Attached, 9));
    let mut out = Vec::new();
    for executing_ns in [9, 3] {
        house.core.on_event(2_000, report("n", "a", LeaseState::Attached, executing_ns), &mut out);
    }
    assert!(out.is_empty(), "{out:?}");
    assert_eq!(house.core.lease("a").unwrap().usage.unwrap(), usage(9));
}

#[test]
fn an_unknown_node_registers_again_and_unknown_leases_end() {
    let mut house = House::with_node(2);
    let actions = house.event(report("stranger", "a", LeaseState::Attached, 1));
    assert!(matches!(&actions[..], [Action::RegisterAgain]));
    let actions = house.event(report("n", "nobody's", LeaseState::Attached, 1));
    assert!(matches!(&actions[..], [Action::EndOnNode(_)]));
    assert!(house.event(report("n", "nobody's", LeaseState::Ended, 1)).is_empty());
}

#[test]
fn a_node_name_is_not_taken_over_while_its_agent_reports() {
    let mut house = House::with_node(2);
    let other = NodeDescription { agent: "unix:/other".into(), ..node("n", 4) };
    let actions = house.event(Event::Register(other.clone()));
    assert!(matches!(&actions[..], [Action::NotRegistered(error)] if error.message.contains("unix:/n")));
    house.ticks(u64::from(SILENCE_TICKS) + 1);
    assert!(matches!(&house.event(Event::Register(other))[..], [Action::Registered]));
}

#[test]
fn leases_survive_the_manager_if_their_node_still_has_them() {
    let mut before = House::with_node(4);
    before.grant("kept", 1);
    before.grant("lost", 1);
    for lease in ["kept", "lost"] {
        before.event(report("n", lease, LeaseState::Attached, 5));
    }
    let mut house = House { core: Core::new(DEFAULT_PRICE), now_ms: 2_000 };
    for lease in before.core.leases() {
        house.event(Event::Restored(Box::new(lease.clone())));
    }
    house.event(Event::Register(node("n", 4)));
    assert_eq!(house.cores_leased(), 2);
    for _ in 0..=SILENCE_TICKS {
        house.ticks(1);
        house.event(report("n", "kept", LeaseState::Attached, 6));
    }
    assert_eq!((house.state("kept"), house.state("lost")), (LeaseState::Attached, LeaseState::Ended));
    assert_eq!(house.cores_leased(), 1);
}

#[test]
fn what_cannot_be_stored_is_not_granted_and_usage_is_tried_again() {
    let mut house = House::with_node(1);
    let mut out = Vec::new();
    let full = Error::new(Code::StoreFull, "full");
    house.core.on_event(1_000, request("a", 1), &mut out);
    let failed = Event::SaveFailed(Version { lease: "a".into(), revision: 1 }, full.clone());
    assert!(matches!(house.event(failed).pop(), Some(Action::Refused { error, .. }) if error == full));
    assert_eq!(house.cores_leased(), 0);

    house.grant("b", 1);
    out.clear();
    house.core.on_event(1_000, report("n", "b", LeaseState::Ended, 5), &mut out);
    let Some(Action::Save { revision, .. }) = out.pop() else { panic!("the end was not saved") };
    let failed = Event::SaveFailed(Version { lease: "b".into(), revision }, full);
    house.core.on_event(1_000, failed, &mut out);
    house.core.on_event(1_000 + 2 * REMEMBER_MS, Event::Tick, &mut out);
    assert!(matches!(&out[..], [Action::Save { lease, .. }] if lease.usage == Some(usage(5))));
    assert_eq!(house.state("b"), LeaseState::Ended);
}

#[test]
fn ended_leases_are_forgotten_only_when_stored() {
    let mut house = House::with_node(1);
    house.grant("a", 1);
    house.event(report("n", "a", LeaseState::Ended, 5));
    house.now_ms += REMEMBER_MS + 1;
    house.ticks(1);
    assert_eq!(house.state("a"), LeaseState::Unspecified);
}

/// A step of a random story; small numbers are leases, nodes and outcomes.
#[derive(Clone, Debug)]
enum Step {
    Register(u8),
    Request { cores: u32, stored: bool },
    Report { node: u8, lease: u8, ended: bool, executing_ns: u64 },
    Ticks { count: u8, ms: u64, stored: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => (0u8..3).prop_map(Step::Register),
        4 => (0u32..6, prop::bool::weighted(0.8)).prop_map(|(cores, stored)| Step::Request { cores, stored }),
        8 => (0u8..3, 0u8..12, prop::bool::weighted(0.2), 0u64..100).prop_map(
            |(node, lease, ended, executing_ns)| Step::Report { node, lease, ended, executing_ns }
        ),
        3 => (0u8..8, 0u64..3_000, prop::bool::weighted(0.8))
            .prop_map(|(count, ms, stored)| Step::Ticks { count, ms, stored }),
    ]
}

/// Plays a story and keeps what the invariants are about.
struct Story {
    core: Core,
    now_ms: u64,
    asked: u32,
    answered: BTreeSet<String>,
    ended: BTreeSet<String>,
    usage: BTreeMap<String, Usage>,
}

impl Story {
    fn new() -> Story {
        Story {
            core: Core::new(DEFAULT_PRICE),
            now_ms: 1_000_000,
            asked: 0,
            answered: BTreeSet::new(),
            ended: BTreeSet::new(),
            usage: BTreeMap::new(),
        }
    }

    fn play(&mut self, step: Step) {
        match step {
            Step::Register(index) => self.event(Event::Register(node(&format!("n{index}"), 4)), true),
            Step::Request { cores, stored } => {
                let id = format!("{:032x}", self.asked);
                self.asked += 1;
                self.event(request(&id, cores), stored);
                assert!(self.answered.contains(&id), "{id} was not answered");
            }
            Step::Report { node, lease, ended, executing_ns } => {
                let state = if ended { LeaseState::Ended } else { LeaseState::Attached };
                let (node, lease) = (format!("n{node}"), format!("{lease:032x}"));
                self.event(report(&node, &lease, state, executing_ns), true);
            }
            Step::Ticks { count, ms, stored } => {
                for _ in 0..count {
                    self.now_ms += ms;
                    self.event(Event::Tick, stored);
                }
            }
        }
        self.check();
    }

    fn event(&mut self, event: Event, stored: bool) {
        let mut out = Vec::new();
        self.core.on_event(self.now_ms, event, &mut out);
        while let Some(action) = out.pop() {
            match action {
                Action::Save { lease, revision } => {
                    let version = Version { lease: lease.id, revision };
                    let full = Error::new(Code::StoreFull, "full");
                    let answer =
                        if stored { Event::Saved(version) } else { Event::SaveFailed(version, full) };
                    self.core.on_event(self.now_ms, answer, &mut out);
                }
                Action::Granted { lease, .. } => self.answer(lease.id),
                Action::Refused { lease, .. } => self.answer(lease),
                _ => {}
            }
        }
    }

    fn answer(&mut self, lease: String) {
        assert!(self.answered.insert(lease.clone()), "{lease} was answered twice");
    }

    fn check(&mut self) {
        let mut leased = BTreeMap::<&str, (u32, u64)>::new();
        for lease in self.core.leases() {
            let ended = lease.state() == LeaseState::Ended;
            assert!(ended || !self.ended.contains(&lease.id), "{} came back", lease.id);
            if ended {
                self.ended.insert(lease.id.clone());
            } else {
                let sum = leased.entry(&lease.node).or_default();
                *sum = (sum.0 + lease.cores, sum.1 + lease.memory_bytes);
            }
            let now = lease.usage.unwrap();
            let before = self.usage.insert(lease.id.clone(), now).unwrap_or_default();
            assert!(now.executing_ns >= before.executing_ns && now.calls >= before.calls, "usage shrank");
        }
        for node in self.core.nodes() {
            let description = node.description.unwrap();
            let sum = leased.remove(description.name.as_str()).unwrap_or_default();
            assert_eq!((node.cores_leased, node.memory_leased_bytes), sum);
            assert!(sum.0 <= description.cores && sum.1 <= description.memory_bytes, "leased twice");
        }
        assert!(leased.is_empty(), "leases on no node: {leased:?}");
    }
}

proptest! {
    #[test]
    fn no_story_breaks_an_invariant(steps in proptest::collection::vec(step(), 1..120)) {
        let mut story = Story::new();
        for step in steps {
            story.play(step);
        }
    }
}
