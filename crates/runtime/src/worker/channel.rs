//! The memory components that a component's functions access in a worker process: channels, as Scad's Figure 3 has them.
//!
//! A client that runs a graph tells the process of its run ([`take`]), with a socket on which the process asks for memory.
//! Memory is mapped; nothing is asked but for segments that are not mapped here yet, which makes the component grow if they are
//! not there at all. How long it is, and whether it is over, stands in a page that all who have it share.
//!
//! Invariants:
//! - What is below a channel's capacity is mapped, and stays so as long as the channel: a process maps more, and never less.
//! - The descriptor is the right: who may read alone has files that were opened for reading, and cannot map them to write.
//! - One question is on the socket at a time, and its answers are taken before the next.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use prost::Message;
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_fabric::region::{PAGE_BYTES, Region};
use sublet_fabric::space::Space;
use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_proto::graph::Rights;
use sublet_proto::v1::{self, memory_answer};
use sublet_proto::{Code, Error, decode};

use super::client::descriptors;
use crate::lease::link::{error_of, lock, protocol};

/// How long the client may take to tell of its run's channels. Later answers take as long as a lease may.
const FIRST_ANSWERS_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the state page of a component has its length, in bytes,
pub(crate) const LEN_AT: u64 = 0;
/// and whether it is over.
pub(crate) const OVER_AT: u64 = 8;

/// The run for which this process executes a component now.
static RUN: RwLock<Option<Arc<Run>>> = RwLock::new(None);

/// What a process has of a run.
#[derive(Debug)]
pub struct Run {
    first_instance: u32,
    /// How many instances execute the component.
    pub instances: u32,
    channels: Vec<Channel>,
}

/// The way to a memory component; see the [module](self).
#[derive(Debug)]
pub struct Channel {
    number: u32,
    name: String,
    rights: Rights,
    limit_bytes: u64,
    space: Space,
    state: Region,
    /// All below is mapped. Raised under the lock of the socket, Release; pairs with the Acquire load of every access.
    capacity: AtomicU64,
    socket: Arc<Mutex<PacketSocket>>,
}

/// The run, if there is one.
pub fn run() -> Option<Arc<Run>> {
    RUN.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

/// Takes up a client's run, in place of the one before.
pub(super) fn take(message: &v1::Run, fds: Vec<OwnedFd>) -> Result<(), Error> {
    let channels = if message.channels == 0 { Vec::new() } else { receive_channels(message.channels, fds)? };
    let (first_instance, instances) = (message.first_instance, message.instances);
    let run = Run { first_instance, instances, channels };
    *RUN.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Arc::new(run));
    Ok(())
}

fn receive_channels(count: u32, fds: Vec<OwnedFd>) -> Result<Vec<Channel>, Error> {
    let [socket] = descriptors("a run", fds)?;
    let socket = Arc::new(Mutex::new(PacketSocket::from(socket)));
    (0..count).map(|number| Channel::receive(number, &socket)).collect()
}

impl Run {
    /// The number of the instance that a worker of this process executes.
    pub fn instance(&self, worker: u32) -> u32 {
        self.first_instance.saturating_add(worker)
    }

    /// The channel to a component.
    ///
    /// # Errors
    /// `invalid_argument` without an access edge to it.
    pub fn channel(&self, component: &str) -> Result<&Channel, Error> {
        self.channels.iter().find(|channel| channel.name == component).ok_or_else(|| {
            let message = format!("the graph has no access edge from this component to {component:?}");
            Error::new(Code::InvalidArgument, message)
        })
    }

    /// By the order of the edges.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }
}

impl Channel {
    /// The next that the client tells of.
    fn receive(number: u32, socket: &Arc<Mutex<PacketSocket>>) -> Result<Channel, Error> {
        let (body, fds) = answer(lock(socket).receive(Some(FIRST_ANSWERS_TIMEOUT))?)?;
        let memory_answer::Body::Channel(channel) = body else {
            return Err(protocol("a run with fewer channels than it has"));
        };
        let [state] = descriptors("a channel", fds)?;
        let (rights, state) = match channel.writable {
            true => (Rights::Write, Region::attach(state, PAGE_BYTES)?),
            false => (Rights::Read, Region::attach_to_read(state, PAGE_BYTES)?),
        };
        let space = Space::reserve(channel.reserved_bytes)?;
        let (name, limit_bytes) = (channel.component, channel.limit_bytes);
        let (capacity, socket) = (AtomicU64::new(0), socket.clone());
        Ok(Channel { number, name, rights, limit_bytes, space, state, capacity, socket })
    }

    /// By the order of the edges.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The component's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many bytes there are to be read.
    pub fn len_bytes(&self) -> u64 {
        // Whoever may write may have written anything there.
        self.word(LEN_AT).load(Ordering::Acquire).min(self.limit_bytes)
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `invalid_argument` beyond the end, and why the component is over.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let end = self.readable(offset, into.len() as u64)?;
        self.ensure(end)?;
        // SAFETY: all below `end` is mapped, for as long as this borrows the channel.
        unsafe { self.space.read(offset, into) }.ok_or_else(|| self.beyond(offset, into.len() as u64))?;
        self.check()
    }

    /// Copies bytes in. What is beyond the end makes the component grow.
    ///
    /// # Errors
    /// `permission_denied` with the right to read alone, `memory_exceeded` beyond the component's limit, what keeps it from
    /// growing, and why it is over.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        let end = self.writable(offset, from.len() as u64)?;
        // SAFETY: all below `end` is mapped, to be written, for as long as this borrows the channel.
        unsafe { self.space.write(offset, from) }.ok_or_else(|| self.beyond(offset, from.len() as u64))?;
        self.word(LEN_AT).fetch_max(end, Ordering::AcqRel);
        self.check()
    }

    /// Makes it as many bytes long, if it is shorter. New bytes are 0.
    ///
    /// # Errors
    /// As for [`Channel::write`].
    pub fn grow(&self, len_bytes: u64) -> Result<(), Error> {
        self.writable(len_bytes, 0)?;
        self.word(LEN_AT).fetch_max(len_bytes, Ordering::AcqRel);
        self.check()
    }

    /// Where bytes lie in this process, within the length: as long as the run. Who may read alone and writes there ends the
    /// process.
    ///
    /// # Errors
    /// As for [`Channel::read`].
    pub fn mapped(&self, offset: u64, len_bytes: u64) -> Result<NonNull<u8>, Error> {
        let end = self.readable(offset, len_bytes)?;
        self.ensure(end)?;
        self.check()?;
        self.space.pointer(offset, len_bytes).ok_or_else(|| self.beyond(offset, len_bytes))
    }

    fn readable(&self, offset: u64, len_bytes: u64) -> Result<u64, Error> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.len_bytes());
        end.ok_or_else(|| self.beyond(offset, len_bytes))
    }

    /// The end of a stretch that is mapped, to be written.
    fn writable(&self, offset: u64, len_bytes: u64) -> Result<u64, Error> {
        if self.rights == Rights::Read {
            let message = format!("memory component {} is read by this component, not written", self.name);
            return Err(Error::new(Code::PermissionDenied, message));
        }
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.limit_bytes);
        let end = end.ok_or_else(|| self.beyond_limit(offset, len_bytes))?;
        self.ensure(end)?;
        Ok(end)
    }

    #[inline]
    fn ensure(&self, end: u64) -> Result<(), Error> {
        if end <= self.capacity.load(Ordering::Acquire) { Ok(()) } else { self.ask(end) }
    }

    /// Whether the component is still there. To be asked after an access.
    #[inline]
    fn check(&self) -> Result<(), Error> {
        if self.word(OVER_AT).load(Ordering::Acquire) == 0 { Ok(()) } else { self.ask(0) }
    }

    /// Asks the client for bytes up to there, and maps them; with 0, for why it is over.
    #[cold]
    fn ask(&self, end_bytes: u64) -> Result<(), Error> {
        let socket = lock(&self.socket);
        if end_bytes > 0 && end_bytes <= self.capacity.load(Ordering::Acquire) {
            return Ok(());
        }
        let question = v1::MemoryQuestion { channel: self.number, end_bytes };
        socket.send(&question.encode_to_vec(), &[])?;
        loop {
            match answer(socket.receive(None)?)? {
                (memory_answer::Body::Piece(piece), fds) => self.map(&piece, fds)?,
                (memory_answer::Body::There(_), _) => break,
                (memory_answer::Body::Failure(failure), _) => {
                    return Err(error_of(failure.code, failure.message));
                }
                (memory_answer::Body::Channel(_), _) => {
                    return Err(protocol("a channel that was not asked for"));
                }
            }
        }
        if end_bytes > self.capacity.load(Ordering::Acquire) {
            return Err(protocol("less memory than was asked for"));
        }
        Ok(())
    }

    fn map(&self, piece: &v1::Piece, fds: Vec<OwnedFd>) -> Result<(), Error> {
        let [file] = descriptors("memory", fds)?;
        let capacity = self.capacity.load(Ordering::Acquire);
        if piece.offset != capacity {
            return Err(protocol(format!("memory at {} where {capacity} bytes are mapped", piece.offset)));
        }
        // SAFETY: the range is beyond the capacity, where nobody accesses anything; `writable` keeps writes from what is
        // mapped for reading.
        unsafe { self.space.map(piece.offset, file.as_fd(), piece.len_bytes, self.rights) }?;
        self.capacity.store(capacity + piece.len_bytes, Ordering::Release);
        Ok(())
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        self.state.view(at).expect("a page has two words")
    }

    #[cold]
    fn beyond(&self, offset: u64, len_bytes: u64) -> Error {
        let (name, is) = (&self.name, self.len_bytes());
        let message = format!("{len_bytes} bytes at {offset} of memory component {name} of {is} bytes");
        Error::new(Code::InvalidArgument, message)
    }

    #[cold]
    fn beyond_limit(&self, offset: u64, len_bytes: u64) -> Error {
        let (name, limit) = (&self.name, self.limit_bytes);
        let message =
            format!("{len_bytes} bytes at {offset} of memory component {name}, which grows to {limit} bytes");
        Error::new(Code::MemoryExceeded, message)
    }
}

fn answer(packet: Option<Packet>) -> Result<(memory_answer::Body, Vec<OwnedFd>), Error> {
    let gone = || Error::new(Code::AgentUnreachable, "the client that runs the graph is gone");
    let packet = packet.ok_or_else(gone)?;
    let body = decode::<v1::MemoryAnswer>("an answer about memory", &packet.bytes)?.body;
    Ok((body.ok_or_else(|| protocol("an empty answer about memory"))?, packet.fds))
}
