//! Tests what a node's operator may do.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use sublet_agent::{ClientUsers, command};
use sublet_proto::Code;
use sublet_proto::v1::client_to_agent::Body as ToAgent;
use sublet_proto::v1::*;

use crate::SLEEPS;
use crate::common::*;

fn order(state: NodeState, grace_ms: u64) -> Command {
    Command { state: state.into(), grace_ms }
}

/// Gives a command on a connection of its own.
fn give(node: &NodeFixture, state: NodeState, grace_ms: u64) -> Client {
    let operator = node.connect();
    operator.say(ToAgent::Command(order(state, grace_ms)));
    operator
}

#[test]
fn a_drained_node_keeps_leases_and_reports_when_empty() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let operator = give(&node, NodeState::Draining, 0);
    let status = operator.hear_status();
    assert_eq!((status.state(), status.leases), (NodeState::Draining, 1));
    let (code, message) = node.show(node.lease("b")).hear_failure();
    assert_eq!(code, Code::NoCapacity, "{message}");
    node.manager.wait_for("the node is drained", |book| {
        book.reports.last().is_some_and(|report| report.state() == NodeState::Draining)
    });
    client.start();
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0);
    while operator.hear_status().leases > 0 {}
    operator.assert_closed();
    let lent = command(&node.socket(), order(NodeState::Lending, 0), |_| {}).unwrap();
    assert_eq!(lent.state(), NodeState::Lending);
    node.attach(node.lease("c"));
}

#[test]
fn a_reclaimed_node_ends_its_leases_after_the_grace() {
    let mut node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let (started, _control) = client.start();
    let late = node.ticket(node.lease("b"));
    // It needs no manager.
    node.manager.stop();
    let (socket, start) = (node.socket(), Instant::now());
    let operator = std::thread::spawn(move || {
        let mut told = Vec::new();
        let last = command(&socket, order(NodeState::Reclaimed, 10_000), |status| told.push(*status));
        (last.unwrap(), told)
    });
    let ending = client.hear_ending();
    assert_eq!(ending.code, Code::NodeReclaimed.number());
    assert!(ending.grace_ms <= 10_000, "{ending:?}");
    assert!(is_alive(started.pid));
    assert_eq!(node.show_ticket(late).hear_failure().0, Code::NoCapacity);
    let ended = client.hear_end();
    assert!(start.elapsed() >= Duration::from_millis(10_000));
    assert_eq!((ended.code, ended.reason.as_str()), (ending.code, ending.reason.as_str()));
    assert!(!is_alive(started.pid));
    let (last, told) = operator.join().unwrap();
    assert_eq!((last.state(), last.leases), (NodeState::Reclaimed, 0));
    assert!(told.len() >= 2 && told[0].leases == 1, "{told:?}");
}

#[test]
fn a_client_that_leaves_within_the_grace_leaves_in_peace() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let operator = give(&node, NodeState::Reclaimed, 60_000);
    client.hear_ending();
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0);
    while operator.hear_status().leases > 0 {}
    operator.assert_closed();
}

#[test]
fn a_shorter_grace_takes_effect_and_announcements_stay() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let first = give(&node, NodeState::Reclaimed, 60_000);
    assert!(client.hear_ending().grace_ms > 50_000);
    let second = give(&node, NodeState::Reclaimed, 1_000);
    assert!(client.hear_ending().grace_ms <= 1_000);
    let third = give(&node, NodeState::Lending, 0);
    assert_eq!(third.hear_status().state(), NodeState::Lending);
    assert_eq!(client.hear_end().code, Code::NodeReclaimed.number());
    for operator in [first, second] {
        while operator.hear_status().state() == NodeState::Reclaimed {}
        operator.assert_closed();
    }
    node.attach(node.lease("b"));
}

#[test]
fn commands_that_make_no_sense_are_refused() {
    let node = NodeFixture::with_worker(SLEEPS);
    for state in [NodeState::Unspecified, NodeState::Lost] {
        let error = command(&node.socket(), order(state, 0), |_| {}).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
    }
    let client = node.attach(node.lease("a"));
    client.say(ToAgent::Command(order(NodeState::Draining, 0)));
    assert_eq!(client.hear_failure().0, Code::Protocol, "a ticket is no authority for it");
    let nobody = node.folder.path().join("nobody.sock");
    let error = command(&nobody, order(NodeState::Draining, 0), |_| {}).unwrap_err();
    assert_eq!(error.code, Code::AgentUnreachable);
}

#[test]
fn the_socket_is_open_to_those_whom_the_agent_serves() {
    for (clients, mode) in [(ClientUsers::OwnUser, 0o600), (ClientUsers::AllUsers, 0o666)] {
        let node = NodeFixture::with(SLEEPS, |options, _| options.clients = clients);
        let permissions = std::fs::metadata(node.socket()).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, mode);
        node.attach(node.lease("a"));
    }
}
