//! The stock of a spawner for the next sandboxes: first processes and templates.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::stdio::stdin;
use rustix::time::Timespec;

use super::first_process;
use super::means::SpawnMeans;
use super::sandbox::Sandbox;
use super::templates::{Stock, Templates};
use super::users::READY;
use crate::{DevicePlace, NetworkAccess, SandboxError, SandboxStatus, Spec, Template, Walls};

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// State from which every sandbox is made.
pub(super) struct Workshop {
    /// First processes without a network. They are dropped, and dead, before the means that they were made with.
    ready: Vec<Sandbox>,
    pub(super) templates: Templates,
    pub(super) means: SpawnMeans,
    /// Whether the latest process that was taken is a copy, or was made ahead of its request. Such a process may have died
    /// without a fault of its program, so it is worthwhile to make another one.
    pub(super) has_used_stock: bool,
}

impl Workshop {
    /// The state of a spawner with these walls; see [`super::run`].
    pub(super) fn open(
        folder: &Path,
        shown: (&[PathBuf], &[DevicePlace]),
        walls: Walls,
    ) -> Result<Workshop, SandboxError> {
        let means = SpawnMeans::open(folder, shown, walls)?;
        let (ready, templates) = (Vec::new(), Templates::default());
        Ok(Workshop { ready, templates, means, has_used_stock: false })
    }

    /// Makes ready what will be asked for, until something is.
    pub(super) fn rest(&mut self) {
        loop {
            while !is_asked(&[], Some(NOW))
                && (self.make_ready()
                    || self.templates.make_ready(&mut self.means)
                    || self.templates.make_standby(&mut self.means))
            {}
            let expected = self.templates.expected();
            if expected.is_empty() || is_asked(&expected, None) {
                return;
            }
        }
    }

    /// Makes one first process if fewer than wanted are ready; says whether it did.
    fn make_ready(&mut self) -> bool {
        if self.ready.len() >= READY {
            return false;
        }
        let made = first_process::blank(&mut self.means, NetworkAccess::None, false);
        let is_made = made.is_ok();
        // The request that needs one gets the error.
        self.ready.extend(made);
        is_made
    }

    /// Takes a copy of a template, or a process on standby with its modules, for a program. Without these it takes a copy of
    /// a template without modules; for an image, the first process of a container, which starts the interpreter anew.
    pub(super) fn copy(
        &mut self,
        template: &Template,
        (program, stock): (&Spec, Stock),
    ) -> Result<Sandbox, SandboxError> {
        if let Some(copy) = self.templates.take(&mut self.means, template, (program, stock))? {
            self.has_used_stock = stock == Stock::Used;
            return Ok(copy);
        }
        let mut sandbox = self.take((NetworkAccess::None, false), stock)?;
        sandbox.set_cold_imports(self.templates.cold_imports(template));
        Ok(sandbox)
    }

    /// Takes a first process that waits for its plan. The prepared ones have no network, and no root beside the
    /// sandbox's user.
    pub(super) fn take(
        &mut self,
        (network, has_root): (NetworkAccess, bool),
        stock: Stock,
    ) -> Result<Sandbox, SandboxError> {
        if has_root {
            return first_process::blank(&mut self.means, network, true);
        }
        while network == NetworkAccess::None
            && stock == Stock::Used
            && let Some(mut sandbox) = self.ready.pop()
        {
            // It may have been killed meanwhile.
            if sandbox.state().status == SandboxStatus::Created {
                self.has_used_stock = true;
                return Ok(sandbox);
            }
        }
        first_process::blank(&mut self.means, network, false)
    }
}

/// Whether a request waits, or the end. Waits so long for that, or for something from one of the others.
fn is_asked(others: &[BorrowedFd<'_>], patience: Option<Timespec>) -> bool {
    let input = stdin();
    let all = std::iter::once(&input).chain(others);
    let mut watched: Vec<_> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let polled = retry_on_intr(|| poll(&mut watched, patience.as_ref()));
    polled.is_err() || !watched[0].revents().is_empty()
}
