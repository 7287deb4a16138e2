//! Requests and replies of Python functions: pickles, and the memory that was left out of them.

use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};
use sublet::frames::{self, At, Head, Piece, Place, Shared, Source};
use sublet::{Code, Error};
use sublet_python_buffers::{Use, View};

use crate::buffer::{Buffer, Owner};
use crate::error::raised;
use crate::pool::{Paper, Pool};

/// A part that is no larger is copied out of its message, so that the message's memory can be used again, in bytes.
const COPIED_BYTES: u64 = 4096;

/// A request that was written, and all that its reply may refer to.
pub struct Request {
    /// The message.
    pub paper: Paper,
    /// Of so many bytes.
    pub len_bytes: u32,
    /// Which call it belongs to.
    pub token: u64,
    parts: Vec<Part>,
}

/// One part of a request.
struct Part {
    view: Arc<View>,
    /// Whether workers use the object's own memory.
    is_shared: bool,
}

/// What a worker answered.
#[derive(IntoPyObject)]
pub struct Reply<'py>(u32, Bound<'py, PyList>);

impl Request {
    /// Writes one on a page of this pool. What is registered there is not copied if the workers share it with this process.
    pub fn new(
        py: Python<'_>,
        head: Head,
        parts: &[Bound<'_, PyAny>],
        (pool, shares_memory): (&Arc<Pool>, bool),
    ) -> PyResult<Request> {
        let failed = |error: Error| raised(py, &error);
        let memory = pool.memory();
        let (mut pieces, mut kept) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for (number, part) in parts.iter().enumerate() {
            let view = Arc::new(View::of(part, Use::Reading)?);
            let (at, len_bytes) = (view.pointer().as_ptr().cast_const(), view.len_bytes());
            let shared = (shares_memory && number > 0).then(|| memory.locate(at, len_bytes)).flatten();
            let source = shared.map_or(Source::Here(at), Source::Shared);
            pieces.push(Piece { source, len_bytes, read_only: view.is_read_only() && shared.is_some() });
            kept.push(Part { view, is_shared: shared.is_some() });
        }
        let len = frames::len_bytes(&pieces);
        let len_bytes = u32::try_from(len).map_err(|_| {
            let message = format!("the arguments of a call have {len} bytes, at most {} are taken", u32::MAX);
            raised(py, &Error::new(Code::InputTooLarge, message))
        })?;
        let paper = pool.take(len).map_err(failed)?;
        // SAFETY: the paper has room for it, and nobody else has it; the views keep the pieces where they are.
        unsafe {
            frames::write(head, &pieces, paper.as_ptr().cast_mut());
        }
        Ok(Request { paper, len_bytes, token: head.token, parts: kept })
    }

    /// Reads the reply of so many bytes on that paper.
    pub fn reply<'py>(&self, py: Python<'py>, paper: &Paper, len_bytes: usize) -> PyResult<Reply<'py>> {
        let at = NonNull::from(&paper[..]).cast::<u8>();
        let copy = |from: u64, into: &mut [u8]| {
            // SAFETY: `read` asks for nothing beyond the length that it was told, and the paper has as much.
            unsafe {
                std::ptr::copy_nonoverlapping(at.as_ptr().add(from as usize), into.as_mut_ptr(), into.len());
            }
        };
        let read = frames::read(len_bytes.min(paper.len()) as u64, copy);
        let (head, places) = read.map_err(|error| raised(py, &error))?;
        let parts = PyList::empty(py);
        for (number, place) in places.iter().enumerate() {
            let (at, owner) = self.find(py, place, (at, paper))?;
            let is_pickle = number == 0;
            let is_own = matches!(owner, Owner::Object(_));
            if is_pickle || (place.len_bytes <= COPIED_BYTES && !is_own) {
                let copy = |into: &mut [u8]| {
                    // SAFETY: `find` has found so many bytes there, which are never referred to: workers may still write them.
                    unsafe { std::ptr::copy_nonoverlapping(at.as_ptr(), into.as_mut_ptr(), into.len()) };
                    Ok(())
                };
                let len = place.len_bytes as usize;
                if is_pickle || place.read_only {
                    parts.append(PyBytes::new_with(py, len, copy)?)?;
                } else {
                    parts.append(PyByteArray::new_with(py, len, copy)?)?;
                }
            } else {
                parts.append(Buffer::new(at, place.len_bytes, place.read_only, owner))?;
            }
        }
        Ok(Reply(head.operation, parts))
    }

    /// Where a part of the reply is, and who keeps it there.
    fn find(
        &self,
        py: Python<'_>,
        place: &Place,
        (message, paper): (NonNull<u8>, &Paper),
    ) -> PyResult<(NonNull<u8>, Owner)> {
        let Shared { number, offset } = match place.at {
            At::Message(offset) => {
                // SAFETY: `read` has found that it is in the message.
                let at = unsafe { message.add(offset as usize) };
                return Ok((at, Owner::Message(paper.clone())));
            }
            At::Shared(shared) => shared,
        };
        let unknown = || {
            let message =
                format!("a worker returned {} bytes at {offset} of argument {number}", place.len_bytes);
            raised(py, &Error::new(Code::Protocol, message))
        };
        let part = self.parts.get(number as usize - 1).ok_or_else(unknown)?;
        if offset.checked_add(place.len_bytes).is_none_or(|end| end > part.view.len_bytes()) {
            return Err(unknown());
        }
        let (begin, owner) = match part.is_shared {
            true => (part.view.pointer(), Owner::Object(part.view.clone())),
            false => (self.in_message(number as usize - 1), Owner::Message(self.paper.clone())),
        };
        // SAFETY: it is within the part, as was just found.
        Ok((unsafe { begin.add(offset as usize) }, owner))
    }

    /// Where a part stands that was copied into the message.
    fn in_message(&self, wanted: usize) -> NonNull<u8> {
        let begins =
            frames::offsets(self.parts.iter().map(|part| (!part.is_shared).then(|| part.view.len_bytes())));
        let offset = begins.get(wanted).copied().unwrap_or_default();
        // SAFETY: where `write` has put it.
        unsafe { NonNull::from(&self.paper[..]).cast::<u8>().add(offset as usize) }
    }
}
