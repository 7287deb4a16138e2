//! Keeps one node in the ranked lists: of its architecture, and of each of its devices and interpreters. So a lease of
//! kernels, or of functions in Python, is placed like any other, and its resources are taken from all of the node's
//! lists.

use sublet_proto::package::{is_device, is_interpreter};
use sublet_proto::v1::NodeDescription;

use super::classes::{Classes, CountedResources};
use super::ids::ClassKey;
use super::racks::Spot;

/// Most classes of one node: those of its architecture, of two devices, of a Python, of its platform, of images' Pythons,
/// and of a Node.js.
pub(super) const MAX_SEATS: usize = 7;

/// A node's position in one class.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seat {
    pub(super) class: ClassKey,
    /// Position among the nodes with as much free: for exclusive and for shared workers.
    pub(super) spots: [Option<Spot>; 2],
    /// The part of the node that is counted in the class's capacity.
    pub(super) counted: [Option<CountedResources>; 2],
}

/// All seats of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seats([Option<Seat>; MAX_SEATS]);

/// The known devices and interpreters of a node, of which each has a class of its own.
pub(super) fn devices_and_interpreters(node: &NodeDescription) -> impl Iterator<Item = &str> {
    let devices = node.devices.iter().filter(|device| is_device(device));
    let runtimes = node.runtimes.iter().filter(|runtime| is_interpreter(runtime));
    devices.chain(runtimes).map(String::as_str)
}

impl Seats {
    /// Returns the seats of a node by its description, the one of its architecture first. Devices that this manager
    /// does not know are ignored.
    pub(super) fn of(node: &NodeDescription, classes: &mut Classes) -> Seats {
        let mut seats = Seats::default();
        seats.add(classes.key(&node.pu, &node.architecture));
        for more in devices_and_interpreters(node) {
            seats.add(classes.key(&node.pu, more));
        }
        seats
    }

    fn add(&mut self, class: ClassKey) {
        if self.has(class) {
            return;
        }
        debug_assert!(
            self.0.iter().skip_while(|seat| seat.is_some()).all(Option::is_none),
            "{self:?} has a gap"
        );
        if let Some(empty) = self.0.iter_mut().find(|seat| seat.is_none()) {
            *empty = Some(Seat { class, spots: [None; 2], counted: [None; 2] });
        }
    }

    pub(super) fn classes(&self) -> impl Iterator<Item = ClassKey> + '_ {
        self.0.iter().flatten().map(|seat| seat.class)
    }

    /// Returns its classes as one key: nodes with the same key run the same packages.
    pub(super) fn keys(&self) -> [Option<ClassKey>; MAX_SEATS] {
        self.0.map(|seat| seat.map(|seat| seat.class))
    }

    /// The class of the node itself.
    pub(super) fn own(&self) -> Option<ClassKey> {
        self.0[0].map(|seat| seat.class)
    }

    pub(super) fn has(&self, class: ClassKey) -> bool {
        self.0.iter().flatten().any(|seat| seat.class == class)
    }

    pub(super) fn at(&mut self, index: usize) -> Option<&mut Seat> {
        self.0.get_mut(index)?.as_mut()
    }

    pub(super) fn in_class(&mut self, class: ClassKey) -> Option<&mut Seat> {
        self.0.iter_mut().flatten().find(|seat| seat.class == class)
    }
}
