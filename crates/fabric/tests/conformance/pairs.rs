//! Two ends of a connection, for each provider. A new provider needs one function here.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use sublet_fabric::exposed::{ExposedMemory, OWN};
use sublet_fabric::line::{LINE_BYTES, Line, Turn, Watch};
use sublet_fabric::progress::ProgressThread;
use sublet_fabric::region::Region;
use sublet_fabric::sim::{InjectedFaults, NetSide, Sim};
use sublet_fabric::tcp::{self, ByteStream};
use sublet_fabric::tls::Identity;
use sublet_fabric::window::{LineAddress, RegionAddress, Window};
use sublet_fabric::{Endpoint, FabricError, ofi, shm};

use crate::libfabric::{self, Waiter};

/// The region that tests write to.
pub const REGION: u32 = 3;
pub const LEN: u64 = 1 << 20;
/// Offset of the watch of all lines: in the region's last page.
pub const WATCH: u64 = LEN - 4096;
/// Most regions of a connection.
const REGIONS: u32 = 8;

/// The transport of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairTransport {
    Shm,
    /// Frames in the clear on a loopback socket.
    Tcp,
    /// Encrypted frames on a loopback socket.
    Tls,
    /// Frames on a simulated stream, with the faults of a seed.
    Sim(u64),
    /// A provider of libfabric: see [`crate::libfabric`].
    Ofi,
}

/// All transports.
pub const CARRIERS: &[PairTransport] = &[
    PairTransport::Shm,
    PairTransport::Tcp,
    PairTransport::Tls,
    PairTransport::Sim(1),
    PairTransport::Sim(2),
    PairTransport::Sim(3),
    PairTransport::Ofi,
];
/// Transports between nodes.
pub const NETWORKS: &[PairTransport] = &[
    PairTransport::Tcp,
    PairTransport::Tls,
    PairTransport::Sim(4),
    PairTransport::Sim(5),
    PairTransport::Ofi,
];
/// Transports of frames on a stream, which a test can break or write to.
pub const STREAMS: &[PairTransport] =
    &[PairTransport::Tcp, PairTransport::Tls, PairTransport::Sim(4), PairTransport::Sim(5)];

/// An endpoint, and the memory of the other side, which it reaches as region 3.
pub struct Pair {
    pub end: Endpoint,
    pub passive: Passive,
    pub target: Region,
    pub bell: OwnedFd,
    /// Serves the passive end, where that is needed. Dropped after it.
    _progress: Option<ProgressThread>,
    _waiter: Option<Waiter>,
}

/// The other end, whose owner may wait on it or do nothing at all.
pub enum Passive {
    /// The owner only waits; the other side writes the awaited lines.
    Shm,
    Stream(Arc<tcp::TcpEndpoint>),
    Ofi(Arc<ofi::OfiEndpoint>, Arc<ExposedMemory>),
}

impl Passive {
    pub fn wait(
        &self,
        line: (&Line, &Watch),
        turn: Turn,
        deadline: Option<Instant>,
        give_up: impl FnMut() -> bool,
    ) -> bool {
        match self {
            Passive::Shm => line.0.wait(line.1, turn, deadline, give_up),
            Passive::Stream(end) => end.wait(line, turn, deadline, give_up),
            Passive::Ofi(end, _) => end.wait(line, turn, deadline, give_up),
        }
    }

    pub fn poke(&self, watch: &Watch) {
        match self {
            Passive::Shm => watch.poke(),
            Passive::Stream(end) => end.poke(watch),
            Passive::Ofi(end, _) => end.poke(watch),
        }
    }

    pub fn stream(&self) -> &Arc<tcp::TcpEndpoint> {
        match self {
            Passive::Stream(end) => end,
            Passive::Shm | Passive::Ofi(..) => panic!("it has no stream"),
        }
    }
}

pub fn pair(pair_transport: PairTransport) -> Pair {
    let target = Region::create("target", LEN).unwrap();
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let their_bell = bell.try_clone().unwrap();
    let mut waiter = None;
    let (end, passive, progress) = match pair_transport {
        PairTransport::Shm => (shm_end(their_bell), Passive::Shm, None),
        PairTransport::Tcp | PairTransport::Tls => {
            let (ours, theirs) = stream_ends(Some(their_bell));
            let (left, right) = streams(pair_transport);
            connect((&ours, left), (&theirs, right));
            let progress = ProgressThread::start().unwrap();
            progress.serve(theirs.clone()).unwrap();
            (Endpoint::Tcp(ours), Passive::Stream(theirs), Some(progress))
        }
        PairTransport::Sim(seed) => {
            let (ours, theirs) = simulated(InjectedFaults::of_seed(seed), Some(their_bell));
            (Endpoint::Tcp(ours), Passive::Stream(theirs), None)
        }
        PairTransport::Ofi => {
            let (ours, passive, serves) = libfabric::ends(their_bell);
            waiter = Some(serves);
            (Endpoint::Ofi(ours), passive, None)
        }
    };
    let pair = Pair { end, passive, target, bell, _progress: progress, _waiter: waiter };
    pair.register(REGION, &pair.target).unwrap();
    pair
}

fn shm_end(bell: OwnedFd) -> Endpoint {
    Endpoint::Shm(shm::ShmEndpoint::new(Window::new(REGIONS, LEN).unwrap(), Some(bell)))
}

/// Two stream ends without a connection; the second rings the bell.
pub fn stream_ends(bell: Option<OwnedFd>) -> (tcp::TcpEndpoint, Arc<tcp::TcpEndpoint>) {
    (PairSide::new(LEN).end(None), Arc::new(PairSide::new(LEN).end(bell)))
}

/// One side of a connection: its own region, and the memory that the peer may access.
pub struct PairSide {
    pub own: Region,
    pub exposed: Arc<ExposedMemory>,
}

impl PairSide {
    pub fn new(own_bytes: u64) -> PairSide {
        let own = Region::create("own", own_bytes).unwrap();
        let window = Arc::new(Window::new(REGIONS, LEN).unwrap());
        let exposed = Arc::new(ExposedMemory::new(&own, window, REGIONS).unwrap());
        PairSide { own, exposed }
    }

    /// An end without a connection.
    pub fn end(&self, bell: Option<OwnedFd>) -> tcp::TcpEndpoint {
        tcp::TcpEndpoint::new(self.exposed.clone(), bell)
    }

    /// A line of its own region, and the watch behind it.
    pub fn line(&self, offset: u64) -> (&Line, &Watch) {
        (self.own.view(offset).unwrap(), self.own.view(offset + LINE_BYTES).unwrap())
    }
}

/// A line of the peer's own region, and the watch behind it.
pub fn own_line(offset: u64) -> LineAddress {
    LineAddress { region: OWN, line: offset, watch: offset + LINE_BYTES }
}

pub fn own_at(offset: u64) -> RegionAddress {
    RegionAddress { region: OWN, offset }
}

/// Two ends that reach each other's own regions, over this stream.
pub fn meet(
    left: (&PairSide, ByteStream),
    right: (&PairSide, ByteStream),
) -> (tcp::TcpEndpoint, tcp::TcpEndpoint) {
    let ends = (left.0.end(None), right.0.end(None));
    connect((&ends.0, left.1), (&ends.1, right.1));
    introduce(&ends.0, &ends.1);
    ends
}

/// Tells each side how to access the other's own region.
pub fn introduce(left: &tcp::TcpEndpoint, right: &tcp::TcpEndpoint) {
    left.reach(OWN, right.expose(OWN).unwrap()).unwrap();
    right.reach(OWN, left.expose(OWN).unwrap()).unwrap();
}

/// Two ends of a simulated stream; the second makes progress whenever the first waits.
pub fn simulated(faults: InjectedFaults, bell: Option<OwnedFd>) -> (tcp::TcpEndpoint, Arc<tcp::TcpEndpoint>) {
    let (ours, theirs) = stream_ends(bell);
    let (sim, left, right) = Sim::pair(faults);
    connect((&ours, ByteStream::sim(left)), (&theirs, ByteStream::sim(right)));
    let weak = Arc::downgrade(&theirs);
    sim.on_wait(NetSide::Right, move || {
        if let Some(theirs) = weak.upgrade() {
            // The test detects a connection that is down.
            let _ = theirs.progress();
        }
    });
    (ours, theirs)
}

pub fn connect(ours: (&tcp::TcpEndpoint, ByteStream), theirs: (&tcp::TcpEndpoint, ByteStream)) {
    ours.0.connect(ours.1).unwrap();
    theirs.0.connect(theirs.1).unwrap();
}

/// The two ends of a stream of this kind.
pub fn streams(pair_transport: PairTransport) -> (ByteStream, ByteStream) {
    match pair_transport {
        PairTransport::Tcp => plain(),
        PairTransport::Tls => encrypted(),
        PairTransport::Sim(seed) => {
            let (_, left, right) = Sim::pair(InjectedFaults::of_seed(seed));
            (ByteStream::sim(left), ByteStream::sim(right))
        }
        PairTransport::Shm | PairTransport::Ofi => panic!("{pair_transport:?} is no stream"),
    }
}

/// Two ends of a connection over loopback.
pub fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (left, listener.accept().unwrap().0)
}

/// The two ends of a stream in the clear.
pub fn plain() -> (ByteStream, ByteStream) {
    let (left, right) = sockets();
    (ByteStream::plain(left).unwrap(), ByteStream::plain(right).unwrap())
}

/// The two ends of an encrypted stream.
pub fn encrypted() -> (ByteStream, ByteStream) {
    let (left, right) = sockets();
    let identity = Identity::generate("conformance").unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| ByteStream::encrypted_server(right, &identity).unwrap());
        (ByteStream::encrypted_client(left, &identity.certificate).unwrap(), server.join().unwrap())
    })
}

impl Pair {
    /// Makes memory of the other side reachable under a number.
    pub fn register(&self, number: u32, memory: &Region) -> Result<(), FabricError> {
        self.register_as(number, memory, memory.len_bytes())
    }

    /// Registers memory with a size that may not be the memory's.
    pub fn register_as(&self, number: u32, memory: &Region, len_bytes: u64) -> Result<(), FabricError> {
        match (&self.end, &self.passive) {
            (Endpoint::Shm(end), _) => end.register(number, memory.fd(), len_bytes),
            (Endpoint::Tcp(end), Passive::Stream(theirs)) => {
                theirs.exposed().others().unwrap().map(number, memory.fd().as_fd(), len_bytes)?;
                end.reach(number, theirs.expose(number)?)
            }
            (Endpoint::Ofi(end), Passive::Ofi(theirs, exposed)) => {
                exposed.others().unwrap().map(number, memory.fd().as_fd(), len_bytes)?;
                end.reach(number, theirs.expose(number)?)
            }
            _ => panic!("the ends of a pair have the same provider"),
        }
    }

    pub fn line(&self, offset: u64) -> (&Line, &Watch) {
        (self.target.view(offset).unwrap(), self.target.view(WATCH).unwrap())
    }
}

pub fn at(offset: u64) -> RegionAddress {
    RegionAddress { region: REGION, offset }
}

pub fn line_at(offset: u64) -> LineAddress {
    LineAddress { region: REGION, line: offset, watch: WATCH }
}

/// Runs a test with a pair over each of these transports.
pub fn over(pair_transports: &[PairTransport], test: impl Fn(Pair)) {
    for_each(pair_transports, |pair_transport| test(pair(pair_transport)));
}

/// Runs a test for each of these transports. Where the environment names a provider of libfabric, only that one is
/// tested.
pub fn for_each(pair_transports: &[PairTransport], test: impl Fn(PairTransport)) {
    for &pair_transport in pair_transports
        .iter()
        .filter(|pair_transport| **pair_transport == PairTransport::Ofi || !libfabric::is_named())
    {
        if let Some(reason) = unavailable(pair_transport) {
            println!("skipped over {pair_transport:?}: {reason}");
            continue;
        }
        println!("over {pair_transport:?}");
        test(pair_transport);
    }
}

/// Bytes that differ for each seed and position.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index.wrapping_mul(31) >> 3) as u8 ^ (index + seed) as u8).collect()
}

/// Reason why this machine cannot test a transport, if there is one.
pub fn unavailable(pair_transport: PairTransport) -> Option<String> {
    match pair_transport {
        PairTransport::Ofi => ofi::providers().err().map(|error| error.to_string()),
        _ => None,
    }
}
