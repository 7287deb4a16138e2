//! A manager that does as the test says, a client that says anything, and workers that do one thing.

#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use prost::Message;
use sublet_agent::{Agent, AgentOptions, ClientUsers, UnauthenticatedLimits, WarmInterpreters};
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_proto::ticket::Signing;
use sublet_proto::v1::agent_to_client::Body as FromAgent;
use sublet_proto::v1::client_to_agent::Body as ToAgent;
use sublet_proto::v1::nodes_server::{Nodes, NodesServer};
use sublet_proto::v1::*;
use sublet_proto::{Code, Error, package};
use sublet_runtime::access::Access;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

pub const NODE: &str = "here";
pub const MIB: u64 = 1 << 20;
/// Timeout for events that must happen; never asserted as a speed.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Seed of the key for tickets, which all managers of one store share.
const SEED: [u8; 32] = [7; 32];

/// Messages that a manager has received, and its answers.
#[derive(Default)]
pub struct Book {
    pub registrations: Vec<Registration>,
    /// Number of the latest registration; 0 if the manager does not know the node.
    pub registration: u64,
    pub reports: Vec<NodeReport>,
    /// Reported ends, which are in its store by the next report.
    pub stored: BTreeSet<String>,
    /// Whether the manager acknowledges no end.
    pub store_is_stuck: bool,
    /// Orders in the answer to every report.
    pub end: Vec<EndOrder>,
    /// Answer to every registration.
    pub refusal: Option<Error>,
    pub confirming: Confirming,
    pub confirmations: Vec<String>,
    /// The managers that it names.
    pub managers: Vec<String>,
    pub packages: Vec<Vec<u8>>,
    /// Time by which its clock is ahead of this machine's, in milliseconds.
    pub clock_ahead_ms: u64,
    /// Neighbours of the node, as the manager names them.
    pub neighbours: Option<Neighbours>,
}

/// Answer of a manager about the tokens behind provisional tickets.
#[derive(Clone, Debug)]
pub enum Confirming {
    /// The token is valid; the lease is held by this ticket from then on.
    Good(Vec<u8>),
    Bad(Error),
    Silent,
}

impl Default for Confirming {
    fn default() -> Confirming {
        Confirming::Good(Vec::new())
    }
}

impl Book {
    pub fn now_unix_ms(&self) -> u64 {
        unix_ms() + self.clock_ahead_ms
    }

    pub fn lease_reports(&self) -> impl DoubleEndedIterator<Item = &LeaseReport> {
        self.reports.iter().flat_map(|report| &report.leases)
    }

    /// The neighbours, if the agent knows another version of them.
    fn news_of_neighbours(&self, known: u64) -> Option<Neighbours> {
        self.neighbours.clone().filter(|neighbours| neighbours.version != known)
    }

    /// Acknowledges the ends that the store has already, and stores new ones.
    fn acknowledge(&mut self, report: &NodeReport) -> Vec<String> {
        let ended = report.leases.iter().filter(|lease| lease.state() == LeaseState::Ended);
        let ended: BTreeSet<String> = ended.map(|lease| lease.lease.clone()).collect();
        let acknowledged = ended.intersection(&self.stored).cloned().collect();
        if self.store_is_stuck {
            return Vec::new();
        }
        self.stored.extend(ended);
        acknowledged
    }
}

#[derive(Clone)]
struct Service {
    book: Arc<Mutex<Book>>,
    epoch: u64,
    key: Vec<u8>,
}

#[tonic::async_trait]
impl Nodes for Service {
    type FetchPackageStream = tokio_stream::Iter<std::vec::IntoIter<Result<PackageChunk, Status>>>;

    async fn register(&self, request: Request<Registration>) -> Result<Response<NodeRegistration>, Status> {
        let mut book = self.book.lock().unwrap();
        book.registrations.push(request.into_inner());
        if let Some(refusal) = &book.refusal {
            return Err(refusal.clone().into_status());
        }
        book.registration = (self.epoch << 32) + book.registrations.len() as u64;
        Ok(Response::new(NodeRegistration {
            verifying_key: self.key.clone(),
            registration: book.registration,
            now_unix_ms: book.now_unix_ms(),
            managers: book.managers.clone(),
            neighbours: book.neighbours.clone(),
        }))
    }

    async fn report(&self, report: Request<NodeReport>) -> Result<Response<NodeReportReply>, Status> {
        let (mut book, report) = (self.book.lock().unwrap(), report.into_inner());
        if report.registration != book.registration || book.registration == 0 {
            return Err(Error::new(Code::Protocol, "the node has to register first").into_status());
        }
        let (acknowledged, sequence) = (book.acknowledge(&report), report.sequence);
        let known = report.neighbours;
        book.reports.push(report);
        Ok(Response::new(NodeReportReply {
            end: book.end.clone(),
            acknowledged,
            now_unix_ms: book.now_unix_ms(),
            managers: book.managers.clone(),
            sequence,
            neighbours: book.news_of_neighbours(known),
        }))
    }

    async fn confirm_lease(
        &self,
        request: Request<ConfirmRequest>,
    ) -> Result<Response<ConfirmReply>, Status> {
        let confirming = {
            let mut book = self.book.lock().unwrap();
            book.confirmations.push(request.into_inner().lease);
            book.confirming.clone()
        };
        match confirming {
            Confirming::Good(ticket) => Ok(Response::new(ConfirmReply { ticket })),
            Confirming::Bad(error) => Err(error.into_status()),
            Confirming::Silent => std::future::pending().await,
        }
    }

    async fn lease_for_process(
        &self,
        _: Request<ProcessLeaseRequest>,
    ) -> Result<Response<LeaseGrant>, Status> {
        Err(Error::new(Code::NoCapacity, "nothing is to be had").into_status())
    }

    async fn fetch_secrets(
        &self,
        _: Request<FetchSecretsRequest>,
    ) -> Result<Response<FetchSecretsReply>, Status> {
        Err(Error::new(Code::InvalidArgument, "there are no secrets").into_status())
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
    pub socket: PathBuf,
    /// Grows with each start.
    epoch: u64,
    signing: Signing,
    server: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Drop for FakeManager {
    fn drop(&mut self) {
        self.stop();
    }
}

impl FakeManager {
    pub fn start(socket: PathBuf, epoch: u64) -> FakeManager {
        let signing = Signing::from_seed(&SEED);
        let mut manager = FakeManager { book: Arc::default(), socket, epoch, signing, server: None };
        manager.restart();
        manager
    }

    pub fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }

    /// Stops the manager as if it had died: it forgets all that it did not store.
    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.server.take() {
            drop(stop);
            thread.join().unwrap();
        }
        let _ = fs::remove_file(&self.socket);
        self.book().registration = 0;
    }

    pub fn restart(&mut self) {
        self.epoch += 10;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(async { UnixListener::bind(&self.socket).unwrap() });
        let key = self.signing.verifying_key().to_vec();
        let service = Service { book: self.book.clone(), epoch: self.epoch, key };
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

    pub fn now_unix_ms(&self) -> u64 {
        self.book().now_unix_ms()
    }

    /// A ticket of the node's registration with this manager.
    pub fn ticket(&self, lease: Lease) -> Ticket {
        let book = self.book();
        Ticket {
            lease: Some(lease),
            registration: book.registration,
            issued_unix_ms: book.now_unix_ms(),
            ..Ticket::default()
        }
    }

    pub fn sign(&self, ticket: &Ticket) -> Vec<u8> {
        self.signing.sign(ticket)
    }

    /// Waits until the book fulfils a condition.
    pub fn wait_for(&self, what: &str, is_so: impl Fn(&Book) -> bool) {
        let start = Instant::now();
        while !is_so(&self.book()) {
            assert!(start.elapsed() < PATIENCE, "the manager did not hear that {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The last report about a lease.
    pub fn last_report(&self, lease: &str) -> Option<LeaseReport> {
        self.book().lease_reports().rev().find(|report| report.lease == lease).cloned()
    }

    pub fn wait_ended(&self, lease: &str) -> LeaseReport {
        self.wait_for("the lease has ended", |book| {
            book.lease_reports().any(|report| report.lease == lease && report.state() == LeaseState::Ended)
        });
        self.last_report(lease).unwrap()
    }

    /// Waits for another report, and returns it.
    pub fn next_report(&self) -> NodeReport {
        let before = self.book().reports.len();
        self.wait_for("there is another report", |book| book.reports.len() > before + 1);
        self.book().reports.last().unwrap().clone()
    }
}

/// A node with one core and 16 MiB to lend, its manager, and a deployed package.
pub struct NodeFixture {
    pub agent: Option<Agent>,
    pub manager: FakeManager,
    pub folder: TempDir,
    pub package: String,
    pub options: AgentOptions,
}

impl NodeFixture {
    pub fn with_worker(does: &str) -> NodeFixture {
        NodeFixture::with(does, |_, _| {})
    }

    /// `prepare` sees the options and the manager before the agent starts.
    pub fn with(does: &str, prepare: impl FnOnce(&mut AgentOptions, &FakeManager)) -> NodeFixture {
        let folder = tempfile::tempdir().unwrap();
        let manager = FakeManager::start(folder.path().join("manager.sock"), 1);
        let encoded =
            package::encode(&package::from_library("libx.so", shared_object(folder.path())).unwrap());
        let package = package::digest(&encoded);
        manager.book().packages.push(encoded);
        let mut options = options(folder.path(), does);
        prepare(&mut options, &manager);
        let agent = Some(Agent::start(options.clone()).unwrap());
        NodeFixture { manager, agent, folder, package, options }
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
            functions: 1,
            expires_unix_ms: self.manager.now_unix_ms() + 60_000,
            options: Some(WorkerOptions { slots: 4, slot_bytes: 4096, ..WorkerOptions::default() }),
            ..Lease::default()
        }
    }

    pub fn ticket(&self, lease: Lease) -> Vec<u8> {
        self.manager.sign(&self.manager.ticket(lease))
    }

    pub fn connect(&self) -> Client {
        Client(PacketSocket::connect(self.socket()).unwrap())
    }

    /// A connection that has shown a ticket; the answer is still to be received.
    pub fn show_ticket(&self, ticket: Vec<u8>) -> Client {
        let client = self.connect();
        client.say(ToAgent::Attach(Attach { ticket, start: false, fabric: None, ..Attach::default() }));
        client
    }

    pub fn show(&self, lease: Lease) -> Client {
        self.show_ticket(self.ticket(lease))
    }

    pub fn attach(&self, lease: Lease) -> Client {
        let client = self.show(lease);
        client.hear_attached();
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

    pub fn hear_attached(&self) {
        let (body, packet) = self.hear();
        assert!(matches!(&body, FromAgent::Attached(attached) if attached.inbox_bytes > 0), "{body:?}");
        assert_eq!(packet.fds.len(), 1);
    }

    pub fn hear_ending(&self) -> Ending {
        match self.hear().0 {
            FromAgent::Ending(ending) => ending,
            other => panic!("{other:?} instead of the announcement of the end"),
        }
    }

    pub fn hear_status(&self) -> NodeStatus {
        match self.hear().0 {
            FromAgent::Status(status) => status,
            other => panic!("{other:?} instead of the node's status"),
        }
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
        self.hear_started()
    }

    pub fn hear_started(&self) -> (Started, PacketSocket) {
        let (body, mut packet) = self.hear();
        let FromAgent::Started(started) = body else { panic!("{body:?} instead of a start") };
        (started, PacketSocket::from(packet.fds.remove(0)))
    }

    pub fn assert_closed(&self) {
        assert!(self.0.receive(Some(PATIENCE)).unwrap().is_none());
    }
}

pub fn options(folder: &Path, does: &str) -> AgentOptions {
    AgentOptions {
        folders: Vec::new(),
        lent_devices: Vec::new(),
        cdi_folders: Vec::new(),
        temporary_bytes: None,
        state: folder.join("state"),
        socket: folder.join("agent.sock"),
        access: Access::parse(&format!("unix:{}", folder.join("manager.sock").display())).unwrap(),
        name: NODE.into(),
        cores: Some(1),
        shared: None,
        memory_bytes: Some(16 * MIB),
        numa_nodes: Vec::new(),
        flash: None,
        worker: worker(folder, does),
        spawner: spawner(),
        lend_network: false,
        cache_bytes: None,
        container_runtime: None,
        isolation: Vec::new(),
        warm: WarmInterpreters::default(),
        pu: "cpu".into(),
        neighbours: Vec::new(),
        devices: None,
        registries: Vec::new(),
        image_templates: Vec::new(),
        idle_timeout: None,
        pool: None,
        rack: String::new(),
        clients: ClientUsers::OwnUser,
        connections: UnauthenticatedLimits::default(),
        network: None,
    }
}

pub fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A worker program that does one thing: a sandbox has no shell that could.
fn worker(folder: &Path, does: &str) -> PathBuf {
    let (source, program) = (folder.join("worker.c"), folder.join("worker"));
    let text = format!("#include <signal.h>\n#include <unistd.h>\nint main(void) {{ {does} }}\n");
    fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&program).arg(&source).status();
    assert!(compiled.unwrap().success());
    program
}

/// The program that makes sandboxes, beside the folder of this test.
fn spawner() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let program = own.ancestors().nth(2).unwrap().join("sublet-spawner");
    assert!(program.is_file(), "{} is missing: run `cargo build --release --workspace`", program.display());
    program
}

fn shared_object(folder: &Path) -> Vec<u8> {
    let (source, object) = (folder.join("x.c"), folder.join("libx.so"));
    fs::write(&source, "unsigned f(void *in, unsigned size, void *out) { return 0; }\n").unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status();
    assert!(compiled.unwrap().success());
    fs::read(object).unwrap()
}
