//! The functions that are on the device, whether a sandbox has them or not: what makes the next `create` of one a matter
//! of microseconds.
//!
//! `delete` takes nothing from the device. What has to go is chosen by [`KeepAlive`] when the next `create` needs the
//! room; what a sandbox still has is pinned. A program goes with the last of its functions.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Driver;
use crate::keep_alive::{Cost, KeepAlive};
use crate::spec::Digest;

/// A kernel of a program that is loaded.
pub(crate) struct Function<D: Driver> {
    pub module: Arc<D::Module>,
    /// Its name there.
    pub name: String,
}

/// All of them.
pub(crate) struct Loaded<D: Driver> {
    functions: HashMap<Digest, Arc<Function<D>>>,
    kept: KeepAlive<Digest>,
}

impl<D: Driver> Loaded<D> {
    pub fn new(capacity_bytes: u64) -> Loaded<D> {
        Loaded { functions: HashMap::new(), kept: KeepAlive::new(capacity_bytes) }
    }

    /// One that is there, from now on used once more.
    pub fn find(&mut self, digest: &Digest) -> Option<Arc<Function<D>>> {
        let function = self.functions.get(digest)?;
        self.kept.touch(digest);
        Some(Arc::clone(function))
    }

    pub fn insert(&mut self, digest: Digest, function: Arc<Function<D>>, cost: Cost) {
        self.functions.insert(digest, function);
        let gone = self.kept.insert(digest, cost);
        self.forget(&gone);
    }

    /// A sandbox has it.
    pub fn pin(&mut self, digest: &Digest) {
        self.kept.pin(digest);
    }

    /// A sandbox has it no more.
    pub fn unpin(&mut self, digest: &Digest) {
        let gone = self.kept.unpin(digest);
        self.forget(&gone);
    }

    fn forget(&mut self, gone: &[Digest]) {
        gone.iter().for_each(|digest| drop(self.functions.remove(digest)));
    }
}
