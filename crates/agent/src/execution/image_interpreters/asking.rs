//! Has the interpreter of an image report what it is, in a sandbox of its own that sees the image and the library of
//! workers: no package, variables, folders or network of a tenant.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use sublet_fabric::packet::PacketSocket;
use sublet_proto::{Code, Error};
use sublet_sandbox::{
    Devices, NetworkAccess, NewSandbox, ProgramEnd, SandboxError, SandboxLimits, SandboxProgram, Sandboxes,
    Signal, Spec,
};
use tracing::{info, warn};

use super::answer::{Answer, ImageInterpreter};
use super::language::ImageLanguage;
use super::node_report::NodeReport;
use super::report::{PythonReport, last_words, no_report, shown};
use super::{ImageInterpreters, InterpreterRequest, container, environment};
use crate::execution::c_library::CLibrary;
use crate::execution::images::HeldImage;
use crate::execution::start_cores::{CoreLoan, StartCores, lease_ended};
use crate::signal::wait_readable;

/// How long an interpreter may take to report what it is.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a killed interpreter may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);
/// Resources of an interpreter that reports what it is.
const MEMORY_BYTES: u64 = 512 << 20;
const SCRATCH_BYTES: u64 = 16 << 20;
const PROCESSES: u32 = 64;
/// Bytes of its output that are read.
const MAX_OUTPUT_BYTES: usize = 16 << 10;

impl ImageInterpreters {
    /// Has the interpreter of an image report what it is. Errors name no image, because leases that know the image by
    /// another name, or from another registry, receive them, too.
    pub(super) fn ask(&self, request: &InterpreterRequest<'_>, cores: &Arc<StartCores>) -> Answer {
        let begun = Instant::now();
        let image = &request.build.image;
        let lost = |error: Error| {
            warn!(image, %error, "an image cannot be used");
            Error::new(error.code, "its layers cannot be used")
        };
        let gone = || Error::new(Code::System, "an interpreter in an image is asked without an image");
        let held = self.images.hold(request.build).map_err(lost)?.ok_or_else(gone)?;
        let found = match self.reported(&held, request, CLibrary::Glibc, cores.lend()?)? {
            // It did not load the library for glibc.
            Ok(ImageInterpreter { libc: CLibrary::Musl, .. }) => {
                self.reported(&held, request, CLibrary::Musl, cores.lend()?)?
            }
            found => found,
        };
        let interpreter = found.map_err(|fault| Error::new(Code::InvalidPackage, fault))?;
        let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let (language, version) = (request.key.language.name(), &interpreter.version);
        let libc = interpreter.libc.name();
        info!(image, language, version, libc, took_ms, "the interpreter of an image is known");
        Ok(interpreter)
    }

    /// Returns the interpreter that an image reports on these cores, or why it cannot execute functions. The interpreter has
    /// loaded the library of workers for this C library, if it is linked with that C library.
    fn reported(
        &self,
        held: &HeldImage,
        request: &InterpreterRequest<'_>,
        libc: CLibrary,
        loan: CoreLoan,
    ) -> Result<Result<ImageInterpreter, String>, Error> {
        let (output, end) = self.run(held, request, libc, loan)?;
        let language = request.key.language;
        Ok(end.and_then(|end| {
            let checked = match language {
                ImageLanguage::Python => PythonReport::find(&output).map(PythonReport::checked),
                ImageLanguage::Nodejs => NodeReport::find(&output).map(NodeReport::checked),
            };
            checked.unwrap_or_else(|| Err(no_report(language.program(), end, &output)))
        }))
    }

    /// Has the interpreter of an image report what it is on these cores, with the library of workers for this C library. Returns
    /// its output and its end, or why it cannot be executed.
    fn run(
        &self,
        held: &HeldImage,
        request: &InterpreterRequest<'_>,
        libc: CLibrary,
        loan: CoreLoan,
    ) -> Result<(String, Result<ProgramEnd, String>), Error> {
        let log = output_file()?;
        let sandboxes = self.sandboxes.current()?;
        let (_outside, control) = PacketSocket::pair()?;
        let language = request.key.language;
        let env = environment(&held.image, language);
        let path =
            env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.to_string_lossy().into_owned());
        let spec = Spec {
            kind: container(&held.image, request.key.runtime.as_deref()),
            program: SandboxProgram::Loading {
                program: language.program().into(),
                library: self.libraries.of(language, libc)?.to_owned(),
            },
            args: language.ask(libc),
            env,
            has_own_variables: false,
            folder: None,
            lent_folders: Vec::new(),
            device_mounts: Vec::new(),
            control: control.into(),
            log: Some(log.try_clone().map_err(|error| failed(&error))?.into()),
            network: NetworkAccess::None,
            devices: Devices::None,
            limits: SandboxLimits {
                cores: loan.numbers().to_vec(),
                memory_bytes: Some(MEMORY_BYTES),
                shown_memory_bytes: None,
                processes: Some(PROCESSES),
                scratch_bytes: SCRATCH_BYTES,
            },
        };
        let launched = sandboxes.launch(vec![spec]).pop();
        let launched = launched.ok_or_else(|| Error::new(Code::Internal, "a sandbox verb gave no answer"))?;
        let asked = match launched {
            Ok(sandbox) => AskedInterpreter { sandboxes, sandbox, loan },
            Err(error) => {
                // A runtime finds the image's program by itself: here the runtime could not be executed.
                let fault = match request.key.runtime {
                    None => not_executed(language.program(), &error, &path.unwrap_or_default()),
                    Some(_) => None,
                };
                return match fault {
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
struct AskedInterpreter {
    sandboxes: Arc<Sandboxes>,
    sandbox: NewSandbox,
    /// The cores that it uses.
    loan: CoreLoan,
}

impl AskedInterpreter {
    /// Waits for its end, unless its cores are called back before.
    fn end(&self) -> Result<ProgramEnd, Error> {
        let watches = [self.sandbox.ended.as_fd(), self.loan.called_back()].map(Some);
        let [has_ended, is_called_back] = wait_readable(watches, Some(Instant::now() + PATIENCE))?;
        if !has_ended && is_called_back {
            return Err(lease_ended());
        }
        if !has_ended {
            let message = format!("it did not report its version within {} s", PATIENCE.as_secs());
            return Err(Error::new(Code::System, message));
        }
        let state = self.sandboxes.state(&[self.sandbox.id]).pop().and_then(Result::ok);
        state.and_then(|state| state.exit).ok_or_else(|| Error::new(Code::System, "its end is not known"))
    }
}

impl Drop for AskedInterpreter {
    fn drop(&mut self) {
        // If the process survives, the spawner still has it and ends it with the agent.
        let _ = self.sandboxes.kill(&[self.sandbox.id], Signal::KILL);
        let until = Some(Instant::now() + LONGEST_END);
        if !matches!(wait_readable([Some(self.sandbox.ended.as_fd())], until), Ok([true])) {
            warn!(cores = ?self.loan.numbers(), "the interpreter of an image cannot be killed: its cores are lost");
            self.loan.lose();
        }
        let _ = self.sandboxes.delete(&[self.sandbox.id]);
    }
}

/// Why a program of an image could not be executed, unless this machine is the cause.
fn not_executed(program: &str, error: &SandboxError, path: &str) -> Option<String> {
    let SandboxError::System { operation, source } = error else { return None };
    if !operation.starts_with("executing") {
        return None;
    }
    Some(match Errno::from_io_error(source) {
        Some(Errno::NOENT) => format!("it has no {program} in the folders of its PATH ({})", shown(path)),
        Some(Errno::LIBACC) => format!("its {program} names a loader that it does not have"),
        Some(Errno::NOEXEC) => format!("its {program} is not a program for {}", std::env::consts::ARCH),
        _ => format!("its {program} cannot be executed: {source}"),
    })
}

fn with_words(error: Error, output: &str) -> Error {
    match last_words(output) {
        Some(words) => Error::new(error.code, format!("{}: {words}", error.message)),
        None => error,
    }
}

fn output_file() -> Result<File, Error> {
    let made = memfd_create("sublet-image-interpreter", MemfdFlags::CLOEXEC);
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
    Error::new(Code::System, format!("reading the output of an image's interpreter failed: {error}"))
}
