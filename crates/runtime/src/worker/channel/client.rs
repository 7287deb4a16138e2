//! Implements a channel's requests to the client that runs the graph.

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use prost::Message;
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_fabric::region::Region;
use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_proto::v1::{self, memory_answer};
use sublet_proto::{Code, Error, decode};

use super::state_page::{LEN_AT, OVER_AT};
use crate::lease::link::{error_of, lock, protocol};
use crate::memory::invited;
use crate::memory::piece::{MemoryPiece, PieceRange};
use crate::memory::pieces::PieceOwner;
use crate::memory::segment_connection::SegmentConnection;
use crate::worker::preparation::descriptors;

/// The client that runs the graph, for the requests of one channel.
pub(super) struct GraphClient {
    /// The index of the channel, in the order of the edges.
    pub(super) number: u32,
    pub(super) state: Region,
    /// Set on another machine: the component's length when it was last requested, and the ends that had ended.
    pub(super) known: Option<ComponentExtent>,
    pub(super) request_socket: Arc<Mutex<RequestSocket>>,
}

/// Socket for the requests of all channels of a run: one at a time.
pub(super) struct RequestSocket {
    pub(super) socket: PacketSocket,
    /// The connections by which segments of other machines are reached, for the duration of the run. The key is the
    /// segment and the reader's number that the connection was made for.
    segment_connections: HashMap<(String, u32), Arc<SegmentConnection>>,
}

impl RequestSocket {
    pub(super) fn new(socket: PacketSocket) -> RequestSocket {
        RequestSocket { socket, segment_connections: HashMap::new() }
    }

    /// Accepts a piece from the client, or from this machine's agent.
    fn receive(&mut self, piece: v1::Piece, fds: Vec<OwnedFd>) -> Result<MemoryPiece, Error> {
        let v1::Piece { offset, len_bytes, segment, node, connected, .. } = piece;
        let Some(connected) = connected else {
            let [file] = descriptors("memory", fds)?;
            return Ok(MemoryPiece::here(PieceRange { segment, node, offset, len_bytes }, file));
        };
        let key = connected.memory.ok_or_else(|| protocol("a connection to memory without its key"))?;
        let segment_connection = match connected.joins {
            Some(v1::Joins { segment, guest }) => {
                let [] = descriptors("memory", fds)?;
                let gone = || {
                    let message =
                        format!("the connection by which segment {segment} was reached is not there");
                    Error::new(Code::AgentUnreachable, message)
                };
                self.segment_connections.get(&(segment.clone(), guest)).cloned().ok_or_else(gone)?
            }
            None => {
                let [socket] = descriptors("memory", fds)?;
                let segment_connection = invited::segment_connection(TcpStream::from(socket), &connected)?;
                self.segment_connections
                    .insert((segment.clone(), connected.guest), segment_connection.clone());
                segment_connection
            }
        };
        MemoryPiece::there(PieceRange { segment, node, offset, len_bytes }, segment_connection, key)
    }
}

#[derive(Default)]
pub(super) struct ComponentExtent {
    len_bytes: AtomicU64,
    pub(super) ended: AtomicU64,
}

impl ComponentExtent {
    /// Records that the component was made shorter.
    pub(super) fn shorten(&self, len_bytes: u64) {
        self.len_bytes.store(len_bytes, Ordering::Release);
    }
}

impl GraphClient {
    /// The word that holds the component's length.
    pub(super) fn len(&self) -> &AtomicU64 {
        self.known.as_ref().map_or_else(|| self.word(LEN_AT), |known| &known.len_bytes)
    }

    pub(super) fn word(&self, at: u64) -> &AtomicU64 {
        self.state.view(at).expect("a page has these words")
    }

    /// Sends a question, and processes its answers, all of them even if one cannot be used. `question` is called when it
    /// is this thread's turn.
    pub(super) fn ask(
        &self,
        question: impl FnOnce() -> v1::MemoryQuestion,
        mut take: impl FnMut(MemoryPiece) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut request_socket = lock(&self.request_socket);
        let question = v1::MemoryQuestion { channel: self.number + 1, ..question() };
        request_socket.socket.send(&question.encode_to_vec(), &[])?;
        let mut taken = Ok(());
        loop {
            match answer(request_socket.socket.receive(None)?)? {
                (memory_answer::Body::Piece(piece), fds) => {
                    taken = taken.and_then(|()| take(request_socket.receive(piece, fds)?));
                }
                (memory_answer::Body::There(there), _) => {
                    if let Some(known) = &self.known {
                        known.len_bytes.fetch_max(there.len_bytes, Ordering::AcqRel);
                        known.ended.fetch_or(there.ended.into(), Ordering::AcqRel);
                    }
                    return taken;
                }
                (memory_answer::Body::Failure(failure), _) => {
                    return taken.and(Err(error_of(failure.code, failure.message)));
                }
                (memory_answer::Body::Channel(_), _) => {
                    return Err(protocol("a channel that was not asked for"));
                }
            }
        }
    }
}

impl PieceOwner for GraphClient {
    #[inline]
    fn check(&self) -> Result<(), Error> {
        if self.word(OVER_AT).load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let why = v1::MemoryQuestion { is_over: true, ..v1::MemoryQuestion::default() };
        self.ask(|| why, |_| Ok(()))?;
        Err(Error::new(Code::LeaseEnded, "the memory component is over"))
    }

    /// Reports to the client that a segment is out of reach, which ends the component.
    #[cold]
    fn failed(&self, piece: &MemoryPiece, error: Error) -> Error {
        if error.code != Code::AgentUnreachable {
            return error;
        }
        let lost =
            v1::MemoryQuestion { lost_segment: piece.segment.clone(), ..v1::MemoryQuestion::default() };
        self.ask(|| lost, |_| Ok(())).err().unwrap_or(error)
    }

    /// Does nothing: the waiting thread receives the data itself.
    fn attend(&self) {}
}

/// Decodes an answer, with its descriptors.
pub(super) fn answer(packet: Option<Packet>) -> Result<(memory_answer::Body, Vec<OwnedFd>), Error> {
    let gone = || Error::new(Code::AgentUnreachable, "the client that runs the graph is gone");
    let packet = packet.ok_or_else(gone)?;
    let body = decode::<v1::MemoryAnswer>("an answer about memory", &packet.bytes)?.body;
    Ok((body.ok_or_else(|| protocol("an empty answer about memory"))?, packet.fds))
}
