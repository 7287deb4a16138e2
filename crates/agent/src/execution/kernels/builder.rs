//! The builder's process in a sandbox of its own: its order, its answers, and its end.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_fabric::packet::PacketSocket;
use sublet_proto::package::PackageKind;
use sublet_proto::{Code, Error};
use sublet_sandbox::{
    NetworkAccess, NewSandbox, ProgramEnd, SandboxLimits, SandboxProgram, Sandboxes, Signal, Spec,
};
use tracing::warn;

use super::device_access::{devices_of, environment};
use crate::execution::start_cores::CoreLoan;
use crate::signal::wait_readable;

/// How long what was killed may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);

/// Order for a builder.
pub(super) struct BuildOrder<'a> {
    /// The builder program.
    pub(super) program: &'a Path,
    /// Kind of the devices.
    pub(super) kind: PackageKind,
    /// The builder's second argument: what to do for the devices.
    pub(super) what: OsString,
    /// The package that the builder sees.
    pub(super) folder: Option<&'a Path>,
    pub(super) limits: SandboxLimits,
}

/// A running builder process. It is killed when this is dropped.
pub(super) struct BuilderProcess {
    sandboxes: Arc<Sandboxes>,
    sandbox: NewSandbox,
    /// The socket on which the builder answers.
    pub(super) socket: PacketSocket,
    /// The cores that the builder uses, if they are a lease's.
    loan: Option<CoreLoan>,
}

impl BuilderProcess {
    pub(super) fn start(
        sandboxes: Arc<Sandboxes>,
        order: BuildOrder<'_>,
        loan: Option<CoreLoan>,
    ) -> Result<BuilderProcess, Error> {
        let BuildOrder { program, kind, what, folder, limits } = order;
        let (socket, inside) = PacketSocket::pair()?;
        let spec = Spec {
            lent_folders: Vec::new(),
            device_mounts: Vec::new(),
            kind: sublet_sandbox::IsolationKind::Process,
            program: SandboxProgram::Outside(program.to_owned()),
            args: vec![kind.name().into(), what],
            env: environment(),
            has_own_variables: false,
            folder: folder.map(Path::to_owned),
            control: inside.into(),
            log: None,
            network: NetworkAccess::None,
            devices: devices_of(kind),
            limits,
        };
        let made = sandboxes.launch(vec![spec]).pop();
        let none = || Error::new(Code::Internal, "a sandbox verb gave no answer");
        let sandbox = made.ok_or_else(none)??;
        Ok(BuilderProcess { sandboxes, sandbox, socket, loan })
    }

    /// A descriptor that is readable once the builder's cores are called back.
    pub(super) fn called_back(&self) -> Option<BorrowedFd<'_>> {
        self.loan.as_ref().map(CoreLoan::called_back)
    }

    /// How the builder ended, after its last message. Returns `None` if the end cannot be determined.
    pub(super) fn describe(&self) -> Option<String> {
        wait_readable([Some(self.sandbox.ended.as_fd())], Some(Instant::now() + LONGEST_END)).ok()?;
        let state = self.sandboxes.state(&[self.sandbox.id]).pop()?.ok()?;
        state.exit.map(|exit| match exit {
            ProgramEnd::OutOfMemory(bytes) => format!("was out of its {} MiB of memory", bytes >> 20),
            exit => exit.to_string(),
        })
    }
}

impl Drop for BuilderProcess {
    fn drop(&mut self) {
        // If the process survives, the spawner still has it and ends it with the agent.
        let _ = self.sandboxes.kill(&[self.sandbox.id], Signal::KILL);
        let until = Some(Instant::now() + LONGEST_END);
        let has_ended = matches!(wait_readable([Some(self.sandbox.ended.as_fd())], until), Ok([true]));
        if let Some(loan) = self.loan.as_mut().filter(|_| !has_ended) {
            warn!(cores = ?loan.numbers(), "a build of kernels cannot be killed: its cores are lost");
            loan.lose();
        }
        let _ = self.sandboxes.delete(&[self.sandbox.id]);
    }
}
