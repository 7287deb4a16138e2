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
pub(crate) enum Step {
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
}

impl Step {
    const ALL: [(Step, &'static str); 14] = [
        (Step::Root, "mounting a sandbox's root"),
        (Step::Container, "mounting a container's image"),
        (Step::Cgroup, "entering a sandbox's cgroup namespace"),
        (Step::Plan, "telling a sandbox what to become"),
        (Step::Identity, "becoming a sandbox's user"),
        (Step::HostName, "setting a sandbox's host name"),
        (Step::Capabilities, "dropping a sandbox's capabilities"),
        (Step::Landlock, "restricting a sandbox with Landlock"),
        (Step::Seccomp, "restricting a sandbox's system calls"),
        (Step::Fork, "forking in a sandbox"),
        (Step::Limits, "limiting a sandbox's program"),
        (Step::Exec, "executing a sandbox's program"),
        (Step::Runtime, "making a container by an OCI runtime, which has told the agent's log why,"),
        (Step::Copy, "making what a copied language runtime holds open again"),
    ];

    pub(crate) fn describe(self) -> &'static str {
        Step::ALL.iter().find(|(step, _)| *step == self).map_or("making a sandbox", |(_, text)| text)
    }
}

/// Order of the spawner to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The sandbox's users are mapped, and it is in its control group. Its plan follows.
    Go = 1,
    /// The program must start.
    Start = 2,
}

impl Order {
    pub(crate) fn send(self, link: BorrowedFd<'_>) -> io::Result<()> {
        retry_on_intr(|| rustix::net::send(link, &[self as u8], SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Waits for it; nothing once the spawner is gone.
    pub(super) fn receive(link: BorrowedFd<'_>) -> Option<Order> {
        let mut byte = [0];
        let received = retry_on_intr(|| rustix::net::recv(link, &mut byte, RecvFlags::empty()));
        match (received, byte) {
            (Ok((1, _)), [1]) => Some(Order::Go),
            (Ok((1, _)), [2]) => Some(Order::Start),
            _ => None,
        }
    }
}

/// Report of a sandbox to the spawner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// Everything but the program exists.
    Made,
    /// The program's process exists; it reports this itself.
    Started,
    /// The process has become the program.
    Running,
    /// The sandbox cannot be made, or its program cannot be started.
    Failed { step: Step, errno: i32 },
    /// The program left with a status.
    Exited(i32),
    /// A signal killed the program.
    Killed(i32),
}

impl Report {
    /// Bytes of a packet: what it is, a step, a number.
    const LEN: usize = 6;

    pub(super) fn failed(step: Step, error: &io::Error) -> Report {
        Report::Failed { step, errno: error.raw_os_error().unwrap_or(libc::EINVAL) }
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
            Report::Made => (1, 0, 0),
            Report::Started => (2, 0, 0),
            Report::Running => (3, 0, 0),
            Report::Failed { step, errno } => (4, step as u8, errno),
            Report::Exited(status) => (5, 0, status),
            Report::Killed(signal) => (6, 0, signal),
        };
        let [a, b, c, d] = number.to_le_bytes();
        let bytes = [kind, step, a, b, c, d];
        debug_assert_eq!(Report::decode(bytes), Some(self), "a report is read as another one: {bytes:?}");
        retry_on_intr(|| rustix::net::sendmsg(link, &[IoSlice::new(&bytes)], control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// The next one, and the process that sent it as the kernel says; an error if it does not come in time, nothing if
    /// there will be none.
    pub(crate) fn receive(link: BorrowedFd<'_>, flags: RecvFlags) -> io::Result<Option<(Report, i32)>> {
        let mut bytes = [0; Report::LEN];
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
        let report = Report::decode(bytes).filter(|_| received.bytes == Report::LEN);
        let report = report.ok_or(io::ErrorKind::InvalidData)?;
        Ok(Some((report, sender.unwrap_or(0))))
    }

    fn decode([kind, step, number @ ..]: [u8; Report::LEN]) -> Option<Report> {
        let number = i32::from_le_bytes(number);
        Some(match kind {
            1 => Report::Made,
            2 => Report::Started,
            3 => Report::Running,
            4 => Report::Failed { step: Step::ALL.get(usize::from(step))?.0, errno: number },
            5 => Report::Exited(number),
            6 => Report::Killed(number),
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
        let failed = Report::Failed { step: Step::Container, errno: libc::ENOENT };
        Order::Start.send(own.as_fd()).unwrap();
        failed.send(theirs.as_fd()).unwrap();
        drop(theirs);
        let heard = Report::receive(own.as_fd(), RecvFlags::empty()).unwrap();
        assert_eq!(heard.map(|(report, _)| report), Some(failed));
        assert_eq!(Report::receive(own.as_fd(), RecvFlags::empty()).unwrap(), None);
    }
}
