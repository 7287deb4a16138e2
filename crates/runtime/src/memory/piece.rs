//! One piece of a memory component, as a process reaches it: mapped, or behind a connection of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use sublet_fabric::exposed::{Exposed, OWN, RemoteRegion};
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering};
use sublet_fabric::tcp::{self, Stream};
use sublet_fabric::window::Address;
use sublet_proto::v1::RegionKey;
use sublet_proto::{Code, Error};

use super::far::Asking;
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
    There(Arc<tcp::Endpoint>),
}

impl Piece {
    /// One whose memory is shared with this process.
    pub(crate) fn here(at: At, file: OwnedFd) -> Piece {
        Piece::new(at, Bytes::Here(file))
    }

    /// One that its agent serves on this connection, under this key.
    pub(crate) fn there(at: At, stream: Stream, key: RegionKey) -> Result<Piece, Error> {
        let end = Arc::new(tcp::Endpoint::new(nothing_of_ours()?, None));
        end.connect(stream)?;
        end.reach(OWN, RemoteRegion { key: key.key, base: key.base, len_bytes: at.len_bytes })?;
        Ok(Piece::new(at, Bytes::There(end)))
    }

    fn new(at: At, bytes: Bytes) -> Piece {
        let (puts, settled, asked) = Default::default();
        let At { segment, node, offset, len_bytes } = at;
        Piece { segment, node, offset, len_bytes, bytes, puts, settled, asked }
    }

    /// Where it ends in the component.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len_bytes
    }

    /// Its memory, if that is on this machine.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::Here(file) => Some(file.as_fd()),
            Bytes::There(_) => None,
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
    pub(crate) fn get(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        Ok(self.connection()?.get(self.at(offset), into)?)
    }

    /// Sends bytes to another machine. When they are [settled](Piece::settle) they are there.
    pub(crate) fn put(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.connection()?.put(self.at(offset), from)?;
        self.puts.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Adds to a word of another machine. Gives what it was.
    pub(crate) fn fetch_add(&self, offset: u64, value: u64) -> Result<u64, Error> {
        Ok(self.connection()?.fetch_add(self.at(offset), value)?)
    }

    /// Puts a value in place of the one that is expected in a word of another machine. Gives what it was.
    pub(crate) fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        Ok(self.connection()?.compare_swap(self.at(offset), expected, new)?)
    }

    /// Asks for bytes of another machine. None: not now.
    ///
    /// # Safety
    /// As for [`tcp::Endpoint::begin_get`].
    pub(super) unsafe fn begin_get(
        &self,
        offset: u64,
        into: NonNull<u8>,
        len_bytes: u64,
    ) -> Result<Option<Asking>, Error> {
        // SAFETY: as the caller vouches.
        let getting = unsafe { self.connection()?.begin_get(self.at(offset), into, len_bytes) }?;
        Ok(getting.map(|getting| Asking::new(getting, self.asked.clone())))
    }

    /// Waits until all that was put before is there: what is asked for afterwards is answered afterwards.
    pub(super) fn settle(&self) -> Result<(), Error> {
        let puts = self.puts.load(Ordering::Acquire);
        if self.settled.load(Ordering::Acquire) < puts {
            self.connection()?.get(self.at(self.offset), &mut [0; 1])?;
            self.settled.fetch_max(puts, Ordering::AcqRel);
        }
        Ok(())
    }

    /// What its connection is polled by while something is asked for that nobody waits for.
    pub(super) fn awaited(&self) -> Option<BorrowedFd<'_>> {
        match &self.bytes {
            Bytes::There(end) if self.asked.load(Ordering::Acquire) > 0 => end.readable(),
            _ => None,
        }
    }

    /// Takes what has come.
    pub(super) fn progress(&self) {
        if let Bytes::There(end) = &self.bytes {
            // Who waits for it learns of its end.
            let _ = end.progress();
        }
    }

    /// Makes whoever waits for another machine stop to.
    pub(super) fn disconnect(&self, reason: &str) {
        if let Bytes::There(end) = &self.bytes {
            end.disconnect(reason);
        }
    }

    fn connection(&self) -> Result<&Arc<tcp::Endpoint>, Error> {
        match &self.bytes {
            Bytes::There(end) => Ok(end),
            Bytes::Here(_) => Err(protocol("a piece of this machine is mapped")),
        }
    }

    fn at(&self, offset: u64) -> Address {
        Address { region: OWN, offset: offset.saturating_sub(self.offset) }
    }
}

/// The agent reaches nothing of this process: no key of it is told.
fn nothing_of_ours() -> Result<Arc<Exposed>, Error> {
    Ok(Arc::new(Exposed::alone(&Region::create("sublet-nothing", PAGE_BYTES)?)?))
}
