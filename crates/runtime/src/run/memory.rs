//! Implements the memory components of a run. One is made when a worker first accesses it, near that worker, and is
//! given back when the run drops it. The module [`link`] passes it to worker processes.

use std::collections::BTreeSet;
use std::ops::{Deref, Range};
use std::sync::atomic;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use sublet_fabric::region::{PAGE_BYTES, Region, bar_writers};
use sublet_fabric::sync::{AtomicU32, AtomicU64, Ordering, read_lock, write_lock};
use sublet_proto::graph::{self, Medium, MemoryRights};
use sublet_proto::v1;
use sublet_proto::{Code, Error};

use super::budget::{RunBudget, WaitCallbacks};
use super::event::{RunEvent, is_lost};
use super::memory_usage::MemoryComponentUsage;
use super::planned::PlannedNode;
use super::traffic::{self, TrafficByComponent};
use crate::lease::link::{lock, protocol};
use crate::manager::ManagerClient;
use crate::memory::piece::MemoryPiece;
use crate::memory::{Memory, MemoryPlan};
use crate::worker::channel::{ENDED_AT, LEN_AT, OVER_AT};

pub(super) use link::{Link, LinkTime};

mod link;

/// Number of the next content in the memory of a device. Workers stay with this process, also from one run to the next,
/// so the numbers are unique in it.
static NEXT_DEVICE_MEMORY: atomic::AtomicU64 = atomic::AtomicU64::new(1);

/// A number that is larger than those of all contents in the memory of a device so far.
pub(super) fn next_device_memory() -> u64 {
    NEXT_DEVICE_MEMORY.load(Ordering::Relaxed)
}

/// A memory component of a run.
pub(super) struct MemoryComponent {
    pub(super) index: usize,
    name: String,
    plan: MemoryPlan,
    planned: PlannedNode,
    limit_bytes: u64,
    /// Bytes that it begins with, also when it is made again: the caller's.
    content: Option<Arc<Vec<u8>>>,
    /// State that all processes with access share: the component's length, and whether it is over.
    state: Region,
    /// Set when the component is over. Workers may write the corresponding word of `state`, but not this one.
    is_over: AtomicU32,
    stage: RwLock<ComponentStage>,
    /// Guards no data: held while the component is made, which may take long, and when it ends. The stage can be read
    /// meanwhile.
    making: Mutex<()>,
    /// The budget of the run.
    account: Arc<RunBudget>,
    tell: Mutex<Sender<RunEvent>>,
    /// Reason why the component could not grow, if it might have grown elsewhere or at another time.
    lost: Mutex<Option<Error>>,
    used: Mutex<MemoryComponentUsage>,
    /// Worker processes of components that have begun and that have pieces of it, by the numbers of their connections.
    reached_by: Mutex<BTreeSet<usize>>,
    /// Number of requests to make it shorter, before which processes of components that had not begun may have joined
    /// more. Written by the threads that answer workers.
    cuts: AtomicU32,
    /// Whether a component that may access it has begun: 1 or 0. Written by the driver.
    begun: AtomicU32,
    /// Data that compute components have moved, as far as the run has not taken it.
    traffic: Mutex<TrafficByComponent>,
    /// Number of the content if that is in the memory of a device, otherwise 0.
    device_memory: u64,
}

/// State of a memory component.
enum ComponentStage {
    /// No process has accessed it yet.
    Unmade {
        manager: Arc<ManagerClient>,
        tell: Sender<RunEvent>,
    },
    Made(Box<Memory>),
    Over,
}

/// The memory components that a compute component may access.
#[derive(Clone)]
pub(super) struct Channels {
    /// Index of the compute component.
    pub(super) of: usize,
    pub(super) list: Vec<ComponentAccess>,
    /// The run needs no content in the memory of a device with a smaller number.
    pub(super) device_memory_from: u64,
}

impl Channels {
    /// The components for the process whose first instance is `first`. Swap space is private to one process.
    fn of_process(&self, first: u32) -> Channels {
        let is_its = |access: &&ComponentAccess| access.swaps_from.is_none_or(|from| from == first);
        let list = self.list.iter().filter(is_its).cloned().collect();
        Channels { of: self.of, list, device_memory_from: self.device_memory_from }
    }
}

impl Deref for Channels {
    type Target = [ComponentAccess];

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

/// Access of a compute component to a memory component.
#[derive(Clone)]
pub(super) struct ComponentAccess {
    pub(super) memory: Arc<MemoryComponent>,
    pub(super) rights: MemoryRights,
    /// Set if the memory component carries messages.
    pub(super) mailbox: Option<v1::Mailbox>,
    /// Instances of the compute component that have released it.
    pub(super) released: Arc<Mutex<BTreeSet<u32>>>,
    /// For swap space: the first instance of the process that swaps to it.
    pub(super) swaps_from: Option<u32>,
}

impl ComponentAccess {
    /// Returns whether all of these instances have released it.
    fn is_released_by(&self, instances: Range<u32>) -> bool {
        let released = lock(&self.released);
        instances.into_iter().all(|instance| released.contains(&instance))
    }

    /// Checks that the memory existed until the last of `instances` instances has ended, or has released it.
    pub(super) fn check(&self, instances: u32) -> Result<(), Error> {
        if self.is_released_by(0..instances) { Ok(()) } else { self.memory.check() }
    }
}

impl MemoryComponent {
    /// Creates a component without leases, which begins with `content` if there is any. If it ends otherwise than by
    /// [`MemoryComponent::end`], an event reports that.
    pub(super) fn new(
        manager: &Arc<ManagerClient>,
        (index, name): (usize, &str),
        (of, plan, content, planned): (&graph::MemoryNeed, MemoryPlan, Option<Arc<Vec<u8>>>, PlannedNode),
        (account, tell): (&Arc<RunBudget>, Sender<RunEvent>),
    ) -> Result<Arc<MemoryComponent>, Error> {
        let plan = plan.limit_bytes(of.limit_bytes);
        let plan = match of.pool {
            Some(pool) => plan.pool(pool),
            None => plan,
        };
        let state = Region::create("sublet-channel", PAGE_BYTES)?;
        bar_writers(state.fd())?;
        let component = MemoryComponent {
            index,
            name: name.to_owned(),
            limit_bytes: of.limit_bytes,
            plan,
            content,
            planned,
            state,
            is_over: AtomicU32::new(0),
            account: account.clone(),
            tell: Mutex::new(tell.clone()),
            stage: RwLock::new(ComponentStage::Unmade { manager: manager.clone(), tell }),
            making: Mutex::default(),
            lost: Mutex::default(),
            used: Mutex::default(),
            reached_by: Mutex::default(),
            cuts: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            traffic: Mutex::default(),
            device_memory: match of.medium {
                Medium::Memory => 0,
                Medium::Device => NEXT_DEVICE_MEMORY.fetch_add(1, Ordering::Relaxed),
            },
        };
        // A worker sees the length before it asks for the bytes.
        component.word(LEN_AT).store(component.content_bytes(), Ordering::Release);
        Ok(Arc::new(component))
    }

    /// Number of the content if that is in the memory of a device.
    pub(super) fn device_memory(&self) -> Option<u64> {
        Some(self.device_memory).filter(|number| *number != 0)
    }

    /// Number of bytes that it begins with.
    fn content_bytes(&self) -> u64 {
        self.content.as_ref().map_or(0, |content| content.len() as u64)
    }

    /// Makes the component, where it is planned, or near the node that accesses it first.
    fn make(self: &Arc<MemoryComponent>, node: &str) -> Result<(), Error> {
        let _making = lock(&self.making);
        let (manager, tell) = match &*read_lock(&self.stage) {
            ComponentStage::Unmade { manager, tell } => (manager.clone(), tell.clone()),
            ComponentStage::Made(_) | ComponentStage::Over => return Ok(()),
        };
        let near = self.planned.near(vec![node.to_owned()]);
        let memory = Memory::new(manager, self.plan.clone().near(near))?;
        if let Some(content) = &self.content {
            memory.write(0, content.as_slice())?;
            memory.sync()?;
        }
        let weak = Arc::downgrade(self);
        memory.on_end(move |error| {
            if let Some(component) = weak.upgrade() {
                component.set_over();
                let (memory, generation) = (component.index, component.generation());
                // If the receiver is gone, the run is over.
                let _ = tell.send(RunEvent::MemoryLost { memory, generation, error });
            }
        });
        *write_lock(&self.stage) = ComponentStage::Made(Box::new(memory));
        Ok(())
    }

    /// An identifier that distinguishes the component from earlier and later ones of the same name.
    pub(super) fn generation(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Records that a component begins that may access it. Returns whether it is the first.
    pub(super) fn begin(&self) -> bool {
        self.begun.swap(1, Ordering::AcqRel) == 0
    }

    /// Whether a component that may access it has begun. Before, it has no memory.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire) != 0
    }

    /// Whether it is still there, and otherwise why not.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(error) = lock(&self.lost).clone() {
            return Err(error);
        }
        match &*read_lock(&self.stage) {
            ComponentStage::Unmade { .. } => Ok(()),
            ComponentStage::Made(memory) => memory.check(),
            ComponentStage::Over => Err(self.over()),
        }
    }

    /// The nodes of its segments.
    pub(super) fn nodes(&self) -> Vec<String> {
        match &*read_lock(&self.stage) {
            ComponentStage::Made(memory) => memory.segments().into_iter().map(|lease| lease.node).collect(),
            ComponentStage::Unmade { .. } | ComponentStage::Over => Vec::new(),
        }
    }

    /// Gives its segments back, and returns its usage.
    pub(super) fn end(&self) -> MemoryComponentUsage {
        let used = self.used();
        self.set_over();
        let _making = lock(&self.making);
        let mut stage = write_lock(&self.stage);
        if let ComponentStage::Made(memory) = std::mem::replace(&mut *stage, ComponentStage::Over) {
            // One that had ended has nothing to give back.
            let _ = memory.release();
        }
        used
    }

    /// Hands its memory on to the caller of the run, with the length that was written. For the run, the component is
    /// over. Returns its usage, too.
    pub(super) fn hand_out(&self) -> (Option<Memory>, MemoryComponentUsage) {
        let used = self.used();
        self.set_over();
        let _making = lock(&self.making);
        match std::mem::replace(&mut *write_lock(&self.stage), ComponentStage::Over) {
            ComponentStage::Made(memory) => {
                memory.set_len(used.len_bytes);
                (Some(*memory), used)
            }
            ComponentStage::Unmade { .. } | ComponentStage::Over => (None, used),
        }
    }

    /// Looks how much of it is used.
    pub(super) fn sample(&self) {
        self.used();
    }

    /// Takes a sample, and returns the usage so far.
    pub(super) fn used(&self) -> MemoryComponentUsage {
        let mut used = lock(&self.used);
        let len_bytes = self.len_bytes().min(used.capacity_bytes);
        used.advance(Instant::now(), len_bytes);
        *used
    }

    /// Length of what was written as far as it is leased, or of what it begins with if nothing has accessed it.
    pub(super) fn known_bytes(&self) -> u64 {
        self.unmade_bytes().max(self.used().len_bytes)
    }

    /// Number of bytes that it begins with, as long as no process has accessed it; 0 from then on.
    fn unmade_bytes(&self) -> u64 {
        match &*read_lock(&self.stage) {
            ComponentStage::Unmade { .. } => self.content_bytes(),
            ComponentStage::Made(_) | ComponentStage::Over => 0,
        }
    }

    /// A worker process of a compute component reports what it has moved.
    fn count_traffic(&self, of: usize, moved: &v1::Traffic) {
        traffic::add(lock(&self.traffic).entry(of).or_default(), moved);
    }

    /// Takes what compute components have moved since the previous call.
    pub(super) fn take_traffic(&self) -> TrafficByComponent {
        std::mem::take(&mut *lock(&self.traffic))
    }

    fn len_bytes(&self) -> u64 {
        // A process that may write may have stored any number there.
        self.word(LEN_AT).load(Ordering::Acquire).min(self.limit_bytes)
    }

    /// Records that one end of a mailbox has ended: it sends nothing more.
    pub(super) fn set_ended(&self, end: u32) {
        self.word(ENDED_AT).fetch_or(1 << end, Ordering::AcqRel);
    }

    fn set_over(&self) {
        self.is_over.store(1, Ordering::Release);
        self.word(OVER_AT).store(1, Ordering::Release);
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        self.state.view(at).expect("a page has these words")
    }

    fn over(&self) -> Error {
        Error::new(Code::LeaseEnded, format!("memory component {} is over", self.name))
    }

    /// All instances of a component have released it. Returns when the run knows.
    fn set_released(&self, by: usize) {
        let (told, is_told) = channel();
        let (memory, generation) = (self.index, self.generation());
        let event = RunEvent::Released { component: by, memory, generation, told };
        // If the receiver is gone, the run is over.
        if lock(&self.tell).send(event).is_ok() {
            let _ = is_told.recv();
        }
    }

    /// Waits until the run's budget admits the capacity for `end` bytes.
    fn reserve(&self, end: u64, by: usize) -> Result<(), Error> {
        let mut tell = |error| {
            // If the receiver is gone, the run is over.
            let _ = lock(&self.tell).send(RunEvent::Waits { component: by, error });
        };
        let is_wanted = || self.is_over.load(Ordering::Acquire) == 0;
        let wait = WaitCallbacks { tell: &mut tell, is_wanted: &is_wanted };
        // All bytes that it begins with are leased when it is made.
        let capacity = self.plan.capacity_for(end.max(self.unmade_bytes()));
        let held = self.account.hold_memory(by, (self.index, capacity), wait);
        held.map_err(|error| if is_wanted() { error } else { self.over() })
    }

    /// Records why the component could not grow. The process that needed it ends, for this reason unless the component
    /// is over.
    fn refuse(&self, error: &Error) {
        lock(&self.lost).get_or_insert_with(|| error.clone());
    }

    /// Makes the capacity at least `end` bytes, and returns the pieces behind `from`. The component is made near `node`
    /// if it does not exist yet.
    fn grow(
        self: &Arc<MemoryComponent>,
        (from, end): (u64, u64),
        node: &str,
    ) -> Result<Vec<Arc<MemoryPiece>>, Error> {
        let note_loss = |error: &Error| {
            // If a segment was lost before it was attached, the component may grow elsewhere: the affected components
            // begin again.
            if is_lost(error.code) {
                lock(&self.lost).get_or_insert_with(|| error.clone());
            }
        };
        self.make(node).inspect_err(note_loss)?;
        self.made(|memory| {
            memory.ensure(end).inspect_err(note_loss)?;
            self.sample();
            let mut used = lock(&self.used);
            used.since.get_or_insert_with(Instant::now);
            used.capacity_bytes = memory.capacity_bytes();
            drop(used);
            Ok(memory.pieces_from(from))
        })
    }

    /// The pieces behind `from` that exist.
    fn existing(&self, from: u64) -> Vec<Arc<MemoryPiece>> {
        match &*read_lock(&self.stage) {
            ComponentStage::Made(memory) => memory.pieces_from(from),
            ComponentStage::Unmade { .. } | ComponentStage::Over => Vec::new(),
        }
    }

    /// Reduces the length, as requested by the only process that has pieces of the component. Bytes behind the new
    /// length are 0 when the component grows again. Whole segments are given back if that process `lets_go` of them.
    fn shorten(&self, len_bytes: u64, lets_go: bool) -> Result<(), Error> {
        self.sample();
        let before = self.len_bytes();
        self.word(LEN_AT).store(len_bytes, Ordering::Release);
        if lets_go && let ComponentStage::Made(memory) = &mut *write_lock(&self.stage) {
            memory.give_back_behind(len_bytes)?;
        }
        self.made(|memory| {
            let capacity = memory.capacity_bytes();
            lock(&self.used).capacity_bytes = capacity;
            self.account.shorten_memory(self.index, capacity);
            memory.zero(len_bytes, before.min(capacity).max(len_bytes))
        })
    }

    /// Allows a worker process to reach a piece, with the returned ticket.
    fn invite(
        &self,
        piece: &MemoryPiece,
        rights: MemoryRights,
        joins: Option<v1::Joins>,
    ) -> Result<v1::SegmentTicket, Error> {
        self.made(|memory| memory.invite(piece, rights, joins))
    }

    /// A worker process does not reach a segment of it any more.
    fn lost(&self, segment: &str, node: &str) -> Error {
        let message =
            format!("segment {segment} of memory component {} is out of reach of node {node}", self.name);
        let error = Error::new(Code::AgentUnreachable, message);
        self.made(|memory| Err::<(), Error>(memory.lost(segment, error))).err().unwrap_or_else(|| self.over())
    }

    /// A worker process does not have the content, which is in the memory of a device: the components that access it
    /// begin again.
    fn lost_on_device(&self) -> Error {
        if self.device_memory == 0 {
            return protocol(format!("memory component {} is not on a device", self.name));
        }
        let message = format!(
            "memory component {} is not in the worker: nothing wrote it, or the worker that wrote it has ended",
            self.name
        );
        let error = Error::new(Code::WorkerDied, message);
        lock(&self.lost).get_or_insert_with(|| error.clone());
        let (memory, generation) = (self.index, self.generation());
        let event = RunEvent::MemoryLost { memory, generation, error: error.clone() };
        // If the receiver is gone, the run is over.
        let _ = lock(&self.tell).send(event);
        error
    }

    /// A worker process knows that it is over: why.
    fn why_over(&self) -> Error {
        self.made(|memory| Err::<(), Error>(memory.await_end())).err().unwrap_or_else(|| self.over())
    }

    fn made<T>(&self, what: impl FnOnce(&Memory) -> Result<T, Error>) -> Result<T, Error> {
        match &*read_lock(&self.stage) {
            ComponentStage::Made(memory) => what(memory),
            ComponentStage::Unmade { .. } | ComponentStage::Over => Err(self.over()),
        }
    }

    /// Describes the component to worker processes.
    fn channel(&self, rights: MemoryRights) -> v1::Channel {
        v1::Channel {
            component: self.name.clone(),
            writable: rights == MemoryRights::Write,
            limit_bytes: self.limit_bytes,
            reserved_bytes: self.plan.reserved_bytes(),
            device_memory: self.device_memory,
            ..v1::Channel::default()
        }
    }
}
