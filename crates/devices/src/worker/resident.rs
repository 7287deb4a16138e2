//! Holds the contents of memory components that stay on the device, between the kernels that access them.

use sublet_proto::Error;
use sublet_runtime::worker::channel::Channel;

use crate::{DeviceBuffer, Driver};

/// A memory component on the device.
pub(super) struct ResidentMemory<D: Driver> {
    pub(super) component: String,
    /// Number of the content. Content of an earlier run has another one.
    pub(super) number: u64,
    pub(super) buffer: DeviceBuffer<D>,
}

/// The content of a memory component on the device.
pub(super) fn resident<'a, D: Driver>(
    all: &'a [ResidentMemory<D>],
    channel: &Channel,
    number: u64,
) -> Result<&'a DeviceBuffer<D>, Error> {
    let is_it = |memory: &&ResidentMemory<D>| memory.component == channel.name() && memory.number == number;
    all.iter().find(is_it).map(|memory| &memory.buffer).ok_or_else(|| channel.lost_on_device())
}
