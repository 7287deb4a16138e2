//! One thread that makes progress for endpoints whose owner runs no thread of its own: those of memory components.
//!
//! Over TCP the target's progress executes every request of a peer. Over libfabric that depends on the provider: the
//! software providers work like TCP. A network card executes most requests by itself and leaves only messages, and
//! atomics where it has none.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, epoll, eventfd};
use sublet_proto::to_usize;

use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::{FabricError, ofi, tcp};

/// Most endpoints that one system call reports.
const EVENTS_AT_ONCE: usize = 32;
/// The epoll's data value for the thread's own alarm. An endpoint's value is its index in the table.
const ALARM: u64 = u64::MAX;

/// One thread that serves many endpoints. Each gets a bounded time slice when something has arrived for it or when it
/// can send again, so that no slow or busy peer keeps the thread from the other endpoints. An endpoint that goes down
/// is removed. The thread ends when this is dropped.
pub struct ProgressThread {
    shared: Arc<ProgressState>,
    thread: Option<JoinHandle<()>>,
}

/// An endpoint that the thread can serve.
#[derive(Clone)]
pub enum ServedEndpoint {
    /// See [`tcp`].
    Tcp(Arc<tcp::TcpEndpoint>),
    /// See [`ofi`].
    Ofi(Arc<ofi::OfiEndpoint>),
}

struct ProgressState {
    epoll: OwnedFd,
    alarm: OwnedFd,
    stop: AtomicU32,
    served: Mutex<Vec<Option<ServedEndpoint>>>,
}

impl ProgressThread {
    /// Starts the thread.
    pub fn start() -> Result<ProgressThread, FabricError> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| FabricError::system("eventfd", error))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| FabricError::system("epoll_create", error))?;
        epoll::add(&epoll, &alarm, epoll::EventData::new_u64(ALARM), epoll::EventFlags::IN)
            .map_err(|error| FabricError::system("epoll_ctl", error))?;
        let shared =
            Arc::new(ProgressState { epoll, alarm, stop: AtomicU32::new(0), served: Mutex::new(Vec::new()) });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new().name("sublet-progress".into()).spawn(move || shared.run())
        };
        let thread = thread.map_err(|error| FabricError::system("starting the progress thread", error))?;
        Ok(ProgressThread { shared, thread: Some(thread) })
    }

    /// Serves this endpoint until its connection goes down. Processes at once the bytes that have arrived already: a
    /// stream that holds them in its own buffer, such as one whose handshake read further, does not become readable for
    /// them.
    pub fn serve(&self, endpoint: impl Into<ServedEndpoint>) -> Result<(), FabricError> {
        let endpoint = endpoint.into();
        let not_served = |error| FabricError::system("epoll_ctl for an end to be served", error);
        let readable = endpoint.readable().ok_or_else(|| not_served(rustix::io::Errno::BADF))?;
        let mut served = lock(&self.shared.served);
        let place = served.iter().position(Option::is_none).unwrap_or_else(|| {
            served.push(None);
            served.len() - 1
        });
        let data = epoll::EventData::new_u64(place as u64);
        epoll::add(&self.shared.epoll, readable.as_fd(), data, epoll::EventFlags::IN).map_err(not_served)?;
        served[place] = Some(endpoint);
        drop(served);
        self.shared.turn(place);
        Ok(())
    }

    /// Number of endpoints that are served.
    pub fn serving(&self) -> usize {
        lock(&self.shared.served).iter().flatten().count()
    }
}

impl ProgressState {
    fn run(&self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_AT_ONCE);
        while self.stop.load(Ordering::Acquire) == 0 {
            events.clear();
            self.look_out();
            // A signal is a wait that brought nothing.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None);
            for event in &events {
                if event.data.u64() != ALARM {
                    self.turn(to_usize(event.data.u64()));
                }
            }
        }
    }

    /// Arms the descriptors of libfabric endpoints: each becomes readable on an arrival only if that is requested
    /// before each wait.
    fn look_out(&self) {
        for endpoint in lock(&self.served).iter().flatten() {
            if let ServedEndpoint::Ofi(endpoint) = endpoint {
                endpoint.readable();
            }
        }
    }

    fn turn(&self, place: usize) {
        let endpoint = lock(&self.served).get(place).cloned().flatten();
        let Some(endpoint) = endpoint else { return };
        if endpoint.progress().is_err() {
            if let Some(readable) = endpoint.readable() {
                // It was added when it was taken into the table.
                let _ = epoll::delete(&self.epoll, readable);
            }
            lock(&self.served)[place] = None;
        }
    }
}

impl ServedEndpoint {
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        match self {
            ServedEndpoint::Tcp(endpoint) => endpoint.readable(),
            ServedEndpoint::Ofi(endpoint) => endpoint.readable(),
        }
    }

    fn progress(&self) -> Result<(), FabricError> {
        match self {
            ServedEndpoint::Tcp(endpoint) => endpoint.progress(),
            ServedEndpoint::Ofi(endpoint) => endpoint.progress(),
        }
    }
}

impl From<Arc<tcp::TcpEndpoint>> for ServedEndpoint {
    fn from(endpoint: Arc<tcp::TcpEndpoint>) -> ServedEndpoint {
        ServedEndpoint::Tcp(endpoint)
    }
}

impl From<Arc<ofi::OfiEndpoint>> for ServedEndpoint {
    fn from(endpoint: Arc<ofi::OfiEndpoint>) -> ServedEndpoint {
        ServedEndpoint::Ofi(endpoint)
    }
}

impl Drop for ProgressThread {
    fn drop(&mut self) {
        self.shared.stop.store(1, Ordering::Release);
        // A full counter wakes as well.
        let _ = rustix::io::write(&self.shared.alarm, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}
