//! Devices of nodes: which a request asks for, and which are leased.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_proto::needs::{lent_count, meant_kind};
use sublet_proto::v1::{DeviceCount, Needs};

use super::nodes::ManagedNode;

impl ManagedNode {
    /// Says which of the needed devices are not free, and how many are. Those that it does not lend are no matter here.
    pub(super) fn busy_devices(&self, needs: &Needs) -> Option<String> {
        needs.devices.iter().find_map(|DeviceCount { kind, count }| {
            let meant = meant_kind(&self.description, kind);
            let all = u32::try_from(lent_count(&self.description, kind)).unwrap_or(u32::MAX);
            let free = all.saturating_sub(self.devices_leased.get(meant).copied().unwrap_or(0));
            (*count > free)
                .then(|| format!("{count} devices of the kind {kind:?} asked, {free} of {all} are free"))
        })
    }

    /// The needs of a lease on this node: kinds of devices are called as the node calls them.
    pub(super) fn meant(&self, needs: &Arc<Needs>) -> Arc<Needs> {
        let is_meant = |one: &DeviceCount| meant_kind(&self.description, &one.kind) == one.kind;
        if needs.devices.iter().all(is_meant) {
            return needs.clone();
        }
        let mut devices = BTreeMap::<String, u32>::new();
        for DeviceCount { kind, count } in &needs.devices {
            let all = devices.entry(meant_kind(&self.description, kind).to_owned()).or_default();
            *all = all.saturating_add(*count);
        }
        let devices = devices.into_iter().map(|(kind, count)| DeviceCount { kind, count }).collect();
        Arc::new(Needs { devices, ..Needs::clone(needs) })
    }

    /// Counts the devices of a lease as leased, or no more as that.
    pub(super) fn count_devices(&mut self, needs: &Needs, is_leased: bool) {
        for DeviceCount { kind, count } in &needs.devices {
            let leased = self.devices_leased.entry(kind.clone()).or_default();
            *leased = if is_leased { leased.saturating_add(*count) } else { leased.saturating_sub(*count) };
        }
        self.devices_leased.retain(|_, count| *count > 0);
    }
}
