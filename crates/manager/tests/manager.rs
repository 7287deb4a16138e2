//! A manager as clients and agents see it: over its socket.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use sublet_manager::{Manager, Options};
use sublet_proto::ticket::Verifying;
use sublet_proto::v1::manager_client::ManagerClient;
use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::*;
use sublet_proto::{Code, Error, package};
use tempfile::TempDir;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

struct House {
    folder: TempDir,
    manager: Manager,
    client: ManagerClient<Channel>,
    agent: NodesClient<Channel>,
}

async fn start(folder: &Path) -> Result<Manager, Error> {
    Manager::start(Options::in_folder(folder.join("state"))).await
}

async fn house() -> House {
    let folder = tempfile::tempdir().unwrap();
    let manager = start(folder.path()).await.unwrap();
    let (client, agent) = connect(&manager).await;
    House { folder, manager, client, agent }
}

async fn connect(manager: &Manager) -> (ManagerClient<Channel>, NodesClient<Channel>) {
    let endpoint = Endpoint::from_shared(format!("unix:{}", manager.socket().display())).unwrap();
    let channel = endpoint.connect().await.unwrap();
    (ManagerClient::new(channel.clone()), NodesClient::new(channel))
}

fn node() -> NodeDescription {
    NodeDescription {
        name: "n".into(),
        agent: "unix:/run/agent.sock".into(),
        architecture: std::env::consts::ARCH.into(),
        cores: 2,
        memory_bytes: 1 << 30,
    }
}

/// A package of a real library with this much ballast.
fn encoded(ballast_bytes: usize) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let (source, object) = (folder.path().join("x.c"), folder.path().join("libx.so"));
    std::fs::write(&source, "unsigned f(void* in, unsigned size, void* out) { return size; }").unwrap();
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status().unwrap();
    assert!(made.success(), "cc failed");
    let library =
        PackageFile { path: "libx.so".into(), data: std::fs::read(object).unwrap(), executable: true };
    let ballast = PackageFile { path: "ballast".into(), data: vec![7; ballast_bytes], executable: false };
    let manifest = "name = 'x'\nlibrary = 'libx.so'";
    package::encode(&package::from_files(manifest, vec![library, ballast]).unwrap())
}

async fn deploy(client: &mut ManagerClient<Channel>, encoded: &[u8]) -> Result<DeployReply, Error> {
    let chunks: Vec<_> = encoded.chunks(100_000).map(|data| PackageChunk { data: data.into() }).collect();
    done(client.deploy(tokio_stream::iter(chunks)).await)
}

fn done<T>(result: Result<tonic::Response<T>, Status>) -> Result<T, Error> {
    result.map(tonic::Response::into_inner).map_err(|status| Error::from_status(&status))
}

fn asked(cores: u32) -> LeaseRequest {
    LeaseRequest { package: "x".into(), cores, ..LeaseRequest::default() }
}

fn report(lease: &str, state: LeaseState, calls: u64) -> NodeReport {
    let usage = Some(Usage { calls, executing_ns: calls * 1_000_000_000, ..Usage::default() });
    let lease =
        LeaseReport { lease: lease.into(), state: state.into(), usage, end_reason: "released".into() };
    NodeReport { node: "n".into(), leases: vec![lease] }
}

#[tokio::test]
async fn a_package_goes_in_and_comes_out_as_it_was() {
    let mut house = house().await;
    let encoded = encoded(3 << 20);
    house.agent.register(node()).await.unwrap();
    let reply = deploy(&mut house.client, &encoded).await.unwrap();
    let info = reply.package.unwrap();
    assert_eq!((reply.known, info.name.as_str(), info.size_bytes), (false, "x", encoded.len() as u64));
    assert!(deploy(&mut house.client, &encoded).await.unwrap().known);

    let request = FetchPackageRequest { digest: info.digest.clone() };
    let mut chunks = house.agent.fetch_package(request).await.unwrap().into_inner();
    let mut fetched = Vec::new();
    while let Some(chunk) = chunks.next().await {
        fetched.extend(chunk.unwrap().data);
    }
    assert_eq!(package::digest(&fetched), info.digest);

    let resolved = done(house.client.resolve(ResolveRequest { name: "x/f".into() }).await).unwrap();
    assert_eq!(resolved.digest, info.digest);
    let missing = done(house.client.resolve(ResolveRequest { name: "x/g".into() }).await).unwrap_err();
    assert_eq!(missing.code, Code::UnknownFunction);
    let list = done(house.client.list_packages(ListPackagesRequest {}).await).unwrap();
    assert_eq!(list.packages.len(), 1);
}

#[tokio::test]
async fn bad_packages_are_refused_over_the_wire_with_their_code() {
    let mut house = house().await;
    let refused = deploy(&mut house.client, b"not a package").await.unwrap_err();
    assert_eq!(refused.code, Code::InvalidPackage);
    let refused = deploy(&mut house.client, &encoded(0)).await.unwrap_err();
    assert_eq!(refused.code, Code::WrongArchitecture, "{refused}");
    let missing = FetchPackageRequest { digest: package::digest(b"") };
    assert_eq!(done(house.agent.fetch_package(missing).await).err().unwrap().code, Code::UnknownPackage);
}

#[tokio::test]
async fn a_lease_is_granted_used_ended_and_billed() {
    let mut house = house().await;
    let registered = done(house.agent.register(node()).await).unwrap();
    deploy(&mut house.client, &encoded(0)).await.unwrap();
    let grant = done(house.client.request_lease(asked(2)).await).unwrap();
    let lease = grant.lease.unwrap();
    let uid = rustix::process::getuid().as_raw();
    assert_eq!((lease.tenant, grant.agent), (format!("uid:{uid}"), node().agent));
    let verifying = Verifying::from_bytes(&registered.verifying_key).unwrap();
    assert_eq!(verifying.verify(&grant.ticket, lease.granted_unix_ms).unwrap().lease.unwrap().id, lease.id);

    let refused = done(house.client.request_lease(asked(1)).await).unwrap_err();
    assert_eq!(refused, Error::new(Code::NoCapacity, "1 cores asked, 0 of 2 free"));
    let refused = done(house.client.request_lease(asked(3)).await).unwrap_err();
    assert_eq!(refused.code, Code::InsufficientResources);

    for (state, calls) in [(LeaseState::Attached, 1), (LeaseState::Ended, 3), (LeaseState::Ended, 3)] {
        let reply = done(house.agent.report(report(&lease.id, state, calls)).await).unwrap();
        assert_eq!(reply, NodeReportReply::default());
    }
    let bill = done(house.client.bill(BillRequest { lease: lease.id.clone() }).await).unwrap();
    assert_eq!(bill.lines[0].usage.unwrap().calls, 3);
    assert_eq!(bill.total.unwrap().compute_nano, 60_000);
    let nodes = done(house.client.list_nodes(ListNodesRequest {}).await).unwrap().nodes;
    assert_eq!(nodes[0].cores_leased, 0);
    let late = done(house.agent.report(report(&lease.id, LeaseState::Attached, 4)).await).unwrap();
    assert_eq!(late.end, [lease.id]);
}

#[tokio::test]
async fn what_was_granted_outlives_the_manager() {
    let mut house = house().await;
    house.agent.register(node()).await.unwrap();
    deploy(&mut house.client, &encoded(0)).await.unwrap();
    let lease = done(house.client.request_lease(asked(1)).await).unwrap().lease.unwrap();
    house.agent.report(report(&lease.id, LeaseState::Attached, 5)).await.unwrap();
    let House { folder, manager, .. } = house;
    manager.stop().await.unwrap();
    assert!(!folder.path().join("state/manager.sock").exists());

    let manager = start(folder.path()).await.unwrap();
    let (mut client, mut agent) = connect(&manager).await;
    let refused = done(agent.report(report(&lease.id, LeaseState::Attached, 6)).await).unwrap_err();
    assert!(refused.message.contains("register"), "{refused}");
    agent.register(node()).await.unwrap();
    let known = done(agent.report(report(&lease.id, LeaseState::Attached, 6)).await).unwrap();
    assert_eq!(known, NodeReportReply::default());
    let leases = done(client.list_leases(ListLeasesRequest { include_ended: false }).await).unwrap().leases;
    assert_eq!((leases.len(), leases[0].usage.unwrap().calls), (1, 6));
    manager.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_manager_on_the_folder_is_told_who_has_it() {
    let house = house().await;
    let error = start(house.folder.path()).await.err().unwrap();
    assert_eq!(error.code, Code::AlreadyRunning);
    assert!(error.message.contains(&std::process::id().to_string()), "{error}");
    house.manager.stop().await.unwrap();
    start(house.folder.path()).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn what_a_killed_manager_left_behind_is_recovered_from() {
    let House { folder, manager, .. } = house().await;
    drop(manager);
    assert!(folder.path().join("state/manager.sock").exists());
    let manager = start(folder.path()).await.unwrap();
    connect(&manager).await;
    let mode = |path: &str| folder.path().join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("state"), mode("state/manager.sock")), (0o700, 0o600));
}
