//! Implements a node for tests: an agent on a socket, whose workers are threads that react to each call as the test
//! says.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::line::{Line, Watch};
use sublet_fabric::packet::{PacketListener, PacketSocket};
use sublet_fabric::region::Region;
use sublet_fabric::ring::Position;
use sublet_fabric::window::Window;
use sublet_fabric::{Endpoint, shm};
use sublet_proto::v1::{self, agent_to_client, client_to_agent, client_to_worker, worker_to_client};
use sublet_proto::{Code, Error, decode};
use sublet_runtime::wire::{
    Immediate, InboxLayout, MAX_REGIONS, OWN_REGION, Outcome, Request, ResultsLayout,
};

/// Reaction of a worker to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Returns the node's number, in one byte.
    Answer,
    /// Rejects the call without executing it.
    TurnAway,
    /// Lets its process die.
    Die,
    /// Does nothing.
    Ignore,
}

/// A node in a folder of the test's. Its threads run until the test's process ends.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    number: u8,
    socket: PathBuf,
    /// Reaction to a call, by the worker's number within its lease.
    react: Box<dyn Fn(u32) -> Reaction + Send + Sync>,
    /// Errors with which the next tickets are refused.
    refusals: Mutex<Vec<Error>>,
    leases: Mutex<Vec<Arc<Lease>>>,
    calls: AtomicU32,
    starts: AtomicU32,
}

/// An attached lease.
struct Lease {
    description: v1::Lease,
    client: PacketSocket,
    inbox: Region,
    layout: InboxLayout,
    /// Set while the current worker process runs.
    alive: Mutex<Arc<AtomicBool>>,
    over: AtomicBool,
}

impl Node {
    pub fn start(folder: &Path, number: u8, react: impl Fn(u32) -> Reaction + Send + Sync + 'static) -> Node {
        let socket = folder.join(format!("agent-{number}.sock"));
        let listener = PacketListener::listen(&socket).unwrap();
        let node = Node(Arc::new(Inner {
            number,
            socket,
            react: Box::new(react),
            refusals: Mutex::default(),
            leases: Mutex::default(),
            calls: AtomicU32::new(0),
            starts: AtomicU32::new(0),
        }));
        let accepting = node.clone();
        std::thread::spawn(move || {
            loop {
                let (client, node) = (listener.accept().unwrap(), accepting.clone());
                std::thread::spawn(move || node.serve(client));
            }
        });
        node
    }

    pub fn address(&self) -> String {
        format!("unix:{}", self.0.socket.display())
    }

    pub fn number(&self) -> u8 {
        self.0.number
    }

    /// Calls that have reached its workers.
    pub fn calls(&self) -> u32 {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// Worker processes that were started.
    pub fn starts(&self) -> u32 {
        self.0.starts.load(Ordering::SeqCst)
    }

    /// Leases that are not over.
    pub fn held(&self) -> usize {
        self.leases().len()
    }

    /// The next ticket is refused.
    pub fn refuse_next(&self, code: Code) {
        self.0.refusals.lock().unwrap().push(Error::new(code, format!("node {} refuses", self.0.number)));
    }

    /// Announces the end of its leases.
    pub fn announce(&self, code: Code, grace_ms: u64) {
        let ending = v1::Ending { code: code.number(), reason: "the node is wanted back".into(), grace_ms };
        self.leases().iter().for_each(|lease| lease.tell(agent_to_client::Body::Ending(ending.clone()), &[]));
    }

    /// Ends its leases.
    pub fn end(&self, code: Code) {
        for lease in self.leases() {
            lease.end(code, "the node was handed back");
        }
    }

    fn leases(&self) -> Vec<Arc<Lease>> {
        let leases = self.0.leases.lock().unwrap();
        leases.iter().filter(|lease| !lease.over.load(Ordering::SeqCst)).cloned().collect()
    }

    fn serve(&self, client: PacketSocket) {
        let Some(client_to_agent::Body::Attach(attach)) = receive(&client) else { return };
        let refusal = self.0.refusals.lock().unwrap().pop();
        if let Some(error) = refusal {
            let failure = v1::Failure { code: error.code.number(), message: error.message };
            return tell(&client, agent_to_client::Body::Failure(failure), &[]);
        }
        let description: v1::Lease = decode("a ticket", &attach.ticket).unwrap();
        let options = description.options.unwrap();
        let layout = InboxLayout::new(description.cores, options.slots, options.slot_bytes).unwrap();
        let inbox = Region::create("inbox", layout.len_bytes()).unwrap();
        let (alive, over) = (Mutex::new(Arc::new(AtomicBool::new(false))), AtomicBool::new(false));
        let lease = Arc::new(Lease { description, client, inbox, layout, alive, over });
        self.0.leases.lock().unwrap().push(lease.clone());
        let attached =
            v1::Attached { inbox_bytes: layout.len_bytes(), ticks_per_ns: 1.0, ..v1::Attached::default() };
        lease.tell(agent_to_client::Body::Attached(attached), &[&lease.inbox]);
        if attach.start {
            self.start_process(&lease);
        }
        while let Some(message) = receive(&lease.client) {
            match message {
                client_to_agent::Body::Start(_) => self.start_process(&lease),
                client_to_agent::Body::Stop(stop) => lease.kill(Code::WorkerDied, &stop.reason),
                client_to_agent::Body::Renew(_) => {
                    lease.tell(agent_to_client::Body::Renewed(v1::Renewed { remaining_ms: 1 }), &[]);
                }
                client_to_agent::Body::Release(_) => lease.end(Code::LeaseEnded, "it was released"),
                other => panic!("a client said {other:?}"),
            }
        }
        lease.over.store(true, Ordering::SeqCst);
    }

    fn start_process(&self, lease: &Arc<Lease>) {
        self.0.starts.fetch_add(1, Ordering::SeqCst);
        let (own, clients) = PacketSocket::pair().unwrap();
        let alive = Arc::new(AtomicBool::new(true));
        *lease.alive.lock().unwrap() = alive.clone();
        let process = Process { node: self.clone(), lease: lease.clone(), alive };
        std::thread::spawn(move || process.run(&own));
        let started = agent_to_client::Body::Started(v1::Started::default());
        send_to_client(&lease.client, started, &[OwnedFd::from(clients).as_fd()]);
    }
}

impl Lease {
    fn tell(&self, body: agent_to_client::Body, regions: &[&Region]) {
        tell(&self.client, body, regions);
    }

    fn kill(&self, code: Code, reason: &str) {
        if self.alive.lock().unwrap().swap(false, Ordering::SeqCst) {
            let exited = v1::WorkerExited { code: code.number(), reason: reason.to_owned() };
            self.tell(agent_to_client::Body::WorkerExited(exited), &[]);
        }
    }

    fn end(&self, code: Code, reason: &str) {
        self.alive.lock().unwrap().store(false, Ordering::SeqCst);
        self.over.store(true, Ordering::SeqCst);
        let usage = Some(v1::Usage { allocated_ns: 1, ..v1::Usage::default() });
        let ended = v1::LeaseEnded { code: code.number(), reason: reason.to_owned(), usage };
        self.tell(agent_to_client::Body::LeaseEnded(ended), &[]);
    }
}

/// A worker process, as threads.
struct Process {
    node: Node,
    lease: Arc<Lease>,
    alive: Arc<AtomicBool>,
}

impl Process {
    fn run(self, control: &PacketSocket) {
        let window = Window::new(MAX_REGIONS, u64::from(u32::MAX)).unwrap();
        let process = Arc::new(self);
        let mut endpoint: Option<Arc<Endpoint>> = None;
        let mut early = Some(window);
        while let Ok(Some(mut packet)) = control.receive(None) {
            let message: v1::ClientToWorker = decode("a client's message", &packet.bytes).unwrap();
            let answer = match message.body.unwrap() {
                client_to_worker::Body::MapRegion(v1::MapRegion { region, len_bytes, .. }) => {
                    let file = packet.fds.pop().unwrap();
                    match (&early, endpoint.as_deref()) {
                        (Some(window), _) => window.map(region, file.as_fd(), len_bytes).unwrap(),
                        (_, Some(Endpoint::Shm(endpoint))) => {
                            endpoint.register(region, file.as_fd(), len_bytes).unwrap()
                        }
                        _ => unreachable!(),
                    }
                    worker_to_client::Body::RegionMapped(v1::RegionMapped {
                        region,
                        ..v1::RegionMapped::default()
                    })
                }
                client_to_worker::Body::Connect(connect) => {
                    let (bell, results) = (packet.fds.pop().unwrap(), packet.fds.pop().unwrap());
                    let window = early.take().unwrap();
                    window.map(OWN_REGION, results.as_fd(), connect.results_bytes).unwrap();
                    let client = Arc::new(Endpoint::Shm(shm::Endpoint::new(window, Some(bell))));
                    for (worker, start) in connect.start_positions.into_iter().enumerate() {
                        let (process, client) = (process.clone(), client.clone());
                        std::thread::spawn(move || process.work(worker as u32, start, &client));
                    }
                    endpoint = Some(client);
                    worker_to_client::Body::Ready(v1::Ready::default())
                }
                client_to_worker::Body::Link(_) => unreachable!("there is no network here"),
                client_to_worker::Body::Run(_) => unreachable!("there are no graphs here"),
            };
            let bytes = v1::WorkerToClient { body: Some(answer) }.encode_to_vec();
            // The client may have gone meanwhile.
            let _ = control.send(&bytes, &[]);
        }
    }

    fn work(&self, worker: u32, start: u64, client: &Endpoint) {
        const LOOK: Duration = Duration::from_millis(5);
        let (inbox, layout) = (&self.lease.inbox, &self.lease.layout);
        for count in start.. {
            let position = Position::new(count, layout.slots());
            let at = layout.line(worker, position.line);
            let (line, watch) =
                (inbox.view::<Line>(at.line).unwrap(), inbox.view::<Watch>(at.watch).unwrap());
            while !line.wait(watch, position.turn, Some(Instant::now() + LOOK), || false) {
                if !self.alive.load(Ordering::SeqCst) {
                    return;
                }
            }
            if !self.alive.load(Ordering::SeqCst) {
                return;
            }
            self.node.0.calls.fetch_add(1, Ordering::SeqCst);
            let (bits, body) = line.read();
            let (immediate, request) = (Immediate::from_bits(bits), Request::decode(&body));
            let status = match (self.node.0.react)(worker) {
                Reaction::Answer => 0,
                Reaction::TurnAway => Code::CoreBusy.number(),
                Reaction::Die => return self.lease.kill(Code::WorkerDied, "the worker died of the test"),
                Reaction::Ignore => continue,
            };
            if status == 0 && request.output_capacity > 0 {
                client.put(request.output, &[self.node.0.number]).unwrap();
            }
            let outcome = Outcome { status, output_len: request.output_capacity.min(1), detail: 0 };
            let to = ResultsLayout::new(self.lease.description.cores).line(worker, immediate.record());
            client.put_imm(to, request.result_turn, 0, &outcome.encode()).unwrap();
        }
    }
}

fn receive(client: &PacketSocket) -> Option<client_to_agent::Body> {
    let packet = client.receive(None).ok()??;
    decode::<v1::ClientToAgent>("a client's message", &packet.bytes).unwrap().body
}

fn tell(client: &PacketSocket, body: agent_to_client::Body, regions: &[&Region]) {
    send_to_client(client, body, &regions.iter().map(|region| region.fd()).collect::<Vec<_>>());
}

fn send_to_client(client: &PacketSocket, body: agent_to_client::Body, fds: &[std::os::fd::BorrowedFd<'_>]) {
    let bytes = v1::AgentToClient { body: Some(body) }.encode_to_vec();
    // The client may have gone meanwhile.
    let _ = client.send(&bytes, fds);
}
