//! The inside of a template: what the library does that an interpreter loads to be forked.
//!
//! ```text
//! spawner                     template, an interpreter with its modules
//!    │◄── warm ───────────────────┤
//!    ├─── fork, connection ──────►│ clone: namespaces ─────────► a sandbox's first process, a child of the spawner's
//!    │◄── its descriptor ─────────┤                              │ as any first process: go, plan, made, start
//!    :                            :                              │ fork ──────────► the program's process, which
//!    :                            :                              :                  │ returns into the interpreter
//!    │◄── started, running ───────────────────────────────────────────────────────────┤ and becomes the program
//! ```
//!
//! Before the plan of its program a copy may be put on standby: it then imports modules, and waits. Only such a process has
//! modules that start threads or keep files open, since it is forked no more.
//!
//! A copy has only the one thread of a runtime that forks ([`Threads`]), and only the open files that can be made
//! again, so that no two copies share anything.

mod descriptors;
mod threads;

use std::ffi::{CString, OsString};
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::rc::Rc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::stdio::stdin;
use sublet_proto::v1::{ColdImports, TemplateFork, TemplateState};

use crate::inside::ahead::{self, Ahead};
use crate::inside::seccomp::Filters;
use crate::inside::{Blank, CreationPlan, NAMESPACES, contained_standby};
use crate::system::{self, Clone, Fork};
use crate::{USER, Walls, wire};
use descriptors::Descriptors;

pub use threads::Threads;

/// Actions of a language runtime before and after a fork.
pub trait Runtime {
    /// Threads that the runtime may have.
    const THREADS: Threads;

    /// Called in the template before each fork.
    fn before_fork(&mut self);
    /// Called in the template after each fork.
    fn after_fork(&mut self);
}

/// Copy of the template, in a sandbox of its own, that waits for its program. The present process is this copy.
pub struct WaitingCopy {
    ahead: Ahead,
    /// Descriptors of the template, until this copy has made its own; or why its libraries could not be opened again.
    descriptors: io::Result<Option<Descriptors>>,
}

/// Modules that a copy on standby imports before its program is known.
#[derive(Debug)]
pub struct StandbyImports {
    /// Names of the modules.
    pub modules: Vec<OsString>,
    /// Environment of the program, NAME=VALUE, which modules may read.
    pub env: Vec<OsString>,
}

/// Program that this process becomes. The process has its control socket as standard input, and no other descriptors
/// than the standard ones and those that were made again.
#[derive(Debug)]
pub struct TemplateProgram {
    /// Source file of the program.
    pub path: PathBuf,
    /// Arguments of the program, without its name.
    pub args: Vec<OsString>,
    /// Whole environment of the program, NAME=VALUE.
    pub env: Vec<OsString>,
}

/// Reports to the spawner, at the other end of standard input, that the runtime is warm, and forks the runtime at each
/// order of the spawner. The template never returns from here; each copy of it does. A copy must still do what the
/// runtime does in a new process.
///
/// # Errors
/// If this process has threads or open files that a copy cannot have, or if the spawner cannot be reached. The spawner
/// gets the reason why a copy cannot be made.
pub fn serve<R: Runtime>(runtime: &mut R) -> io::Result<WaitingCopy> {
    let descriptors = Descriptors::of_this_process()?;
    R::THREADS.await_them()?;
    let filters = Rc::new(Filters::compile());
    tell(0, Ok(None))?;
    loop {
        let Some((TemplateFork { number, leaves_groups, weak }, mut fds)) = wire::receive(stdin())? else {
            // The spawner is gone.
            system::leave(0)
        };
        let Some(link) = fds.pop() else { return Err(io::ErrorKind::InvalidData.into()) };
        let (walls, flags) = match weak {
            false => (Walls::Full, NAMESPACES | libc::CLONE_NEWNET),
            true => (Walls::Weak, 0),
        };
        let (filters, kept) = (filters.clone(), descriptors.numbers());
        let blank = Blank { link, user: USER, leaves_groups, filters, kept, walls };
        R::THREADS.await_them()?;
        runtime.before_fork();
        match system::clone(Clone { flags, cgroup: None, is_sibling: true }) {
            Ok(Fork::Child) => {
                // The sandbox may get another root, beneath which Landlock then finds none of these files. Its first
                // process changes the root of both, so the files are opened before there are two.
                let descriptors = descriptors.reopen_libraries().map(|()| Some(descriptors));
                return Ok(WaitingCopy { ahead: ahead::live(blank), descriptors });
            }
            Ok(Fork::Parent(_, process)) => {
                runtime.after_fork();
                tell(number, Ok(Some(process)))?;
            }
            Err(error) => {
                runtime.after_fork();
                tell(number, Err(error))?;
            }
        }
    }
}

/// Returns the reason why this process cannot be a template now, as a verb and its object: `starts 2 threads`. Nothing
/// if [`serve`] would succeed.
pub fn obstacle<R: Runtime>() -> Option<String> {
    let checked = Descriptors::of_this_process().and_then(|_| R::THREADS.await_them());
    checked.err().map(|error| error.to_string())
}

/// Tells the spawner, at the other end of standard input, that this process never becomes a template, and why. The spawner
/// kills it.
///
/// # Errors
/// If the spawner cannot be reached.
pub fn refuse(cold_imports: ColdImports) -> io::Result<()> {
    let state = TemplateState { warm: true, cold_imports: Some(cold_imports), ..TemplateState::default() };
    wire::send(stdin(), &state, &[])
}

fn tell(number: u32, outcome: io::Result<Option<OwnedFd>>) -> io::Result<()> {
    let (process, errno) = match outcome {
        Ok(process) => (process, 0),
        Err(error) => (None, error.raw_os_error().unwrap_or(libc::EINVAL)),
    };
    let fds: Vec<_> = process.iter().map(AsFd::as_fd).collect();
    wire::send(stdin(), &TemplateState { warm: true, number, errno, cold_imports: None }, &fds)
}

/// Waits until a descriptor is readable, or its other end is closed.
///
/// # Errors
/// What the system says.
pub fn await_readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    retry_on_intr(|| poll(&mut [PollFd::new(&fd, PollFlags::IN)], None))?;
    Ok(())
}

impl WaitingCopy {
    /// Waits for the first order, and returns the modules to import if this copy is put on standby: it has all restrictions
    /// of its sandbox by then. Returns nothing if the program is known, which [`WaitingCopy::become_program`] then returns.
    /// Ends the process if it is not wanted any more.
    pub fn await_imports(&mut self) -> Option<StandbyImports> {
        let WaitingCopy { ahead, descriptors } = self;
        let plan = ahead.await_standby(|| make_again(mem::replace(descriptors, Ok(None))))?;
        let (_, words, env) = plan.into_program();
        Some(StandbyImports {
            modules: words.into_iter().skip(1).map(text).collect(),
            env: env.into_iter().map(text).collect(),
        })
    }

    /// Tells the spawner that the modules are imported.
    ///
    /// # Errors
    /// If the spawner cannot be reached.
    pub fn tell_waiting(&self) -> io::Result<()> {
        self.ahead.tell_waiting()
    }

    /// Connection of a copy on standby that is readable once the program is known.
    pub fn orders(&self) -> BorrowedFd<'_> {
        self.ahead.orders()
    }

    /// Waits for the program and the order to start it. Ends the process if it is not wanted any more.
    pub fn become_program(self) -> TemplateProgram {
        let WaitingCopy { ahead, descriptors } = self;
        program_of(ahead.become_program(|| make_again(descriptors)))
    }
}

/// In an interpreter that is on standby in a container of its image: reports that the modules are imported, and waits until
/// [`contained_program`] can return the program.
///
/// # Errors
/// If the first process of the sandbox cannot be reached.
pub fn await_contained_program() -> io::Result<()> {
    contained_standby::tell_waiting()?;
    await_readable(stdin())
}

/// Returns the program of an interpreter that was on standby in a container of its image, once it is to be started: this process
/// has the descriptors of the program by then. Ends the process if it is not wanted any more.
///
/// # Errors
/// If the plan of the program is not complete, or a descriptor cannot be set.
pub fn contained_program() -> io::Result<TemplateProgram> {
    Ok(program_of(contained_standby::become_program()?))
}

fn program_of(plan: CreationPlan) -> TemplateProgram {
    let (program, words, env) = plan.into_program();
    TemplateProgram {
        path: text(program).into(),
        args: words.into_iter().skip(1).map(text).collect(),
        env: env.into_iter().map(text).collect(),
    }
}

fn make_again(descriptors: io::Result<Option<Descriptors>>) -> io::Result<()> {
    descriptors?.map_or(Ok(()), |descriptors| descriptors.make_again())
}

fn text(text: CString) -> OsString {
    OsString::from_vec(text.into_bytes())
}
