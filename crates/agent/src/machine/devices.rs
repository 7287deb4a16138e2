//! Assigns whole devices to leases, each to at most one at a time.
//!
//! A [`DeviceReservation`] gives its devices back when it is dropped; nothing else does.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sublet_fabric::sync::lock;
use sublet_proto::cdi::DeviceEdits;
use sublet_proto::v1::{DeviceCount, LentDevices};
use sublet_proto::{Code, Error};

/// A device that the node lends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LentDevice {
    /// Name of the device, unique in its kind.
    pub(crate) name: String,
    /// Files and variables that a program needs to use the device.
    pub(crate) edits: DeviceEdits,
}

/// A device, and whether a lease has it.
#[derive(Debug)]
struct DeviceSlot {
    device: Arc<LentDevice>,
    is_leased: bool,
}

/// The node's devices, by their kind; shared by the supervisors of its leases.
#[derive(Clone, Debug, Default)]
pub(crate) struct DevicePool(Arc<Mutex<BTreeMap<String, Vec<DeviceSlot>>>>);

impl DevicePool {
    pub(crate) fn new(devices: BTreeMap<String, Vec<LentDevice>>) -> DevicePool {
        let slot = |device| DeviceSlot { device: Arc::new(device), is_leased: false };
        let slots = |devices: Vec<LentDevice>| devices.into_iter().map(slot).collect();
        DevicePool(Arc::new(Mutex::new(
            devices.into_iter().map(|(kind, devices)| (kind, slots(devices))).collect(),
        )))
    }

    /// The devices as managers know them.
    pub(crate) fn described(&self) -> Vec<LentDevices> {
        let names = |slots: &[DeviceSlot]| slots.iter().map(|slot| slot.device.name.clone()).collect();
        let kinds = lock(&self.0);
        kinds.iter().map(|(kind, slots)| LentDevices { kind: kind.clone(), names: names(slots) }).collect()
    }

    /// All devices.
    pub(crate) fn all(&self) -> Vec<Arc<LentDevice>> {
        lock(&self.0).values().flatten().map(|slot| slot.device.clone()).collect()
    }

    /// Reserves all requested devices, or none: of each kind the first that are free.
    ///
    /// # Errors
    /// `insufficient_resources` if the node has not as many of a kind, and `no_capacity` if they are leased.
    pub(crate) fn reserve(&self, wanted: &[DeviceCount]) -> Result<DeviceReservation, Error> {
        let mut kinds = lock(&self.0);
        for DeviceCount { kind, count } in wanted {
            check(kind, *count, kinds.get(kind).map(Vec::as_slice).unwrap_or_default())?;
        }
        let mut taken = Vec::new();
        for DeviceCount { kind, count } in wanted {
            let free = kinds.get_mut(kind).into_iter().flatten().filter(|slot| !slot.is_leased);
            taken.extend(free.take(*count as usize).map(|slot| {
                slot.is_leased = true;
                (kind.clone(), slot.device.clone())
            }));
        }
        debug_assert_eq!(
            taken.len() as u64,
            wanted.iter().map(|one| u64::from(one.count)).sum::<u64>(),
            "devices reserved for {wanted:?}: {taken:?}"
        );
        Ok(DeviceReservation { pool: self.clone(), taken })
    }
}

/// Checks that as many devices of a kind are free.
fn check(kind: &str, count: u32, slots: &[DeviceSlot]) -> Result<(), Error> {
    let (count, all) = (count as usize, slots.len());
    let free = slots.iter().filter(|slot| !slot.is_leased).count();
    if count > all {
        let message = format!("{count} devices of the kind {kind:?} asked, the node lends {all}");
        return Err(Error::new(Code::InsufficientResources, message));
    }
    if count > free {
        let message = format!("{count} devices of the kind {kind:?} asked, {free} of {all} are free");
        return Err(Error::new(Code::NoCapacity, message));
    }
    Ok(())
}

/// Devices that belong to one lease until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct DeviceReservation {
    pool: DevicePool,
    /// Each with its kind.
    taken: Vec<(String, Arc<LentDevice>)>,
}

impl DeviceReservation {
    /// The devices, in the order of their kinds.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &LentDevice> {
        self.taken.iter().map(|(_, device)| &**device)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Never gives the devices back: something that cannot be ended still uses them.
    pub(crate) fn forfeit(&mut self) {
        self.taken.clear();
    }
}

impl Drop for DeviceReservation {
    fn drop(&mut self) {
        let mut kinds = lock(&self.pool.0);
        for (kind, device) in &self.taken {
            let slots = kinds.get_mut(kind).into_iter().flatten();
            for slot in slots.filter(|slot| Arc::ptr_eq(&slot.device, device)) {
                debug_assert!(slot.is_leased, "device {} of the kind {kind} is free already", device.name);
                slot.is_leased = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pool(kinds: &[(&str, &[&str])]) -> DevicePool {
        let device = |name: &&str| LentDevice { name: (*name).to_owned(), edits: DeviceEdits::default() };
        let kind = |&(kind, names): &(&str, &[&str])| {
            (kind.to_owned(), names.iter().map(device).collect::<Vec<_>>())
        };
        DevicePool::new(kinds.iter().map(kind).collect())
    }

    fn wanted(kinds: &[(&str, u32)]) -> Vec<DeviceCount> {
        kinds.iter().map(|&(kind, count)| DeviceCount { kind: kind.into(), count }).collect()
    }

    fn names(reservation: &DeviceReservation) -> Vec<&str> {
        reservation.devices().map(|device| device.name.as_str()).collect()
    }

    #[test]
    fn each_device_is_one_leases_until_that_ends() {
        let pool = pool(&[("cuda", &["0", "1"]), ("fpga", &["a"])]);
        let first = pool.reserve(&wanted(&[("cuda", 1), ("fpga", 1)])).unwrap();
        let second = pool.reserve(&wanted(&[("cuda", 1)])).unwrap();
        assert_eq!((names(&first), names(&second)), (vec!["0", "a"], vec!["1"]));
        let full = pool.reserve(&wanted(&[("cuda", 1)])).unwrap_err();
        assert_eq!(full.code, Code::NoCapacity);
        assert!(full.message.contains("\"cuda\"") && full.message.contains("0 of 2"), "{full}");
        drop(first);
        assert_eq!(names(&pool.reserve(&wanted(&[("cuda", 1)])).unwrap()), ["0"]);
        let missing = pool.reserve(&wanted(&[("cuda", 3)])).unwrap_err();
        assert_eq!(missing.code, Code::InsufficientResources);
        let unknown = pool.reserve(&wanted(&[("tpu", 1)])).unwrap_err();
        assert_eq!(unknown.code, Code::InsufficientResources);
        assert!(unknown.message.contains("\"tpu\""), "{unknown}");
    }

    #[test]
    fn refused_request_takes_nothing() {
        let pool = pool(&[("cuda", &["0"]), ("fpga", &["a"])]);
        let held = pool.reserve(&wanted(&[("fpga", 1)])).unwrap();
        assert!(pool.reserve(&wanted(&[("cuda", 1), ("fpga", 1)])).is_err());
        assert_eq!(names(&pool.reserve(&wanted(&[("cuda", 1)])).unwrap()), ["0"]);
        drop(held);
    }

    #[test]
    fn forfeited_devices_do_not_come_back() {
        let pool = pool(&[("cuda", &["0", "1"])]);
        pool.reserve(&wanted(&[("cuda", 1)])).unwrap().forfeit();
        assert_eq!(names(&pool.reserve(&wanted(&[("cuda", 1)])).unwrap()), ["1"]);
        assert_eq!(pool.reserve(&wanted(&[("cuda", 2)])).unwrap_err().code, Code::NoCapacity);
    }

    #[test]
    fn no_device_is_lent_twice_in_any_order_of_leases() {
        // A fixed linear congruential sequence: each step reserves some devices or gives a reservation back.
        let all = ["0", "1", "2", "3", "4", "5", "6", "7"];
        let (mut random, pool) = (12_345_u64, pool(&[("cuda", &all)]));
        let mut held: Vec<DeviceReservation> = Vec::new();
        for _ in 0..2_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let choice = (random >> 33) as usize;
            if choice.is_multiple_of(3) && !held.is_empty() {
                held.swap_remove(choice % held.len());
            } else if let Ok(reservation) = pool.reserve(&wanted(&[("cuda", (choice % 4) as u32)])) {
                held.push(reservation);
            }
            let lent: Vec<&str> = held.iter().flat_map(names).collect();
            assert_eq!(lent.len(), lent.iter().collect::<BTreeSet<_>>().len(), "{lent:?}");
        }
    }
}
