//! The trees of environments that a node has, and the locks of those that are being made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};

use sublet_fabric::sync::lock;

/// Path of the tree of an environment in its package's folder.
pub(super) const TREE: &str = ".built/environment";

/// The environments of a node.
#[derive(Default)]
pub(super) struct Environments {
    /// Trees that are complete, by the digests of their environments.
    pub(super) ready: Mutex<BTreeMap<String, PathBuf>>,
    /// Layers that were unpacked or verified since the agent's start.
    pub(super) verified: Mutex<BTreeSet<String>>,
    /// Locks of what is being made, by digest.
    making: Mutex<BTreeMap<String, Weak<Mutex<()>>>>,
}

impl Environments {
    /// The lock of one environment or layer: none is made twice at once.
    pub(super) fn lock_of(&self, digest: &str) -> Arc<Mutex<()>> {
        let mut making = lock(&self.making);
        if let Some(known) = making.get(digest).and_then(Weak::upgrade) {
            return known;
        }
        making.retain(|_, known| known.strong_count() > 0);
        let made = Arc::default();
        making.insert(digest.to_owned(), Arc::downgrade(&made));
        made
    }
}
