//! A separate process that reads untrusted programs: it compiles their sources and tries their binaries.
//!
//! A compiler is a large program that was not written to withstand its input. A source can name the machine's files
//! (`#include "/etc/hostname"` puts them into the error's text; an assembler's `.incbin` into the program), expand
//! without end, or trigger a defect. PoCL crashes on some invalid binaries. For that reason the program
//! `sublet-worker-kernels` does this work, once for each image. This program
//!
//! - can read the compiler, the machine's libraries and its own folder, and nothing else; write its own folder; and
//!   reach no network (Landlock: see [`Confinement`]);
//! - has limits of memory, processor time, wall-clock time and written bytes;
//! - answers by a pipe, up to a limit, or is killed with all processes that it started.
//!
//! If a program of a vector kills the builder, only that program fails: the others are built again without it.
//!
//! The result is machine code that the tenant could have sent as such: it runs in the tenant's own process.

mod confine;
pub mod server;
pub(crate) mod wire;

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::DeviceError;
use crate::driver::{BuildResult, ImagePart};
use crate::opencl::environment::ENVIRONMENT;

/// Largest answer, in bytes: an image and its objects.
const MAX_ANSWER_BYTES: u64 = 512 << 20;
/// Environment variables that determine which devices exist.
const PASSED_ON: &[&str] =
    &["OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "LD_LIBRARY_PATH", "POCL_DEVICES", "PATH"];

/// Program and limits with which builders are started.
#[derive(Clone, Debug)]
pub struct Builder {
    /// The program `sublet-worker-kernels`.
    pub program: PathBuf,
    /// Isolation of the compiler from the machine.
    pub confinement: Confinement,
    /// Time limit in wall-clock time. Each process of the builder may use the same amount of processor time.
    pub time: Duration,
    /// Most memory that a process may map, in bytes.
    pub memory_bytes: u64,
}

/// Mechanism that keeps a compiler from the machine's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Confinement {
    /// Landlock, applied by the builder itself. Without Landlock in the kernel nothing is built.
    Own,
    /// The sandbox in which the builder is started, which contains nothing secret.
    Surroundings,
}

impl Builder {
    /// Makes a builder with the default limits.
    pub fn new(program: PathBuf) -> Builder {
        let (time, memory_bytes) = (Duration::from_secs(120), 8 << 30);
        Builder { program, confinement: Confinement::Own, time, memory_bytes }
    }

    /// Builds an image. If that kills the builder, builds each part separately; the parts that succeed become the
    /// image.
    pub(crate) fn build(&self, identity: &str, parts: &[ImagePart<'_>]) -> Result<BuildResult, DeviceError> {
        match (self.run(identity, parts)?, parts.len()) {
            (Ok(build), _) => Ok(build),
            (Err(died), 1) => Ok(BuildResult { programs: Vec::new(), parts: vec![Err(died)] }),
            (Err(_), _) => self.build_each(identity, parts),
        }
    }

    fn build_each(&self, identity: &str, parts: &[ImagePart<'_>]) -> Result<BuildResult, DeviceError> {
        let mut build = BuildResult::default();
        for part in parts {
            let BuildResult { programs, parts } = self.build(identity, std::slice::from_ref(part))?;
            let before = build.programs.len();
            build.programs.extend(programs);
            build.parts.extend(parts.into_iter().map(|part| {
                part.map(|mut part| {
                    part.program += before;
                    part
                })
            }));
        }
        debug_assert_eq!(build.parts.len(), parts.len(), "parts that were built one by one");
        debug_assert!(
            build.parts.iter().flatten().all(|part| part.program < build.programs.len()),
            "a part lies in none of {} programs",
            build.programs.len()
        );
        Ok(build)
    }

    /// One builder's answer, or the way in which it died of its work.
    fn run(
        &self,
        identity: &str,
        parts: &[ImagePart<'_>],
    ) -> Result<Result<BuildResult, String>, DeviceError> {
        let folder = tempfile::tempdir().map_err(|error| failed("has no folder to work in", &error))?;
        let mut child = self.start(folder.path())?;
        let job = wire::encode_job(identity, parts);
        let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let writer = std::thread::spawn(move || stdin.as_mut().map(|stdin| stdin.write_all(&job)));
        let (answered, answer) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.map(|stdout| stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut bytes));
            // If the answer comes too late, no thread receives it.
            let _ = answered.send(read.and_then(Result::ok).map(|_| bytes));
        });
        let bytes = answer.recv_timeout(self.time);
        end(&child);
        let status = child.wait().map_err(|error| failed("cannot be waited for", &error))?;
        let _ = (writer.join(), reader.join());
        let Ok(bytes) = bytes else {
            return Ok(Err(format!("it was not built within {} s", self.time.as_secs())));
        };
        match wire::decode_answer(&bytes.unwrap_or_default(), parts.len()) {
            Some(Ok(build)) => Ok(Ok(build)),
            Some(Err(reason)) => Err(DeviceError::Builder(reason)),
            None => Ok(Err(format!("the compiler {}", how(status)))),
        }
    }

    fn start(&self, folder: &Path) -> Result<Child, DeviceError> {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(ENVIRONMENT.iter().copied());
        command.envs(PASSED_ON.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        for name in ["HOME", "TMPDIR", "XDG_CACHE_HOME", "POCL_CACHE_DIR"] {
            command.env(name, folder);
        }
        let confinement = match self.confinement {
            Confinement::Own => "own",
            Confinement::Surroundings => "surroundings",
        };
        command.arg(folder).arg(confinement);
        command.arg(self.time.as_secs().max(1).to_string()).arg(self.memory_bytes.to_string());
        command.current_dir(folder).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().map_err(|error| {
            DeviceError::Builder(format!("{} cannot be started: {error}", self.program.display()))
        })
    }
}

/// Kills what is left of a builder and all processes that it started.
fn end(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (_, code) => format!("left with status {} and without a word", code.unwrap_or_default()),
    }
}

fn failed(what: &str, error: &std::io::Error) -> DeviceError {
    DeviceError::Builder(format!("{what}: {error}"))
}
