//! Queues the replies that the peer has requested. The receiving thread adds them, and the sending thread removes them.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;

use super::requests::MAX_REQUESTS;
use crate::FabricError;
use crate::sync::{Mutex, Ordering, fence, lock};

/// A reply to be sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum TcpReply {
    /// Bytes of a region. Its key is checked when they are sent, since it may have expired by then.
    Bytes {
        request: u32,
        key: u64,
        offset: u64,
        len_bytes: u64,
    },
    Word {
        request: u32,
        before: u64,
    },
    /// The region's key has expired.
    Refused {
        request: u32,
    },
}

/// The queue of replies of one endpoint.
pub(super) struct Replies {
    waiting: Mutex<VecDeque<TcpReply>>,
    /// Number of queued replies. Written under the lock.
    count: AtomicUsize,
}

impl Replies {
    pub(super) fn new() -> Replies {
        Replies { waiting: Mutex::new(VecDeque::with_capacity(MAX_REQUESTS)), count: AtomicUsize::new(0) }
    }

    pub(super) fn push(&self, reply: TcpReply) -> Result<(), FabricError> {
        let mut waiting = lock(&self.waiting);
        if waiting.len() == MAX_REQUESTS {
            return Err(FabricError::Protocol(format!("more than {MAX_REQUESTS} requests at once")));
        }
        waiting.push_back(reply);
        self.count.store(waiting.len(), Ordering::Release);
        Ok(())
    }

    pub(super) fn pop(&self) -> Option<TcpReply> {
        let mut waiting = lock(&self.waiting);
        let reply = waiting.pop_front();
        self.count.store(waiting.len(), Ordering::Release);
        reply
    }

    pub(super) fn clear(&self) {
        while self.pop().is_some() {}
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether the queue is empty, ordered after everything that the caller did before. A thread adds a reply and then
    /// finds the sender busy; the sender finishes and then checks for replies. With this order one of the two sees the
    /// reply.
    #[inline]
    pub(super) fn is_empty_now(&self) -> bool {
        fence(Ordering::SeqCst);
        self.is_empty()
    }
}
