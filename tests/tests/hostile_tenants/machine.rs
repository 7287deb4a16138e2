//! Another Unix user of a node, and programs that pretend to be managers.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;

use rustix::process::geteuid;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use sublet::Code;
use sublet_fabric::packet::PacketSocket;
use sublet_means::{Means, skip};
use sublet_proto::v1::{CreateTokenRequest, NodeState, Role};
use sublet_tests::cluster::{Cluster, LentCores};
use sublet_tests::platform::{PlatformProcess, sublet};
use sublet_tests::process::{NOBODY, PATIENCE, as_user, wait_until};

fn is_root() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        skip(Means::Root, "only root can become other users");
    }
    is_root
}

/// The command, as another user.
fn as_nobody(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(sublet().get_program());
    let output = command.args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

#[test]
fn another_unix_user_reaches_neither_sockets_nor_state() {
    if !is_root() {
        return;
    }
    let platform = PlatformProcess::start();
    let (state, worker) = (platform.state(), platform.client("calls.c"));
    set_mode(state.parent().unwrap(), 0o755);
    let sockets = ["manager.sock", "agent.sock"].map(|name| state.join(name));
    let pid = platform.worker();
    as_user(NOBODY, || {
        let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
        assert!(fs::read_dir(state).is_err_and(denied));
        assert!(UnixStream::connect(&sockets[0]).is_err_and(denied));
        assert!(PacketSocket::connect(&sockets[1]).is_err());
        assert!(fs::File::open(format!("/proc/{pid}/mem")).is_err_and(denied));
        assert!(fs::read_dir(format!("/proc/{pid}/fd")).is_err_and(denied));
    });
    // An operator who opens folder and sockets by mistake: both ends still ask the kernel who comes.
    set_mode(state, 0o755);
    sockets.iter().for_each(|socket| set_mode(socket, 0o666));
    let manager = format!("unix:{}", sockets[0].display());
    let (status, said) = as_nobody(&["ps", "--manager", &manager]);
    assert_eq!(status, i32::try_from(Code::PermissionDenied.number()).ok(), "{said}");
    let (status, said) = as_nobody(&["agent", "--drain", "--socket", sockets[1].to_str().unwrap()]);
    assert_eq!(status, i32::try_from(Code::PermissionDenied.number()).ok(), "{said}");
    as_user(NOBODY, || {
        let files = ["store.sqlite", "store.journal", "signing.key"].map(|name| state.join(name));
        files.iter().filter(|file| file.exists()).for_each(|file| {
            assert!(fs::File::open(file).is_err(), "{} is everybody's to read", file.display());
        });
    });
    sublet_tests::platform::assert_echoes(&worker);
    platform.assert_serves();
}

#[test]
fn a_client_of_another_unix_user_cannot_give_commands() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    set_mode(folder.path(), 0o755);
    let socket = folder.path().join("agent.sock");
    let socket = socket.to_str().unwrap();
    let mut cluster = Cluster::with_agents(0);
    cluster.add_agent_with(LentCores::cores(1), &["--clients", "all-users", "--socket", socket]);
    for command in [&["--drain"][..], &["--reclaim"], &["--lend"]] {
        let (status, said) = as_nobody(&[&["agent", "--socket", socket], command].concat());
        assert_eq!(status, i32::try_from(Code::PermissionDenied.number()).ok(), "{command:?}: {said}");
    }
    assert_eq!(cluster.node("node-0").unwrap().state(), NodeState::Lending);
    cluster.assert_serves();
}

/// Listens by TLS with a certificate of its own making, and tells what each connection sent beyond the handshake.
fn pretend_to_be_a_manager() -> (u16, std::sync::mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = builder.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key.into());
    let mut config = config.unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let config = Arc::new(config);
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            let mut heard = Vec::new();
            let _ = socket.set_read_timeout(Some(PATIENCE));
            let _ = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket)
                .read_to_end(&mut heard);
            if tell.send(heard).is_err() {
                return;
            }
        }
    });
    (port, told)
}

#[test]
fn tokens_are_sent_only_to_managers_with_signed_certificates() {
    let cluster = Cluster::with_agents(0);
    let token = cluster.token(&CreateTokenRequest {
        role: Role::Agent.into(),
        node: "node-0".into(),
        ..CreateTokenRequest::default()
    });
    let (port, heard) = pretend_to_be_a_manager();
    let address = format!("https://127.0.0.1:{port}");
    let mut agent = cluster.begin_agent_to(&address, "node-0", &token.secret, LentCores::cores(1), &[]);
    let first = heard.recv_timeout(PATIENCE).expect("the agent connects");
    assert!(first.is_empty(), "an agent has told a manager that it does not trust {} bytes", first.len());
    wait_until("the agent gives up", || !agent.is_running());
    assert!(agent.log().contains("certificate"), "{}", agent.log());
    let user = cluster.access(&address, &cluster.user_token("alice").secret);
    let refused = sublet::Invoker::connect_with(user).and_then(|client| client.manager().nodes());
    assert!(refused.is_err());
    assert!(heard.recv_timeout(PATIENCE).expect("the client connects").is_empty());
}
