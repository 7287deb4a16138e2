//! One piece of a memory component, as a process reaches it: mapped, or behind a connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_fabric::tcp;
use sublet_fabric::window::Address;
use sublet_fabric::{FabricError, SharedBytes, SharedBytesMut};
use sublet_proto::v1::RegionKey;
use sublet_proto::{Code, Error};

use super::far::Asking;
use super::trunk::Trunk;
use crate::lease::link::protocol;

/// See the [module](self).
pub(crate) struct Piece {
    /// The lease of the segment, and the node that it is on.
    pub(crate) segment: String,
    pub(crate) node: String,
    /// Where its bytes begin in the component.
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
    bytes: Bytes,
    /// How often something was put, and how much of that is known to be there.
    puts: AtomicU64,
    settled: AtomicU64,
    /// What was asked for and not waited for.
    asked: Arc<AtomicU32>,
    /// Why it is not reached any more.
    over: OnceLock<String>,
}

/// Which bytes a piece is.
pub(crate) struct At {
    /// The lease of the segment, and the node that it is on.
    pub(crate) segment: String,
    pub(crate) node: String,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

/// Where they are.
enum Bytes {
    Here(OwnedFd),
    /// Under this number.
    There(Arc<Trunk>, u32),
}

impl Piece {
    /// One whose memory is shared with this process.
    pub(crate) fn here(at: At, file: OwnedFd) -> Piece {
        Piece::new(at, Bytes::Here(file))
    }

    /// One that its agent serves on this connection, under this key.
    pub(crate) fn there(at: At, trunk: Arc<Trunk>, key: RegionKey) -> Result<Piece, Error> {
        let region = trunk.reach(key, at.len_bytes)?;
        Ok(Piece::new(at, Bytes::There(trunk, region)))
    }

    fn new(at: At, bytes: Bytes) -> Piece {
        let (puts, settled, asked, over) = Default::default();
        let At { segment, node, offset, len_bytes } = at;
        Piece { segment, node, offset, len_bytes, bytes, puts, settled, asked, over }
    }

    /// Where it ends in the component.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len_bytes
    }

    /// Its memory, if that is on this machine.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::Here(file) => Some(file.as_fd()),
            Bytes::There(..) => None,
        }
    }

    /// That, or why not.
    pub(super) fn mapped(&self) -> Result<BorrowedFd<'_>, Error> {
        self.file().ok_or_else(|| {
            let (segment, node) = (&self.segment, &self.node);
            let message = format!("segment {segment} is on node {node}, which is another machine");
            Error::new(Code::FabricUnavailable, message)
        })
    }

    /// Brings bytes of another machine, from this place of the component.
    pub(crate) fn get(&self, offset: u64, into: SharedBytesMut<'_>) -> Result<(), Error> {
        let (end, at) = self.connection(offset)?;
        end.get(at, into).map_err(unreached)
    }

    /// Sends bytes to another machine. When they are [settled](Piece::settle) they are there.
    pub(crate) fn put(&self, offset: u64, from: SharedBytes<'_>) -> Result<(), Error> {
        let (end, at) = self.connection(offset)?;
        end.put(at, from).map_err(unreached)?;
        self.puts.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Adds to a word of another machine. Gives what it was.
    pub(crate) fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, Error> {
        let (end, at) = self.connection(offset)?;
        end.fetch_add(at, value).map_err(unreached)
    }

    /// Puts a value in place of the one that is expected in a word of another machine. Gives what it was.
    pub(crate) fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        let (end, at) = self.connection(offset)?;
        end.compare_swap(at, expected, new).map_err(unreached)
    }

    /// Asks for bytes of another machine. None: not now.
    ///
    /// # Safety
    /// As for [`tcp::Endpoint::begin_get`].
    pub(super) unsafe fn begin_get(
        &self,
        offset: u64,
        into: SharedBytesMut<'_>,
    ) -> Result<Option<Asking>, Error> {
        let (end, at) = self.connection(offset)?;
        // SAFETY: as the caller vouches.
        let getting = unsafe { end.begin_get(at, into.start(), into.len() as u64) }.map_err(unreached)?;
        Ok(getting.map(|getting| Asking::new(getting, self.asked.clone())))
    }

    /// Waits until all that was put before is there: what is asked for afterwards is answered afterwards.
    pub(super) fn settle(&self) -> Result<(), Error> {
        let puts = self.puts.load(Ordering::Acquire);
        if self.settled.load(Ordering::Acquire) < puts {
            self.get(self.offset, (&mut [0; 1]).into())?;
            let before = self.settled.fetch_max(puts, Ordering::AcqRel);
            debug_assert!(before <= self.puts.load(Ordering::Acquire), "{before} puts are settled of fewer");
        }
        Ok(())
    }

    /// What its connection is polled by while something is asked for that nobody waits for.
    pub(super) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::There(trunk, _) if self.asked.load(Ordering::Acquire) > 0 => trunk.end.readable(),
            _ => None,
        }
    }

    /// Takes what has come.
    pub(super) fn progress(&self) {
        if let Bytes::There(trunk, _) = &self.bytes {
            // Who waits for it learns of its end.
            let _ = trunk.end.progress();
        }
    }

    /// Makes whoever waits for it on another machine stop to, and reaches it no more.
    pub(super) fn disconnect(&self, reason: &str) {
        if let Bytes::There(trunk, region) = &self.bytes {
            let _ = self.over.set(reason.to_owned());
            trunk.end.forget(*region);
        }
    }

    /// The way to a byte.
    fn connection(&self, offset: u64) -> Result<(&Arc<tcp::Endpoint>, Address), Error> {
        if let Some(why) = self.over.get() {
            let message = format!("segment {} is not reached any more: {why}", self.segment);
            return Err(Error::new(Code::AgentUnreachable, message));
        }
        match &self.bytes {
            Bytes::There(trunk, region) => {
                Ok((&trunk.end, Address { region: *region, offset: offset.saturating_sub(self.offset) }))
            }
            Bytes::Here(_) => Err(protocol("a piece of this machine is mapped")),
        }
    }
}

/// A segment whose agent does not lend it any more is as one that is out of reach.
pub(super) fn unreached(error: FabricError) -> Error {
    match error {
        FabricError::KeyExpired { .. } => {
            Error::new(Code::AgentUnreachable, "its node does not lend it any more")
        }
        error => error.into(),
    }
}
