//! Starts a connection between nodes with a greeting of fixed size and its answer, both unencrypted.
//!
//! The client states the purpose of the connection, and the agent answers whether it is permitted. Control connections
//! continue with TLS and authenticate there.
//!
//! A data connection proves that it belongs to a lease: its greeting is signed (HMAC-SHA-256) with the secret that the
//! lease's control connection delivered. The greeting carries a counter, so that a recorded greeting cannot be used
//! again ([`Counters`]). The rest of a data connection over plain TCP is not protected from an attacker who can change
//! its packets; see docs/security.md.
//!
//! A bridge connection proves in the same way, with the secret of two neighbours, that the one may ask the other to
//! forward its bytes to a third node. The forwarded bytes begin with a greeting again.
//!
//! Invariants:
//! - A greeting has [`HELLO_BYTES`] bytes and its answer [`ANSWER_BYTES`]; nothing is read beyond them. Both begin with
//!   the magic and the version in every version of this protocol, so that each end can name both versions.
//! - Input that is not Sublet's is detected by its first wrong byte, and gets no answer.
//! - Greeting and answer take at most [`PATIENCE`] each, however slowly the other end sends.

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
pub use wire::{
    ANSWER_BYTES, BridgeLink, ConnectionPurpose, DataLink, Greeting, GreetingAnswer, HELLO_BYTES, Secret,
    VERSION,
};

/// How long a greeting and its answer may take, each.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Time without an acknowledgement by the other end's kernel after which a control connection is given up.
pub const SILENCE: Duration = Duration::from_millis(800);
/// Interval in which each end of a control connection sends a sign of life. Thus the other end's kernel has something
/// to acknowledge, and its process something to receive, several times within [`SILENCE`].
pub const PULSE: Duration = Duration::from_millis(250);
/// Most bytes to read and discard from a longer greeting of another version, so that the answer is not lost when the
/// connection closes.
const REST_BYTES: usize = 1024;

/// Greets the agent at the other end, and waits for its answer. `secret` is the lease's, for data.
pub fn greet(socket: &TcpStream, kind: &ConnectionPurpose, secret: Option<&Secret>) -> Result<(), Error> {
    greet_until(socket, kind, secret, Instant::now() + PATIENCE)
}

fn greet_until(
    socket: &TcpStream,
    kind: &ConnectionPurpose,
    secret: Option<&Secret>,
    deadline: Instant,
) -> Result<(), Error> {
    let peer = GreetingPeer { socket, who: GreetingParty::Agent };
    let hello = wire::hello(kind, secret)?;
    peer.write(&hello, deadline)?;
    let mut answer = [0; ANSWER_BYTES];
    peer.read(&mut answer, deadline)?;
    settle(socket, kind)?;
    match GreetingAnswer::decode(&answer)?.refusal {
        None => Ok(()),
        Some(error) => Err(Error::new(error.code, format!("{} refused: {}", peer.name(), error.message))),
    }
}

impl Greeting {
    /// Receives the greeting of a client. A client of another version gets an answer that names both versions.
    pub fn receive(socket: &TcpStream) -> Result<Greeting, Error> {
        let peer = GreetingPeer { socket, who: GreetingParty::Client };
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

    /// Accepts the connection, and tells the other end that it may continue.
    pub fn accept(&self, socket: &TcpStream) -> Result<(), Error> {
        settle(socket, &self.kind)?;
        let answer = GreetingAnswer { refusal: None }.encode();
        GreetingPeer { socket, who: GreetingParty::Client }.write(&answer, Instant::now() + PATIENCE)
    }

    /// Tells the other end why the connection is refused. The caller must drop the connection then.
    pub fn refuse(&self, socket: &TcpStream, error: &Error) {
        turn_away(socket, error);
    }
}

/// Prepares a socket for Sublet: data is sent at once, an unreachable other end is noticed within about a second
/// ([`SILENCE`]), and started programs do not inherit the socket.
pub fn prepare(socket: &TcpStream) -> Result<(), FabricError> {
    let failed = |errno| FabricError::system("preparing a TCP connection", errno);
    sockopt::set_tcp_nodelay(socket, true).map_err(failed)?;
    let silence_ms = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, silence_ms).map_err(failed)?;
    let flags = fcntl_getfd(socket).map_err(failed)?;
    fcntl_setfd(socket, flags | FdFlags::CLOEXEC).map_err(failed)
}

/// Removes the kernel's limit on silence from sockets that are not control connections. The limit also ends a
/// connection whose peer acknowledges but cannot buffer more: a worker that computes for a second while its client
/// sends much. Control connections keep the limit, and detect a lost peer for the data connections beside them.
fn settle(socket: &TcpStream, kind: &ConnectionPurpose) -> Result<(), Error> {
    if let ConnectionPurpose::Control = kind { Ok(()) } else { prepare_for_data(socket) }
}

/// Removes the kernel's limit on silence from a data connection; see [`settle`].
///
/// # Errors
/// `system_error`.
pub fn prepare_for_data(socket: &TcpStream) -> Result<(), Error> {
    let set = sockopt::set_tcp_user_timeout(socket, 0);
    Ok(set.map_err(|errno| FabricError::system("preparing a TCP connection for data", errno))?)
}

/// Tells a client why the connection is refused, whether its greeting was received or not. Waits for nothing: a client
/// that does not read loses the answer. The caller must drop the connection then.
pub fn turn_away(socket: &TcpStream, error: &Error) {
    let answer = GreetingAnswer { refusal: Some(error.clone()) }.encode();
    let _ = socket::send(socket, &[IoSlice::new(&answer)]);
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket::receive(socket, &mut [0; REST_BYTES]);
}

/// The other end, with the name that messages use.
struct GreetingPeer<'a> {
    socket: &'a TcpStream,
    who: GreetingParty,
}

#[derive(Clone, Copy)]
enum GreetingParty {
    Agent,
    Client,
}

impl GreetingPeer<'_> {
    fn name(&self) -> String {
        let who = match self.who {
            GreetingParty::Agent => "the agent",
            GreetingParty::Client => "a client",
        };
        match self.socket.peer_addr() {
            Ok(address) => format!("{who} at {address}"),
            Err(_) => format!("{who} that is gone"),
        }
    }

    fn gone(&self, what: impl std::fmt::Display) -> Error {
        let code = match self.who {
            GreetingParty::Agent => Code::AgentUnreachable,
            GreetingParty::Client => Code::Protocol,
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

    /// Fills `bytes`, and checks their beginning after each received piece.
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
