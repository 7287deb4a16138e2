//! Tests a client of several managers: the managers that it asks, and its error if none answers.

#![allow(clippy::unwrap_used)]

use std::net::TcpListener;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sublet_proto::v1::LeaseRequest;
use sublet_proto::{Code, Error};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Allocation, Invoker};
use tempfile::{TempDir, tempdir};
use tonic::transport::Identity;

use crate::fixture::manager::{Grants, TestManager};
use crate::fixture::node::{Reaction, TestNode};

fn refuses(code: Code) -> impl FnMut(&LeaseRequest) -> Grants + Send + 'static {
    move |_| Err(Error::new(code, "not here"))
}

fn grants_nothing() -> impl FnMut(&LeaseRequest) -> Grants + Send + 'static {
    |_| Ok(Vec::new())
}

fn both(first: &TestManager, second: &TestManager) -> String {
    format!("{},{}", first.address, second.address)
}

fn asked() -> LeaseRequest {
    LeaseRequest { package: "test".into(), cores: 1, ..LeaseRequest::default() }
}

#[test]
fn asks_the_next_manager_if_one_does_not_answer() {
    let folder = tempdir().unwrap();
    let alive = TestManager::start(folder.path(), "alive", grants_nothing());
    for _ in 0..4 {
        let client =
            ManagerClient::connect(&format!("unix:{}/nobody,{}", folder.path().display(), alive.address))
                .unwrap();
        assert_eq!(client.address(), alive.address);
        client.request_lease(asked()).unwrap();
    }
}

#[test]
fn the_death_of_a_manager_moves_its_clients_to_another() {
    let folder = tempdir().unwrap();
    let managers = ["a", "b"].map(|name| TestManager::start(folder.path(), name, grants_nothing()));
    let client = ManagerClient::connect(&both(&managers[0], &managers[1])).unwrap();
    let [first, second] = managers;
    let (dying, staying) = if client.address() == first.address { (first, second) } else { (second, first) };
    drop(dying);
    client.request_lease(asked()).unwrap();
    assert_eq!(client.address(), staying.address);
    drop(staying);
    assert_eq!(client.request_lease(asked()).unwrap_err().code, Code::ManagerUnreachable);
}

#[test]
fn clients_begin_with_a_manager_at_random() {
    let folder = tempdir().unwrap();
    let managers = ["a", "b"].map(|name| TestManager::start(folder.path(), name, grants_nothing()));
    let addresses = both(&managers[0], &managers[1]);
    let first = |_| ManagerClient::connect(&addresses).unwrap().address();
    let begun: std::collections::BTreeSet<_> = (0..64).map(first).collect();
    assert_eq!(begun.len(), 2, "64 clients began with {begun:?}");
}

#[test]
fn asks_other_managers_once_for_missing_capacity() {
    for code in [Code::NoCapacity, Code::TryLater, Code::InsufficientResources] {
        let folder = tempdir().unwrap();
        let full = ["a", "b"].map(|name| TestManager::start(folder.path(), name, refuses(code)));
        let client = ManagerClient::connect(&both(&full[0], &full[1])).unwrap();
        assert_eq!(client.request_lease(asked()).unwrap_err().code, code);
        assert_eq!(full.each_ref().map(|manager| manager.requests().len()), [1, 1]);
        let node = TestNode::start(folder.path(), 0, |_| Reaction::Answer);
        let free = TestManager::start(folder.path(), "free", move |_| Ok(vec![(node.clone(), 1)]));
        let mut invoker = Invoker::connect_to(&both(&full[0], &free)).unwrap();
        invoker.allocate(&Allocation::new("test")).unwrap();
    }
}

#[test]
fn a_refusal_that_is_final_is_not_asked_about_elsewhere() {
    let folder = tempdir().unwrap();
    let managers =
        ["a", "b"].map(|name| TestManager::start(folder.path(), name, refuses(Code::QuotaExceeded)));
    let client = ManagerClient::connect(&both(&managers[0], &managers[1])).unwrap();
    assert_eq!(client.request_lease(asked()).unwrap_err().code, Code::QuotaExceeded);
    assert_eq!(managers.iter().map(|manager| manager.requests().len()).sum::<usize>(), 1);
}

#[test]
fn waiting_request_tries_all_managers_first_under_one_name() {
    let folder = tempdir().unwrap();
    let managers = ["a", "b"].map(|name| TestManager::start(folder.path(), name, refuses(Code::NoCapacity)));
    let client = ManagerClient::connect(&both(&managers[0], &managers[1])).unwrap();
    client.request_lease(LeaseRequest { wait_ms: 5, ..asked() }).unwrap_err();
    for manager in &managers {
        let requests = manager.requests();
        let waits: Vec<_> = requests.iter().map(|request| request.wait_ms).collect();
        assert!(matches!(waits[..], [0, 0..=5]), "{waits:?}");
        assert!(requests.iter().all(|request| request.request == managers[0].requests()[0].request));
    }
}

#[test]
fn asks_managers_learnt_from_others() {
    let folder = tempdir().unwrap();
    let known = TestManager::start(folder.path(), "known", grants_nothing());
    let other = TestManager::start(folder.path(), "other", grants_nothing());
    known.knows(&[&known.address, &other.address]);
    let client = ManagerClient::connect(&known.address).unwrap();
    drop(known);
    client.request_lease(asked()).unwrap();
    assert_eq!(client.address(), other.address);
}

#[test]
fn a_client_finds_its_manager_again_after_a_restart() {
    let folder = tempdir().unwrap();
    let manager = TestManager::start(folder.path(), "manager", grants_nothing());
    let client = ManagerClient::connect(&manager.address).unwrap();
    drop(manager);
    std::fs::remove_file(folder.path().join("manager.sock")).unwrap();
    let manager = TestManager::start(folder.path(), "manager", grants_nothing());
    client.request_lease(asked()).unwrap();
    assert_eq!(manager.requests().len(), 1);
}

/// A global manager that hands requests to the first of these that has not refused.
fn above(folder: &TempDir, racks: &[&TestManager]) -> TestManager {
    let global = TestManager::start(folder.path(), "global", refuses(Code::NoCapacity));
    let mut left: Vec<String> = racks.iter().rev().map(|rack| rack.address.clone()).collect();
    global.is_above(racks, move |request| {
        left.retain(|rack| *rack != request.refused);
        left.last().cloned()
    });
    global
}

fn grants_on(folder: &TempDir, number: u8) -> impl FnMut(&LeaseRequest) -> Grants + Send + 'static {
    let node = TestNode::start(folder.path(), number, |_| Reaction::Answer);
    move |_| Ok(vec![(node.clone(), 1)])
}

#[test]
fn follows_the_global_manager_and_goes_directly_to_near_racks() {
    let folder = tempdir().unwrap();
    let first = TestManager::start(folder.path(), "first", grants_on(&folder, 0));
    let second = TestManager::start(folder.path(), "second", grants_on(&folder, 1));
    let global = above(&folder, &[&first, &second]);
    // The result does not depend on the manager whose address the client was given.
    for address in [&global.address, &second.address] {
        let client = ManagerClient::connect(address).unwrap();
        let granted = client.request_lease(LeaseRequest { wait_ms: 5, ..asked() }).unwrap();
        assert_eq!(granted.grants[0].lease.as_ref().unwrap().node, "node-0");
        let near = vec!["node-9".into(), "node-0".into()];
        client.request_lease(LeaseRequest { near, wait_ms: 5, ..asked() }).unwrap();
    }
    assert_eq!((global.requests().len(), first.requests().len(), second.requests().len()), (2, 4, 0));
    assert!(first.requests().iter().all(|request| request.wait_ms == 0), "it waits with the global one");
    assert_eq!(global.requests()[0].request, first.requests()[0].request);
}

#[test]
fn reports_refusing_and_unreachable_racks_to_the_global_manager() {
    let folder = tempdir().unwrap();
    let full = TestManager::start(folder.path(), "full", refuses(Code::NoCapacity));
    let gone = TestManager::start(folder.path(), "gone", grants_nothing());
    let free = TestManager::start(folder.path(), "free", grants_on(&folder, 0));
    let global = above(&folder, &[&full, &gone, &free]);
    let client = ManagerClient::connect(&global.address).unwrap();
    let (full_at, gone_at) = (full.address.clone(), gone.address.clone());
    drop(gone);
    let granted = client.request_lease(LeaseRequest { wait_ms: 60_000, ..asked() }).unwrap();
    assert_eq!(granted.grants[0].lease.as_ref().unwrap().node, "node-0");
    let refused: Vec<_> = global.requests().into_iter().map(|request| request.refused).collect();
    assert_eq!(refused, [String::new(), full_at, gone_at]);
    let names: std::collections::BTreeSet<_> =
        [&global, &full, &free].iter().flat_map(|one| one.requests()).map(|one| one.request).collect();
    assert_eq!(names.len(), 1, "it is one request: {names:?}");
    // If the neighbours' rack has no capacity, another may have some.
    let client = ManagerClient::connect(&global.address).unwrap();
    client.request_lease(asked()).unwrap();
    drop(free);
    let near = LeaseRequest { near: vec!["node-0".into()], ..asked() };
    assert_eq!(client.request_lease(near).unwrap_err().code, Code::NoCapacity);
}

#[test]
fn final_refusal_of_a_rack_ends_the_request() {
    let folder = tempdir().unwrap();
    let strict = TestManager::start(folder.path(), "strict", refuses(Code::QuotaExceeded));
    let global = above(&folder, &[&strict]);
    let client = ManagerClient::connect(&global.address).unwrap();
    let asked = LeaseRequest { wait_ms: 60_000, ..asked() };
    assert_eq!(client.request_lease(asked).unwrap_err().code, Code::QuotaExceeded);
    assert_eq!(global.requests().len(), 1);
}

#[test]
fn asks_racks_while_the_global_manager_is_away() {
    let folder = tempdir().unwrap();
    let node = TestNode::start(folder.path(), 0, |_| Reaction::Answer);
    let mut refusals = 3;
    let rack = TestManager::start(folder.path(), "rack", move |_| {
        refusals -= 1;
        if refusals > 0 { Err(Error::new(Code::NoCapacity, "not yet")) } else { Ok(vec![(node.clone(), 1)]) }
    });
    let global = above(&folder, &[&rack]);
    let client = ManagerClient::connect(&global.address).unwrap();
    drop(global);
    assert_eq!(client.request_lease(asked()).unwrap_err().code, Code::NoCapacity);
    client.request_lease(LeaseRequest { wait_ms: 60_000, ..asked() }).unwrap();
    let waits: Vec<_> = rack.requests().into_iter().map(|request| request.wait_ms).collect();
    assert_eq!(waits, [0, 0, 0], "no request waits with one rack while another may have capacity");
}

/// An authority, and a manager whose certificate it signed for these names.
struct TrustedManager {
    manager: TestManager,
    ca: std::path::PathBuf,
    _folder: TempDir,
}

impl TrustedManager {
    fn start(names: &[&str]) -> TrustedManager {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let own_key = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let own = CertificateParams::new(names).unwrap().signed_by(&own_key, &issuer).unwrap();
        let manager = TestManager::start_tls(Identity::from_pem(own.pem(), own_key.serialize_pem()));
        let folder = tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, authority.pem()).unwrap();
        TrustedManager { manager, ca, _folder: folder }
    }

    fn access(&self) -> Access {
        Access::parse(&self.manager.address).unwrap()
    }
}

#[test]
fn sends_its_token_over_tls_to_a_trusted_manager() {
    let fixture = TrustedManager::start(&["localhost"]);
    let access = fixture.access().with_ca_file(&fixture.ca).unwrap().with_token("sublet_1_x").unwrap();
    ManagerClient::connect_with(access).unwrap();
    assert_eq!(fixture.manager.tokens(), ["Bearer sublet_1_x"]);
}

#[test]
fn a_certificate_of_somebody_else_is_refused_with_the_reason() {
    let (fixture, other) =
        (TrustedManager::start(&["localhost"]), TrustedManager::start(&["elsewhere.example"]));
    let refused = |access: Access| ManagerClient::connect_with(access).err().unwrap();
    let error = refused(fixture.access().with_ca_file(&other.ca).unwrap());
    assert!(error.code == Code::ManagerUnreachable && error.message.contains("certificate"), "{error}");
    let error = refused(other.access().with_ca_file(&other.ca).unwrap());
    assert!(error.message.contains("elsewhere.example"), "{error}");
    let error = refused(fixture.access());
    assert!(error.code == Code::InvalidArgument && error.message.contains("ca.pem"), "{error}");
    assert!(fixture.manager.tokens().is_empty() && other.manager.tokens().is_empty());
}

#[test]
fn a_port_at_which_nobody_listens_or_answers_is_named() {
    let fixture = TrustedManager::start(&["localhost"]);
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://localhost:{}", unused.local_addr().unwrap().port());
    let connect = || {
        let access = Access::parse(&address).unwrap().with_ca_file(&fixture.ca).unwrap();
        ManagerClient::connect_with(access).err().unwrap()
    };
    // The kernel accepts the connection, and no process answers.
    let silent = connect();
    assert!(silent.code == Code::ManagerUnreachable && silent.message.contains(&address), "{silent}");
    drop(unused);
    let refused = connect();
    assert!(refused.message.contains(&address) && refused.message.contains("refused"), "{refused}");
}
