//! A manager as clients and agents see it: over its socket.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use sublet_manager::core::Level;
use sublet_manager::{Manager, ManagerOptions};
use sublet_proto::graph::MAX_COMPONENTS;
use sublet_proto::limits::MAX_ENDS;
use sublet_proto::run::{MAX_ENTRIES, MAX_OUTPUT_BYTES};
use sublet_proto::ticket::Verifying;
use sublet_proto::v1::*;
use sublet_proto::{Code, package};
use tokio_stream::StreamExt;

use crate::common::*;

#[tokio::test]
async fn a_package_goes_in_and_comes_out_as_it_was() {
    let mut fixture = fixture().await;
    let encoded = encoded(3 << 20);
    let reply = deploy(&mut fixture.client, &encoded).await.unwrap();
    let info = reply.package.unwrap();
    assert_eq!((reply.known, info.name.as_str(), info.size_bytes), (false, "x", encoded.len() as u64));
    assert!(deploy(&mut fixture.client, &encoded).await.unwrap().known);

    let request = FetchPackageRequest { digest: info.digest.clone() };
    let mut chunks = fixture.agent.client.fetch_package(request).await.unwrap().into_inner();
    let mut fetched = Vec::new();
    while let Some(chunk) = chunks.next().await {
        fetched.extend(chunk.unwrap().data);
    }
    assert_eq!(package::digest(&fetched), info.digest);

    let resolved = done(fixture.client.resolve(ResolveRequest { name: "x/f".into() }).await).unwrap();
    assert_eq!(resolved.digest, info.digest);
    for (name, code) in [
        ("x/g", Code::UnknownFunction),
        ("y", Code::UnknownPackage),
        (&package::digest(b"") as &str, Code::UnknownPackage),
        (&"y".repeat(1 << 20), Code::UnknownPackage),
    ] {
        let missing = done(fixture.client.resolve(ResolveRequest { name: name.into() }).await).unwrap_err();
        assert_eq!(missing.code, code, "{missing}");
    }
    let list = done(fixture.client.list_packages(ListPackagesRequest::default()).await).unwrap();
    let owners: Vec<_> = list.packages.iter().map(|package| package.owner.as_str()).collect();
    assert_eq!(owners, ["public", "uid:0"]);
}

#[tokio::test]
async fn bad_packages_are_refused_over_the_wire_with_their_code() {
    let mut fixture = fixture().await;
    let refused = deploy(&mut fixture.client, b"not a package").await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidPackage);
    let missing = FetchPackageRequest { digest: package::digest(b"") };
    let missing = done(fixture.agent.client.fetch_package(missing).await).err().unwrap();
    assert_eq!(missing.code, Code::UnknownPackage);
}

#[tokio::test]
async fn a_package_that_no_node_could_run_is_refused_once_there_are_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::start(options(folder.path())).await.unwrap();
    let mut client =
        manager_client::ManagerClient::with_interceptor(local(&manager).await, Bearer::default());
    deploy(&mut client, &encoded(0)).await.unwrap();
    let foreign = NodeDescription { architecture: "riscv64".into(), ..node() };
    let _node = AgentFixture::register(&manager, foreign, Vec::new()).await;
    let refused = deploy(&mut client, &encoded(1)).await.unwrap_err();
    assert_eq!(refused.code, Code::WrongArchitecture, "{refused}");
}

#[tokio::test]
async fn a_lease_is_granted_used_ended_and_billed() {
    let mut fixture = fixture().await;
    let grant = lease(&mut fixture.client, 2).await.unwrap();
    let granted = grant.lease.clone().unwrap();
    let uid = rustix::process::getuid().as_raw();
    assert_eq!((granted.tenant.as_str(), &grant.agent), (format!("uid:{uid}").as_str(), &node().agent));
    let verifying = Verifying::from_bytes(&fixture.agent.registered.verifying_key).unwrap();
    let ticket = verifying.open(&grant.ticket).unwrap();
    assert_eq!(ticket.lease.unwrap().id, granted.id);
    assert_eq!((ticket.registration, ticket.provisional), (fixture.agent.registered.registration, false));

    assert_eq!(lease(&mut fixture.client, 1).await.unwrap_err().code, Code::NoCapacity);
    assert_eq!(lease(&mut fixture.client, 3).await.unwrap_err().code, Code::InsufficientResources);

    let reply = fixture.agent.report(vec![used(&granted.id, LeaseState::Attached, 100)]).await.unwrap();
    assert!(reply.end.is_empty() && reply.acknowledged.is_empty(), "{reply:?}");
    let ended = || vec![used(&granted.id, LeaseState::Ended, 300)];
    let mut reports = 0;
    while fixture.agent.report(ended()).await.unwrap().acknowledged != [granted.id.clone()] {
        reports += 1;
        assert!(reports < 9_000, "the end is never acknowledged");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let asked = BillRequest { lease: granted.id.clone(), ..BillRequest::default() };
    let bill = done(fixture.client.bill(asked).await).unwrap();
    assert_eq!(bill.lines[0].usage.unwrap().calls, 300);
    assert_eq!(bill.total.unwrap().compute_nano, 6_000);
    let nodes = done(fixture.client.list_nodes(ListNodesRequest::default()).await).unwrap().nodes;
    assert_eq!(nodes[0].cores_leased, 0);
    let late = fixture.agent.report(vec![used(&granted.id, LeaseState::Attached, 400)]).await.unwrap();
    assert_eq!(
        (late.end[0].lease.as_str(), late.end[0].code),
        (granted.id.as_str(), Code::UnknownLease.number())
    );
}

#[tokio::test]
async fn a_lease_is_renewed_and_ended_by_its_tenant() {
    let mut fixture = fixture().await;
    let grant = lease(&mut fixture.client, 1).await.unwrap();
    fixture.agent.report(vec![used(&id(&grant), LeaseState::Attached, 1)]).await.unwrap();
    let renew = RenewRequest { lease: id(&grant), timeout_ms: 3_600_000 };
    let renewed = done(fixture.client.renew_lease(renew).await).unwrap();
    assert!(renewed.lease.unwrap().expires_unix_ms > grant.lease.as_ref().unwrap().expires_unix_ms);

    fixture.client.end_lease(EndLeaseRequest { leases: vec![id(&grant)], wait_ms: 0 }).await.unwrap();
    let reply = fixture.agent.report(vec![used(&id(&grant), LeaseState::Attached, 2)]).await.unwrap();
    assert_eq!((reply.end.len(), reply.end[0].lease.clone()), (1, id(&grant)));

    let unattached = lease(&mut fixture.client, 1).await.unwrap();
    fixture.client.end_lease(EndLeaseRequest { leases: vec![id(&unattached)], wait_ms: 0 }).await.unwrap();
    for _ in 0..2 {
        fixture.agent.report(vec![used(&id(&grant), LeaseState::Attached, 3)]).await.unwrap();
    }
    lease(&mut fixture.client, 1).await.unwrap();
    for lease in ["", "nothing", &"0".repeat(32)] {
        let refused =
            done(fixture.client.end_lease(EndLeaseRequest { leases: vec![lease.into()], wait_ms: 0 }).await)
                .unwrap_err();
        assert!(matches!(refused.code, Code::UnknownLease | Code::InvalidArgument), "{refused}");
    }
}

#[tokio::test]
async fn whoever_wants_to_know_hears_of_an_end_when_it_holds_nothing_any_more() {
    let mut fixture = fixture().await;
    let granted = lease(&mut fixture.client, 2).await.unwrap();
    let leases = vec![id(&granted), "0".repeat(32)];
    let mut ending = fixture.client.clone();
    let ended =
        tokio::spawn(
            async move { done(ending.end_lease(EndLeaseRequest { leases, wait_ms: 60_000 }).await) },
        );
    // The agent accepts the ticket until it has the order to end it, and acknowledges the order with its next report.
    fixture.agent.report(Vec::new()).await.unwrap();
    assert!(!ended.is_finished() && lease(&mut fixture.client, 1).await.is_err(), "it holds its cores yet");
    while !ended.is_finished() {
        fixture.agent.report(Vec::new()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(ended.await.unwrap().unwrap_err().code, Code::UnknownLease, "of the other one");
    lease(&mut fixture.client, 2).await.unwrap();
}

#[tokio::test]
async fn leases_are_ended_together_and_an_unknown_one_does_not_keep_the_others() {
    let mut fixture = fixture().await;
    let (first, second) =
        (lease(&mut fixture.client, 1).await.unwrap(), lease(&mut fixture.client, 1).await.unwrap());
    fixture
        .agent
        .report(vec![used(&id(&first), LeaseState::Attached, 1), used(&id(&second), LeaseState::Attached, 1)])
        .await
        .unwrap();
    let leases = vec![id(&first), "0".repeat(32), id(&second)];
    let refused = done(fixture.client.end_lease(EndLeaseRequest { leases, wait_ms: 0 }).await).unwrap_err();
    assert_eq!(refused.code, Code::UnknownLease, "{refused}");
    let reply = fixture
        .agent
        .report(vec![used(&id(&first), LeaseState::Attached, 2), used(&id(&second), LeaseState::Attached, 2)])
        .await
        .unwrap();
    assert_eq!(reply.end.len(), 2, "{:?}", reply.end);
    for leases in [Vec::new(), vec![id(&first); MAX_ENDS + 1]] {
        let refused =
            done(fixture.client.end_lease(EndLeaseRequest { leases, wait_ms: 0 }).await).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    }
}

#[tokio::test]
async fn a_request_waits_for_capacity_and_is_withdrawn_with_its_client() {
    let mut fixture = fixture().await;
    let first = lease(&mut fixture.client, 2).await.unwrap();
    let waiting = LeaseRequest { wait_ms: 60_000, ..asked(2) };
    let mut hasty = fixture.client.clone();
    let gone = tokio::time::timeout(Duration::from_millis(200), hasty.request_lease(waiting.clone()));
    assert!(gone.await.is_err(), "it was granted what is leased");
    let mut patient = fixture.client.clone();
    let granted = tokio::spawn(async move { done(patient.request_lease(waiting).await) });
    let asks = fixture.client.clone();
    until("the request waits", async || {
        let managers = done(asks.clone().list_managers(ListManagersRequest {}).await).unwrap().managers;
        (managers.first()?.waiting > 0).then_some(())
    })
    .await;
    fixture.client.end_lease(EndLeaseRequest { leases: vec![id(&first)], wait_ms: 0 }).await.unwrap();
    for _ in 0..2 {
        fixture.agent.report(Vec::new()).await.unwrap();
    }
    let granted = tokio::time::timeout(PATIENCE, granted).await.unwrap().unwrap().unwrap();
    assert_eq!(granted.grants[0].lease.as_ref().unwrap().cores, 2);
}

#[tokio::test]
async fn a_repeated_request_gets_the_same_leases() {
    let mut fixture = fixture().await;
    let asked = LeaseRequest { request: "a".repeat(32), ..asked(1) };
    let first = done(fixture.client.request_lease(asked.clone()).await).unwrap();
    let second = done(fixture.client.request_lease(asked).await).unwrap();
    assert_eq!(id(&first.grants[0]), id(&second.grants[0]));
}

#[tokio::test]
async fn a_killed_manager_loses_nothing_that_was_acknowledged_and_leases_go_on() {
    let mut fixture = fixture().await;
    let (ended, running) =
        (lease(&mut fixture.client, 1).await.unwrap(), lease(&mut fixture.client, 1).await.unwrap());
    let both =
        |ms| vec![used(&id(&ended), LeaseState::Ended, ms), used(&id(&running), LeaseState::Attached, ms)];
    let mut reports = 0;
    while fixture.agent.report(both(50)).await.unwrap().acknowledged.is_empty() {
        reports += 1;
        assert!(reports < 9_000, "the end is never acknowledged");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ManagerFixture { folder, manager, .. } = fixture;
    drop(manager);
    let manager =
        until("the folder is free", async || Manager::start(options(folder.path())).await.ok()).await;
    let mut client =
        manager_client::ManagerClient::with_interceptor(local(&manager).await, Bearer::default());
    let mut stranger = nodes_client::NodesClient::with_interceptor(local(&manager).await, Bearer::default());
    let refused =
        done(stranger.report(NodeReport { node: "n".into(), ..NodeReport::default() }).await).unwrap_err();
    assert!(refused.message.contains("register"), "{refused}");

    let forged = RunningLease { ticket: ended.ticket.clone(), ..bring(&running, 90) };
    let mut agent = AgentFixture::register(&manager, node(), vec![bring(&running, 90), forged]).await;
    let leases = done(client.list_leases(ListLeasesRequest::default()).await).unwrap().leases;
    assert_eq!((leases.len(), leases[0].id.clone()), (1, id(&running)));
    assert_eq!(leases[0].usage.unwrap().calls, 90);
    let all = done(client.list_leases(ListLeasesRequest { include_ended: true, ..Default::default() }).await)
        .unwrap()
        .leases;
    assert_eq!(all.len(), 2);

    let known = agent.report(vec![used(&id(&running), LeaseState::Attached, 95)]).await.unwrap();
    assert!(known.end.is_empty(), "{known:?}");
    let bill = until("both leases are billed", async || {
        let bill = done(client.clone().bill(BillRequest::default()).await).unwrap();
        (bill.total.as_ref()?.usage?.calls == 145).then_some(bill)
    });
    assert_eq!(bill.await.total.unwrap().compute_nano, 145 * 20);
    manager.stop().await.unwrap();
}

fn bring(grant: &LeaseGrant, executing_ms: u64) -> RunningLease {
    RunningLease {
        ticket: grant.ticket.clone(),
        report: Some(used(&id(grant), LeaseState::Attached, executing_ms)),
        remaining_ms: 60_000,
    }
}

#[tokio::test]
async fn a_second_manager_on_a_folder_names_the_first() {
    let fixture = fixture().await;
    let error = Manager::start(options(fixture.folder.path())).await.err().unwrap();
    assert_eq!(error.code, Code::AlreadyRunning);
    assert!(error.message.contains(&std::process::id().to_string()), "{error}");
    fixture.manager.stop().await.unwrap();
    assert!(!fixture.folder.path().join("state/manager.sock").exists());
    Manager::start(options(fixture.folder.path())).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn a_global_manager_does_not_start_on_a_store_that_it_would_have_alone() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        ManagerOptions { level: Level::Global, ..ManagerOptions::in_folder(folder.path().to_owned()) };
    let refused = Manager::start(options).await.err().unwrap();
    assert!(refused.code == Code::InvalidArgument && refused.message.contains("embedded store"), "{refused}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it has left something behind");
}

#[tokio::test]
async fn what_a_killed_manager_left_behind_is_recovered_from() {
    let ManagerFixture { folder, manager, .. } = fixture().await;
    drop(manager);
    assert!(folder.path().join("state/manager.sock").exists());
    let manager =
        until("the folder is free", async || Manager::start(options(folder.path())).await.ok()).await;
    local(&manager).await;
    let mode = |path: &str| folder.path().join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("state"), mode("state/manager.sock")), (0o700, 0o600));
}

#[tokio::test]
async fn what_is_reported_of_a_run_is_seen_while_it_goes_on_and_never_undoes_its_end() {
    let ManagerFixture { folder: _folder, manager: _manager, mut client, .. } = fixture().await;
    let document = br#"{"version":1,"name":"g","components":[{"name":"c","type":"compute","package":"x","function":"f","entry":true}]}"#;
    done(client.deploy_graph(DeployGraphRequest { document: document.to_vec() }).await).unwrap();
    let (run, other) = ("0a".repeat(16), "0b".repeat(16));
    for run in [&run, &other] {
        let begin = BeginRunRequest { run: run.clone(), graph: "g".into(), ..BeginRunRequest::default() };
        done(client.begin_run(begin).await).unwrap();
    }
    let component =
        |used_bytes| ComponentUse { component: "c".into(), used_bytes, ..ComponentUse::default() };
    let points = |count: u64| {
        (0..count).map(|at_us| UsagePoint { at_us, allocated_bytes: 9, used_bytes: 5 }).collect()
    };
    let report = |used_bytes, count| ReportRunRequest {
        run: run.clone(),
        components: vec![component(used_bytes)],
        points: points(count),
        ..ReportRunRequest::default()
    };
    done(client.report_run(report(1, 3)).await).unwrap();
    done(client.report_run(report(2, 4)).await).unwrap();
    let read = |run: &String| ReadRunRequest { run: run.clone(), after: 0 };
    let page = done(client.read_run(read(&run)).await).unwrap();
    let info = page.info.unwrap();
    assert_eq!((info.components[0].used_bytes, page.points.len()), (2, 4), "the latest report");
    assert!(info.reported_unix_ms >= info.began_unix_ms && info.ended_unix_ms == 0);
    let going_on = ListRunsRequest { going_on: true, ..ListRunsRequest::default() };
    let listed = done(client.list_runs(going_on.clone()).await).unwrap().runs;
    assert_eq!(
        listed.iter().map(|info| info.components.len()).collect::<Vec<_>>(),
        [0, 1],
        "the newest first"
    );

    let end = EndRunRequest {
        run: run.clone(),
        components: vec![component(7)],
        points: points(5),
        ..EndRunRequest::default()
    };
    done(client.end_run(end).await).unwrap();
    let late = done(client.report_run(report(3, 1)).await).unwrap_err();
    assert_eq!(late.code, Code::UnknownRun);
    let page = done(client.read_run(read(&run)).await).unwrap();
    assert_eq!((page.info.unwrap().components[0].used_bytes, page.points.len()), (7, 5));
    let listed = done(client.list_runs(going_on).await).unwrap().runs;
    assert_eq!(listed.into_iter().map(|info| info.run).collect::<Vec<_>>(), [other]);

    let nowhere = ReportRunRequest { run: "0c".repeat(16), ..ReportRunRequest::default() };
    assert_eq!(done(client.report_run(nowhere).await).unwrap_err().code, Code::UnknownRun);
    let other = ReportRunRequest { run: "0b".repeat(16), ..ReportRunRequest::default() };
    let nodes = ComponentUse { nodes: vec![String::new(); 5], ..ComponentUse::default() };
    let channels = ComponentUse { channels: vec![ChannelUse::default(); 257], ..ComponentUse::default() };
    for bad in [
        ReportRunRequest { points: points(257), ..other.clone() },
        ReportRunRequest { components: vec![component(1); 1025], ..other.clone() },
        ReportRunRequest { components: vec![nodes], ..other.clone() },
        ReportRunRequest { components: vec![channels; 2], ..other },
    ] {
        assert_eq!(done(client.report_run(bad).await).unwrap_err().code, Code::InvalidArgument);
    }
}

#[tokio::test]
async fn a_plan_is_answered_without_a_run() {
    let ManagerFixture { folder: _folder, manager: _manager, mut client, .. } = fixture().await;
    let document = br#"{"version":1,"name":"g","components":[{"name":"c","type":"compute","package":"x","function":"f","entry":true}]}"#;
    done(client.deploy_graph(DeployGraphRequest { document: document.to_vec() }).await).unwrap();
    let begin = |plan_only| BeginRunRequest {
        run: "0a".repeat(16),
        graph: "g".into(),
        plan_only,
        ..BeginRunRequest::default()
    };
    assert_eq!(done(client.begin_run(begin(true)).await).unwrap().plan, None, "nothing is known yet");
    done(client.begin_run(begin(false)).await).unwrap();
    let traffic = Some(Traffic { reads: 2, read_bytes: 70, ..Traffic::default() });
    let component = ComponentUse {
        component: "c".into(),
        attempts: 1,
        instances: 1,
        channels: vec![ChannelUse { memory: "m".into(), traffic }],
        ..ComponentUse::default()
    };
    let end = EndRunRequest { run: "0a".repeat(16), components: vec![component], ..EndRunRequest::default() };
    done(client.end_run(end).await).unwrap();

    let planned = done(client.begin_run(begin(true)).await).unwrap();
    assert_eq!((planned.run.as_str(), planned.graph.as_str()), ("", "g"));
    let plan = planned.plan.unwrap();
    let [set] = plan.sets.as_slice() else { panic!("{plan:?}") };
    assert_eq!((set.components.join(" "), set.moved_bytes, set.cores), ("c m".to_owned(), 70, 1));
    assert!(!set.is_apart, "no other pool takes them: {set:?}");
    let runs = done(client.list_runs(ListRunsRequest::default()).await).unwrap().runs;
    assert_eq!(runs.len(), 1, "a plan is no run");
}

#[tokio::test]
async fn what_no_journal_has_is_refused_and_a_run_that_has_ended_takes_nothing_more() {
    let ManagerFixture { folder: _folder, manager: _manager, mut client, .. } = fixture().await;
    let document = br#"{"version":1,"name":"g","components":[{"name":"c","type":"compute","package":"x","function":"f","entry":true}]}"#;
    done(client.deploy_graph(DeployGraphRequest { document: document.to_vec() }).await).unwrap();
    let run = "0a".repeat(16);
    let begin = |run: &str, len| BeginRunRequest {
        run: run.into(),
        graph: "g".into(),
        input: vec![0; len],
        ..BeginRunRequest::default()
    };
    for bad in ["", "0a", "../../../../../../../../graph/g/x", &"0A".repeat(16), &"0a".repeat(17)] {
        let refused = done(client.begin_run(begin(bad, 0)).await).unwrap_err();
        assert_eq!(refused.code, Code::UnknownRun, "{refused}");
    }
    let large = done(client.begin_run(begin(&run, MAX_OUTPUT_BYTES + 1)).await).unwrap_err();
    assert_eq!(large.code, Code::OutputTooLarge);
    done(client.begin_run(begin(&run, MAX_OUTPUT_BYTES)).await).unwrap();

    let fine = JournalEntry { number: 1, from: "c".into(), instances: 1, ..JournalEntry::default() };
    let request =
        |entry: &JournalEntry| JournalRequest { run: run.clone(), entries: vec![entry.clone()], epoch: 0 };
    for (bad, code) in [
        (JournalEntry { number: 0, ..fine.clone() }, Code::InvalidArgument),
        (JournalEntry { number: MAX_ENTRIES, ..fine.clone() }, Code::InvalidArgument),
        (JournalEntry { to: vec!["c".into(); MAX_COMPONENTS + 1], ..fine.clone() }, Code::InvalidArgument),
        (JournalEntry { output: vec![0; MAX_OUTPUT_BYTES + 1], ..fine.clone() }, Code::OutputTooLarge),
    ] {
        let entries = vec![fine.clone(), bad];
        let refused = client.journal(JournalRequest { run: run.clone(), entries, epoch: 0 }).await;
        assert_eq!(done(refused).unwrap_err().code, code);
    }
    let read = ReadRunRequest { run: run.clone(), after: 0 };
    assert_eq!(done(client.read_run(read.clone()).await).unwrap().entries, [], "all of a batch or nothing");
    done(client.journal(request(&fine)).await).unwrap();
    assert_eq!(done(client.read_run(read).await).unwrap().entries, std::slice::from_ref(&fine));

    done(client.end_run(EndRunRequest { run: run.clone(), ..EndRunRequest::default() }).await).unwrap();
    assert_eq!(done(client.journal(request(&fine)).await).unwrap_err().code, Code::UnknownRun);
}

#[tokio::test]
async fn node_whose_connection_has_ended_is_taken_over_before_its_silence_is_long() {
    // On a machine that stands still, the silence of both may be long.
    for _ in 0..5 {
        if is_taken_over_before_its_silence_is_long().await {
            return;
        }
    }
    panic!("the silent node is taken over, too");
}

async fn is_taken_over_before_its_silence_is_long() -> bool {
    let ManagerFixture { folder: _folder, manager, agent: mut dying, .. } = fixture().await;
    dying.report(Vec::new()).await.unwrap();
    // This agent is as silent, but its connection is open.
    let other = NodeDescription { name: "other".into(), ..node() };
    let mut silent = AgentFixture::register(&manager, other.clone(), Vec::new()).await;
    silent.report(Vec::new()).await.unwrap();
    drop(dying);
    let mut next = nodes_client::NodesClient::with_interceptor(local(&manager).await, Bearer::default());
    let mut register = async |node: NodeDescription| {
        let instance = "0".repeat(31) + "2";
        let registration = Registration { node: Some(node), instance, ..Registration::default() };
        done(next.register(registration).await).map(drop).map_err(|error| error.code)
    };
    let deadline = Instant::now() + PATIENCE;
    while register(node()).await == Err(Code::AlreadyRunning) {
        assert!(Instant::now() < deadline, "the node is not taken over");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let is_early = register(other).await == Err(Code::AlreadyRunning);
    register(node()).await.unwrap();
    is_early
}
