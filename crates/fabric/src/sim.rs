//! A stream between two ends in one process, in virtual time. A seed decides the delays and errors that TCP permits and
//! rarely shows.
//!
//! The stream delays bytes, splits them at any place, accepts fewer than offered, reports nothing to a reader that
//! could read, and breaks at a chosen byte or step. Everything follows from the seed: as long as one thread drives both
//! ends (see [`Sim::on_wait`]), the same seed reproduces a failure. Only tests use it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use sublet_proto::to_usize;

use crate::shared::copy_bytes;
use crate::sync::lock;

/// Real time that a waiting end sleeps when nothing can happen in virtual time, since another thread may make it
/// happen.
const IDLE_NAP: Duration = Duration::from_micros(200);

/// Faults that the stream injects.
#[derive(Clone, Copy, Debug)]
pub struct InjectedFaults {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Longest delay of bytes, in steps.
    pub max_delay_steps: u64,
    /// Most bytes that one send or receive moves; it usually moves far fewer.
    pub max_piece_bytes: u64,
    /// Most bytes in transit in one direction.
    pub window_bytes: u64,
    /// Percentage of receives that could read bytes and report that there are none.
    pub stalls_percent: u64,
    /// The place where the stream breaks, if it does.
    pub breaks: Option<Break>,
}

/// The place where a stream breaks.
#[derive(Clone, Copy, Debug)]
pub enum Break {
    /// Breaks once this side has sent this number of bytes.
    AfterBytes(NetSide, u64),
    /// Breaks after this number of sends and receives, of both sides together.
    AfterSteps(u64),
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetSide {
    /// The first of a pair.
    Left,
    /// The second.
    Right,
}

impl InjectedFaults {
    /// Returns the faults that follow from a seed, without a break.
    pub fn of_seed(seed: u64) -> InjectedFaults {
        let mut random = Random(seed);
        InjectedFaults {
            seed,
            max_delay_steps: 1 + random.below(30),
            max_piece_bytes: 16 << random.below(16),
            window_bytes: 512 << random.below(10),
            stalls_percent: random.below(60),
            breaks: None,
        }
    }
}

/// The stream, seen from outside.
pub struct Sim(Arc<SharedNet>);

/// One end of the stream.
pub struct SimStream {
    shared: Arc<SharedNet>,
    side: NetSide,
}

struct SharedNet {
    net: Mutex<Net>,
    moved: Condvar,
    turns: [Mutex<Option<Turn>>; 2],
}

type Turn = Box<dyn FnMut() + Send>;

struct Net {
    faults: InjectedFaults,
    random: Random,
    now: u64,
    steps: u64,
    broken: bool,
    /// Pipes, indexed by the sending side.
    pipes: [SimPipe; 2],
}

#[derive(Default)]
struct SimPipe {
    /// Bytes in transit, each piece with the step at which it arrives.
    pieces: VecDeque<(u64, Vec<u8>)>,
    /// Bytes that have arrived and were not read.
    arrived: VecDeque<u8>,
    /// Number of bytes in `pieces` and `arrived` together.
    unread: u64,
    sent: u64,
    ended: bool,
    /// The reader has shut down its direction: sends fail.
    refused: bool,
}

impl Sim {
    /// Makes a stream and its two ends.
    pub fn pair(faults: InjectedFaults) -> (Sim, SimStream, SimStream) {
        let net = Net {
            faults,
            random: Random(faults.seed),
            now: 0,
            steps: 0,
            broken: false,
            pipes: Default::default(),
        };
        let shared =
            Arc::new(SharedNet { net: Mutex::new(net), moved: Condvar::new(), turns: Default::default() });
        let end = |side| SimStream { shared: shared.clone(), side };
        let (left, right) = (end(NetSide::Left), end(NetSide::Right));
        (Sim(shared), left, right)
    }

    /// Sets the step that this side executes whenever the other side waits.
    pub fn on_wait(&self, side: NetSide, turn: impl FnMut() + Send + 'static) {
        *lock(&self.0.turns[side as usize]) = Some(Box::new(turn));
    }

    /// Breaks the stream now.
    pub fn break_now(&self) {
        lock(&self.0.net).broken = true;
        self.0.moved.notify_all();
    }

    /// Number of sends and receives so far.
    pub fn steps(&self) -> u64 {
        lock(&self.0.net).steps
    }

    /// Number of bytes that a side has sent.
    pub fn sent_bytes(&self, side: NetSide) -> u64 {
        lock(&self.0.net).pipes[side as usize].sent
    }
}

impl Net {
    fn step(&mut self) {
        self.steps += 1;
        self.now += 1;
        if let Some(Break::AfterSteps(steps)) = self.faults.breaks {
            self.broken |= self.steps > steps;
        }
    }

    /// Number of bytes to move at once, at most `possible`.
    fn piece(&mut self, possible: u64) -> u64 {
        let most = self.faults.max_piece_bytes.max(1);
        // Usually much, sometimes little.
        let bits = 64 - most.leading_zeros();
        let piece = if self.random.below(4) == 0 { 1 << self.random.below(u64::from(bits)) } else { most };
        possible.min(piece)
    }

    fn free_space(&self, side: NetSide) -> io::Result<u64> {
        let pipe = &self.pipes[side as usize];
        if self.broken || pipe.ended || pipe.refused {
            return Err(ErrorKind::BrokenPipe.into());
        }
        match self.faults.window_bytes.saturating_sub(pipe.unread) {
            0 => Err(ErrorKind::WouldBlock.into()),
            free_space => Ok(free_space),
        }
    }

    fn push(&mut self, side: NetSide, bytes: Vec<u8>) {
        let delay = self.random.below(self.faults.max_delay_steps + 1);
        let now = self.now;
        let pipe = &mut self.pipes[side as usize];
        // A stream keeps its order.
        let due = pipe.pieces.back().map_or(0, |piece| piece.0).max(now + delay);
        pipe.unread += bytes.len() as u64;
        pipe.sent += bytes.len() as u64;
        pipe.pieces.push_back((due, bytes));
        if let Some(Break::AfterBytes(of, after)) = self.faults.breaks {
            self.broken |= of == side && pipe.sent >= after;
        }
    }

    /// Moves the pieces that are due to `arrived`. Returns the number of bytes that can be read now from this side.
    fn arrived(&mut self, from: NetSide) -> u64 {
        let pipe = &mut self.pipes[from as usize];
        while pipe.pieces.front().is_some_and(|piece| piece.0 <= self.now) {
            pipe.arrived.extend(pipe.pieces.pop_front().map(|piece| piece.1).unwrap_or_default());
        }
        pipe.arrived.len() as u64
    }

    /// Advances virtual time until something arrives. False if nothing is in transit and nothing can be read.
    fn skip(&mut self) -> bool {
        if self.pipes.iter().any(|pipe| !pipe.arrived.is_empty()) {
            return true;
        }
        let next = self.pipes.iter().filter_map(|pipe| pipe.pieces.front()).map(|piece| piece.0).min();
        if let Some(due) = next {
            self.now = self.now.max(due);
        }
        next.is_some()
    }
}

impl SimStream {
    fn other(&self) -> NetSide {
        match self.side {
            NetSide::Left => NetSide::Right,
            NetSide::Right => NetSide::Left,
        }
    }

    /// Sends these bytes unframed, as far as the window has free space: for a peer that is not an endpoint.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: a slice is readable.
        unsafe { self.send(&[part]) }
    }

    /// Receives like `recvmsg` with `MSG_DONTWAIT`.
    ///
    /// # Safety
    /// Both parts must be writable.
    pub(crate) unsafe fn recv(&self, into: &[libc::iovec; 2]) -> io::Result<usize> {
        let mut net = lock(&self.shared.net);
        net.step();
        let arrived = net.arrived(self.other());
        let (broken, faults) = (net.broken, net.faults);
        if arrived == 0 {
            let pipe = &net.pipes[self.other() as usize];
            return match pipe.pieces.is_empty() {
                true if pipe.ended => Ok(0),
                true if broken => Err(ErrorKind::ConnectionReset.into()),
                _ => Err(ErrorKind::WouldBlock.into()),
            };
        }
        if net.random.below(100) < faults.stalls_percent {
            return Err(ErrorKind::WouldBlock.into());
        }
        let free_space: usize = into.iter().map(|part| part.iov_len).sum();
        let len = to_usize(net.piece(arrived.min(free_space as u64)));
        let bytes = net.pipes[self.other() as usize].take(len);
        let (first, second) = bytes.split_at(into[0].iov_len.min(len));
        for (part, bytes) in into.iter().zip([first, second]) {
            // SAFETY: the caller's duty; no part is given more than it holds.
            unsafe { copy_bytes(bytes.as_ptr(), part.iov_base.cast(), bytes.len()) };
        }
        drop(net);
        self.shared.moved.notify_all();
        Ok(len)
    }

    /// Sends like `sendmsg` with `MSG_DONTWAIT`.
    ///
    /// # Safety
    /// All parts must be readable.
    pub(crate) unsafe fn send(&self, parts: &[libc::iovec]) -> io::Result<usize> {
        let mut net = lock(&self.shared.net);
        net.step();
        let free_space = net.free_space(self.side)?;
        let offered: usize = parts.iter().map(|part| part.iov_len).sum();
        let mut len = to_usize(net.piece(free_space.min(offered as u64)));
        if let Some(Break::AfterBytes(side, after)) = net.faults.breaks
            && side == self.side
        {
            len = len.min(to_usize(after - net.pipes[side as usize].sent));
        }
        let mut bytes = Vec::with_capacity(len);
        for part in parts {
            let mut piece = vec![0; part.iov_len.min(len - bytes.len())];
            // SAFETY: the caller's duty; no more is read than the part holds.
            unsafe { copy_bytes(part.iov_base.cast(), piece.as_mut_ptr(), piece.len()) };
            bytes.extend(piece);
        }
        net.push(self.side, bytes);
        drop(net);
        self.shared.moved.notify_all();
        Ok(len)
    }

    /// Lets virtual time pass until something may have happened: the other side executes its step, or bytes arrive.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        if let Ok(mut turn) = self.shared.turns[self.other() as usize].try_lock()
            && let Some(turn) = turn.as_mut()
        {
            turn();
        }
        let mut net = lock(&self.shared.net);
        if net.skip() {
            drop(net);
            std::thread::yield_now();
        } else {
            let nap = timeout.map_or(IDLE_NAP, |limit| limit.min(IDLE_NAP));
            drop(self.shared.moved.wait_timeout(net, nap).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Shuts down one or both directions, like `shutdown`.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        let mut net = lock(&self.shared.net);
        if how != Shutdown::Read {
            net.pipes[self.side as usize].ended = true;
        }
        if how != Shutdown::Write {
            net.pipes[self.other() as usize].refused = true;
        }
        drop(net);
        self.shared.moved.notify_all();
    }
}

impl SimPipe {
    fn take(&mut self, len: usize) -> Vec<u8> {
        self.unread -= len as u64;
        self.arrived.drain(..len).collect()
    }
}

/// A sequence of numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }
}
