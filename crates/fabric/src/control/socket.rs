//! Single steps on a stream socket: none waits, but the one that says so.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use rustix::time::Timespec;

/// Receives what is there; 0 at the end, `WouldBlock` if there is nothing now.
pub(crate) fn receive(socket: impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    let received = retry_on_intr(|| rustix::net::recv(socket.as_fd(), &mut *into, RecvFlags::DONTWAIT))?;
    Ok(received.0)
}

/// Sends what fits into the socket's buffer; `WouldBlock` if nothing does.
pub(crate) fn send(socket: impl AsFd, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let none = &mut SendAncillaryBuffer::default();
    Ok(retry_on_intr(|| rustix::net::sendmsg(socket.as_fd(), parts, none, flags))?)
}

/// Waits until one of these is so, or the other end is gone; false if the deadline came first.
pub(crate) fn wait(socket: impl AsFd, flags: PollFlags, deadline: Option<Instant>) -> io::Result<bool> {
    loop {
        // A time beyond what the kernel can say is as good as for ever.
        let left = deadline
            .and_then(|deadline| Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok());
        match poll(&mut [PollFd::new(&socket, flags)], left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether an error says that the other end is gone.
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
