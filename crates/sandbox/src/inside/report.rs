//! Encodes the reports between spawner and sandbox while a sandbox is made, and when its program ends: one small
//! packet each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, UCred,
};
use rustix::process::{Pid, getgid, getuid};

/// Step in making a sandbox, for reports of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreationStep {
    Root,
    Container,
    Cgroup,
    Plan,
    Identity,
    HostName,
    Capabilities,
    Landlock,
    Seccomp,
    Fork,
    Limits,
    Exec,
    Runtime,
    Copy,
    Standby,
}

impl CreationStep {
    const ALL: [(CreationStep, &'static str); 15] = [
        (CreationStep::Root, "mounting a sandbox's root"),
        (CreationStep::Container, "mounting a container's image"),
        (CreationStep::Cgroup, "entering a sandbox's cgroup namespace"),
        (CreationStep::Plan, "telling a sandbox what to become"),
        (CreationStep::Identity, "becoming a sandbox's user"),
        (CreationStep::HostName, "setting a sandbox's host name"),
        (CreationStep::Capabilities, "dropping a sandbox's capabilities"),
        (CreationStep::Landlock, "restricting a sandbox with Landlock"),
        (CreationStep::Seccomp, "restricting a sandbox's system calls"),
        (CreationStep::Fork, "forking in a sandbox"),
        (CreationStep::Limits, "limiting a sandbox's program"),
        (CreationStep::Exec, "executing a sandbox's program"),
        (CreationStep::Runtime, "making a container by an OCI runtime, which has told the agent's log why,"),
        (CreationStep::Copy, "making what a copied language runtime holds open again"),
        (CreationStep::Standby, "importing modules ahead of time"),
    ];

    pub(crate) fn describe(self) -> &'static str {
        CreationStep::ALL.iter().find(|(step, _)| *step == self).map_or("making a sandbox", |(_, text)| text)
    }
}

/// Order of the spawner to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SandboxOrder {
    /// The sandbox's users are mapped, and it is in its control group. Its plan follows.
    Go = 1,
    /// The program must start.
    Start = 2,
}

impl SandboxOrder {
    pub(crate) fn send(self, link: BorrowedFd<'_>) -> io::Result<()> {
        retry_on_intr(|| rustix::net::send(link, &[self as u8], SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for it; nothing once the spawner is gone.
    pub(super) fn receive(link: BorrowedFd<'_>) -> Option<SandboxOrder> {
        let mut byte = [0];
        let received = retry_on_intr(|| rustix::net::recv(link, &mut byte, RecvFlags::empty()));
        match (received, byte) {
            (Ok((1, _)), [1]) => Some(SandboxOrder::Go),
            (Ok((1, _)), [2]) => Some(SandboxOrder::Start),
            _ => None,
        }
    }
}

/// Report of a sandbox to the spawner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SandboxReport {
    /// Everything but the program exists.
    Made,
    /// The program's process exists; it reports this itself.
    Started,
    /// The process has become the program.
    Running,
    /// The sandbox cannot be made, or its program cannot be started.
    Failed { step: CreationStep, errno: i32 },
    /// The program left with a status.
    Exited(i32),
    /// A signal killed the program.
    Killed(i32),
    /// The process has imported its modules, and waits for its program.
    Waiting,
}

impl SandboxReport {
    /// Bytes of a packet: what it is, a step, a number.
    const LEN: usize = 6;

    pub(super) fn failed(step: CreationStep, error: &io::Error) -> SandboxReport {
        SandboxReport::Failed { step, errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
    }

    pub(super) fn send(self, link: BorrowedFd<'_>) -> io::Result<()> {
        self.send_with(link, &mut SendAncillaryBuffer::default())
    }

    /// Sends the report in the name of another process of the sandbox: the kernel translates that process's number for
    /// the spawner.
    pub(super) fn send_for(self, link: BorrowedFd<'_>, process: Pid) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let who = UCred { pid: process, uid: getuid(), gid: getgid() };
        control.push(SendAncillaryMessage::ScmCredentials(who));
        self.send_with(link, &mut control)
    }

    fn send_with(
        self,
        link: BorrowedFd<'_>,
        control: &mut SendAncillaryBuffer<'_, '_, '_>,
    ) -> io::Result<()> {
        let (kind, step, number) = match self {
            SandboxReport::Made => (1, 0, 0),
            SandboxReport::Started => (2, 0, 0),
            SandboxReport::Running => (3, 0, 0),
            SandboxReport::Failed { step, errno } => (4, step as u8, errno),
            SandboxReport::Exited(status) => (5, 0, status),
            SandboxReport::Killed(signal) => (6, 0, signal),
            SandboxReport::Waiting => (7, 0, 0),
        };
        let [a, b, c, d] = number.to_le_bytes();
        let bytes = [kind, step, a, b, c, d];
        debug_assert_eq!(
            SandboxReport::decode(bytes),
            Some(self),
            "a report is read as another one: {bytes:?}"
        );
        retry_on_intr(|| rustix::net::sendmsg(link, &[IoSlice::new(&bytes)], control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// The next one, and the process that sent it as the kernel says; an error if it does not come in time, nothing if
    /// there will be none.
    pub(crate) fn receive(
        link: BorrowedFd<'_>,
        flags: RecvFlags,
    ) -> io::Result<Option<(SandboxReport, i32)>> {
        let mut bytes = [0; SandboxReport::LEN];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut receive = || {
            retry_on_intr(|| {
                rustix::net::recvmsg(link, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
            })
        };
        let received = match receive() {
            // It has ended while an order was still unread there. That is said once, and before what it has sent.
            Err(Errno::CONNRESET) => receive(),
            received => received,
        }?;
        if received.bytes == 0 {
            return Ok(None);
        }
        let sender = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.pid.as_raw_nonzero().get()),
            _ => None,
        });
        let report = SandboxReport::decode(bytes).filter(|_| received.bytes == SandboxReport::LEN);
        let report = report.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some((report, sender.unwrap_or(0))))
    }

    fn decode([kind, step, number @ ..]: [u8; SandboxReport::LEN]) -> Option<SandboxReport> {
        let number = i32::from_le_bytes(number);
        Some(match kind {
            1 => SandboxReport::Made,
            2 => SandboxReport::Started,
            3 => SandboxReport::Running,
            4 => SandboxReport::Failed { step: CreationStep::ALL.get(usize::from(step))?.0, errno: number },
            5 => SandboxReport::Exited(number),
            6 => SandboxReport::Killed(number),
            7 => SandboxReport::Waiting,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn receives_report_of_sandbox_that_ended_with_unread_orders() {
        let (own, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let failed = SandboxReport::Failed { step: CreationStep::Container, errno: libc::ENOENT };
        SandboxOrder::Start.send(own.as_fd()).unwrap();
        failed.send(theirs.as_fd()).unwrap();
        drop(theirs);
        let heard = SandboxReport::receive(own.as_fd(), RecvFlags::empty()).unwrap();
        assert_eq!(heard.map(|(report, _)| report), Some(failed));
        assert_eq!(SandboxReport::receive(own.as_fd(), RecvFlags::empty()).unwrap(), None);
    }
}
