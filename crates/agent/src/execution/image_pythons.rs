//! The Python interpreters of images: how a worker is started by the interpreter that its image has.
//!
//! Each image is asked once, in a sandbox of its own, which Python it has, before the first worker is started by it. So an
//! image without a Python that can execute functions is refused with the reason, at the start of the lease.
//!
//! An image belongs to a tenant, and so does its Python: what it reports is not trusted, and it never runs outside of a
//! sandbox with all walls.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use sublet_fabric::packet::PacketSocket;
use sublet_fabric::sync::lock;
use sublet_proto::package::python::without_image;
use sublet_proto::package::{IMAGE_PYTHON, is_image_python, python_architecture};
use sublet_proto::text::printable_line;
use sublet_proto::v1::PackageBuild;
use sublet_proto::{Code, Error};
use sublet_sandbox::{
    Devices, IsolationKind, Language, NetworkAccess, NewSandbox, ProgramEnd, RootImage, SCRATCH,
    SandboxError, SandboxLimits, SandboxProgram, Sandboxes, Signal, Spec,
};
use tracing::info;

use crate::execution::images::{HeldImage, Images};
use crate::execution::isolations::Isolations;
use crate::execution::packages::Runnable;
use crate::execution::programs::find_program;
use crate::execution::sandboxes::SandboxMaker;
use crate::signal::wait_readable;

/// Name of the interpreter, which is looked up in the image.
const PROGRAM: &str = "python3";
/// Code with which an interpreter reports what it is.
const ASK: &str = include_str!("image_pythons/ask.py");
/// Code with which an interpreter becomes a worker.
const START: &str = include_str!("image_pythons/start.py");
/// First word of a report.
const REPORT: &str = "sublet-python";
/// Version of the oldest Python into which the library of workers can be loaded.
const OLDEST: (u32, u32) = (3, 11);
/// Folders of programs in an image that does not say where they are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How long an interpreter may take to report what it is.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long what was killed may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);
/// Resources of an interpreter that reports what it is.
const MEMORY_BYTES: u64 = 512 << 20;
const SCRATCH_BYTES: u64 = 16 << 20;
const PROCESSES: u32 = 64;
/// Bytes of its output that are read.
const MAX_OUTPUT_BYTES: usize = 16 << 10;
/// Characters of an interpreter's output in a message.
const MAX_TOLD_CHARS: usize = 400;
/// Lines at the end of its output that are part of a message.
const LAST_LINES: usize = 4;
/// Begin of the line with which an interpreter reports that it cannot start.
const FATAL: &str = "Fatal Python error";
/// Images whose Python is remembered; all are forgotten when there are more.
const MAX_KNOWN: usize = 1024;

/// The Python of an image, which can execute functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImagePython {
    /// Path in the image.
    program: PathBuf,
    /// Version without its last number.
    version: String,
}

/// See the [module](self).
pub(crate) struct ImagePythons {
    /// The library of workers; none if this node cannot start any.
    library: Option<PathBuf>,
    sandboxes: Arc<SandboxMaker>,
    images: Arc<Images>,
    isolations: Isolations,
    /// The Python of each image that was asked, or why it cannot be used, by the digest of the image.
    known: Mutex<BTreeMap<String, Result<ImagePython, Error>>>,
    /// Held while an image is asked, so that none is asked twice at once.
    asking: Mutex<()>,
}

impl ImagePythons {
    /// Finds the library of workers beside the program that makes sandboxes.
    pub(crate) fn new(
        spawner: &Path,
        sandboxes: Arc<SandboxMaker>,
        images: Arc<Images>,
        isolations: Isolations,
    ) -> ImagePythons {
        let library = find_program("template", &spawner.with_file_name(Language::Python.adapter())).ok();
        ImagePythons {
            library,
            sandboxes,
            images,
            isolations,
            known: Mutex::default(),
            asking: Mutex::default(),
        }
    }

    /// Architectures of the packages that this node executes by the Python of an image.
    pub(crate) fn offered(&self) -> Vec<String> {
        let library = self.library.iter().filter(|_| self.isolations.takes_images());
        library.map(|_| IMAGE_PYTHON.to_owned()).collect()
    }

    /// Whether no image has to be asked before workers of this build can start.
    pub(crate) fn are_at_hand(&self, runnable: &Runnable) -> bool {
        let build = runnable.build();
        !is_image_python(&build.architecture) || lock(&self.known).contains_key(key(build))
    }

    /// Asks the image of a build for its Python, if the build is for that and the image was not asked yet.
    pub(crate) fn ensure(&self, build: &PackageBuild) -> Result<(), Error> {
        if !is_image_python(&build.architecture) {
            return Ok(());
        }
        self.python(build).map(drop)
    }

    /// The program of a build's workers, and its arguments.
    pub(crate) fn worker(&self, build: &PackageBuild) -> Result<(SandboxProgram, Vec<OsString>), Error> {
        let (python, library) = (self.python(build)?, self.library()?.to_owned());
        let program = SandboxProgram::Loading { program: python.program, library };
        // Without files of compiled modules, which would be written to memory.
        Ok((program, ["-B", "-c", START].map(OsString::from).into()))
    }

    fn library(&self) -> Result<&Path, Error> {
        let missing = || {
            let message = format!(
                "this node lacks {}, by which images' Pythons are workers",
                Language::Python.adapter()
            );
            Error::new(Code::System, message)
        };
        self.library.as_deref().ok_or_else(missing)
    }

    /// The Python of a build's image, of the version that the build requires.
    fn python(&self, build: &PackageBuild) -> Result<ImagePython, Error> {
        let python = self.known_or_asked(build)?;
        let (wanted, found) = (without_image(&build.architecture), python_architecture(&python.version));
        match wanted.trim_start_matches(char::is_alphabetic) {
            version if !version.is_empty() && found.as_deref() != Some(wanted) => {
                let (image, library, has) = (&build.image, &build.library, &python.version);
                let message =
                    format!("the image {image} has Python {has}, and {library} is for Python {version}");
                Err(Error::new(Code::WrongArchitecture, message))
            }
            _ => Ok(python),
        }
    }

    fn known_or_asked(&self, build: &PackageBuild) -> Result<ImagePython, Error> {
        let known = || lock(&self.known).get(key(build)).cloned();
        if let Some(known) = known() {
            return known;
        }
        let _asking = lock(&self.asking);
        if let Some(known) = known() {
            return known;
        }
        let asked = self.ask(build);
        // An error of this machine says nothing about the image.
        if matches!(&asked, Ok(_) | Err(Error { code: Code::InvalidPackage, .. })) {
            let mut known = lock(&self.known);
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
            known.insert(key(build).to_owned(), asked.clone());
        }
        asked
    }

    /// Has the interpreter of an image report what it is.
    fn ask(&self, build: &PackageBuild) -> Result<ImagePython, Error> {
        let begun = Instant::now();
        let gone = || Error::new(Code::System, "a Python in an image is asked without an image");
        let held = self.images.hold(build)?.ok_or_else(gone)?;
        let (output, end) = self.run(&held).map_err(|Error { code, message }| {
            Error::new(code, format!("the Python of the image {} cannot be started: {message}", build.image))
        })?;
        let found = match end {
            Ok(end) => PythonReport::find(&output).ok_or_else(|| no_report(end, &output)),
            Err(fault) => Err(fault),
        };
        let python = found.and_then(PythonReport::checked).map_err(|fault| {
            Error::new(
                Code::InvalidPackage,
                format!("the image {} cannot execute Python: {fault}", build.image),
            )
        })?;
        let (version, took_ms) = (&python.version, begun.elapsed().as_millis() as u64);
        info!(image = build.image, version, took_ms, "the Python of an image is known");
        Ok(python)
    }

    /// Runs the interpreter of an image with [`ASK`]. Returns its output and its end, or why it cannot be executed.
    fn run(&self, held: &HeldImage) -> Result<(String, Result<ProgramEnd, String>), Error> {
        let log = output_file()?;
        let sandboxes = self.sandboxes.current()?;
        let (_, runtime) = self.isolations.choose("", true)?;
        let (_outside, control) = PacketSocket::pair()?;
        let env = environment(&held.image);
        let path =
            env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.to_string_lossy().into_owned());
        let spec = Spec {
            kind: container(&held.image, runtime),
            program: SandboxProgram::Loading { program: PROGRAM.into(), library: self.library()?.to_owned() },
            args: ["-B", "-c", ASK].map(OsString::from).into(),
            env,
            folder: None,
            lent_folders: Vec::new(),
            control: control.into(),
            log: Some(log.try_clone().map_err(|error| failed(&error))?.into()),
            network: NetworkAccess::None,
            devices: Devices::None,
            limits: SandboxLimits {
                cores: Vec::new(),
                memory_bytes: Some(MEMORY_BYTES),
                shown_memory_bytes: None,
                processes: Some(PROCESSES),
                scratch_bytes: SCRATCH_BYTES,
            },
        };
        let launched = sandboxes.launch(vec![spec]).pop();
        let launched = launched.ok_or_else(|| Error::new(Code::Internal, "a sandbox verb gave no answer"))?;
        let asked = match launched {
            Ok(sandbox) => AskedPython { sandboxes, sandbox },
            Err(error) => {
                return match not_executed(&error, &path.unwrap_or_default()) {
                    Some(fault) => Ok((String::new(), Err(fault))),
                    // An OCI runtime may have printed why.
                    None => Err(with_words(error.into(), &read_output(&log)?)),
                };
            }
        };
        let end = asked.end()?;
        Ok((read_output(&log)?, Ok(end)))
    }
}

/// An interpreter that reports what it is. It is killed when this is dropped.
struct AskedPython {
    sandboxes: Arc<Sandboxes>,
    sandbox: NewSandbox,
}

impl AskedPython {
    /// Waits for its end.
    fn end(&self) -> Result<ProgramEnd, Error> {
        let [has_ended] = wait_readable([Some(self.sandbox.ended.as_fd())], Some(Instant::now() + PATIENCE))?;
        if !has_ended {
            let message = format!("it did not report its version within {} s", PATIENCE.as_secs());
            return Err(Error::new(Code::System, message));
        }
        let state = self.sandboxes.state(&[self.sandbox.id]).pop().and_then(Result::ok);
        state.and_then(|state| state.exit).ok_or_else(|| Error::new(Code::System, "its end is not known"))
    }
}

impl Drop for AskedPython {
    fn drop(&mut self) {
        // If the process survives, the spawner still has it and ends it with the agent.
        let _ = self.sandboxes.kill(&[self.sandbox.id], Signal::KILL);
        let _ = wait_readable([Some(self.sandbox.ended.as_fd())], Some(Instant::now() + LONGEST_END));
        let _ = self.sandboxes.delete(&[self.sandbox.id]);
    }
}

/// The digest that a build pins.
fn key(build: &PackageBuild) -> &str {
    build.image.rsplit_once('@').map_or(&build.image, |(_, digest)| digest)
}

/// The file system of an image, with how it is isolated.
pub(crate) fn container(image: &sublet_image::Image, runtime: Option<&Path>) -> IsolationKind {
    let folder = &image.config.working_folder;
    let root = RootImage {
        layers: image.layers.clone(),
        working_folder: if folder.is_empty() { "/".into() } else { folder.into() },
    };
    match runtime {
        None => IsolationKind::Container(root),
        Some(runtime) => IsolationKind::Delegated { runtime: runtime.to_owned(), image: root },
    }
}

/// Environment variables of an interpreter in an image: those of the image, and those that it lacks.
pub(crate) fn environment(image: &sublet_image::Image) -> Vec<(OsString, OsString)> {
    let own = &image.config.env;
    let common = [("HOME", SCRATCH), ("TMPDIR", SCRATCH), ("PATH", PATH), ("LANG", "C.UTF-8")];
    let lacking = common.into_iter().filter(|(name, _)| !own.iter().any(|(own, _)| own == name));
    let own = own.iter().map(|(name, value)| (name.into(), value.into()));
    lacking.map(|(name, value)| (name.into(), value.into())).chain(own).collect()
}

/// Why a program of an image could not be executed, unless this machine is the cause.
fn not_executed(error: &SandboxError, path: &str) -> Option<String> {
    let SandboxError::System { operation, source } = error else { return None };
    if !operation.starts_with("executing") {
        return None;
    }
    Some(match Errno::from_io_error(source) {
        Some(Errno::NOENT) => format!("it has no {PROGRAM} in the folders of its PATH ({})", told(path)),
        Some(Errno::LIBACC) => format!("its {PROGRAM} names a loader that it does not have"),
        Some(Errno::NOEXEC) => format!("its {PROGRAM} is not a program for {}", std::env::consts::ARCH),
        _ => format!("its {PROGRAM} cannot be executed: {source}"),
    })
}

/// Why an interpreter has not reported what it is.
fn no_report(end: ProgramEnd, output: &str) -> String {
    let why = last_words(output).unwrap_or_else(|| "it printed nothing".to_owned());
    format!("its {PROGRAM} does not work: it {end}, {why}")
}

/// The end of an output that says why a program ended, as a part of a message.
fn last_words(output: &str) -> Option<String> {
    let lines: Vec<_> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // Before a fatal error an interpreter prints its whole configuration, and errors of Python end with their reason.
    let fatal = lines.iter().position(|line| line.starts_with(FATAL));
    let begin = fatal.unwrap_or_else(|| lines.len().saturating_sub(LAST_LINES));
    Some(told(&lines[begin..].join(" / "))).filter(|words| !words.is_empty())
}

fn with_words(error: Error, output: &str) -> Error {
    match last_words(output) {
        Some(words) => Error::new(error.code, format!("{}: {words}", error.message)),
        None => error,
    }
}

/// Text of an image as a part of a message.
fn told(text: &str) -> String {
    printable_line(text).chars().take(MAX_TOLD_CHARS).collect()
}

/// A report of [`ASK`].
struct PythonReport<'output> {
    version: &'output str,
    implementation: &'output str,
    has_lock: bool,
    libc: &'output str,
    program: &'output str,
    /// Why the library of workers cannot be loaded; empty if it can.
    fault: &'output str,
}

impl PythonReport<'_> {
    /// The report in an interpreter's output, beside which an image may print other lines.
    fn find(output: &str) -> Option<PythonReport<'_>> {
        output.lines().find_map(|line| {
            let mut fields = line.split('\t');
            let mut next = || fields.next();
            (next()? == REPORT).then_some(())?;
            Some(PythonReport {
                version: next()?,
                implementation: next()?,
                has_lock: next()? == "lock",
                libc: next()?,
                program: next()?,
                fault: next()?,
            })
        })
    }

    /// The Python, or why it cannot execute functions.
    fn checked(self) -> Result<ImagePython, String> {
        let (version, implementation) = (told(self.version), told(self.implementation));
        let numbers = version
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
        let (major, minor) = OLDEST;
        match numbers {
            _ if implementation != "cpython" => Err(format!("its Python is {implementation}, and CPython is needed")),
            Some(numbers) if numbers < OLDEST => {
                Err(format!("its Python is {version}, and {major}.{minor} or later is needed"))
            }
            None => Err(format!("its Python reports {version:?} as its version")),
            _ if !self.has_lock => Err(format!(
                "its Python {version} is free-threaded, and one with the global interpreter lock is needed"
            )),
            _ if !self.libc.starts_with("glibc") => {
                Err("its Python is not built for glibc, and Sublet's worker is (images with musl, as Alpine's, are not supported)".to_owned())
            }
            _ if !self.fault.is_empty() => {
                Err(format!("its Python {version} cannot load Sublet's worker: {}", told(self.fault)))
            }
            Some(_) => {
                let program = Path::new(self.program);
                let program = if program.is_absolute() { program } else { Path::new(PROGRAM) };
                Ok(ImagePython { program: program.to_owned(), version })
            }
        }
    }
}

fn output_file() -> Result<File, Error> {
    let made = memfd_create("sublet-image-python", MemfdFlags::CLOEXEC);
    made.map(File::from).map_err(|errno| failed(&errno.into()))
}

fn read_output(file: &File) -> Result<String, Error> {
    let mut bytes = vec![0; MAX_OUTPUT_BYTES];
    let mut len = 0;
    while len < bytes.len() {
        match file.read_at(&mut bytes[len..], len as u64).map_err(|error| failed(&error))? {
            0 => break,
            read => len += read,
        }
    }
    Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

fn failed(error: &io::Error) -> Error {
    Error::new(Code::System, format!("reading the output of an image's Python failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(fields: &str) -> Result<ImagePython, String> {
        let output = format!("a warning\n{REPORT}\t{}\nmore\n", fields.replace(' ', "\t").replace('_', " "));
        PythonReport::find(&output).expect("a report").checked()
    }

    #[test]
    fn only_a_python_that_can_be_a_worker_is_taken() {
        let python = checked("3.12 cpython lock glibc_2.36 /opt/venv/bin/python3 ").unwrap();
        assert_eq!((python.program.to_str(), &*python.version), (Some("/opt/venv/bin/python3"), "3.12"));
        assert_eq!(checked("3.14 cpython lock glibc_2.41  ").unwrap().program, Path::new(PROGRAM));
        for (fields, named) in [
            ("3.10 cpython lock glibc_2.36 /p ", "3.10, and 3.11 or later"),
            ("2.7 cpython lock glibc_2.36 /p ", "2.7, and 3.11 or later"),
            ("x cpython lock glibc_2.36 /p ", "\"x\""),
            ("3.11 pypy lock glibc_2.36 /p ", "pypy"),
            ("3.14 cpython free glibc_2.36 /p ", "free-threaded"),
            ("3.12 cpython lock  /p ", "musl"),
            ("3.12 cpython lock glibc_2.31 /p GLIBC_2.34_not_found", "GLIBC 2.34 not found"),
        ] {
            let fault = checked(fields).unwrap_err();
            assert!(fault.contains(named), "{fields}: {fault}");
        }
        assert!(PythonReport::find("sublet-python\t3.12\tcpython\n").is_none());
    }

    #[test]
    fn an_interpreter_that_ends_without_a_report_is_described() {
        let fault = no_report(ProgramEnd::Status(1), "\nFatal Python error\n\n  \x1b[1mno encodings\n");
        assert_eq!(
            fault,
            "its python3 does not work: it exited with status 1, Fatal Python error / \\x1b[1mno encodings"
        );
        let numbered: Vec<_> = (0..9).map(|number| number.to_string()).collect();
        let fault = no_report(ProgramEnd::Status(1), &numbered.join("\n"));
        assert!(fault.ends_with("status 1, 5 / 6 / 7 / 8"), "{fault}");
        let fault = no_report(ProgramEnd::Status(1), "prefix\nFatal Python error: x\n1\n2\n3\n4\n5\n");
        assert!(fault.ends_with("status 1, Fatal Python error: x / 1 / 2 / 3 / 4 / 5"), "{fault}");
        assert!(no_report(ProgramEnd::Signal(11), "").ends_with("killed by SIGSEGV, it printed nothing"));
        assert!(no_report(ProgramEnd::Status(1), &"x".repeat(5000)).len() < 600);
    }
}
