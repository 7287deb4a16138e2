//! A client of several managers: whom it asks, and what it says if nobody answers.

#![allow(clippy::unwrap_used)]

mod house;

use std::net::TcpListener;

use house::manager::{Grants, Manager};
use house::node::{Node, Reaction};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sublet_proto::v1::LeaseRequest;
use sublet_proto::{Code, Error};
use sublet_runtime::manager::ManagerClient;
use sublet_runtime::{Access, Allocation, Invoker};
use tempfile::{TempDir, tempdir};
use tonic::transport::Identity;

fn refuses(code: Code) -> impl FnMut(&LeaseRequest) -> Grants + Send + 'static {
    move |_| Err(Error::new(code, "not here"))
}

fn grants_nothing() -> impl FnMut(&LeaseRequest) -> Grants + Send + 'static {
    |_| Ok(Vec::new())
}

fn both(first: &Manager, second: &Manager) -> String {
    format!("{},{}", first.address, second.address)
}

fn asked() -> LeaseRequest {
    LeaseRequest { package: "test".into(), cores: 1, ..LeaseRequest::default() }
}

#[test]
fn a_manager_that_does_not_answer_is_left_for_the_next() {
    let folder = tempdir().unwrap();
    let alive = Manager::start(folder.path(), "alive", grants_nothing());
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
    let managers = ["a", "b"].map(|name| Manager::start(folder.path(), name, grants_nothing()));
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
    let managers = ["a", "b"].map(|name| Manager::start(folder.path(), name, grants_nothing()));
    let addresses = both(&managers[0], &managers[1]);
    let first = |_| ManagerClient::connect(&addresses).unwrap().address();
    let begun: std::collections::BTreeSet<_> = (0..64).map(first).collect();
    assert_eq!(begun.len(), 2, "64 clients began with {begun:?}");
}

#[test]
fn what_one_manager_has_no_capacity_for_the_others_are_asked_once() {
    for code in [Code::NoCapacity, Code::TryLater, Code::InsufficientResources] {
        let folder = tempdir().unwrap();
        let full = ["a", "b"].map(|name| Manager::start(folder.path(), name, refuses(code)));
        let client = ManagerClient::connect(&both(&full[0], &full[1])).unwrap();
        assert_eq!(client.request_lease(asked()).unwrap_err().code, code);
        assert_eq!(full.each_ref().map(|manager| manager.requests().len()), [1, 1]);
        let node = Node::start(folder.path(), 0, |_| Reaction::Answer);
        let free = Manager::start(folder.path(), "free", move |_| Ok(vec![(node.clone(), 1)]));
        let mut invoker = Invoker::connect_to(&both(&full[0], &free)).unwrap();
        invoker.allocate(&Allocation::new("test")).unwrap();
    }
}

#[test]
fn a_refusal_that_is_final_is_not_asked_about_elsewhere() {
    let folder = tempdir().unwrap();
    let managers = ["a", "b"].map(|name| Manager::start(folder.path(), name, refuses(Code::QuotaExceeded)));
    let client = ManagerClient::connect(&both(&managers[0], &managers[1])).unwrap();
    assert_eq!(client.request_lease(asked()).unwrap_err().code, Code::QuotaExceeded);
    assert_eq!(managers.iter().map(|manager| manager.requests().len()).sum::<usize>(), 1);
}

#[test]
fn a_request_that_may_wait_looks_around_before_it_waits_and_keeps_its_name() {
    let folder = tempdir().unwrap();
    let managers = ["a", "b"].map(|name| Manager::start(folder.path(), name, refuses(Code::NoCapacity)));
    let client = ManagerClient::connect(&both(&managers[0], &managers[1])).unwrap();
    client.request_lease(LeaseRequest { wait_ms: 5, ..asked() }).unwrap_err();
    for manager in &managers {
        let requests = manager.requests();
        assert_eq!(requests.iter().map(|request| request.wait_ms).collect::<Vec<_>>(), [0, 5]);
        assert!(requests.iter().all(|request| request.request == managers[0].requests()[0].request));
    }
}

#[test]
fn managers_that_one_of_them_tells_of_are_asked_as_well() {
    let folder = tempdir().unwrap();
    let known = Manager::start(folder.path(), "known", grants_nothing());
    let other = Manager::start(folder.path(), "other", grants_nothing());
    known.knows(&[&known.address, &other.address]);
    let client = ManagerClient::connect(&known.address).unwrap();
    drop(known);
    client.request_lease(asked()).unwrap();
    assert_eq!(client.address(), other.address);
}

#[test]
fn a_client_finds_its_manager_again_after_a_restart() {
    let folder = tempdir().unwrap();
    let manager = Manager::start(folder.path(), "manager", grants_nothing());
    let client = ManagerClient::connect(&manager.address).unwrap();
    drop(manager);
    std::fs::remove_file(folder.path().join("manager.sock")).unwrap();
    let manager = Manager::start(folder.path(), "manager", grants_nothing());
    client.request_lease(asked()).unwrap();
    assert_eq!(manager.requests().len(), 1);
}

/// An authority, and a manager whose certificate it signed for these names.
struct Trusted {
    manager: Manager,
    ca: std::path::PathBuf,
    _folder: TempDir,
}

impl Trusted {
    fn start(names: &[&str]) -> Trusted {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let own_key = KeyPair::generate().unwrap();
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let own = CertificateParams::new(names).unwrap().signed_by(&own_key, &issuer).unwrap();
        let manager = Manager::start_tls(Identity::from_pem(own.pem(), own_key.serialize_pem()));
        let folder = tempdir().unwrap();
        let ca = folder.path().join("ca.pem");
        std::fs::write(&ca, authority.pem()).unwrap();
        Trusted { manager, ca, _folder: folder }
    }

    fn access(&self) -> Access {
        Access::parse(&self.manager.address).unwrap()
    }
}

#[test]
fn over_tls_a_client_shows_its_token_to_a_manager_that_it_trusts() {
    let house = Trusted::start(&["localhost"]);
    let access = house.access().with_ca_file(&house.ca).unwrap().with_token("sublet_1_x").unwrap();
    ManagerClient::connect_with(access).unwrap();
    assert_eq!(house.manager.tokens(), ["Bearer sublet_1_x"]);
}

#[test]
fn a_certificate_of_somebody_else_is_refused_with_the_reason() {
    let (house, other) = (Trusted::start(&["localhost"]), Trusted::start(&["elsewhere.example"]));
    let refused = |access: Access| ManagerClient::connect_with(access).err().unwrap();
    let error = refused(house.access().with_ca_file(&other.ca).unwrap());
    assert!(error.code == Code::ManagerUnreachable && error.message.contains("certificate"), "{error}");
    let error = refused(other.access().with_ca_file(&other.ca).unwrap());
    assert!(error.message.contains("elsewhere.example"), "{error}");
    let error = refused(house.access());
    assert!(error.code == Code::InvalidArgument && error.message.contains("ca.pem"), "{error}");
    assert!(house.manager.tokens().is_empty() && other.manager.tokens().is_empty());
}

#[test]
fn a_port_at_which_nobody_listens_or_answers_is_named() {
    let house = Trusted::start(&["localhost"]);
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("https://localhost:{}", unused.local_addr().unwrap().port());
    let connect = || {
        let access = Access::parse(&address).unwrap().with_ca_file(&house.ca).unwrap();
        ManagerClient::connect_with(access).err().unwrap()
    };
    // The kernel accepts the connection, and nobody says anything.
    let silent = connect();
    assert!(silent.code == Code::ManagerUnreachable && silent.message.contains(&address), "{silent}");
    drop(unused);
    let refused = connect();
    assert!(refused.message.contains(&address) && refused.message.contains("refused"), "{refused}");
}
