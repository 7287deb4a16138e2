//! The libfabric provider: RDMA networks, through a library that is loaded at run time.
//!
//! A line and the small puts before it travel together, as one write with immediate data into a slot of the peer's
//! memory. A thread that makes progress there executes the message. Large transfers, reads and atomics access the
//! peer's regions directly. The same code serves endpoints that send to any other (efa, cxi, tcp;ofi_rxm) and endpoints
//! that are connected to one (verbs); in the second case the accepting side accepts within its progress.
//!
//! Providers give different guarantees. This module provides the same behaviour over all:
//! - Where writes may overtake each other, the line waits until earlier pushes have arrived.
//! - Where a provider has no atomics, they go as messages, which the target's progress executes. The same holds for
//!   libfabric's verbs provider, whose atomics do not work: it takes an operand's address for its value.
//! - The software providers (tcp, tcp;ofi_rxm) process everything by the target's progress: there a target must wait,
//!   spin or call [`OfiEndpoint::progress`].
//! - Buffers outside of the registered regions are copied through registered memory of the endpoint, or are registered
//!   for the duration of a transfer, where the provider cannot read them otherwise.
//!
//! An operation directly after a line (a read, a large put, an atomic) waits until the peer has taken the line. A large
//! push does not wait: the peer may execute a call while the input of the next one is sent. For that reason a push may
//! overtake puts to the same address that went with an earlier line.
//!
//! For connected endpoints the network reports that the peer is gone. For others it may report nothing while nothing is
//! sent: there a caller that learns of the peer's end must call [`OfiEndpoint::disconnect`]. Every connection has a domain
//! of its own: the key of one connection is invalid on another.

mod connecting;
mod contact;
mod devices;
mod ffi;
mod flow;
mod incoming;
mod link;
mod live;
mod message;
mod operations;
mod outgoing;
mod providers;
pub mod raw;
mod regions;
#[cfg(libfabric)]
mod signals;
mod sleep;
mod steps;
mod transfer;
mod waiting;

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

pub use devices::has_devices;
pub use link::OfiNetwork;
pub use providers::{AddressingKind, ProviderInfo, providers};

use crate::FabricError;
use crate::bell::Bell;
use crate::exposed::{ExposedMemory, RemoteRegion};
use crate::line::Turn;
use crate::sync::{AtomicU32, lock};
use crate::waiters::Waiters;
use crate::window::{LineAddress, RegionAddress};
use live::Live;
use message::{LineMessage, Tail};
use operations::PUSHES;
use sleep::Sleep;

/// One end of a connection between nodes. It outlives its connections: when the peer's process has ended, the endpoint
/// is connected to the next process.
pub struct OfiEndpoint {
    exposed: Arc<ExposedMemory>,
    bell: Bell,
    state: Mutex<State>,
    /// 1 while there is a peer, so that a spinning thread learns without a lock that there is none.
    up: AtomicU32,
    waiters: Waiters,
    /// Blocks the one waiter that reads.
    sleep: Sleep,
    /// Locked by the thread that uses the bounce bytes. Taken before `state`, never after it.
    bounce: Mutex<()>,
}

struct State {
    /// Number of the connection, so that no thread takes another connection's operations for its own.
    generation: u64,
    live: Result<Box<Live>, String>,
}

impl State {
    /// Reason why a connection that is not up is down.
    fn why_down(&self) -> String {
        match &self.live {
            Ok(_) => "it is not connected yet".into(),
            Err(reason) => reason.clone(),
        }
    }

    fn live(&mut self) -> Result<&mut Live, FabricError> {
        match &mut self.live {
            Ok(live) => Ok(live),
            Err(reason) => Err(FabricError::Disconnected { reason: reason.clone() }),
        }
    }
}

impl OfiEndpoint {
    /// Makes an endpoint without a connection. `bell` (an eventfd) is rung where a line asks for it.
    pub fn new(exposed: Arc<ExposedMemory>, bell: Option<OwnedFd>) -> OfiEndpoint {
        OfiEndpoint {
            exposed,
            bell: Bell(bell),
            state: Mutex::new(State { generation: 0, live: Err("it was never connected".into()) }),
            up: AtomicU32::new(0),
            waiters: Waiters::new(),
            sleep: Sleep::new(),
            bounce: Mutex::new(()),
        }
    }

    /// See [`crate::Endpoint::put_imm`].
    #[inline]
    pub fn put_imm<const WORDS: usize>(
        &self,
        to: LineAddress,
        turn: Turn,
        immediate: u32,
        body: &[u64; WORDS],
    ) -> Result<(), FabricError> {
        let mut words = [0; crate::line::BODY_WORDS];
        words[..WORDS].copy_from_slice(body);
        let (generation, (slot, is_done)) = self.attempt(None, |live| {
            let line = live.regions.their_line(to)?;
            let has_landed = !live.is_flushing && (live.is_ordered() || live.operations.is_done(PUSHES));
            let message = LineMessage {
                line,
                watch: to.watch,
                turn: turn.to_bits(),
                immediate,
                words: WORDS,
                body: words,
            };
            let slot = if has_landed { live.send(&Tail::Line(message), false)? } else { None };
            Ok(slot.map(|slot| (slot, live.may_be_left(slot))))
        })?;
        if is_done {
            Ok(())
        } else {
            self.attempt(Some(generation), |live| Ok(live.may_be_left(slot).then_some(()))).map(drop)
        }
    }

    /// See [`crate::Endpoint::mapped`].
    #[inline(always)]
    pub fn mapped(&self, at: RegionAddress, len_bytes: u64) -> Option<NonNull<u8>> {
        self.exposed.pointer(at, len_bytes)
    }

    /// Makes a region of this side reachable. The key is valid for the open connection.
    pub fn expose(&self, region: u32) -> Result<RemoteRegion, FabricError> {
        let mut state = self.lock();
        let live = state.live()?;
        live.regions.expose(&mut live.link, region)
    }

    /// Withdraws the key of a region.
    pub fn withdraw(&self, region: u32) {
        match &mut self.lock().live {
            Ok(live) => live.regions.withdraw(&mut live.link, region),
            Err(_) => self.exposed.withdraw(region),
        }
    }

    /// Records how to access the peer's region of a number.
    pub fn reach(&self, region: u32, remote: RemoteRegion) -> Result<(), FabricError> {
        self.lock().live()?.regions.reach(region, remote)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic here would be a defect of this module; the connection is in its state before the step that panicked.
        lock(&self.state)
    }
}

impl Drop for OfiEndpoint {
    fn drop(&mut self) {
        self.disconnect("the peer is done");
    }
}
