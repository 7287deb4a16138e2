//! Passes a stream's bytes through TLS. Regions are memory that the peer can write, so plaintext moves between them and
//! TLS's own memory by raw copies: one for each received byte, and one for each sent byte.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use super::parts::{Part, PartCursor};
use crate::shared::copy_bytes;
use crate::sync::{Mutex, lock};
use crate::tls::{Plaintext, TlsStream};

/// A TLS stream that the sending thread and the receiving thread share. Each holds the lock for one buffer's worth at a
/// time.
pub(super) struct EncryptedStream {
    pub(super) socket: Arc<TcpStream>,
    tls: Mutex<TlsStream>,
}

impl EncryptedStream {
    pub(super) fn new(tls: TlsStream) -> EncryptedStream {
        EncryptedStream { socket: tls.socket().clone(), tls: Mutex::new(tls) }
    }

    /// # Safety
    /// Both parts must be writable.
    pub(super) unsafe fn recv(&self, into: &[Part; 2]) -> io::Result<usize> {
        let most = into[0].iov_len + into[1].iov_len;
        let mut places = PartCursor::new(into);
        lock(&self.tls).recv_with(most, &mut |mut bytes| {
            while let Some((at, len)) = places.next(bytes.len()) {
                // SAFETY: a place lies within a part, which the caller keeps writable; `bytes` is TLS's own memory.
                unsafe { copy_bytes(bytes.as_ptr(), at, len) };
                bytes = &bytes[len..];
            }
        })
    }

    /// # Safety
    /// All parts must be readable.
    pub(super) unsafe fn send(&self, parts: &[Part]) -> io::Result<usize> {
        lock(&self.tls).send_from(&mut PeerBytes(PartCursor::new(parts)))
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        lock(&self.tls).flush()
    }

    pub(super) fn has_unsent(&self) -> bool {
        lock(&self.tls).wants_write()
    }

    /// Whether there is received data that poll(2) on the socket does not report.
    pub(super) fn is_buffered(&self) -> bool {
        lock(&self.tls).buffered()
    }

    /// Sends TLS's closing message, without waiting.
    pub(super) fn close(&self) {
        lock(&self.tls).close();
    }
}

/// Memory that a peer may be writing: it is copied before it is read.
struct PeerBytes<'a>(PartCursor<'a>);

impl Plaintext for PeerBytes<'_> {
    fn left(&self) -> usize {
        self.0.left
    }

    fn next<'a>(&'a mut self, most: usize, gathered: &'a mut Vec<u8>) -> &'a [u8] {
        gathered.resize(most.min(self.0.left), 0);
        let mut filled = 0;
        while let Some((from, len)) = self.0.next(gathered.len() - filled) {
            // SAFETY: the caller of `send` keeps the parts readable, and `len` bytes are left in the vector.
            unsafe { copy_bytes(from, gathered[filled..].as_mut_ptr(), len) };
            filled += len;
        }
        gathered
    }
}
