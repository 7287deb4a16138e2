//! Tracks the requests of this side that have no reply yet. The reply to each publishes a line, so that a thread waits
//! for a reply as for any other line.

use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex};

use crate::FabricError;
use crate::line::{Line, Turn, Watch};
use crate::sync::lock;

/// Most concurrent requests of one endpoint; further ones wait on this side. The peer keeps the same number, and ends
/// the connection of a side that sends more.
pub(super) const MAX_REQUESTS: usize = PLACES as usize;
const PLACES: u32 = 64;
/// Slots that are kept for requests whose caller waits at once, so that a caller with many asynchronous requests can
/// still make them.
const KEPT_PLACES: usize = MAX_REQUESTS / 2;

/// The request slots of one endpoint.
pub(super) struct Requests {
    places: Box<[RequestSlot]>,
    free: Mutex<Vec<u32>>,
    freed: Condvar,
}

struct RequestSlot {
    line: Line,
    watch: Watch,
    asked: Mutex<ReplySlot>,
}

/// The reply that a slot expects.
#[derive(Clone, Copy, Default)]
struct ReplySlot {
    /// Number of uses of the slot.
    uses: u64,
    expected: Option<ExpectedReply>,
}

#[derive(Clone, Copy)]
enum ExpectedReply {
    /// Exactly `len_bytes` bytes for `into`, which stays writable until the reply has come or the request is given up.
    Bytes {
        into: NonNull<u8>,
        len_bytes: u64,
    },
    Word,
    /// A reply without a waiting thread, which still arrives: a number of bytes, or a word.
    Unwanted {
        len_bytes: Option<u64>,
    },
}

// SAFETY: the memory belongs to a thread that waits until no other thread writes there any more.
unsafe impl Send for ExpectedReply {}

/// A request without a reply yet.
pub(super) struct OpenRequest {
    requests: Arc<Requests>,
    number: u32,
    turn: Turn,
    /// Whether dropping this frees the slot.
    is_owner: bool,
}

/// Immediate value of the line of a request that the peer has refused.
const REFUSED: u32 = 1;

impl Requests {
    pub(super) fn new() -> Requests {
        let place =
            || RequestSlot { line: Line::default(), watch: Watch::default(), asked: Mutex::default() };
        Requests {
            places: (0..MAX_REQUESTS).map(|_| place()).collect(),
            free: Mutex::new((0..PLACES).rev().collect()),
            freed: Condvar::new(),
        }
    }

    /// Makes a request for bytes.
    ///
    /// # Safety
    /// The bytes must be writable until the request is dropped, and it must not be dropped while frames are being
    /// received.
    pub(super) unsafe fn bytes(self: &Arc<Requests>, into: NonNull<u8>, len_bytes: u64) -> OpenRequest {
        self.begin(ExpectedReply::Bytes { into, len_bytes })
    }

    /// Makes a request for bytes that no thread waits for yet. `None` if no slot is available for it.
    ///
    /// # Safety
    /// As for [`Requests::bytes`].
    pub(super) unsafe fn bytes_ahead(
        self: &Arc<Requests>,
        into: NonNull<u8>,
        len_bytes: u64,
    ) -> Option<OpenRequest> {
        let mut free = lock(&self.free);
        let number = if free.len() > KEPT_PLACES { free.pop() } else { None };
        drop(free);
        number.map(|number| self.occupy(number, ExpectedReply::Bytes { into, len_bytes }))
    }

    /// Makes a request for a word.
    pub(super) fn word(self: &Arc<Requests>) -> OpenRequest {
        self.begin(ExpectedReply::Word)
    }

    /// Waits for a free slot, and occupies it. Each thread that holds a slot frees it in the end.
    fn begin(self: &Arc<Requests>, expected: ExpectedReply) -> OpenRequest {
        let mut free = lock(&self.free);
        let number = loop {
            match free.pop() {
                Some(number) => break number,
                None => free = self.freed.wait(free).unwrap_or_else(|poisoned| poisoned.into_inner()),
            }
        };
        drop(free);
        self.occupy(number, expected)
    }

    fn occupy(self: &Arc<Requests>, number: u32, expected: ExpectedReply) -> OpenRequest {
        let mut asked = lock(&self.places[number as usize].asked);
        let turn = Turn::of_use(asked.uses);
        *asked = ReplySlot { uses: asked.uses + 1, expected: Some(expected) };
        OpenRequest { requests: self.clone(), number, turn, is_owner: true }
    }

    /// Voids all requests after the end of their connection: a reply to any of them is an error.
    pub(super) fn void_all(&self) {
        self.void_unwanted();
        for place in &self.places {
            lock(&place.asked).expected = None;
        }
    }

    /// Voids the requests without a waiting thread, and frees their slots.
    pub(super) fn void_unwanted(&self) {
        for (number, place) in (0..).zip(&self.places) {
            let mut asked = lock(&place.asked);
            if let Some(ExpectedReply::Unwanted { .. }) = asked.expected {
                asked.expected = None;
                drop(asked);
                self.free(number);
            }
        }
    }

    /// Destination of the bytes of a reply; `None` if no thread waits for them any more.
    pub(super) fn place(&self, number: u32, len_bytes: u64) -> Result<Option<NonNull<u8>>, FabricError> {
        let place = self.places.get(number as usize).ok_or_else(|| unasked(number))?;
        let mut asked = lock(&place.asked);
        match asked.expected {
            Some(ExpectedReply::Bytes { into, len_bytes: expected }) if expected == len_bytes => {
                Ok(Some(into))
            }
            Some(ExpectedReply::Unwanted { len_bytes: Some(expected) }) if expected == len_bytes => {
                asked.expected = None;
                drop(asked);
                self.free(number);
                Ok(None)
            }
            _ => Err(unasked(number)),
        }
    }

    /// Records that the peer has refused a request, since the key of its region has expired.
    pub(super) fn refuse(&self, number: u32) -> Result<(), FabricError> {
        let place = self.places.get(number as usize).ok_or_else(|| unasked(number))?;
        let mut asked = lock(&place.asked);
        match asked.expected.take() {
            Some(ExpectedReply::Unwanted { .. }) => {
                drop(asked);
                self.free(number);
                Ok(())
            }
            Some(_) => {
                place.line.publish(&place.watch, Turn::of_use(asked.uses - 1), REFUSED, &[0; 1]);
                Ok(())
            }
            None => Err(unasked(number)),
        }
    }

    fn free(&self, number: u32) {
        lock(&self.free).push(number);
        self.freed.notify_one();
    }

    /// Publishes the line of a request whose bytes are complete.
    pub(super) fn complete(&self, number: u32) {
        let Some(place) = self.places.get(number as usize) else { return };
        let mut asked = lock(&place.asked);
        if asked.expected.take().is_some() {
            place.line.publish(&place.watch, Turn::of_use(asked.uses - 1), 0, &[0; 1]);
        }
    }

    /// Publishes the line of a request with the received word.
    pub(super) fn answer(&self, number: u32, word: u64) -> Result<(), FabricError> {
        let place = self.places.get(number as usize).ok_or_else(|| unasked(number))?;
        let mut asked = lock(&place.asked);
        match asked.expected.take() {
            Some(ExpectedReply::Word) => {
                place.line.publish(&place.watch, Turn::of_use(asked.uses - 1), 0, &[word]);
                Ok(())
            }
            Some(ExpectedReply::Unwanted { len_bytes: None }) => {
                drop(asked);
                self.free(number);
                Ok(())
            }
            other => {
                asked.expected = other;
                Err(unasked(number))
            }
        }
    }
}

#[cold]
fn unasked(number: u32) -> FabricError {
    FabricError::Protocol(format!("a reply to request {number}, which was not made or not so"))
}

impl OpenRequest {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Whether the request's connection is still the one that it was made for.
    pub(super) fn is_open(&self) -> bool {
        lock(&self.requests.places[self.number as usize].asked).expected.is_some()
    }

    /// The line that the reply publishes, and the turn.
    pub(super) fn line(&self) -> ((&Line, &Watch), Turn) {
        let place = &self.requests.places[self.number as usize];
        ((&place.line, &place.watch), self.turn)
    }

    /// The received word; `None` if the request was refused.
    pub(super) fn word(&self) -> Option<u64> {
        let (immediate, [word]) = self.line().0.0.read();
        (immediate != REFUSED).then_some(word)
    }

    /// Gives up a request. Its slot stays occupied until the reply comes or the connection ends.
    pub(super) fn abandon(mut self) {
        let mut asked = lock(&self.requests.places[self.number as usize].asked);
        let len_bytes = match asked.expected {
            Some(ExpectedReply::Bytes { len_bytes, .. }) => Some(len_bytes),
            Some(ExpectedReply::Word) => None,
            // The reply has come.
            Some(ExpectedReply::Unwanted { .. }) | None => return,
        };
        asked.expected = Some(ExpectedReply::Unwanted { len_bytes });
        drop(asked);
        self.is_owner = false;
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if self.is_owner {
            lock(&self.requests.places[self.number as usize].asked).expected = None;
            self.requests.free(self.number);
        }
    }
}
