//! Implements the XPU interface (Molecule 3.2-3.4): processes of several processing units of one computer that know
//! each other by global ids, hold capabilities, and are connected by FIFOs.
//!
//! A process is started by an agent: a worker process of a lease, or a program that another process has spawned. It has
//! a socket to its agent's *shim* and [enters](Process::enter). From then on it has a global id, and makes calls by
//! lines in a page that it shares with the shim ([`wire`]). Messages in a FIFO pass between the two processes only
//! ([`fifo`]).
//!
//! Invariants:
//! - A process shares its page only with the shim, so a process that corrupts it harms only itself.
//! - The shim checks the rights of a process at each call. Messages on a connection are not checked, but each one is
//!   preceded by a check whether the connection was cut.
//! - Reading and writing have neither system calls, allocations nor locks while the other end is awake and the ring has
//!   space.

#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

#[doc(hidden)]
pub mod c;
pub mod capability;
pub mod chain;
pub mod executor;
pub mod fifo;
mod process;
mod shim_messages;
pub mod wire;

pub use capability::{FifoRights, GlobalId};
pub use chain::Chain;
pub use executor::{BufferName, Execute, Executor, InputSource, OutputSink, ServedExecutor};
pub use fifo::{FifoShape, Reader, Unread, Writer};
pub use process::{Process, Spawn};
pub use sublet_fabric::{SharedBytes, SharedBytesMut};

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock};

use sublet_fabric::packet::PacketSocket;
use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

/// Variable that gives a spawned program the descriptor's number of its socket.
pub const VARIABLE: &str = "SUBLET_XPU_FD";

static SOCKET: Mutex<Option<PacketSocket>> = Mutex::new(None);
static PROCESS: OnceLock<Result<Process, Error>> = OnceLock::new();

/// Sets the socket by which this process enters when it first uses the interface.
pub fn provide(socket: PacketSocket) {
    *lock(&SOCKET) = Some(socket);
}

/// This process, which enters now if it has not.
///
/// # Errors
/// `invalid_argument` in a process that no agent has started; else as [`Process::enter`], each time.
pub fn process() -> Result<&'static Process, Error> {
    PROCESS.get_or_init(enter).as_ref().map_err(Error::clone)
}

/// Keeps the socket for the program that this process executes next, which finds it by [`VARIABLE`]. Returns its
/// number, if there is one.
///
/// # Errors
/// `system_error`.
pub fn pass_on() -> Result<Option<i32>, Error> {
    let Some(socket) = take() else { return Ok(None) };
    let kept = rustix::io::fcntl_setfd(socket.as_fd(), rustix::io::FdFlags::empty());
    kept.map_err(|errno| Error::new(Code::System, format!("keeping the shim's socket: {errno}")))?;
    Ok(Some(OwnedFd::from(socket).into_raw_fd()))
}

fn take() -> Option<PacketSocket> {
    lock(&SOCKET).take()
}

/// The socket with which this program was executed, once.
fn inherited() -> Option<PacketSocket> {
    let number: i32 = std::env::var(VARIABLE).ok()?.parse().ok().filter(|number| *number > 2)?;
    // SAFETY: nothing is taken but a socket of the kind that agents make, under the number that was left for this.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::net::sockopt::socket_type(fd).ok().filter(|kind| *kind == rustix::net::SocketType::SEQPACKET)?;
    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).ok()?;
    // SAFETY: it is open, as was just checked, and was left only for this; it is taken once, when the process enters.
    Some(PacketSocket::from(unsafe { OwnedFd::from_raw_fd(number) }))
}

fn enter() -> Result<Process, Error> {
    let provided = take().or_else(inherited);
    let socket = provided.ok_or_else(|| {
        let message = "this process has no processing unit's shim: it was not started by an agent";
        Error::new(Code::InvalidArgument, message)
    })?;
    Process::enter(socket)
}
