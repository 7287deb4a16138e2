//! Requests and replies of Python functions: pickles, and the memory that was left out of them.

use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};
use sublet::frames::lent::{LentMessages, ReplySource};
use sublet::frames::{
    self, FREES, Head, IN_USE, Piece, PieceLocation, ReceivedPiece, SharedAddress, SharedBytes, Source,
};
use sublet::{Code, Error};
use sublet_proto::to_usize;
use sublet_python_buffers::{BufferUse, BufferView};

use crate::buffer::{BufferOwner, OwnedBuffer};
use crate::error::raised;
use crate::pool::{MemoryPool, Paper};

/// A part that is no larger is copied out of its message, so that the message's memory can be used again, in bytes.
const COPIED_BYTES: u64 = 4096;

/// The pieces of a request that are not memory of its arguments: which function is called, and the pickle.
const OWN_PIECES: usize = 2;

/// A request that was written, and all that its reply may refer to.
pub struct WrittenRequest {
    /// The message.
    pub paper: Paper,
    /// Length of the message.
    pub len_bytes: u32,
    /// Token of the call that the message belongs to.
    pub token: u64,
    parts: Vec<RequestPart>,
}

/// Memory of requests and outputs that workers use after their calls.
pub type LentMemory = LentMessages<(Arc<WrittenRequest>, Paper)>;

/// One part of a request.
struct RequestPart {
    len_bytes: u64,
    place: PartPlace,
}

/// Place where workers find a part.
enum PartPlace {
    /// In the message, at this offset.
    Message(u64),
    /// In the object's own memory, which the view keeps.
    Object(Arc<BufferView>),
}

/// Reply of a worker: its kind, and its parts.
#[derive(IntoPyObject)]
pub struct WorkerReply<'py>(u32, Bound<'py, PyList>);

/// Head of a worker's reply, and the places of its pieces.
pub struct OpenedReply {
    head: Head,
    places: Vec<ReceivedPiece>,
    /// Tokens of calls whose memory the worker does not use any more.
    freed: Vec<u64>,
}

impl OpenedReply {
    /// Reads a reply of `len_bytes` bytes from a page.
    pub fn of(paper: &Paper, len_bytes: usize) -> Result<OpenedReply, Error> {
        let at = paper.start();
        let copy = |from: u64, into: &mut [u8]| {
            debug_assert!(
                from + into.len() as u64 <= paper.len() as u64,
                "{} bytes at {from} of a reply in {}",
                into.len(),
                paper.len()
            );
            // SAFETY: nothing beyond the paper is asked for: `read` knows its length, and has checked the offsets of pieces.
            unsafe { SharedBytes::new(at.add(to_usize(from)), into.len()) }.copy_to(into);
        };
        let (head, mut places) = frames::read(len_bytes.min(paper.len()) as u64, copy)?;
        let mut freed = Vec::new();
        if head.operation & FREES != 0
            && let Some(ReceivedPiece { at: PieceLocation::Message(offset), len_bytes, .. }) = places.pop()
        {
            for number in 0..len_bytes / 8 {
                let mut token = [0; 8];
                copy(offset + 8 * number, &mut token);
                freed.push(u64::from_le_bytes(token));
            }
        }
        Ok(OpenedReply { head, places, freed })
    }

    /// Notes which memory the worker uses, and which it uses no more.
    pub fn note(&self, lent: &LentMemory, worker: u32, memory: (&Arc<WrittenRequest>, &Paper)) {
        let by = ReplySource { worker, process: Some(self.head.token) };
        if self.head.operation & IN_USE != 0 {
            lent.lend(by, memory.0.token, (memory.0.clone(), memory.1.clone()));
        }
        match self.freed.is_empty() {
            true => lent.heard(by),
            false => lent.free(by, self.freed.iter().copied()),
        }
    }
}

impl WrittenRequest {
    /// Writes a request on a page of this pool. Registered memory is not copied if the workers share it with this
    /// process.
    pub fn new(
        py: Python<'_>,
        head: Head,
        parts: &[Bound<'_, PyAny>],
        (pool, shares_memory): (&Arc<MemoryPool>, bool),
    ) -> PyResult<WrittenRequest> {
        let failed = |error: Error| raised(py, &error);
        let memory = pool.memory();
        let (mut pieces, mut views) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for (number, part) in parts.iter().enumerate() {
            let view = BufferView::of(part, BufferUse::Reading)?;
            let (at, len_bytes) = (view.pointer().as_ptr().cast_const(), view.len_bytes());
            let shared = (shares_memory && number > 0).then(|| memory.locate(at, len_bytes)).flatten();
            let source = shared.map_or(Source::Here(view.pointer()), Source::Shared);
            pieces.push(Piece { source, len_bytes, read_only: view.is_read_only() && shared.is_some() });
            views.push(view);
        }
        if pieces.len() > frames::MAX_PIECES {
            let message = format!(
                "the arguments of a call have {} registered arrays, at most {} are taken",
                pieces.len() - OWN_PIECES,
                frames::MAX_PIECES - OWN_PIECES
            );
            return Err(raised(py, &Error::new(Code::InputTooLarge, message)));
        }
        let len = frames::len_bytes(&pieces);
        let len_bytes = u32::try_from(len).map_err(|_| {
            let message = format!("the arguments of a call have {len} bytes, at most {} are taken", u32::MAX);
            raised(py, &Error::new(Code::InputTooLarge, message))
        })?;
        let paper = pool.take(len).map_err(failed)?;
        debug_assert!(paper.len() as u64 >= len, "a request of {len} bytes in memory of {}", paper.len());
        // SAFETY: the paper is large enough, and only this request has it; the views keep the pieces at their
        // addresses.
        let offsets = unsafe { frames::write(head, &pieces, paper.start()) };
        debug_assert_eq!(offsets.len(), pieces.len(), "offsets of a request's pieces");
        let part = |(view, (piece, offset)): (BufferView, (&Piece, u64))| {
            let place = match piece.source {
                Source::Shared(_) => PartPlace::Object(Arc::new(view)),
                // A piece that was copied need not be kept.
                _ => PartPlace::Message(offset),
            };
            RequestPart { len_bytes: piece.len_bytes, place }
        };
        let parts = views.into_iter().zip(pieces.iter().zip(offsets)).map(part).collect();
        Ok(WrittenRequest { paper, len_bytes, token: head.token, parts })
    }

    /// Returns the parts of a reply from a page.
    pub fn reply<'py>(
        &self,
        py: Python<'py>,
        paper: &Paper,
        opened: &OpenedReply,
    ) -> PyResult<WorkerReply<'py>> {
        let at = paper.start();
        let OpenedReply { head, places, .. } = opened;
        let parts = PyList::empty(py);
        for (number, place) in places.iter().enumerate() {
            let (at, owner) = self.find(py, place, (at, paper))?;
            let is_pickle = number == 0;
            let is_own = matches!(owner, BufferOwner::Object(_));
            if is_pickle || (place.len_bytes <= COPIED_BYTES && !is_own) {
                let copy = |into: &mut [u8]| {
                    // SAFETY: `find` has found the piece's bytes there. Workers may still write them.
                    unsafe { SharedBytes::new(at, into.len()) }.copy_to(into);
                    Ok(())
                };
                let len = to_usize(place.len_bytes);
                if is_pickle || place.read_only {
                    parts.append(PyBytes::new_with(py, len, copy)?)?;
                } else {
                    parts.append(PyByteArray::new_with(py, len, copy)?)?;
                }
            } else {
                parts.append(OwnedBuffer::new(at, place.len_bytes, place.read_only, owner))?;
            }
        }
        Ok(WorkerReply(head.operation & !(IN_USE | FREES), parts))
    }

    /// Returns the address of a part of the reply, and the owner that keeps it there.
    fn find(
        &self,
        py: Python<'_>,
        place: &ReceivedPiece,
        (message, paper): (NonNull<u8>, &Paper),
    ) -> PyResult<(NonNull<u8>, BufferOwner)> {
        let SharedAddress { number, offset } = match place.at {
            PieceLocation::Message(offset) => {
                // SAFETY: `read` has found that it is in the message.
                let at = unsafe { message.add(to_usize(offset)) };
                return Ok((at, BufferOwner::Message(paper.clone())));
            }
            PieceLocation::Shared(shared) => shared,
        };
        let unknown = || {
            let message =
                format!("a worker returned {} bytes at {offset} of argument {number}", place.len_bytes);
            raised(py, &Error::new(Code::Protocol, message))
        };
        let part = self.parts.get(number as usize - 1).ok_or_else(unknown)?;
        if offset.checked_add(place.len_bytes).is_none_or(|end| end > part.len_bytes) {
            return Err(unknown());
        }
        let (begin, owner) = match &part.place {
            PartPlace::Object(view) => (view.pointer(), BufferOwner::Object(view.clone())),
            PartPlace::Message(offset) => {
                let message = self.paper.start();
                // SAFETY: where `write` has put the part.
                (unsafe { message.add(to_usize(*offset)) }, BufferOwner::Message(self.paper.clone()))
            }
        };
        // SAFETY: it is within the part, as was just found.
        Ok((unsafe { begin.add(to_usize(offset)) }, owner))
    }
}
