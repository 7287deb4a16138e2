//! Starts a connection between nodes: in the clear, with a greeting of fixed size and its answer.
//!
//! The one who connects says what the connection is for, and the agent answers whether it may be. Control connections go
//! on with TLS and prove themselves there. A data connection proves that it belongs to a lease: its greeting is signed
//! (HMAC-SHA-256) with the secret that the lease's control connection gave out, and it carries a counter, so that a
//! recorded greeting is worth nothing ([`Counters`]). One for a bridge proves in the same way, with the secret of two neighbours,
//! that the one may ask the other to pass on what it says to a third; what it says then begins with a greeting again. The rest of a data connection over plain TCP is not protected
//! from whoever can change what is under way; see docs/security.md.
//!
//! Invariants:
//! - A greeting has [`HELLO_BYTES`] bytes and its answer [`ANSWER_BYTES`]; nothing is read beyond them. Both begin with
//!   the magic and the version in every version of this protocol, so that each end can name both versions.
//! - What is not Sublet's is seen by its first wrong byte, and is answered nothing.
//! - All of it takes at most [`PATIENCE`], however slowly the other end speaks.

use std::io::IoSlice;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::net::sockopt;
use sublet_proto::{Code, Error};

use crate::{FabricError, socket};

mod connect;
mod counters;
mod wire;

pub use connect::{check_interface, dial};
pub use counters::Counters;
pub use wire::{ANSWER_BYTES, Answer, BridgeLink, DataLink, Greeting, HELLO_BYTES, Kind, Secret, VERSION};

/// How long a greeting and its answer may take, each.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// After so long without an acknowledgement by the other end's kernel a control connection is given up.
pub const SILENCE: Duration = Duration::from_millis(800);
/// From one sign of life on a control connection to the next, of each end: so the other end's kernel always has something
/// to acknowledge, and the other end's process something to hear, several times within [`SILENCE`].
pub const PULSE: Duration = Duration::from_millis(250);
/// Of a longer greeting of another version: what is read away, so that the answer is not lost with the connection.
const REST_BYTES: usize = 1024;

/// Greets the agent at the other end, and waits for its answer. `secret` is the lease's, for data.
pub fn greet(socket: &TcpStream, kind: &Kind, secret: Option<&Secret>) -> Result<(), Error> {
    greet_until(socket, kind, secret, Instant::now() + PATIENCE)
}

fn greet_until(
    socket: &TcpStream,
    kind: &Kind,
    secret: Option<&Secret>,
    deadline: Instant,
) -> Result<(), Error> {
    let peer = Peer { socket, who: Who::Agent };
    let hello = wire::hello(kind, secret)?;
    peer.write(&hello, deadline)?;
    let mut answer = [0; ANSWER_BYTES];
    peer.read(&mut answer, deadline)?;
    settle(socket, kind)?;
    match Answer::decode(&answer)?.refusal {
        None => Ok(()),
        Some(error) => Err(Error::new(error.code, format!("{} refused: {}", peer.name(), error.message))),
    }
}

impl Greeting {
    /// The greeting of whoever has connected. One of another version is told so.
    pub fn receive(socket: &TcpStream) -> Result<Greeting, Error> {
        let peer = Peer { socket, who: Who::Client };
        let mut hello = [0; HELLO_BYTES];
        let received =
            peer.read(&mut hello, Instant::now() + PATIENCE).and_then(|()| Greeting::decode(&hello));
        if let Err(error) = &received
            && error.code == Code::VersionMismatch
        {
            turn_away(socket, error);
        }
        received
    }

    /// Lets the other end go on.
    pub fn accept(&self, socket: &TcpStream) -> Result<(), Error> {
        settle(socket, &self.kind)?;
        let answer = Answer { refusal: None }.encode();
        Peer { socket, who: Who::Client }.write(&answer, Instant::now() + PATIENCE)
    }

    /// Tells the other end why it may not go on. The connection is to be dropped then.
    pub fn refuse(&self, socket: &TcpStream, error: &Error) {
        turn_away(socket, error);
    }
}

/// Makes a socket one of Sublet's: what is sent goes out at once, an other end that is out of reach is noticed within
/// about a second ([`SILENCE`]), and programs that are started do not inherit it.
pub fn prepare(socket: &TcpStream) -> Result<(), FabricError> {
    let failed = |errno| FabricError::system("preparing a TCP connection", errno);
    sockopt::set_tcp_nodelay(socket, true).map_err(failed)?;
    sockopt::set_tcp_user_timeout(socket, SILENCE.as_millis() as u32).map_err(failed)?;
    let flags = fcntl_getfd(socket).map_err(failed)?;
    fcntl_setfd(socket, flags | FdFlags::CLOEXEC).map_err(failed)
}

/// The kernel's limit on silence also ends a connection whose peer acknowledges, but has no room: a worker that computes
/// for a second while its client sends much. So it holds for control connections only, and these watch over the data
/// connections beside them.
fn settle(socket: &TcpStream, kind: &Kind) -> Result<(), Error> {
    if let Kind::Control = kind { Ok(()) } else { prepare_for_data(socket) }
}

/// See [`settle`].
///
/// # Errors
/// `system_error`.
pub fn prepare_for_data(socket: &TcpStream) -> Result<(), Error> {
    let set = sockopt::set_tcp_user_timeout(socket, 0);
    Ok(set.map_err(|errno| FabricError::system("preparing a TCP connection for data", errno))?)
}

/// Tells whoever has connected why it may not, heard or unheard, and waits for nothing: whoever does not listen has had
/// its answer. The connection is to be dropped then.
pub fn turn_away(socket: &TcpStream, error: &Error) {
    let answer = Answer { refusal: Some(error.clone()) }.encode();
    let _ = socket::send(socket, &[IoSlice::new(&answer)]);
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket::receive(socket, &mut [0; REST_BYTES]);
}

/// The other end, as messages name it.
struct Peer<'a> {
    socket: &'a TcpStream,
    who: Who,
}

#[derive(Clone, Copy)]
enum Who {
    Agent,
    Client,
}

impl Peer<'_> {
    fn name(&self) -> String {
        let who = match self.who {
            Who::Agent => "the agent",
            Who::Client => "a client",
        };
        match self.socket.peer_addr() {
            Ok(address) => format!("{who} at {address}"),
            Err(_) => format!("{who} that is gone"),
        }
    }

    fn gone(&self, what: impl std::fmt::Display) -> Error {
        let code = match self.who {
            Who::Agent => Code::AgentUnreachable,
            Who::Client => Code::Protocol,
        };
        Error::new(code, format!("{} {what}", self.name()))
    }

    fn write(&self, mut bytes: &[u8], deadline: Instant) -> Result<(), Error> {
        while !bytes.is_empty() {
            match socket::send(self.socket, &[IoSlice::new(bytes)]) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, deadline, "took no greeting")?;
                }
                Err(error) => return Err(self.gone(format!("cannot be greeted: {error}"))),
            }
        }
        Ok(())
    }

    /// Fills `bytes`, and looks at their beginning with each piece that comes.
    fn read(&self, bytes: &mut [u8], deadline: Instant) -> Result<(), Error> {
        let mut filled = 0;
        while filled < bytes.len() {
            match socket::receive(self.socket, &mut bytes[filled..]) {
                Ok(0) => return Err(self.gone("closed the connection before it had greeted")),
                Ok(received) => {
                    filled += received;
                    wire::check_beginning(&bytes[..filled], &|| self.name())?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::IN, deadline, "sent no greeting")?;
                }
                Err(error) => return Err(self.gone(format!("is gone: {error}"))),
            }
        }
        Ok(())
    }

    fn wait(&self, flags: PollFlags, deadline: Instant, what: &str) -> Result<(), Error> {
        match socket::wait(self.socket, flags, Some(deadline)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.gone(format!("{what} in time (at most {} s)", PATIENCE.as_secs()))),
            Err(error) => Err(FabricError::system("waiting for a greeting", error).into()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
