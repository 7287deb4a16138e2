//! The functions that are on the device, with or without a sandbox. They make the next `create` of one a matter of
//! microseconds.
//!
//! `delete` removes nothing from the device. When the next `create` needs space, [`KeepAlive`] chooses the functions to
//! remove; functions of a sandbox are pinned. A program is removed with the last of its functions.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Driver;
use crate::keep_alive::{EntryCost, KeepAlive};
use crate::spec::Digest;

/// A kernel of a loaded program.
pub(crate) struct LoadedFunction<D: Driver> {
    pub module: Arc<D::Module>,
    /// The kernel's name in the program.
    pub name: String,
}

/// All functions on the device.
pub(crate) struct LoadedFunctions<D: Driver> {
    functions: HashMap<Digest, Arc<LoadedFunction<D>>>,
    kept: KeepAlive<Digest>,
}

impl<D: Driver> LoadedFunctions<D> {
    pub fn new(capacity_bytes: u64) -> LoadedFunctions<D> {
        LoadedFunctions { functions: HashMap::new(), kept: KeepAlive::new(capacity_bytes) }
    }

    /// Finds a function that is on the device, and records a use of it.
    pub fn find(&mut self, digest: &Digest) -> Option<Arc<LoadedFunction<D>>> {
        let function = self.functions.get(digest)?;
        self.kept.touch(digest);
        Some(Arc::clone(function))
    }

    pub fn insert(&mut self, digest: Digest, function: Arc<LoadedFunction<D>>, cost: EntryCost) {
        self.functions.insert(digest, function);
        let gone = self.kept.insert(digest, cost);
        self.forget(&gone);
    }

    /// Records that a sandbox has the function.
    pub fn pin(&mut self, digest: &Digest) {
        self.kept.pin(digest);
    }

    /// Records that a sandbox no longer has the function.
    pub fn unpin(&mut self, digest: &Digest) {
        let gone = self.kept.unpin(digest);
        self.forget(&gone);
    }

    fn forget(&mut self, gone: &[Digest]) {
        gone.iter().for_each(|digest| drop(self.functions.remove(digest)));
        debug_assert_eq!(
            self.functions.len(),
            self.kept.keys().count(),
            "functions, and those that are kept"
        );
    }
}
