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

mod contact;
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
mod transfer;
mod waiting;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

pub use link::Network;
pub use providers::{Kind, ProviderInfo, providers};

use crate::FabricError;
use crate::exposed::{Exposed, RemoteRegion};
use crate::line::{Line, Turn, Watch};
use crate::sync::{AtomicU32, Ordering};
use crate::window::{Address, LineAddress};
use contact::Contact;
use live::{LANDING_BYTES, Live};
use message::{LineMessage, Tail};
use operations::PUSHES;
use waiting::Waiting;

/// How long a peer that was called may take to answer.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long the last message may take to leave.
const GOODBYE_LIMIT: Duration = Duration::from_millis(100);
/// A sleeping reader looks at least so often whether it should give up, should who makes it so wake the watch alone.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Looks at memory that take about as long as a look at the network.
const LOOKS_PER_POLL: u32 = 128;

/// One end of a connection between nodes. It outlives what carries it: when the peer's process has ended, the next one
/// is connected in its place.
pub struct Endpoint {
    exposed: Arc<Exposed>,
    bell: Option<OwnedFd>,
    state: Mutex<State>,
    /// 1 while there is a peer, so that whoever spins need not lock to learn that there is none.
    up: AtomicU32,
    waiting: Waiting,
    /// Held by whoever uses the bounce bytes. Taken before `state`, never after it.
    bounce: Mutex<()>,
}

struct State {
    /// Counts connections, so that nobody takes another's operations for its own.
    generation: u64,
    live: Result<Box<Live>, String>,
}

/// How far the first message is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Greeting {
    ToSend,
    Sent,
    Left,
}

impl State {
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
            bell,
            state: Mutex::new(State { generation: 0, live: Err("it was never connected".into()) }),
            up: AtomicU32::new(0),
            waiting: Waiting::new(),
            bounce: Mutex::new(()),
        }
    }

    /// Opens a network, for the side that connects. Regions can be exposed from now on. Returns this end's contact, for
    /// the peer's [`accept`](Endpoint::accept).
    pub fn open(&self, network: &Network) -> Result<Vec<u8>, FabricError> {
        self.disconnect("connected anew");
        let mut live = Live::open(network, self.exposed.clone(), LANDING_BYTES)?;
        let contact = live.contact(false)?;
        self.install(live);
        Ok(contact.encode())
    }

    /// Opens a network, for the side that is connected to by the peer whose contact is there. Returns this end's contact,
    /// for the peer's [`connect`](Endpoint::connect). Of a connected kind this end accepts the peer within its progress.
    pub fn accept(&self, network: &Network, contact: &[u8]) -> Result<Vec<u8>, FabricError> {
        self.disconnect("connected anew");
        let peer = Contact::decode(contact)?;
        let network = Network { toward: peer.ip().or(network.toward), ..network.clone() };
        let mut live = Live::open(&network, self.exposed.clone(), LANDING_BYTES)?;
        let contact = live.contact(true)?;
        live.meet(&peer)?;
        self.install(live);
        self.up.store(1, Ordering::SeqCst);
        Ok(contact.encode())
    }

    /// Goes on with the peer whose contact is there, after [`open`](Endpoint::open). Waits until a first message has
    /// left, for which most providers need the peer's progress.
    pub fn connect(&self, contact: &[u8]) -> Result<(), FabricError> {
        let peer = Contact::decode(contact)?;
        let met = self.lock().live()?.meet(&peer);
        if let Err(error) = met {
            self.disconnect(&error.to_string());
            return Err(error);
        }
        let begun = Instant::now();
        let mut greeting = Greeting::ToSend;
        while greeting != Greeting::Left {
            if begun.elapsed() > CONNECT_LIMIT {
                self.disconnect("the peer did not accept the connection");
                return Err(FabricError::TimedOut(CONNECT_LIMIT));
            }
            greeting = self.greet(greeting)?;
        }
        self.up.store(1, Ordering::SeqCst);
        Ok(())
    }

    /// Ends the connection: from now on operations fail. When this returns, nothing that was claimed earlier is still
    /// being sent.
    pub fn disconnect(&self, reason: &str) {
        let mut state = self.lock();
        self.cut(&mut state, reason, true);
    }

    /// Why there is no connection, if there is none.
    pub fn down(&self) -> Option<String> {
        if self.up.load(Ordering::SeqCst) == 1 {
            return None;
        }
        match &self.lock().live {
            Ok(_) => Some("it is not connected yet".into()),
            Err(reason) => Some(reason.clone()),
        }
    }

    /// Readable when there is something to take; to be polled beside other descriptors. To be asked for before each
    /// poll: what has arrived already makes it readable.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        let mut state = self.lock();
        let can_sleep = match &mut state.live {
            Ok(live) => self.watch(live) && live.may_sleep(),
            Err(_) => false,
        };
        if !can_sleep {
            self.waiting.poke();
        }
        self.waiting.readable()
    }

    fn watch(&self, live: &mut Live) -> bool {
        let is_watched = live.is_watched || self.waiting.watch(live.descriptors()).is_ok();
        live.is_watched = is_watched;
        is_watched
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

    /// See [`crate::Endpoint::spin`].
    #[inline]
    pub fn spin(&self, (line, _): (&Line, &Watch), turn: Turn, looks: u32) -> bool {
        if self.up.load(Ordering::Relaxed) == 0 {
            return line.spin(turn, looks);
        }
        for _ in 0..looks.div_ceil(LOOKS_PER_POLL) {
            if line.is(turn) {
                return true;
            }
            match self.state.try_lock() {
                // An error ends the connection, which the caller learns from its next operation.
                Ok(mut state) => drop(self.look(&mut state, false)),
                Err(TryLockError::WouldBlock) => return line.spin(turn, looks),
                Err(TryLockError::Poisoned(_)) => return false,
            }
        }
        line.is(turn)
    }

    /// See [`crate::Endpoint::progress`]. Puts that wait for a line are sent without it.
    pub fn progress(&self) -> Result<(), FabricError> {
        self.waiting.take_pokes();
        let has_puts = {
            let mut state = self.lock();
            self.look(&mut state, true)?;
            state.live()?.has_puts
        };
        if has_puts { self.flush() } else { Ok(()) }
    }

    /// See [`crate::Endpoint::wait`].
    pub fn wait(
        &self,
        (line, watch): (&Line, &Watch),
        turn: Turn,
        deadline: Option<Instant>,
        mut give_up: impl FnMut() -> bool,
    ) -> bool {
        let _ = self.progress();
        loop {
            if line.is(turn) {
                return true;
            }
            let is_over = deadline.is_some_and(|at| at <= Instant::now());
            if is_over || self.is_down() || give_up() {
                return line.is(turn);
            }
            if self.waiting.begin_reading() {
                self.read_until(line, turn, deadline, &mut give_up);
                self.waiting.end_reading();
                continue;
            }
            self.waiting.sleep_beside(watch, || {
                line.wait(watch, turn, deadline, || give_up() || self.is_down() || !self.waiting.is_read())
            });
        }
    }

    /// See [`crate::Endpoint::poke`].
    pub fn poke(&self, watch: &Watch) {
        watch.poke();
        self.waiting.notify();
    }

    /// As the one thread that reads: takes what arrives for all, and sleeps in between.
    fn read_until(
        &self,
        line: &Line,
        turn: Turn,
        deadline: Option<Instant>,
        give_up: &mut impl FnMut() -> bool,
    ) {
        loop {
            let _ = self.look(&mut self.lock(), true);
            let now = Instant::now();
            let left = deadline.map_or(LOOK_AGAIN, |at| at.saturating_duration_since(now).min(LOOK_AGAIN));
            if line.is(turn) || self.is_down() || left.is_zero() || give_up() {
                return;
            }
            self.waiting.fall_asleep();
            if let Some(fds) = self.descriptors_to_sleep_on().filter(|_| !line.is(turn)) {
                self.waiting.sleep(fds, left);
            }
            self.waiting.awake();
            self.waiting.take_pokes();
        }
    }

    /// What tells of arrivals, if nothing has arrived yet.
    fn descriptors_to_sleep_on(&self) -> Option<[i32; 2]> {
        let mut state = self.lock();
        let live = state.live.as_mut().ok()?;
        live.may_sleep().then(|| live.descriptors())
    }

    /// A step towards the first message, which makes the provider connect.
    fn greet(&self, greeting: Greeting) -> Result<Greeting, FabricError> {
        let mut state = self.lock();
        self.look(&mut state, true)?;
        let live = state.live()?;
        match greeting {
            Greeting::ToSend if live.is_up() => match live.send(&Tail::Nothing, true) {
                Ok(Some(_)) => return Ok(Greeting::Sent),
                Ok(None) => {}
                Err(error) => return Err(self.end(&mut state, error)),
            },
            Greeting::Sent if live.flow.has_left(0) => return Ok(Greeting::Left),
            _ => {}
        }
        drop(state);
        std::thread::sleep(Duration::from_micros(50));
        Ok(greeting)
    }

    fn is_down(&self) -> bool {
        self.up.load(Ordering::SeqCst) == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in here would be a bug of this module; the connection is as it was before the step that panicked.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn install(&self, live: Live) {
        let mut state = self.lock();
        state.generation += 1;
        state.live = Ok(Box::new(live));
    }

    /// Takes what has arrived, and does for others what follows from it. An error has ended the connection.
    #[inline]
    fn look(&self, state: &mut State, events: bool) -> Result<(), FabricError> {
        let live = state.live()?;
        let looked = if events { live.progress_all() } else { live.progress() };
        let effects = std::mem::take(&mut live.effects);
        if effects.bell {
            self.ring_bell();
        }
        if effects.published {
            self.waiting.notify();
        }
        looked.and_then(|()| live.settle()).map_err(|error| self.end(state, error))
    }

    /// Tries a step until it says that it is done, taking what arrives in between. Without a peer, or with another than
    /// `generation` says, it fails. Says of which generation the connection was.
    #[inline]
    fn attempt<T>(
        &self,
        generation: Option<u64>,
        mut step: impl FnMut(&mut Live) -> Result<Option<T>, FabricError>,
    ) -> Result<(u64, T), FabricError> {
        let mut rounds = 0;
        loop {
            let mut state = self.lock();
            if self.is_down() {
                return Err(self.not_connected(&mut state));
            }
            if generation.is_some_and(|expected| expected != state.generation) {
                return Err(FabricError::Disconnected { reason: "it was connected anew meanwhile".into() });
            }
            let (of, live) = (state.generation, state.live()?);
            let tried = if live.is_up() { step(live) } else { Ok(None) };
            match tried {
                Ok(Some(done)) => return Ok((of, done)),
                Ok(None) => self.look(&mut state, false)?,
                Err(error) if is_the_callers(&error) => return Err(error),
                Err(error) => return Err(self.end(&mut state, error)),
            }
            drop(state);
            pause(rounds);
            rounds += 1;
        }
    }

    fn not_connected(&self, state: &mut State) -> FabricError {
        let reason = match &state.live {
            Ok(_) => "it is not connected yet".into(),
            Err(reason) => reason.clone(),
        };
        FabricError::Disconnected { reason }
    }

    /// The connection cannot go on. The peer is told why, unless it is the one that ended it.
    #[cold]
    fn end(&self, state: &mut State, error: FabricError) -> FabricError {
        let (reason, tell) = match error {
            FabricError::Disconnected { reason } => (reason, false),
            other => (other.to_string(), true),
        };
        self.cut(state, &reason, tell);
        FabricError::Disconnected { reason }
    }

    /// Closes everything that the connection had open, and wakes all who wait.
    #[cold]
    fn cut(&self, state: &mut State, reason: &str, tell: bool) {
        self.up.store(0, Ordering::SeqCst);
        if let Ok(live) = &mut state.live {
            if tell {
                live.say_goodbye(reason, GOODBYE_LIMIT);
            }
            state.live = Err(reason.into());
        }
        self.waiting.wake_all();
    }

    #[cold]
    fn ring_bell(&self) {
        if let Some(bell) = &self.bell {
            // A full counter means that the bell is ringing already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.disconnect("the peer is done");
    }
}

/// Whether an operation was wrong, and not the connection.
fn is_the_callers(error: &FabricError) -> bool {
    use FabricError::{DoesNotFit, Limit, OutOfBounds, Unaligned, Unsupported};
    matches!(error, OutOfBounds { .. } | Unaligned { .. } | DoesNotFit { .. } | Limit(_) | Unsupported(_))
}

/// Between two attempts: the longer it takes, the more is left to others.
#[inline]
fn pause(rounds: u32) {
    const ALONE: u32 = 1 << 14;
    const NAP: Duration = Duration::from_micros(100);
    match rounds {
        0..ALONE if rounds % 32 != 31 => std::hint::spin_loop(),
        0..ALONE => std::thread::yield_now(),
        _ => std::thread::sleep(NAP),
    }
}
