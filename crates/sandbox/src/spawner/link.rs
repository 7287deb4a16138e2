//! The connection of the spawner and a new process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};

/// Maximum time of a new process for one step. A step takes less than a millisecond.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Makes the connection of the spawner and a sandbox: the spawner's end, which has a timeout and gets the sender, and
/// the other end.
pub(super) fn link() -> io::Result<(OwnedFd, OwnedFd)> {
    let (own, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_passcred(&own, true)?;
    sockopt::set_socket_timeout(&own, sockopt::Timeout::Recv, Some(PATIENCE))?;
    Ok((own, theirs))
}
