//! The process that makes this node's sandboxes, and the next one, should it have died.
//!
//! Beside those of leases there are those of the node's operator, who tries and looks at things. Operators see the former,
//! and cannot touch them: a lease ends its own.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sublet_fabric::sync::lock;
use sublet_proto::v1::sandbox_request::Body;
use sublet_proto::v1::{SandboxIds, SandboxKill, SandboxReply, SandboxRequest};
use sublet_proto::{Code, Error};
use sublet_sandbox::{
    DevicePlace, Devices, IsolationKind, NetworkAccess, NewSandbox, SandboxError, SandboxLimits,
    SandboxProgram, Sandboxes, Spec, Walls,
};
use tracing::warn;

use crate::execution::runtimes::Runtimes;
use crate::machine::state::system;

/// Device that takes the place of the control socket of an operator's sandbox.
const NOWHERE: &str = "/dev/null";

/// Bytes that a sandbox that is made only for a trial may write to files.
const TRIAL_SCRATCH_BYTES: u64 = 1 << 20;

/// Advice for a machine on which no namespaces can be made.
const NO_NAMESPACES: &str = "they run in user and mount namespaces of their own. In a container allow these, as with docker run --privileged or \
     --security-opt seccomp=unconfined --security-opt apparmor=unconfined --cap-add SYS_ADMIN; on a host set the sysctl \
     user.max_user_namespaces above 0, kernel.unprivileged_userns_clone to 1 and \
     kernel.apparmor_restrict_unprivileged_userns to 0, or start this as root; or lend with less protection by \
     --isolation weak (`sublet doctor` shows what is there)";
/// Advice for a kernel that lacks calls.
const OLD_KERNEL: &str = "update to Linux 5.12 or later, or have the container allow the call, as docker run --security-opt seccomp=unconfined \
     does; or lend with less protection by --isolation weak, if the kernel has Landlock (Linux 5.13)";

/// See the [module](self).
pub(crate) struct SandboxMaker {
    program: PathBuf,
    /// Always empty, but for that process.
    root: PathBuf,
    pub(crate) runtimes: Runtimes,
    walls: Walls,
    /// Places of what belongs to devices.
    places: Vec<DevicePlace>,
    current: Mutex<Current>,
}

struct Current {
    sandboxes: Arc<Sandboxes>,
    /// The operator's.
    operators: BTreeSet<u64>,
}

impl SandboxMaker {
    /// Starts it; the folder is made.
    pub(crate) fn start(
        program: PathBuf,
        root: PathBuf,
        runtimes: Runtimes,
        (walls, places): (Walls, Vec<DevicePlace>),
    ) -> Result<SandboxMaker, Error> {
        match fs::create_dir(&root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(system("making the folder", &root, &error));
            }
            _ => {}
        }
        let current = Mutex::new(Current::open(&program, &root, &runtimes, (walls, &places))?);
        Ok(SandboxMaker { program, root, runtimes, walls, places, current })
    }

    /// Where sandboxes are to be made now. Those of one that has died are dead.
    pub(crate) fn current(&self) -> Result<Arc<Sandboxes>, Error> {
        Ok(self.renewed(&mut lock(&self.current))?.sandboxes.clone())
    }

    /// Makes a sandbox for a program, and lets go of it before the program runs.
    ///
    /// # Errors
    /// If none can be made here: the message says what this machine lacks.
    pub(crate) fn try_process(&self, program: &Path) -> Result<(), Error> {
        let Err(error) = self.try_one(IsolationKind::Process, program)? else { return Ok(()) };
        let advice = match self.walls {
            Walls::Weak => "`sublet doctor` shows what is there",
            Walls::Full if error.is_missing_call() => OLD_KERNEL,
            Walls::Full => NO_NAMESPACES,
        };
        let error = Error::from(error);
        let message = format!("functions cannot be isolated on this machine ({}): {advice}", error.message);
        Err(Error::new(error.code, message))
    }

    /// The same for a copy of each interpreter that is kept warm.
    pub(crate) fn try_copies(&self) -> Result<(), Error> {
        self.runtimes.bare().try_for_each(|(template, program)| {
            let interpreter = template.interpreter.display().to_string();
            self.try_one(IsolationKind::Template(template), &program)?.map_err(|error| {
                let error = Error::from(error);
                Error::new(error.code, format!("{interpreter} cannot be used: {}", error.message))
            })
        })
    }

    /// The inner error is that of the sandbox.
    fn try_one(&self, kind: IsolationKind, program: &Path) -> Result<Result<(), SandboxError>, Error> {
        let sandboxes = self.current()?;
        let limits = SandboxLimits {
            cores: Vec::new(),
            memory_bytes: None,
            shown_memory_bytes: None,
            processes: None,
            scratch_bytes: TRIAL_SCRATCH_BYTES,
        };
        let spec = Spec {
            lent_folders: Vec::new(),
            device_mounts: Vec::new(),
            kind,
            program: SandboxProgram::Outside(program.to_owned()),
            args: Vec::new(),
            env: Vec::new(),
            has_own_variables: false,
            folder: None,
            control: nowhere()?,
            log: None,
            network: NetworkAccess::None,
            devices: Devices::None,
            limits,
        };
        let made = sandboxes.create(vec![spec]).into_iter().collect::<Result<Vec<_>, _>>();
        Ok(made.map(|made| made.iter().for_each(|NewSandbox { id, .. }| drop(sandboxes.delete(&[*id])))))
    }

    /// Does what an operator asks.
    pub(crate) fn obey(&self, mut request: SandboxRequest) -> Result<SandboxReply, Error> {
        self.complete(&mut request)?;
        let mut current = lock(&self.current);
        let Current { sandboxes, operators } = self.renewed(&mut current)?;
        let mut controls = Vec::new();
        match &request.body {
            Some(Body::Create(create)) => {
                controls = create.specs.iter().map(|_| nowhere()).collect::<Result<_, _>>()?;
            }
            Some(
                Body::Start(SandboxIds { ids })
                | Body::Kill(SandboxKill { ids, .. })
                | Body::Delete(SandboxIds { ids }),
            ) => check_operators(ids, operators)?,
            // The agent decides on processes that wait for its leases.
            Some(Body::Standby(_)) => {
                let message =
                    "processes on standby are kept for leases: set their memory when the agent starts";
                return Err(Error::new(Code::InvalidArgument, message));
            }
            Some(Body::State(_) | Body::List(_)) | None => {}
        }
        let answers = sandboxes.relay(&request, &controls)?;
        let successful = answers.iter().filter(|answer| answer.failure.is_none()).map(|answer| answer.id);
        match &request.body {
            Some(Body::Create(_)) => operators.extend(successful),
            Some(Body::Delete(_)) => {
                let deleted: BTreeSet<u64> = successful.collect();
                operators.retain(|id| !deleted.contains(id));
            }
            _ => {}
        }
        Ok(SandboxReply { answers, served: true, standby: Vec::new() })
    }

    fn renewed<'locked>(&self, current: &'locked mut Current) -> Result<&'locked mut Current, Error> {
        if current.sandboxes.is_gone() {
            warn!("the process that makes sandboxes has died, and every sandbox with it; it is started anew");
            let walls = (self.walls, self.places.as_slice());
            *current = Current::open(&self.program, &self.root, &self.runtimes, walls)?;
        }
        Ok(current)
    }

    /// Operators know of templates only the language and the modules, and pass no log with a specification.
    fn complete(&self, request: &mut SandboxRequest) -> Result<(), Error> {
        let Some(Body::Create(create)) = &mut request.body else { return Ok(()) };
        create.specs.iter_mut().for_each(|spec| spec.has_log = false);
        for wanted in create.specs.iter_mut().filter_map(|spec| spec.template.as_mut()) {
            *wanted = self.runtimes.complete(wanted)?;
        }
        Ok(())
    }
}

impl Current {
    fn open(
        program: &Path,
        root: &Path,
        runtimes: &Runtimes,
        (walls, places): (Walls, &[DevicePlace]),
    ) -> Result<Current, Error> {
        let shown = runtimes.shown();
        let sandboxes = Arc::new(Sandboxes::open_with_places(program, root, (&shown, places), walls)?);
        Ok(Current { sandboxes, operators: BTreeSet::new() })
    }
}

fn check_operators(ids: &[u64], operators: &BTreeSet<u64>) -> Result<(), Error> {
    match ids.iter().find(|id| !operators.contains(id)) {
        None => Ok(()),
        Some(id) => {
            let message =
                format!("no operator of this node has made a sandbox {id}; a lease's ends with the lease");
            Err(Error::new(Code::InvalidArgument, message))
        }
    }
}

fn nowhere() -> Result<OwnedFd, Error> {
    let opened = File::options().read(true).write(true).open(NOWHERE);
    opened.map(OwnedFd::from).map_err(|error| system("opening", Path::new(NOWHERE), &error))
}
