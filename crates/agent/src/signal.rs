//! How threads of the agent wake each other out of a `poll`: event descriptors, and waiting for several descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use sublet_proto::{Code, Error};

use crate::lock;

/// Raised once and for all: readable from then on, for everybody who polls it.
#[derive(Debug)]
pub(crate) struct Signal {
    fd: OwnedFd,
}

impl Signal {
    pub(crate) fn new() -> Result<Signal, Error> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|fd| Signal { fd })
            .map_err(|errno| Error::new(Code::System, format!("eventfd failed: {errno}")))
    }

    pub(crate) fn raise(&self) {
        // Fails only if it was raised 2^64 - 2 times, and is readable then.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Asks a lease's supervisor to end the lease. The first reason counts.
#[derive(Debug)]
pub(crate) struct EndRequest {
    pub(crate) signal: Signal,
    reason: Mutex<Option<Error>>,
}

impl EndRequest {
    pub(crate) fn new() -> Result<EndRequest, Error> {
        Ok(EndRequest { signal: Signal::new()?, reason: Mutex::new(None) })
    }

    pub(crate) fn raise(&self, reason: Error) {
        lock(&self.reason).get_or_insert(reason);
        self.signal.raise();
    }

    pub(crate) fn reason(&self) -> Option<Error> {
        lock(&self.reason).clone()
    }
}

/// Waits until one of the descriptors is readable or closed at its other end, or the deadline has passed; says which
/// are. An absent descriptor never is.
pub(crate) fn wait_readable<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    deadline: Option<Instant>,
) -> Result<[bool; N], Error> {
    let mut polled: Vec<_> =
        fds.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        // A time beyond what the kernel can say is as good as for ever.
        let left = deadline
            .and_then(|deadline| Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok());
        match poll(&mut polled, left.as_ref()) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::new(Code::System, format!("poll failed: {errno}"))),
        }
    }
    let mut results = polled.iter().map(|fd| !fd.revents().is_empty());
    Ok(fds.map(|fd| fd.is_some() && results.next() == Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_raised_signal_stays_raised_and_an_absent_one_never_is() {
        let (quiet, raised) = (Signal::new().unwrap(), Signal::new().unwrap());
        raised.raise();
        raised.raise();
        for _ in 0..2 {
            let fds = [Some(quiet.as_fd()), None, Some(raised.as_fd())];
            assert_eq!(wait_readable(fds, None).unwrap(), [false, false, true]);
        }
        let soon = Instant::now() + Duration::from_millis(5);
        assert_eq!(wait_readable([Some(quiet.as_fd())], Some(soon)).unwrap(), [false]);
    }

    #[test]
    fn the_first_reason_to_end_counts() {
        let request = EndRequest::new().unwrap();
        assert_eq!(request.reason(), None);
        request.raise(Error::new(Code::LeaseEnded, "first"));
        request.raise(Error::new(Code::LeaseEnded, "second"));
        assert_eq!(request.reason().unwrap().message, "first");
    }
}
