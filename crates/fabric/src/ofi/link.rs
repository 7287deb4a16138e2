//! A connection's objects in libfabric, with their errors in this project's terms.
//!
//! Only one thread at a time uses a link: `OfiLink` is `Send` and not `Sync`, and the endpoint keeps it behind a lock.

mod memory;
mod opening;
mod posting;
mod random;

use std::ffi::c_int;
use std::ptr::NonNull;

pub use opening::OfiNetwork;
pub use posting::Post;
pub use random::random;

use super::contact::Contact;
use super::ffi::{self, FfiEvent, FfiFacts, FfiTable, RawLink, RawRegistration};
use crate::FabricError;

/// The shim's `OFI_RDM`: endpoints that send to any other endpoint.
pub const RDM: u32 = 0;
/// The shim's `OFI_MSG`: endpoints that are connected to one other endpoint.
pub const MSG: u32 = 1;

/// See the [module](self).
pub struct OfiLink {
    table: &'static FfiTable,
    raw: NonNull<RawLink>,
    registrations: Vec<RawRegistration>,
    /// Immediate data goes in a write of its own, after the bytes.
    separates_data: bool,
    /// Properties of the provider's interface.
    pub facts: FfiFacts,
}

// SAFETY: libfabric's objects belong to the process; the domain's threading model asks that one thread at a time uses
// them, which exclusive ownership ensures.
unsafe impl Send for OfiLink {}

impl OfiLink {
    /// Makes this endpoint's contact.
    pub fn contact(&mut self, landing: &RawRegistration, base: u64) -> Result<Contact, FabricError> {
        let mut name = [0u8; 256];
        let mut len_bytes = name.len();
        // SAFETY: `name` has `len_bytes` bytes, and the link is open.
        let rc =
            unsafe { (self.table.name)(self.raw.as_ptr(), name.as_mut_ptr().cast(), &raw mut len_bytes) };
        self.check("asking for the end's name", rc)?;
        let mut token = [0; ffi::TOKEN_BYTES];
        random(&mut token)?;
        Ok(Contact {
            provider: self.facts.provider(),
            #[expect(clippy::cast_possible_truncation, reason = "the shim's kinds are `RDM` and `MSG`")]
            kind: self.facts.kind as u8,
            name: name[..len_bytes.min(name.len())].to_vec(),
            token,
            landing_key: landing.key,
            landing_base: base,
        })
    }

    /// Listens for the peer, on a connected endpoint. [`OfiLink::event`] reports the peer's request.
    pub fn listen(&mut self) -> Result<(), FabricError> {
        // SAFETY: the link is open.
        let rc = unsafe { (self.table.listen)(self.raw.as_ptr()) };
        self.check("listening", rc)
    }

    /// Records the peer's address, on an unconnected endpoint.
    pub fn insert(&mut self, peer: &Contact) -> Result<(), FabricError> {
        // SAFETY: the name has the passed number of bytes, and the link is open.
        let rc =
            unsafe { (self.table.insert)(self.raw.as_ptr(), peer.name.as_ptr().cast(), peer.name.len()) };
        self.check("learning the peer's address", rc)
    }

    /// Begins to connect to the peer, on a connected endpoint. [`OfiLink::event`] reports the outcome.
    pub fn dial(&mut self, peer: &Contact) -> Result<(), FabricError> {
        let (name, token) = (peer.name.as_ptr().cast(), peer.token.as_ptr());
        // SAFETY: the name has the passed number of bytes, the token has the size that the shim reads; the link is
        // open.
        let rc = unsafe { (self.table.dial)(self.raw.as_ptr(), name, peer.name.len(), token) };
        self.check("connecting", rc)
    }

    /// Returns the next event of the connection, if there is one.
    pub fn event(&mut self) -> Result<FfiEvent, FabricError> {
        let mut event = FfiEvent::default();
        // SAFETY: `event` is writable, and the link is open with an event queue.
        let rc = unsafe { (self.table.event)(self.raw.as_ptr(), &raw mut event) };
        self.check("reading events", rc)?;
        Ok(event)
    }

    /// Makes the endpoint for the peer of the last request.
    pub fn admit(&mut self) -> Result<(), FabricError> {
        // SAFETY: the link is open.
        let rc = unsafe { (self.table.admit)(self.raw.as_ptr()) };
        self.check("making an end for the peer", rc)
    }

    /// Accepts the peer for which [`OfiLink::admit`] made an endpoint.
    pub fn accept(&mut self) -> Result<(), FabricError> {
        // SAFETY: the link is open and was admitted to.
        let rc = unsafe { (self.table.accept)(self.raw.as_ptr()) };
        self.check("accepting the peer", rc)
    }

    /// Refuses the peer of the last request.
    pub fn refuse(&mut self) {
        // SAFETY: the link is open.
        unsafe { (self.table.refuse)(self.raw.as_ptr()) }
    }

    /// Tells the peer that the connection has ended, on a connected endpoint.
    pub fn shutdown(&mut self) {
        // SAFETY: the link is open.
        unsafe { (self.table.shutdown)(self.raw.as_ptr()) }
    }

    /// Whether the provider adds to and swaps words in the peer's memory.
    pub fn has_atomics(&mut self) -> bool {
        // SAFETY: the link is open.
        unsafe { (self.table.has_atomics)(self.raw.as_ptr()) != 0 }
    }

    /// Text of libfabric for an error.
    pub fn error_text(&self, error: c_int) -> String {
        format!("{}: {}", self.facts.provider(), self.table.text(error))
    }

    fn check(&self, what: &str, rc: c_int) -> Result<(), FabricError> {
        if rc >= 0 {
            return Ok(());
        }
        let operation = format!("{} over {}", what, self.facts.provider());
        Err(FabricError::system(operation, std::io::Error::other(self.table.text(rc))))
    }
}

impl Drop for OfiLink {
    fn drop(&mut self) {
        for registration in self.registrations.drain(..) {
            // SAFETY: made by this link and not dismissed before.
            unsafe { (self.table.dismiss)(registration.handle) };
        }
        // SAFETY: the link is open, and never used again.
        unsafe { (self.table.close)(self.raw.as_ptr()) };
    }
}
