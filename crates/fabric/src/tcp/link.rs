//! Holds the state of a connection: open, or closed with a reason, which waiting threads report.

use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use rustix::event::{EventfdFlags, epoll, eventfd};

use super::stream::ByteStream;
use crate::FabricError;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// See the [module](self).
pub(super) struct TcpLink {
    /// 1 while there is a connection. Written under the lock of `state`, Release, after it; read by all threads.
    up: AtomicU32,
    /// Number of connections so far. Written under the lock of `state`, before `up`.
    connection: AtomicU32,
    /// 1 while `readable` also reports that the socket accepts data. Written under the lock of `state`.
    wants_space: AtomicU32,
    state: Mutex<State>,
    /// Wakes the reader that sleeps on the stream.
    wake: OnceLock<OwnedFd>,
    readable: OnceLock<Option<OwnedFd>>,
}

struct State {
    reason: String,
    stream: Option<Arc<ByteStream>>,
}

impl TcpLink {
    pub(super) fn new() -> TcpLink {
        let state = State { reason: "it was never connected".into(), stream: None };
        TcpLink {
            up: AtomicU32::new(0),
            connection: AtomicU32::new(0),
            wants_space: AtomicU32::new(0),
            state: Mutex::new(state),
            wake: OnceLock::new(),
            readable: OnceLock::new(),
        }
    }

    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire) == 1
    }

    /// Number of the current connection, or of the last one.
    pub(super) fn connection(&self) -> u32 {
        self.connection.load(Ordering::Acquire)
    }

    /// The error of an operation while there is no connection.
    #[cold]
    pub(super) fn error(&self) -> FabricError {
        FabricError::Disconnected { reason: lock(&self.state).reason.clone() }
    }

    pub(super) fn reason(&self) -> Option<String> {
        if self.is_up() { None } else { Some(lock(&self.state).reason.clone()) }
    }

    /// Makes the descriptor that the first connection needs and later ones reuse.
    pub(super) fn prepare(&self) -> Result<(), FabricError> {
        if self.wake.get().is_none() {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let _ = self.wake.set(made.map_err(|error| FabricError::system("eventfd", error))?);
        }
        Ok(())
    }

    /// Begins a connection.
    pub(super) fn begin(&self, stream: Arc<ByteStream>) {
        let mut state = lock(&self.state);
        self.wants_space.store(0, Ordering::Relaxed);
        self.connection.fetch_add(1, Ordering::AcqRel);
        if let Some(Some(readable)) = self.readable.get() {
            register(readable, &stream);
        }
        state.stream = Some(stream);
        self.up.store(1, Ordering::Release);
    }

    /// Ends the connection. False if there was none: the first reason stays.
    pub(super) fn end(&self, reason: &str) -> bool {
        let mut state = lock(&self.state);
        if self.up.swap(0, Ordering::AcqRel) == 0 {
            return false;
        }
        reason.clone_into(&mut state.reason);
        true
    }

    /// Shuts down the stream, which wakes threads that sleep on it.
    pub(super) fn shutdown(&self, how: Shutdown) {
        if let Some(stream) = &lock(&self.state).stream {
            stream.shutdown(how);
        }
    }

    /// Releases the stream.
    pub(super) fn forget(&self) {
        let stream = lock(&self.state).stream.take();
        if let Some(stream) = stream {
            self.unregister(&stream);
            stream.shutdown(Shutdown::Both);
        }
    }

    /// Wakes the reader, which checks again whether its wait is over.
    #[cold]
    pub(super) fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            // A full counter wakes as well.
            let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn woken_by(&self) -> Option<BorrowedFd<'_>> {
        self.wake.get().map(AsFd::as_fd)
    }

    /// Clears the wake-up after the reader has checked.
    #[cold]
    pub(super) fn clear_wake(&self) {
        if let Some(wake) = self.wake.get() {
            // An empty counter means that another thread has cleared it.
            let _ = rustix::io::read(wake, &mut [0; 8]);
        }
    }

    /// A descriptor that outlives the streams, and is readable when the current one is readable or has ended.
    pub(super) fn readable(&self) -> Option<BorrowedFd<'_>> {
        let made = self.readable.get_or_init(|| {
            let readable = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
            if let Some(stream) = &lock(&self.state).stream {
                register(&readable, stream);
            }
            Some(readable)
        });
        made.as_ref().map(AsFd::as_fd)
    }

    /// Sets whether [`TcpLink::readable`] also reports that the socket accepts data.
    pub(super) fn want_space(&self, wanted: bool) {
        let Some(Some(readable)) = self.readable.get() else { return };
        if self.wants_space.load(Ordering::Acquire) == u32::from(wanted) {
            return;
        }
        let state = lock(&self.state);
        if self.is_up()
            && let Some(fd) = state.stream.as_ref().and_then(|stream| stream.fd())
        {
            let room = if wanted { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            // Fails if the stream has been removed since its end was seen: then there is nothing to report.
            let _ = epoll::modify(readable, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN | room);
            self.wants_space.store(u32::from(wanted), Ordering::Release);
        }
    }

    /// Stops [`TcpLink::readable`] from reporting a stream whose end has been seen.
    pub(super) fn end_seen(&self) {
        if let Some(stream) = &lock(&self.state).stream {
            self.unregister(stream);
        }
    }

    fn unregister(&self, stream: &ByteStream) {
        if let (Some(Some(readable)), Some(fd)) = (self.readable.get(), stream.fd()) {
            // The stream may have been removed before.
            let _ = epoll::delete(readable, fd);
        }
    }
}

fn register(readable: &OwnedFd, stream: &ByteStream) {
    if let Some(fd) = stream.fd() {
        // Refused only for lack of memory; then only waiting threads receive what arrives.
        let _ = epoll::add(readable, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    }
}
