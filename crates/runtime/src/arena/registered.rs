//! Memory that one or several invokers register with the workers of their leases.

use std::sync::Arc;

use bytemuck::Pod;
use sublet_fabric::window::RegionAddress;
use sublet_proto::Error;

use super::{Arena, Buffer};
use crate::frames::SharedAddress;

/// Registered memory of one or several invokers. The workers of all of them reach buffers in it without copying. An
/// invoker makes its own if it is given none.
#[derive(Clone)]
pub struct RegisteredMemory(pub(crate) Arc<Arena>);

impl RegisteredMemory {
    /// A new one, which holds nothing.
    pub fn new() -> Result<RegisteredMemory, Error> {
        Arena::new().map(RegisteredMemory)
    }

    /// Allocates a buffer like [`Invoker::buffer`](crate::Invoker::buffer), without the need for an invoker.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<Buffer<T>, Error> {
        Buffer::new(&self.0, len, || self.0.publish_to_users())
    }

    /// Locates `len_bytes` bytes of this memory, as workers reach them. `None` if they lie outside of it.
    pub fn locate(&self, pointer: *const u8, len_bytes: u64) -> Option<SharedAddress> {
        let RegionAddress { region: number, offset } = self.0.window.locate(pointer, len_bytes)?;
        Some(SharedAddress { number, offset })
    }
}
