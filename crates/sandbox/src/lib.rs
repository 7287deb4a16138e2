//! Isolated places to execute, by the five verbs of the OCI runtime: create, start, state, kill, delete.
//!
//! Every verb takes a vector, since some kinds have one cost for many (processes that are made side by side, a program
//! image that holds several kernels, a warm template that forks several times); the answers come in the order of what
//! was asked, each on its own.
//!
//! ```text
//! create -> Created -> start -> Running -> (it ends, or kill) -> Stopped -> delete
//! ```
//!
//! Two processes have a part in it. Whoever wants sandboxes has [`Sandboxes`], the [`client`]; it starts the
//! [`spawner`], a small program with a single thread, which makes all of them: forking a process is dear if it holds
//! much memory, and unsafe if it has other threads. What the new process does to itself before it becomes the program
//! is in `inside`.
//!
//! A sandbox gets one connection to the outside, its control socket, and knows nothing else of its surroundings.
//! Three kinds are made here: the isolated process, the container, and the copy of a warm language runtime, which is forked
//! by that itself ([`template`]). Another program, an OCI runtime, makes a fourth. Kinds are an enum, not plug-ins.
//!
//! Invariants:
//! - Whoever drops its [`Sandboxes`], or dies, leaves no process behind: the spawner dies with its connection, and every
//!   sandbox with the spawner.
//! - A sandbox whose end is known has nothing left that runs: its first process is its namespace's init.
//! - A sandbox that runs is never forgotten: `delete` refuses it.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod client;
mod compute;
mod error;
mod gauge;
mod groups;
mod inside;
mod interpreter;
mod language;
pub mod spawner;
mod strength;
mod system;
pub mod template;
mod wire;

use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

pub use client::{Made, Sandboxes};
pub use compute::ComputeGauge;
pub use error::SandboxError;
pub use gauge::{Gauge, MemoryUse};
pub use groups::Allowance;
pub use interpreter::Interpreter;
pub use language::Language;
pub use rustix::process::Signal;
pub use strength::{Finding, LOOK, Strength, strengths};
pub use system::ignore_file_size_signal;
pub use system::signal_name;
pub use wire::{CONTAINER, DELEGATED, PROCESS, TEMPLATE, decode_answer, decode_language, encode_language};

/// Most sandboxes of one spawner.
pub const MAX_SANDBOXES: usize = 4096;
/// Most sandboxes of one verb.
pub const MAX_VECTOR: usize = 32;
/// Most layers of an image.
pub const MAX_LAYERS: usize = 128;
/// Most modules of a template.
pub const MAX_IMPORTS: usize = 32;
/// The user as whom a sandbox sees itself. Files of an image belong to it, on the disk, too, if the spawner is root.
pub const USER: u32 = 1000;
/// Where a sandbox finds the folder that its specification names, read-only.
pub const FOLDER: &str = "/package";
/// Where a sandbox can write files: a process nowhere else.
pub const SCRATCH: &str = "/tmp";
/// Folder of named shared memory and semaphores, which the processes of one sandbox share.
pub const SHARED_MEMORY: &str = "/dev/shm";
/// A sandbox's [`SHARED_MEMORY`] has the size of its memory divided by this, as Linux has it by default.
const SHARED_PART: u64 = 2;

/// One sandbox of one [`Sandboxes`] table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id(u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a sandbox isolates.
///
/// All kinds have the same walls around them. They differ in the files inside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A process in namespaces and a control group of its own, with few system calls and no privileges. Of the host's files
    /// it has the shared libraries, and can change none.
    Process,
    /// The same in the file system of an image. It may change all of that; the changes are its own, and end with it.
    Container(Image),
    /// The file system of an image, in what this OCI runtime makes of it: the program of crun, runc and their like, which has
    /// walls of its own. The same limits hold, and with its end everything in it has ended, too.
    Delegated {
        /// The program.
        runtime: PathBuf,
        /// What it is given.
        image: Image,
    },
    /// A process whose memory begins as a copy of a warm language runtime, in walls like [`Kind::Process`]. Its program is a
    /// source file, which runs as in an interpreter that has just begun, but for the modules that are there already. It
    /// has no network.
    Template(Template),
}

impl Kind {
    /// The image, if it has one.
    pub(crate) fn image(&self) -> Option<&Image> {
        match self {
            Kind::Process | Kind::Template(_) => None,
            Kind::Container(image) | Kind::Delegated { image, .. } => Some(image),
        }
    }
}

/// A file system to begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Folders, each over those before it, as overlayfs has them: a file that is none any more is a device 0/0, a folder
    /// that hides what is below it has the attribute `user.overlay.opaque`. Every file belongs to [`USER`], or to the
    /// spawner's user if that is not root.
    pub layers: Vec<PathBuf>,
    /// In which folder of it the program begins.
    pub working_folder: PathBuf,
}

/// A language runtime that is kept warm to be forked, for as long as it is asked for often enough; a template with fewer modules
/// stands in for it until it is warm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Template {
    /// What it is the runtime of.
    pub language: Language,
    /// The interpreter, with a path as sandboxes are shown it: see [`Interpreter::shown`].
    pub interpreter: PathBuf,
    /// The library that it loads to be forked, which calls [`template::serve`].
    pub adapter: PathBuf,
    /// What it imports before: names of modules, not more than [`MAX_IMPORTS`].
    pub imports: Vec<String>,
}

/// What a sandbox executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A file of the host, not looked up: the sandbox is shown it.
    Outside(PathBuf),
    /// A file that it has anyway, as of its folder or its image.
    Inside(PathBuf),
}

impl Program {
    /// Its path, wherever that leads.
    pub fn path(&self) -> &Path {
        match self {
            Program::Outside(path) | Program::Inside(path) => path,
        }
    }
}

/// What a sandbox is made of.
#[derive(Debug)]
pub struct Spec {
    /// How it isolates.
    pub kind: Kind,
    /// What it executes.
    pub program: Program,
    /// Its arguments, without its name.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// A folder that it finds, read-only, as [`FOLDER`].
    pub folder: Option<PathBuf>,
    /// Its connection to the outside: the program finds it as descriptor 0.
    pub control: OwnedFd,
    /// A file for what its program prints, open for reading and writing; the program does not get it. Without one the
    /// output goes to the spawner's standard error, each line labelled with the sandbox's id.
    pub log: Option<OwnedFd>,
    /// What it reaches by the network.
    pub network: Network,
    /// What it has of the host's devices.
    pub devices: Devices,
    /// What it may use.
    pub limits: Limits,
}

/// What a sandbox reaches by the network. A connected socket that it is handed works in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Nothing: it can make no socket, and there is no interface.
    None,
    /// What its host reaches: for programs that dial by themselves, as RDMA libraries do. It can make sockets of the
    /// internet's protocols, and use the host's RDMA devices.
    Host,
}

/// What a process has of the host to use devices by; a container has nothing of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Nothing.
    #[default]
    None,
    /// The files of drivers, and the programs by which they compile: what computes on the processors themselves needs no
    /// more. Drivers load libraries of kernels, so it can load and execute what it writes to [`SCRATCH`].
    Drivers,
    /// That, and NVIDIA's first GPU: its nodes, whatever they can be asked for (ioctl), and `/sys`.
    Gpu,
    /// Nothing; but of `/dev/userfaultfd`, if it is handed that, it can ask to see to its own page faults.
    Faults,
}

/// What a sandbox may use. What the machine cannot enforce is told by [`strengths`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The core of each of its workers; workers may share one. It may run on these; none: all that the spawner has. Beside others
    /// that want the same core it has a share in proportion to its workers.
    pub cores: Vec<u32>,
    /// Memory of all its processes together, with what it writes to [`SCRATCH`] and [`SHARED_MEMORY`], in bytes. A sandbox that
    /// takes more is killed.
    pub memory_bytes: Option<u64>,
    /// Size of memory in the sandbox's `/proc/meminfo`, in bytes. If none: the limit; without a limit the machine's memory.
    pub shown_memory_bytes: Option<u64>,
    /// Processes and threads at the same time, with its first process.
    pub processes: Option<u32>,
    /// Size of all files that the sandbox can write, in bytes, without memory that it maps and without [`SHARED_MEMORY`], whose
    /// size is half of the memory in its `/proc/meminfo`, or this size if that is the machine's memory.
    pub scratch_bytes: u64,
}

impl Limits {
    /// Workers whose share of the processor it has: at least 1.
    fn workers(&self) -> usize {
        self.cores.len().max(1)
    }

    /// The cores on which it may run, each once, in ascending order.
    fn distinct_cores(&self) -> Vec<u32> {
        let mut cores = self.cores.clone();
        cores.sort_unstable();
        cores.dedup();
        cores
    }

    /// Size of memory in the sandbox's `/proc/meminfo`, in bytes; none for the machine's memory.
    fn shown(&self) -> Option<u64> {
        self.shown_memory_bytes.or(self.memory_bytes)
    }

    /// Size of [`SHARED_MEMORY`], in bytes.
    fn shared_bytes(&self) -> u64 {
        self.shown().map_or(self.scratch_bytes, |bytes| bytes / SHARED_PART)
    }
}

/// Where a sandbox stands in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Being made. A kind whose `create` is complete when it returns never shows it.
    Creating,
    /// Made; the program does not run yet.
    Created,
    /// The program runs.
    Running,
    /// The program has ended, and all that it had started with it.
    Stopped,
}

/// How a sandbox's program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It left with this status.
    Status(i32),
    /// This signal killed it.
    Signal(i32),
    /// It was killed because its sandbox wanted more than this many bytes of memory.
    OutOfMemory(u64),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Exit::Status(status) => write!(f, "exited with status {status}"),
            Exit::Signal(number) => match system::signal_name(number) {
                Some(name) => write!(f, "killed by {name}"),
                None => write!(f, "killed by signal {number}"),
            },
            Exit::OutOfMemory(limit) => write!(f, "out of memory: it was limited to {limit} bytes"),
        }
    }
}

/// What `state` tells about one sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Where it stands.
    pub status: Status,
    /// The program's process, as this machine numbers it, from its start on.
    pub pid: Option<u32>,
    /// How it ended, once it is stopped.
    pub exit: Option<Exit>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_half_of_the_shown_memory_or_as_large_as_scratch_space() {
        let limits = |memory_bytes, shown_memory_bytes| Limits {
            cores: Vec::new(),
            memory_bytes,
            shown_memory_bytes,
            processes: None,
            scratch_bytes: 3000,
        };
        for (limits, expected) in [
            (limits(None, None), 3000),
            (limits(Some(2000), None), 1000),
            (limits(Some(2000), Some(1000)), 500),
        ] {
            assert_eq!(limits.shared_bytes(), expected, "{limits:?}");
        }
    }
}
