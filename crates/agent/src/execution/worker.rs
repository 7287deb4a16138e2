//! One lease's worker process: how it starts in its sandbox, how it is ended, and how its end is described.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::clock::monotonic_ns;
use sublet_fabric::faults::device;
use sublet_fabric::packet::PacketSocket;
use sublet_proto::needs::check_variables;
use sublet_proto::network::Fabric;
use sublet_proto::package::nodejs::is_module;
use sublet_proto::package::{
    PORTABLE, is_image_interpreter, is_interpreter, is_nodejs, is_processor, is_python,
};
use sublet_proto::v1::{self, Needs, PackageBuild, PackageInfo, Started, Variable, WorkerSetup};
use sublet_proto::{Code, Error, pu, version};
use sublet_runtime::worker::spawned::place;
use sublet_sandbox::{
    Devices, FOLDER, IsolationKind, LOADED, LentFolder, NetworkAccess, NewSandbox, ProgramEnd, SCRATCH,
    SandboxError, SandboxLimits, SandboxProgram, Sandboxes, Signal, Spec,
};

use crate::execution::c_library::CLibrary;
use crate::execution::devices;
use crate::execution::image_interpreters::{self, language::ImageLanguage};
use crate::execution::images::HeldImage;
use crate::execution::kernels;
use crate::execution::logs::Log;
use crate::execution::packages::Runnable;
use crate::leases::attach::AttachedLease;
use crate::machine::shared::{Occupancy, SlotHold};
use crate::machine::sizes::{local_bytes, rings_bytes};
use crate::node::Node;
use crate::shim::{ProcessAdmission, ProcessIdentity};
use crate::signal::wait_readable;

/// How long a killed process may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);
const MIB: u64 = 1 << 20;
/// Memory that a sandbox may use beside the lease's memory, in bytes: its two processes' own, and the kernel's for
/// them.
const OWN_MEMORY_BYTES: u64 = 64 * MIB;
/// The same for each worker thread.
const THREAD_MEMORY_BYTES: u64 = 10 * MIB;
/// Memory of a device's driver in a worker process beside the lease's memory, in bytes. PoCL's driver is a whole
/// compiler.
const DRIVER_MEMORY_BYTES: u64 = 128 * MIB;
/// The same for an interpreter, in bytes: what a copy of a warm one writes of the pages that it shares, and what it imports.
const INTERPRETER_MEMORY_BYTES: u64 = 128 * MIB;
/// Processes and threads that a worker process may have beside one for each core.
const MAX_PROCESSES: u32 = 512;
/// Bytes that functions can write to files if their lease asks for none, at most the lease's memory.
const SCRATCH_BYTES: u64 = 64 * MIB;

/// The worker process of a lease, started and ended by the lease's supervisor. Killed when it is dropped.
pub(crate) struct WorkerProcess {
    sandboxes: Arc<Sandboxes>,
    sandbox: NewSandbox,
    runnable: Runnable,
    _log: Log,
    /// The image in which the process runs, if any.
    _image: Option<HeldImage>,
    /// On shared cores, until it is known to be dead.
    occupancy: Option<Occupancy>,
    /// The process's entry to the shim, if it becomes a global process.
    entrance: ShimEntrance,
}

/// Whether a process may enter the shim.
enum ShimEntrance {
    Open {
        _admission: ProcessAdmission,
    },
    /// Admitted only once the lease's tenant is known.
    Closed(Option<(PacketSocket, ProcessIdentity)>),
}

impl WorkerProcess {
    /// Starts it with its package, which was asked for at that time. The socket is the client's end of its control
    /// connection, on which the set-up is already under way.
    pub(crate) fn start(
        node: &Node,
        held: &AttachedLease,
        runnable: Runnable,
        requested_ns: u64,
    ) -> Result<(WorkerProcess, Started, PacketSocket), Error> {
        let package_ready_ns = monotonic_ns();
        let image = node.execution.images.hold(runnable.build())?;
        let libc = c_library(held, &runnable, image.as_ref())?;
        let program = program(node, held, &runnable, libc)?;
        let swaps = swaps(held, runnable.build(), libc);
        let (isolation, runtime) = node.execution.isolations.of_lease(&held.lease, runnable.build())?;
        check_network(node, &runnable)?;
        let spawned = spawned(held, &runnable)?;
        check_needs(held, &runnable)?;
        devices::check(&held.reservation.devices, &runnable.package.info.name, runnable.build())?;
        let device_mounts = devices::mounts(held.reservation.devices.devices())?;
        let variables = variables(held, &runnable)?;
        let has_own_variables = !variables.is_empty();
        let lent_folders = folders(node, held)?;
        let (outside, inside) = PacketSocket::pair()?;
        let (shim, of_process) = PacketSocket::pair()?;
        let occupancy = held.reservation.slots.as_ref().map(SlotHold::occupy);
        let setup = setup(node, held, &runnable, occupancy.as_ref(), swaps);
        let setup = WorkerSetup { program: spawned, variables, ..setup };
        let setup = setup.encode_to_vec();
        let slots = occupancy.iter().flat_map(|occupancy| &occupancy.regions).map(|region| region.fd());
        let own = [held.inbox.fd(), held.meter.region().fd()];
        let faults = swaps.then(device).transpose()?;
        let faults = faults.iter().map(AsFd::as_fd);
        let shimmed = [of_process.as_fd()];
        let descriptors: Vec<_> = own.into_iter().chain(faults).chain(slots).chain(shimmed).collect();
        outside.send(&setup, &descriptors)?;
        let sandboxes = node.execution.sandboxes.current()?;
        let of_shim = who(node, held, runnable.build());
        let log = node.execution.logs.begin(&held.lease.id)?;
        let spec_of = spec(program, held, &runnable, inside.into(), swaps);
        let mut spec =
            Spec { log: Some(log.file()?), lent_folders, device_mounts, has_own_variables, ..spec_of };
        spec.limits.scratch_bytes = temporary_bytes(node, held);
        if let Some(held) = &image {
            contain(&mut spec, runtime, &held.image, runnable.build());
        }
        let template = node.execution.image_interpreters.template(&runnable, (&spec, owner(node, held)));
        // Without a copy of the template or a process on standby, the spawner starts the interpreter in the container.
        spec.kind = template.map_or(spec.kind, IsolationKind::Template);
        let launched = one(sandboxes.launch(vec![spec]));
        let sandbox = launched.map_err(|error| explain(error, runnable.build()))?;
        let pid = sandbox.state.pid.unwrap_or_default();
        let cold_imports = sandbox.cold_imports.clone();
        let started = Started {
            pid,
            requested_ns,
            package_ready_ns,
            spawned_ns: monotonic_ns(),
            cold_imports,
            isolation: isolation.name().to_owned(),
        };
        let reserved = held.one_shot_program.as_ref().map(|one_shot_program| one_shot_program.process.pid);
        let entrance = match held.confirmation {
            None => ShimEntrance::Open { _admission: node.links.shim.admit(shim, of_shim, reserved) },
            Some(_) => ShimEntrance::Closed(Some((shim, of_shim))),
        };
        let worker =
            WorkerProcess { sandboxes, sandbox, runnable, _log: log, _image: image, occupancy, entrance };
        Ok((worker, started, outside))
    }

    /// Sets the tenant of the lease, which is known only now. From now on the lease's process may enter the shim.
    pub(crate) fn is_of(&mut self, node: &Node, tenant: &str) {
        if let ShimEntrance::Closed(closed) = &mut self.entrance
            && let Some((shim, who)) = closed.take()
        {
            let who = ProcessIdentity { tenant: tenant.to_owned(), ..who };
            self.entrance = ShimEntrance::Open { _admission: node.links.shim.admit(shim, who, None) };
        }
    }

    /// Whether it had imported its modules before the lease began.
    pub(crate) fn was_on_standby(&self) -> bool {
        self.sandbox.is_standby
    }

    /// A descriptor that is readable once the process has ended.
    pub(crate) fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sandbox.ended.as_fd())
    }

    /// Reports an end by SIGKILL if the process died with the spawner, which can no longer report how it ended.
    fn killed_with_its_maker(&self) -> Result<Option<ProgramEnd>, Error> {
        let [has_ended] = wait_readable([self.exit_fd()], Some(Instant::now()))?;
        Ok(has_ended.then_some(ProgramEnd::Signal(Signal::KILL.as_raw())))
    }

    /// Kills it and waits for its end. An error says that it may still run.
    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        // The process does not outlive the spawner, so a failed request matters only if the process has not ended.
        let told = one(self.sandboxes.kill(&[self.sandbox.id], Signal::KILL));
        let [has_ended] = wait_readable([self.exit_fd()], Some(Instant::now() + LONGEST_END))?;
        if !has_ended {
            told?;
        }
        match self.exit()? {
            Some(_) => Ok(()),
            None => {
                let message =
                    format!("the worker did not end {} s after it was killed", LONGEST_END.as_secs());
                Err(Error::new(Code::System, message))
            }
        }
    }

    /// How it ended, if it has.
    pub(crate) fn exit(&mut self) -> Result<Option<ProgramEnd>, Error> {
        let exit = match self.sandboxes.state(&[self.sandbox.id]).pop() {
            Some(Err(SandboxError::SpawnerGone(_))) => self.killed_with_its_maker()?,
            answer => one(answer.into_iter().collect())?.exit,
        };
        if exit.is_some() {
            self.occupancy = None;
        }
        Ok(exit)
    }

    /// Describes an unrequested end to the client.
    pub(crate) fn describe(&self, exit: ProgramEnd, executing: &[u32], memory_bytes: u64) -> String {
        describe(&self.runnable.package.info, exit, executing, memory_bytes)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // Should it live on, the spawner still has it, and ends it with the agent.
        let _ = self.kill();
        let _ = one(self.sandboxes.delete(&[self.sandbox.id]));
    }
}

/// Identity of the lease's process among the processes of the computer.
fn who(node: &Node, held: &AttachedLease, build: &PackageBuild) -> ProcessIdentity {
    ProcessIdentity {
        lease: held.lease.id.clone(),
        tenant: held.lease.tenant.clone(),
        pu: node.unit(kernels::kind_of(build).map_or(pu::PROCESSOR, |kind| kind.name())),
        capacity_bytes: rings_bytes(&held.lease),
    }
}

/// The program that is to be executed in place of functions, if one is: the package has it, and it is one. Without a path it is the
/// worker's own, which executes the functions for another process.
fn spawned(held: &AttachedLease, runnable: &Runnable) -> Result<Option<v1::Program>, Error> {
    let Some(program) =
        held.one_shot_program.as_ref().and_then(|one_shot_program| one_shot_program.program.clone())
    else {
        return Ok(None);
    };
    if program.path.is_empty() {
        return Ok(Some(program));
    }
    let (package, build) = (&runnable.package, runnable.build());
    let found =
        std::fs::symlink_metadata(place(&package.folder, &program.path)).ok().filter(Metadata::is_file);
    let is_program = match found {
        Some(_) if is_python(&build.architecture) => program.path.ends_with(".py"),
        Some(_) if is_nodejs(&build.architecture) => is_module(&program.path),
        Some(found) if is_processor(&build.architecture) => found.permissions().mode() & 0o100 != 0,
        _ => false,
    };
    if is_program {
        return Ok(Some(program));
    }
    let (name, path, architecture) = (&package.info.name, &program.path, &build.architecture);
    let message = format!("package {name} has no program {path:?} that could be spawned on {architecture}");
    Err(Error::new(Code::InvalidArgument, message))
}

/// Whether this node lets a package's functions open connections by themselves, if they do.
fn check_network(node: &Node, runnable: &Runnable) -> Result<(), Error> {
    if runnable.build().network && !node.execution.lends_network {
        let message = format!(
            "the functions of package {} want the network, which node {} does not lend (lend_network)",
            runnable.package.info.name, node.description.name
        );
        return Err(Error::new(Code::PermissionDenied, message));
    }
    Ok(())
}

/// Whether a lease's worker process swaps. If the lease asks for it only if possible, processes of packages whose memory
/// cannot be swapped do without, and so do all on a node that cannot handle page faults.
fn swaps(held: &AttachedLease, build: &PackageBuild, libc: CLibrary) -> bool {
    let v1::WorkerOptions { swap_bytes, swap_if_possible, .. } = held.options;
    let is_possible = || can_swap(&build.architecture, libc) && device().is_ok();
    swap_bytes > 0 && (!swap_if_possible || is_possible())
}

/// Whether the memory of functions in packages of this architecture can be swapped: the worker program of native code,
/// and that of Python, allocates it. With musl it does not.
fn can_swap(architecture: &str, libc: CLibrary) -> bool {
    let is_native = is_processor(architecture) && architecture != PORTABLE;
    libc == CLibrary::Glibc && (is_python(architecture) || is_native)
}

/// The sandbox in which a lease's workers run.
fn spec(
    WorkerProgram { kind, program, args }: WorkerProgram,
    held: &AttachedLease,
    runnable: &Runnable,
    control: OwnedFd,
    swaps: bool,
) -> Spec {
    let (package, build) = (&runnable.package, runnable.build());
    let workers = held.reservation.cores.len() as u64;
    // Over tcp it is given its connections. Over libfabric it makes them.
    let fabric = held
        .network_transport
        .as_ref()
        .map(|network_transport| Fabric::chosen(Some(&network_transport.choice)));
    let dials = build.network || matches!(fabric, Some(Ok(Some(Fabric::Ofi(_)))));
    let own_bytes = OWN_MEMORY_BYTES + runtime_bytes(build);
    let own_bytes = own_bytes.saturating_add(THREAD_MEMORY_BYTES.saturating_mul(workers));
    let (devices, env) = match kernels::kind_of(build) {
        Some(kind) => (kernels::devices_of(kind), kernels::environment()),
        None => {
            let own = &held.reservation.devices;
            let other = if swaps { Devices::Faults } else { Devices::None };
            // The filter for devices of its own allows what swapping needs as well.
            let devices = if own.is_empty() { other } else { Devices::Own };
            (devices, if is_interpreter(&build.architecture) { environment() } else { Vec::new() })
        }
    };
    Spec {
        kind,
        program,
        args,
        env,
        has_own_variables: false,
        folder: Some(package.folder.clone()),
        lent_folders: Vec::new(),
        device_mounts: Vec::new(),
        control,
        log: None,
        network: if dials { NetworkAccess::Host } else { NetworkAccess::None },
        devices,
        limits: SandboxLimits {
            cores: held.reservation.cores.clone(),
            memory_bytes: Some(held.lease.memory_bytes.saturating_add(own_bytes)),
            shown_memory_bytes: Some(held.lease.memory_bytes),
            processes: Some(MAX_PROCESSES.saturating_add(u32::try_from(workers).unwrap_or(u32::MAX))),
            scratch_bytes: SCRATCH_BYTES,
        },
    }
}

/// Size of the files that a worker process can write beside lent folders. They are part of the lease's memory.
fn temporary_bytes(node: &Node, held: &AttachedLease) -> u64 {
    let asked = held.lease.needs.as_ref().map_or(0, |needs| needs.temporary_bytes);
    let lent = Some(node.description.temporary_bytes).filter(|&bytes| bytes > 0).unwrap_or(u64::MAX);
    let bytes = if asked > 0 { asked } else { SCRATCH_BYTES };
    bytes.min(lent).min(held.lease.memory_bytes)
}

/// Checks that the manager has passed on the needs of the package: one of an earlier version does not know them.
fn check_needs(held: &AttachedLease, runnable: &Runnable) -> Result<(), Error> {
    let package = &runnable.package.info;
    let mut needs = Needs { variables: Vec::new(), ..package.needs.clone().unwrap_or_default() };
    if held.one_shot_program.is_some() {
        // A spawned program has no devices.
        needs.devices.clear();
    }
    if needs.is_empty() || held.lease.needs.is_some() {
        return Ok(());
    }
    let what = format!("the secrets, folders and temporary space of package {}", package.name);
    version::check_messages("the manager that granted the lease", 0, &what, version::NEEDS)
}

/// The environment variables of functions: those of its devices, over them the package's, over them the lease's.
fn variables(held: &AttachedLease, runnable: &Runnable) -> Result<Vec<Variable>, Error> {
    let own = Needs { variables: held.variables.clone(), ..Needs::default() };
    let package = runnable.package.info.needs.clone().unwrap_or_default();
    let of_devices =
        Needs { variables: devices::variables(held.reservation.devices.devices()), ..Needs::default() };
    let variables = of_devices.with(&package).with(&own).variables;
    if !variables.is_empty() && kernels::kind_of(runnable.build()).is_some() {
        let message = format!(
            "package {} has kernels, which have no environment variables",
            runnable.package.info.name
        );
        return Err(Error::new(Code::InvalidArgument, message));
    }
    check_variables(&variables)?;
    Ok(variables)
}

/// The lent folders that a lease uses.
fn folders(node: &Node, held: &AttachedLease) -> Result<Vec<LentFolder>, Error> {
    let Some(needs) = &held.lease.needs else { return Ok(Vec::new()) };
    node.execution.folders.of(&needs.folders, &held.lease.tenant)
}

/// Environment variables that programs of an interpreter expect.
fn environment() -> Vec<(OsString, OsString)> {
    let said = [("HOME", SCRATCH), ("TMPDIR", SCRATCH), ("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")];
    said.map(|(name, value)| (name.into(), value.into())).into()
}

/// How a worker's sandbox isolates, unless it has an image, and what is executed in it.
struct WorkerProgram {
    kind: IsolationKind,
    program: SandboxProgram,
    args: Vec<OsString>,
}

/// The C library with which the worker has to be linked.
///
/// # Errors
/// Those of [`CLibrary::check_demands`].
fn c_library(
    held: &AttachedLease,
    runnable: &Runnable,
    image: Option<&HeldImage>,
) -> Result<CLibrary, Error> {
    let Some(HeldImage { image, .. }) = image else { return Ok(CLibrary::Glibc) };
    let build = runnable.build();
    let libc = match &runnable.image_interpreter {
        Some(interpreter) => interpreter.libc,
        None => CLibrary::of_image(&image.layers, &runnable.package.folder.join(&build.library)),
    };
    let fabric = held.network_transport.as_ref().map(|network_transport| &network_transport.choice);
    let demanded_swap_bytes = if held.options.swap_if_possible { 0 } else { held.options.swap_bytes };
    libc.check_demands(demanded_swap_bytes, fabric, &build.image)?;
    Ok(libc)
}

fn program(
    node: &Node,
    held: &AttachedLease,
    runnable: &Runnable,
    libc: CLibrary,
) -> Result<WorkerProgram, Error> {
    let build = runnable.build();
    let of_host = |kind, path, args| WorkerProgram { kind, program: SandboxProgram::Outside(path), args };
    if is_image_interpreter(&build.architecture) {
        let (program, args) = node.execution.image_interpreters.worker(runnable)?;
        return Ok(WorkerProgram { kind: IsolationKind::Process, program, args });
    }
    if is_interpreter(&build.architecture) {
        let modules = (runnable.environment.as_deref(), owner(node, held));
        let (template, program) = node.execution.sandboxes.runtimes.worker(build, modules)?;
        return Ok(of_host(IsolationKind::Template(template), program, Vec::new()));
    }
    // One program executes kernels of every kind of devices.
    let args = kernels::kind_of(build).map(|kind| OsString::from(kind.name())).into_iter().collect();
    Ok(of_host(IsolationKind::Process, node.execution.programs.of(build, libc)?, args))
}

/// The tenant of a lease, if the node may keep a process on standby for its next lease. The tenant of a lease that its manager
/// has not confirmed yet is not known.
fn owner<'lease>(node: &Node, held: &'lease AttachedLease) -> Option<&'lease str> {
    let is_kept = held.confirmation.is_none() && node.execution.standby.is_kept();
    is_kept.then_some(held.lease.tenant.as_str())
}

/// Memory that a worker process may use beside the lease's memory for the driver of a device or for an interpreter, in
/// bytes.
fn runtime_bytes(build: &PackageBuild) -> u64 {
    if is_interpreter(&build.architecture) {
        return INTERPRETER_MEMORY_BYTES;
    }
    kernels::kind_of(build).map_or(0, |_| DRIVER_MEMORY_BYTES)
}

/// Has it run in an image.
fn contain(spec: &mut Spec, runtime: Option<&Path>, image: &sublet_image::Image, build: &PackageBuild) {
    spec.kind = image_interpreters::container(image, runtime);
    let Some(language) = ImageLanguage::of(build) else {
        spec.env = image.config.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        return;
    };
    spec.env = image_interpreters::environment(image, language);
    if spec.devices == Devices::Faults && language == ImageLanguage::Python {
        // Only memory that the worker's own functions allocate can be swapped.
        spec.env.retain(|(name, _)| name != "LD_PRELOAD");
        spec.env.push(("LD_PRELOAD".into(), LOADED.into()));
    }
}

/// Adds a possible cause to the error of a sandbox that cannot be made.
fn explain(error: Error, build: &PackageBuild) -> Error {
    if build.image.is_empty() {
        return error;
    }
    if is_image_interpreter(&build.architecture) {
        return Error::new(error.code, format!("{} (in the image {})", error.message, build.image));
    }
    let message = format!(
        "{} (in the image {}, which has to have a C library for which there is a worker program, glibc or musl)",
        error.message, build.image
    );
    Error::new(error.code, message)
}

fn setup(
    node: &Node,
    held: &AttachedLease,
    runnable: &Runnable,
    occupancy: Option<&Occupancy>,
    swaps: bool,
) -> WorkerSetup {
    let network_transport = held.network_transport.as_ref();
    let identity = network_transport.and_then(|network_transport| network_transport.identity.clone());
    let (certificate, private_key) =
        identity.map_or_else(Default::default, |identity| (identity.certificate, identity.private_key));
    // The inbox is part of what the lease pays for; `attach` has checked that it fits.
    let lent_bytes = held.lease.memory_bytes.saturating_sub(held.inbox.len_bytes());
    WorkerSetup {
        lease: held.lease.id.clone(),
        package_folder: shown_folder(node, runnable),
        cores: held.reservation.cores.clone(),
        options: Some(held.options),
        memory_bytes: lent_bytes.saturating_add(runtime_bytes(runnable.build())),
        ticks_per_ns: node.calibration.ticks_per_ns(),
        slots: occupancy.map(|occupancy| occupancy.slots.clone()).unwrap_or_default(),
        holder: occupancy.map_or(0, |occupancy| occupancy.holder),
        functions: held.meter.layout().functions(),
        fabric: network_transport.map(|network_transport| network_transport.choice.clone()),
        certificate,
        private_key,
        // The memory of copies is part of the same memory.
        copies_bytes: network_transport.map_or(0, |_| lent_bytes),
        build: runnable.index,
        program: None,
        variables: Vec::new(),
        shim: true,
        local_bytes: if swaps { local_bytes(lent_bytes) } else { 0 },
        calls: version::CALLS,
        uncounted_addresses: node.execution.bounds_memory && !held.reservation.devices.is_empty(),
    }
}

/// Path of the package's folder in the sandbox.
fn shown_folder(node: &Node, runnable: &Runnable) -> String {
    match node.execution.isolations.is_weak() {
        true => runnable.package.folder.to_string_lossy().into_owned(),
        false => FOLDER.to_owned(),
    }
}

/// The answer about the only one that was asked about.
fn one<T>(mut answers: Vec<Result<T, SandboxError>>) -> Result<T, Error> {
    match answers.pop() {
        Some(answer) => answer.map_err(Error::from),
        None => Err(Error::new(Code::Internal, "a sandbox verb gave no answer")),
    }
}

fn describe(package: &PackageInfo, exit: ProgramEnd, executing: &[u32], memory_bytes: u64) -> String {
    let mut names: Vec<String> = executing.iter().map(|&index| function_name(package, index)).collect();
    names.sort_unstable();
    names.dedup();
    let doing = match names.as_slice() {
        [] => "between calls".to_owned(),
        names => format!("while executing {}", names.join(", ")),
    };
    let how = match exit {
        ProgramEnd::OutOfMemory(_) => "was killed out of memory".to_owned(),
        exit => exit.to_string(),
    };
    format!("worker {how} {doing}; the lease's memory is {}", memory(memory_bytes))
}

/// Rounded to a tenth of a MiB.
fn memory(bytes: u64) -> String {
    let tenths = (u128::from(bytes) * 10 + u128::from(MIB) / 2) / u128::from(MIB);
    match (tenths / 10, tenths % 10) {
        (0, _) => format!("{bytes} bytes"),
        (whole, 0) => format!("{whole} MiB"),
        (whole, tenth) => format!("{whole}.{tenth} MiB"),
    }
}

/// The index comes from memory that a function could have written to.
fn function_name(package: &PackageInfo, index: u32) -> String {
    match package.functions.get(index as usize) {
        Some(function) => format!("{}/{}", package.name, function.name),
        None => format!("function {index} of {}", package.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_proto::v1::FunctionInfo;

    #[test]
    fn describes_an_end_with_executed_functions_and_memory() {
        let function = |name: &str| FunctionInfo { name: name.into() };
        let package = PackageInfo {
            name: "libx".into(),
            functions: vec![function("f"), function("g")],
            ..PackageInfo::default()
        };
        let told = |exit, executing: &[u32], bytes| describe(&package, exit, executing, bytes);
        assert_eq!(
            told(ProgramEnd::Signal(11), &[0], 64 * MIB),
            "worker killed by SIGSEGV while executing libx/f; the lease's memory is 64 MiB"
        );
        assert_eq!(
            told(ProgramEnd::OutOfMemory(80 * MIB), &[1], 16 * MIB),
            "worker was killed out of memory while executing libx/g; the lease's memory is 16 MiB"
        );
        assert_eq!(
            told(ProgramEnd::Status(3), &[1, 0, 1], 4097),
            "worker exited with status 3 while executing libx/f, libx/g; the lease's memory is 4097 bytes"
        );
        assert!(told(ProgramEnd::Status(0), &[], 134_742_016).ends_with("is 128.5 MiB"));
        assert!(told(ProgramEnd::Status(0), &[], MIB).contains("exited with status 0 between calls"));
        assert!(told(ProgramEnd::Status(0), &[9], MIB).contains("function 9 of libx"));
    }
}
