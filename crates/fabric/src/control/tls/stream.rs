//! A TLS connection as a stream of bytes that never waits.
//!
//! Records are decrypted in the receive buffer and encrypted directly from the caller's memory; rustls copies each once
//! more. Both buffers are bounded, and rustls bounds its own handling of unsolicited messages of the peer (alerts, new
//! keys).

use std::io::{self, ErrorKind, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustls::{CertificateError, Error as TlsError};

use super::buffer::ByteQueue;
use super::parts::{ByteParts, Plaintext};
use super::session::{
    LEAST_SPACE_BYTES, OUTGOING_BYTES, PLAIN_BYTES, PlaintextSink, RECORD_OVERHEAD_BYTES, Session,
    SessionJob, SessionStep, SessionWork,
};
use super::{Identity, Trust};
use crate::{FabricError, socket};

/// Longest time of a handshake.
const PATIENCE: Duration = Duration::from_secs(5);
/// Capacity for received ciphertext: several records at once, and the beginning of another.
const INCOMING_BYTES: usize = 128 * 1024;
/// Additional capacity for messages that rustls sends on its own.
const RESERVE_BYTES: usize = 32 * 1024;
/// Most unread bytes that a closing end discards; see [`TlsStream::close`].
const LAST_BYTES: usize = 64 * 1024;

/// One end of an encrypted connection. Only the handshake waits, whatever mode the socket is in.
pub struct TlsStream {
    socket: Arc<TcpStream>,
    session: Session,
    incoming: ByteQueue,
    outgoing: ByteQueue,
    /// Plaintext that is decrypted and not yet taken.
    plain: Vec<u8>,
    plain_taken: usize,
    /// Buffer in which the parts of one record are gathered.
    record: Vec<u8>,
    /// The peer has ended the connection: by TLS, or by closing the socket.
    ended: bool,
    failed: Option<TlsError>,
}

impl TlsStream {
    /// Performs the handshake with the owner of this certificate (DER), within seconds.
    pub fn client(socket: TcpStream, certificate: &[u8]) -> Result<TlsStream, FabricError> {
        TlsStream::new_client(socket, Trust::pinned(certificate)?)?.shake_hands(Instant::now() + PATIENCE)
    }

    /// Performs the handshake with a client that knows this identity's certificate, within seconds.
    pub fn server(socket: TcpStream, identity: &Identity) -> Result<TlsStream, FabricError> {
        let session = identity.session().map_err(explain)?;
        TlsStream::new(socket, Session::Server(session.into())).shake_hands(Instant::now() + PATIENCE)
    }

    /// Receives available plaintext. 0: the peer has ended the connection; `WouldBlock`: there is nothing now, neither
    /// here nor in the socket.
    pub fn recv(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (len, mut taken) = (into.len(), 0);
        self.recv_with(len, &mut |bytes| {
            into[taken..taken + bytes.len()].copy_from_slice(bytes);
            taken += bytes.len();
        })
    }

    /// Receives like [`TlsStream::recv`] into memory that may not be a slice: passes the plaintext to `put` piece by
    /// piece, at most `most` bytes in all.
    pub(crate) fn recv_with(&mut self, most: usize, put: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let mut sink = PlaintextSink { left: most, put };
        self.give_plain(&mut sink);
        loop {
            while sink.left > 0 {
                match self.step(&mut sink, SessionJob::None) {
                    Ok(SessionStep::Again) => {}
                    Ok(SessionStep::Blocked | SessionStep::Open | SessionStep::Ended) => break,
                    // Plaintext from before the error is returned first; the error stays.
                    Err(_) if sink.left < most => break,
                    Err(error) => return Err(error),
                }
            }
            if sink.left < most || self.ended || most == 0 {
                return Ok(most - sink.left);
            }
            self.ended = self.receive()? == 0;
        }
    }

    /// Takes plaintext until the buffer is full, and sends as much as the socket accepts. Returns how much was taken,
    /// which may not have been sent yet ([`TlsStream::wants_write`]); `WouldBlock`: nothing could be taken.
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_from(&mut ByteParts::new(parts))
    }

    /// Sends like [`TlsStream::send`] from memory that may not be a slice.
    pub(crate) fn send_from(&mut self, source: &mut dyn Plaintext) -> io::Result<usize> {
        let whole = source.left();
        loop {
            self.encrypt(source)?;
            let taken = whole - source.left();
            match self.flush() {
                Err(error) if error.kind() != ErrorKind::WouldBlock || taken == 0 => return Err(error),
                Ok(()) if taken == 0 && whole > 0 => {}
                _ => return Ok(taken),
            }
        }
    }

    /// Sends the ciphertext of all taken plaintext; `WouldBlock` if some of it remains unsent.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.outgoing.filled().is_empty() {
            let sent = socket::send(&self.socket, &[IoSlice::new(self.outgoing.filled())])?;
            self.outgoing.take(sent);
        }
        Ok(())
    }

    /// Whether taken plaintext has not been sent yet.
    pub fn wants_write(&self) -> bool {
        !self.outgoing.filled().is_empty()
    }

    /// Whether [`TlsStream::recv`] can return something without reading the socket.
    pub fn buffered(&self) -> bool {
        let ciphertext = self.incoming.filled();
        let is_record = |length: &[u8; 2]| ciphertext.len() >= 5 + usize::from(u16::from_be_bytes(*length));
        self.plain_taken < self.plain.len()
            || ciphertext.get(3..).and_then(|rest| rest.first_chunk()).is_some_and(is_record)
    }

    /// Whether `len_bytes` bytes of plaintext fit at once.
    pub(crate) fn has_space_for(&self, len_bytes: usize) -> bool {
        let records = len_bytes / PLAIN_BYTES + 1;
        let needed = len_bytes + records * RECORD_OVERHEAD_BYTES + LEAST_SPACE_BYTES;
        self.outgoing.filled().len() + needed <= OUTGOING_BYTES
    }

    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Sends TLS's closing message, as far as that is possible without waiting, and ends the connection.
    pub(crate) fn close(&mut self) {
        if self.failed.is_none() {
            while let Ok(SessionStep::Again) = self.step_plain(SessionJob::Close) {}
        }
        let _ = self.flush();
        let _ = self.socket.shutdown(Shutdown::Write);
        // A socket that is closed with unread bytes discards what it has sent.
        for _ in 0..LAST_BYTES / PLAIN_BYTES {
            match socket::receive(&self.socket, &mut [0; PLAIN_BYTES]) {
                Ok(received) if received > 0 => {}
                _ => break,
            }
        }
    }

    pub(super) fn new_client(socket: TcpStream, trust: Trust) -> Result<TlsStream, FabricError> {
        Ok(TlsStream::new(socket, Session::Client(trust.session().map_err(explain)?.into())))
    }

    fn new(socket: TcpStream, session: Session) -> TlsStream {
        TlsStream {
            socket: Arc::new(socket),
            session,
            incoming: ByteQueue::new(INCOMING_BYTES),
            outgoing: ByteQueue::new(2 * OUTGOING_BYTES + RESERVE_BYTES),
            plain: Vec::new(),
            plain_taken: 0,
            record: Vec::new(),
            ended: false,
            failed: None,
        }
    }

    pub(super) fn shake_hands(mut self, deadline: Instant) -> Result<TlsStream, FabricError> {
        let system = |error| FabricError::system("preparing a TLS connection", error);
        self.socket.set_nonblocking(true).map_err(system)?;
        loop {
            let step = self.step_plain(SessionJob::None);
            if let (Err(_), Some(error)) = (&step, self.failed.take()) {
                let _ = self.flush();
                return Err(explain(error));
            }
            match step.map_err(lost)? {
                SessionStep::Again => {}
                SessionStep::Open if !self.session.is_handshaking() => {
                    self.flush_until(deadline)?;
                    return Ok(self);
                }
                SessionStep::Open | SessionStep::Blocked => {
                    self.flush_until(deadline)?;
                    self.receive_until(deadline)?;
                }
                SessionStep::Ended => return Err(lost(ErrorKind::UnexpectedEof.into())),
            }
        }
    }

    fn flush_until(&mut self, deadline: Instant) -> Result<(), FabricError> {
        loop {
            match self.flush() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::OUT, deadline)?,
                flushed => return flushed.map_err(lost),
            }
        }
    }

    fn receive_until(&mut self, deadline: Instant) -> Result<(), FabricError> {
        loop {
            match self.receive() {
                Ok(0) => return Err(lost(ErrorKind::UnexpectedEof.into())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.wait(PollFlags::IN, deadline)?,
                received => return received.map(drop).map_err(lost),
            }
        }
    }

    fn wait(&self, flags: PollFlags, deadline: Instant) -> Result<(), FabricError> {
        match socket::wait(&self.socket, flags, Some(deadline)).map_err(lost)? {
            true => Ok(()),
            false => Err(FabricError::Disconnected {
                reason: format!(
                    "the peer did not complete the TLS handshake within {} s",
                    PATIENCE.as_secs()
                ),
            }),
        }
    }

    /// Receives ciphertext from the socket; 0 at its end.
    fn receive(&mut self) -> io::Result<usize> {
        let space = self.incoming.space();
        if space.is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidData, "a TLS message larger than there are any"));
        }
        let received = socket::receive(&self.socket, space)?;
        self.incoming.end += received;
        Ok(received)
    }

    /// Encrypts as much of the plaintext as fits.
    fn encrypt(&mut self, source: &mut dyn Plaintext) -> io::Result<()> {
        if self.ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        while source.left() > 0 && self.outgoing.filled().len() + LEAST_SPACE_BYTES <= OUTGOING_BYTES {
            match self.step_plain(SessionJob::Encrypt(source))? {
                SessionStep::Again => {}
                SessionStep::Open => break,
                SessionStep::Blocked | SessionStep::Ended => return Err(ErrorKind::BrokenPipe.into()),
            }
        }
        Ok(())
    }

    fn give_plain(&mut self, sink: &mut PlaintextSink<'_>) {
        self.plain_taken += sink.take(&self.plain[self.plain_taken..]);
        if self.plain_taken == self.plain.len() {
            self.plain.clear();
            self.plain_taken = 0;
        }
    }

    /// Executes [`TlsStream::step`] and keeps the plaintext for later.
    fn step_plain(&mut self, job: SessionJob<'_, '_>) -> io::Result<SessionStep> {
        self.step(&mut PlaintextSink { left: 0, put: &mut |_| {} }, job)
    }

    /// Executes one step of the session, with the available bytes.
    fn step(&mut self, sink: &mut PlaintextSink<'_>, job: SessionJob<'_, '_>) -> io::Result<SessionStep> {
        if let Some(error) = &self.failed {
            return Err(io::Error::new(ErrorKind::InvalidData, error.clone()));
        }
        let TlsStream { session, incoming, outgoing, plain, record, .. } = self;
        let mut work = SessionWork { sink, plain, outgoing, record, job };
        let (used, step) = session.step(incoming.filled_mut(), &mut work);
        incoming.take(used);
        self.ended |= matches!(step, Ok(SessionStep::Ended));
        step.map_err(|error| self.fail(error))
    }

    /// Fails the connection for good, and sends the peer an alert with the reason.
    #[cold]
    fn fail(&mut self, error: TlsError) -> io::Error {
        self.failed = Some(error.clone());
        let TlsStream { session, incoming, outgoing, plain, record, .. } = self;
        let sink = &mut PlaintextSink { left: 0, put: &mut |_| {} };
        let mut work = SessionWork { sink, plain, outgoing, record, job: SessionJob::None };
        // The alert precedes anything else that the session has to send.
        let _ = session.step(incoming.filled_mut(), &mut work);
        let _ = self.flush();
        io::Error::new(ErrorKind::InvalidData, error)
    }
}

impl AsFd for TlsStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn lost(error: io::Error) -> FabricError {
    let reason = match error.kind() {
        ErrorKind::UnexpectedEof => "the peer closed the connection during the TLS handshake".into(),
        _ => format!("the connection was lost during the TLS handshake: {error}"),
    };
    FabricError::Disconnected { reason }
}

fn explain(error: TlsError) -> FabricError {
    match error {
        TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure) => {
            FabricError::Disconnected {
                reason: "the peer has another certificate than it should have".into(),
            }
        }
        TlsError::AlertReceived(alert) => {
            FabricError::Disconnected { reason: format!("the peer ended the TLS handshake: {alert:?}") }
        }
        error => FabricError::Protocol(format!("the TLS handshake failed: {error}")),
    }
}
