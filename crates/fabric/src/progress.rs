//! One thread that takes what arrives for ends whose owner runs nothing of its own: a memory component's.
//!
//! Over TCP all that a peer asks for is done by the target's progress. Over libfabric that depends on the provider: the
//! software ones are as TCP, a card does most by itself, and what is left (messages, atomics where it has none) is little.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::{FabricError, ofi, tcp};

/// Ends that are asked about with one system call.
const EVENTS_AT_ONCE: usize = 32;
/// What the epoll calls the thread's own alarm; ends are called by their place in the table.
const ALARM: u64 = u64::MAX;

/// One thread that serves many ends. Each has a bounded turn when something has arrived for it or
/// there is room again for what it has to send, so that no peer, slow or busy, keeps it from the others. An end that
/// goes down is let go. The thread ends when this is dropped.
pub struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// An end that can be served.
#[derive(Clone)]
pub enum Served {
    /// See [`tcp`].
    Tcp(Arc<tcp::Endpoint>),
    /// See [`ofi`].
    Ofi(Arc<ofi::Endpoint>),
}

struct Shared {
    epoll: OwnedFd,
    alarm: OwnedFd,
    stop: AtomicU32,
    served: Mutex<Vec<Option<Served>>>,
}

impl Progress {
    /// Starts the thread.
    pub fn start() -> Result<Progress, FabricError> {
        let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| FabricError::system("eventfd", error))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| FabricError::system("epoll_create", error))?;
        epoll::add(&epoll, &alarm, epoll::EventData::new_u64(ALARM), epoll::EventFlags::IN)
            .map_err(|error| FabricError::system("epoll_ctl", error))?;
        let shared =
            Arc::new(Shared { epoll, alarm, stop: AtomicU32::new(0), served: Mutex::new(Vec::new()) });
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new().name("sublet-progress".into()).spawn(move || shared.run())
        };
        let thread = thread.map_err(|error| FabricError::system("starting the progress thread", error))?;
        Ok(Progress { shared, thread: Some(thread) })
    }

    /// Serves this end until its connection goes down. What has come already is taken here: a stream that has it in a buffer of
    /// its own, as one whose handshake read on, is not readable for it.
    pub fn serve(&self, endpoint: impl Into<Served>) -> Result<(), FabricError> {
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

    /// How many ends are served.
    pub fn serving(&self) -> usize {
        lock(&self.shared.served).iter().flatten().count()
    }
}

impl Shared {
    fn run(&self) {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_AT_ONCE);
        while self.stop.load(Ordering::Acquire) == 0 {
            events.clear();
            self.look_out();
            // A signal is a wait that brought nothing.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None);
            for event in &events {
                if event.data.u64() != ALARM {
                    self.turn(event.data.u64() as usize);
                }
            }
        }
    }

    /// What has arrived over libfabric makes a descriptor readable only if that is asked for before each wait.
    fn look_out(&self) {
        for endpoint in lock(&self.served).iter().flatten() {
            if let Served::Ofi(endpoint) = endpoint {
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

impl Served {
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Served::Tcp(endpoint) => endpoint.readable(),
            Served::Ofi(endpoint) => endpoint.readable(),
        }
    }

    fn progress(&self) -> Result<(), FabricError> {
        match self {
            Served::Tcp(endpoint) => endpoint.progress(),
            Served::Ofi(endpoint) => endpoint.progress(),
        }
    }
}

impl From<Arc<tcp::Endpoint>> for Served {
    fn from(endpoint: Arc<tcp::Endpoint>) -> Served {
        Served::Tcp(endpoint)
    }
}

impl From<Arc<ofi::Endpoint>> for Served {
    fn from(endpoint: Arc<ofi::Endpoint>) -> Served {
        Served::Ofi(endpoint)
    }
}

impl Drop for Progress {
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
