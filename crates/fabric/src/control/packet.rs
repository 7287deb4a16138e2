//! Sequenced-packet Unix sockets, by which processes of one node exchange messages and descriptors.
//!
//! One packet is one message: it arrives whole or not at all, with the descriptors that were sent beside it. Packets
//! set up calls (capabilities to regions, a worker's control connection); no call ever waits for one.
//!
//! Invariants:
//! - A packet has 1 to [`MAX_PACKET_BYTES`] bytes and at most [`MAX_PACKET_FDS`] descriptors, on both ends. A larger
//!   packet is a [`PacketError::Protocol`], and the descriptors that came with it are closed.
//! - Every descriptor made or received here is closed on exec.
//! - A peer that is gone never raises SIGPIPE, and a signal never ends an operation early.
//! - A listening socket is only ever open to its owner (mode 0600), also in the instant of its making.
//!
//! The two ends define the meaning of the bytes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, chmod, lstat, unlink};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::time::Timespec;
use sublet_proto::{Code, Error, MAX_PACKET_BYTES};

use crate::socket_path::SocketPath;

/// Most descriptors of one packet. It is close to the kernel's limit, since the core slots of a large node need one
/// each.
pub const MAX_PACKET_FDS: usize = 250;

/// Connections that the kernel keeps until the owner of a [`PacketListener`] accepts them.
const BACKLOG: i32 = 64;

/// Error of sending or receiving a packet, or of making a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// A system call failed.
    #[error("{operation} failed: {source}")]
    System {
        /// The operation that failed, with its values.
        operation: String,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A packet outside of the bounds, in either direction.
    #[error("{0}")]
    Protocol(String),
    /// The peer has closed its end.
    #[error("the peer has closed the connection")]
    PeerGone,
    /// The time limit passed before a packet was received or sent.
    #[error("no packet passed within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

impl PacketError {
    fn system(operation: impl Into<String>, errno: Errno) -> PacketError {
        PacketError::System { operation: operation.into(), source: errno.into() }
    }
}

impl From<PacketError> for Error {
    fn from(error: PacketError) -> Error {
        let code = match &error {
            PacketError::System { operation, source } => {
                return Error::of_system(format_args!("{operation} failed"), source);
            }
            PacketError::Protocol(_) => Code::Protocol,
            PacketError::PeerGone | PacketError::TimedOut(_) => Code::AgentUnreachable,
        };
        Error::new(code, error.to_string())
    }
}

/// One received message.
#[derive(Debug)]
pub struct Packet {
    /// 1 to [`MAX_PACKET_BYTES`] bytes.
    pub bytes: Vec<u8>,
    /// The descriptors sent beside the bytes, in the sender's order; at most [`MAX_PACKET_FDS`].
    pub fds: Vec<OwnedFd>,
}

/// One end of a connection that carries packets.
///
/// ```
/// use sublet_fabric::packet::PacketSocket;
///
/// let (here, there) = PacketSocket::pair()?;
/// here.send(b"hello", &[])?;
/// assert_eq!(there.receive(None)?.map(|packet| packet.bytes), Some(b"hello".to_vec()));
/// drop(here);
/// assert!(there.receive(None)?.is_none());
/// # Ok::<(), sublet_fabric::packet::PacketError>(())
/// ```
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Two connected ends.
    pub fn pair() -> Result<(PacketSocket, PacketSocket), PacketError> {
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map(|(a, b)| (PacketSocket { fd: a }, PacketSocket { fd: b }))
            .map_err(|errno| PacketError::system("socketpair", errno))
    }

    /// Connects to the [`PacketListener`] at `path`.
    pub fn connect(path: impl AsRef<Path>) -> Result<PacketSocket, PacketError> {
        let path = path.as_ref();
        let (_reached, address) = unix_address(path)?;
        let fd = unix_socket()?;
        retry_on_intr(|| rustix::net::connect(&fd, &address))
            .map_err(|errno| PacketError::system(format!("connecting to {}", path.display()), errno))?;
        Ok(PacketSocket { fd })
    }

    /// Ends the connection, and wakes every thread that waits on it at either end.
    pub fn shutdown(&self) {
        // A connection that has ended already stays so.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Whether the peer is gone. Packets that it sent before may still be unread.
    pub fn is_closed(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::empty())];
        matches!(poll(&mut polled, Some(&Timespec::default())), Ok(1..))
    }

    /// Sends one packet. While the peer's queue is full, waits for up to the [send timeout].
    ///
    /// [send timeout]: PacketSocket::set_send_timeout
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
        self.send_with(bytes, fds, SendFlags::NOSIGNAL)
    }

    /// Sends a packet like [`PacketSocket::send`] without waiting: a full queue is [`PacketError::TimedOut`] at once.
    pub fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), PacketError> {
        match self.send_with(bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Err(PacketError::TimedOut(_)) => Err(PacketError::TimedOut(Duration::ZERO)),
            sent => sent,
        }
    }

    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> Result<(), PacketError> {
        check_bounds(bytes.len(), fds.len())?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(PacketError::Protocol(format!("{} descriptors do not fit a packet", fds.len())));
        }
        let parts = [IoSlice::new(bytes)];
        match retry_on_intr(|| rustix::net::sendmsg(&self.fd, &parts, &mut control, flags)) {
            Ok(_) => Ok(()),
            Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Err(PacketError::PeerGone),
            Err(Errno::AGAIN) => Err(PacketError::TimedOut(self.send_timeout())),
            Err(errno) => Err(PacketError::system(format!("sending {} bytes", bytes.len()), errno)),
        }
    }

    /// Receives the next packet; `None` once the peer is gone and everything it sent has been received.
    ///
    /// Waits without limit, or until `timeout` has passed ([`PacketError::TimedOut`]).
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Packet>, PacketError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while self.readable_until(deadline)? {
            if let Some(received) = self.receive_once() {
                return received;
            }
        }
        Err(PacketError::TimedOut(timeout.unwrap_or(Duration::MAX)))
    }

    /// Sets the longest time that [`PacketSocket::send`] waits for a peer that does not receive.
    pub fn set_send_timeout(&self, timeout: Duration) -> Result<(), PacketError> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, Some(timeout))
            .map_err(|errno| PacketError::system(format!("setting a send timeout of {timeout:?}"), errno))
    }

    /// The user of the process that made the other end.
    pub fn peer_uid(&self) -> Result<u32, PacketError> {
        // A process in a PID namespace that this one does not see has the number 0, which rustix does not accept as a
        // process.
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        #[expect(clippy::cast_possible_truncation, reason = "the structure has a few bytes")]
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: the descriptor is open; `peer` has the `len` bytes that the kernel may write, any of which make a `ucred`, and both
        // live throughout the call.
        let told = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut len,
            )
        };
        if told != 0 {
            let source = std::io::Error::last_os_error();
            return Err(PacketError::System { operation: "reading the peer's credentials".into(), source });
        }
        Ok(peer.uid)
    }

    fn send_timeout(&self) -> Duration {
        sockopt::socket_timeout(&self.fd, sockopt::Timeout::Send).ok().flatten().unwrap_or_default()
    }

    /// Whether something can be received, or the peer is gone, before the deadline.
    fn readable_until(&self, deadline: Option<Instant>) -> Result<bool, PacketError> {
        loop {
            // A time that the kernel cannot represent means no limit.
            let left = deadline.and_then(|deadline| {
                Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()
            });
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], left.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(PacketError::system("waiting for a packet", errno)),
            }
        }
    }

    /// Receives without waiting. `None` if the caller must try again: another holder of this socket was faster, or the
    /// peer's end was reset.
    fn receive_once(&self) -> Option<Result<Option<Packet>, PacketError>> {
        let mut bytes = vec![0; MAX_PACKET_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = retry_on_intr(|| {
            rustix::net::recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)
        });
        let fds = take_fds(&mut control);
        match received {
            Ok(message) => Some(packet(message, bytes, fds)),
            // The peer closed its end while one of our packets was still unread there. The kernel reports this once,
            // before the peer's last packets: the next call finds those, or the end.
            Err(Errno::AGAIN | Errno::CONNRESET) => None,
            Err(errno) => Some(Err(PacketError::system("receiving a packet", errno))),
        }
    }
}

impl From<OwnedFd> for PacketSocket {
    /// Takes a connected sequenced-packet socket, such as one that was inherited or received.
    fn from(fd: OwnedFd) -> PacketSocket {
        PacketSocket { fd }
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> OwnedFd {
        socket.fd
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A socket in the file system to which other processes connect. The path is removed when this is dropped.
#[derive(Debug)]
pub struct PacketListener {
    fd: OwnedFd,
    path: PathBuf,
}

impl PacketListener {
    /// Listens at `path`, which only this user may use. Replaces a socket that a dead process left there, and keeps one
    /// that answers.
    pub fn listen(path: impl Into<PathBuf>) -> Result<PacketListener, PacketError> {
        let path = path.into();
        let failed = |errno| PacketError::system(format!("listening at {}", path.display()), errno);
        let (_reached, address) = unix_address(&path)?;
        let fd = unix_socket()?;
        match rustix::net::bind(&fd, &address) {
            Err(Errno::ADDRINUSE) if is_abandoned(&path) => {
                unlink(&path).map_err(failed)?;
                rustix::net::bind(&fd, &address).map_err(failed)?;
            }
            bound => bound.map_err(failed)?,
        }
        // No process can connect before `listen`, so the mode holds from the first connection on.
        chmod(&path, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        rustix::net::listen(&fd, BACKLOG).map_err(failed)?;
        Ok(PacketListener { fd, path })
    }

    /// Accepts the next connection.
    pub fn accept(&self) -> Result<PacketSocket, PacketError> {
        retry_on_intr(|| rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC))
            .map(|fd| PacketSocket { fd })
            .map_err(|errno| PacketError::system(format!("accepting at {}", self.path.display()), errno))
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for PacketListener {
    fn drop(&mut self) {
        // Another process may have removed the path already.
        let _ = unlink(&self.path);
    }
}

/// Makes a socket address of a path. The address is valid while the [`SocketPath`] lives.
fn unix_address(path: &Path) -> Result<(SocketPath, SocketAddrUnix), PacketError> {
    let failed = |source| PacketError::System {
        operation: format!("using {} as a socket's path", path.display()),
        source,
    };
    let reached = SocketPath::of(path).map_err(failed)?;
    let address = SocketAddrUnix::new(reached.as_path()).map_err(|errno| failed(errno.into()))?;
    Ok((reached, address))
}

fn unix_socket() -> Result<OwnedFd, PacketError> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|errno| PacketError::system("making a socket", errno))
}

/// Whether `path` is a socket on which no process listens.
fn is_abandoned(path: &Path) -> bool {
    // The system refuses a connection to a plain file as well.
    if !lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket) {
        return false;
    }
    let (Ok((_reached, address)), Ok(fd)) = (unix_address(path), unix_socket()) else { return false };
    retry_on_intr(|| rustix::net::connect(&fd, &address)) == Err(Errno::CONNREFUSED)
}

fn check_bounds(bytes: usize, fds: usize) -> Result<(), PacketError> {
    if bytes == 0 || bytes > MAX_PACKET_BYTES {
        return Err(PacketError::Protocol(format!(
            "a packet has 1 to {MAX_PACKET_BYTES} bytes, not {bytes}"
        )));
    }
    if fds > MAX_PACKET_FDS {
        return Err(PacketError::Protocol(format!(
            "a packet has at most {MAX_PACKET_FDS} descriptors, not {fds}"
        )));
    }
    Ok(())
}

fn take_fds(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    fds
}

/// Makes a packet of a received message. `None` if it has no bytes, which means that the peer is gone, as no packet is
/// empty.
fn packet(message: RecvMsg, mut bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Result<Option<Packet>, PacketError> {
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(PacketError::Protocol(format!(
            "a packet of more than {MAX_PACKET_BYTES} bytes was received"
        )));
    }
    // The control buffer is aligned generously: a few more than asked for may fit it.
    // The kernel leaves out the descriptors that do not fit, and those that this process may not open.
    let is_cut = message.flags.contains(ReturnFlags::CTRUNC);
    if fds.len() + usize::from(is_cut) > MAX_PACKET_FDS {
        return Err(PacketError::Protocol(format!(
            "a packet with more than {MAX_PACKET_FDS} descriptors was received"
        )));
    }
    if is_cut {
        return Err(PacketError::system("receiving the descriptors of a packet", Errno::MFILE));
    }
    if message.bytes == 0 {
        return Ok(None);
    }
    bytes.truncate(message.bytes);
    bytes.shrink_to_fit();
    Ok(Some(Packet { bytes, fds }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, metadata};
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::PermissionsExt;

    /// A folder that is removed with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("sublet-packet-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn memory_file(content: &[u8]) -> File {
        let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(fd);
        file.write_all(content).unwrap();
        file
    }

    /// Sends a packet without this module's checks.
    fn send_raw(socket: &PacketSocket, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PACKET_FDS + 1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        rustix::net::sendmsg(&socket.fd, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    #[test]
    fn packets_keep_their_bounds_order_and_descriptors() {
        let (here, there) = PacketSocket::pair().unwrap();
        let file = memory_file(b"inside");
        here.send(b"one", &[file.as_fd()]).unwrap();
        here.send(&[2; MAX_PACKET_BYTES], &[]).unwrap();
        let mut first = there.receive(None).unwrap().unwrap();
        assert_eq!((first.bytes.as_slice(), first.fds.len()), (&b"one"[..], 1));
        let mut received = File::from(first.fds.remove(0));
        received.rewind().unwrap();
        let mut content = String::new();
        received.read_to_string(&mut content).unwrap();
        assert_eq!(content, "inside");
        let second = there.receive(Some(Duration::from_secs(180))).unwrap().unwrap();
        assert_eq!((second.bytes.len(), second.fds.len()), (MAX_PACKET_BYTES, 0));
    }

    #[test]
    fn received_descriptors_are_closed_on_exec() {
        let (here, there) = PacketSocket::pair().unwrap();
        here.send(b"x", &[memory_file(b"").as_fd()]).unwrap();
        let packet = there.receive(None).unwrap().unwrap();
        let flags = rustix::io::fcntl_getfd(&packet.fds[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn a_packet_outside_the_bounds_is_not_sent() {
        let (here, _there) = PacketSocket::pair().unwrap();
        let file = memory_file(b"");
        for (bytes, fds) in [(0, 0), (MAX_PACKET_BYTES + 1, 0), (1, MAX_PACKET_FDS + 1)] {
            let sent = here.send(&vec![0; bytes], &vec![file.as_fd(); fds]);
            assert!(
                matches!(sent, Err(PacketError::Protocol(_))),
                "{bytes} bytes, {fds} descriptors: {sent:?}"
            );
        }
    }

    #[test]
    fn refuses_packet_outside_the_bounds_and_receives_the_next() {
        let (here, there) = PacketSocket::pair().unwrap();
        let file = memory_file(b"");
        send_raw(&here, &vec![0; MAX_PACKET_BYTES + 1], &[file.as_fd()]);
        send_raw(&here, b"y", &[file.as_fd(); MAX_PACKET_FDS + 1]);
        here.send(b"z", &[]).unwrap();
        for _ in 0..2 {
            let received = there.receive(None);
            assert!(matches!(received, Err(PacketError::Protocol(_))), "{received:?}");
        }
        assert_eq!(there.receive(None).unwrap().unwrap().bytes, b"z");
    }

    #[test]
    fn lost_peer_is_an_end_and_raises_no_signal() {
        let (here, there) = PacketSocket::pair().unwrap();
        here.send(b"unread", &[]).unwrap();
        drop(there);
        assert!(here.receive(None).unwrap().is_none());
        assert!(matches!(here.send(b"x", &[]), Err(PacketError::PeerGone)));
    }

    #[test]
    fn receives_last_packets_of_a_peer_that_did_not_read() {
        let (here, there) = PacketSocket::pair().unwrap();
        here.send(b"unread", &[]).unwrap();
        there.send(b"no", &[]).unwrap();
        drop(there);
        assert_eq!(here.receive(Some(Duration::from_secs(180))).unwrap().unwrap().bytes, b"no");
        assert!(here.receive(None).unwrap().is_none());
    }

    #[test]
    fn receiving_ends_at_its_timeout() {
        let (here, _there) = PacketSocket::pair().unwrap();
        let timeout = Duration::from_millis(20);
        let start = Instant::now();
        assert!(matches!(here.receive(Some(timeout)), Err(PacketError::TimedOut(_))));
        assert!(start.elapsed() >= timeout);
    }

    #[test]
    fn send_to_a_peer_that_does_not_receive_times_out() {
        let (here, _there) = PacketSocket::pair().unwrap();
        here.set_send_timeout(Duration::from_millis(20)).unwrap();
        let filled = (0..10_000).find_map(|_| here.send(&[0; MAX_PACKET_BYTES], &[]).err());
        assert!(
            matches!(filled, Some(PacketError::TimedOut(timeout)) if timeout.as_millis() == 20),
            "{filled:?}"
        );
    }

    #[test]
    fn listener_is_private_names_peers_and_removes_its_path() {
        let folder = Folder::new("private");
        let path = folder.0.join("agent.sock");
        let listener = PacketListener::listen(&path).unwrap();
        assert_eq!(metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let client = PacketSocket::connect(&path).unwrap();
        let server = listener.accept().unwrap();
        assert_eq!(server.peer_uid().unwrap(), rustix::process::getuid().as_raw());
        client.send(b"hello", &[]).unwrap();
        assert_eq!(server.receive(None).unwrap().unwrap().bytes, b"hello");
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn replaces_an_abandoned_socket_and_keeps_a_living_one() {
        let folder = Folder::new("abandoned");
        let path = folder.0.join("agent.sock");
        let first = PacketListener::listen(&path).unwrap();
        assert!(PacketListener::listen(&path).is_err());
        // As after a crash: the descriptor is closed, the path stays.
        let kept = path.with_extension("kept");
        std::fs::hard_link(&path, &kept).unwrap();
        drop(first);
        std::fs::rename(&kept, &path).unwrap();
        let second = PacketListener::listen(&path).unwrap();
        PacketSocket::connect(&path).unwrap();
        second.accept().unwrap();
    }

    #[test]
    fn keeps_an_existing_file_and_names_too_long_a_path() {
        let folder = Folder::new("way");
        let path = folder.0.join("file");
        std::fs::write(&path, "precious").unwrap();
        PacketListener::listen(&path).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let long = PathBuf::from("/tmp").join("x".repeat(200));
        assert!(PacketListener::listen(&long).unwrap_err().to_string().contains("xxx"));
    }
}
