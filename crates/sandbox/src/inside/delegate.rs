//! A container that another program makes: an OCI runtime, which is given a bundle.
//!
//! The runtime runs in the place of a sandbox's program, in the sandbox's namespaces, control group and limits. There
//! it is root, which outside is a user that no other process has; the program that it starts has the sandbox's user, as
//! always. So with any runtime, which may put its own processes anywhere, everything ends with the sandbox's first
//! process.

mod apptainer;
mod config;
mod shown;

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::chown;
use std::path::Path;

use rustix::io::retry_on_intr;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::CreationPlan;
use super::container::{UPPER, prepare};
use super::mount_points::MountPoint;
use super::mounts::{attach, copy};
use super::plan::LentFolderMount;
use super::root::{attach_folder, make_place};
use crate::{FolderAccess, LENT_FOLDERS, USER};
use shown::ContainerMount;

/// Folder of the bundle, in mounts of this sandbox only. The runtime can reach it with any user of this machine, which
/// is not so for the agent's folder.
const BUNDLE: &str = "/tmp";
/// Name of the only container that the runtime sees.
const NAME: &CStr = c"sandbox";
/// Folder for the runtime's records, in a mount of its own: the container may fill all that it can write before they
/// are complete.
const NOTES: &str = "notes";
/// Folder of the runtime's records of containers.
const STATE: &CStr = c"notes/state";
/// File for the number of the container's process.
const PID_FILE: &CStr = c"notes/container.pid";
/// Files of `/proc` about the machine that are the same in every sandbox. These are the ones that OCI runtimes let a bundle mount over.
const IDLE: [MountPoint; 4] = [
    MountPoint("proc/diskstats"),
    MountPoint("proc/loadavg"),
    MountPoint("proc/swaps"),
    MountPoint("proc/uptime"),
];
/// Options of the sandbox's own mounts.
const OWN: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
/// Options of gVisor's runsc: it is root only in the sandbox's namespace, and its kernel runs on every machine, without a network.
const GVISOR: [&CStr; 4] = [c"--rootless", c"--platform=ptrace", c"--network=none", c"--ignore-cgroups"];
/// Folders in which runtimes look for programs that they need.
const PATH: &CStr = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Makes the bundle, and the plan one of running the runtime with it.
pub(super) fn enter(plan: &mut CreationPlan) -> io::Result<()> {
    for place in IDLE {
        plan.mounts.push((place, copy(place.0)?));
    }
    let Some(image) = &plan.image else { return Ok(()) };
    let Some(runtime) = image.runtime.clone() else { return Ok(()) };
    mount_own_view()?;
    prepare(BUNDLE, plan, image)?;
    chown(UPPER, Some(USER), Some(USER))?;
    let shown = attach_shown(plan)?;
    (plan.args, plan.env) = if apptainer::is_it(&runtime) {
        let words = apptainer::command(&runtime, plan, image, &shown)?;
        (words, apptainer::environment(plan, PATH)?)
    } else {
        fs::write("config.json", config::of(plan, image, &shown)?)?;
        fs::create_dir(NOTES)?;
        mount("tmpfs", NOTES, "tmpfs", OWN, Some(c"size=1m,mode=700"))?;
        (command(&runtime), vec![PATH.to_owned()])
    };
    plan.program = runtime;
    Ok(())
}

/// Mounts `/proc` with the runtime's own processes. Where both versions of control groups are mounted, crun uses
/// neither, so it sees only the first.
fn mount_own_view() -> io::Result<()> {
    mount("proc", "/proc", "proc", OWN, None)?;
    match mount("tmpfs", "/sys/fs/cgroup/unified", "tmpfs", OWN.union(MountFlags::RDONLY), None) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        mounted => Ok(mounted?),
    }
}

/// Puts what the sandbox is shown where the runtime can bind it from.
fn attach_shown(plan: &CreationPlan) -> io::Result<Vec<ContainerMount>> {
    let here = std::env::current_dir()?.join("shown");
    fs::create_dir(&here)?;
    let attach_one = |(number, (MountPoint(place), mounted)): (usize, &(MountPoint, _))| {
        let source = here.join(number.to_string());
        make_place(&source, mounted)?;
        attach(mounted, &source)?;
        Ok(ContainerMount { place: Path::new("/").join(place), source, access: FolderAccess::ReadOnly })
    };
    let attach_folder = |folder: &LentFolderMount| {
        let source = here.join(format!("folder-{}", folder.name));
        attach_folder(folder, &source)?;
        Ok(ContainerMount {
            place: Path::new(LENT_FOLDERS).join(&folder.name),
            source,
            access: folder.access,
        })
    };
    let mounts = plan.mounts.iter().enumerate().map(attach_one);
    mounts.chain(plan.folders.iter().map(attach_folder)).collect()
}

fn command(runtime: &CStr) -> Vec<CString> {
    let name = Path::new(OsStr::from_bytes(runtime.to_bytes())).file_name().unwrap_or_default();
    let mut words = vec![runtime, c"--root", STATE];
    // These insist on control groups unless an option says otherwise. The limits of the sandbox hold for them already.
    match name.as_bytes() {
        name if name.starts_with(b"crun") => words.push(c"--cgroup-manager=disabled"),
        name if name.starts_with(b"runc") => words.push(c"--rootless=true"),
        name if name.starts_with(b"runsc") => words.extend(GVISOR),
        _ => {}
    }
    // The container is then this sandbox's first process's to wait for, and has its control socket as it is.
    words.extend([c"run", c"--detach", c"--pid-file", PID_FILE, c"--bundle", c".", NAME]);
    words.into_iter().map(CStr::to_owned).collect()
}

/// The container's process, once the runtime has made it and has ended, or has become it.
pub(super) fn container(plan: &CreationPlan, runtime: Pid) -> io::Result<Pid> {
    if apptainer::is_it(&plan.program) {
        return Ok(runtime);
    }
    let ended = retry_on_intr(|| waitpid(Some(runtime), WaitOptions::empty()))?;
    let status = ended.and_then(|(_, status)| status.exit_status());
    if status != Some(0) {
        return Err(io::Error::from_raw_os_error(libc::ECHILD));
    }
    let number = fs::read_to_string(Path::new(OsStr::from_bytes(PID_FILE.to_bytes())))?;
    let number = number.trim().parse().ok().and_then(Pid::from_raw);
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
