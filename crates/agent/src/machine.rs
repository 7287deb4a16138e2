//! Describes what the node has, and assigns it: cores, memory, neighbours and the state folder.

pub(crate) mod capacity;
pub(crate) mod devices;
pub(crate) mod flash;
pub(crate) mod neighbours;
pub(crate) mod numa;
pub(crate) mod resources;
pub(crate) mod shared;
pub(crate) mod sizes;
pub(crate) mod state;
