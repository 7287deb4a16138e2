//! Client of the spawner: starts it and sends requests for sandboxes to it.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use sublet_proto::v1::sandbox_request::Body;
use sublet_proto::v1::{
    ColdImports, SandboxAnswer, SandboxCreate, SandboxIds, SandboxKill, SandboxReply, SandboxRequest,
    SandboxStandby, StandbyProcesses,
};

use crate::spawner::{PLACE_OF_FILE, PLACE_OF_FOLDER, WEAK};
use crate::wire::{self, decode_answer, encode_spec};
use crate::{DevicePlace, MAX_VECTOR, SandboxError, SandboxId, SandboxState, Signal, Spec, Walls};

/// The sandboxes of one spawner. Dropped, all of them are dead, and the spawner with them.
///
/// Threads may share it: they are served one after the other.
#[derive(Debug)]
pub struct Sandboxes {
    /// Closed before the process is waited for.
    connection: Mutex<Option<OwnedFd>>,
    spawner: Child,
}

/// A sandbox that was made.
#[derive(Debug)]
pub struct NewSandbox {
    /// Identifier of the sandbox for the verbs.
    pub id: SandboxId,
    /// Present state; it has a pid if the sandbox was started.
    pub state: SandboxState,
    /// Becomes readable when nothing of the sandbox runs any more, and stays so.
    pub ended: OwnedFd,
    /// Reason why a copy lacks the modules of its template, if these cannot be kept warm.
    pub cold_imports: Option<ColdImports>,
    /// Whether the process was on standby: it had imported its modules before this sandbox was requested.
    pub is_standby: bool,
}

impl Sandboxes {
    /// Starts a spawner from its program. Over the existing folder it mounts the files that sandboxes see, in a
    /// namespace of its own, so that no other process ever finds anything there. Beside the host's shared libraries,
    /// sandboxes see these paths of the host, read-only, as interpreters need them.
    ///
    /// # Errors
    /// If the spawner cannot be started. Its own failures are reported when a sandbox is made.
    pub fn open(
        program: &Path,
        folder: &Path,
        shown: &[PathBuf],
        walls: Walls,
    ) -> Result<Sandboxes, SandboxError> {
        Sandboxes::open_with_places(program, folder, (shown, &[]), walls)
    }

    /// Starts a spawner as [`Sandboxes::open`] does. Sandboxes that have devices can see something of these at each of the
    /// places.
    ///
    /// # Errors
    /// Those of [`Sandboxes::open`].
    pub fn open_with_places(
        program: &Path,
        folder: &Path,
        (shown, places): (&[PathBuf], &[DevicePlace]),
        walls: Walls,
    ) -> Result<Sandboxes, SandboxError> {
        let failed = |source| SandboxError::system(format!("starting {}", program.display()), source);
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (outside, inside) =
            rustix::net::socketpair(kind.0, kind.1, kind.2, None).map_err(|errno| failed(errno.into()))?;
        let output = io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
        let spawner = Command::new(program)
            .args((walls == Walls::Weak).then_some(WEAK))
            .arg(folder)
            .args(shown)
            .args(places.iter().flat_map(|place| match place {
                DevicePlace::File(path) => [OsStr::new(PLACE_OF_FILE), path.as_os_str()],
                DevicePlace::Folder(path) => [OsStr::new(PLACE_OF_FOLDER), path.as_os_str()],
            }))
            .env_clear()
            // Keys that are pressed at the agent's terminal concern only the agent.
            .process_group(0)
            .stdin(inside)
            .stdout(output)
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(failed)?;
        Ok(Sandboxes { connection: Mutex::new(Some(outside)), spawner })
    }

    /// Whether the spawner has ended, and every sandbox with it.
    pub fn is_gone(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        matches!(waitid(WaitId::Pid(Pid::from_child(&self.spawner)), options), Ok(Some(_)) | Err(_))
    }

    /// Makes sandboxes; none of their programs runs yet.
    pub fn create(&self, specs: Vec<Spec>) -> Vec<Result<NewSandbox, SandboxError>> {
        self.make(specs, false)
    }

    /// Creates and starts, in one go. One whose program cannot be started is gone at once.
    pub fn launch(&self, specs: Vec<Spec>) -> Vec<Result<NewSandbox, SandboxError>> {
        self.make(specs, true)
    }

    /// Starts the programs.
    pub fn start(&self, ids: &[SandboxId]) -> Vec<Result<SandboxState, SandboxError>> {
        self.ask("start", ids, |ids| Body::Start(SandboxIds { ids }))
    }

    /// Returns the present states of sandboxes.
    pub fn state(&self, ids: &[SandboxId]) -> Vec<Result<SandboxState, SandboxError>> {
        self.ask("look at", ids, |ids| Body::State(SandboxIds { ids }))
    }

    /// Sends the programs a signal; SIGKILL ends everything that runs in the sandboxes. One that does not run is left
    /// as it is.
    pub fn kill(&self, ids: &[SandboxId], signal: Signal) -> Vec<Result<SandboxState, SandboxError>> {
        self.ask("kill", ids, |ids| Body::Kill(SandboxKill { ids, signal: signal.as_raw() }))
    }

    /// Forgets sandboxes that do not run.
    pub fn delete(&self, ids: &[SandboxId]) -> Vec<Result<SandboxState, SandboxError>> {
        self.ask("delete", ids, |ids| Body::Delete(SandboxIds { ids }))
    }

    /// Passes on a request unchanged, for a client that has no sandboxes of its own. The client knows only the state of
    /// a sandbox that the request creates.
    pub fn relay(
        &self,
        request: &SandboxRequest,
        controls: &[OwnedFd],
    ) -> Result<Vec<SandboxAnswer>, SandboxError> {
        self.exchange(request, controls).map(|(reply, _)| reply.answers)
    }

    /// Lets processes wait on standby with imported modules: those of copies that ask for modules which a template cannot
    /// have. They import on these cores only, and all of them take this much memory at most. Returns those that there are.
    /// The spawner keeps to the latest call; it keeps none before the first one.
    ///
    /// # Errors
    /// If the spawner is gone.
    pub fn keep_standby(
        &self,
        idle_cores: Vec<u32>,
        memory_bytes: u64,
    ) -> Result<Vec<StandbyProcesses>, SandboxError> {
        let body = Some(Body::Standby(SandboxStandby { idle_cores, memory_bytes }));
        self.exchange(&SandboxRequest { body }, &[]).map(|(reply, _)| reply.standby)
    }

    fn make(&self, specs: Vec<Spec>, start: bool) -> Vec<Result<NewSandbox, SandboxError>> {
        let count = specs.len();
        let (specs, descriptors): (Vec<_>, Vec<_>) = specs.into_iter().map(encode_spec).unzip();
        let descriptors: Vec<_> = descriptors.into_iter().flatten().collect();
        let request = SandboxRequest { body: Some(Body::Create(SandboxCreate { specs, start })) };
        let (answers, fds) = match self.exchange(&request, &descriptors) {
            Ok((reply, fds)) => (reply.answers, fds),
            Err(error) => return wire::each(count, &error),
        };
        let mut fds = fds.into_iter();
        let made = |mut answer: SandboxAnswer| {
            let (cold_imports, is_standby) = (answer.cold_imports.take(), answer.standby);
            let (id, state) = decode_answer(answer, "create")?;
            let ended = fds.next().ok_or_else(incomplete)?;
            Ok(NewSandbox { id, state, ended, cold_imports, is_standby })
        };
        answers.into_iter().map(made).collect()
    }

    fn ask(
        &self,
        verb: &'static str,
        ids: &[SandboxId],
        body: impl FnOnce(Vec<u64>) -> Body,
    ) -> Vec<Result<SandboxState, SandboxError>> {
        let request = SandboxRequest { body: Some(body(ids.iter().map(|id| id.0).collect())) };
        match self.exchange(&request, &[]) {
            Ok((reply, _)) if reply.answers.len() == ids.len() => {
                let state = |answer| decode_answer(answer, verb).map(|(_, state)| state);
                reply.answers.into_iter().map(state).collect()
            }
            Ok(_) => wire::each(ids.len(), &incomplete()),
            Err(error) => wire::each(ids.len(), &error),
        }
    }

    fn exchange(
        &self,
        request: &SandboxRequest,
        fds: &[OwnedFd],
    ) -> Result<(SandboxReply, Vec<OwnedFd>), SandboxError> {
        // The reply to a longer one would not fit into a packet, and the spawner ends when it cannot answer.
        if wire::count(request) > MAX_VECTOR {
            return Err(SandboxError::TooMany);
        }
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = |error: io::ErrorKind| SandboxError::SpawnerGone(error.into());
        let socket = connection.as_ref().ok_or_else(|| gone(io::ErrorKind::NotConnected))?.as_fd();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        wire::send(socket, request, &fds).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => SandboxError::system("asking for sandboxes", error),
            _ => SandboxError::SpawnerGone(error),
        })?;
        let received = wire::receive::<SandboxReply>(socket).map_err(SandboxError::SpawnerGone)?;
        received.ok_or_else(|| gone(io::ErrorKind::BrokenPipe))
    }
}

impl Drop for Sandboxes {
    fn drop(&mut self) {
        // Its end of the socket is what keeps the spawner alive.
        drop(self.connection.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        let _ = self.spawner.wait();
    }
}

/// Error of a reply that has not one answer, or not one descriptor, for each sandbox in the request.
fn incomplete() -> SandboxError {
    SandboxError::SpawnerGone(io::ErrorKind::InvalidData.into())
}
