//! Implements the connection to one worker, and the requests that wait for it.
//!
//! A connection ends with the process at its other end. A submission that has claimed its ring position and can no
//! longer send its request leaves the request here. It is sent when the next process is connected, if that begins at or
//! before its position; otherwise its call was given up. So no call is lost silently, and the ring has no hole.
//!
//! No thread waits for a connection here, and none sends under a lock. A submission that finds the connection down
//! checks under the lock whether it was made anew meanwhile. If not, it leaves its request to the thread that makes the
//! connection next.

use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard};

use sublet_fabric::exposed::RemoteRegion;
use sublet_fabric::line::Turn;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering, lock};
use sublet_fabric::tcp::ByteStream;
use sublet_fabric::window::{LineAddress, RegionAddress};
use sublet_fabric::{Endpoint, FabricError, SharedBytes, ofi};

use crate::wire::WireRequest;

/// The connection to one worker.
pub(super) struct WorkerConnection {
    pub(super) endpoint: Endpoint,
    /// Not 0: the worker process has received everything that it must know before a request. Until then requests are
    /// treated as if the connection were down.
    is_open: AtomicU32,
    /// Requests that found the connection down.
    unsent: Mutex<Vec<RingRequest<'static>>>,
    /// Number of times that the connection was made and no message left unsent. Written under the lock of `unsent`.
    openings: AtomicU64,
    /// Not 0: the lease's thread receives the data. Written only by that thread.
    pub(super) polled: AtomicU32,
}

/// A request with its place in the ring.
pub(super) struct RingRequest<'call> {
    pub(super) position: u64,
    pub(super) to: LineAddress,
    pub(super) turn: Turn,
    pub(super) immediate: u32,
    pub(super) body: [u64; WireRequest::WORDS],
    pub(super) input: RequestInput<'call>,
}

/// Input that is written before a request.
pub(super) enum RequestInput<'call> {
    /// Into the line's slot.
    Slot(RegionAddress, InputBytes<'call>),
    /// Memory in the arena, which is written to the same address of the worker's copy.
    Arena(RegionAddress, u64),
}

/// Bytes of an input that is not in the arena.
pub(super) enum InputBytes<'call> {
    /// Memory of the caller, during its call.
    Caller(SharedBytes<'call>),
    /// A copy of it, afterwards.
    Kept(Vec<u8>),
}

impl InputBytes<'_> {
    fn bytes(&self) -> SharedBytes<'_> {
        match self {
            InputBytes::Caller(bytes) => *bytes,
            InputBytes::Kept(bytes) => bytes.into(),
        }
    }

    fn into_owned(self) -> InputBytes<'static> {
        match self {
            InputBytes::Caller(bytes) => InputBytes::Kept(bytes.to_vec()),
            InputBytes::Kept(bytes) => InputBytes::Kept(bytes),
        }
    }
}

impl WorkerConnection {
    pub(super) fn new(endpoint: Endpoint) -> WorkerConnection {
        let (is_open, openings, polled) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(0));
        WorkerConnection { endpoint, is_open, unsent: Mutex::new(Vec::new()), openings, polled }
    }

    pub(super) fn send(&self, message: RingRequest<'_>) {
        let mut openings = self.openings.load(Ordering::Acquire);
        loop {
            if self.is_open.load(Ordering::Acquire) != 0 {
                let Err(error) = self.try_send(&message) else { return };
                if self.endpoint.down().is_none() {
                    // It is not the connection that fails, and without this request nothing after it would be taken.
                    self.disconnect(&error.to_string());
                }
            }
            let mut unsent = self.unsent();
            let now = self.openings.load(Ordering::Acquire);
            if now == openings {
                unsent.push(message.into_owned());
                return;
            }
            // The connection was made anew meanwhile, and no thread would send a message left in `unsent`.
            openings = now;
        }
    }

    /// Opens the connection for requests, and sends the kept ones at this position or after it. Earlier ones were given
    /// up.
    pub(super) fn open(&self, start: u64) -> Result<(), FabricError> {
        self.is_open.store(1, Ordering::Release);
        loop {
            let kept = {
                let mut unsent = self.unsent();
                unsent.retain(|message| message.position >= start);
                if unsent.is_empty() {
                    self.openings.fetch_add(1, Ordering::Release);
                    return Ok(());
                }
                std::mem::take(&mut *unsent)
            };
            // If this fails the process is given up, with all that it was to have.
            kept.iter().try_for_each(|message| self.try_send(message))?;
        }
    }

    fn try_send(&self, message: &RingRequest<'_>) -> Result<(), FabricError> {
        match &message.input {
            RequestInput::Slot(_, payload) if payload.bytes().is_empty() => {}
            RequestInput::Slot(to, payload) => self.endpoint.put(*to, payload.bytes())?,
            RequestInput::Arena(_, 0) => {}
            RequestInput::Arena(at, len_bytes) => self.push(*at, *len_bytes)?,
        }
        self.endpoint.put_imm(message.to, message.turn, message.immediate, &message.body)
    }

    fn push(&self, at: RegionAddress, len_bytes: u64) -> Result<(), FabricError> {
        let outside = || FabricError::OutOfBounds { region: at.region, offset: at.offset, len_bytes };
        let from = self.endpoint.mapped(at, len_bytes).ok_or_else(outside)?;
        // SAFETY: the bytes lie in a region of the arena, all of which stays mapped as long as the endpoint. The call
        // borrows them until it has ended. One that was kept may have been given up since, and its owner may write
        // them: as with all memory that another process may write, they are then any bytes, of a call without an owner.
        unsafe { self.endpoint.push(at, from, len_bytes) }
    }

    /// Connects to the worker over TCP.
    pub(super) fn connect(&self, stream: ByteStream) -> Result<(), FabricError> {
        match &self.endpoint {
            Endpoint::Tcp(endpoint) => endpoint.connect(stream),
            other => Err(cannot(other, "be connected by a stream")),
        }
    }

    /// Makes this side's endpoint over libfabric, and returns its address.
    pub(super) fn contact(&self, network: &ofi::OfiNetwork) -> Result<Vec<u8>, FabricError> {
        match &self.endpoint {
            Endpoint::Ofi(endpoint) => endpoint.open(network),
            other => Err(cannot(other, "be met")),
        }
    }

    /// Connects to the worker's endpoint over libfabric.
    pub(super) fn meet(&self, contact: &[u8]) -> Result<(), FabricError> {
        match &self.endpoint {
            Endpoint::Ofi(endpoint) => endpoint.connect(contact),
            other => Err(cannot(other, "be met")),
        }
    }

    pub(super) fn expose(&self, region: u32) -> Result<RemoteRegion, FabricError> {
        match &self.endpoint {
            Endpoint::Tcp(endpoint) => endpoint.expose(region),
            Endpoint::Ofi(endpoint) => endpoint.expose(region),
            other => Err(cannot(other, "expose a region")),
        }
    }

    pub(super) fn reach(&self, region: u32, remote: RemoteRegion) -> Result<(), FabricError> {
        match &self.endpoint {
            Endpoint::Tcp(endpoint) => endpoint.reach(region, remote),
            Endpoint::Ofi(endpoint) => endpoint.reach(region, remote),
            other => Err(cannot(other, "reach a region")),
        }
    }

    pub(super) fn disconnect(&self, reason: &str) {
        self.is_open.store(0, Ordering::Release);
        match &self.endpoint {
            Endpoint::Tcp(endpoint) => endpoint.disconnect(reason),
            Endpoint::Ofi(endpoint) => endpoint.disconnect(reason),
            _ => {}
        }
    }

    /// The descriptor to poll, unless the connection is down.
    pub(super) fn readable(&self) -> Option<BorrowedFd<'_>> {
        match &self.endpoint {
            Endpoint::Tcp(endpoint) if endpoint.down().is_none() => endpoint.readable(),
            Endpoint::Ofi(endpoint) if endpoint.down().is_none() => endpoint.readable(),
            _ => None,
        }
    }

    fn unsent(&self) -> MutexGuard<'_, Vec<RingRequest<'static>>> {
        lock(&self.unsent)
    }
}

impl RingRequest<'_> {
    fn into_owned(self) -> RingRequest<'static> {
        let input = match self.input {
            RequestInput::Slot(to, payload) => RequestInput::Slot(to, payload.into_owned()),
            RequestInput::Arena(at, len_bytes) => RequestInput::Arena(at, len_bytes),
        };
        let RingRequest { position, to, turn, immediate, body, .. } = self;
        RingRequest { position, to, turn, immediate, body, input }
    }
}

#[cold]
fn cannot(endpoint: &Endpoint, what: &str) -> FabricError {
    FabricError::Unsupported(format!("a {} endpoint cannot {what}", endpoint.provider().name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use sublet_fabric::exposed::ExposedMemory;
    use sublet_fabric::line::{LINE_BYTES, Line, Watch};
    use sublet_fabric::region::Region;
    use sublet_fabric::tcp;
    use sublet_fabric::window::Window;

    /// A worker's end with lines in its own memory.
    struct WorkerLines {
        lines: Region,
        end: tcp::TcpEndpoint,
    }

    const LINES: u64 = 8;
    const WATCH: u64 = LINES * LINE_BYTES;
    const SLOTS: u64 = 4096;
    const LEN_BYTES: u64 = 8192;

    fn endpoint(own: &Region) -> tcp::TcpEndpoint {
        let window = Arc::new(Window::new(1, 1 << 20).unwrap());
        tcp::TcpEndpoint::new(Arc::new(ExposedMemory::new(own, window, 2).unwrap()), None)
    }

    fn streams() -> (ByteStream, ByteStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ByteStream::plain(here).unwrap(), ByteStream::plain(listener.accept().unwrap().0).unwrap())
    }

    impl WorkerLines {
        /// Connected to the end, which knows its memory.
        fn start(end: &WorkerConnection) -> WorkerLines {
            let lines = Region::create("lines", LEN_BYTES).unwrap();
            let worker = WorkerLines { end: endpoint(&lines), lines };
            let (here, there) = streams();
            worker.end.connect(there).unwrap();
            end.reach(0, worker.end.expose(0).unwrap()).unwrap();
            end.connect(here).unwrap();
            worker
        }

        /// Waits for the line of this position, and returns the byte that was written into its slot.
        fn hear(&self, position: u64) -> u8 {
            let line: &Line = self.lines.view(position * LINE_BYTES).unwrap();
            let watch: &Watch = self.lines.view(WATCH).unwrap();
            assert!(self.end.wait((line, watch), Turn::of_use(0), None, || false), "{position}");
            let mut slot = [0];
            self.lines.read(SLOTS + position, &mut slot).unwrap();
            slot[0]
        }

        fn has(&self, position: u64) -> bool {
            self.lines.view::<Line>(position * LINE_BYTES).unwrap().is(Turn::of_use(0))
        }
    }

    fn message(position: u64) -> RingRequest<'static> {
        let to = LineAddress { region: 0, line: position * LINE_BYTES, watch: WATCH };
        let slot = RegionAddress { region: 0, offset: SLOTS + position };
        let input = RequestInput::Slot(slot, InputBytes::Kept(vec![position as u8 + 100]));
        RingRequest {
            position,
            to,
            turn: Turn::of_use(0),
            immediate: 0,
            body: [0; WireRequest::WORDS],
            input,
        }
    }

    #[test]
    fn unsent_requests_go_to_the_next_process_unless_given_up() {
        let end = WorkerConnection::new(Endpoint::Tcp(endpoint(&Region::create("results", 4096).unwrap())));
        end.send(message(0));
        let first = WorkerLines::start(&end);
        end.send(message(1));
        end.open(0).unwrap();
        end.send(message(2));
        assert_eq!([0, 1, 2].map(|position| first.hear(position)), [100, 101, 102]);
        end.disconnect("the worker died");
        for position in 3..6 {
            end.send(message(position));
        }
        let second = WorkerLines::start(&end);
        end.open(4).unwrap();
        end.send(message(6));
        assert_eq!([4, 5, 6].map(|position| second.hear(position)), [104, 105, 106]);
        assert!(!second.has(3), "its call was given up");
        assert!(end.unsent().is_empty());
    }

    #[test]
    fn loses_no_request_while_a_connection_is_made() {
        for _ in 0..50 {
            let end =
                WorkerConnection::new(Endpoint::Tcp(endpoint(&Region::create("results", 4096).unwrap())));
            std::thread::scope(|scope| {
                for first in [0, 4] {
                    let end = &end;
                    scope.spawn(move || (first..first + 4).for_each(|position| end.send(message(position))));
                }
                let worker = WorkerLines::start(&end);
                end.open(0).unwrap();
                (0..LINES).for_each(|position| assert_eq!(worker.hear(position), position as u8 + 100));
            });
        }
    }

    #[test]
    fn requests_after_a_lost_worker_go_to_the_next() {
        let end = WorkerConnection::new(Endpoint::Tcp(endpoint(&Region::create("results", 4096).unwrap())));
        let worker = WorkerLines::start(&end);
        end.open(0).unwrap();
        drop(worker);
        // The system may accept some bytes before it reports that the peer is gone.
        while end.endpoint.down().is_none() {
            let _ = end.endpoint.progress();
        }
        end.send(message(7));
        end.disconnect("it is known now");
        let next = WorkerLines::start(&end);
        end.open(0).unwrap();
        assert_eq!(next.hear(7), 107);
    }
}
