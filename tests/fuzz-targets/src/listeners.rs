//! Any bytes at real listeners: a manager's TCP port, in the clear and within TLS, and its Unix socket; an agent's socket and
//! its port, in the clear and within TLS; and the page of the agent's shim. Managers and agents serve others afterwards.
//!
//! They run in this process, so that what they execute counts as coverage.

// A signal's action is set.
#![allow(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use sublet_agent::{Agent, ClientUsers, NetworkOptions, WarmInterpreters};
use sublet_fabric::greeting::{self, ConnectionPurpose};
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::remote::RemoteSocket;
use sublet_manager::{Manager, ManagerOptions, Tls};
use sublet_runtime::access::Access;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::values;

/// Longest wait for an answer. Some inputs get none.
const ANSWER: Duration = Duration::from_millis(5);
/// Longest time in which a listener serves another client: only a listener that hangs takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes that are sent at once.
const MOST_AT_ONCE: usize = 4096;

/// The listeners, which serve all inputs until [`stop`].
static LISTENERS: Mutex<Option<ListenersFixture>> = Mutex::new(None);

/// Sends bytes to a listener, at once or in parts. The first byte chooses the listener, the second the length of a part.
///
/// # Panics
/// If a listener does not serve others afterwards.
pub fn run(input: &[u8]) {
    let Some((door, cut, bytes)) = values::<(u8, u8, &[u8])>(input) else { return };
    let parts: Vec<&[u8]> = bytes.chunks(1 + usize::from(cut) * MOST_AT_ONCE / 255).collect();
    let mut running = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner);
    let listeners = running.get_or_insert_with(ListenersFixture::start);
    match door % 7 {
        0 => to_tcp(listeners.manager_port, &parts),
        1 => listeners.within_tls(&parts),
        2 => to_unix(&listeners.manager_socket, &parts),
        3 => to_agent(&listeners.agent_socket, &parts),
        4 => to_tcp(listeners.agent_port, &parts),
        5 => listeners.within_agents_tls(&parts),
        _ => sublet_agent::fuzzing::call_shim(bytes),
    }
    listeners.assert_serves();
}

/// Stops the listeners and removes their files.
pub fn stop() {
    let stopped = LISTENERS.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(stopped);
}

/// A manager and an agent, with a folder of their own. The fields are dropped in this order: an agent tells its manager
/// that it stops.
struct ListenersFixture {
    _agent: Agent,
    _manager: Manager,
    _runtime: Runtime,
    _folder: TempDir,
    manager_port: u16,
    manager_socket: PathBuf,
    agent_port: u16,
    agent_socket: PathBuf,
    certificate: Vec<u8>,
    tls: Arc<ClientConfig>,
}

impl ListenersFixture {
    fn start() -> ListenersFixture {
        // A Rust program ignores SIGPIPE from its start, but libFuzzer's `main` does not.
        // SAFETY: a signal that is ignored runs no handler, and nothing else here sets its action.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        let temporary = tempfile::Builder::new().prefix("sublet-fuzz-").tempdir();
        let temporary = temporary.expect("there is space for temporary files");
        let folder = temporary.path();
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let any = "127.0.0.1:0".parse().expect("an address");
        let options = ManagerOptions {
            listen: vec![any],
            tls: Tls::Generated { names: vec!["127.0.0.1".into()] },
            ..ManagerOptions::in_folder(folder.join("manager"))
        };
        let manager = runtime.block_on(Manager::start(options)).expect("the manager starts");
        let manager_socket = manager.socket().to_owned();
        let manager_port = manager.addresses()[0].port();
        let agent = start_agent(folder, &manager_socket);
        let address = agent.address().expect("the agent is on a network");
        let agent_port = address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let access = Access::parse(&format!("unix:{}", manager_socket.display())).expect("an address");
        let node = runtime.block_on(async {
            let channel = access.channel(0).expect("a channel");
            let mut manager = sublet_proto::v1::manager_client::ManagerClient::new(channel);
            let nodes = manager.list_nodes(sublet_proto::v1::ListNodesRequest::default()).await;
            nodes.expect("nodes are listed").into_inner().nodes.remove(0)
        });
        let network = node.description.and_then(|node| node.network).expect("the node is on a network");
        ListenersFixture {
            tls: Arc::new(trusting(&folder.join("manager/tls/ca.pem"))),
            certificate: network.certificate,
            agent_socket: folder.join("agent.sock"),
            _agent: agent,
            _manager: manager,
            _runtime: runtime,
            _folder: temporary,
            manager_port,
            manager_socket,
            agent_port,
        }
    }

    /// Sends bytes within a manager's TLS: HTTP/2 of a client without a token.
    fn within_tls(&self, parts: &[&[u8]]) {
        let Some(socket) = dial(self.manager_port) else { return };
        let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
        let Ok(client) = ClientConnection::new(self.tls.clone(), name) else { return };
        exchange(StreamOwned::new(client, socket), parts);
    }

    /// Sends messages within an agent's TLS.
    fn within_agents_tls(&self, parts: &[&[u8]]) {
        let Some(socket) = dial(self.agent_port) else { return };
        if greeting::greet(&socket, &ConnectionPurpose::Control, None).is_err() {
            return;
        }
        let Ok(agent) = RemoteSocket::connect(socket, &self.certificate) else { return };
        if parts.iter().all(|part| agent.send(part).is_ok()) {
            let _ = agent.receive(Some(ANSWER));
        }
    }

    /// Asserts that the manager answers at both listeners, and the agent at its port.
    fn assert_serves(&self) {
        let mut unix = UnixStream::connect(&self.manager_socket).expect("the manager listens");
        unix.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
        unix.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").expect("the manager reads");
        unix.read_exact(&mut [0; 9]).expect("the manager answers");
        let agent = dial(self.agent_port).expect("the agent listens");
        greeting::greet(&agent, &ConnectionPurpose::Control, None).expect("the agent greets");
    }
}

fn start_agent(folder: &Path, manager: &Path) -> Agent {
    let programs = programs();
    let access = Access::parse(&format!("unix:{}", manager.display())).expect("an address");
    let options = sublet_agent::AgentOptions {
        state: folder.join("agent"),
        socket: folder.join("agent.sock"),
        access,
        name: "fuzzed".into(),
        cores: Some(1),
        shared: None,
        memory_bytes: Some(256 << 20),
        worker: programs.join("sublet-worker"),
        spawner: programs.join("sublet-spawner"),
        lend_network: false,
        container_runtime: None,
        isolation: Vec::new(),
        warm: WarmInterpreters::default(),
        cache_bytes: None,
        registries: Vec::new(),
        image_templates: Vec::new(),
        pu: "cpu".into(),
        neighbours: Vec::new(),
        devices: Some(Vec::new()),
        idle_timeout: None,
        pool: None,
        numa_nodes: Vec::new(),
        flash: None,
        rack: String::new(),
        clients: ClientUsers::OwnUser,
        connections: Default::default(),
        folders: Vec::new(),
        lent_devices: Vec::new(),
        cdi_folders: Vec::new(),
        temporary_bytes: None,
        network: Some(NetworkOptions::at("127.0.0.1:0".parse().expect("an address"))),
    };
    Agent::start(options).expect("the agent starts")
}

/// Folder of the programs that an agent starts. `cargo xtask fuzz` names it in `SUBLET_PROGRAMS`; a test's program is in a
/// folder of it.
fn programs() -> PathBuf {
    let named = std::env::var_os("SUBLET_PROGRAMS").map(PathBuf::from);
    named.unwrap_or_else(|| {
        let own = std::env::current_exe().expect("a process knows its program");
        own.ancestors().nth(2).expect("a test's program is in a folder of target").to_owned()
    })
}

fn trusting(authority: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(authority).expect("the manager's authority"))
        .expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

fn dial(port: u16) -> Option<TcpStream> {
    let socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    // Closes without waiting for the last packets: the number of ports is limited.
    let socket = socket2::Socket::from(socket);
    socket.set_linger(Some(Duration::ZERO)).ok()?;
    socket.set_read_timeout(Some(ANSWER)).ok()?;
    socket.set_write_timeout(Some(PATIENCE)).ok()?;
    socket.set_tcp_nodelay(true).ok()?;
    Some(socket.into())
}

fn to_tcp(port: u16, parts: &[&[u8]]) {
    let Some(socket) = dial(port) else { return };
    exchange(&socket, parts);
    let _ = socket.shutdown(Shutdown::Both);
}

fn to_unix(path: &Path, parts: &[&[u8]]) {
    let Ok(socket) = UnixStream::connect(path) else { return };
    let _ = socket.set_read_timeout(Some(ANSWER));
    exchange(&socket, parts);
}

/// Sends all parts, unless the other end closes before, and reads until it is silent.
fn exchange(mut stream: impl Read + Write, parts: &[&[u8]]) {
    for part in parts {
        if stream.write_all(part).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn to_agent(path: &Path, parts: &[&[u8]]) {
    let Ok(agent) = PacketSocket::connect(path) else { return };
    if parts.iter().all(|part| agent.send(part, &[]).is_ok()) {
        let _ = agent.receive(Some(ANSWER));
    }
}
