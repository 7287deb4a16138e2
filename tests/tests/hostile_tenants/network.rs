//! Attackers on the network: guessed secrets, garbage at the ends of other tenants' connections, several managers.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use rustix::process::Signal;
use sublet::{Allocation, Code, Error, FabricChoice};
use sublet_fabric::greeting::{self, ConnectionPurpose, DataLink};
use sublet_fabric::ofi;
use sublet_means::{Means, skip};
use sublet_tests::attack::Attack;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::functions::package;
use sublet_tests::platform::{assert_echoes, kill};
use sublet_tests::process::{PATIENCE, listening_ports, wait_until};

use super::{ALICE, lease};

const PROVIDER: &str = "tcp;ofi_rxm";
/// Hostile connections to each manager.
const CONNECTIONS: usize = 600;

/// A connection to a worker of a lease, as its client makes it.
fn link(address: &str, lease: [u8; 16], counter: u64, secret: &[u8; 32]) -> Result<TcpStream, Error> {
    let socket = TcpStream::connect(address).unwrap();
    greeting::greet(&socket, &ConnectionPurpose::Data(DataLink { lease, worker: 0, counter }), Some(secret))
        .map(|()| socket)
}

#[test]
fn guessed_secrets_open_no_connection_of_another_tenants_lease() {
    let cluster = Cluster::with_agents(1);
    let over_tcp = Allocation::new(package("calls.c")).fabric(FabricChoice::Tcp { encrypted: false });
    let victim = lease(&cluster, ALICE, &over_tcp);
    assert_echoes(&victim);
    let address = cluster.node("node-0").unwrap().description.unwrap().network.unwrap().address;
    let id = u128::from_str_radix(&victim.lease().unwrap().id, 16).unwrap().to_be_bytes();
    for guess in 0..200u8 {
        // Counters that the client has not used yet among them: a guess does not use one up.
        let refused = link(&address, id, u64::from(guess) + 1, &[guess; 32]).unwrap_err();
        assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
        let mut near = id;
        near[15] ^= guess | 1;
        assert_eq!(link(&address, near, 1, &[guess; 32]).unwrap_err().code, Code::UnknownLease);
    }
    assert_echoes(&victim);
    kill(cluster.agents[0].worker(), Signal::KILL);
    let mut output = [0u8; 5];
    wait_until("the client has connected again", || {
        victim.submit("echo", b"hello", &mut output).and_then(sublet::Invocation::wait).is_ok()
    });
}

/// Bytes that are no message of libfabric's: zeros, ones, a pattern, and what another protocol begins with.
fn garbage() -> Vec<Vec<u8>> {
    let pattern = (0..65_536u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    vec![vec![0; 65_536], vec![0xff; 65_536], pattern, b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![1]]
}

#[test]
fn garbage_at_the_ports_of_libfabric_ends_no_lease() {
    let providers = ofi::providers().unwrap_or_default();
    if !providers.iter().any(|found| found.name == PROVIDER && found.usable.is_ok()) {
        skip(Means::Libfabric, format_args!("the installed libfabric has no {PROVIDER}"));
        return;
    }
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(1), &["--fabrics", &format!("ofi:{PROVIDER}")]);
    let fabric = FabricChoice::Ofi { provider: Some(PROVIDER.into()) };
    let victim = lease(&cluster, ALICE, &Allocation::new(package("calls.c")).fabric(fabric));
    assert_echoes(&victim);
    let worker = cluster.agents[0].worker();
    let ports = [worker, std::process::id()].map(listening_ports);
    assert!(ports.iter().all(|ports| !ports.is_empty()), "{ports:?}");
    let mut open = Vec::new();
    for port in ports.concat() {
        for bytes in garbage() {
            let Ok(mut socket) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
            socket.set_write_timeout(Some(PATIENCE)).unwrap();
            // The other end may have cut it off already.
            let _ = socket.write_all(&bytes);
            open.push(socket);
        }
        assert_echoes(&victim);
    }
    open.extend(
        ports.concat().into_iter().filter_map(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()),
    );
    assert_echoes(&victim);
    drop(open);
    assert_echoes(&victim);
    assert_eq!(cluster.agents[0].worker(), worker, "the victim's worker has changed");
}

#[test]
fn managers_of_one_store_serve_and_revoke_under_attack() {
    let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
    cluster.add_agent(LentCores::cores(1));
    let attacks: Vec<_> =
        cluster.managers.iter().map(|manager| Attack::begin(manager.socket_address(), CONNECTIONS)).collect();
    for manager in &cluster.managers {
        let token = cluster.user_token(ALICE);
        let access = cluster.access(&manager.address, &token.secret);
        connect(&access).manager().nodes().unwrap();
        manager.json(&["ps"]);
        // Revoked at one manager, the token is worth nothing at any.
        cluster.json(&["token", "revoke", &token.token.unwrap().id]);
        wait_until("the token is refused", || {
            let refused =
                sublet::Invoker::connect_with(access.clone()).and_then(|client| client.manager().nodes());
            refused.is_err_and(|error| error.code == Code::Unauthenticated)
        });
        assert!(manager.hears_of("node-0") || cluster.managers.iter().any(|other| other.hears_of("node-0")));
    }
    cluster.assert_serves();
    for attack in attacks {
        attack.end();
    }
}
