//! Examines the protections of sandboxes on this machine, and the consequences of each missing one.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sublet_proto::v1::{SandboxCreate, SandboxIds, SandboxRequest, sandbox_request::Body};

use super::table::SandboxTable;
use super::users;
use super::workshop::Workshop;
use crate::strength::{Finding, Strength};
use crate::wire::{decode_answer, encode_spec};
use crate::{
    Devices, IsolationKind, NetworkAccess, ProgramEnd, SandboxError, SandboxLimits, SandboxProgram, Spec,
    Walls, system,
};

/// Argument with which the program reports, in the sandbox that is made for it, that it runs there.
pub(super) const INSIDE: &str = "--inside";
/// Statuses with which it reports whether it finds its processes.
const WITH_PROCESSES: i32 = 10;
const WITHOUT_PROCESSES: i32 = 11;
/// Version of Landlock's interface from which on all rules that sandboxes use are enforced.
const WHOLE_LANDLOCK: u32 = 6;

/// Controller that counts processor time.
const COUNT: &str = "cpuacct";
/// Consequence of missing shares of processor time.
const NO_SHARES: &str =
    "leases on a shared core have no shares of it: one with many processes slows the others there";

/// Warns the user who starts the spawner of a missing controller of processor time.
pub(super) fn warn_of_missing_shares(found: Option<(u32, Vec<&'static str>)>) {
    if !found.is_some_and(|(_, controllers)| controllers.contains(&"cpu")) {
        eprintln!("sublet-spawner: the control groups have no cpu controller: {NO_SHARES}");
    }
}

/// Returns the status to end with, in the sandbox.
pub(super) fn inside() -> i32 {
    if Path::new("/proc/self").exists() { WITH_PROCESSES } else { WITHOUT_PROCESSES }
}

/// All walls of sandboxes that this process makes.
pub(super) fn findings(folder: &Path) -> Vec<Finding> {
    let is_privileged = users::is_privileged();
    let workshop = match Workshop::open(folder, (&[], &[]), Walls::Full) {
        Ok(workshop) => workshop,
        Err(error) => {
            let none = Finding::new("sandboxes", Strength::Missing, none(&error));
            return vec![none, landlock(system::landlock_abi())];
        }
    };
    let mut findings = vec![user(is_privileged, &workshop), landlock(system::landlock_abi())];
    findings.extend(cgroups(workshop.means.cgroups.describe()));
    findings.extend(trial(workshop));
    findings
}

fn none(error: &SandboxError) -> String {
    format!("there are none: {error}")
}

fn user(is_privileged: bool, workshop: &Workshop) -> Finding {
    if workshop.means.users.are_own() {
        return Finding::new("users", Strength::Full, "each sandbox has a user of its own");
    }
    let why = if is_privileged { "here are no other users to be had" } else { "without root" };
    let follows = "every sandbox is the agent's own user: between them stand namespaces, Landlock and the filter of system \
                   calls, and not the users' rights";
    Finding::new("users", Strength::Weaker, format!("{why}, {follows}"))
}

fn landlock(abi: u32) -> Finding {
    match abi {
        0 => Finding::new(
            "landlock",
            Strength::Missing,
            "the kernel has none: files are behind one wall, the mounts",
        ),
        abi if abi < WHOLE_LANDLOCK => {
            let why =
                format!("interface {abi} of the kernel; {WHOLE_LANDLOCK} knows of all that is restricted");
            Finding::new("landlock", Strength::Weaker, why)
        }
        abi => Finding::new("landlock", Strength::Full, format!("interface {abi} of the kernel")),
    }
}

/// Returns findings on the limits by control groups, with the consequences of missing ones.
fn cgroups(found: Option<(u32, Vec<&'static str>)>) -> Vec<Finding> {
    let (version, controllers) = found.unwrap_or_default();
    let walls = [
        ("memory", "a sandbox's memory is bounded for each process, not for all together with its files"),
        ("pids", "processes are bounded by the kernel's count for each user namespace alone"),
        ("cpuset", "a sandbox may run on all cores of the agent"),
        ("cpu", NO_SHARES),
        (COUNT, "compute is billed by the times of the processes that are found each second"),
    ];
    let finding = |(controller, missing): (&'static str, &str)| {
        // Version 2 counts the time of every group.
        if controllers.contains(&controller) || controller == COUNT && version == 2 {
            let why = format!("by control groups, version {version}");
            return Finding::new(controller, Strength::Full, why);
        }
        let why = format!("no such controller can be used: {missing}");
        Finding::new(controller, Strength::Missing, why)
    };
    walls.into_iter().map(finding).collect()
}

/// Makes a sandbox with this program in it.
fn trial(workshop: Workshop) -> Vec<Finding> {
    let isolation = |strength, why: String| Finding::new("namespaces", strength, why);
    let processes = |strength, why: &str| Finding::new("processes", strength, why);
    match run_inside(SandboxTable::new(workshop)) {
        Ok(ProgramEnd::Status(WITH_PROCESSES)) => vec![
            isolation(Strength::Full, "user, mount, pid, network, ipc, uts and cgroup of its own".to_owned()),
            processes(Strength::Full, "a sandbox sees its own in /proc, and nothing else"),
        ],
        Ok(ProgramEnd::Status(WITHOUT_PROCESSES)) => vec![
            isolation(Strength::Full, "user, mount, pid, network, ipc, uts and cgroup of its own".to_owned()),
            processes(
                Strength::Weaker,
                "there is no /proc in sandboxes, since not all of it is seen here: functions in C++ fail",
            ),
        ],
        Ok(exit) => vec![isolation(Strength::Missing, format!("a sandbox {exit}"))],
        Err(error) => vec![isolation(Strength::Missing, none(&error))],
    }
}

fn run_inside(mut table: SandboxTable) -> Result<ProgramEnd, SandboxError> {
    let failed = |error| SandboxError::system("trying a sandbox", error);
    let program = SandboxProgram::Outside(std::env::current_exe().map_err(failed)?);
    let (control, _outside) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|errno| failed(errno.into()))?;
    let limits = SandboxLimits {
        cores: Vec::new(),
        memory_bytes: None,
        shown_memory_bytes: None,
        processes: None,
        scratch_bytes: 1 << 20,
    };
    let (spec, descriptors) = encode_spec(Spec {
        kind: IsolationKind::Process,
        program,
        args: vec![INSIDE.into()],
        env: Vec::new(),
        has_own_variables: false,
        lent_folders: Vec::new(),
        device_mounts: Vec::new(),
        folder: None,
        control,
        log: None,
        network: NetworkAccess::None,
        devices: Devices::None,
        limits,
    });
    let create = Body::Create(SandboxCreate { specs: vec![spec], start: true });
    let (answers, pidfds) = table.serve(SandboxRequest { body: Some(create) }, descriptors);
    let answer = answers.into_iter().next().unwrap_or_default();
    let (id, _) = decode_answer(answer, "create")?;
    if let Some(pidfd) = pidfds.first() {
        let _ = rustix::event::poll(
            &mut [rustix::event::PollFd::new(&pidfd.as_fd(), rustix::event::PollFlags::IN)],
            None,
        );
    }
    let state = Body::State(SandboxIds { ids: vec![id.0] });
    let (answers, _) = table.serve(SandboxRequest { body: Some(state) }, Vec::new());
    let (_, state) = decode_answer(answers.into_iter().next().unwrap_or_default(), "look at")?;
    state.exit.ok_or(SandboxError::Unknown(id))
}
