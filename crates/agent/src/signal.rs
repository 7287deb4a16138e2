//! Wakes threads of the agent out of a `poll`: event descriptors, and waiting for several descriptors.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

/// An event that is readable for every thread that polls it, from when it is raised until it is cleared.
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

    pub(crate) fn clear(&self) {
        // Fails only if it was not raised.
        let _ = rustix::io::read(&self.fd, &mut [0; size_of::<u64>()]);
    }
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A request to a lease's supervisor to end the lease at some time. The earliest end counts, with its reason.
#[derive(Debug)]
pub(crate) struct EndRequest {
    /// Raised while there is something that the supervisor has not taken note of.
    pub(crate) signal: Signal,
    wanted: Mutex<Option<WantedEnd>>,
}

/// Time at which a lease shall end, and the reason that its client receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WantedEnd {
    pub(crate) reason: Error,
    pub(crate) at: Instant,
}

impl EndRequest {
    pub(crate) fn new() -> Result<EndRequest, Error> {
        Ok(EndRequest { signal: Signal::new()?, wanted: Mutex::new(None) })
    }

    /// Requests an end. It has no effect if an end no later is requested already.
    pub(crate) fn raise(&self, end: WantedEnd) {
        let mut wanted = lock(&self.wanted);
        if wanted.as_ref().is_none_or(|before| end.at < before.at) {
            *wanted = Some(end);
            self.signal.raise();
        }
    }

    /// Returns the end that is requested now. The signal is quiet until that changes.
    pub(crate) fn take_note(&self) -> Option<WantedEnd> {
        self.signal.clear();
        lock(&self.wanted).clone()
    }
}

/// Condition to wait for at a descriptor.
#[derive(Clone, Copy)]
pub(crate) enum DescriptorWatch<'fd> {
    /// There is something to be read, or the other end is closed.
    Readable(BorrowedFd<'fd>),
    /// The other end is closed.
    Closed(BorrowedFd<'fd>),
}

/// Waits until one of the descriptors is readable or closed at its other end, or the deadline has passed; says which
/// are. An absent descriptor never is.
pub(crate) fn wait_readable<const N: usize>(
    fds: [Option<BorrowedFd<'_>>; N],
    deadline: Option<Instant>,
) -> Result<[bool; N], Error> {
    wait_for(fds.map(|fd| fd.map(DescriptorWatch::Readable)), deadline)
}

/// Waits like [`wait_readable`], with a condition for each descriptor.
pub(crate) fn wait_for<const N: usize>(
    watches: [Option<DescriptorWatch<'_>>; N],
    deadline: Option<Instant>,
) -> Result<[bool; N], Error> {
    let mut polled: Vec<_> = watches.iter().flatten().map(poll_fd).collect();
    loop {
        // A deadline beyond what the kernel can represent means no deadline.
        let left = deadline
            .and_then(|deadline| Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok());
        match poll(&mut polled, left.as_ref()) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::new(Code::System, format!("poll failed: {errno}"))),
        }
    }
    let mut results = polled.iter().map(|fd| !fd.revents().is_empty());
    Ok(watches.map(|watch| watch.is_some() && results.next() == Some(true)))
}

/// Translates a condition for `poll`. The kernel reports a closed other end of every descriptor, whatever is requested.
fn poll_fd<'fd>(watch: &DescriptorWatch<'fd>) -> PollFd<'fd> {
    match *watch {
        DescriptorWatch::Readable(fd) => PollFd::from_borrowed_fd(fd, PollFlags::IN),
        // For a stream the kernel reports that only on request.
        DescriptorWatch::Closed(fd) => PollFd::from_borrowed_fd(fd, PollFlags::RDHUP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use sublet_fabric::packet::PacketSocket;

    #[test]
    fn a_raised_signal_stays_readable_an_absent_one_never_is() {
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
    fn a_cleared_signal_is_quiet_until_it_is_raised_again() {
        let signal = Signal::new().unwrap();
        let is_raised = || wait_readable([Some(signal.as_fd())], Some(Instant::now())).unwrap()[0];
        signal.clear();
        assert!(!is_raised());
        signal.raise();
        signal.raise();
        signal.clear();
        assert!(!is_raised());
        signal.raise();
        assert!(is_raised());
    }

    #[test]
    fn distinguishes_a_closed_end_from_a_readable_one() {
        let (here, there) = PacketSocket::pair().unwrap();
        there.send(b"x", &[]).unwrap();
        let look = || {
            let watches =
                [Some(DescriptorWatch::Readable(here.as_fd())), Some(DescriptorWatch::Closed(here.as_fd()))];
            wait_for(watches, Some(Instant::now())).unwrap()
        };
        assert_eq!(look(), [true, false]);
        drop(there);
        assert_eq!(look(), [true, true]);
    }

    #[test]
    fn the_earliest_end_request_counts_and_is_noted_once() {
        let request = EndRequest::new().unwrap();
        assert_eq!(request.take_note(), None);
        let now = Instant::now();
        let end = |after_s, why: &str| WantedEnd {
            reason: Error::new(Code::LeaseEnded, why),
            at: now + Duration::from_secs(after_s),
        };
        let is_news = || wait_readable([Some(request.signal.as_fd())], Some(now)).unwrap()[0];
        request.raise(end(20, "first"));
        request.raise(end(30, "later"));
        assert!(is_news());
        assert_eq!(request.take_note(), Some(end(20, "first")));
        request.raise(end(20, "no sooner"));
        assert!(!is_news());
        request.raise(end(1, "sooner"));
        assert!(is_news());
        assert_eq!(request.take_note(), Some(end(1, "sooner")));
    }
}
