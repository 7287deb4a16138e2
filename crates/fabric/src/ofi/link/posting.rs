//! Operations on a link, and their completions.

use std::ffi::{c_int, c_void};

use super::OfiLink;
use crate::FabricError;
use crate::ofi::ffi::{self, FfiCompletion, FfiFailure, RawLink, Transfer};

/// An operation that moves bytes, as the shim posts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// Completes when the local bytes may be reused.
    Write,
    /// Completes when the bytes are in the peer's memory.
    WriteDelivered,
    /// Completes like `Write`; the peer gets a completion with data.
    WriteData,
    /// Works like `WriteData`, without a completion here.
    WriteDataSilently,
    /// The local bytes may be reused at once; there is no completion.
    Inject,
    /// Works like `Inject`; the peer gets a completion with data.
    InjectData,
    /// Completes when the peer's bytes are here.
    Read,
    /// Adds to a word. The local words are operand, expected, result.
    FetchAdd,
    /// Replaces a word. The local words are the same as for `FetchAdd`.
    CompareSwap,
}

impl OfiLink {
    /// Posts an operation. False: another operation must complete first. An operation that was not posted may be tried
    /// again, also with other bytes. Some of its bytes may have been sent by then, but no immediate data.
    ///
    /// # Safety
    /// The local bytes must stay in place and unchanged until the operation has completed or the link is closed; for
    /// `Inject*`, during the call. Other code must not access the bytes of a read or an atomic in that time. The
    /// context must stay in place for the same time. If the operation could not be posted, the local bytes must stay in
    /// place until the link is closed.
    #[inline]
    pub unsafe fn post(&mut self, what: Post, transfer: &Transfer) -> Result<bool, FabricError> {
        let table = self.table;
        let post = match what {
            Post::Write => table.write,
            Post::WriteDelivered => table.write_delivered,
            Post::WriteData => table.write_data,
            Post::WriteDataSilently => table.write_data_silently,
            Post::Inject => table.inject,
            Post::InjectData => table.inject_data,
            Post::Read => table.read,
            Post::FetchAdd => table.fetch_add,
            Post::CompareSwap => table.compare_swap,
        };
        if self.separates_data && matches!(what, Post::WriteData | Post::WriteDataSilently) {
            // SAFETY: the caller's duty.
            return unsafe { self.post_separately(post, transfer) };
        }
        // SAFETY: the link is open; the rest is the caller's duty.
        let rc = unsafe { post(self.raw.as_ptr(), transfer) };
        self.posted("posting an operation", rc)
    }

    /// Posts the bytes of a write with immediate data, and then the data. The provider keeps their order. The bytes
    /// complete with a null context, which no operation has.
    ///
    /// # Safety
    /// The same as for [`OfiLink::post`].
    unsafe fn post_separately(
        &mut self,
        post_data: unsafe extern "C" fn(*mut RawLink, *const Transfer) -> c_int,
        transfer: &Transfer,
    ) -> Result<bool, FabricError> {
        let bytes = Transfer { data: 0, context: std::ptr::null_mut(), ..*transfer };
        // SAFETY: the link is open; the rest is the caller's duty.
        let rc = unsafe { (self.table.write)(self.raw.as_ptr(), &raw const bytes) };
        if !self.posted("posting an operation", rc)? {
            return Ok(false);
        }
        let data = Transfer { len_bytes: 0, ..*transfer };
        // SAFETY: as above.
        let rc = unsafe { post_data(self.raw.as_ptr(), &raw const data) };
        self.posted("posting an operation", rc)
    }

    /// Posts a receive for a remote completion. False: another operation must complete first.
    pub fn receive(&mut self, context: *mut c_void) -> Result<bool, FabricError> {
        // SAFETY: the link is open, and the context stays in place by the engine's duty.
        let rc = unsafe { (self.table.receive)(self.raw.as_ptr(), context) };
        self.posted("posting a receive", rc)
    }

    /// Takes completions, and returns how many.
    #[inline]
    pub fn poll(&mut self, completions: &mut [FfiCompletion]) -> Result<usize, FabricError> {
        // SAFETY: the slice has space for the passed number of completions, and the link is open.
        let rc = unsafe { (self.table.poll)(self.raw.as_ptr(), completions.as_mut_ptr(), completions.len()) };
        match usize::try_from(rc) {
            Ok(count) => Ok(count),
            Err(_) if rc == -ffi::EAGAIN => Ok(0),
            Err(_) => Err(self.completion_error(rc)),
        }
    }

    /// Whether the descriptors will report the next arrival. False: something has arrived already.
    pub fn try_wait(&mut self) -> bool {
        // SAFETY: the link is open.
        unsafe { (self.table.try_wait)(self.raw.as_ptr()) == 0 }
    }

    /// The flag of a completion with the peer's data.
    pub fn remote_data(&self) -> u64 {
        self.table.remote_data
    }

    #[inline]
    fn posted(&self, what: &str, rc: c_int) -> Result<bool, FabricError> {
        match rc {
            0 => Ok(true),
            _ if rc == -ffi::EAGAIN => Ok(false),
            _ => self.check(what, rc).map(|()| true),
        }
    }

    #[cold]
    fn completion_error(&mut self, rc: c_int) -> FabricError {
        let mut failure = FfiFailure::empty();
        // SAFETY: `failure` is writable, and the link is open.
        let taken =
            rc == -ffi::EAVAIL && unsafe { (self.table.failure)(self.raw.as_ptr(), &raw mut failure) } > 0;
        let reason = match (taken, failure.text()) {
            (false, _) => self.table.text(rc),
            (true, text) if text.is_empty() => self.table.text(failure.error),
            (true, text) => format!("{}: {text}", self.table.text(failure.error)),
        };
        FabricError::Disconnected { reason: format!("{}: {reason}", self.facts.provider()) }
    }
}
