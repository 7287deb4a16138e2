//! The spawner: a process with a single thread that makes all sandboxes of one agent, and ends with it.
//!
//! It answers one request after the other. Without requests it only prepares the first processes of the next sandboxes,
//! which wait in their namespaces and control groups for their plans. Its only connection is its standard input; when
//! the other end is closed the spawner ends, and with it everything that it has started.
//!
//! If the machine lacks control groups or users of their own for sandboxes, the spawner does without, as `strengths`
//! reports. Every sandbox always has no capabilities and few system calls, and, but for weak isolation, namespaces and
//! a root of its own.

mod birth;
pub(crate) mod cgroups;
mod link;
mod look;
mod opened_files;
mod root;
mod sandbox;
mod table;
mod template;
mod templates;
mod users;
mod view;
mod weak;

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Mode;
use rustix::io::retry_on_intr;
use rustix::stdio::stdin;
use rustix::time::Timespec;
use sublet_proto::v1::{SandboxReply, SandboxRequest};

use crate::inside::seccomp::Filters;
use crate::{NetworkAccess, SandboxError, SandboxStatus, Walls, system, wire};
use cgroups::Cgroups;
use opened_files::OpenedFiles;
use sandbox::Sandbox;
use table::SandboxTable;
use templates::Templates;
use users::UserRange;
use view::Views;
use weak::WeakRoot;

/// Argument with which the spawner makes sandboxes of weak isolation.
pub const WEAK: &str = "--weak";

/// Operation that fails on kernels that are too old.
const NO_MOUNT_CALLS: &str = "mounting the root of sandboxes (by mount_setattr, which Linux has from 5.12 on, and this machine has not)";
/// Number of first processes that are kept ready.
const READY: usize = 8;
/// Umask of the spawner and of every sandbox, whichever umask the agent has: other users may read new files.
const UMASK: Mode = Mode::WGRP.union(Mode::WOTH);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// State from which every sandbox is made.
struct Workshop {
    /// First processes without a network. They are dropped, and dead, before the means that they were made with.
    ready: Vec<Sandbox>,
    templates: Templates,
    means: SpawnMeans,
}

/// Means by which every first process is made.
struct SpawnMeans {
    cgroups: Cgroups,
    users: UserRange,
    filters: Rc<Filters>,
    root: SandboxRoot,
}

/// Files of the host that sandboxes see.
enum SandboxRoot {
    /// Sandboxes have a root of their own.
    Own(OwnRoot),
    /// Sandboxes see the host's root.
    Weak(WeakRoot),
}

/// Parts of the roots that sandboxes have for themselves.
struct OwnRoot {
    views: Views,
    opened: OpenedFiles,
    /// Paths of the host that are shown beneath [`crate::SCRATCH`], without the first slash.
    kept: Vec<CString>,
}

/// Prints how strong sandboxes are here, a wall in each line. The folder is as for [`run`].
pub fn look(folder: &Path) {
    for finding in look::findings(folder) {
        println!("{}", finding.line());
    }
}

/// Returns the status to end with, if this process is in the sandbox that [`look`] has made.
pub fn trial() -> Option<i32> {
    std::env::args_os().nth(1).is_some_and(|word| word == look::INSIDE).then(look::inside)
}

/// Serves until the other end of standard input is closed. The folder is an existing one, over which the root that
/// all have in common is mounted in a namespace of this process's own; sandboxes are shown these paths of the host, too.
/// With weak walls nothing is mounted.
pub fn run(folder: &Path, shown: &[PathBuf], walls: Walls) {
    // The first three only: nothing in this process owns others yet.
    let closed = system::keep_only(&mut [0, 1, 2]);
    let opened = closed.map_err(|error| SandboxError::system("closing descriptors", error));
    let mut served = opened.and_then(|()| Workshop::open(folder, shown, walls)).map(SandboxTable::new);
    if let Ok(table) = &served {
        look::warn_of_missing_shares(table.workshop.means.cgroups.describe());
    }
    loop {
        if let Ok(table) = &mut served {
            table.workshop.rest();
        }
        let (reply, fds) = match wire::receive::<SandboxRequest>(stdin()) {
            Ok(None) | Err(_) => return,
            Ok(Some((request, fds))) => match &mut served {
                Ok(table) => table.serve(request, fds),
                Err(error) => (table::refuse(&request, error), Vec::new()),
            },
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let reply = SandboxReply { answers: reply, served: true };
        if wire::send(stdin(), &reply, &fds).is_err() {
            return;
        }
    }
}

impl Workshop {
    fn open(folder: &Path, shown: &[PathBuf], walls: Walls) -> Result<Workshop, SandboxError> {
        let failed = |what: &'static str| move |error: std::io::Error| SandboxError::system(what, error);
        // Sandboxes are other users, and have to read the files that this process makes.
        rustix::process::umask(UMASK);
        // Control groups are opened before the namespaces, in which the name of this process's group would be another.
        let cgroups = Cgroups::open();
        let shown = root::outermost(shown);
        let (users, root) = match walls {
            Walls::Full => {
                let users = UserRange::enter().map_err(failed("entering a user namespace"))?;
                let root = OwnRoot::mount(folder, &shown, &users).map_err(|error| {
                    let is_missing = error.raw_os_error() == Some(libc::ENOSYS);
                    let what = "mounting the root of sandboxes";
                    SandboxError::system(if is_missing { NO_MOUNT_CALLS } else { what }, error)
                })?;
                (users, SandboxRoot::Own(root))
            }
            Walls::Weak => {
                let root = WeakRoot::open(shown).map_err(failed("isolating weakly"))?;
                (UserRange::own(), SandboxRoot::Weak(root))
            }
        };
        let means = SpawnMeans { cgroups, users, filters: Filters::compile().into(), root };
        Ok(Workshop { ready: Vec::new(), templates: Templates::default(), means })
    }

    /// Makes ready what will be asked for, until something is.
    fn rest(&mut self) {
        loop {
            while !is_asked(&[], Some(NOW))
                && (self.make_ready() || self.templates.make_ready(&mut self.means))
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
        let made = birth::blank(&mut self.means, NetworkAccess::None, false);
        let is_made = made.is_ok();
        // The request that needs one gets the error.
        self.ready.extend(made);
        is_made
    }

    /// Takes a first process that waits for its plan. The prepared ones have no network, and no root beside the
    /// sandbox's user.
    fn take(&mut self, network: NetworkAccess, has_root: bool) -> Result<Sandbox, SandboxError> {
        if has_root {
            return birth::blank(&mut self.means, network, true);
        }
        while let (NetworkAccess::None, Some(mut sandbox)) = (network, self.ready.pop()) {
            // It may have been killed meanwhile.
            if sandbox.state().status == SandboxStatus::Created {
                return Ok(sandbox);
            }
        }
        birth::blank(&mut self.means, network, false)
    }
}

impl SpawnMeans {
    fn walls(&self) -> Walls {
        match self.root {
            SandboxRoot::Own(_) => Walls::Full,
            SandboxRoot::Weak(_) => Walls::Weak,
        }
    }
}

impl SandboxRoot {
    /// # Errors
    /// If sandboxes see the host's root.
    fn own(&mut self) -> Result<&mut OwnRoot, SandboxError> {
        match self {
            SandboxRoot::Own(root) => Ok(root),
            SandboxRoot::Weak(_) => Err(WeakRoot::refusal("a root of its own")),
        }
    }
}

impl OwnRoot {
    fn mount(folder: &Path, shown: &[PathBuf], users: &UserRange) -> std::io::Result<OwnRoot> {
        root::unshare_mounts()?;
        let views = Views::open(folder)?;
        let mut opened = OpenedFiles::open(folder, users.are_own())?;
        root::mount_common(folder, shown, &views, &mut opened)?;
        Ok(OwnRoot { views, opened, kept: root::beneath_scratch(shown) })
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
