//! Network namespaces: one for each sandbox that shall reach nothing, made ahead of time since each takes half a
//! millisecond. In each there is nothing but a loopback interface that is down.
//!
//! Whoever starts something in another network has to come back, and without root there is no way back to the machine's
//! own. Then each sandbox makes its own when it is forked.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::system;

/// How many are kept ready.
const READY: usize = 8;
const OWN: &str = "/proc/self/ns/net";

pub(super) struct Networks {
    /// The spawner's.
    home: OwnedFd,
    comes_back: bool,
    ready: Vec<OwnedFd>,
}

impl Networks {
    pub(super) fn open() -> io::Result<Networks> {
        let home = OwnedFd::from(File::open(OWN)?);
        let comes_back = system::enter(home.as_fd(), libc::CLONE_NEWNET).is_ok();
        Ok(Networks { home, comes_back, ready: Vec::new() })
    }

    /// Makes one if fewer than wanted are ready; says whether it did.
    pub(super) fn make_ready(&mut self) -> bool {
        if !self.comes_back || self.ready.len() >= READY {
            return false;
        }
        let made = self.make();
        let is_made = made.is_ok();
        self.ready.extend(made);
        is_made
    }

    /// Forks something into an empty network, with these flags beside its own.
    pub(super) fn within<T>(&mut self, fork: impl FnOnce(i32) -> io::Result<T>) -> io::Result<T> {
        if !self.comes_back {
            return fork(libc::CLONE_NEWNET);
        }
        let network = match self.ready.pop() {
            Some(network) => network,
            None => self.make()?,
        };
        system::enter(network.as_fd(), libc::CLONE_NEWNET)?;
        let done = fork(0);
        system::enter(self.home.as_fd(), libc::CLONE_NEWNET)?;
        done
    }

    fn make(&self) -> io::Result<OwnedFd> {
        system::unshare(libc::CLONE_NEWNET)?;
        let made = File::open(OWN).map(OwnedFd::from);
        system::enter(self.home.as_fd(), libc::CLONE_NEWNET)?;
        made
    }
}
