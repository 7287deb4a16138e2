//! Messages over TLS: the equivalent of packets for a client and an agent on different machines.
//!
//! A message is its length (a `u32`, little-endian) and 1 to [`MAX_PACKET_BYTES`] bytes, without descriptors. Otherwise
//! the behaviour is that of a [`PacketSocket`](crate::packet::PacketSocket): a message arrives whole or not at all, and
//! a peer that is gone, for whatever reason, is reported as the end after its last messages.
//!
//! Invariants:
//! - One thread may receive while others send. No thread holds the session's lock while it sleeps.
//! - A send waits at most for the send timeout, and sends no part of a message before it has accepted the whole
//!   message.
//! - After a message outside of the bounds, or bytes that TLS refuses, nothing more is received.

use std::io::{self, ErrorKind, IoSlice};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use sublet_proto::MAX_PACKET_BYTES;

use crate::greeting::{SILENCE, prepare};
use crate::packet::{Packet, PacketError};
use crate::sync::{Mutex, lock};
use crate::tls::{Identity, TlsStream};
use crate::{FabricError, socket};

const LENGTH_BYTES: usize = size_of::<u32>();
/// Number of bytes taken out of TLS at once.
const PIECE_BYTES: usize = 4096;

/// One end of a connection between nodes that carries messages.
///
/// A message may be buffered inside: after poll(2) reports the descriptor as readable, receive with a timeout of zero
/// until that returns [`PacketError::TimedOut`].
pub struct RemoteSocket {
    tcp: Arc<TcpStream>,
    /// Locked by the sending thread, from the first byte of a message to the last.
    sending: Mutex<()>,
    state: Box<Mutex<State>>,
    send_timeout: Mutex<Option<Duration>>,
}

struct State {
    tls: TlsStream,
    frames: FrameSplitter,
    /// Reason why nothing more will be received.
    end: Option<RemoteEnd>,
    /// Reason why nothing more can be sent, if that was found before the end: the system reports it only once.
    unsendable: Option<String>,
}

#[derive(Clone)]
enum RemoteEnd {
    Gone(String),
    Refused(String),
}

impl RemoteSocket {
    /// Opens the connection as a client: TLS with the owner of this certificate (DER), after the greeting.
    pub fn connect(tcp: TcpStream, certificate: &[u8]) -> Result<RemoteSocket, FabricError> {
        prepare(&tcp)?;
        Ok(RemoteSocket::new(TlsStream::client(tcp, certificate)?))
    }

    /// Opens the connection as an agent: TLS with a client, after its greeting.
    pub fn accept(tcp: TcpStream, identity: &Identity) -> Result<RemoteSocket, FabricError> {
        prepare(&tcp)?;
        Ok(RemoteSocket::new(TlsStream::server(tcp, identity)?))
    }

    /// Sends one message. While the connection is full, waits for up to the [send timeout]. After
    /// [`PacketError::TimedOut`] the message may still arrive, whole.
    ///
    /// [send timeout]: RemoteSocket::set_send_timeout
    pub fn send(&self, bytes: &[u8]) -> Result<(), PacketError> {
        if bytes.is_empty() || bytes.len() > MAX_PACKET_BYTES {
            let len = bytes.len();
            return Err(PacketError::Protocol(format!(
                "a message has 1 to {MAX_PACKET_BYTES} bytes, not {len}"
            )));
        }
        let timeout = *lock(&self.send_timeout);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let _turn = lock(&self.sending);
        let mut message = Some(bytes);
        while !lock(&self.state).try_send(&mut message)? {
            if !socket::wait(&self.tcp, PollFlags::OUT, deadline)
                .map_err(|error| waiting(error, "to send"))?
            {
                return Err(PacketError::TimedOut(timeout.unwrap_or(Duration::MAX)));
            }
        }
        Ok(())
    }

    /// Receives the next message; `None` once the peer is gone and everything it sent has been received.
    ///
    /// Waits without limit, or until `timeout` has passed ([`PacketError::TimedOut`]). One thread at a time may
    /// receive.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Packet>, PacketError> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let mut flags = PollFlags::IN;
            {
                let mut state = lock(&self.state);
                if let Some(received) = state.try_receive() {
                    return received;
                }
                if state.tls.wants_write() && state.unsendable.is_none() {
                    flags |= PollFlags::OUT;
                }
            }
            if !socket::wait(&self.tcp, flags, deadline).map_err(|error| waiting(error, "for a message"))? {
                return Err(PacketError::TimedOut(timeout.unwrap_or(Duration::MAX)));
            }
        }
    }

    /// Sets the longest time that [`RemoteSocket::send`] waits for a peer that does not receive.
    pub fn set_send_timeout(&self, timeout: Duration) {
        *lock(&self.send_timeout) = Some(timeout);
    }

    /// Ends the connection, and wakes every thread that waits on it at either end.
    pub fn end(&self) {
        // A connection that has ended already stays so.
        let _ = self.tcp.shutdown(std::net::Shutdown::Both);
    }

    /// Address of the other end.
    pub fn peer_address(&self) -> Result<SocketAddr, PacketError> {
        self.tcp.peer_addr().map_err(|source| PacketError::System {
            operation: "asking for the peer's address".into(),
            source,
        })
    }

    /// Reason why the peer is gone, if it is, for a message about [`PacketError::PeerGone`] and the end.
    pub fn gone(&self) -> Option<String> {
        let state = lock(&self.state);
        match (&state.end, &state.unsendable) {
            (Some(RemoteEnd::Refused(reason)), _)
            | (_, Some(reason))
            | (Some(RemoteEnd::Gone(reason)), None) => Some(reason.clone()),
            (None, None) => None,
        }
    }

    fn new(tls: TlsStream) -> RemoteSocket {
        let tcp = Arc::clone(tls.socket());
        let state = State { tls, frames: FrameSplitter::default(), end: None, unsendable: None };
        RemoteSocket {
            tcp,
            sending: Mutex::new(()),
            state: Box::new(Mutex::new(state)),
            send_timeout: Mutex::new(None),
        }
    }
}

impl AsFd for RemoteSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }
}

impl Drop for RemoteSocket {
    fn drop(&mut self) {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner).tls.close();
    }
}

impl std::fmt::Debug for RemoteSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteSocket").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl State {
    /// Accepts the message if it fits as a whole. Returns whether it and all earlier bytes were passed to the socket.
    fn try_send(&mut self, message: &mut Option<&[u8]>) -> Result<bool, PacketError> {
        if self.end.is_some() || self.unsendable.is_some() {
            return Err(PacketError::PeerGone);
        }
        let sent = self.send_step(message);
        match sent {
            Ok(()) => Ok(message.is_none()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => {
                self.unsendable = Some(reason(&error));
                Err(PacketError::PeerGone)
            }
        }
    }

    fn send_step(&mut self, message: &mut Option<&[u8]>) -> io::Result<()> {
        let room = message.is_some_and(|bytes| self.tls.has_space_for(LENGTH_BYTES + bytes.len()));
        if let Some(bytes) = message.take_if(|_| room) {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the buffer of TLS has space for the message"
            )]
            let len_bytes = bytes.len() as u32;
            self.tls.send(&[IoSlice::new(&len_bytes.to_le_bytes()), IoSlice::new(bytes)])?;
        }
        self.tls.flush()
    }

    /// Receives without waiting; `None` if there is no message now.
    fn try_receive(&mut self) -> Option<Result<Option<Packet>, PacketError>> {
        // Bytes left by earlier sends are sent when the socket accepts more. If that fails, the next send reports it.
        if self.unsendable.is_none()
            && self.end.is_none()
            && let Err(error) = self.tls.flush()
            && error.kind() != ErrorKind::WouldBlock
        {
            self.unsendable = Some(reason(&error));
        }
        let mut piece = [0; PIECE_BYTES];
        loop {
            match (self.frames.next(), &self.end) {
                (Ok(Some(bytes)), _) => return Some(Ok(Some(Packet { bytes, fds: Vec::new() }))),
                (Ok(None), Some(RemoteEnd::Gone(_))) => return Some(Ok(None)),
                (Ok(None), Some(RemoteEnd::Refused(why))) => {
                    return Some(Err(PacketError::Protocol(why.clone())));
                }
                (Err(why), _) => {
                    self.end = Some(RemoteEnd::Refused(why.clone()));
                    return Some(Err(PacketError::Protocol(why)));
                }
                (Ok(None), None) => {}
            }
            match self.tls.recv(&mut piece) {
                Ok(0) => self.end = Some(RemoteEnd::Gone(self.frames.at_end().into())),
                Ok(received) => self.frames.push(&piece[..received]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if socket::is_gone(&error) => self.end = Some(RemoteEnd::Gone(reason(&error))),
                Err(error) => {
                    self.end = Some(RemoteEnd::Refused(format!("the connection makes no sense: {error}")))
                }
            }
        }
    }
}

/// Cuts a stream of bytes into messages.
#[derive(Debug, Default)]
pub struct FrameSplitter {
    bytes: Vec<u8>,
    taken: usize,
}

impl FrameSplitter {
    /// Adds bytes that have arrived. The caller takes the messages out before it adds more, so that less than one
    /// message stays here beside them.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next message, if it is complete. An error is returned again by each later call.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        let Some((length, rest)) = self.bytes[self.taken..].split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > MAX_PACKET_BYTES {
            return Err(format!(
                "a message of {length} bytes was received: it has 1 to {MAX_PACKET_BYTES} bytes"
            ));
        }
        let message = rest.get(..length).map(<[u8]>::to_vec);
        if message.is_some() {
            self.taken += LENGTH_BYTES + length;
        }
        Ok(message)
    }

    fn at_end(&self) -> &'static str {
        match self.taken == self.bytes.len() {
            true => "the peer has closed the connection",
            false => "the peer has closed the connection in the middle of a message",
        }
    }
}

/// Text for the reason why the peer is gone.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => {
            format!("the connection timed out: no acknowledgement for {} ms", SILENCE.as_millis())
        }
        ErrorKind::ConnectionReset => "the peer has reset the connection".into(),
        ErrorKind::BrokenPipe => "the peer has closed the connection".into(),
        _ => format!("the connection was lost: {error}"),
    }
}

#[cold]
fn waiting(source: io::Error, what: &str) -> PacketError {
    PacketError::System { operation: format!("waiting {what}"), source }
}

#[cfg(test)]
pub(crate) mod tests;
