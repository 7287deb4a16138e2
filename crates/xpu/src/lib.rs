//! The XPU interface (Molecule 3.2-3.4): processes of several processing units of one computer that know each other by global
//! ids, hold capabilities, and are connected by FIFOs.
//!
//! A process is what an agent has started: a worker process of a lease. It
//! has a socket to its agent's *shim* and [enters](Process::enter); then it has a global id, and makes calls by lines in a
//! page that it shares with the shim ([`wire`]). What a FIFO carries passes between the two processes alone ([`fifo`]).
//!
//! Invariants:
//! - A process shares its page with the shim and nobody else, so whoever scribbles over it harms itself.
//! - What a process may do is checked by the shim, at each call; what is sent over a connection is not, but a connection that is
//!   cut is looked at before each message.
//! - Reading and writing have neither system calls, allocations nor locks while the other end is awake and there is room.

#![allow(unsafe_code)]

#[doc(hidden)]
pub mod c;
pub mod capability;
pub mod fifo;
mod process;
pub mod wire;

pub use capability::{GlobalId, Rights};
pub use fifo::{FifoShape, Reader, Unread, Writer};
pub use process::Process;

use std::sync::{Mutex, OnceLock};

use sublet_fabric::packet::PacketSocket;
use sublet_proto::{Code, Error};

static SOCKET: Mutex<Option<PacketSocket>> = Mutex::new(None);
static PROCESS: OnceLock<Result<Process, Error>> = OnceLock::new();

/// Says by which socket this process enters when it first wants to.
pub fn provide(socket: PacketSocket) {
    *SOCKET.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(socket);
}

/// This process, which enters now if it has not.
///
/// # Errors
/// `invalid_argument` in a process that no agent has started; else as [`Process::enter`], each time.
pub fn process() -> Result<&'static Process, Error> {
    PROCESS.get_or_init(enter).as_ref().map_err(Error::clone)
}

fn enter() -> Result<Process, Error> {
    let provided = SOCKET.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    let socket = provided.ok_or_else(|| {
        let message = "this process has no processing unit's shim: it was not started by an agent";
        Error::new(Code::InvalidArgument, message)
    })?;
    Process::enter(socket)
}
