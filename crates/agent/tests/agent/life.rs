//! A lease's life, from its ticket to its end.

use std::time::Duration;

use sublet_proto::v1::client_to_agent::Body as ToAgent;
use sublet_proto::v1::*;
use sublet_proto::{Code, Error};

use crate::common::*;
use crate::{SLEEPS, assert_dies};

fn provisional(node: &NodeFixture, id: &str) -> Vec<u8> {
    node.manager.sign(&Ticket { provisional: true, ..node.manager.ticket(node.lease(id)) })
}

#[test]
fn accepts_tickets_only_for_current_registration_node_and_time() {
    let node = NodeFixture::with_worker(SLEEPS);
    let good = node.manager.ticket(node.lease("a"));
    let lease = |change: fn(&mut Lease)| {
        let mut lease = node.lease("a");
        change(&mut lease);
        Some(lease)
    };
    let refused = [
        (Ticket { registration: good.registration - 1, ..good.clone() }, Code::TicketSuperseded),
        (Ticket { registration: 0, ..good.clone() }, Code::TicketSuperseded),
        (
            Ticket { lease: lease(|lease| lease.node = "elsewhere".into()), ..good.clone() },
            Code::PermissionDenied,
        ),
        (Ticket { lease: lease(|lease| lease.expires_unix_ms = 1), ..good.clone() }, Code::LeaseExpired),
        (Ticket { issued_unix_ms: good.issued_unix_ms - 6_000, ..good.clone() }, Code::PermissionDenied),
        (Ticket { lease: None, ..good.clone() }, Code::PermissionDenied),
    ];
    for (ticket, code) in refused {
        let client = node.show_ticket(node.manager.sign(&ticket));
        assert_eq!(client.hear_failure().0, code, "{ticket:?}");
        client.assert_closed();
    }
    let mut forged = node.manager.sign(&good);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(node.show_ticket(forged).hear_failure().0, Code::PermissionDenied);
    node.show_ticket(node.manager.sign(&good)).hear_attached();
}

#[test]
fn the_managers_clock_decides_and_not_this_machines() {
    let node = NodeFixture::with(SLEEPS, |_, manager| manager.book().clock_ahead_ms = 3_600_000);
    let client =
        node.attach(Lease { expires_unix_ms: node.manager.now_unix_ms() + 3_000, ..node.lease("a") });
    assert_eq!(client.hear_end().code, Code::LeaseExpired.number());
    let report = node.manager.next_report();
    // It is an estimate: half of the time that the manager's answer took may be added.
    let ahead_ms = i128::from(report.clock_unix_ms) - i128::from(unix_ms());
    assert!((3_000_000..3_700_000).contains(&ahead_ms), "{ahead_ms} ms ahead");
}

#[test]
fn an_expired_lease_ends() {
    let node = NodeFixture::with_worker(SLEEPS);
    let expires_unix_ms = node.manager.now_unix_ms() + 4_000;
    let client = node.attach(Lease { expires_unix_ms, ..node.lease("a") });
    let left_ms = expires_unix_ms.saturating_sub(node.manager.now_unix_ms());
    let (started, _control) = client.start();
    let ended = client.hear_end();
    assert_eq!((ended.code, ended.reason.as_str()), (Code::LeaseExpired.number(), "lease a has expired"));
    assert!(!is_alive(started.pid));
    // The agent knows the manager's clock within bounds, and goes by the later one.
    assert!(ended.usage.unwrap().allocated_ns > left_ms.saturating_sub(1_000) * 1_000_000);
    assert_eq!(node.manager.wait_ended("a").end_code, Code::LeaseExpired.number());
    node.attach(node.lease("b"));
}

#[test]
fn a_renewed_lease_lasts_longer_and_keeps_its_latest_ticket() {
    let node = NodeFixture::with_worker(SLEEPS);
    let until = |id: &str, ms| Lease { expires_unix_ms: node.manager.now_unix_ms() + ms, ..node.lease(id) };
    let client = node.attach(until("a", 4_000));
    let renew = |ticket| client.say(ToAgent::Renew(Renew { ticket }));
    let later = until("a", 60_000);
    renew(node.ticket(until("b", 60_000)));
    assert_eq!(client.hear_failure().0, Code::PermissionDenied, "another lease's ticket");
    renew(provisional(&node, "a"));
    assert_eq!(client.hear_failure().0, Code::PermissionDenied, "an unverified token");
    renew(node.ticket(until("a", 100)));
    assert_eq!(client.hear_failure().0, Code::InvalidArgument, "an earlier end");
    let ticket = node.ticket(later);
    renew(ticket.clone());
    match client.hear().0 {
        agent_to_client::Body::Renewed(renewed) => {
            assert!((10_000..=60_000).contains(&renewed.remaining_ms), "{renewed:?}");
        }
        other => panic!("{other:?} instead of a renewal"),
    }
    assert!(client.0.receive(Some(Duration::from_secs(5))).is_err(), "the lease lives on in silence");
    node.manager.book().registration = 0;
    node.manager.wait_for("the node registers again", |book| book.registrations.len() == 2);
    let book = node.manager.book();
    let [running] = book.registrations[1].leases.as_slice() else { panic!("{:?}", book.registrations) };
    assert_eq!(running.ticket, ticket);
    assert!(running.remaining_ms > 10_000);
}

#[test]
fn reports_an_immediate_start_after_the_attachment() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.connect();
    client.say(ToAgent::Attach(Attach {
        ticket: node.ticket(node.lease("a")),
        start: true,
        fabric: None,
        ..Attach::default()
    }));
    client.hear_attached();
    let (started, _control) = client.hear_started();
    assert!(is_alive(started.pid));
    drop(client);
    assert_dies(started.pid);
    node.manager.wait_ended("a");
    let client = node.connect();
    let package = format!("sha256:{}", "0".repeat(64));
    let ticket = node.ticket(Lease { package, ..node.lease("b") });
    client.say(ToAgent::Attach(Attach { ticket, start: true, fabric: None, ..Attach::default() }));
    client.hear_attached();
    assert_eq!(client.hear_failure().0, Code::UnknownPackage, "the lease is there, the worker is not");
    client.say(ToAgent::Release(Release {}));
    assert_eq!(client.hear_end().code, 0);
}

#[test]
fn hands_over_a_provisional_lease_after_token_verification() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.connect();
    let held_by = node.ticket(node.lease("a"));
    node.manager.book().confirming = Confirming::Good(held_by.clone());
    client.say(ToAgent::Attach(Attach {
        ticket: provisional(&node, "a"),
        start: true,
        fabric: None,
        ..Attach::default()
    }));
    client.hear_attached();
    client.hear_started();
    assert_eq!(node.manager.book().confirmations, ["a"]);
    node.manager.book().registration = 0;
    node.manager.wait_for("the node registers again", |book| book.registrations.len() == 2);
    assert_eq!(node.manager.book().registrations[1].leases[0].ticket, held_by);
    client.say(ToAgent::Release(Release {}));
    let ended = client.hear_end();
    assert_eq!(node.manager.wait_ended("a").usage, ended.usage);
    assert!(ended.usage.unwrap().allocated_ns > 0);
}

#[test]
fn a_refused_provisional_lease_is_undone_and_costs_nothing() {
    let node = NodeFixture::with_worker(SLEEPS);
    let refusal = Error::new(Code::Unauthenticated, "the token is unknown");
    node.manager.book().confirming = Confirming::Bad(refusal);
    let client = node.connect();
    client.say(ToAgent::Attach(Attach {
        ticket: provisional(&node, "a"),
        start: true,
        fabric: None,
        ..Attach::default()
    }));
    assert_eq!(client.hear_failure(), (Code::Unauthenticated, "the token is unknown".to_owned()));
    client.assert_closed();
    let report = node.manager.wait_ended("a");
    assert_eq!((report.usage, report.end_code), (Some(Usage::default()), Code::Unauthenticated.number()));
    node.attach(node.lease("b"));
}

#[test]
fn undoes_an_unverified_provisional_lease_without_billing() {
    let node = NodeFixture::with_worker(SLEEPS);
    node.manager.book().confirming = Confirming::Silent;
    let client = node.connect();
    client.say(ToAgent::Attach(Attach {
        ticket: provisional(&node, "a"),
        start: true,
        fabric: None,
        ..Attach::default()
    }));
    let (code, message) = client.hear_failure();
    assert_eq!(code, Code::PermissionDenied);
    assert!(message.contains("could not be verified"), "{message}");
    client.assert_closed();
    node.manager.wait_ended("a");
    let book = node.manager.book();
    let mut usages = book.lease_reports().map(|report| report.usage);
    assert!(usages.all(|usage| usage == Some(Usage::default())));
}

#[test]
fn a_client_lost_during_token_verification_leaves_nothing() {
    let node = NodeFixture::with_worker(SLEEPS);
    node.manager.book().confirming = Confirming::Silent;
    let client = node.connect();
    client.say(ToAgent::Attach(Attach {
        ticket: provisional(&node, "a"),
        start: true,
        fabric: None,
        ..Attach::default()
    }));
    node.manager.wait_for("it is asked", |book| !book.confirmations.is_empty());
    drop(client);
    assert_eq!(node.manager.wait_ended("a").end_reason, "the client is gone");
    node.attach(node.lease("b"));
}

#[test]
fn a_lease_without_calls_is_announced_as_idle_and_ends() {
    let node = NodeFixture::with(SLEEPS, |options, _| options.idle_timeout = Some(Duration::from_secs(3600)));
    let busy = node.attach(node.lease("the node's own timeout"));
    drop(busy);
    node.manager.wait_ended("the node's own timeout");
    let client = node.attach(Lease { idle_timeout_ms: 9_500, ..node.lease("a") });
    let (started, _control) = client.start();
    let ending = client.hear_ending();
    assert_eq!((ending.code, ending.grace_ms), (Code::LeaseEnded.number(), 1_000));
    let ended = client.hear_end();
    assert_eq!(
        (ended.code, ended.reason.as_str()),
        (Code::LeaseEnded.number(), "lease a was idle for 9.5 s")
    );
    assert!(!is_alive(started.pid));
}

#[test]
fn a_node_may_say_how_long_leases_may_be_idle() {
    let node =
        NodeFixture::with(SLEEPS, |options, _| options.idle_timeout = Some(Duration::from_millis(100)));
    let client = node.attach(node.lease("a"));
    client.hear_ending();
    assert!(client.hear_end().reason.contains("idle"));
}

#[test]
fn the_manager_ends_leases_after_an_announcement() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let order = |lease: &str| EndOrder { lease: lease.into(), ..EndOrder::default() };
    node.manager.book().end = vec![order("a"), order("unknown")];
    let ending = client.hear_ending();
    assert!(ending.grace_ms > 0 && ending.grace_ms <= 1_000, "{ending:?}");
    let ended = client.hear_end();
    assert_eq!(
        (ended.code, ended.reason.as_str()),
        (Code::LeaseEnded.number(), "lease a was ended by the manager")
    );
    assert_eq!(
        node.show(node.lease("unknown")).hear_failure().0,
        Code::PermissionDenied,
        "it was ended before"
    );
}

#[test]
fn a_revoked_lease_ends_at_once_with_the_managers_reason() {
    let node = NodeFixture::with_worker(SLEEPS);
    let client = node.attach(node.lease("a"));
    let (code, reason) = (Code::Unauthenticated.number(), "the token was revoked".to_owned());
    node.manager.book().end = vec![EndOrder { lease: "a".into(), code, reason: reason.clone() }];
    let ending = client.hear_ending();
    assert_eq!((ending.code, ending.reason, ending.grace_ms), (code, reason.clone(), 0));
    let ended = client.hear_end();
    assert_eq!((ended.code, ended.reason), (code, reason));
}
