//! The table of the names of FIFOs: which FIFOs have or claim each name.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use sublet_proto::v1;
use sublet_xpu::GlobalId;

/// A tenant's name of a FIFO.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TenantFifoName {
    pub(super) tenant: Arc<str>,
    pub(super) name: String,
}

/// FIFOs that have or claim each name: one, except while claims are under way.
#[derive(Default)]
pub(super) struct FifoNames(HashMap<TenantFifoName, BTreeSet<GlobalId>>);

impl TenantFifoName {
    pub(super) fn of(told: &v1::FifoName) -> TenantFifoName {
        TenantFifoName { tenant: told.tenant.as_str().into(), name: told.name.clone() }
    }

    pub(super) fn told(&self, object: GlobalId) -> v1::FifoName {
        v1::FifoName { tenant: self.tenant.to_string(), name: self.name.clone(), object: object.to_bits() }
    }
}

impl FifoNames {
    pub(super) fn insert(&mut self, name: TenantFifoName, object: GlobalId) {
        self.0.entry(name).or_default().insert(object);
    }

    pub(super) fn remove(&mut self, name: &TenantFifoName, object: GlobalId) {
        if let Some(holders) = self.0.get_mut(name) {
            holders.remove(&object);
            if holders.is_empty() {
                self.0.remove(name);
            }
        }
    }

    /// FIFOs that have or claim a name, the lowest id first.
    pub(super) fn holders(&self, name: &TenantFifoName) -> impl Iterator<Item = GlobalId> + '_ {
        self.0.get(name).into_iter().flatten().copied()
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> BTreeSet<(TenantFifoName, GlobalId)> {
        self.0
            .iter()
            .flat_map(|(name, holders)| holders.iter().map(|object| (name.clone(), *object)))
            .collect()
    }
}
