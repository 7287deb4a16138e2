//! Implements one piece of a memory component, as a process reaches it: mapped, or behind a connection.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use sublet_fabric::stored::MAX_STORED_BYTES;
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_fabric::tcp;
use sublet_fabric::window::RegionAddress;
use sublet_fabric::{SharedBytes, SharedBytesMut};
use sublet_proto::v1::RegionKey;
use sublet_proto::{Code, Error, to_usize};

use super::pending::{PendingRead, unreached};
use super::segment_connection::SegmentConnection;
use crate::lease::link::protocol;

/// See the [module](self).
pub(crate) struct MemoryPiece {
    /// The lease of the segment, and the node that it is on.
    pub(crate) segment: String,
    pub(crate) node: String,
    /// Offset of the piece in the component.
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
    bytes: Bytes,
    /// Whether its bytes are on a disk, which is read and written in parts.
    is_stored: bool,
    /// Number of writes, and of the writes that are known to have arrived.
    puts: AtomicU64,
    settled: AtomicU64,
    /// Number of outstanding requests.
    asked: Arc<AtomicU32>,
    /// Reason why the piece is no longer reached.
    over: OnceLock<String>,
}

/// Identity and range of a piece.
pub(crate) struct PieceRange {
    /// The lease of the segment, and the node that it is on.
    pub(crate) segment: String,
    pub(crate) node: String,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

/// Location of a piece's bytes.
enum Bytes {
    Here(OwnedFd),
    /// On another machine, under this number of the connection.
    There(Arc<SegmentConnection>, u32),
}

impl MemoryPiece {
    /// A piece whose memory is shared with this process.
    pub(crate) fn here(at: PieceRange, file: OwnedFd) -> MemoryPiece {
        MemoryPiece::new(at, Bytes::Here(file))
    }

    /// A piece that its agent serves on this connection, under this key.
    pub(crate) fn there(
        at: PieceRange,
        segment_connection: Arc<SegmentConnection>,
        key: RegionKey,
    ) -> Result<MemoryPiece, Error> {
        let region = segment_connection.reach(key, at.len_bytes)?;
        let piece = MemoryPiece::new(at, Bytes::There(segment_connection, region));
        Ok(MemoryPiece { is_stored: key.stored, ..piece })
    }

    fn new(at: PieceRange, bytes: Bytes) -> MemoryPiece {
        let (puts, settled, asked, over) = Default::default();
        let PieceRange { segment, node, offset, len_bytes } = at;
        let is_stored = false;
        MemoryPiece { segment, node, offset, len_bytes, bytes, is_stored, puts, settled, asked, over }
    }

    /// End of the piece in the component.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len_bytes
    }

    /// The piece's memory file, if it is on this machine.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::Here(file) => Some(file.as_fd()),
            Bytes::There(..) => None,
        }
    }

    /// The piece's memory file, or the error that the piece is on another machine.
    pub(super) fn mapped(&self) -> Result<BorrowedFd<'_>, Error> {
        self.file().ok_or_else(|| {
            let (segment, node) = (&self.segment, &self.node);
            let message = match self.is_stored {
                true => format!("segment {segment} is on a disk of node {node}: its bytes are not mapped"),
                false => format!("segment {segment} is on node {node}, which is another machine"),
            };
            Error::new(Code::FabricUnavailable, message)
        })
    }

    /// Brings bytes of another machine, from this place of the component.
    pub(crate) fn get(&self, offset: u64, mut into: SharedBytesMut<'_>) -> Result<(), Error> {
        let (end, at) = self.connection(offset)?;
        if !self.is_stored {
            return end.get(at, into).map_err(unreached);
        }
        let len = into.len();
        parts(len).try_for_each(|part| end.get(behind(at, part.start), into.part(part))).map_err(unreached)
    }

    /// Sends bytes to another machine. When they are [settled](MemoryPiece::settle) they are there.
    pub(crate) fn put(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        let (end, at) = self.connection(offset)?;
        if self.is_stored {
            parts(from.len())
                .try_for_each(|part| end.put(behind(at, part.start), from.part(part)))
                .map_err(unreached)?;
        } else {
            end.put(at, from).map_err(unreached)?;
        }
        self.puts.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Adds to a word of another machine. Returns its previous value.
    pub(crate) fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, Error> {
        let (end, at) = self.word(offset)?;
        end.fetch_add(at, value).map_err(unreached)
    }

    /// Replaces the expected value in a word of another machine. Returns its previous value.
    pub(crate) fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        let (end, at) = self.word(offset)?;
        end.compare_swap(at, expected, new).map_err(unreached)
    }

    /// Requests bytes of another machine. `None` if the connection cannot take the request now, or not in one part.
    ///
    /// # Safety
    /// As for [`tcp::TcpEndpoint::begin_get`].
    pub(super) unsafe fn begin_get(
        &self,
        offset: u64,
        into: SharedBytesMut<'_>,
    ) -> Result<Option<PendingRead>, Error> {
        if self.is_stored && into.len() as u64 > MAX_STORED_BYTES {
            return Ok(None);
        }
        let (end, at) = self.connection(offset)?;
        // SAFETY: as the caller vouches.
        let getting = unsafe { end.begin_get(at, into.start(), into.len() as u64) }.map_err(unreached)?;
        Ok(getting.map(|getting| PendingRead::new(getting, self.asked.clone())))
    }

    /// Waits until all earlier writes have arrived, so that later requests are answered after them.
    pub(super) fn settle(&self) -> Result<(), Error> {
        let puts = self.puts.load(Ordering::Acquire);
        if self.settled.load(Ordering::Acquire) < puts {
            self.get(self.offset, (&mut [0; 1]).into())?;
            let before = self.settled.fetch_max(puts, Ordering::AcqRel);
            debug_assert!(before <= self.puts.load(Ordering::Acquire), "{before} puts are settled of fewer");
        }
        Ok(())
    }

    /// The descriptor by which the piece's connection is polled while a request is outstanding that no thread waits
    /// for.
    pub(super) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::There(segment_connection, _) if self.asked.load(Ordering::Acquire) > 0 => {
                segment_connection.end.readable()
            }
            _ => None,
        }
    }

    /// Receives data that has arrived on the connection.
    pub(super) fn progress(&self) {
        if let Bytes::There(segment_connection, _) = &self.bytes {
            // A thread that waits for the piece learns of the connection's end itself.
            let _ = segment_connection.end.progress();
        }
    }

    /// Stops reaching a piece of another machine: unblocks the threads that wait for it.
    pub(super) fn disconnect(&self, reason: &str) {
        if let Bytes::There(segment_connection, region) = &self.bytes {
            let _ = self.over.set(reason.to_owned());
            segment_connection.end.forget(*region);
        }
    }

    /// The connection to a word that is to be changed atomically, and its address there.
    fn word(&self, offset: u64) -> Result<(&Arc<tcp::TcpEndpoint>, RegionAddress), Error> {
        if self.is_stored {
            let message =
                format!("segment {} is on a disk, where no word is changed atomically", self.segment);
            return Err(Error::new(Code::InvalidArgument, message));
        }
        self.connection(offset)
    }

    /// The connection to a byte, and its address there.
    fn connection(&self, offset: u64) -> Result<(&Arc<tcp::TcpEndpoint>, RegionAddress), Error> {
        if let Some(why) = self.over.get() {
            let message = format!("segment {} is not reached any more: {why}", self.segment);
            return Err(Error::new(Code::AgentUnreachable, message));
        }
        match &self.bytes {
            Bytes::There(segment_connection, region) => Ok((
                &segment_connection.end,
                RegionAddress { region: *region, offset: offset.saturating_sub(self.offset) },
            )),
            Bytes::Here(_) => Err(protocol("a piece of this machine is mapped")),
        }
    }
}

/// The parts in which `len` stored bytes are read or written.
fn parts(len: usize) -> impl Iterator<Item = Range<usize>> {
    let most = to_usize(MAX_STORED_BYTES);
    (0..len).step_by(most).map(move |start| start..len.min(start + most))
}

/// The address of a byte behind another one.
fn behind(at: RegionAddress, bytes: usize) -> RegionAddress {
    RegionAddress { region: at.region, offset: at.offset + bytes as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_stored_bytes_follow_one_another() {
        let most = to_usize(MAX_STORED_BYTES);
        for len in [0, 1, most - 1, most, most + 1, 3 * most, 3 * most + 7] {
            let mut end = 0;
            for part in parts(len) {
                assert!(part.start == end && part.len() <= most && !part.is_empty(), "{part:?} of {len}");
                end = part.end;
            }
            assert_eq!(end, len);
        }
    }
}
