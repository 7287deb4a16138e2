//! Tells a process that was made ahead of time what it becomes.

use std::ffi::{CString, NulError, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::process::Pid;
use sublet_proto::v1::{PlannedFolder, SandboxPlan, WeakPlan};

use super::{MountPoint, OutputTarget, PROGRAM};
use crate::{
    DeviceMount, Devices, FolderAccess, IsolationKind, NetworkAccess, SandboxId, SandboxProgram, Spec, wire,
};

/// Variable by which a copy of a Python finds its environment, which has no place of its own.
const ENVIRONMENT_VARIABLE: &str = "SUBLET_ENVIRONMENT";
/// Codes of a plan for the destination of output.
const LOG: u32 = 1;
const COMMON: u32 = 2;

/// Everything that a first process must know to become the sandbox.
pub(crate) struct CreationPlan {
    /// Detached mounts, and their mount points.
    pub(super) mounts: Vec<(MountPoint, OwnedFd)>,
    /// Layers of the image, for a container.
    pub(super) image: Option<LayerMounts>,
    /// Folders that are lent to the sandbox.
    pub(super) folders: Vec<LentFolderMount>,
    /// Nodes and files of the sandbox's own devices.
    pub(super) device_mounts: Vec<PlacedMount>,
    /// Path of the program in the sandbox.
    pub(super) program: CString,
    pub(super) args: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) control: OwnedFd,
    /// File for the program's output. Only the first process has it.
    pub(super) output: Option<OutputTarget>,
    /// Id of the sandbox, which labels its output in a shared file.
    pub(super) id: u64,
    /// Paths of the host beneath [`crate::SCRATCH`], which is the sandbox's own, without the first slash.
    pub(super) kept: Vec<CString>,
    pub(super) network: NetworkAccess,
    pub(super) devices: Devices,
    pub(super) scratch_bytes: u64,
    pub(super) shared_bytes: u64,
    pub(super) processes: Option<u32>,
    /// The first process, in a process that it has forked and that has to know it.
    pub(super) first: Option<Pid>,
    /// Rules of weak isolation, which has no mounts.
    pub(super) weak: Option<WeakWalls>,
    /// Whether the plan of the program follows: until then the process imports the modules that are its arguments.
    pub(super) is_standby: bool,
}

/// Rules for a process that sees the host's files at their own paths.
pub(crate) struct WeakWalls {
    /// Paths of the host that the process may read, with all beneath them.
    pub(super) readable: Vec<PathBuf>,
    /// Largest private memory of the process, in bytes.
    pub(super) memory_bytes: Option<u64>,
}

/// A folder that is lent to the sandbox.
pub(crate) struct LentFolderMount {
    /// Name of the folder beneath [`crate::LENT_FOLDERS`].
    pub(super) name: String,
    pub(super) access: FolderAccess,
    /// Detached mount; none in a process that shares the mounts of the first.
    pub(super) mount: Option<OwnedFd>,
}

/// Something of a device, at a place that the common root has for it.
pub(crate) struct PlacedMount {
    /// Place in the common root, without the first slash.
    pub(super) place: CString,
    /// Detached mount; none in a process that shares the mounts of the first.
    pub(super) mount: Option<OwnedFd>,
}

/// The layers of an image as detached mounts, the lowest first, and where in it the program begins.
pub(crate) struct LayerMounts {
    pub(super) layers: Vec<OwnedFd>,
    pub(super) working_folder: CString,
    /// The OCI runtime that makes the container, if this process does not.
    pub(super) runtime: Option<CString>,
}

impl CreationPlan {
    /// Makes the plan of a sandbox with these mounts, those of its image's layers among them.
    pub(crate) fn new(
        SandboxId(id): SandboxId,
        spec: Spec,
        mounts: Vec<(MountPoint, OwnedFd)>,
        (layers, folders, device_mounts): (Vec<OwnedFd>, Vec<OwnedFd>, Vec<OwnedFd>),
        kept: &[CString],
    ) -> io::Result<CreationPlan> {
        let text = |path: &Path| CString::new(path.as_os_str().as_bytes());
        let runtime = match &spec.kind {
            IsolationKind::Delegated { runtime, .. } => Some(text(runtime)?),
            IsolationKind::Process | IsolationKind::Container(_) | IsolationKind::Template(_) => None,
        };
        let folder = spec.kind.image().map(|image| text(&image.working_folder)).transpose()?;
        let image = folder.map(|working_folder| LayerMounts { layers, working_folder, runtime });
        let program = match &spec.program {
            SandboxProgram::Outside(_) => PROGRAM.to_owned(),
            SandboxProgram::Inside(path) | SandboxProgram::Loading { program: path, .. } => text(path)?,
        };
        let name = spec.program.path().as_os_str().to_owned();
        let args = std::iter::once(name).chain(spec.args);
        let output = match spec.log {
            Some(log) => OutputTarget::Log(log),
            None => OutputTarget::Common(rustix::stdio::stderr().try_clone_to_owned()?),
        };
        let env = spec.env.iter().map(|(name, value)| CString::new(wire::variable(name, value)));
        let folders = spec.lent_folders.into_iter().zip(folders).map(|(folder, mount)| LentFolderMount {
            name: folder.name,
            access: folder.access,
            mount: Some(mount),
        });
        let placed = |(of_spec, mount): (DeviceMount, OwnedFd)| {
            let place = of_spec.place.strip_prefix("/").map_err(|_| io::ErrorKind::InvalidInput)?;
            Ok::<_, io::Error>(PlacedMount { place: text(place)?, mount: Some(mount) })
        };
        let device_mounts = spec.device_mounts.into_iter().zip(device_mounts).map(placed);
        Ok(CreationPlan {
            mounts,
            image,
            folders: folders.collect(),
            device_mounts: device_mounts.collect::<Result<_, _>>()?,
            program,
            args: args.map(|word| CString::new(word.into_vec())).collect::<Result<_, _>>()?,
            env: env.collect::<Result<_, _>>()?,
            control: spec.control,
            output: Some(output),
            id,
            kept: kept.to_vec(),
            network: spec.network,
            devices: spec.devices,
            scratch_bytes: spec.limits.scratch_bytes,
            shared_bytes: spec.limits.shared_bytes(),
            processes: spec.limits.processes,
            first: None,
            weak: None,
            is_standby: false,
        })
    }

    /// Makes it the plan of a process on standby, with its arguments as the modules.
    pub(crate) fn on_standby(self) -> CreationPlan {
        CreationPlan { is_standby: true, ..self }
    }

    /// Makes the plan of a sandbox of weak isolation, which may read these paths.
    pub(crate) fn weak(id: SandboxId, spec: Spec, readable: &[PathBuf]) -> io::Result<CreationPlan> {
        let memory_bytes = spec.limits.memory_bytes;
        let program = CString::new(spec.program.path().as_os_str().as_bytes())?;
        let environment = match &spec.kind {
            IsolationKind::Template(template) => template.environment.clone(),
            _ => None,
        };
        let mut spec = spec;
        let own = environment.map(|folder| (OsString::from(ENVIRONMENT_VARIABLE), folder.into_os_string()));
        spec.env.extend(own);
        let plan = CreationPlan::new(id, spec, Vec::new(), (Vec::new(), Vec::new(), Vec::new()), &[])?;
        let weak = Some(WeakWalls { readable: readable.to_vec(), memory_bytes });
        Ok(CreationPlan { program, weak, ..plan })
    }

    /// The program, its arguments with its name first, and its environment. All descriptors are closed.
    pub(crate) fn into_program(self) -> (CString, Vec<CString>, Vec<CString>) {
        (self.program, self.args, self.env)
    }

    /// Whether an OCI runtime makes the container.
    pub(super) fn is_delegated(&self) -> bool {
        self.image.as_ref().is_some_and(|image| image.runtime.is_some())
    }

    /// Tells the process at the other end.
    pub(crate) fn send(self, link: BorrowedFd<'_>) -> io::Result<()> {
        let bytes_of = |text: &CString| text.to_bytes().to_vec();
        let runtime = self.image.as_ref().and_then(|image| image.runtime.as_ref());
        let bytes =
            |strings: Vec<CString>| -> Vec<_> { strings.into_iter().map(CString::into_bytes).collect() };
        let message = SandboxPlan {
            places: self.mounts.iter().map(|(place, _)| place.number()).collect(),
            args: bytes(self.args),
            env: bytes(self.env),
            host_network: self.network == NetworkAccess::Host,
            scratch_bytes: self.scratch_bytes,
            shared_bytes: self.shared_bytes,
            processes: self.processes.unwrap_or(0),
            program: self.program.into_bytes(),
            layers: self.image.as_ref().map_or(0, |image| layer_count(&image.layers)),
            working_folder: self
                .image
                .as_ref()
                .map(|image| bytes_of(&image.working_folder))
                .unwrap_or_default(),
            runtime: runtime.map(bytes_of).unwrap_or_default(),
            kept: bytes(self.kept),
            folders: self
                .folders
                .iter()
                .map(|folder| PlannedFolder {
                    name: folder.name.clone(),
                    writable: folder.access == FolderAccess::Write,
                })
                .collect(),
            device_mounts: self.device_mounts.iter().map(|one| bytes_of(&one.place)).collect(),
            devices: wire::encode_devices(self.devices),
            id: self.id,
            weak: self.weak.as_ref().map(|weak| WeakPlan {
                readable: weak.readable.iter().map(|path| path.as_os_str().as_bytes().to_vec()).collect(),
                memory_bytes: weak.memory_bytes.unwrap_or(0),
            }),
            output: match &self.output {
                None => 0,
                Some(OutputTarget::Log(_)) => LOG,
                Some(OutputTarget::Common(_)) => COMMON,
            },
            standby: self.is_standby,
        };
        let mounts = self.mounts.iter().map(|(_, mount)| mount.as_fd());
        let layers = self.image.iter().flat_map(|image| image.layers.iter().map(AsFd::as_fd));
        let folders = self.folders.iter().filter_map(|folder| folder.mount.as_ref()).map(AsFd::as_fd);
        let devices = self.device_mounts.iter().filter_map(|one| one.mount.as_ref()).map(AsFd::as_fd);
        let folders = folders.chain(devices);
        let own = [self.control.as_fd()].into_iter().chain(self.output.as_ref().map(OutputTarget::as_fd));
        debug_assert_eq!(
            message.layers == 0,
            self.image.is_none(),
            "a container without layers is read as a process"
        );
        wire::send(link, &message, &mounts.chain(layers).chain(folders).chain(own).collect::<Vec<_>>())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "an image has `MAX_LAYERS` at most")]
fn layer_count(layers: &[OwnedFd]) -> u32 {
    layers.len() as u32
}

/// Waits for the plan.
pub(super) fn receive(link: BorrowedFd<'_>) -> io::Result<CreationPlan> {
    // Without one the spawner is gone, and this process about to be killed.
    let (message, mut fds) = wire::receive::<SandboxPlan>(link)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let target = match message.output {
        0 => None,
        LOG => Some(OutputTarget::Log as fn(OwnedFd) -> OutputTarget),
        _ => Some(OutputTarget::Common as fn(OwnedFd) -> OutputTarget),
    };
    let output = target.map(|target| fds.pop().map(target).ok_or(io::ErrorKind::InvalidData)).transpose()?;
    let control = fds.pop().ok_or(io::ErrorKind::InvalidData)?;
    let places = message.places.into_iter().map(MountPoint::of_number).collect::<Option<Vec<_>>>();
    let layers = message.layers as usize;
    let places = places.ok_or(io::ErrorKind::InvalidData)?;
    let own_mounts = fds.len().checked_sub(places.len() + layers).ok_or(io::ErrorKind::InvalidData)?;
    // A process that shares the mounts of the first gets none.
    if own_mounts != 0 && own_mounts != message.folders.len() + message.device_mounts.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut folder_mounts = fds.split_off(places.len() + layers).into_iter();
    let folders = message.folders.into_iter().map(|PlannedFolder { name, writable }| LentFolderMount {
        name,
        access: if writable { FolderAccess::Write } else { FolderAccess::ReadOnly },
        mount: folder_mounts.next(),
    });
    let folders = folders.collect();
    let device_mounts = message.device_mounts.into_iter().map(|place| {
        Ok::<_, NulError>(PlacedMount { place: CString::new(place)?, mount: folder_mounts.next() })
    });
    let device_mounts = device_mounts.collect::<Result<Vec<_>, _>>()?;
    let layers = fds.split_off(places.len());
    let working_folder = CString::new(message.working_folder)?;
    let runtime = Some(message.runtime).filter(|path| !path.is_empty()).map(CString::new).transpose()?;
    let text = |strings: Vec<Vec<u8>>| strings.into_iter().map(CString::new).collect::<Result<Vec<_>, _>>();
    Ok(CreationPlan {
        mounts: places.into_iter().zip(fds).collect(),
        image: (!layers.is_empty()).then_some(LayerMounts { layers, working_folder, runtime }),
        folders,
        device_mounts,
        program: CString::new(message.program)?,
        args: text(message.args)?,
        env: text(message.env)?,
        control,
        output,
        id: message.id,
        kept: text(message.kept)?,
        network: if message.host_network { NetworkAccess::Host } else { NetworkAccess::None },
        devices: wire::decode_devices(message.devices),
        scratch_bytes: message.scratch_bytes,
        shared_bytes: message.shared_bytes,
        processes: Some(message.processes).filter(|&processes| processes > 0),
        first: None,
        weak: message.weak.map(|weak| WeakWalls {
            readable: weak.readable.into_iter().map(|path| OsString::from_vec(path).into()).collect(),
            memory_bytes: Some(weak.memory_bytes).filter(|&bytes| bytes > 0),
        }),
        is_standby: message.standby,
    })
}
