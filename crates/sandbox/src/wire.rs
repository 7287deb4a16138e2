//! Encodes the messages of client and spawner, and the packets that carry them: both ends of `sandbox.proto`.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use prost::Message;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use sublet_proto::MAX_PACKET_BYTES;
use sublet_proto::v1::sandbox_request::Body;
use sublet_proto::v1::{
    SandboxAnswer, SandboxExit, SandboxFailure, SandboxFolder, SandboxIds, SandboxKill, SandboxMount,
    SandboxRequest, SandboxSpec, SandboxSystemFailure, SandboxTemplate, sandbox_exit, sandbox_failure,
};

use crate::{
    DeviceMount, Devices, FolderAccess, IsolationKind, Language, LentFolder, MAX_DEVICE_MOUNTS, MAX_IMPORTS,
    MAX_LAYERS, MAX_LENT_FOLDERS, MAX_VECTOR, NetworkAccess, ProgramEnd, RootImage, SandboxError, SandboxId,
    SandboxLimits, SandboxProgram, SandboxState, SandboxStatus, Spec, Template, TemplateImage,
};

/// The isolated process, as `sandbox.proto` numbers the kinds.
pub const PROCESS: u32 = 1;
/// The container.
pub const CONTAINER: u32 = 2;
/// The container that an OCI runtime makes.
pub const DELEGATED: u32 = 3;
/// The copy of a warm language runtime.
pub const TEMPLATE: u32 = 4;
/// Most descriptors beside a message: those of a container's layers, of what is shown to a sandbox, and its control
/// socket. The kernel allows 253.
const MAX_DESCRIPTORS: usize = MAX_LAYERS + MAX_VECTOR + MAX_LENT_FOLDERS;

const _: () = assert!(MAX_DESCRIPTORS <= 253, "the kernel passes at most 253 descriptors with a message");

/// Sends a message with descriptors.
pub(crate) fn send(socket: BorrowedFd<'_>, message: &impl Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = message.encode_to_vec();
    if bytes.is_empty() {
        let message = "it says nothing, which would be read as the end of the connection";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    if bytes.len() > MAX_PACKET_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is larger than a packet"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it has too many descriptors"));
    }
    retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Waits for a message; nothing once the other end is closed.
pub(crate) fn receive<M: Message + Default>(socket: BorrowedFd<'_>) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_PACKET_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was cut off"));
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    let message = M::decode(&bytes[..received.bytes])
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((message, fds)))
}

/// How many sandboxes a request is about.
pub(crate) fn count(request: &SandboxRequest) -> usize {
    match &request.body {
        Some(Body::Create(create)) => create.specs.len(),
        Some(
            Body::Start(SandboxIds { ids })
            | Body::State(SandboxIds { ids })
            | Body::Kill(SandboxKill { ids, .. })
            | Body::Delete(SandboxIds { ids }),
        ) => ids.len(),
        Some(Body::List(_) | Body::Standby(_)) | None => 0,
    }
}

/// Returns the same failure for each of `count` sandboxes.
pub(crate) fn each<T>(count: usize, error: &SandboxError) -> Vec<Result<T, SandboxError>> {
    (0..count).map(|_| Err(error.again())).collect()
}

/// A variable of an environment, as programs get it.
pub(crate) fn variable(name: &OsStr, value: &OsStr) -> Vec<u8> {
    [name.as_bytes(), b"=", value.as_bytes()].concat()
}

/// Encodes a specification for the spawner. Returns also the descriptors that go with it: the control socket, and the
/// log if the specification has one.
pub(crate) fn encode_spec(spec: Spec) -> (SandboxSpec, Vec<OwnedFd>) {
    let Spec {
        kind,
        program,
        args,
        env,
        has_own_variables,
        folder,
        lent_folders,
        device_mounts,
        control,
        log,
        network,
        devices,
        limits,
    } = spec;
    let program_inside = !matches!(program, SandboxProgram::Outside(_));
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let library = match &program {
        SandboxProgram::Loading { library, .. } => bytes(library),
        SandboxProgram::Outside(_) | SandboxProgram::Inside(_) => Vec::new(),
    };
    let mut template = None;
    let (kind, RootImage { layers, working_folder }, runtime) = match kind {
        IsolationKind::Process => (PROCESS, RootImage::default(), PathBuf::new()),
        IsolationKind::Container(image) => (CONTAINER, image, PathBuf::new()),
        IsolationKind::Delegated { runtime, image } => (DELEGATED, image, runtime),
        IsolationKind::Template(of_template) => {
            let (encoded, root) = encode_template(of_template);
            template = Some(encoded);
            (TEMPLATE, root, PathBuf::new())
        }
    };
    let message = SandboxSpec {
        kind,
        program: bytes(program.path()),
        args: args.into_iter().map(OsString::into_vec).collect(),
        env: env.iter().map(|(name, value)| variable(name, value)).collect(),
        folder: folder.as_deref().map(bytes).unwrap_or_default(),
        host_network: network == NetworkAccess::Host,
        cores: limits.cores,
        memory_bytes: limits.memory_bytes.unwrap_or(0),
        shown_memory_bytes: limits.shown_memory_bytes.unwrap_or(0),
        processes: limits.processes.unwrap_or(0),
        scratch_bytes: limits.scratch_bytes,
        program_inside,
        library,
        layers: layers.iter().map(|layer| bytes(layer)).collect(),
        working_folder: bytes(&working_folder),
        runtime: bytes(&runtime),
        template,
        devices: encode_devices(devices),
        has_log: log.is_some(),
        folders: lent_folders.into_iter().map(encode_folder).collect(),
        device_mounts: device_mounts
            .iter()
            .map(|mount| SandboxMount { source: bytes(&mount.source), place: bytes(&mount.place) })
            .collect(),
        has_own_variables,
    };
    (message, std::iter::once(control).chain(log).collect())
}

/// Encodes a template. Returns also the files of its image, which are those of its specification.
fn encode_template(template: Template) -> (SandboxTemplate, RootImage) {
    let Template { language, interpreter, adapter, imports, environment, search_path, image, owner } =
        template;
    let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
    let TemplateImage { root, env } = image.unwrap_or_default();
    let message = SandboxTemplate {
        language: encode_language(language),
        interpreter: bytes(&interpreter),
        adapter: bytes(&adapter),
        imports,
        environment: environment.as_deref().map(bytes),
        search_path: search_path.iter().map(|path| bytes(path)).collect(),
        env: env.iter().map(|(name, value)| variable(name, value)).collect(),
        owner,
    };
    (message, root)
}

/// The specification that a message means.
pub(crate) fn decode_spec(
    message: SandboxSpec,
    control: Option<OwnedFd>,
    log: Option<OwnedFd>,
) -> Result<Spec, SandboxError> {
    let invalid = |why| {
        SandboxError::system("reading a specification", io::Error::new(io::ErrorKind::InvalidData, why))
    };
    let control = control.ok_or_else(|| invalid("it has no control socket"))?;
    if message.has_log && log.is_none() {
        return Err(invalid("its log was not passed with it"));
    }
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    let layers = message.layers.len();
    let image = RootImage {
        layers: message.layers.into_iter().map(path).collect(),
        working_folder: path(message.working_folder),
    };
    let kind = match (message.kind, layers, message.template) {
        (PROCESS, 0, None) => IsolationKind::Process,
        (TEMPLATE, _, Some(_)) if message.host_network => return Err(invalid("a template has no network")),
        (TEMPLATE, 0..=MAX_LAYERS, Some(template)) => {
            let root = (layers > 0).then_some(image);
            IsolationKind::Template(decode_template(template, root).map_err(invalid)?)
        }
        (TEMPLATE, _, Some(_)) => return Err(invalid("a template's image has at most 128 layers")),
        (PROCESS | TEMPLATE, _, _) => {
            return Err(invalid("a process has no layers, and a template a language"));
        }
        (CONTAINER, 1..=MAX_LAYERS, _) => IsolationKind::Container(image),
        (DELEGATED, 1..=MAX_LAYERS, _) => IsolationKind::Delegated { runtime: path(message.runtime), image },
        (CONTAINER | DELEGATED, _, _) => return Err(invalid("a container has 1 to 128 layers")),
        _ => return Err(invalid("its kind is unknown")),
    };
    let lent_folders = message.folders.into_iter().map(decode_folder).collect::<Option<Vec<_>>>();
    let lent_folders = lent_folders.filter(|folders| folders.len() <= MAX_LENT_FOLDERS).ok_or_else(|| {
        invalid("it has more than 16 lent folders, or one whose name is no name of a folder")
    })?;
    let devices = decode_devices(message.devices);
    let device_mounts = decode_device_mounts(message.device_mounts, devices, &kind).map_err(invalid)?;
    let program = path(message.program);
    Ok(Spec {
        kind,
        program: match (message.program_inside, message.library) {
            (false, _) => SandboxProgram::Outside(program),
            (true, library) if library.is_empty() => SandboxProgram::Inside(program),
            (true, library) => SandboxProgram::Loading { program, library: path(library) },
        },
        args: message.args.into_iter().map(OsString::from_vec).collect(),
        env: decode_variables(message.env).ok_or_else(|| invalid("a variable has no ="))?,
        has_own_variables: message.has_own_variables,
        folder: Some(message.folder).filter(|folder| !folder.is_empty()).map(path),
        lent_folders,
        device_mounts,
        control,
        log,
        network: if message.host_network { NetworkAccess::Host } else { NetworkAccess::None },
        devices,
        limits: SandboxLimits {
            cores: message.cores,
            memory_bytes: Some(message.memory_bytes).filter(|&bytes| bytes > 0),
            shown_memory_bytes: Some(message.shown_memory_bytes).filter(|&bytes| bytes > 0),
            processes: Some(message.processes).filter(|&processes| processes > 0),
            scratch_bytes: message.scratch_bytes,
        },
    })
}

/// Decodes what a sandbox of this kind sees of devices.
fn decode_device_mounts(
    mounts: Vec<SandboxMount>,
    devices: Devices,
    kind: &IsolationKind,
) -> Result<Vec<DeviceMount>, &'static str> {
    if mounts.len() > MAX_DEVICE_MOUNTS {
        return Err("it has more than 96 mounts of devices");
    }
    if !mounts.is_empty() && (devices != Devices::Own || kind.image().is_some()) {
        return Err("only a sandbox without an image has devices of its own");
    }
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    let decoded = mounts
        .into_iter()
        .map(|SandboxMount { source, place }| DeviceMount { source: path(source), place: path(place) });
    let decoded: Vec<_> = decoded.collect();
    match decoded.iter().all(|mount| is_place(&mount.place)) {
        true => Ok(decoded),
        false => Err("a mount of a device is at a path that is not plain"),
    }
}

fn encode_folder(LentFolder { name, path, access }: LentFolder) -> SandboxFolder {
    SandboxFolder { name, path: path.into_os_string().into_vec(), writable: access == FolderAccess::Write }
}

fn decode_folder(SandboxFolder { name, path, writable }: SandboxFolder) -> Option<LentFolder> {
    let access = if writable { FolderAccess::Write } else { FolderAccess::ReadOnly };
    let path = PathBuf::from(OsString::from_vec(path));
    is_component(&name).then_some(LentFolder { name, path, access })
}

/// Whether a path is absolute, names something beneath the root, and has neither `.` nor `..`.
pub(crate) fn is_place(path: &Path) -> bool {
    let mut components = path.components();
    let is_absolute = components.next() == Some(Component::RootDir);
    let mut names = components.peekable();
    is_absolute && names.peek().is_some() && names.all(|one| matches!(one, Component::Normal(_)))
}

/// Whether a text is the name of a file in a folder.
pub(crate) fn is_component(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// Decodes variables of an environment; nothing if one has no `=`.
fn decode_variables(variables: Vec<Vec<u8>>) -> Option<Vec<(OsString, OsString)>> {
    let decode = |bytes: Vec<u8>| {
        let equals = bytes.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (&bytes[..equals], &bytes[equals + 1..]);
        Some((OsStr::from_bytes(name).to_owned(), OsStr::from_bytes(value).to_owned()))
    };
    variables.into_iter().map(decode).collect()
}

/// Decodes a template, in an image with these files if there are any.
fn decode_template(message: SandboxTemplate, root: Option<RootImage>) -> Result<Template, &'static str> {
    let SandboxTemplate { language, interpreter, adapter, imports, environment, search_path, env, owner } =
        message;
    let language = decode_language(language).ok_or("its language is unknown")?;
    if imports.len() > MAX_IMPORTS {
        return Err("a template has more modules than a package can name");
    }
    if !imports.iter().all(|module| language.has_module(module)) {
        return Err("a module is no name of one in that language");
    }
    if root.is_some() && (language != Language::Python || environment.is_some() || !search_path.is_empty()) {
        return Err("a template in an image is a Python with the modules of the image");
    }
    let has_modules = !imports.is_empty() && environment.as_ref().is_some_and(|path| !path.is_empty());
    if owner.is_some() && !(language == Language::Python && (has_modules || root.is_some())) {
        return Err("a template with an owner is a Python of an image, or with modules of an environment");
    }
    let env = decode_variables(env).ok_or("a variable of its interpreter has no =")?;
    let image = root.map(|root| TemplateImage { root, env });
    let path = |bytes| PathBuf::from(OsString::from_vec(bytes));
    let (interpreter, adapter, environment) = (path(interpreter), path(adapter), environment.map(path));
    let search_path = search_path.into_iter().map(path).collect();
    Ok(Template { language, interpreter, adapter, imports, environment, search_path, image, owner })
}

/// Returns the number of a language in `sandbox.proto`.
pub fn encode_language(language: Language) -> u32 {
    match language {
        Language::Python => 1,
        Language::Node => 2,
    }
}

/// Returns the language with a number in `sandbox.proto`.
pub fn decode_language(number: u32) -> Option<Language> {
    [Language::Python, Language::Node].into_iter().find(|language| encode_language(*language) == number)
}

pub(crate) fn encode_devices(devices: Devices) -> u32 {
    match devices {
        Devices::None => 0,
        Devices::Drivers => 1,
        Devices::Gpu => 2,
        Devices::Faults => 3,
        Devices::Own => 4,
    }
}

pub(crate) fn decode_devices(number: u32) -> Devices {
    match number {
        1 => Devices::Drivers,
        2 => Devices::Gpu,
        3 => Devices::Faults,
        4 => Devices::Own,
        _ => Devices::None,
    }
}

/// The answer about one sandbox.
pub(crate) fn encode_answer(id: SandboxId, outcome: Result<SandboxState, SandboxError>) -> SandboxAnswer {
    let SandboxId(id) = id;
    match outcome {
        Ok(SandboxState { status, pid, exit }) => SandboxAnswer {
            id,
            status: encode_status(status),
            pid: pid.unwrap_or(0),
            exit: exit.map(|exit| SandboxExit { how: Some(encode_exit(exit)) }),
            failure: None,
            cold_imports: None,
            standby: false,
        },
        Err(error) => SandboxAnswer { id, failure: Some(encode_failure(error)), ..SandboxAnswer::default() },
    }
}

/// Decodes an answer to a verb.
pub fn decode_answer(
    answer: SandboxAnswer,
    verb: &'static str,
) -> Result<(SandboxId, SandboxState), SandboxError> {
    let id = SandboxId(answer.id);
    if let Some(failure) = answer.failure {
        return Err(decode_failure(id, verb, failure));
    }
    let exit = answer.exit.and_then(|exit| exit.how).map(decode_exit);
    let pid = Some(answer.pid).filter(|&pid| pid > 0);
    Ok((id, SandboxState { status: decode_status(answer.status), pid, exit }))
}

fn encode_status(status: SandboxStatus) -> u32 {
    match status {
        SandboxStatus::Creating => 1,
        SandboxStatus::Created => 2,
        SandboxStatus::Running => 3,
        SandboxStatus::Stopped => 4,
    }
}

fn decode_status(number: u32) -> SandboxStatus {
    match number {
        1 => SandboxStatus::Creating,
        2 => SandboxStatus::Created,
        3 => SandboxStatus::Running,
        _ => SandboxStatus::Stopped,
    }
}

fn encode_exit(exit: ProgramEnd) -> sandbox_exit::How {
    match exit {
        ProgramEnd::Status(status) => sandbox_exit::How::Status(status),
        ProgramEnd::Signal(signal) => sandbox_exit::How::Signal(signal),
        ProgramEnd::OutOfMemory(limit) => sandbox_exit::How::OutOfMemory(limit),
    }
}

fn decode_exit(how: sandbox_exit::How) -> ProgramEnd {
    match how {
        sandbox_exit::How::Status(status) => ProgramEnd::Status(status),
        sandbox_exit::How::Signal(signal) => ProgramEnd::Signal(signal),
        sandbox_exit::How::OutOfMemory(limit) => ProgramEnd::OutOfMemory(limit),
    }
}

fn encode_failure(error: SandboxError) -> SandboxFailure {
    let why = match error {
        SandboxError::Unknown(_) => sandbox_failure::Why::Unknown(true),
        SandboxError::TooMany => sandbox_failure::Why::TooMany(true),
        SandboxError::WrongStatus { status, .. } => sandbox_failure::Why::WrongStatus(encode_status(status)),
        SandboxError::System { operation, source } => {
            // An error without a number is a message of this crate.
            let (errno, reason) = match source.raw_os_error() {
                Some(errno) => (errno, String::new()),
                None => (0, source.to_string()),
            };
            let operation = operation.into_owned();
            sandbox_failure::Why::System(SandboxSystemFailure { operation, errno, reason })
        }
        SandboxError::SpawnerGone(source) => sandbox_failure::Why::System(SandboxSystemFailure {
            operation: "reaching the process that makes sandboxes".to_owned(),
            errno: source.raw_os_error().unwrap_or(libc::EPIPE),
            reason: String::new(),
        }),
    };
    SandboxFailure { why: Some(why) }
}

fn decode_failure(id: SandboxId, verb: &'static str, failure: SandboxFailure) -> SandboxError {
    match failure.why {
        None | Some(sandbox_failure::Why::Unknown(_)) => SandboxError::Unknown(id),
        Some(sandbox_failure::Why::TooMany(_)) => SandboxError::TooMany,
        Some(sandbox_failure::Why::WrongStatus(status)) => {
            SandboxError::WrongStatus { id, status: decode_status(status), verb }
        }
        Some(sandbox_failure::Why::System(SandboxSystemFailure { operation, errno: 0, reason })) => {
            SandboxError::system(operation, io::Error::other(reason))
        }
        Some(sandbox_failure::Why::System(SandboxSystemFailure { operation, errno, .. })) => {
            SandboxError::system(operation, io::Error::from_raw_os_error(errno))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_has_as_many_modules_as_a_package_can_name() {
        let of = |count: usize| {
            let imports = vec!["os".to_owned(); count];
            let language = encode_language(Language::Python);
            decode_template(SandboxTemplate { language, imports, ..SandboxTemplate::default() }, None)
        };
        let most = sublet_proto::package::python::MAX_IMPORTS;
        assert_eq!(of(most).map(|template| template.imports.len()), Ok(most));
        assert!(of(most + 1).is_err_and(|why| why.contains("more modules")));
    }

    #[test]
    fn failures_have_the_same_text_on_both_sides() {
        for source in [
            io::Error::from_raw_os_error(libc::ENOENT),
            io::Error::new(io::ErrorKind::NotFound, "opening /job.py to sandboxes: no such file"),
        ] {
            let failure = || SandboxError::system("showing a sandbox /job.py", SandboxError::same(&source));
            let text = failure().to_string();
            let decoded = decode_failure(SandboxId(1), "create", encode_failure(failure()));
            assert_eq!(decoded.to_string(), text);
        }
    }
}
