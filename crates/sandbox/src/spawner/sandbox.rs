//! One sandbox as the spawner knows it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvFlags, sockopt};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use rustix::time::Timespec;
use sublet_proto::v1::ColdImports;

use super::cgroups::Cgroup;
use super::users::User;
use super::view::ResourceView;
use crate::inside::SandboxReport;
use crate::system::map_owners;
use crate::{ProgramEnd, SandboxError, SandboxLimits, SandboxState, SandboxStatus, Template, Walls};

/// Maximum time to wait for the end of a killed process.
const LONGEST_END: Duration = Duration::from_secs(10);
/// Maximum time for a first process to report how its program has ended. It has nothing else to do.
const LONGEST_TELLING: Duration = Duration::from_secs(1);

/// Status with which a program ends that reports that another one was killed.
const STATUS_OF_KILLED: i32 = 128 + libc::SIGKILL;

/// A sandbox. Killed when it is dropped.
pub(super) struct Sandbox {
    /// First process of the sandbox.
    pid: Pid,
    pidfd: OwnedFd,
    link: OwnedFd,
    walls: Walls,
    memory_bytes: Option<u64>,
    phase: SandboxPhase,
    cold_imports: Option<ColdImports>,
    /// Template that stops to be used if the sandbox cannot be made: one in an image, or one whose modules a process on
    /// standby has imported.
    template: Option<Template>,
    is_standby: bool,
    /// The program's process, if it has reported itself on standby.
    standby_program: Option<u32>,
    // Resources of the spawner that the sandbox uses while it lives: dropped after it is dead.
    cgroup: Option<Cgroup>,
    users: Vec<User>,
    /// Views of its time on standby, if it was on standby, and views of its program.
    views: Vec<ResourceView>,
}

enum SandboxPhase {
    Created,
    /// The program's process, and a descriptor of it, unless it ended before that could be opened.
    Running {
        pid: u32,
        program: Option<OwnedFd>,
    },
    Stopped {
        pid: Option<u32>,
        exit: Option<ProgramEnd>,
    },
}

impl Sandbox {
    pub(super) fn new(
        pid: Pid,
        pidfd: OwnedFd,
        (link, walls): (OwnedFd, Walls),
        cgroup: Option<Cgroup>,
        users: Vec<User>,
    ) -> Sandbox {
        let phase = SandboxPhase::Created;
        Sandbox {
            pid,
            pidfd,
            link,
            walls,
            memory_bytes: None,
            phase,
            cold_imports: None,
            template: None,
            is_standby: false,
            standby_program: None,
            cgroup,
            users,
            views: Vec::new(),
        }
    }

    pub(super) fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    pub(super) fn users(&self) -> &[User] {
        &self.users
    }

    /// Makes its user the owner of the files of a mount that belong to [`crate::USER`] on the disk. Does nothing if the
    /// sandbox has no user of its own: then the spawner's user owns them already.
    pub(super) fn make_owner(&self, mount: BorrowedFd<'_>) -> io::Result<()> {
        if self.users.is_empty() {
            return Ok(());
        }
        let users = File::open(format!("/proc/{}/ns/user", self.pid.as_raw_nonzero()))?;
        map_owners(mount, users.as_fd())
    }

    /// Bounds what its control group bounds.
    pub(super) fn limit(&mut self, limits: &SandboxLimits) -> io::Result<()> {
        debug_assert!(
            matches!(self.phase, SandboxPhase::Created),
            "limits come after the program has started"
        );
        self.memory_bytes = limits.memory_bytes;
        self.cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.limit(limits))
    }

    /// Keeps the files about its cores and memory until the sandbox is dropped.
    pub(super) fn keep(&mut self, view: ResourceView) {
        let is_first = self.views.is_empty() || self.is_standby && self.views.len() == 1;
        debug_assert!(is_first, "a sandbox has two views of its cores and memory");
        self.views.push(view);
    }

    /// Notes why it has not the modules that it was to have from its template.
    pub(super) fn set_cold_imports(&mut self, cold_imports: Option<ColdImports>) {
        self.cold_imports = cold_imports;
    }

    /// Notes the template in an image that it is a copy of, or whose modules it has imported on standby.
    pub(super) fn set_template(&mut self, template: &Template) {
        debug_assert!(self.template.is_none(), "a sandbox is a copy of two templates");
        self.template = Some(template.clone());
    }

    pub(super) fn template(&self) -> Option<&Template> {
        self.template.as_ref()
    }

    pub(super) fn cold_imports(&self) -> Option<&ColdImports> {
        self.cold_imports.as_ref()
    }

    /// Notes that its process waits for a program with imported modules.
    pub(super) fn set_standby(&mut self) {
        debug_assert!(matches!(self.phase, SandboxPhase::Created), "a program has started on standby");
        self.is_standby = true;
    }

    pub(super) fn is_standby(&self) -> bool {
        self.is_standby
    }

    /// Notes the program's process, which it has on standby already.
    pub(super) fn set_standby_program(&mut self, pid: u32) {
        debug_assert!(
            self.is_standby,
            "process {pid} reports itself before its program starts, and is not on standby"
        );
        self.standby_program = Some(pid);
    }

    pub(super) fn standby_program(&self) -> Option<u32> {
        self.standby_program
    }

    /// Sets the maximum time for its next step.
    pub(super) fn set_patience(&self, patience: Duration) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(&self.link, sockopt::Timeout::Recv, Some(patience))?)
    }

    pub(super) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }

    /// Readable once nothing of it runs.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Records that the program's process exists.
    pub(super) fn set_running(&mut self, pid: u32) {
        debug_assert!(
            matches!(self.phase, SandboxPhase::Created),
            "process {pid} starts in a sandbox that has started"
        );
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let program = number.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.phase = SandboxPhase::Running { pid, program };
    }

    /// Returns the present state, and records the end of the sandbox.
    pub(super) fn state(&mut self) -> SandboxState {
        if !matches!(self.phase, SandboxPhase::Stopped { .. }) && self.has_ended() {
            let (pid, exit) = match &self.phase {
                SandboxPhase::Running { pid, .. } => (Some(*pid), Some(self.exit())),
                SandboxPhase::Created | SandboxPhase::Stopped { .. } => (None, None),
            };
            self.phase = SandboxPhase::Stopped { pid, exit };
        }
        match self.phase {
            SandboxPhase::Created => SandboxState { status: SandboxStatus::Created, pid: None, exit: None },
            SandboxPhase::Running { pid, .. } => {
                SandboxState { status: SandboxStatus::Running, pid: Some(pid), exit: None }
            }
            SandboxPhase::Stopped { pid, exit } => SandboxState { status: SandboxStatus::Stopped, pid, exit },
        }
    }

    pub(super) fn kill(&mut self, signal: Signal) -> Result<(), SandboxError> {
        let target = match &self.phase {
            // The first process ends nothing but the program, and reports its end.
            SandboxPhase::Running { program: Some(program), .. } if self.walls == Walls::Weak => program,
            SandboxPhase::Created | SandboxPhase::Running { .. } if signal == Signal::KILL => &self.pidfd,
            SandboxPhase::Running { program: Some(program), .. } => program,
            _ => return Ok(()),
        };
        match pidfd_send_signal(target, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(SandboxError::system("sending a signal to a sandbox", errno)),
        }
    }

    /// Kills it and waits for its end.
    pub(super) fn end(&mut self) {
        // An error cannot be reported any more; only the kernel can end a process that cannot be killed.
        let _ = self.kill(Signal::KILL);
        is_readable(&self.pidfd, LONGEST_END);
        self.state();
    }

    /// Reaps the first process, if it has ended, and with it everything in the sandbox. If only the program has ended,
    /// waits for the first process, which is about to report the end of the program, and to end the remaining
    /// processes.
    fn has_ended(&self) -> bool {
        if self.has_program_ended() && !is_readable(&self.pidfd, LONGEST_TELLING) {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
            is_readable(&self.pidfd, LONGEST_END);
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        matches!(retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options)), Ok(Some(_)) | Err(_))
    }

    fn has_program_ended(&self) -> bool {
        match &self.phase {
            SandboxPhase::Running { program, .. } => {
                program.as_ref().is_none_or(|program| is_readable(program, Duration::ZERO))
            }
            SandboxPhase::Created | SandboxPhase::Stopped { .. } => false,
        }
    }

    /// Returns the end that the first process has reported last; without a report it was killed.
    fn exit(&self) -> ProgramEnd {
        let said =
            std::iter::from_fn(|| SandboxReport::receive(self.link(), RecvFlags::DONTWAIT).ok().flatten());
        let exit = said.fold(ProgramEnd::Signal(libc::SIGKILL), |exit, (report, _)| match report {
            SandboxReport::Exited(status) => ProgramEnd::Status(status),
            SandboxReport::Killed(signal) => ProgramEnd::Signal(signal),
            _ => exit,
        });
        let kills = self.cgroup.as_ref().map_or(0, Cgroup::out_of_memory_kills);
        match (exit, self.memory_bytes) {
            // Shells and OCI runtimes report the death of a killed program with this status.
            (ProgramEnd::Signal(libc::SIGKILL) | ProgramEnd::Status(STATUS_OF_KILLED), Some(limit))
                if kills > 0 =>
            {
                ProgramEnd::OutOfMemory(limit)
            }
            _ => exit,
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if !matches!(self.phase, SandboxPhase::Stopped { .. }) {
            self.end();
        }
    }
}

fn is_readable(fd: &OwnedFd, within: Duration) -> bool {
    let timeout = Timespec::try_from(within).ok();
    let polled = retry_on_intr(|| poll(&mut [PollFd::new(fd, PollFlags::IN)], timeout.as_ref()));
    polled.is_ok_and(|ready| ready > 0)
}
