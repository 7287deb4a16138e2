//! Transports the bytes of a connection: a TCP socket, in the clear or encrypted, or a simulated one in tests. No
//! function waits, except [`ByteStream::poll`] and a handshake.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::encrypted::EncryptedStream;
use super::parts::Part;
use super::stalled::stalled;
use crate::FabricError;
use crate::sim::SimStream;
use crate::tls::{Identity, TlsStream};

/// The transport of a connection's bytes.
pub struct ByteStream(StreamKind);

enum StreamKind {
    Plain(TcpStream),
    Encrypted(Box<EncryptedStream>),
    Sim(SimStream),
}

/// Result of a [`ByteStream::poll`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamReadiness {
    pub(super) readable: bool,
    pub(super) woken: bool,
}

/// Events that a [`ByteStream::poll`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    Readable,
    Writable,
    ReadableOrWritable,
}

impl ByteStream {
    /// Makes a stream of unencrypted frames. The caller has prepared the socket (see [`crate::greeting`]) and
    /// authenticated the peer.
    pub fn plain(socket: TcpStream) -> Result<ByteStream, FabricError> {
        socket.set_nodelay(true).map_err(|error| FabricError::system("TCP_NODELAY", error))?;
        Ok(ByteStream(StreamKind::Plain(socket)))
    }

    /// Makes a stream of encrypted frames, after a handshake with the owner of this certificate (DER), within seconds.
    pub fn encrypted_client(socket: TcpStream, certificate: &[u8]) -> Result<ByteStream, FabricError> {
        Ok(ByteStream(StreamKind::Encrypted(Box::new(EncryptedStream::new(TlsStream::client(
            socket,
            certificate,
        )?)))))
    }

    /// Makes a stream of encrypted frames, after a handshake with a client that knows this identity's certificate,
    /// within seconds.
    pub fn encrypted_server(socket: TcpStream, identity: &Identity) -> Result<ByteStream, FabricError> {
        Ok(ByteStream(StreamKind::Encrypted(Box::new(EncryptedStream::new(TlsStream::server(
            socket, identity,
        )?)))))
    }

    /// Makes a stream of one end of a simulated one.
    #[doc(hidden)]
    pub fn sim(end: SimStream) -> ByteStream {
        ByteStream(StreamKind::Sim(end))
    }

    /// Whether the stream is a simulated one.
    pub(super) fn is_sim(&self) -> bool {
        matches!(self.0, StreamKind::Sim(_))
    }

    /// Receives available bytes into two ranges of memory, one after the other. `Ok(0)`: the peer has ended the stream.
    ///
    /// # Safety
    /// Both parts must be writable.
    #[inline]
    pub(super) unsafe fn recv(&self, into: &[Part; 2]) -> io::Result<usize> {
        match &self.0 {
            // SAFETY: the caller's duty.
            StreamKind::Plain(socket) => unsafe { recv(socket, into) },
            // SAFETY: the caller's duty.
            StreamKind::Encrypted(session) => unsafe { session.recv(into) },
            // SAFETY: the caller's duty.
            StreamKind::Sim(end) => unsafe { end.recv(into) },
        }
    }

    /// Accepts as much of these ranges of memory as possible without waiting.
    ///
    /// # Safety
    /// All parts must be readable.
    #[inline]
    pub(super) unsafe fn send(&self, parts: &[Part]) -> io::Result<usize> {
        match &self.0 {
            // SAFETY: the caller's duty.
            StreamKind::Plain(socket) => unsafe { send(socket, parts) },
            // SAFETY: the caller's duty.
            StreamKind::Encrypted(session) => unsafe { session.send(parts) },
            // SAFETY: the caller's duty.
            StreamKind::Sim(end) => unsafe { end.send(parts) },
        }
    }

    /// Sends accepted bytes that have not been passed to the kernel yet.
    #[inline]
    pub(super) fn flush(&self) -> io::Result<()> {
        match &self.0 {
            StreamKind::Encrypted(session) => session.flush(),
            StreamKind::Plain(_) | StreamKind::Sim(_) => Ok(()),
        }
    }

    /// Whether [`ByteStream::flush`] has bytes to send.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        matches!(&self.0, StreamKind::Encrypted(session) if session.has_unsent())
    }

    /// Whether bytes have arrived that a poll of the descriptor does not report.
    #[inline]
    pub(super) fn is_buffered(&self) -> bool {
        matches!(&self.0, StreamKind::Encrypted(session) if session.is_buffered())
    }

    /// Sleeps until one of the events occurs, `wake` is readable, or the time has passed. May return early.
    pub(super) fn poll(
        &self,
        until: Until,
        wake: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> StreamReadiness {
        match &self.0 {
            StreamKind::Encrypted(session) if session.is_buffered() => {
                StreamReadiness { readable: true, woken: false }
            }
            StreamKind::Encrypted(session) => poll(session.socket.as_fd(), until, wake, timeout),
            StreamKind::Plain(socket) => poll(socket.as_fd(), until, wake, timeout),
            StreamKind::Sim(end) => {
                end.wait(timeout);
                StreamReadiness { readable: true, woken: true }
            }
        }
    }

    /// Reason why sent data will not arrive, if that is so.
    #[cold]
    pub(super) fn stalled(&self) -> Option<String> {
        match &self.0 {
            StreamKind::Plain(socket) => stalled(socket),
            StreamKind::Encrypted(session) => stalled(&session.socket),
            StreamKind::Sim(_) => None,
        }
    }

    /// Ends the stream in one direction or in both, and wakes the threads that sleep on it.
    pub(super) fn shutdown(&self, how: Shutdown) {
        match &self.0 {
            // A socket that the peer has ended already needs no shutdown.
            StreamKind::Plain(socket) => drop(socket.shutdown(how)),
            StreamKind::Encrypted(session) => drop(session.socket.shutdown(how)),
            StreamKind::Sim(end) => end.shutdown(how),
        }
    }

    /// The descriptor to poll, if there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0 {
            StreamKind::Plain(socket) => Some(socket.as_fd()),
            StreamKind::Encrypted(session) => Some(session.socket.as_fd()),
            StreamKind::Sim(_) => None,
        }
    }
}

/// Most bytes that are read and discarded at the end of a stream. A socket that is closed with unread bytes resets the
/// connection at once, and the bytes sent last, such as the reason of the end, are lost.
const MAX_DISCARDED_BYTES: usize = 4 << 20;

impl Drop for ByteStream {
    fn drop(&mut self) {
        let socket = match &self.0 {
            StreamKind::Plain(socket) => socket,
            StreamKind::Encrypted(session) => {
                session.close();
                &*session.socket
            }
            StreamKind::Sim(_) => return,
        };
        let _ = socket.shutdown(Shutdown::Write);
        let mut discarded = 0;
        let mut bytes = [0; 16 << 10];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        while discarded < MAX_DISCARDED_BYTES {
            match rustix::net::recv(socket, &mut bytes, flags) {
                Ok((len, _)) if len > 0 => discarded += len,
                _ => return,
            }
        }
    }
}

/// # Safety
/// Both parts must be writable.
#[inline]
unsafe fn recv(socket: &TcpStream, into: &[Part; 2]) -> io::Result<usize> {
    let fd = socket.as_raw_fd();
    let received = if into[0].iov_len == 0 {
        // SAFETY: the caller's duty.
        unsafe { libc::recv(fd, into[1].iov_base, into[1].iov_len, libc::MSG_DONTWAIT) }
    } else {
        // The kernel does not write the list.
        let mut message = message(into);
        // SAFETY: the caller's duty; the message outlives the call.
        unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) }
    };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// # Safety
/// All parts must be readable.
#[inline]
unsafe fn send(socket: &TcpStream, parts: &[Part]) -> io::Result<usize> {
    const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let fd = socket.as_raw_fd();
    let sent = match parts {
        // SAFETY: the caller's duty.
        [part] => unsafe { libc::send(fd, part.iov_base, part.iov_len, FLAGS) },
        parts => {
            let message = message(parts);
            // SAFETY: the caller's duty; the message outlives the call.
            unsafe { libc::sendmsg(fd, &raw const message, FLAGS) }
        }
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn message(parts: &[Part]) -> libc::msghdr {
    // SAFETY: all fields are integers or pointers, for which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len() as _;
    message
}

fn poll(
    socket: BorrowedFd<'_>,
    until: Until,
    wake: Option<BorrowedFd<'_>>,
    timeout: Option<Duration>,
) -> StreamReadiness {
    let events = match until {
        Until::Readable => PollFlags::IN,
        Until::Writable => PollFlags::OUT,
        Until::ReadableOrWritable => PollFlags::IN | PollFlags::OUT,
    };
    let socket = PollFd::from_borrowed_fd(socket, events);
    let mut fds = [socket.clone(), wake.map_or(socket, |wake| PollFd::from_borrowed_fd(wake, PollFlags::IN))];
    let count = 1 + usize::from(wake.is_some());
    let timeout = timeout.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    // A signal is an early return.
    match rustix::event::poll(&mut fds[..count], timeout.as_ref()) {
        Ok(_) => StreamReadiness {
            readable: fds[0].revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            woken: wake.is_some() && !fds[1].revents().is_empty(),
        },
        Err(_) => StreamReadiness::default(),
    }
}
