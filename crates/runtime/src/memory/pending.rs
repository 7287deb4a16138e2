//! Requests to pieces on other machines that have not been answered, and the cache of answers.

use std::sync::Arc;

use sublet_fabric::FabricError;
use sublet_fabric::sync::{AtomicU32, Ordering};
use sublet_fabric::tcp::Getting;
use sublet_proto::{Code, Error};

use super::cache::{LineCache, PendingBytes};

/// State of a component with pieces on other machines.
pub(super) struct RemotePieces {
    pub(super) cache: Option<LineCache<PendingBlock>>,
}

/// Bytes of a piece that were requested. Waits for them when it is dropped.
pub(super) struct PendingRead {
    getting: Option<Getting>,
    /// Number of outstanding requests of the piece.
    asked: Arc<AtomicU32>,
}

/// A requested block, for a cache.
pub(super) struct PendingBlock {
    // Declared before the bytes: it is dropped first, and waits until no write to the bytes is outstanding.
    pub(super) asking: PendingRead,
    pub(super) bytes: Vec<u8>,
}

impl RemotePieces {
    pub(super) fn new(cache: Option<LineCache<PendingBlock>>) -> RemotePieces {
        RemotePieces { cache }
    }
}

impl PendingRead {
    pub(super) fn new(getting: Getting, asked: Arc<AtomicU32>) -> PendingRead {
        asked.fetch_add(1, Ordering::AcqRel);
        PendingRead { getting: Some(getting), asked }
    }

    pub(super) fn is_first(&self) -> bool {
        self.asked.load(Ordering::Acquire) == 1
    }

    pub(super) fn wait(mut self) -> Result<(), Error> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), Error> {
        match self.getting.take() {
            Some(getting) => getting.wait().map_err(unreached),
            None => Ok(()),
        }
    }
}

impl PendingBytes for PendingBlock {
    fn wait(self) -> Result<Vec<u8>, Error> {
        let PendingBlock { asking, bytes } = self;
        asking.wait().map(|()| bytes)
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        // No caller is left to receive the error.
        let _ = self.finish();
        let before = self.asked.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a request of a piece ends, of {before}");
    }
}

/// A segment whose agent does not lend it any more is as one that is out of reach.
pub(super) fn unreached(error: FabricError) -> Error {
    match error {
        FabricError::KeyExpired { .. } => {
            Error::new(Code::AgentUnreachable, "its node does not lend it any more")
        }
        error => error.into(),
    }
}
