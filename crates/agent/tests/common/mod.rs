//! A manager that does as the test says, a client that says anything, and workers that do one thing.

#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use prost::Message;
use sublet_agent::{Agent, Options};
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_proto::ticket::Signing;
use sublet_proto::v1::agent_to_client::Body as FromAgent;
use sublet_proto::v1::client_to_agent::Body as ToAgent;
use sublet_proto::v1::nodes_server::{Nodes, NodesServer};
use sublet_proto::v1::*;
use sublet_proto::{Code, Error, package};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

pub const NODE: &str = "here";
pub const MIB: u64 = 1 << 20;
/// For what must happen; never asserted as a speed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the manager has heard and shall answer.
#[derive(Default)]
pub struct Book {
    pub registrations: u32,
    pub reports: Vec<NodeReport>,
    pub end: Vec<String>,
    pub forget_node: bool,
    pub packages: Vec<Vec<u8>>,
}

#[derive(Clone)]
struct Service {
    book: Arc<Mutex<Book>>,
    key: Vec<u8>,
}

#[tonic::async_trait]
impl Nodes for Service {
    type FetchPackageStream = tokio_stream::Iter<std::vec::IntoIter<Result<PackageChunk, Status>>>;

    async fn register(&self, _: Request<NodeDescription>) -> Result<Response<NodeRegistration>, Status> {
        let mut book = self.book.lock().unwrap();
        book.registrations += 1;
        book.forget_node = false;
        Ok(Response::new(NodeRegistration { verifying_key: self.key.clone(), epoch: 1 }))
    }

    async fn report(&self, report: Request<NodeReport>) -> Result<Response<NodeReportReply>, Status> {
        let mut book = self.book.lock().unwrap();
        if book.forget_node {
            return Err(Error::new(Code::Protocol, "the node has to register first").into_status());
        }
        book.reports.push(report.into_inner());
        Ok(Response::new(NodeReportReply { end: book.end.clone() }))
    }

    async fn fetch_package(
        &self,
        request: Request<FetchPackageRequest>,
    ) -> Result<Response<Self::FetchPackageStream>, Status> {
        let digest = request.into_inner().digest;
        let book = self.book.lock().unwrap();
        let found = book.packages.iter().find(|encoded| package::digest(encoded) == digest);
        let missing = || Error::new(Code::UnknownPackage, "no such package").into_status();
        let encoded = found.ok_or_else(missing)?;
        let chunks: Vec<_> =
            encoded.chunks(1000).map(|part| Ok(PackageChunk { data: part.to_vec() })).collect();
        Ok(Response::new(tokio_stream::iter(chunks)))
    }
}

pub struct FakeManager {
    pub book: Arc<Mutex<Book>>,
    signing: Signing,
    socket: PathBuf,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Drop for FakeManager {
    fn drop(&mut self) {
        self.stop();
    }
}

impl FakeManager {
    fn start(folder: &Path) -> FakeManager {
        let socket = folder.join("manager.sock");
        let mut manager =
            FakeManager { book: Arc::default(), signing: Signing::from_seed(&[7; 32]), socket, server: None };
        manager.restart();
        manager
    }

    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.server.take() {
            drop(stop);
            thread.join().unwrap();
        }
        let _ = fs::remove_file(&self.socket);
    }

    pub fn restart(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(async { UnixListener::bind(&self.socket).unwrap() });
        let service = Service { book: self.book.clone(), key: self.signing.verifying_key().to_vec() };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let serve = tonic::transport::Server::builder()
                    .add_service(NodesServer::new(service))
                    .serve_with_incoming(UnixListenerStream::new(listener));
                tokio::select! { _ = serve => {}, _ = stopped => {} }
            });
        });
        self.server = Some((stop, thread));
    }

    pub fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    /// Waits until the book says so.
    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Book) -> bool) {
        let start = Instant::now();
        while !is_so(&self.book()) {
            assert!(start.elapsed() < PATIENCE, "the manager did not hear that {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What was last reported of a lease.
    pub fn last_report(&self, lease: &str) -> Option<LeaseReport> {
        let book = self.book();
        book.reports
            .iter()
            .rev()
            .flat_map(|report| &report.leases)
            .find(|report| report.lease == lease)
            .cloned()
    }

    pub fn wait_ended(&self, lease: &str) -> LeaseReport {
        self.wait_for("the lease has ended", |book| {
            let reports = book.reports.iter().flat_map(|report| &report.leases);
            reports.into_iter().any(|report| report.lease == lease && report.state() == LeaseState::Ended)
        });
        self.last_report(lease).unwrap()
    }
}

/// A node with one core and 16 MiB to lend, its manager, and a deployed package.
pub struct Node {
    pub agent: Option<Agent>,
    pub manager: FakeManager,
    pub folder: TempDir,
    pub package: String,
}

impl Node {
    pub fn with_worker(script: &str) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let manager = FakeManager::start(folder.path());
        let encoded =
            package::encode(&package::from_library("libx.so", shared_object(folder.path())).unwrap());
        let package = package::digest(&encoded);
        manager.book().packages.push(encoded);
        let agent = Some(Agent::start(options(folder.path(), script)).unwrap());
        Node { manager, agent, folder, package }
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("agent.sock")
    }

    pub fn lease(&self, id: &str) -> Lease {
        Lease {
            id: id.into(),
            node: NODE.into(),
            package: self.package.clone(),
            cores: 1,
            memory_bytes: 8 * MIB,
            expires_unix_ms: unix_ms() + 60_000,
            options: Some(WorkerOptions { slots: 4, slot_bytes: 4096, hot_timeout_ns: 0 }),
            ..Lease::default()
        }
    }

    pub fn ticket(&self, lease: Lease) -> Vec<u8> {
        self.manager.signing.sign(&Ticket { lease: Some(lease), epoch: 1, issued_unix_ms: unix_ms() })
    }

    /// A connection that has shown a ticket; the answer is still to be received.
    pub fn show(&self, lease: Lease) -> Client {
        let client = Client(PacketSocket::connect(self.socket()).unwrap());
        client.say(ToAgent::Attach(Attach { ticket: self.ticket(lease) }));
        client
    }

    pub fn attach(&self, lease: Lease) -> Client {
        let client = self.show(lease);
        let (body, packet) = client.hear();
        assert!(matches!(&body, FromAgent::Attached(attached) if attached.inbox_bytes > 0), "{body:?}");
        assert_eq!(packet.fds.len(), 1);
        client
    }
}

/// A client of the agent, which may say anything.
pub struct Client(pub PacketSocket);

impl Client {
    pub fn say(&self, body: ToAgent) {
        self.0.send(&ClientToAgent { body: Some(body) }.encode_to_vec(), &[]).unwrap();
    }

    pub fn hear(&self) -> (FromAgent, Packet) {
        let packet = self.0.receive(Some(PATIENCE)).unwrap().expect("the agent has closed the connection");
        (AgentToClient::decode(packet.bytes.as_slice()).unwrap().body.unwrap(), packet)
    }

    pub fn hear_failure(&self) -> (Code, String) {
        match self.hear().0 {
            FromAgent::Failure(failure) => (Code::from_number(failure.code), failure.message),
            other => panic!("{other:?} instead of a failure"),
        }
    }

    pub fn hear_end(&self) -> LeaseEnded {
        match self.hear().0 {
            FromAgent::LeaseEnded(ended) => ended,
            other => panic!("{other:?} instead of the lease's end"),
        }
    }

    pub fn hear_exit(&self) -> WorkerExited {
        match self.hear().0 {
            FromAgent::WorkerExited(exited) => exited,
            other => panic!("{other:?} instead of the worker's exit"),
        }
    }

    /// Starts the worker; its process and the client's end of its control socket.
    pub fn start(&self) -> (Started, PacketSocket) {
        self.say(ToAgent::Start(Start {}));
        let (body, mut packet) = self.hear();
        let FromAgent::Started(started) = body else { panic!("{body:?} instead of a start") };
        (started, PacketSocket::from(packet.fds.remove(0)))
    }

    pub fn assert_closed(&self) {
        assert!(self.0.receive(Some(PATIENCE)).unwrap().is_none());
    }
}

pub fn options(folder: &Path, script: &str) -> Options {
    Options {
        state: folder.join("state"),
        socket: folder.join("agent.sock"),
        manager: format!("unix:{}", folder.join("manager.sock").display()),
        name: NODE.into(),
        cores: Some(1),
        memory_bytes: Some(16 * MIB),
        worker: worker_script(folder, script),
    }
}

pub fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A program that a shell writes: a file that this process has held open for writing could not be executed while
/// another test is starting a process.
fn worker_script(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("worker");
    let written = Command::new("/bin/sh")
        .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\""])
        .arg(&path)
        .arg(script)
        .status();
    assert!(written.unwrap().success());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

fn shared_object(folder: &Path) -> Vec<u8> {
    let (source, object) = (folder.join("x.c"), folder.join("libx.so"));
    fs::write(&source, "unsigned f(void *in, unsigned size, void *out) { return 0; }\n").unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status();
    assert!(compiled.unwrap().success());
    fs::read(object).unwrap()
}
