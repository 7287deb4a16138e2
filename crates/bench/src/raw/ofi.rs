//! A plain `fi_writedata` ping-pong on the same provider of libfabric, between the client's core and the worker's,
//! while the worker sleeps. Both ends poll in every mode, since providers differ in their means of waiting. On one core
//! the ends would alternate once in a scheduler's tick; an end that waits for several seconds fails.

use std::any::Any;
use std::net::IpAddr;
use std::thread;

use sublet_fabric::clock::ticks_ordered;
use sublet_fabric::ofi::OfiNetwork;
use sublet_fabric::ofi::raw::PingPong;
use sublet_proto::{Code, Error};
use sublet_runtime::Invoker;

use super::tcp;
use crate::rounds::{Rounds, UNCOUNTED, think};
use crate::{PinnedCore, Samples, pin};

/// The two ends, which are in this process.
pub(crate) struct RawOfi {
    near: PingPong,
    far: PingPong,
    away: tcp::RawTcp,
}

impl RawOfi {
    /// Makes the ends, for messages of up to `max_bytes` bytes.
    pub(super) fn new(provider: &str, local: IpAddr, max_bytes: u32) -> Result<RawOfi, Error> {
        let network = OfiNetwork::of(provider).toward(local);
        let (near, far) = connect(&network, u64::from(max_bytes.max(1)))?;
        Ok(RawOfi { near, far, away: tcp::RawTcp::listen(local)? })
    }

    pub(super) fn block(
        &mut self,
        invoker: &Invoker,
        rounds: &mut Rounds,
        counted: u32,
        samples: &mut Samples,
    ) -> Result<(), Error> {
        let (request_bytes, response_bytes) = (rounds.request_bytes().into(), rounds.response_bytes().into());
        let (total, think_ticks) = (UNCOUNTED + counted, rounds.think_ticks);
        let RawOfi { near, far, away } = self;
        let answer = || -> Result<(), Error> {
            pin(PinnedCore::Last)?;
            for _ in 0..total {
                far.receive()?;
                far.send(response_bytes)?;
            }
            Ok(far.finish()?)
        };
        let mut ask = || -> Result<(), Error> {
            for round in 1..=total {
                think(think_ticks);
                let since = ticks_ordered();
                near.send(request_bytes)?;
                near.receive()?;
                if round > UNCOUNTED {
                    samples.since(since);
                }
            }
            Ok(())
        };
        away.while_the_worker_sleeps(invoker, rounds, || {
            thread::scope(|scope| {
                let answering = scope.spawn(answer);
                let asked = ask();
                // An end that fails leaves the other waiting until its patience ends: the first error counts.
                asked.and(answering.join().map_err(failed)?)
            })
        })
    }
}

/// Connects two endpoints of this process.
///
/// # Errors
/// The errors of the network.
pub fn connect(network: &OfiNetwork, max_bytes: u64) -> Result<(PingPong, PingPong), Error> {
    let (mut near, contact) = PingPong::open(network, max_bytes)?;
    let (mut far, contact) = PingPong::accept(network, max_bytes, &contact)?;
    thread::scope(|scope| {
        let letting = scope.spawn(|| far.meet());
        near.connect(&contact)?;
        Ok::<_, Error>(letting.join().map_err(failed)??)
    })?;
    Ok((near, far))
}

fn failed(_panic: Box<dyn Any + Send>) -> Error {
    Error::new(Code::Internal, "the far end of the ping-pong has failed")
}
