//! One step of a TLS session: executes the work that rustls asks for.

use rustls::Error as TlsError;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus, WriteTraffic};

use super::buffer::ByteQueue;
use super::parts::Plaintext;

/// Most plaintext bytes of one record.
pub(super) const PLAIN_BYTES: usize = 16 * 1024;
/// Bytes of a record beside its plaintext: its header, type and tag, and a change of keys before it.
pub(super) const RECORD_OVERHEAD_BYTES: usize = 64;
/// Least free space for which a record is made: many small records cost more than waiting.
pub(super) const LEAST_SPACE_BYTES: usize = 1024;
/// Most ciphertext that has not been sent: small enough for a core's own cache.
pub(super) const OUTGOING_BYTES: usize = 128 * 1024;

/// The session of either end.
pub(super) enum Session {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// Outcome of a step of the TLS session.
pub(super) enum SessionStep {
    /// There may be more to do.
    Again,
    /// The session needs bytes of the peer to continue, even to send.
    Blocked,
    /// The session needs bytes of the peer to continue, and can send.
    Open,
    /// The peer has ended the session.
    Ended,
}

impl Session {
    /// Executes one step. Returns how much ciphertext was used, and the outcome.
    pub(super) fn step(
        &mut self,
        ciphertext: &mut [u8],
        work: &mut SessionWork<'_, '_, '_>,
    ) -> (usize, Result<SessionStep, TlsError>) {
        match self {
            Session::Client(session) => work.on(session.process_tls_records(ciphertext)),
            Session::Server(session) => work.on(session.process_tls_records(ciphertext)),
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        match self {
            Session::Client(session) => session.is_handshaking(),
            Session::Server(session) => session.is_handshaking(),
        }
    }
}

/// Work to do as soon as the session can send.
pub(super) enum SessionJob<'a, 'p> {
    None,
    Encrypt(&'a mut (dyn Plaintext + 'p)),
    Close,
}

/// Destination that takes plaintext first.
pub(super) struct PlaintextSink<'a> {
    pub(super) left: usize,
    pub(super) put: &'a mut dyn FnMut(&[u8]),
}

impl PlaintextSink<'_> {
    /// Takes bytes up to the sink's remaining capacity, and returns how many.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.left);
        if taken > 0 {
            (self.put)(&bytes[..taken]);
            self.left -= taken;
        }
        taken
    }
}

/// Buffers and job of one step of the session.
pub(super) struct SessionWork<'a, 'b, 'p> {
    pub(super) sink: &'a mut PlaintextSink<'b>,
    pub(super) plain: &'a mut Vec<u8>,
    pub(super) outgoing: &'a mut ByteQueue,
    pub(super) record: &'a mut Vec<u8>,
    pub(super) job: SessionJob<'a, 'p>,
}

impl SessionWork<'_, '_, '_> {
    fn on<Data>(&mut self, status: UnbufferedStatus<'_, '_, Data>) -> (usize, Result<SessionStep, TlsError>) {
        let UnbufferedStatus { mut discard, state } = status;
        let step = state.and_then(|state| match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    self.keep(record.payload);
                }
                Ok(SessionStep::Again)
            }
            ConnectionState::EncodeTlsData(mut data) => {
                let encoded = data.encode(self.outgoing.space()).map_err(too_much)?;
                self.outgoing.end += encoded;
                Ok(SessionStep::Again)
            }
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Ok(SessionStep::Again)
            }
            ConnectionState::WriteTraffic(traffic) => self.write(traffic),
            ConnectionState::BlockedHandshake => Ok(SessionStep::Blocked),
            ConnectionState::PeerClosed | ConnectionState::Closed => Ok(SessionStep::Ended),
            _ => Err(TlsError::General("a state that is not used here".into())),
        });
        (discard, step)
    }

    fn keep(&mut self, payload: &[u8]) {
        let taken = self.sink.take(payload);
        self.plain.extend_from_slice(&payload[taken..]);
    }

    fn write<Data>(&mut self, mut traffic: WriteTraffic<'_, Data>) -> Result<SessionStep, TlsError> {
        match &mut self.job {
            SessionJob::None => {}
            SessionJob::Close => {
                let written = traffic.queue_close_notify(self.outgoing.space()).map_err(too_much)?;
                self.outgoing.end += written;
            }
            SessionJob::Encrypt(source) => {
                let room = |outgoing: &ByteQueue| OUTGOING_BYTES.saturating_sub(outgoing.filled().len());
                while source.left() > 0 && room(self.outgoing) >= LEAST_SPACE_BYTES {
                    let most = PLAIN_BYTES.min(room(self.outgoing) - RECORD_OVERHEAD_BYTES);
                    let plaintext = source.next(most, self.record);
                    let written = traffic.encrypt(plaintext, self.outgoing.space()).map_err(too_much)?;
                    self.outgoing.end += written;
                }
            }
        }
        Ok(SessionStep::Open)
    }
}

fn too_much(error: impl std::fmt::Display) -> TlsError {
    TlsError::General(format!("a TLS message has no place: {error}"))
}
