//! The bare process: what agents start workers as until they have a spawner. It is not isolated but by what its program
//! does to itself. The verbs are those of the crate.
//!
//! Invariants:
//! - Whoever drops its [`Sandboxes`] leaves no process behind.
//! - A sandbox that runs is never forgotten: `delete` refuses it.
//! - Nothing here waits, but for the end of what was just killed while a table is dropped. Callers who want to hear
//!   of an end poll [`Sandboxes::exit_fd`].

mod error;
mod process;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

pub use error::SandboxError;
use process::Process;
pub use rustix::process::Signal;

/// Most sandboxes of one table.
pub const MAX_SANDBOXES: usize = 4096;

/// One sandbox of one [`Sandboxes`] table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a sandbox isolates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A process of this user that restricts itself before it runs foreign code.
    Process,
}

/// What a sandbox is made of.
#[derive(Debug)]
pub struct Spec {
    /// How it isolates.
    pub kind: Kind,
    /// The program; a path, not looked up.
    pub program: PathBuf,
    /// Its arguments, without its name.
    pub args: Vec<OsString>,
    /// Its environment, apart from what every sandbox inherits (`PATH`, `LANG` and `SUBLET_...`).
    pub env: Vec<(OsString, OsString)>,
    /// Its connection to the outside: the program finds it as descriptor 0.
    pub control: OwnedFd,
}

/// Where a sandbox stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Being made. A kind whose `create` is immediate never shows it.
    Creating,
    /// Made; the program does not run yet.
    Created,
    /// The program runs.
    Running,
    /// The program has ended.
    Stopped,
}

/// How a sandbox's program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It left with this status.
    Status(i32),
    /// This signal killed it.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Exit::Status(status) => write!(f, "exited with status {status}"),
            Exit::Signal(number) => match process::signal_name(number) {
                Some(name) => write!(f, "killed by {name}"),
                None => write!(f, "killed by signal {number}"),
            },
        }
    }
}

/// What `state` tells about one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Where it stands.
    pub status: Status,
    /// The program's process, from its start on.
    pub pid: Option<u32>,
    /// How it ended, once it is stopped.
    pub exit: Option<Exit>,
}

/// A table of sandboxes of any kind, owned by the one thread that supervises them.
///
/// That thread must outlive them: a worker asks the kernel to be killed when the thread that started it ends.
#[derive(Debug, Default)]
pub struct Sandboxes {
    entries: BTreeMap<Id, Sandbox>,
    created: u64,
}

#[derive(Debug)]
enum Sandbox {
    Process(Process),
}

impl Sandboxes {
    /// An empty table.
    pub fn new() -> Sandboxes {
        Sandboxes::default()
    }

    /// Makes sandboxes; none of their programs runs yet.
    pub fn create(&mut self, specs: Vec<Spec>) -> Vec<Result<Id, SandboxError>> {
        specs.into_iter().map(|spec| self.create_one(spec)).collect()
    }

    /// Starts the programs.
    pub fn start(&mut self, ids: &[Id]) -> Vec<Result<(), SandboxError>> {
        ids.iter().map(|&id| self.process(id)?.start(id)).collect()
    }

    /// Where the sandboxes stand now.
    pub fn state(&mut self, ids: &[Id]) -> Vec<Result<State, SandboxError>> {
        ids.iter().map(|&id| self.process(id)?.state()).collect()
    }

    /// Sends a signal to everything that runs in the sandboxes; one that does not run is left as it is.
    pub fn kill(&mut self, ids: &[Id], signal: Signal) -> Vec<Result<(), SandboxError>> {
        ids.iter().map(|&id| self.process(id)?.kill(signal)).collect()
    }

    /// Forgets sandboxes that do not run.
    pub fn delete(&mut self, ids: &[Id]) -> Vec<Result<(), SandboxError>> {
        ids.iter().map(|&id| self.delete_one(id)).collect()
    }

    /// What becomes readable when a sandbox stops, and stays so; `None` for one that was never started.
    pub fn exit_fd(&self, id: Id) -> Option<BorrowedFd<'_>> {
        let Sandbox::Process(process) = self.entries.get(&id)?;
        process.exit_fd()
    }

    fn create_one(&mut self, spec: Spec) -> Result<Id, SandboxError> {
        if self.entries.len() >= MAX_SANDBOXES {
            return Err(SandboxError::TooMany);
        }
        let id = Id(self.created);
        self.created += 1;
        let sandbox = match spec.kind {
            Kind::Process => Sandbox::Process(Process::create(spec)),
        };
        self.entries.insert(id, sandbox);
        Ok(id)
    }

    fn delete_one(&mut self, id: Id) -> Result<(), SandboxError> {
        let status = self.process(id)?.state()?.status;
        if status == Status::Running {
            return Err(SandboxError::WrongStatus { id, status, verb: "delete" });
        }
        self.entries.remove(&id);
        Ok(())
    }

    fn process(&mut self, id: Id) -> Result<&mut Process, SandboxError> {
        match self.entries.get_mut(&id) {
            Some(Sandbox::Process(process)) => Ok(process),
            None => Err(SandboxError::Unknown(id)),
        }
    }
}
