//! Requests of Python callers and their replies, in the memory of a call: see [`frames`].

use std::ptr::NonNull;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMemoryView};
use sublet_proto::{Code, to_usize};
use sublet_python_buffers::{BufferUse, BufferView, memoryview};
use sublet_runtime::frames::{
    self, FETCH, Head, Piece, PieceLocation, ReceivedPiece, SHARES_MEMORY, SharedAddress, Source,
};
use sublet_runtime::worker::engine::CallInput;
use sublet_xpu::SharedBytes;

use crate::call_memory::{CallMemory, lend};
use crate::kept_replies::KeptReply;
use crate::output_space::OutputSpace;

/// A piece of a request that is no larger is copied out of it, in bytes: a function that keeps many small arrays then keeps no
/// messages, and the copy costs less than the rest of the call.
const COPIED_BYTES: u64 = 4096;
/// The pieces of a request that are not memory of its arguments: which function is called, and the pickle.
const OWN_PIECES: usize = 2;

/// A request, as it lies in this process.
pub(crate) struct ObjectRequest {
    /// The requested operation, without [`SHARES_MEMORY`].
    pub(crate) head: Head,
    /// Whether the client sees what is written in the request's memory. Over a network that is a copy.
    shares_memory: bool,
    pieces: Vec<PieceStretch>,
}

/// A piece of a request, in this process.
struct PieceStretch {
    at: NonNull<u8>,
    len_bytes: u64,
    read_only: bool,
    /// Whether it is a part of the message, and not memory that the client shares.
    is_message: bool,
}

impl ObjectRequest {
    /// Reads a request.
    pub(crate) fn of(input: &CallInput<'_>) -> Result<ObjectRequest, Code> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`read` stays within the input's length, of 32 bits"
        )]
        let copy = |at: u64, into: &mut [u8]| input.copy_from(at as u32, into);
        let read = frames::read(u64::from(input.len()), copy);
        let (Head { operation, token }, places) = read.map_err(|error| error.code)?;
        let pieces = places.iter().map(|place| find(input, place)).collect::<Option<Vec<_>>>();
        let pieces = pieces.ok_or(Code::InvalidArgument)?;
        let is_fetch = operation == FETCH;
        let shares_memory = !is_fetch && operation & SHARES_MEMORY != 0;
        let operation = if is_fetch { FETCH } else { operation & !SHARES_MEMORY };
        Ok(ObjectRequest { head: Head { operation, token }, shares_memory, pieces })
    }

    /// The pieces as objects, for the function.
    pub(crate) fn objects<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let objects = PyList::empty(py);
        for (number, piece) in self.pieces.iter().enumerate() {
            objects.append(piece.object(py, number)?)?;
        }
        Ok(objects)
    }

    /// Finds a result's memory among the pieces, by their addresses.
    fn index(&self) -> PieceIndex {
        let mut starts: Vec<_> = (1..)
            .zip(&self.pieces)
            .map(|(number, piece)| (piece.at.as_ptr() as u64, piece.len_bytes, number))
            .collect();
        starts.sort_unstable();
        let ends = starts.iter().scan(0, |most, &(start, len, _)| {
            *most = start.saturating_add(len).max(*most);
            Some(*most)
        });
        PieceIndex { ends: ends.collect(), starts }
    }

    fn is_message(&self, piece: SharedAddress) -> bool {
        debug_assert!(piece.number > 0, "pieces are numbered from 1, and one at {} has 0", piece.offset);
        self.pieces.get(piece.number as usize - 1).is_some_and(|piece| piece.is_message)
    }
}

impl PieceStretch {
    fn object<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyAny>> {
        let PieceStretch { at, len_bytes, read_only, is_message } = *self;
        if number >= OWN_PIECES && !(is_message && len_bytes <= COPIED_BYTES) {
            let how = if read_only { BufferUse::Reading } else { BufferUse::Writing };
            // SAFETY: the client's memory stays mapped for as long as the process lives; what it holds may change.
            let lent = unsafe { lend(py, at, len_bytes, how)? };
            return lent
                .ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("no call is being executed"));
        }
        if number == OWN_PIECES - 1 {
            // No object keeps this memory: unpickling copies it.
            // SAFETY: as above.
            return unsafe { memoryview(py, at, len_bytes, BufferUse::Reading) };
        }
        let copy = |into: &mut [u8]| {
            // SAFETY: the piece's bytes stay mapped for as long as the process lives; the client may still write them.
            unsafe { SharedBytes::new(at, into.len()) }.copy_to(into);
            Ok(())
        };
        let len = to_usize(len_bytes);
        if number == 0 {
            return PyBytes::new_with(py, len, copy).map(Bound::into_any);
        }
        PyMemoryView::from(PyByteArray::new_with(py, len, copy)?.as_any()).map(Bound::into_any)
    }
}

fn find(input: &CallInput<'_>, place: &ReceivedPiece) -> Option<PieceStretch> {
    let ReceivedPiece { at, len_bytes, read_only } = *place;
    let (at, is_message) = match at {
        // SAFETY: `read` has found that all of it is in the message.
        PieceLocation::Message(offset) => (unsafe { input.address().add(to_usize(offset)) }, true),
        PieceLocation::Shared(shared) => (input.reach(shared, len_bytes)?, false),
    };
    Some(PieceStretch { at, len_bytes, read_only, is_message })
}

/// The pieces of a request by their addresses. Those of shared memory may overlap.
#[derive(Default)]
struct PieceIndex {
    /// Where each piece starts, its length and its number, in the order of addresses.
    starts: Vec<(u64, u64, u32)>,
    /// The largest end of each piece and those before it.
    ends: Vec<u64>,
}

impl PieceIndex {
    /// The piece that has all of these bytes.
    fn find(&self, at: NonNull<u8>, len_bytes: u64) -> Option<SharedAddress> {
        let at = at.as_ptr() as u64;
        let end = at.checked_add(len_bytes).filter(|_| len_bytes > 0)?;
        let after = self.starts.partition_point(|&(start, ..)| start <= at);
        let before = self.starts[..after].iter().zip(&self.ends[..after]).rev();
        let mut possible = before.take_while(|&(_, &most)| most >= end);
        possible.find_map(|(&(start, len, number), _)| {
            (start.checked_add(len)? >= end).then_some(SharedAddress { number, offset: at - start })
        })
    }
}

/// A reply that is being made.
pub(crate) struct Draft {
    reply: KeptReply,
    /// The pieces that lie in memory of the call.
    lent: Vec<usize>,
}

impl Draft {
    /// Creates a reply of these objects. Objects in the request's own memory are not copied if the client shares that
    /// memory.
    ///
    /// # Errors
    /// `ValueError` for more objects than a message has pieces.
    pub(crate) fn of(
        (operation, parts): (u32, &[Bound<'_, PyAny>]),
        request: &ObjectRequest,
    ) -> PyResult<Draft> {
        // The client refuses a longer message.
        if parts.len() > frames::MAX_PIECES {
            let message = format!(
                "the result of the call has {} buffers, at most {} are returned",
                parts.len() - 1,
                frames::MAX_PIECES - 1
            );
            return Err(PyValueError::new_err(message));
        }
        let views = parts
            .iter()
            .map(|part| BufferView::of(part, BufferUse::Reading))
            .collect::<PyResult<Vec<_>>>()?;
        // Most replies are a pickle alone, which lies nowhere else.
        let index = if views.len() > 1 { request.index() } else { PieceIndex::default() };
        let (mut pieces, mut lent) = (Vec::with_capacity(views.len()), Vec::new());
        for (number, view) in views.iter().enumerate() {
            let (at, len_bytes) = (view.pointer(), view.len_bytes());
            let found = index.find(at, len_bytes);
            if found.is_some_and(|shared| request.is_message(shared)) {
                lent.push(number);
            }
            let source = match found {
                Some(shared) if request.shares_memory => Source::Shared(shared),
                _ => Source::Here(at),
            };
            pieces.push(Piece { source, len_bytes, read_only: view.is_read_only() });
        }
        let views = views.into_iter().map(Some).collect();
        let head = Head { operation, token: request.head.token };
        Ok(Draft { reply: KeptReply { head, pieces, views }, lent })
    }

    /// Leaves arrays that a function made in the output where they are, if the rest of the reply fits before them. Otherwise copies
    /// them.
    pub(crate) fn placed(mut self, py: Python<'_>, output_space: Option<OutputSpace>) -> PyResult<Draft> {
        let Some(output_space) = output_space else { return Ok(self) };
        let KeptReply { pieces, views, .. } = &mut self.reply;
        let mut own = Vec::new();
        for (number, (piece, view)) in pieces.iter_mut().zip(views).enumerate() {
            let Some(at) = view.as_ref().map(BufferView::pointer) else { continue };
            if let (Some(offset), Source::Here(_)) =
                (output_space.offset_of(at, piece.len_bytes), piece.source)
            {
                piece.source = Source::Placed(offset);
                own.push((number, at));
            }
        }
        if frames::copied_bytes(pieces) > output_space.front_bytes() {
            self.take_out(py, &own)?;
        } else {
            self.lent.extend(own.iter().map(|&(number, _)| number));
        }
        Ok(self)
    }

    /// Parts the reply from memory of the call that objects of the function still use: a caller that changed its result would change
    /// them. Says whether there are such objects.
    pub(crate) fn parted(mut self, py: Python<'_>, lending: &CallMemory) -> PyResult<(KeptReply, bool)> {
        if !lending.has_lent() {
            return Ok((self.reply, false));
        }
        // Only what is used by others than this reply is to count. The memory is the client's, and stays without the view.
        let views = &mut self.reply.views;
        let lent = std::mem::take(&mut self.lent);
        let lent: Vec<_> =
            lent.into_iter().filter_map(|number| Some((number, views[number].take()?.pointer()))).collect();
        let is_in_use = lending.is_in_use(py);
        if is_in_use {
            self.take_out(py, &lent)?;
        }
        Ok((self.reply, is_in_use))
    }

    /// Copies pieces that lie in memory of the call.
    fn take_out(&mut self, py: Python<'_>, pieces: &[(usize, NonNull<u8>)]) -> PyResult<()> {
        for &(number, at) in pieces {
            let piece = &mut self.reply.pieces[number];
            let copy = PyByteArray::new_with(py, to_usize(piece.len_bytes), |into| {
                // SAFETY: the piece's bytes are of the call's memory, which is mapped for as long as the process lives.
                unsafe { SharedBytes::new(at, into.len()) }.copy_to(into);
                Ok(())
            })?;
            let view = BufferView::of(copy.as_any(), BufferUse::Writing)?;
            piece.source = Source::Here(view.pointer());
            self.reply.views[number] = Some(view);
        }
        Ok(())
    }
}
