//! The raw round trip: the least time of a call over a transport, between the same two cores.

mod ofi;
pub(super) mod plain;
mod shm;
mod tcp;

use std::net::IpAddr;

use sublet_fabric::Provider;
use sublet_proto::Error;
use sublet_runtime::Invoker;

use super::Samples;
use super::pairs::Rounds;
use super::transport::Transport;
pub use ofi::connect as connect_ofi;

/// The raw side of a measurement. It keeps its connections between blocks, like calls do.
pub(super) enum Raw {
    Shm,
    Tcp(tcp::Raw),
    Ofi(Box<ofi::Raw>),
}

impl Raw {
    /// Makes the raw side. `local` is the address by which the worker reaches this process; payloads have at most
    /// `max_bytes` bytes.
    pub(super) fn new(transport: &Transport, local: IpAddr, max_bytes: u32) -> Result<Raw, Error> {
        Ok(match (transport.fabric, &transport.provider) {
            (Provider::Tcp, _) => Raw::Tcp(tcp::Raw::listen(local)?),
            (Provider::Ofi, Some(provider)) => Raw::Ofi(Box::new(ofi::Raw::new(provider, local, max_bytes)?)),
            _ => Raw::Shm,
        })
    }

    pub(super) fn is_shared_memory(&self) -> bool {
        matches!(self, Raw::Shm)
    }

    /// Executes a block of `counted` counted round trips.
    pub(super) fn block(
        &mut self,
        invoker: &Invoker,
        rounds: &mut Rounds,
        counted: u32,
        samples: &mut Samples,
    ) -> Result<(), Error> {
        match self {
            Raw::Shm => shm::block(invoker, rounds, counted, samples),
            Raw::Tcp(tcp) => tcp.block(invoker, rounds, counted, samples),
            Raw::Ofi(ofi) => ofi.block(invoker, rounds, counted, samples),
        }
    }
}
