//! A stream between two ends in one process, in virtual time: what TCP may do and seldom does, from a seed.
//!
//! It delays bytes, cuts them into pieces at any place, takes fewer than it is given, keeps a reader waiting that could
//! read, and breaks at a chosen byte or step. Everything follows from the seed: as long as one thread drives both ends
//! (see [`Sim::on_wait`]), a failure comes again with its seed. It is for tests, and nobody is offered it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::shared::copy_bytes;
use crate::sync::lock;

/// How long a waiting end really sleeps when nothing can happen in virtual time: another thread may make it happen.
const IDLE_NAP: Duration = Duration::from_micros(200);

/// What the stream does to its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Everything else follows from it.
    pub seed: u64,
    /// Steps that bytes are under way, at most.
    pub max_delay_steps: u64,
    /// Bytes that one send or receive moves, at most; usually it is far fewer.
    pub max_piece_bytes: u64,
    /// Bytes under way in one direction, at most.
    pub window_bytes: u64,
    /// Of 100 times that a reader could read, how often it is told that there is nothing.
    pub stalls_percent: u64,
    /// Where it breaks.
    pub breaks: Option<Break>,
}

/// Where a stream breaks.
#[derive(Clone, Copy, Debug)]
pub enum Break {
    /// After so many bytes from this side.
    AfterBytes(Side, u64),
    /// After so many sends and receives of both sides.
    AfterSteps(u64),
}

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first of a pair.
    Left,
    /// The second.
    Right,
}

impl Faults {
    /// A seed's usual mischief, without a break.
    pub fn of_seed(seed: u64) -> Faults {
        let mut random = Random(seed);
        Faults {
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
pub struct Sim(Arc<Shared>);

/// One end of the stream.
pub struct SimStream {
    shared: Arc<Shared>,
    side: Side,
}

struct Shared {
    net: Mutex<Net>,
    moved: Condvar,
    turns: [Mutex<Option<Turn>>; 2],
}

type Turn = Box<dyn FnMut() + Send>;

struct Net {
    faults: Faults,
    random: Random,
    now: u64,
    steps: u64,
    broken: bool,
    /// By sending side.
    pipes: [Pipe; 2],
}

#[derive(Default)]
struct Pipe {
    /// Bytes under way, and when they arrive.
    pieces: VecDeque<(u64, Vec<u8>)>,
    /// Bytes that have arrived and were not read.
    arrived: VecDeque<u8>,
    /// Both together.
    unread: u64,
    sent: u64,
    ended: bool,
    /// The reader wants no more.
    refused: bool,
}

impl Sim {
    /// A stream and its two ends.
    pub fn pair(faults: Faults) -> (Sim, SimStream, SimStream) {
        let net = Net {
            faults,
            random: Random(faults.seed),
            now: 0,
            steps: 0,
            broken: false,
            pipes: Default::default(),
        };
        let shared =
            Arc::new(Shared { net: Mutex::new(net), moved: Condvar::new(), turns: Default::default() });
        let end = |side| SimStream { shared: shared.clone(), side };
        let (left, right) = (end(Side::Left), end(Side::Right));
        (Sim(shared), left, right)
    }

    /// What this side does when the other one waits: its part of the conversation, a step at a time.
    pub fn on_wait(&self, side: Side, turn: impl FnMut() + Send + 'static) {
        *lock(&self.0.turns[side as usize]) = Some(Box::new(turn));
    }

    /// Breaks the stream here and now.
    pub fn break_now(&self) {
        lock(&self.0.net).broken = true;
        self.0.moved.notify_all();
    }

    /// Sends and receives so far.
    pub fn steps(&self) -> u64 {
        lock(&self.0.net).steps
    }

    /// Bytes that a side has sent.
    pub fn sent_bytes(&self, side: Side) -> u64 {
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

    /// How many bytes move at once, of so many that could.
    fn piece(&mut self, possible: u64) -> u64 {
        let most = self.faults.max_piece_bytes.max(1);
        // Usually much, sometimes little.
        let bits = 64 - most.leading_zeros();
        let piece = if self.random.below(4) == 0 { 1 << self.random.below(u64::from(bits)) } else { most };
        possible.min(piece)
    }

    fn room(&self, side: Side) -> io::Result<u64> {
        let pipe = &self.pipes[side as usize];
        if self.broken || pipe.ended || pipe.refused {
            return Err(ErrorKind::BrokenPipe.into());
        }
        match self.faults.window_bytes.saturating_sub(pipe.unread) {
            0 => Err(ErrorKind::WouldBlock.into()),
            room => Ok(room),
        }
    }

    fn push(&mut self, side: Side, bytes: Vec<u8>) {
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

    /// Bytes that a side can read now.
    fn arrived(&mut self, from: Side) -> u64 {
        let pipe = &mut self.pipes[from as usize];
        while pipe.pieces.front().is_some_and(|piece| piece.0 <= self.now) {
            pipe.arrived.extend(pipe.pieces.pop_front().map(|piece| piece.1).unwrap_or_default());
        }
        pipe.arrived.len() as u64
    }

    /// Lets time pass until something arrives. False if there is nothing under way and nothing to read.
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
    fn other(&self) -> Side {
        match self.side {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }

    /// Sends these bytes as they are, as far as there is room: for a peer that is no endpoint.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: a slice is readable.
        unsafe { self.send(&[part]) }
    }

    /// As `recvmsg` without waiting.
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
        let room: usize = into.iter().map(|part| part.iov_len).sum();
        let len = net.piece(arrived.min(room as u64)) as usize;
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

    /// As `sendmsg` without waiting.
    ///
    /// # Safety
    /// All parts must be readable.
    pub(crate) unsafe fn send(&self, parts: &[libc::iovec]) -> io::Result<usize> {
        let mut net = lock(&self.shared.net);
        net.step();
        let room = net.room(self.side)?;
        let offered: usize = parts.iter().map(|part| part.iov_len).sum();
        let mut len = net.piece(room.min(offered as u64)) as usize;
        if let Some(Break::AfterBytes(side, after)) = net.faults.breaks
            && side == self.side
        {
            len = len.min((after - net.pipes[side as usize].sent) as usize);
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

    /// Lets time pass until something may have happened: the other side has its turn, bytes arrive.
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

    /// As `shutdown`.
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

impl Pipe {
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
