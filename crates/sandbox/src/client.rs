//! The side of whoever wants sandboxes: starts the spawner and asks it.

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
};

use crate::wire::{self, decode_answer, encode_spec};
use crate::{Id, MAX_VECTOR, SandboxError, Signal, Spec, State};

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
pub struct Made {
    /// By which the verbs name it.
    pub id: Id,
    /// As it is now: its pid, if it was started.
    pub state: State,
    /// Becomes readable when nothing of the sandbox runs any more, and stays so.
    pub ended: OwnedFd,
    /// Of a copy: why it has not the modules of its template, if they cannot be kept warm.
    pub cold_imports: Option<ColdImports>,
}

impl Sandboxes {
    /// Starts a spawner: the program, with an existing folder over which it mounts what sandboxes see, in a namespace
    /// of its own, so that nobody else ever finds anything in there. Beside the host's shared libraries they see these
    /// paths of the host, read-only, as interpreters need them.
    ///
    /// # Errors
    /// If it cannot be started. What it itself cannot do is told when a sandbox is made.
    pub fn open(program: &Path, folder: &Path, shown: &[PathBuf]) -> Result<Sandboxes, SandboxError> {
        let failed = |source| SandboxError::system(format!("starting {}", program.display()), source);
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (outside, inside) =
            rustix::net::socketpair(kind.0, kind.1, kind.2, None).map_err(|errno| failed(errno.into()))?;
        let output = io::stderr().as_fd().try_clone_to_owned().map_err(failed)?;
        let spawner = Command::new(program)
            .arg(folder)
            .args(shown)
            .env_clear()
            // What is typed at the agent's terminal is the agent's business.
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
    pub fn create(&self, specs: Vec<Spec>) -> Vec<Result<Made, SandboxError>> {
        self.make(specs, false)
    }

    /// Creates and starts, in one go. One whose program cannot be started is gone at once.
    pub fn launch(&self, specs: Vec<Spec>) -> Vec<Result<Made, SandboxError>> {
        self.make(specs, true)
    }

    /// Starts the programs.
    pub fn start(&self, ids: &[Id]) -> Vec<Result<State, SandboxError>> {
        self.ask("start", ids, |ids| Body::Start(SandboxIds { ids }))
    }

    /// Where the sandboxes stand now.
    pub fn state(&self, ids: &[Id]) -> Vec<Result<State, SandboxError>> {
        self.ask("look at", ids, |ids| Body::State(SandboxIds { ids }))
    }

    /// Sends the programs a signal; SIGKILL ends everything that runs in the sandboxes. One that does not run is left
    /// as it is.
    pub fn kill(&self, ids: &[Id], signal: Signal) -> Vec<Result<State, SandboxError>> {
        self.ask("kill", ids, |ids| Body::Kill(SandboxKill { ids, signal: signal.as_raw() }))
    }

    /// Forgets sandboxes that do not run.
    pub fn delete(&self, ids: &[Id]) -> Vec<Result<State, SandboxError>> {
        self.ask("delete", ids, |ids| Body::Delete(SandboxIds { ids }))
    }

    /// Passes on a request as it is, for whoever has no sandboxes of its own. Of a sandbox that it creates only the state is
    /// known here.
    pub fn relay(
        &self,
        request: &SandboxRequest,
        controls: &[OwnedFd],
    ) -> Result<Vec<SandboxAnswer>, SandboxError> {
        self.exchange(request, controls).map(|(answers, _)| answers)
    }

    fn make(&self, specs: Vec<Spec>, start: bool) -> Vec<Result<Made, SandboxError>> {
        let count = specs.len();
        let (specs, descriptors): (Vec<_>, Vec<_>) = specs.into_iter().map(encode_spec).unzip();
        let descriptors: Vec<_> = descriptors.into_iter().flatten().collect();
        let request = SandboxRequest { body: Some(Body::Create(SandboxCreate { specs, start })) };
        let (answers, fds) = match self.exchange(&request, &descriptors) {
            Ok(reply) => reply,
            Err(error) => return wire::each(count, &error),
        };
        let mut fds = fds.into_iter();
        let made = |mut answer: SandboxAnswer| {
            let cold_imports = answer.cold_imports.take();
            let (id, state) = decode_answer(answer, "create")?;
            let ended = fds.next().ok_or_else(incomplete)?;
            Ok(Made { id, state, ended, cold_imports })
        };
        answers.into_iter().map(made).collect()
    }

    fn ask(
        &self,
        verb: &'static str,
        ids: &[Id],
        body: impl FnOnce(Vec<u64>) -> Body,
    ) -> Vec<Result<State, SandboxError>> {
        let request = SandboxRequest { body: Some(body(ids.iter().map(|id| id.0).collect())) };
        match self.exchange(&request, &[]) {
            Ok((answers, _)) if answers.len() == ids.len() => {
                let state = |answer| decode_answer(answer, verb).map(|(_, state)| state);
                answers.into_iter().map(state).collect()
            }
            Ok(_) => wire::each(ids.len(), &incomplete()),
            Err(error) => wire::each(ids.len(), &error),
        }
    }

    fn exchange(
        &self,
        request: &SandboxRequest,
        fds: &[OwnedFd],
    ) -> Result<(Vec<SandboxAnswer>, Vec<OwnedFd>), SandboxError> {
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
        let (reply, fds) = received.ok_or_else(|| gone(io::ErrorKind::BrokenPipe))?;
        Ok((reply.answers, fds))
    }
}

impl Drop for Sandboxes {
    fn drop(&mut self) {
        // Its end of the socket is what keeps the spawner alive.
        drop(self.connection.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        let _ = self.spawner.wait();
    }
}

/// That a reply has not as many answers or descriptors as there were sandboxes in the request.
fn incomplete() -> SandboxError {
    SandboxError::SpawnerGone(io::ErrorKind::InvalidData.into())
}
