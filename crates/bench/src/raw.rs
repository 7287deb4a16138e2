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
use super::rounds::Rounds;
use super::transport::CallTransport;
pub use ofi::connect as connect_ofi;

/// The raw side of a measurement. It keeps its connections between blocks, like calls do.
pub(super) enum RawSide {
    Shm,
    Tcp(tcp::RawTcp),
    Ofi(Box<ofi::RawOfi>),
}

impl RawSide {
    /// Makes the raw side. `local` is the address by which the worker reaches this process; payloads have at most
    /// `max_bytes` bytes.
    pub(super) fn new(transport: &CallTransport, local: IpAddr, max_bytes: u32) -> Result<RawSide, Error> {
        Ok(match (transport.fabric, &transport.provider) {
            (Provider::Tcp, _) => RawSide::Tcp(tcp::RawTcp::listen(local)?),
            (Provider::Ofi, Some(provider)) => {
                RawSide::Ofi(Box::new(ofi::RawOfi::new(provider, local, max_bytes)?))
            }
            _ => RawSide::Shm,
        })
    }

    pub(super) fn is_shared_memory(&self) -> bool {
        matches!(self, RawSide::Shm)
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
            RawSide::Shm => shm::block(invoker, rounds, counted, samples),
            RawSide::Tcp(tcp) => tcp.block(invoker, rounds, counted, samples),
            RawSide::Ofi(ofi) => ofi.block(invoker, rounds, counted, samples),
        }
    }
}
