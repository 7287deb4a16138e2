//! One template as the spawner knows it: a process of an interpreter that is warm, or is on its way to that.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};
use rustix::time::Timespec;
use sublet_proto::text::printable_line;
use sublet_proto::v1::{ColdImports, TemplateFork, TemplateState};

use super::cgroups::Cgroup;
use super::means::{SandboxRoot, SpawnMeans};
use super::users::User;
use super::{link, root};
use crate::inside::template::{Seed, TemplateMounts, run};
use crate::system::{Clone, Fork, clone};
use crate::{SandboxLimits, Template, Walls, wire};

/// Length of the end of its output that is reported, in bytes.
const LAST_WORDS_BYTES: usize = 2048;
/// Longest time in which an interpreter becomes warm: a worker that imports the modules by itself has none.
const LONGEST_WARMING: Duration = Duration::from_secs(120);
/// Maximum length of a module's name, and of a reason, that is passed on, in characters.
const MAX_TOLD_CHARS: usize = 256;
const NAMESPACES: i32 = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// A template. Killed when it is dropped; its copies continue to run.
pub(super) struct TemplateProcess {
    pidfd: OwnedFd,
    socket: OwnedFd,
    /// Output until it is warm. Tenants choose the modules, so the output never goes to the operator's log unchanged.
    printed: Option<OwnedFd>,
    begun: Instant,
    state: State,
    /// Reason why it never becomes warm, once it has reported one.
    refusal: Option<ColdImports>,
    // Resources of the spawner that the template uses while it lives: dropped after it is dead.
    _cgroup: Option<Cgroup>,
    _users: Vec<User>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Starting,
    /// Warm, with the number of forks that were ordered.
    Ready(u32),
}

impl TemplateProcess {
    /// Starts a template, without waiting for it.
    pub(super) fn start(means: &mut SpawnMeans, template: &Template) -> io::Result<TemplateProcess> {
        let (socket, theirs) = link::link()?;
        let mounts = match &mut means.root {
            SandboxRoot::Own(own) => {
                let adapter = root::adapter(&template.adapter, &mut own.opened)?;
                // One without modules of its own is the same for all environments.
                let has_own = |environment: &&PathBuf| !environment.as_os_str().is_empty();
                let environment = template.environment.as_ref().filter(has_own);
                let environment = environment.map(|folder| root::shown_environment(folder)).transpose()?;
                let image = template.image.as_ref().map(|image| root::layers_of_image(&image.root));
                let layers = image.transpose().map_err(io::Error::other)?.unwrap_or_default();
                Some(TemplateMounts { adapter, environment, layers })
            }
            SandboxRoot::Weak(_) => None,
        };
        let namespaces = if mounts.is_some() { NAMESPACES } else { 0 };
        let output = memfd_create("sublet-template-output", MemfdFlags::CLOEXEC)?;
        let printed = Some(output.try_clone()?);
        let cgroup = means.cgroups.make();
        let users = means.users.take()?;
        let user = users.first().map(User::number);
        let (pid, pidfd) = match clone(Clone { flags: namespaces, cgroup: None, is_sibling: false })? {
            Fork::Child => run(Seed { template, socket: theirs, output, mounts, user }),
            Fork::Parent(pid, pidfd) => (pid, pidfd),
        };
        let (state, refusal) = (State::Starting, None);
        let begun = Instant::now();
        let warm =
            TemplateProcess { pidfd, socket, printed, begun, state, refusal, _cgroup: cgroup, _users: users };
        if let Some(cgroup) = &warm._cgroup {
            cgroup.limit(&limits())?;
            cgroup.adopt(pid)?;
        }
        Ok(warm)
    }

    /// Readable when it is warm, or has ended.
    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        (self.state == State::Starting).then(|| self.socket.as_fd())
    }

    /// Whether it can be forked now; waits for that if it is to. An error if it never can.
    pub(super) fn is_ready(&mut self, wait: bool) -> io::Result<bool> {
        if matches!(self.state, State::Ready(_)) {
            return Ok(true);
        }
        let timeout = Timespec::try_from(if wait { link::PATIENCE } else { Duration::ZERO }).ok();
        let mut watched = [PollFd::new(&self.socket, PollFlags::IN)];
        if retry_on_intr(|| poll(&mut watched, timeout.as_ref()))? == 0 {
            return match self.is_late() {
                true => Err(io::Error::new(io::ErrorKind::TimedOut, format!("it {}", late()))),
                false => Ok(false),
            };
        }
        let said = wire::receive::<TemplateState>(self.socket.as_fd())?;
        let (said, _) = said.ok_or_else(|| io::Error::other(self.last_words()))?;
        if let Some(refusal) = said.cold_imports {
            let refusal = bounded(refusal);
            let message = format!("importing {:?} {}", refusal.module, refusal.reason);
            self.refusal = Some(refusal);
            return Err(io::Error::other(message));
        }
        self.state = State::Ready(0);
        self.printed = None;
        Ok(true)
    }

    /// Returns the report on its modules if it was given up before it was warm.
    pub(super) fn cold_imports(&mut self, template: &Template) -> Option<ColdImports> {
        let (is_late, import_ms) = (self.is_late(), self.begun.elapsed().as_millis());
        let ended = || ColdImports {
            module: match template.imports.as_slice() {
                [] => template.interpreter.display().to_string(),
                imports => imports.join(", "),
            },
            reason: if is_late { late() } else { "ends the interpreter".to_owned() },
            import_ms: if is_late { u32::try_from(import_ms).unwrap_or(u32::MAX) } else { 0 },
        };
        (self.state == State::Starting).then(|| self.refusal.take().unwrap_or_else(|| bounded(ended())))
    }

    fn is_late(&self) -> bool {
        self.state == State::Starting && self.begun.elapsed() > LONGEST_WARMING
    }

    /// Returns the end of its output, which says why it ended before it was warm.
    fn last_words(&self) -> String {
        let mut bytes = vec![0; LAST_WORDS_BYTES];
        let read = self.printed.as_ref().map(|printed| {
            let end = rustix::fs::fstat(printed)?.st_size.unsigned_abs();
            rustix::io::pread(printed, &mut bytes, end.saturating_sub(LAST_WORDS_BYTES as u64))
        });
        bytes.truncate(read.and_then(Result::ok).unwrap_or(0));
        let text = String::from_utf8_lossy(&bytes);
        let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        let lines: Vec<_> = lines.map(printable_line).collect();
        match lines.as_slice() {
            [] => "it ended before it was warm".to_owned(),
            lines => format!("it ended before it was warm: {}", lines.join(" / ")),
        }
    }

    /// Makes a copy of it that is the first process of a sandbox, with this connection.
    pub(super) fn fork(
        &mut self,
        link: &OwnedFd,
        leaves_groups: bool,
        walls: Walls,
    ) -> io::Result<(Pid, OwnedFd)> {
        let State::Ready(forks) = self.state else { return Err(io::ErrorKind::NotConnected.into()) };
        let number = forks.wrapping_add(1).max(1);
        self.state = State::Ready(number);
        let order = TemplateFork { number, leaves_groups, weak: walls == Walls::Weak };
        wire::send(self.socket.as_fd(), &order, &[link.as_fd()])?;
        loop {
            let answer = wire::receive::<TemplateState>(self.socket.as_fd())?;
            let (answer, mut fds) = answer.ok_or(io::ErrorKind::BrokenPipe)?;
            match (answer, fds.pop()) {
                // To what was given up.
                (TemplateState { number: old, .. }, _) if old != number => {}
                (_, Some(process)) => return Ok((number_of(&process)?, process)),
                (TemplateState { errno, .. }, None) => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }
}

impl Drop for TemplateProcess {
    fn drop(&mut self) {
        // An error cannot be reported any more; only the kernel can end a process that cannot be killed.
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED));
    }
}

/// Reason of a template that was not warm in time, as a verb and its object.
fn late() -> String {
    format!("takes more than {} s to become warm", LONGEST_WARMING.as_secs())
}

/// Limits the report of a template on its modules, which tenants have chosen, so that it can be shown to others.
fn bounded(cold: ColdImports) -> ColdImports {
    let text = |text: &str| printable_line(text).chars().take(MAX_TOLD_CHARS).collect();
    ColdImports { module: text(&cold.module), reason: text(&cold.reason), import_ms: cold.import_ms }
}

fn limits() -> SandboxLimits {
    let memory_bytes = Some(root::TEMPLATE_MEMORY_BYTES);
    SandboxLimits {
        cores: Vec::new(),
        memory_bytes,
        shown_memory_bytes: None,
        processes: None,
        scratch_bytes: 0,
    }
}

/// The number that a process has here, which may have ended but was not waited for.
fn number_of(process: &OwnedFd) -> io::Result<Pid> {
    use std::os::fd::AsRawFd;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    number.and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::NotFound.into())
}
