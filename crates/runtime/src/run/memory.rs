//! The memory components of a run, and how they reach the workers that access them.
//!
//! A component is made when a worker first accesses it, near that worker, and is gone when the run drops it. Each worker process
//! has a socket on which it asks for memory, and a thread here that answers ([`Link`]): with the files of segments, opened for
//! what the edge allows. So a segment is reached by those to whom its run has given it, and by no other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use prost::Message;
use sublet_fabric::packet::{Packet, PacketSocket};
use sublet_fabric::region::{PAGE_BYTES, Region, bar_writers, read_only};
use sublet_fabric::sync::{AtomicU64, Ordering};
use sublet_proto::graph::{self, Rights};
use sublet_proto::v1::{self, memory_answer};
use sublet_proto::{Code, Error, decode};

use super::driver::Event;
use super::is_lost;
use crate::lease::Lease;
use crate::lease::link::{lock, protocol};
use crate::manager::ManagerClient;
use crate::memory::{Memory, MemoryPlan};
use crate::worker::channel::{LEN_AT, OVER_AT};

/// How long a worker may take to take in what it has asked for.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A memory component of a run.
pub(super) struct Component {
    index: usize,
    name: String,
    plan: MemoryPlan,
    limit_bytes: u64,
    /// How long it is and whether it is over: what all who access it share.
    state: Region,
    stage: RwLock<Stage>,
    /// Why it could not grow, if it would have elsewhere or at another time.
    lost: Mutex<Option<Error>>,
    used: Mutex<Used>,
}

/// What has become of it.
enum Stage {
    /// Nobody has accessed it.
    Unmade {
        manager: Arc<ManagerClient>,
        tell: Sender<Event>,
    },
    Made(Box<Memory>),
    Over,
}

/// What was leased for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    /// When its first segment came.
    pub(super) since: Option<Instant>,
    /// When it was last looked at.
    pub(super) until: Option<Instant>,
    pub(super) capacity_bytes: u64,
    pub(super) len_bytes: u64,
    /// Leased bytes times microseconds; and bytes that were written.
    pub(super) allocated_byte_us: u64,
    pub(super) used_byte_us: u64,
}

impl Used {
    /// Counts the time since it was last looked at.
    fn advance(&mut self, now: Instant, len_bytes: u64) {
        let elapsed = self.until.map_or(0, |at| now.saturating_duration_since(at).as_micros() as u64);
        self.allocated_byte_us += self.capacity_bytes.saturating_mul(elapsed);
        // What was written was written some time between; half is as good a guess as any.
        self.used_byte_us += u64::midpoint(self.len_bytes, len_bytes).saturating_mul(elapsed);
        (self.until, self.len_bytes) = (Some(now), len_bytes);
    }
}

/// What a compute component may access.
pub(super) type Channels = Vec<(Arc<Component>, Rights)>;

impl Component {
    /// One of which nothing is leased yet. When it ends otherwise than by [`Component::end`], that is told.
    pub(super) fn new(
        manager: &Arc<ManagerClient>,
        (index, name): (usize, &str),
        (of, plan): (&graph::Memory, MemoryPlan),
        tell: Sender<Event>,
    ) -> Result<Arc<Component>, Error> {
        let plan = plan
            .initial_bytes(of.initial_bytes)
            .increment_bytes(of.increment_bytes)
            .limit_bytes(of.limit_bytes);
        let state = Region::create("sublet-channel", PAGE_BYTES)?;
        bar_writers(state.fd())?;
        Ok(Arc::new(Component {
            index,
            name: name.to_owned(),
            limit_bytes: of.limit_bytes,
            plan,
            state,
            stage: RwLock::new(Stage::Unmade { manager: manager.clone(), tell }),
            lost: Mutex::default(),
            used: Mutex::default(),
        }))
    }

    /// Makes it, near the node that is the first to access it.
    fn make(self: &Arc<Component>, node: &str) -> Result<(), Error> {
        let mut stage = self.stage.write().unwrap_or_else(PoisonError::into_inner);
        let Stage::Unmade { manager, tell } = &*stage else { return Ok(()) };
        let memory = Memory::new(manager.clone(), self.plan.clone().near([node]))?;
        let (weak, tell) = (Arc::downgrade(self), tell.clone());
        memory.on_end(move |error| {
            if let Some(component) = weak.upgrade() {
                component.set_over();
                let (memory, generation) = (component.index, component.generation());
                // A run that hears no more is over.
                let _ = tell.send(Event::MemoryLost { memory, generation, error });
            }
        });
        *stage = Stage::Made(Box::new(memory));
        Ok(())
    }

    /// Tells it from others of the same name, before and after.
    pub(super) fn generation(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Whether it is still there, and otherwise why not.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(error) = lock(&self.lost).clone() {
            return Err(error);
        }
        match &*self.stage.read().unwrap_or_else(PoisonError::into_inner) {
            Stage::Unmade { .. } => Ok(()),
            Stage::Made(memory) => memory.check(),
            Stage::Over => Err(self.over()),
        }
    }

    /// The nodes of its segments.
    pub(super) fn nodes(&self) -> Vec<String> {
        match &*self.stage.read().unwrap_or_else(PoisonError::into_inner) {
            Stage::Made(memory) => memory.segments().into_iter().map(|lease| lease.node).collect(),
            Stage::Unmade { .. } | Stage::Over => Vec::new(),
        }
    }

    /// Gives its segments back, and says what it was.
    pub(super) fn end(&self) -> Used {
        let used = self.used();
        self.set_over();
        let mut stage = self.stage.write().unwrap_or_else(PoisonError::into_inner);
        if let Stage::Made(memory) = std::mem::replace(&mut *stage, Stage::Over) {
            // One that had ended has nothing to give back.
            let _ = memory.release();
        }
        used
    }

    /// Looks how much of it is used.
    pub(super) fn sample(&self) {
        self.used();
    }

    /// What it is now.
    pub(super) fn used(&self) -> Used {
        let mut used = lock(&self.used);
        // Whoever may write may have written anything there.
        let len_bytes = self.word(LEN_AT).load(Ordering::Relaxed).min(used.capacity_bytes);
        used.advance(Instant::now(), len_bytes);
        *used
    }

    fn set_over(&self) {
        self.word(OVER_AT).store(1, Ordering::Release);
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        self.state.view(at).expect("a page has two words")
    }

    fn over(&self) -> Error {
        Error::new(Code::LeaseEnded, format!("memory component {} is over", self.name))
    }

    /// What there is behind these bytes, once there are so many; to a worker on this node.
    fn grow(
        self: &Arc<Component>,
        (from, end): (u64, u64),
        node: &str,
    ) -> Result<Vec<(u64, u64, OwnedFd)>, Error> {
        self.make(node)?;
        let stage = self.stage.read().unwrap_or_else(PoisonError::into_inner);
        let Stage::Made(memory) = &*stage else { return Err(self.over()) };
        memory.ensure(end).inspect_err(|error| {
            // Where a segment was lost before it was attached, it may grow elsewhere: what has met this begins again.
            if is_lost(error.code) {
                lock(&self.lost).get_or_insert_with(|| error.clone());
            }
        })?;
        self.sample();
        let mut used = lock(&self.used);
        used.since.get_or_insert_with(Instant::now);
        used.capacity_bytes = memory.capacity_bytes();
        drop(used);
        memory.files_from(from)
    }

    fn file(&self, file: OwnedFd, rights: Rights) -> Result<OwnedFd, Error> {
        Ok(match rights {
            Rights::Write => file,
            Rights::Read => read_only(file.as_fd())?,
        })
    }
}

/// The way by which a worker process asks for memory. Dropped, it is cut.
pub(super) struct Link {
    socket: Arc<PacketSocket>,
    lease: Arc<Lease>,
    /// Of the worker process that has been told.
    exits: u64,
}

impl Link {
    /// Tells a lease's worker process of the run, and lets it access these.
    pub(super) fn open(
        lease: &Arc<Lease>,
        first: u32,
        instances: u32,
        channels: &Channels,
    ) -> Result<Link, Error> {
        let (here, there) = PacketSocket::pair()?;
        here.set_send_timeout(SEND_TIMEOUT)?;
        let mut link = Link { socket: Arc::new(here), lease: lease.clone(), exits: 0 };
        if !channels.is_empty() {
            let (told, node) = (channels.iter().map(|_| 0).collect(), lease.description().node);
            let answering = Answering { socket: link.socket.clone(), channels: channels.clone(), told, node };
            std::thread::Builder::new()
                .name("sublet channels".into())
                .spawn(move || answering.run())
                .map_err(|error| Error::new(Code::System, format!("starting a thread: {error}")))?;
        }
        let run = v1::Run { first_instance: first, instances, channels: channels.len() as u32 };
        let socket = (!channels.is_empty()).then_some(there.as_fd());
        let exits = lease.tell_run(run, socket)?;
        link.exits = exits;
        Ok(link)
    }

    /// Whether the worker process is still the one that was told.
    ///
    /// # Errors
    /// `worker_died` if not: what came from it may be of another.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.lease.exits() == self.exits {
            return Ok(());
        }
        Err(Error::new(Code::WorkerDied, "the worker process ended while it executed its component"))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.socket.shutdown();
    }
}

fn tell_channel(socket: &PacketSocket, component: &Component, rights: Rights) -> Result<(), Error> {
    let state = component.state.fd().try_clone_to_owned();
    let state = state.map_err(|error| Error::new(Code::System, format!("dup of a channel: {error}")))?;
    let state = component.file(state, rights)?;
    let channel = v1::Channel {
        component: component.name.clone(),
        writable: rights == Rights::Write,
        limit_bytes: component.limit_bytes,
        reserved_bytes: component.plan.reserved_bytes(),
    };
    send(socket, memory_answer::Body::Channel(channel), Some(state))
}

/// The thread that answers one worker process.
struct Answering {
    socket: Arc<PacketSocket>,
    channels: Channels,
    /// How much of each the process has.
    told: Vec<u64>,
    node: String,
}

impl Answering {
    /// Until the connection is cut, at whichever end.
    fn run(mut self) {
        let told = self
            .channels
            .iter()
            .try_for_each(|(component, rights)| tell_channel(&self.socket, component, *rights));
        if told.is_err() {
            return self.socket.shutdown();
        }
        while let Ok(Some(question)) = self.socket.receive(None) {
            let answered = match self.answer(&question) {
                Ok(()) => send(&self.socket, memory_answer::Body::There(v1::MemoryThere {}), None),
                Err(Error { code, message }) => {
                    let failure = v1::Failure { code: code.number(), message };
                    send(&self.socket, memory_answer::Body::Failure(failure), None)
                }
            };
            if answered.is_err() {
                break;
            }
        }
        self.socket.shutdown();
    }

    fn answer(&mut self, question: &Packet) -> Result<(), Error> {
        let question: v1::MemoryQuestion = decode("a question about memory", &question.bytes)?;
        let (number, end) = (question.channel as usize, question.end_bytes);
        let Some((component, rights)) = self.channels.get(number) else {
            return Err(protocol(format!("there is no channel {number}")));
        };
        if end == 0 {
            return component.check();
        }
        if end > component.limit_bytes {
            let message = format!("{end} bytes of memory component {}", component.name);
            return Err(Error::new(Code::MemoryExceeded, message));
        }
        for (offset, len_bytes, file) in component.grow((self.told[number], end), &self.node)? {
            let file = component.file(file, *rights)?;
            send(&self.socket, memory_answer::Body::Piece(v1::Piece { offset, len_bytes }), Some(file))?;
            self.told[number] = offset + len_bytes;
        }
        Ok(())
    }
}

fn send(socket: &PacketSocket, body: memory_answer::Body, file: Option<OwnedFd>) -> Result<(), Error> {
    let bytes = v1::MemoryAnswer { body: Some(body) }.encode_to_vec();
    let files: Vec<_> = file.iter().map(AsFd::as_fd).collect();
    Ok(socket.send(&bytes, &files)?)
}
