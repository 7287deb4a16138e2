//! Tests of the ledger: what leases have used, and what the journal keeps of it.

use sublet_fabric::clock::Calibration;
use sublet_proto::ticket::Signing;
use sublet_runtime::wire::usage::UsageLayout;

use super::*;

const LONG: Duration = Duration::from_secs(180);
const NOW_UNIX_MS: u64 = 1_000_000;

fn signing() -> Signing {
    Signing::from_seed(&[7; 32])
}

/// The manager's word after a registration.
fn registration(number: u64) -> NodeRegistration {
    NodeRegistration {
        verifying_key: signing().verifying_key().to_vec(),
        registration: number,
        now_unix_ms: NOW_UNIX_MS,
        ..NodeRegistration::default()
    }
}

fn ledger() -> Arc<LeaseLedger> {
    let ledger = Arc::new(LeaseLedger::new("here"));
    let now = ledger.now();
    ledger.registered(&registration(1), Exchange { asked: now, answered: now }).unwrap();
    ledger
}

fn ticket(lease: &str) -> Vec<u8> {
    ticket_of(lease, "", false)
}

fn ticket_of(lease: &str, tenant: &str, provisional: bool) -> Vec<u8> {
    let (id, node, tenant) = (lease.into(), "here".into(), tenant.into());
    let lease = Lease { id, node, tenant, expires_unix_ms: NOW_UNIX_MS + 60_000, ..Lease::default() };
    signing().sign(&Ticket {
        lease: Some(lease),
        registration: 1,
        issued_unix_ms: NOW_UNIX_MS,
        provisional,
        ..Ticket::default()
    })
}

fn enrol(ledger: &Arc<LeaseLedger>, lease: &str) -> Result<(Enrolment, Arc<EndRequest>), Error> {
    let end = Arc::new(EndRequest::new().unwrap());
    ledger.enrol(&ticket(lease), end.clone()).map(|enrolled| (enrolled.enrolment, end))
}

fn answer(ledger: &LeaseLedger, reply: &NodeReportReply) -> NodeReport {
    let (report, now) = (ledger.report(), ledger.now());
    let reply = NodeReportReply { now_unix_ms: NOW_UNIX_MS, ..reply.clone() };
    let wanted = |order: &EndOrder| WantedEnd {
        reason: Error::new(Code::LeaseEnded, order.reason.clone()),
        at: Instant::now(),
    };
    ledger.reported(&report, &reply, Exchange { asked: now, answered: now }, wanted);
    report
}

fn released() -> BookedEnd {
    BookedEnd { code: 0, reason: "released".into() }
}

#[test]
fn bills_from_the_start_of_billing_and_releases_the_meter() {
    let ledger = ledger();
    let (enrolment, _end) = enrol(&ledger, "a").unwrap();
    assert_eq!(ledger.report().leases[0].usage, Some(Default::default()));
    let meter = Arc::new(LeaseMeter::open((UsageLayout::new(1, 1), 1), Calibration::start()).unwrap());
    enrolment.bill(meter.clone());
    std::thread::sleep(Duration::from_millis(2));
    let running = ledger.report().leases[0].usage.unwrap();
    assert!(running.allocated_ns > 0);
    let last = meter.close();
    enrolment.finish(released());
    assert_eq!(ledger.report().leases[0].usage, Some(last.usage));
    assert_eq!(Arc::strong_count(&meter), 1);
}

#[test]
fn the_confirming_ticket_names_the_tenant() {
    let ledger = ledger();
    let end = Arc::new(EndRequest::new().unwrap());
    let enrolment = ledger.enrol(&ticket_of("a", "unverified", true), end).unwrap().enrolment;
    for wrong in [ticket_of("b", "us", false), ticket_of("a", "us", true)] {
        assert_eq!(enrolment.confirm(&wrong).unwrap_err().code, Code::PermissionDenied);
    }
    assert_eq!(enrolment.confirm(&ticket_of("a", "us", false)).unwrap(), "us");
}

#[test]
fn lease_end_wakes_the_reporter_and_its_answer_the_supervisor() {
    let ledger = ledger();
    let (enrolment, _end) = enrol(&ledger, "a").unwrap();
    let reporter = std::thread::spawn({
        let ledger = ledger.clone();
        move || {
            let mut seen = NewsCursor::default();
            assert_eq!(ledger.wait_turn(&mut seen, LONG), ThreadStep::Act);
            answer(&ledger, &NodeReportReply::default());
            assert_eq!(ledger.wait_turn(&mut seen, LONG), ThreadStep::Finish);
        }
    });
    enrolment.finish(released());
    assert!(ledger.wait_told("a", LONG));
    assert!(!ledger.is_empty(), "it was heard, and is not acknowledged");
    ledger.finish();
    reporter.join().unwrap();
    answer(&ledger, &NodeReportReply { acknowledged: vec!["a".into()], ..NodeReportReply::default() });
    assert!(ledger.is_empty());
}

#[test]
fn journals_a_new_lease_at_once_and_reports_it_later() {
    let ledger = ledger();
    let (mut keepers, mut reporters) = (NewsCursor::with_beginnings(), NewsCursor::default());
    let (enrolment, _end) = enrol(&ledger, "a").unwrap();
    enrolment.bill(Arc::new(LeaseMeter::open((UsageLayout::new(1, 1), 1), Calibration::start()).unwrap()));
    assert_eq!(ledger.wait_turn(&mut keepers, LONG), ThreadStep::Act);
    ledger.wait_turn(&mut reporters, Duration::ZERO);
    assert_eq!((keepers.news, keepers.begun), (reporters.news, Some(1)));
    enrolment.finish(released());
    assert_eq!(ledger.wait_turn(&mut keepers, LONG), ThreadStep::Act);
    assert_eq!(ledger.wait_turn(&mut reporters, LONG), ThreadStep::Act);
}

#[test]
fn waiting_for_an_unreported_end_times_out() {
    let ledger = ledger();
    let (enrolment, _end) = enrol(&ledger, "a").unwrap();
    enrolment.finish(released());
    assert!(!ledger.wait_told("a", Duration::ZERO));
}

#[test]
fn no_ticket_is_taken_while_the_node_is_being_registered() {
    let ledger = ledger();
    let (_enrolment, _end) = enrol(&ledger, "a").unwrap();
    assert_eq!(ledger.register().len(), 1);
    assert_eq!(enrol(&ledger, "b").err().unwrap().code, Code::TicketSuperseded);
    let now = ledger.now();
    ledger.registered(&registration(2), Exchange { asked: now, answered: now }).unwrap();
    assert_eq!(enrol(&ledger, "b").err().unwrap().code, Code::TicketSuperseded);
}

#[test]
fn a_supervisor_that_fails_leaves_its_lease_ended() {
    let ledger = ledger();
    drop(enrol(&ledger, "a").unwrap());
    let report = &ledger.report().leases[0];
    assert_eq!((report.state(), report.end_code), (LeaseState::Ended, Code::Internal.number()));
}

#[test]
fn manager_operator_and_agent_can_end_leases() {
    let ledger = ledger();
    let (_a, end_a) = enrol(&ledger, "a").unwrap();
    let (_b, end_b) = enrol(&ledger, "b").unwrap();
    let order = EndOrder { lease: "a".into(), reason: "the manager's".into(), ..EndOrder::default() };
    answer(&ledger, &NodeReportReply { end: vec![order], ..NodeReportReply::default() });
    assert_eq!(end_a.take_note().unwrap().reason.message, "the manager's");
    assert!(end_b.take_note().is_none());
    let at = Instant::now() + LONG;
    ledger.reclaim(WantedEnd { reason: Error::new(Code::NodeReclaimed, "the operator's"), at });
    assert_eq!(end_b.take_note().unwrap().at, at);
    assert_eq!(end_a.take_note().unwrap().reason.message, "the manager's", "which is sooner");
    assert_eq!((ledger.status().state(), ledger.status().leases), (NodeState::Reclaimed, 2));
    ledger.close(&Error::new(Code::LeaseEnded, "stopping"));
    assert_eq!(end_b.take_note().unwrap().reason.message, "stopping");
    ledger.lend();
    assert_eq!(enrol(&ledger, "c").err().unwrap().message, "stopping");
}
