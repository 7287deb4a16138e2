//! Tests a client of several nodes: its leases, the targets of its calls, and their results.

#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Wake};
use std::time::{Duration, Instant};

use sublet_proto::Code;
use sublet_runtime::{Allocation, CallOptions, Invocation, Invoker};
use tempfile::TempDir;

use crate::fixture::manager::TestManager;
use crate::fixture::node::{Reaction, TestNode};
use crate::fixture::{PATIENCE, wait_until};

/// Nodes that are granted to every request, with the given numbers of workers, and a client that has leased them.
struct NodesFixture {
    nodes: Vec<TestNode>,
    manager: TestManager,
    client: Invoker,
    _folder: TempDir,
}

impl NodesFixture {
    fn new(
        cores: &[u32],
        react: impl Fn(u8, u32) -> Reaction + Clone + Send + Sync + 'static,
    ) -> NodesFixture {
        let folder = tempfile::tempdir().unwrap();
        let numbers = 0..cores.len() as u8;
        let start = |number| {
            let react = react.clone();
            TestNode::start(folder.path(), number, move |worker| react(number, worker))
        };
        let nodes: Vec<_> = numbers.map(start).collect();
        let granted: Vec<_> = nodes.iter().cloned().zip(cores.iter().copied()).collect();
        let manager = TestManager::start(folder.path(), "manager", move |_| Ok(granted.clone()));
        let client = Invoker::connect_to(&manager.address).unwrap();
        NodesFixture { nodes, manager, client, _folder: folder }
    }

    fn leased(
        cores: &[u32],
        react: impl Fn(u8, u32) -> Reaction + Clone + Send + Sync + 'static,
    ) -> NodesFixture {
        let mut fixture = NodesFixture::new(cores, react);
        fixture.client.allocate(&allocation(cores.iter().sum())).unwrap();
        fixture
    }

    /// The node that executes a call.
    fn call(&self, options: CallOptions) -> Result<u8, Code> {
        let mut output = [u8::MAX];
        let who = self.client.function("who").unwrap();
        let call = self.client.submit_with(who, &[0u8; 0], &mut output, options);
        call.and_then(Invocation::wait).map_err(|error| error.code)?;
        Ok(output[0])
    }
}

fn allocation(cores: u32) -> Allocation {
    Allocation::new("test").cores(cores)
}

fn on(worker: u32) -> CallOptions {
    CallOptions { worker: Some(worker), ..CallOptions::default() }
}

fn anywhere() -> CallOptions {
    CallOptions::default()
}

/// Every first call of a worker is turned away.
fn first_turned_away() -> impl Fn(u8, u32) -> Reaction + Clone + Send + Sync + 'static {
    let seen = Arc::new(AtomicU32::new(0));
    move |_, _| if seen.fetch_add(1, Ordering::SeqCst) == 0 { Reaction::TurnAway } else { Reaction::Answer }
}

#[test]
fn workers_are_numbered_over_all_nodes() {
    let fixture = NodesFixture::leased(&[2, 1], |_, _| Reaction::Answer);
    assert_eq!((fixture.client.workers(), fixture.client.leases().len()), (3, 2));
    let nodes: Vec<_> = (0..3).map(|worker| fixture.call(on(worker))).collect();
    assert_eq!(nodes, [Ok(0), Ok(0), Ok(1)]);
    assert_eq!(fixture.call(on(3)), Err(Code::InvalidArgument));
    assert_eq!(fixture.client.lease().unwrap().node, "node-0");
    assert_eq!(
        fixture.nodes.iter().map(TestNode::starts).collect::<Vec<_>>(),
        [1, 1],
        "once each, with the ticket"
    );
}

#[test]
fn calls_that_name_no_worker_are_spread_over_all_nodes() {
    let fixture = NodesFixture::leased(&[1, 1], |_, _| Reaction::Answer);
    for _ in 0..20 {
        fixture.call(anywhere()).unwrap();
    }
    let calls: Vec<_> = fixture.nodes.iter().map(TestNode::calls).collect();
    assert!(calls.iter().all(|&calls| calls >= 5), "{calls:?}");
}

#[test]
fn invoker_grows_and_gives_all_workers_back() {
    let mut fixture = NodesFixture::leased(&[1, 1], |_, _| Reaction::Answer);
    fixture.client.grow(2).unwrap();
    assert_eq!((fixture.client.workers(), fixture.client.leases().len()), (4, 4));
    assert_eq!([fixture.call(on(2)), fixture.call(on(3))], [Ok(0), Ok(1)]);
    assert_eq!(fixture.client.deallocate().unwrap().allocated_ns, 4, "of four leases");
    assert_eq!(fixture.nodes.iter().map(TestNode::held).sum::<usize>(), 0);
    assert_eq!(fixture.client.grow(1).unwrap_err().code, Code::NotAllocated);
}

#[test]
fn requests_again_what_cannot_be_attached_and_returns_the_rest() {
    let mut fixture = NodesFixture::new(&[1, 1], |_, _| Reaction::Answer);
    fixture.nodes[1].refuse_next(Code::TicketSuperseded);
    fixture.nodes[1].refuse_next(Code::AgentUnreachable);
    fixture.client.allocate(&allocation(2)).unwrap();
    let mut names: Vec<_> = fixture.manager.requests().into_iter().map(|request| request.request).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3, "each request has a name of its own");
    assert!(names.iter().all(|name| name.len() == 32));
    assert_eq!(fixture.nodes.iter().map(TestNode::held).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(fixture.manager.ended().len(), 2, "what was refused is given back to the manager");
}

#[test]
fn all_or_nothing_is_held() {
    let mut fixture = NodesFixture::new(&[1, 1], |_, _| Reaction::Answer);
    fixture.nodes[1].refuse_next(Code::PermissionDenied);
    assert_eq!(fixture.client.allocate(&allocation(2)).unwrap_err().code, Code::PermissionDenied);
    assert_eq!((fixture.client.workers(), fixture.manager.requests().len()), (0, 1));
    for _ in 0..3 {
        fixture.nodes[1].refuse_next(Code::TicketSuperseded);
    }
    assert_eq!(fixture.client.allocate(&allocation(2)).unwrap_err().code, Code::TicketSuperseded);
    assert_eq!(fixture.manager.requests().len(), 4, "three times, and no more");
    wait_until("nothing is held", || fixture.nodes.iter().all(|node| node.held() == 0));
}

#[test]
fn call_turned_away_goes_to_another_node_at_once() {
    let fixture =
        NodesFixture::leased(
            &[1, 1],
            |node, _| if node == 0 { Reaction::TurnAway } else { Reaction::Answer },
        );
    for _ in 0..20 {
        assert_eq!(fixture.call(anywhere()), Ok(1));
    }
    assert!(fixture.nodes[0].calls() > 0, "it was tried");
}

#[test]
fn resends_calls_turned_away_in_every_way_of_waiting() {
    let react = first_turned_away;
    let (mut outputs, none) = ([[9u8]; 4], [0u8; 0]);
    let [ready, timed, awaited, dropped] = &mut outputs;

    let fixture = NodesFixture::leased(&[1], react());
    let mut call = fixture.client.submit("who", &none, ready).unwrap();
    wait_until("it is ready", || call.is_ready());
    call.wait().unwrap();

    let fixture = NodesFixture::leased(&[1], react());
    let mut call = fixture.client.submit("who", &none, timed).unwrap();
    assert!(call.wait_timeout(PATIENCE));
    call.wait().unwrap();

    let fixture = NodesFixture::leased(&[1], react());
    block_on(fixture.client.submit("who", &none, awaited).unwrap()).unwrap();

    let fixture = NodesFixture::leased(&[1], react());
    drop(fixture.client.submit("who", &none, dropped).unwrap());
    assert_eq!(outputs, [[0]; 4]);
}

#[test]
fn call_turned_away_everywhere_fails_after_bounded_rounds() {
    let fixture = NodesFixture::leased(&[2, 1], |_, _| Reaction::TurnAway);
    assert_eq!(fixture.call(anywhere()), Err(Code::CoreBusy));
    let tried: Vec<_> = fixture.nodes.iter().map(TestNode::calls).collect();
    assert!(tried.iter().all(|&calls| (100..1000).contains(&calls)), "{tried:?}");
    let mut output = [0u8];
    let call = fixture.client.submit("who", &[0u8; 0], &mut output).unwrap();
    assert_eq!(block_on(call).unwrap_err().code, Code::CoreBusy);
}

#[test]
fn deadline_of_a_call_turned_away_stops_no_worker() {
    let fixture = NodesFixture::leased(&[1], |_, _| Reaction::TurnAway);
    let deadline = Some(Instant::now() + Duration::from_millis(2));
    let ended = fixture.call(CallOptions { deadline, ..anywhere() });
    // Between two rounds, or while it is turned away once more.
    assert!(matches!(ended, Err(Code::CoreBusy | Code::DeadlineExceeded)), "{ended:?}");
    assert_eq!(fixture.nodes[0].starts(), 1);
}

#[test]
fn a_call_for_a_named_worker_stays_with_it() {
    let fixture = NodesFixture::leased(&[1, 1], first_turned_away());
    assert_eq!(fixture.call(on(0)), Ok(0));
    assert_eq!(fixture.nodes.iter().map(TestNode::calls).collect::<Vec<_>>(), [2, 0]);
}

#[test]
fn lost_call_fails_with_its_reason_unless_repeatable() {
    let dies = |node, _| if node == 0 { Reaction::Die } else { Reaction::Answer };
    let fixture = NodesFixture::leased(&[1, 1], dies);
    assert_eq!(fixture.call(on(0)), Err(Code::WorkerDied));
    for _ in 0..4 {
        assert_eq!(fixture.call(anywhere().repeatable(1)), Ok(1));
    }
    let calls = fixture.nodes[0].calls();
    assert_eq!(fixture.call(on(0).repeatable(2)), Err(Code::WorkerDied));
    assert_eq!(fixture.nodes[0].calls() - calls, 3, "once and two more times");
}

#[test]
fn new_process_repeats_lost_calls_in_every_way_of_waiting() {
    let once = || {
        let seen = Arc::new(AtomicBool::new(false));
        move |_, _| if seen.swap(true, Ordering::SeqCst) { Reaction::Answer } else { Reaction::Die }
    };
    let (none, options) = ([0u8; 0], anywhere().repeatable(1));
    let mut outputs = [[9u8]; 3];
    let [waited, ready, awaited] = &mut outputs;

    let fixture = NodesFixture::leased(&[1], once());
    let who = fixture.client.function("who").unwrap();
    fixture.client.submit_with(who, &none, waited, options).unwrap().wait().unwrap();
    assert_eq!(fixture.nodes[0].starts(), 2);

    let fixture = NodesFixture::leased(&[1], once());
    let mut call = fixture.client.submit_with(who, &none, ready, options).unwrap();
    wait_until("it is ready", || call.is_ready());
    call.wait().unwrap();

    let fixture = NodesFixture::leased(&[1], once());
    block_on(fixture.client.submit_with(who, &none, awaited, options).unwrap()).unwrap();
    assert_eq!(outputs, [[0]; 3]);
}

#[test]
fn calls_use_the_remaining_leases_and_fail_after_the_last() {
    let fixture = NodesFixture::leased(&[1, 1], |_, _| Reaction::Answer);
    fixture.nodes[0].end(Code::NodeReclaimed);
    wait_until("the client knows", || fixture.call(on(0)) == Err(Code::NodeReclaimed));
    for _ in 0..10 {
        assert_eq!(fixture.call(anywhere()), Ok(1));
    }
    fixture.nodes[1].end(Code::LeaseExpired);
    wait_until("the client knows", || fixture.call(on(1)) == Err(Code::LeaseExpired));
    assert_eq!(fixture.call(anywhere().repeatable(5)), Err(Code::NodeReclaimed));
}

#[test]
fn a_repeatable_call_leaves_a_lease_that_ends_under_it() {
    let fixture =
        NodesFixture::leased(&[1, 1], |node, _| if node == 0 { Reaction::Ignore } else { Reaction::Answer });
    let who = fixture.client.function("who").unwrap();
    let mut outputs = [[9u8]; 8];
    let calls: Vec<_> = outputs
        .iter_mut()
        .map(|output| fixture.client.submit_with(who, &[0u8; 0], output, anywhere().repeatable(1)).unwrap())
        .collect();
    wait_until("some are at the first node", || fixture.nodes[0].calls() > 0);
    fixture.nodes[0].end(Code::NodeReclaimed);
    for call in calls {
        call.wait().unwrap();
    }
    assert_eq!(outputs, [[1]; 8]);
}

#[test]
fn reports_an_announced_end_and_new_calls_avoid_it() {
    let fixture = NodesFixture::leased(&[1, 1], |_, _| Reaction::Answer);
    assert!(fixture.client.notices().is_empty());
    fixture.nodes[0].announce(Code::NodeReclaimed, 60_000);
    wait_until("the client knows", || !fixture.client.notices().is_empty());
    let notice = &fixture.client.notices()[0];
    assert_eq!(
        (notice.lease.as_str(), notice.error.code),
        (fixture.client.leases()[0].id.as_str(), Code::NodeReclaimed)
    );
    assert!(notice.until > Instant::now());
    for _ in 0..10 {
        assert_eq!(fixture.call(anywhere()), Ok(1));
    }
    assert_eq!(fixture.call(on(0)), Ok(0), "calls continue until then");
    fixture.nodes[1].announce(Code::NodeReclaimed, 60_000);
    wait_until("the client knows", || fixture.client.notices().len() == 2);
    fixture.call(anywhere()).unwrap();
}

#[test]
fn a_lease_is_renewed_at_its_manager_and_its_agent() {
    let fixture = NodesFixture::leased(&[1, 1], |_, _| Reaction::Answer);
    fixture.client.renew(Duration::from_secs(7)).unwrap();
    let ends: Vec<_> = fixture.client.leases().iter().map(|lease| lease.expires_unix_ms).collect();
    assert_eq!(ends, [8000, 8000]);
    fixture.call(anywhere()).unwrap();
}

/// Runs a future by a waker that unparks this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let (mut future, deadline) = (pin!(future), Instant::now() + PATIENCE);
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        assert!(Instant::now() < deadline, "the future is never ready");
        std::thread::park_timeout(PATIENCE);
    }
}
