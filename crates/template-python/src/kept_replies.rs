//! Replies that were larger than the output of their call: kept until the client asks for them with a larger one.

use std::collections::VecDeque;

use sublet_python_buffers::BufferView;
use sublet_runtime::frames::{Head, Piece};

/// Most replies that are kept. A client fetches its reply at once, so further replies are those of callers that are
/// gone.
const MOST: usize = 64;

/// A reply, and the objects that own its memory.
pub(crate) struct KeptReply {
    pub(crate) head: Head,
    pub(crate) pieces: Vec<Piece>,
    /// Keeps the memory of each piece, except of pieces in the client's own memory.
    pub(crate) views: Vec<Option<BufferView>>,
}

// SAFETY: the pieces point into memory that the views keep, which may be used and given up by any thread that is attached.
unsafe impl Send for KeptReply {}

/// Replies that wait for their client; see the [module](self).
#[derive(Default)]
pub(crate) struct KeptReplies(VecDeque<KeptReply>);

impl KeptReplies {
    pub(crate) fn keep(&mut self, reply: KeptReply) {
        debug_assert_eq!(reply.pieces.len(), reply.views.len(), "pieces, and the owners of their memory");
        debug_assert!(self.0.len() <= MOST, "{} replies are kept, at most {MOST}", self.0.len());
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(reply);
    }

    /// Removes and returns the reply of a call, if it is still kept.
    pub(crate) fn take(&mut self, token: u64) -> Option<KeptReply> {
        let at = self.0.iter().position(|reply| reply.head.token == token)?;
        self.0.remove(at)
    }
}
