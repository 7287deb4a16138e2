//! Listeners under attack: connections that are silent, slow or flooding, and requests that block others, keep neither
//! users nor the operator from being served.

#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sublet::{Access, Allocation, Code, Invoker};
use sublet_fabric::packet::PacketSocket;
use sublet_means::{Means, skip};
use sublet_proto::v1::manager_client::ManagerClient;
use sublet_proto::v1::{CreateTokenRequest, LeaseRequest, ListNodesRequest, PackageChunk, Role};
use sublet_tests::attack::{ADDRESSES, Attack, raise_files};
use sublet_tests::cluster::{Cluster, LentCores, connect as client};
use sublet_tests::functions::package;
use sublet_tests::hand::{ByHand, ask};
use sublet_tests::platform::assert_echoes;
use sublet_tests::process::{NOBODY, PATIENCE, PATIENCE_MS, SOMEBODY, as_user, wait_until};
use tonic::Request;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::Channel;

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// First bytes of an HTTP/2 client: the preface, and settings without any entry.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Finishes TLS with a manager, and begins HTTP/2 there.
fn begin_http(cluster: &Cluster) -> std::io::Result<Tls> {
    let manager = &cluster.managers[0];
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(cluster.ca_file()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::from(std::net::IpAddr::V4(manager.ip));
    let tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(tls, TcpStream::connect(manager.socket_address())?);
    stream.sock.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(PREFACE)?;
    stream.flush()?;
    Ok(stream)
}

/// The same program with fewer files.
fn with_files(files: u32, program: &Command) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {files} && exec \"$0\" \"$@\"")]);
    command.arg(program.get_program()).args(program.get_args());
    for (variable, value) in program.get_envs() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    command
}

/// A user takes a lease, calls, and gives it back.
#[track_caller]
fn assert_leases(access: &Access) {
    let mut user = client(access);
    user.allocate(&Allocation::new(package("calls.c")).wait(PATIENCE))
        .unwrap_or_else(|error| panic!("{error}"));
    assert_echoes(&user);
    user.deallocate().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn silent_connections_do_not_delay_handshakes_of_users() {
    let cluster = Cluster::with_agents(1);
    let user = cluster.user("somebody");
    assert_leases(&user);
    let silent: Vec<_> =
        (0..300).map(|_| TcpStream::connect(cluster.managers[0].socket_address()).unwrap()).collect();
    for _ in 0..5 {
        assert_leases(&user);
    }
    drop(silent);
}

#[test]
fn operator_and_agents_are_served_beside_unauthenticated_connections() {
    let mut cluster = Cluster::with_agents(1);
    let user = cluster.user("somebody");
    cluster.managers[0].restart_with(|command| *command = with_files(400, command));
    wait_until("the agent is back", || cluster.managers[0].hears_of("node-0"));
    // More than a manager with so few files has places for.
    let unidentified: Vec<_> = (0..272).filter_map(|_| begin_http(&cluster).ok()).collect();
    for _ in 0..3 {
        cluster.json(&["ps", "--nodes"]);
        assert!(cluster.managers[0].hears_of("node-0"), "the agent has lost its connection");
        assert_leases(&user);
    }
    drop(unidentified);
}

#[test]
fn tenant_with_all_its_connections_leaves_places_to_others() {
    let mut cluster = Cluster::with_agents(1);
    let (greedy, other) = (cluster.user("greedy"), cluster.user("other"));
    cluster.managers[0].restart_with(|command| {
        command.args(["--connections-total", "64", "--connections-per-tenant", "4"]);
    });
    wait_until("the agent is back", || cluster.managers[0].hears_of("node-0"));
    let kept: Vec<_> = (0..4).map(|_| client(&greedy)).collect();
    for invoker in &kept {
        invoker.manager().nodes().unwrap();
    }
    let refused =
        Invoker::connect_with(greedy.clone()).and_then(|invoker| invoker.manager().nodes()).unwrap_err();
    assert!(refused.code == Code::TryLater && refused.message.contains("greedy"), "{refused}");
    assert_leases(&other);
    kept[0].manager().nodes().unwrap();
}

#[test]
fn connections_without_a_token_are_closed_in_time() {
    let mut cluster = Cluster::with_agents(0);
    let limit = |cluster: &mut Cluster, handshake, first_request| {
        cluster.managers[0].restart_with(|command| {
            command.args([
                "--log",
                "debug",
                "--connections-handshake",
                handshake,
                "--connections-first-request",
                first_request,
            ]);
        });
    };
    let is_logged = |cluster: &Cluster, why: &str| cluster.managers[0].log().contains(why);
    limit(&mut cluster, "500ms", "1h");
    let mut silent = TcpStream::connect(cluster.managers[0].socket_address()).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(is_ended(&mut silent) && is_logged(&cluster, "the handshake was not finished in time"));
    limit(&mut cluster, "1h", "500ms");
    assert!(is_ended(&mut begin_http(&cluster).unwrap()));
    assert!(is_logged(&cluster, "no valid token or ticket was shown in time"));
}

/// Number of connections that a test opens: `otherwise`, unless the environment names another number.
fn connections(otherwise: usize) -> usize {
    std::env::var("SUBLET_TEST_CONNECTIONS").map_or(otherwise, |number| number.parse().unwrap())
}

/// How many connections there are to an address of this machine.
fn established(to: SocketAddrV4) -> usize {
    let number = u32::from_le_bytes(to.ip().octets());
    let wanted = format!("{number:08X}:{:04X}", to.port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_wanted = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields.get(2), fields.get(3)) == (Some(&wanted.as_str()), Some(&"01"))
    };
    table.lines().filter(is_wanted).count()
}

#[test]
fn connections_without_requests_are_closed() {
    let mut cluster = Cluster::with_agents(0);
    let manager = cluster.managers[0].socket_address();
    let access = cluster.user("somebody");
    let kept = client(&access);
    kept.manager().nodes().unwrap();
    // With the default limit a connection outlives its request, and is counted.
    assert_ne!(established(manager), 0);
    cluster.managers[0].restart_with(|command| {
        command.args(["--connections-idle", "1s"]);
    });
    let user = client(&access);
    user.manager().nodes().unwrap();
    // How long the connection was there cannot be seen: this test may run later than its limit.
    wait_until("the connections are closed", || established(manager) == 0);
    user.manager().nodes().unwrap();
}

/// Reads until the other end closes; false if it does not.
fn is_ended(stream: &mut impl Read) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return false;
            }
            Err(_) => return true,
        }
    }
}

#[test]
fn floods_of_control_frames_are_cut() {
    let cluster = Cluster::with_agents(0);
    let frame = |kind: u8, payload: &[u8], stream: u8| {
        let mut frame = vec![0, 0, payload.len() as u8, kind, 0, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    };
    let floods = [
        ("PING", frame(6, &[7; 8], 0)),
        ("SETTINGS", frame(4, &[], 0)),
        ("PRIORITY", frame(2, &[0, 0, 0, 0, 16], 1)),
        ("WINDOW_UPDATE", frame(8, &[0, 0, 0, 1], 0)),
    ];
    for (name, frame) in floods {
        let mut stream = begin_http(&cluster).unwrap();
        let many = frame.repeat(1000);
        let mut sent = 0;
        // The kernel's buffers take some; the connection itself ends after about a thousand frames.
        let is_cut = (0..1000).any(|_| {
            sent += 1000;
            stream.write_all(&many).and_then(|()| stream.flush()).is_err()
        });
        assert!(is_cut, "a flood of {sent} {name} frames was served");
    }
    cluster.json(&["ps"]);
    wait_until("it is logged", || cluster.managers[0].log().contains("HTTP/2 control frames"));
}

/// An upload that sends a byte each 3 s, for ever, and counts itself with the first.
struct Trickle {
    interval: tokio::time::Interval,
    begun: Option<Arc<AtomicUsize>>,
}

impl Stream for Trickle {
    type Item = PackageChunk;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PackageChunk>> {
        self.interval.poll_tick(context).map(|_| {
            if let Some(begun) = self.begun.take() {
                begun.fetch_add(1, Ordering::Relaxed);
            }
            Some(PackageChunk { data: vec![0] })
        })
    }
}

#[test]
fn trickling_uploads_delay_nobody_and_are_ended() {
    let cluster = Cluster::with_agents(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let begun = Arc::new(AtomicUsize::new(0));
    let trickling: Vec<_> = ["slow-1", "slow-1", "slow-2", "slow-3"]
        .map(|tenant| {
            let (access, begun) = (cluster.user(tenant), begun.clone());
            runtime.spawn(async move {
                let interval = tokio::time::interval(Duration::from_secs(3));
                let trickle = Trickle { interval, begun: Some(begun) };
                let request = access.authorize(Request::new(trickle));
                let mut manager = ManagerClient::new(access.channel(0).unwrap());
                tokio::time::timeout(PATIENCE, manager.deploy(request)).await
            })
        })
        .into();
    wait_until("they have begun", || begun.load(Ordering::Relaxed) == trickling.len());
    // Its package has never been deployed before.
    assert_leases(&cluster.user("quick"));
    for trickle in trickling {
        let ended = runtime.block_on(trickle).unwrap().expect("a trickling upload is ended");
        let error = sublet::Error::from_status(&ended.unwrap_err());
        assert!(error.code == Code::Protocol && error.message.contains("too slow"), "{error}");
    }
}

/// An upload of chunks of 1 MiB that make no package, which ends after them or sends nothing more for ever.
struct Chunks {
    left: usize,
    /// Counts the uploads that have sent all and stay open.
    stalled: Option<Arc<AtomicUsize>>,
}

impl Stream for Chunks {
    type Item = PackageChunk;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<PackageChunk>> {
        if self.left > 0 {
            self.left -= 1;
            return Poll::Ready(Some(PackageChunk { data: vec![0; 1 << 20] }));
        }
        let Some(stalled) = &self.stalled else { return Poll::Ready(None) };
        stalled.fetch_add(1, Ordering::Relaxed);
        Poll::Pending
    }
}

async fn upload(access: Access, chunks: Chunks) -> sublet::Error {
    let request = access.authorize(Request::new(chunks));
    let mut manager = ManagerClient::new(access.channel(0).unwrap());
    sublet::Error::from_status(&manager.deploy(request).await.unwrap_err())
}

#[test]
fn stalled_uploads_leave_large_ones_of_others_a_place() {
    let cluster = Cluster::with_agents(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stalled = Arc::new(AtomicUsize::new(0));
    let stall = |tenant: &str| {
        let chunks = Chunks { left: 16, stalled: Some(stalled.clone()) };
        runtime.spawn(upload(cluster.user(tenant), chunks))
    };
    let uploads = [stall("slow"), stall("slow")];
    wait_until("one has stalled", || stalled.load(Ordering::Relaxed) > 0);
    std::thread::sleep(Duration::from_millis(500));
    let error = runtime.block_on(upload(cluster.user("quick"), Chunks { left: 16, stalled: None }));
    assert_eq!(error.code, Code::InvalidPackage, "{error}");
    assert!(!uploads.iter().any(|upload| upload.is_finished()), "it was received after the stalled ones");
}

#[test]
fn large_uploads_are_received_two_at_a_time() {
    let cluster = Cluster::with_agents(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stalled = Arc::new(AtomicUsize::new(0));
    let uploads = ["a", "b", "c"].map(|tenant| {
        let chunks = Chunks { left: 16, stalled: Some(stalled.clone()) };
        runtime.spawn(upload(cluster.user(tenant), chunks))
    });
    wait_until("two have stalled", || stalled.load(Ordering::Relaxed) >= 2);
    // Small ones wait for no large ones. A third large one would be received beside as many bytes in small ones.
    for _ in 0..16 {
        let error = runtime.block_on(upload(cluster.user("quick"), Chunks { left: 1, stalled: None }));
        assert_eq!(error.code, Code::InvalidPackage, "{error}");
    }
    assert_eq!(stalled.load(Ordering::Relaxed), 2, "all were received at once");
    assert!(!uploads.iter().any(|upload| upload.is_finished()), "it was received after the large ones");
}

#[test]
fn grants_that_lapse_cost_their_tenant_its_turn() {
    let cluster = Cluster::with_agents(1);
    cluster.publish(package("calls.c"));
    let (greedy, other) = (cluster.user("greedy"), cluster.user("other"));
    assert_leases(&other);
    let digest = cluster.json(&["ps"])["packages"][0]["digest"].as_str().unwrap().to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let granted = Arc::new(AtomicUsize::new(0));
    let asking: Vec<_> = (0..20)
        .map(|_| {
            let (access, granted, package) = (greedy.clone(), granted.clone(), digest.clone());
            runtime.spawn(async move {
                let request = LeaseRequest {
                    package,
                    cores: 1,
                    wait_ms: u64::from(PATIENCE_MS),
                    ..LeaseRequest::default()
                };
                let request = access.authorize(Request::new(request));
                let mut manager = ManagerClient::new(access.channel(0).unwrap());
                if manager.request_lease(request).await.is_ok() {
                    granted.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    wait_until("the core is granted", || granted.load(Ordering::Relaxed) == 1);
    for _ in 0..4 {
        assert_leases(&other);
    }
    let granted = granted.load(Ordering::Relaxed);
    assert!(
        granted <= 2,
        "{granted} grants to a tenant that attaches to none came between 4 leases of another"
    );
    asking.iter().for_each(tokio::task::JoinHandle::abort);
}

#[test]
fn idle_connections_of_one_user_do_not_lock_out_others() {
    if !rustix::process::geteuid().is_root() {
        skip(Means::Root, "only root can become other users");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), mode).unwrap();
    let socket = folder.path().join("agent.sock");
    let mut cluster = Cluster::with_agents(0);
    let path = socket.to_str().unwrap();
    let more = ["--clients", "all-users", "--socket", path, "--memory", "256MiB"];
    cluster
        .add_agent_with(LentCores::cores(1), &[&more[..], &["--connections-unauthenticated", "32"]].concat());
    let user = cluster.user("somebody");
    assert_leases(&user);
    let digest = cluster.json(&["ps"])["packages"][0]["digest"].as_str().unwrap().to_owned();
    let idle: Vec<PacketSocket> =
        as_user(NOBODY, || (0..133).map(|_| PacketSocket::connect(&socket).unwrap()).collect());
    for _ in 0..3 {
        let grant = ask(&user, &digest).unwrap();
        as_user(SOMEBODY, || {
            let (agent, attached) = ByHand::show(&grant, &grant.ticket);
            attached.unwrap_or_else(|error| panic!("{error}"));
            agent.release();
        });
        cluster.wait_until_idle();
    }
    let open = idle.iter().filter(|socket| !socket.is_closed()).count();
    assert!(open <= 8, "a user keeps {open} connections without a ticket, and may have a quarter of 32");
    let mut drain = cluster.agents[0].told(&["--drain", "--socket", path]);
    let drained = drain.output().unwrap();
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
}

#[test]
fn refusals_are_logged_by_rate() {
    let cluster = Cluster::with_agents(1);
    let node = cluster.node("node-0").unwrap().description.unwrap();
    let agent: SocketAddr = node.network.unwrap().address.parse().unwrap();
    let manager = SocketAddr::V4(cluster.managers[0].socket_address());
    for _ in 0..1500 {
        for address in [agent, manager] {
            // Not Sublet's language; a connection that is cut meanwhile is refused as well.
            let _ =
                TcpStream::connect(address).and_then(|mut socket| socket.write_all(b"GET / HTTP/1.0\r\n"));
        }
    }
    wait_until("refusals are logged", || cluster.agents[0].log().contains("refused"));
    for (name, log) in [("agent", cluster.agents[0].log()), ("manager", cluster.managers[0].log())] {
        let lines = log.lines().count();
        assert!(lines < 100, "the {name} logged {lines} lines:\n{}", &log[..log.len().min(4000)]);
    }
    cluster.assert_serves();
}

#[test]
fn connections_that_come_and_go_keep_nobody_out() {
    let cluster = Cluster::with_agents(1);
    let user = cluster.user("somebody");
    assert_leases(&user);
    let network = cluster.node("node-0").unwrap().description.unwrap().network.unwrap();
    let listeners = [cluster.managers[0].socket_address(), network.address.parse().unwrap()];
    let floods = listeners.map(Attack::flood);
    for _ in 0..20 {
        assert_leases(&user);
        cluster.json(&["ps"]);
        assert!(cluster.managers[0].hears_of("node-0"), "the agent has lost its connection");
    }
    println!("{:?} connections were made", floods.map(Attack::end));
    for log in [cluster.agents[0].log(), cluster.managers[0].log()] {
        assert!(log.lines().count() < 100, "{}", &log[..log.len().min(4000)]);
    }
}

/// Opens connections of a tenant until its manager refuses one, and returns those that it has.
async fn fill(access: Access) -> Vec<ManagerClient<Channel>> {
    let mut open = Vec::new();
    loop {
        let mut manager = ManagerClient::new(access.channel(0).unwrap());
        match manager.list_nodes(access.authorize(Request::new(ListNodesRequest::default()))).await {
            Ok(_) => open.push(manager),
            Err(status) => {
                let error = sublet::Error::from_status(&status);
                assert_eq!(error.code, Code::TryLater, "after {} connections: {error}", open.len());
                return open;
            }
        }
    }
}

#[test]
fn tenants_that_fill_a_manager_leave_operator_and_agents_connections() {
    const TENANTS: [&str; 5] = ["one", "two", "three", "four", "five"];
    let total = connections(1_024);
    let mut cluster = Cluster::with_agents(1);
    let users = TENANTS.map(|tenant| cluster.user(tenant));
    raise_files();
    cluster.managers[0].restart_with(|command| {
        command.args(["--connections-total", &total.to_string()]);
    });
    wait_until("the agent is back", || cluster.managers[0].hears_of("node-0"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let filling = users.clone().map(|access| runtime.spawn(fill(access)));
    let mut kept = filling.map(|tenant| runtime.block_on(tenant).unwrap());
    let held: usize = kept.iter().map(Vec::len).sum();
    println!("{held} of {total} connections are those of tenants");
    assert!(held > total / 2 && held < total, "{held} of {total}");
    assert!(kept.iter().all(|own| own.len() <= total.div_ceil(4)));
    assert!(established(cluster.managers[0].socket_address()) >= held);
    cluster.json(&["ps", "--nodes"]);
    assert!(cluster.managers[0].hears_of("node-0"), "the agent has lost its connection");
    kept[0].clear();
    wait_until("places of a tenant are free", || {
        Invoker::connect_with(users[0].clone()).and_then(|invoker| invoker.manager().nodes()).is_ok()
    });
    assert_leases(&users[0]);
}

/// The median time of some rounds.
fn median(rounds: usize, mut act: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let begun = Instant::now();
            act();
            begun.elapsed()
        })
        .collect();
    times.sort();
    times[rounds / 2]
}

#[test]
fn users_and_operators_are_served_under_connections_from_many_addresses() {
    let connections = connections(2_000);
    let cluster = Cluster::with_agents(1);
    let user = cluster.token(&CreateTokenRequest {
        tenant: "somebody".into(),
        role: Role::User.into(),
        ..CreateTokenRequest::default()
    });
    let access = cluster.access(&cluster.addresses(), &user.secret);
    let ps = |manager: &str| {
        let mut command = sublet_tests::platform::sublet();
        command.args(["ps", "--json"]).env("SUBLET_MANAGER", manager).env("SUBLET_CA", cluster.ca_file());
        if !manager.starts_with("unix:") {
            command.env("SUBLET_TOKEN", &user.secret);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let (by_user, by_operator) = (cluster.addresses(), cluster.managers[0].socket());
    let measure = || {
        [median(15, || assert_leases(&access)), median(9, || ps(&by_user)), median(9, || ps(&by_operator))]
    };
    let quiet = measure();
    let attack = Attack::begin(cluster.managers[0].socket_address(), connections);
    let attacked = measure();
    let made = attack.end();
    println!("{connections} connections from {ADDRESSES} addresses, {made} made");
    for (what, quiet, attacked) in [
        ("lease", quiet[0], attacked[0]),
        ("ps of a user", quiet[1], attacked[1]),
        ("ps of the operator", quiet[2], attacked[2]),
    ] {
        println!("{what}: {quiet:?} quiet, {attacked:?} under attack");
    }
}
