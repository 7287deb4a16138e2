//! The libfabric provider: RDMA networks, through a library that is loaded at run time.
//!
//! A line and the small puts before it travel together, as one write with immediate data into a slot of the peer's
//! memory; whoever makes progress there carries it out. Large transfers, reads and atomics go to the peer's regions
//! directly. The same code serves endpoints that send to any other (efa, cxi, tcp;ofi_rxm) and those that are connected
//! to one (verbs); then the side that accepts does so within its progress.
//!
//! What a provider promises differs, and this evens it out:
//! - Where writes may overtake each other, the line waits until what was pushed before it has arrived.
//! - Where a provider has no atomics (or, as libfabric's verbs, none that work: it takes an operand's address for its
//!   value) they go as messages, which the target's progress carries out. The software
//!   providers (tcp, tcp;ofi_rxm) take everything by the target's progress: there a target must wait, spin or call
//!   [`Endpoint::progress`].
//! - Buffers that lie in no registered region go through registered memory of the endpoint, or are registered for the
//!   time, where the provider cannot read them otherwise.
//!
//! What follows a line directly (a read, a large put, an atomic) waits until the peer has taken it. A large push does not:
//! the peer may be busy with a call while the next one's input is on its way. So a push may overtake puts to the same
//! place that went with an earlier line.
//!
//! Of connected endpoints the network says when the peer is gone. Of the others it may say nothing while nothing is
//! sent: there whoever knows of the peer's end must say so by [`Endpoint::disconnect`]. Every connection has a domain of
//! its own: a key of one is worth nothing on another.

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
pub use link::Network;
pub use providers::{Kind, ProviderInfo, providers};

use crate::FabricError;
use crate::bell::Bell;
use crate::exposed::{Exposed, RemoteRegion};
use crate::line::Turn;
use crate::sync::AtomicU32;
use crate::waiters::Waiters;
use crate::window::{Address, LineAddress};
use live::Live;
use message::{LineMessage, Tail};
use operations::PUSHES;
use sleep::Sleep;

/// One end of a connection between nodes. It outlives what carries it: when the peer's process has ended, the next one
/// is connected in its place.
pub struct Endpoint {
    exposed: Arc<Exposed>,
    bell: Bell,
    state: Mutex<State>,
    /// 1 while there is a peer, so that whoever spins need not lock to learn that there is none.
    up: AtomicU32,
    waiters: Waiters,
    /// Where the one of them that reads sleeps.
    sleep: Sleep,
    /// Held by whoever uses the bounce bytes. Taken before `state`, never after it.
    bounce: Mutex<()>,
}

struct State {
    /// Counts connections, so that nobody takes another's operations for its own.
    generation: u64,
    live: Result<Box<Live>, String>,
}

impl State {
    /// Why there is no connection, of an end that is not up.
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

impl Endpoint {
    /// An end without a connection yet. `bell` (an eventfd) is rung where a line asks for it.
    pub fn new(exposed: Arc<Exposed>, bell: Option<OwnedFd>) -> Endpoint {
        Endpoint {
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
    pub fn mapped(&self, at: Address, len_bytes: u64) -> Option<NonNull<u8>> {
        self.exposed.pointer(at, len_bytes)
    }

    /// Makes a region of this side reachable. The key is good for the connection that is open.
    pub fn expose(&self, region: u32) -> Result<RemoteRegion, FabricError> {
        let mut state = self.lock();
        let live = state.live()?;
        live.regions.expose(&mut live.link, region)
    }

    /// Ends what a region's key is good for.
    pub fn withdraw(&self, region: u32) {
        match &mut self.lock().live {
            Ok(live) => live.regions.withdraw(&mut live.link, region),
            Err(_) => self.exposed.withdraw(region),
        }
    }

    /// Learns how the peer's region of a number is reached.
    pub fn reach(&self, region: u32, remote: RemoteRegion) -> Result<(), FabricError> {
        self.lock().live()?.regions.reach(region, remote)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in here would be a bug of this module; the connection is as it was before the step that panicked.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.disconnect("the peer is done");
    }
}
