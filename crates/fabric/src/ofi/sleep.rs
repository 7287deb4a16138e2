//! Blocks the reading thread on the network's descriptors and on one of its own.
//!
//! Other threads of this process must be able to wake it there: a thread that publishes a line for it, or ends the
//! connection, writes to an eventfd. The protocol is that of a line's watch: the reader announces its sleep and then
//! checks once more; the other thread does its work and then checks whether the reader sleeps.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};

use crate::FabricError;
use crate::sync::{AtomicU32, Ordering, fence};

/// See the [module](self).
pub struct Sleep {
    /// 1 while the reader sleeps or is about to. The reader writes it, SeqCst, before it checks once more; other
    /// threads check it after their work.
    asleep: AtomicU32,
    /// 1 if there was a poke that was not taken.
    poked: AtomicU32,
    descriptors: Option<WaitDescriptors>,
}

struct WaitDescriptors {
    all: OwnedFd,
    poke: OwnedFd,
}

impl Sleep {
    /// Makes a state in which no thread sleeps. Without descriptors (the process has too many) readers poll every
    /// millisecond.
    pub fn new() -> Sleep {
        Sleep {
            asleep: AtomicU32::new(0),
            poked: AtomicU32::new(0),
            descriptors: WaitDescriptors::new().ok(),
        }
    }

    /// A descriptor that is readable when a thread should check for arrivals, after [`Sleep::watch`].
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.descriptors.as_ref().map(|descriptors| descriptors.all.as_fd())
    }

    /// Adds descriptors that report arrivals, for as long as they are open. A watched descriptor makes each arrival
    /// more expensive.
    pub fn watch(&self, fds: [RawFd; 2]) -> Result<(), FabricError> {
        let Some(descriptors) = &self.descriptors else { return Ok(()) };
        for fd in fds.into_iter().filter(|fd| *fd >= 0) {
            // SAFETY: the link that owns the descriptor is open during the call.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            epoll::add(&descriptors.all, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(|error| FabricError::system("epoll_ctl for a connection's descriptor", error))?;
        }
        Ok(())
    }

    /// Announces the reader's sleep; the reader must check once more before it sleeps.
    pub fn fall_asleep(&self) {
        self.asleep.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Sleeps until a descriptor reports an arrival or a thread pokes the reader, at most for `limit`. Without a
    /// descriptor for completions (the first), for at most a millisecond.
    pub fn sleep(&self, fds: [RawFd; 2], limit: Duration) {
        let limit = if fds[0] < 0 { limit.min(Duration::from_millis(1)) } else { limit };
        match &self.descriptors {
            Some(descriptors) => descriptors.wait(fds, limit),
            None => std::thread::sleep(limit.min(Duration::from_millis(1))),
        }
    }

    /// Records that the reader is awake.
    pub fn awake(&self) {
        self.asleep.store(0, Ordering::SeqCst);
    }

    /// Wakes a sleeping reader after an event that it may wait for.
    #[inline]
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.poke();
        }
    }

    /// Makes the descriptors readable.
    #[cold]
    pub fn poke(&self) {
        if let Some(descriptors) = &self.descriptors {
            // A full counter means that the descriptor is readable already.
            let _ = rustix::io::write(&descriptors.poke, &1u64.to_ne_bytes());
        }
        // Set after the write: a reader that took the note before the write would leave the descriptor readable for
        // good.
        self.poked.store(1, Ordering::SeqCst);
    }

    /// Takes the pokes.
    #[inline]
    pub fn take_pokes(&self) {
        if self.poked.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.poked.store(0, Ordering::SeqCst);
        if let Some(descriptors) = &self.descriptors {
            let _ = rustix::io::read(&descriptors.poke, &mut [0; 8]);
        }
    }
}

impl WaitDescriptors {
    fn new() -> Result<WaitDescriptors, rustix::io::Errno> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let poke = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&all, &poke, epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
        Ok(WaitDescriptors { all, poke })
    }

    fn wait(&self, fds: [RawFd; 2], limit: Duration) {
        let limit = rustix::event::Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        };
        let poll_of = |fd| {
            // SAFETY: if another thread ends the connection now, the number may be closed or name something else: then
            // the sleep ends early or at its limit, and this thread is poked anyway.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            PollFd::from_borrowed_fd(fd, PollFlags::IN)
        };
        let other = |fd: RawFd| poll_of(if fd >= 0 { fd } else { self.poke.as_raw_fd() });
        let mut polled = [PollFd::new(&self.poke, PollFlags::IN), other(fds[0]), other(fds[1])];
        // Every outcome means: check again.
        let _ = poll(&mut polled, Some(&limit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poke_taken_while_it_is_made_leaves_nothing() {
        const ROUNDS: u32 = 20_000;
        let (sleep, begun, made) = (Sleep::new(), AtomicU32::new(0), AtomicU32::new(0));
        let at = |count: &AtomicU32, round| count.load(Ordering::SeqCst) == round;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while !at(&begun, round) {
                        std::thread::yield_now();
                    }
                    sleep.poke();
                    made.store(round, Ordering::SeqCst);
                }
            });
            for round in 1..=ROUNDS {
                begun.store(round, Ordering::SeqCst);
                while !at(&made, round) {
                    sleep.take_pokes();
                    std::thread::yield_now();
                }
                sleep.take_pokes();
                let fd = sleep.readable().unwrap();
                let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
                assert_eq!(poll(&mut polled, Some(&now)).unwrap(), 0, "round {round}");
            }
        });
    }
}
