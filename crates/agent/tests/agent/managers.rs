//! One manager, several, and none.

use std::fs;
use std::time::Duration;

use sublet_agent::Agent;
use sublet_proto::v1::client_to_agent::Body as ToAgent;
use sublet_proto::v1::*;
use sublet_proto::{Code, Error};
use sublet_runtime::access::Access;

use crate::SLEEPS;
use crate::common::*;

fn is_listed(report: &NodeReport, lease: &str) -> bool {
    report.leases.iter().any(|report| report.lease == lease && report.state() == LeaseState::Attached)
}

#[test]
fn a_registration_describes_the_node_and_its_leases() {
    let node = NodeFixture::with_worker(SLEEPS);
    let ticket = node.ticket(node.lease("a"));
    let client = node.show_ticket(ticket.clone());
    client.hear_attached();
    let superseded = node.ticket(node.lease("b"));
    node.manager.book().registration = 0;
    node.manager.wait_for("the node registers again", |book| book.registrations.len() == 2);
    node.manager.wait_for("the lease is still there", |book| {
        let is_first =
            |report: &&NodeReport| report.registration == book.registration && report.sequence == 1;
        book.reports.iter().find(is_first).is_some_and(|report| is_listed(report, "a"))
    });
    let book = node.manager.book();
    let [first, second] = book.registrations.as_slice() else { panic!("{:?}", book.registrations) };
    assert_eq!((first.instance.len(), &first.instance), (32, &second.instance));
    assert_eq!(second.node.as_ref().unwrap().cores, 1);
    let [running] = second.leases.as_slice() else { panic!("{second:?}") };
    assert_eq!(running.ticket, ticket);
    assert!(running.report.as_ref().unwrap().usage.unwrap().allocated_ns > 0);
    drop(book);
    assert_eq!(node.show_ticket(superseded).hear_failure().0, Code::TicketSuperseded);
    client.start();
}

#[test]
fn repeats_an_end_until_acknowledged_without_blocking_the_client() {
    let node = NodeFixture::with_worker(SLEEPS);
    node.manager.book().store_is_stuck = true;
    let client = node.attach(node.lease("a"));
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0);
    for _ in 0..2 {
        let report = node.manager.next_report();
        assert_eq!((report.leases.len(), report.leases[0].state()), (1, LeaseState::Ended));
    }
    node.attach(node.lease("b"));
    node.manager.book().store_is_stuck = false;
    node.manager.wait_for("the end is acknowledged", |book| {
        book.reports.last().is_some_and(|report| !report.leases.iter().any(|lease| lease.lease == "a"))
    });
}

#[test]
fn leases_outlive_their_manager_and_report_to_the_next() {
    let mut node = NodeFixture::with_worker(SLEEPS);
    let kept = node.ticket(node.lease("kept"));
    let client = node.attach(node.lease("released"));
    node.manager.stop();
    client.say(ToAgent::Start(Start {}));
    assert_eq!(client.hear_failure().0, Code::ManagerUnreachable, "the package was not here yet");
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0, "a release does not wait for ever for a manager that is gone");
    let client = node.show_ticket(kept);
    client.hear_attached();
    assert!(node.manager.last_report("released").is_none_or(|report| report.state() != LeaseState::Ended));
    node.manager.restart();
    assert_eq!(node.manager.wait_ended("released").end_reason, "released by the client");
    node.manager.wait_for("the node has registered again", |book| book.registrations.len() >= 2);
    client.start();
}

#[test]
fn a_node_moves_to_another_manager_with_its_leases() {
    let other = tempfile::tempdir().unwrap();
    let second = FakeManager::start(other.path().join("second.sock"), 2);
    // The agent has only the first manager's address; that manager names the second.
    let mut node = NodeFixture::with(SLEEPS, |_, manager| {
        manager.book().managers = vec![manager.address(), second.address()];
    });
    let client = node.attach(node.lease("a"));
    let (started, _control) = client.start();
    let superseded = node.ticket(node.lease("b"));
    node.manager.stop();
    second.wait_for("the node comes", |book| !book.reports.is_empty());
    let registration = second.book().registrations[0].clone();
    assert_eq!(registration.leases[0].report.as_ref().unwrap().lease, "a");
    assert!(is_alive(started.pid));
    assert_eq!(node.show_ticket(superseded).hear_failure().0, Code::TicketSuperseded);
    // The first is back, and the node stays with the second, which answers.
    node.manager.restart();
    let heard = node.manager.book().registrations.len();
    let report = second.next_report();
    assert!(is_listed(&report, "a") && report.sequence > 1);
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0);
    assert_eq!(second.wait_ended("a").end_reason, "released by the client");
    assert_eq!(node.manager.book().registrations.len(), heard);
}

#[test]
fn starts_with_the_second_manager_if_the_first_is_away() {
    let other = tempfile::tempdir().unwrap();
    let absent = format!("unix:{}", other.path().join("nobody.sock").display());
    let node = NodeFixture::with(SLEEPS, |options, manager| {
        options.access = Access::parse(&format!("{absent},{}", manager.address())).unwrap();
    });
    node.attach(node.lease("a"));
}

#[test]
fn a_refused_agent_reports_why_and_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let manager = FakeManager::start(folder.path().join("manager.sock"), 1);
    let refusal = Error::new(Code::PermissionDenied, "the token is for node there, and this is here");
    manager.book().refusal = Some(refusal.clone());
    let error = Agent::start(options(folder.path(), SLEEPS)).err().unwrap();
    assert_eq!(error, refusal);
    assert_eq!(manager.book().registrations.len(), 1, "there is nothing to wait for");
}

#[test]
fn leases_go_on_when_the_node_is_refused_later() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let refusal = Error::new(Code::Unauthenticated, "the token was revoked");
    node.manager.book().refusal = Some(refusal);
    node.manager.book().registration = 0;
    node.manager.wait_for("the node asks again", |book| book.registrations.len() == 2);
    client.start();
    assert_eq!(node.show(node.lease("b")).hear_failure().0, Code::TicketSuperseded);
    assert_eq!(node.manager.book().registrations.len(), 2, "it asks slowly");
}

#[test]
fn the_next_agent_reports_leases_of_a_killed_one() {
    let mut node = NodeFixture::with_worker(SLEEPS);
    let journal = node.options.state.join("leases.journal");
    let ticket = node.ticket(node.lease("a"));
    let start = std::time::Instant::now();
    let client = node.show_ticket(ticket.clone());
    client.hear_attached();
    node.manager.wait_for("time has passed", |book| book.lease_reports().count() >= 3);
    let left = fs::read(&journal).unwrap();
    let passed = start.elapsed();
    node.agent.take().unwrap().stop();
    assert!(!journal.exists(), "an agent that stops leaves nothing to be said");
    // A killed agent leaves only the journal.
    fs::write(&journal, left).unwrap();
    *node.manager.book() = Book { store_is_stuck: true, ..Book::default() };
    node.agent = Some(Agent::start(node.options.clone()).unwrap());
    let report = node.manager.wait_ended("a");
    assert_eq!(
        (report.end_code, report.end_reason.as_str()),
        (Code::AgentUnreachable.number(), "the agent was killed")
    );
    let left = report.usage.unwrap();
    assert!(
        left.allocated_ns > 0 && u128::from(left.allocated_ns) <= passed.as_nanos(),
        "{left:?} {passed:?}"
    );
    let registered = node.manager.book().registrations[0].leases.clone();
    assert_eq!((registered[0].ticket.as_slice(), registered[0].remaining_ms), (ticket.as_slice(), 0));
    assert_eq!(node.manager.next_report().leases, [report]);
    assert!(journal.exists());
    node.manager.book().store_is_stuck = false;
    node.manager.wait_for("it is acknowledged", |book| book.reports.last().unwrap().leases.is_empty());
    let start = std::time::Instant::now();
    while journal.exists() {
        assert!(start.elapsed() < PATIENCE, "the journal is not removed");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_damaged_journal_keeps_no_agent_from_starting() {
    let node = NodeFixture::with(SLEEPS, |options, _| {
        fs::create_dir_all(&options.state).unwrap();
        fs::write(options.state.join("leases.journal"), b"sublet-leases-1 nonsense\nmore").unwrap();
    });
    node.attach(node.lease("a"));
    assert!(node.options.state.join("leases.journal.damaged").exists());
}

#[test]
fn a_state_folder_is_of_one_agent() {
    let node = NodeFixture::with_worker(SLEEPS);
    let error = Agent::start(node.options.clone()).err().unwrap();
    assert_eq!(error.code, Code::AlreadyRunning);
    node.attach(node.lease("a"));
}
