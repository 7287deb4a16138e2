//! Isolated places to execute, by the five verbs of the OCI runtime: create, start, state, kill, delete.
//!
//! Every verb takes a vector, because some kinds have one cost for many sandboxes: processes that are made side by
//! side, a program image that holds several kernels, a warm template that forks several times. The answers come in the
//! order of the requests, one for each sandbox.
//!
//! ```text
//! create -> Created -> start -> Running -> (it ends, or kill) -> Stopped -> delete
//! ```
//!
//! Two processes take part. A client of sandboxes has [`Sandboxes`], the [`client`], which starts the [`spawner`]. This
//! small program with a single thread makes all sandboxes: forking a process is expensive if it holds much memory, and
//! unsafe if it has other threads. The module `inside` has the code that the new process runs before it becomes the
//! program.
//!
//! A sandbox gets one connection to the outside, its control socket, and knows nothing else of its surroundings. This
//! crate makes three kinds: the isolated process, the container, and the copy of a warm language runtime, which the
//! runtime itself forks ([`template`]). Another program, an OCI runtime, makes a fourth. Kinds are an enum, not
//! plug-ins.
//!
//! Invariants:
//! - A process that drops its [`Sandboxes`], or dies, leaves no process behind: the spawner dies with its connection,
//!   and every sandbox with the spawner.
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

pub use client::{NewSandbox, Sandboxes};
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
/// Most folders that are lent to a sandbox.
pub const MAX_LENT_FOLDERS: usize = 16;
/// Most device nodes, files and folders of the devices of a sandbox.
pub const MAX_DEVICE_MOUNTS: usize = 96;
/// Most modules of a template, and of a package.
pub const MAX_IMPORTS: usize = sublet_proto::package::python::MAX_IMPORTS;
/// Number of the user that a sandbox sees itself as. Files of an image belong to it, on the disk, too, if the spawner
/// is root.
pub const USER: u32 = 1000;
/// Path of the folder that the specification names, in the sandbox, read-only.
pub const FOLDER: &str = "/package";
/// Path of the folder of an environment, in the sandbox, read-only.
pub const ENVIRONMENT: &str = "/environment";
/// Path of the file that an interpreter loads, in the sandbox: see [`SandboxProgram::Loading`].
pub const LOADED: &str = "/program";
/// Folder in which a sandbox can write files; a process can write nowhere else.
pub const SCRATCH: &str = "/tmp";
/// Folder beneath which a sandbox sees folders that are lent to it.
pub const LENT_FOLDERS: &str = "/folders";
/// Folder of named shared memory and semaphores, which the processes of one sandbox share.
pub const SHARED_MEMORY: &str = "/dev/shm";
/// A sandbox's [`SHARED_MEMORY`] has the size of its memory divided by this, as Linux has it by default.
const SHARED_PART: u64 = 2;

/// Walls around all sandboxes of one spawner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Walls {
    /// Namespaces, a root of its own, no privileges, Landlock and a filter of system calls.
    #[default]
    Full,
    /// Landlock, a filter of system calls and limits of resources, on machines that allow no namespaces. A sandbox is one
    /// process, which sees the host's files at their own paths, may read few of them and write none, and starts no other
    /// process. Only [`IsolationKind::Process`] and [`IsolationKind::Template`] exist, without lent folders and devices.
    Weak,
}

/// Identifier of one sandbox in one [`Sandboxes`] table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SandboxId(u64);

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kind of a sandbox's isolation.
///
/// All kinds have the same walls around them. They differ in the files inside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IsolationKind {
    /// A process in namespaces and a control group of its own, with few system calls and no privileges. It sees the
    /// host's shared libraries, and can change none of the host's files.
    Process,
    /// A process in the file system of an image. It may change all of that; the changes are its own, and end with it.
    Container(RootImage),
    /// The file system of an image, in a container made by this OCI runtime: the program of crun, runc and their like,
    /// which isolates by itself. The same limits hold, and when it ends everything in it has ended, too.
    Delegated {
        /// The program.
        runtime: PathBuf,
        /// Image of the container.
        image: RootImage,
    },
    /// A process whose memory begins as a copy of a warm language runtime, in walls like [`IsolationKind::Process`]. Its program is a
    /// source file, which runs as in an interpreter that has just begun, but for the modules that are there already. It
    /// has no network.
    ///
    /// A copy of an interpreter in an image has walls like [`IsolationKind::Container`]. Its program is an interpreter with
    /// code as an argument (`-c`), which the copy executes. While there is no copy, a container starts that program.
    Template(Template),
}

impl IsolationKind {
    /// The image, if it has one.
    pub(crate) fn image(&self) -> Option<&RootImage> {
        match self {
            IsolationKind::Process => None,
            IsolationKind::Template(template) => template.image.as_ref().map(|image| &image.root),
            IsolationKind::Container(image) | IsolationKind::Delegated { image, .. } => Some(image),
        }
    }
}

/// A file system to begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootImage {
    /// Folders, each over those before it, as overlayfs has them. A file that was removed is a device 0/0; a folder
    /// that hides the folders below it has the attribute `user.overlay.opaque`. Every file belongs to [`USER`], or to
    /// the spawner's user if that is not root.
    pub layers: Vec<PathBuf>,
    /// Folder of the image in which the program starts.
    pub working_folder: PathBuf,
}

/// A language runtime that is kept warm to be forked, for as long as it is asked for often enough; a template with fewer modules
/// stands in for it until it is warm.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Template {
    /// Language of the runtime.
    pub language: Language,
    /// The interpreter, with a path as sandboxes are shown it: see [`Interpreter::shown`]. For an image it is a path in the image.
    pub interpreter: PathBuf,
    /// The library that it loads to be forked, which calls [`template::serve`].
    pub adapter: PathBuf,
    /// Modules that it imports ahead of time, at most [`MAX_IMPORTS`].
    pub imports: Vec<String>,
    /// Folder of an environment, which its copies see as [`ENVIRONMENT`]: they find the modules there, and those of the
    /// standard library, and none that the interpreter has beside that.
    pub environment: Option<PathBuf>,
    /// Paths in which a Python looks for modules, in place of its own; empty for its own. Sandboxes have to be shown
    /// them.
    pub search_path: Vec<PathBuf>,
    /// Image of the interpreter, a Python, if it is not the host's. The template has fewer walls than its copies, so the
    /// image has to be trusted as the host's interpreters are, unless the template has an owner.
    pub image: Option<TemplateImage>,
    /// Tenant whose code the modules are: those of a Python's environment, or of an image that is not trusted. No template
    /// imports them, because a template has fewer walls than its copies. A process on standby does, in all walls of a sandbox,
    /// and only programs of this tenant take it.
    pub owner: Option<String>,
}

/// Image in which a template's interpreter is started.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TemplateImage {
    /// Files of the image.
    pub root: RootImage,
    /// Whole environment of the interpreter.
    pub env: Vec<(OsString, OsString)>,
}

/// Program that a sandbox executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxProgram {
    /// A file of the host, not looked up: the sandbox is shown it.
    Outside(PathBuf),
    /// A file that it has anyway, as of its folder or its image. A name without a slash is looked up in the sandbox, in the
    /// folders of `PATH` in the program's environment.
    Inside(PathBuf),
    /// An interpreter that it has anyway, named as [`SandboxProgram::Inside`]. It loads a file of the host by itself, which
    /// the sandbox is shown as [`LOADED`].
    Loading {
        /// The interpreter.
        program: PathBuf,
        /// Path of the file on the host.
        library: PathBuf,
    },
}

impl SandboxProgram {
    /// Returns the path, on the host or in the sandbox.
    pub fn path(&self) -> &Path {
        match self {
            SandboxProgram::Outside(path) | SandboxProgram::Inside(path) => path,
            SandboxProgram::Loading { program, .. } => program,
        }
    }

    /// Returns the file of the host that the sandbox is shown where programs are, if there is one.
    pub(crate) fn shown(&self) -> Option<&Path> {
        match self {
            SandboxProgram::Outside(path) | SandboxProgram::Loading { library: path, .. } => Some(path),
            SandboxProgram::Inside(_) => None,
        }
    }
}

/// Specification of a sandbox.
#[derive(Debug)]
pub struct Spec {
    /// Kind of isolation.
    pub kind: IsolationKind,
    /// Program that it executes.
    pub program: SandboxProgram,
    /// Arguments of the program, without its name.
    pub args: Vec<OsString>,
    /// Whole environment of the program.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the program gets variables beside these, which modules may read when they are imported: then it takes no
    /// process on standby, which has imported them without such variables.
    pub has_own_variables: bool,
    /// Folder that the sandbox sees, read-only, as [`FOLDER`].
    pub folder: Option<PathBuf>,
    /// Folders of the host that the sandbox sees beneath [`LENT_FOLDERS`].
    pub lent_folders: Vec<LentFolder>,
    /// Nodes and files of the devices that belong to the sandbox, with [`Devices::Own`]. The spawner was started with their
    /// places.
    pub device_mounts: Vec<DeviceMount>,
    /// Connection to the outside: the program finds it as descriptor 0.
    pub control: OwnedFd,
    /// File for the output of the program, open for reading and writing; the program does not get it. Without a file
    /// the output goes to the spawner's standard error, each line labelled with the sandbox's id.
    pub log: Option<OwnedFd>,
    /// Networks that it can reach.
    pub network: NetworkAccess,
    /// Devices of the host that it can use.
    pub devices: Devices,
    /// Resources that it may use.
    pub limits: SandboxLimits,
}

/// A folder of the host that a sandbox sees beneath [`LENT_FOLDERS`], and in which it can execute nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentFolder {
    /// Name of the folder in the sandbox: one component of a path.
    pub name: String,
    /// The folder on the host.
    pub path: PathBuf,
    /// Rights of the sandbox.
    pub access: FolderAccess,
}

/// A device node, file or folder of the host that a sandbox sees, read-only. A device node can still be written to, as
/// far as its own permissions allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMount {
    /// Path on the host.
    pub source: PathBuf,
    /// Absolute path in the sandbox, without `..`.
    pub place: PathBuf,
}

/// A path at which sandboxes that have devices see something; it is empty in all others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DevicePlace {
    /// Place of a file or a device node.
    File(PathBuf),
    /// Place of a folder.
    Folder(PathBuf),
}

/// Rights of a sandbox to a folder that is lent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderAccess {
    /// The sandbox can read the files that every user of the host can read.
    ReadOnly,
    /// The sandbox can write. Its files belong on the disk to [`USER`] if the spawner is root, or else to the spawner's user.
    Write,
}

/// Networks that a sandbox can reach. A connected socket that is passed to it works in either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkAccess {
    /// Nothing: it can make no socket, and there is no interface.
    None,
    /// The networks of its host: for programs that connect by themselves, as RDMA libraries do. It can make sockets of
    /// the internet's protocols, and use the host's RDMA devices.
    Host,
}

/// Files of the host by which a process uses devices; a container has none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Devices {
    /// Nothing.
    #[default]
    None,
    /// The files of drivers, and the programs by which they compile: devices that compute on the processors themselves
    /// need no more. Drivers load libraries of kernels, so it can load and execute files that it writes to [`SCRATCH`].
    Drivers,
    /// The files of drivers, and NVIDIA's first GPU: its nodes with all of their ioctls, and `/sys`.
    Gpu,
    /// Nothing; but of `/dev/userfaultfd`, if it is handed that, it can ask to see to its own page faults.
    Faults,
    /// The nodes of [`Spec::device_mounts`] with all of their ioctls, and `/sys`. It can execute files that it writes to
    /// [`SCRATCH`], as drivers that compile kernels do.
    Own,
}

/// Resources that a sandbox may use. [`strengths`] reports limits that the machine cannot enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxLimits {
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

impl SandboxLimits {
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

/// Status of a sandbox in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxStatus {
    /// Being made. A kind whose `create` is complete when it returns never shows it.
    Creating,
    /// Made; the program does not run yet.
    Created,
    /// The program runs.
    Running,
    /// The program has ended, and all that it had started with it.
    Stopped,
}

/// End of a sandbox's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramEnd {
    /// The program left with this status.
    Status(i32),
    /// This signal killed the program.
    Signal(i32),
    /// The kernel killed it because its sandbox exceeded this many bytes of memory.
    OutOfMemory(u64),
}

impl fmt::Display for ProgramEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ProgramEnd::Status(status) => write!(f, "exited with status {status}"),
            ProgramEnd::Signal(number) => match system::signal_name(number) {
                Some(name) => write!(f, "killed by {name}"),
                None => write!(f, "killed by signal {number}"),
            },
            ProgramEnd::OutOfMemory(limit) => write!(f, "out of memory: it was limited to {limit} bytes"),
        }
    }
}

/// State of one sandbox, as the verb `state` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SandboxState {
    /// Status in the life of a sandbox.
    pub status: SandboxStatus,
    /// Number of the program's process on this machine, from its start on.
    pub pid: Option<u32>,
    /// End of the program, once the sandbox is stopped.
    pub exit: Option<ProgramEnd>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_half_of_shown_memory_or_scratch_size() {
        let limits = |memory_bytes, shown_memory_bytes| SandboxLimits {
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
