//! Single operations on a stream socket. None waits, except [`wait`].

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustix::time::Timespec;

/// Receives the available bytes; 0 at the end, `WouldBlock` if there is nothing now.
pub(crate) fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let received = retry_on_intr(|| rustix::net::recv(socket.as_fd(), &mut *into, RecvFlags::DONTWAIT))?;
    Ok(received.0)
}

/// Sends as many bytes as fit into the socket's buffer; `WouldBlock` if none fit.
pub(crate) fn send(socket: impl AsFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let none = &mut SendAncillaryBuffer::default();
    Ok(retry_on_intr(|| rustix::net::sendmsg(socket.as_fd(), parts, none, flags))?)
}

/// Waits until one of these events occurs, or the other end is gone; false if the deadline came first.
pub(crate) fn wait(socket: impl AsFd, flags: PollFlags, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        // A time that the kernel cannot represent means no limit.
        let left = deadline
            .and_then(|deadline| Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok());
        match poll(&mut [PollFd::new(&socket, flags)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether an error means that the other end is gone.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable, NotConnected,
        TimedOut,
    };
    matches!(
        error.kind(),
        BrokenPipe
            | ConnectionAborted
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
            | NotConnected
            | TimedOut
    )
}
