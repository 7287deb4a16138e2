//! Replies that were larger than the output of their call: kept until the client asks for them with a larger one.

use std::collections::VecDeque;

use sublet_python_buffers::View;
use sublet_runtime::frames::{Head, Piece};

/// Most replies that are kept. A client asks for one at once, so that more are those of callers who have gone.
const MOST: usize = 64;

/// A reply, and the objects of whose memory it consists.
pub(crate) struct Reply {
    pub(crate) head: Head,
    pub(crate) pieces: Vec<Piece>,
    /// Keeps the memory of each piece, but for pieces that are where the client has them.
    pub(crate) views: Vec<Option<View>>,
}

// SAFETY: the pieces point into memory that the views keep, which may be used and given up by any thread that is attached.
unsafe impl Send for Reply {}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Keeping(VecDeque<Reply>);

impl Keeping {
    pub(crate) fn keep(&mut self, reply: Reply) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(reply);
    }

    /// That of a call, if it is still there.
    pub(crate) fn take(&mut self, token: u64) -> Option<Reply> {
        let at = self.0.iter().position(|reply| reply.head.token == token)?;
        self.0.remove(at)
    }
}
