//! An open connection: its objects, how it is made, and how it makes progress.
//!
//! Messages land in slots of this side's memory, each by one write with immediate data. A message is processed in four
//! steps: copy it out of the slot, since the peer can change it there; check its contents; execute it; count the slot
//! as free.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::contact::Contact;
use super::ffi::{self, FfiCompletion, RawRegistration};
use super::flow::{Flow, SLOTS};
use super::link::{MSG, OfiLink, OfiNetwork};
use super::message::{PutBatch, SLOT_BYTES, Tail};
use super::operations::{GROUPS, OPERATIONS, Operations, PUSHES};
use super::regions::OfiRegions;
use crate::FabricError;
use crate::exposed::ExposedMemory;
use crate::region::{PAGE_BYTES, Region};

/// Bytes of registered memory through which unregistered buffers are copied.
pub const BOUNCE_BYTES: u64 = 256 << 10;
/// Bytes reserved for an atomic's group, large enough for any alignment.
const WORDS_BYTES: u64 = 64;

/// Offset of the slots in the landing memory, behind the page with the peer's count of taken messages.
pub const SLOTS_OFFSET: u64 = PAGE_BYTES;
pub const LANDING_BYTES: u64 = SLOTS_OFFSET + (SLOTS * SLOT_BYTES) as u64;
/// Offsets in the outgoing memory: the slots' messages, the atomics' words, the count of taken messages, the bounce
/// bytes.
const WORDS_OFFSET: u64 = (SLOTS * SLOT_BYTES) as u64;
const COUNT_OFFSET: u64 = WORDS_OFFSET + GROUPS as u64 * WORDS_BYTES;
const BOUNCE_OFFSET: u64 = COUNT_OFFSET + WORDS_BYTES;
const OUTGOING_BYTES: u64 = BOUNCE_OFFSET + BOUNCE_BYTES;

/// Ranges of the contexts: one for each slot, each receive and each operation, and one for the count.
const RECEIVES: usize = SLOTS;
const FIRST_OPERATION: usize = SLOTS + RECEIVES;
const COUNT: usize = FIRST_OPERATION + OPERATIONS;
const CONTEXTS: usize = COUNT + 1;

/// Most completions that one poll takes.
const LOT: usize = 16;
/// Number of polls between two checks for events of the connection; a descriptor reports them, too.
const POLLS_PER_EVENT: u32 = 64;

/// Memory that libfabric uses while an operation is in progress.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct OperationContext([u64; 8]);

/// State of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// There is no peer.
    Alone,
    /// The peer will connect, and show this token.
    Listening([u8; ffi::TOKEN_BYTES]),
    /// The peer was called or accepted, and is not connected yet.
    Connecting,
    Up,
}

/// Effects of progress that other threads may wait for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effects {
    /// A line was published.
    pub published: bool,
    /// A published line asked for the bell.
    pub bell: bool,
}

/// State of a request to the peer by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRequest {
    Nothing,
    Waiting,
    Answered(u64),
}

/// See the [module](self).
pub struct Live {
    /// The first field, so that registrations end before their memory is unmapped.
    pub(super) link: OfiLink,
    pub(super) regions: OfiRegions,
    pub(super) flow: Flow,
    pub(super) operations: Operations,
    pub(super) batch: PutBatch,
    /// Whether the batch contains a put, which takes effect without a line. Pushes wait for a line.
    pub(super) has_puts: bool,
    /// A thread is sending the content of the batch without a line. Until it has finished, no other operation may
    /// overtake it.
    pub(super) is_flushing: bool,
    pub(super) atomics: bool,
    pub(super) asked: [PeerRequest; GROUPS],
    /// Answers that the peer waits for.
    pub(super) owed: VecDeque<(u32, u64)>,
    pub(super) effects: Effects,
    /// Private copy of the message that is executed.
    pub(super) scratch: Box<[u8; SLOT_BYTES]>,
    /// Key and start of the landing memory of the peer, for this side's messages.
    pub(super) peer_key: u64,
    pub(super) peer_base: u64,
    pub(super) outgoing_descriptor: *mut c_void,
    pub(super) outgoing: Region,
    pub(super) landing: Region,
    landing_registration: RawRegistration,
    contexts: Box<[OperationContext; CONTEXTS]>,
    /// Receives that could not be posted again yet.
    unposted: Vec<usize>,
    completions: [FfiCompletion; LOT],
    /// The descriptors are being polled.
    pub(super) is_watched: bool,
    /// The provider sends only during this process's own progress.
    pub(super) is_software: bool,
    /// The count in the outgoing memory is being sent to the peer, and must not be changed before it has left.
    pub(super) is_telling: bool,
    stage: ConnectionStage,
    polls: u32,
}

// SAFETY: the raw pointers are into memory that this owns, or are libfabric's, which go with the link.
unsafe impl Send for Live {}

impl Live {
    /// Opens an interface, without a peer. The peer may write into `landing_bytes` bytes of landing memory.
    pub fn open(
        network: &OfiNetwork,
        exposed: Arc<ExposedMemory>,
        landing_bytes: u64,
    ) -> Result<Live, FabricError> {
        let mut link = OfiLink::open(network)?;
        let landing = Region::create("sublet-landing", landing_bytes.max(LANDING_BYTES))?;
        let outgoing = Region::create("sublet-outgoing", OUTGOING_BYTES)?;
        // SAFETY: `Live` keeps both mapped for longer than the link.
        let landing_registration = unsafe { link.enroll(start(&landing), landing.len_bytes(), true)? };
        // SAFETY: as above.
        let outgoing_descriptor = unsafe { link.enroll(start(&outgoing), OUTGOING_BYTES, false)? }.descriptor;
        Ok(Live {
            regions: OfiRegions::new(exposed),
            flow: Flow::default(),
            operations: Operations::default(),
            batch: PutBatch::default(),
            has_puts: false,
            is_flushing: false,
            atomics: false,
            asked: [PeerRequest::Nothing; GROUPS],
            owed: VecDeque::new(),
            effects: Effects::default(),
            scratch: Box::new([0; SLOT_BYTES]),
            peer_key: 0,
            peer_base: 0,
            outgoing_descriptor,
            outgoing,
            landing,
            landing_registration,
            contexts: Box::new([OperationContext([0; 8]); CONTEXTS]),
            unposted: Vec::new(),
            completions: [FfiCompletion::EMPTY; LOT],
            is_watched: false,
            is_software: ["tcp", "net", "udp", "sockets"]
                .iter()
                .any(|name| link.facts.provider().starts_with(name)),
            is_telling: false,
            stage: ConnectionStage::Alone,
            polls: 0,
            link,
        })
    }

    /// Makes the contact of this endpoint for the peer. With `listens`, a connected endpoint listens from now on.
    pub fn contact(&mut self, listens: bool) -> Result<Contact, FabricError> {
        if listens && self.link.facts.kind == MSG {
            self.link.listen()?;
        }
        let virtual_addresses = self.link.facts.virtual_addresses != 0;
        let base = if virtual_addresses { start(&self.landing).as_ptr() as u64 } else { 0 };
        let contact = self.link.contact(&self.landing_registration, base)?;
        if listens && self.link.facts.kind == MSG {
            self.stage = ConnectionStage::Listening(contact.token);
        }
        Ok(contact)
    }

    /// Records the peer's contact. A connected endpoint that does not listen begins to connect.
    pub fn meet(&mut self, peer: &Contact) -> Result<(), FabricError> {
        let (ours, theirs) = (self.link.facts.provider(), &peer.provider);
        if (&ours, self.link.facts.kind) != (theirs, u32::from(peer.kind)) {
            return Err(FabricError::Unsupported(format!(
                "this end uses libfabric's {ours} (endpoints of kind {}), the peer {theirs} (kind {})",
                self.link.facts.kind, peer.kind
            )));
        }
        peer.check_landing(LANDING_BYTES)?;
        (self.peer_key, self.peer_base) = (peer.landing_key, peer.landing_base);
        if self.link.facts.kind == MSG {
            if self.stage == ConnectionStage::Alone {
                self.link.dial(peer)?;
                self.stage = ConnectionStage::Connecting;
                self.post_receives()?;
            }
            return Ok(());
        }
        self.link.insert(peer)?;
        self.begin_use()?;
        self.post_receives()
    }

    /// Whether operations may be posted.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.stage == ConnectionStage::Up
    }

    /// Whether a slot's message has left and all pushes before it have been read, so that both arrive without further
    /// progress here.
    #[inline]
    pub fn may_be_left(&self, slot: usize) -> bool {
        self.operations.is_done(PUSHES) && self.flow.has_left(slot)
    }

    /// Descriptors that report arrivals; -1 where there is none.
    pub fn descriptors(&self) -> [i32; 2] {
        [self.link.facts.completion_fd, self.link.facts.event_fd]
    }

    /// Whether a descriptor reports arrivals and completions. Not every provider has one.
    pub fn has_descriptor(&self) -> bool {
        self.link.facts.completion_fd >= 0
    }

    /// Whether nothing has arrived and no answer is due, so that the descriptor will report the next arrival.
    pub fn may_sleep(&mut self) -> bool {
        let is_idle = self.unposted.is_empty() && self.owed.is_empty() && self.flow.to_tell().is_none();
        is_idle && (!self.has_descriptor() || self.link.try_wait())
    }

    /// Processes arrivals and completions. [`Live::settle`] must follow, after the bells and wake-ups that the effects
    /// request.
    pub fn progress(&mut self) -> Result<(), FabricError> {
        let mut taken = LOT;
        for _ in 0..SLOTS / LOT {
            if taken < LOT {
                break;
            }
            taken = self.link.poll(&mut self.completions)?;
            for index in 0..taken {
                self.complete(index)?;
            }
        }
        self.take_messages()?;
        self.polls = self.polls.wrapping_add(1);
        let connects = self.stage != ConnectionStage::Up || self.polls.is_multiple_of(POLLS_PER_EVENT);
        if connects { self.take_events() } else { Ok(()) }
    }

    /// Makes progress, and processes events of the connection.
    pub fn progress_all(&mut self) -> Result<(), FabricError> {
        self.progress()?;
        self.take_events()
    }

    /// Sends the peer the reason of the end, as far as that is possible within `limit`, and shuts the connection down.
    pub fn say_goodbye(&mut self, reason: &str, limit: Duration) {
        self.batch.clear();
        let tail = Tail::Goodbye(reason.as_bytes());
        let sent =
            if self.stage == ConnectionStage::Up { self.send(&tail, true).unwrap_or(None) } else { None };
        if let Some(slot) = sent {
            let began = Instant::now();
            while !self.flow.has_left(slot) && began.elapsed() < limit {
                let Ok(taken) = self.link.poll(&mut self.completions) else { break };
                // Messages that arrive now are too late.
                (0..taken).for_each(|index| drop(self.complete(index)));
            }
        }
        if self.link.facts.kind == MSG {
            self.link.shutdown();
        }
    }

    /// Address of an operation's context.
    pub(super) fn operation_context(&mut self, operation: usize) -> *mut c_void {
        (&raw mut self.contexts[FIRST_OPERATION + operation]).cast()
    }

    /// Address of the context of a slot's message.
    pub(super) fn slot_context(&mut self, slot: usize) -> *mut c_void {
        (&raw mut self.contexts[slot]).cast()
    }

    /// Address of the count's context.
    pub(super) fn count_context(&mut self) -> *mut c_void {
        (&raw mut self.contexts[COUNT]).cast()
    }

    /// The count of taken messages that is sent to the peer.
    pub(super) fn count(&self) -> NonNull<u64> {
        inside(&self.outgoing, COUNT_OFFSET).cast()
    }

    /// The words of a group: operand, expected, result.
    pub(super) fn words(&self, group: usize) -> NonNull<u64> {
        inside(&self.outgoing, WORDS_OFFSET + group as u64 * WORDS_BYTES).cast()
    }

    /// The bounce bytes.
    pub(super) fn bounce(&self) -> NonNull<u8> {
        inside(&self.outgoing, BOUNCE_OFFSET)
    }

    fn complete(&mut self, index: usize) -> Result<(), FabricError> {
        let completion = self.completions[index];
        if completion.flags & self.link.remote_data() != 0 {
            self.flow.arrive(completion.data)?;
        }
        let from = (completion.context as usize).wrapping_sub(self.contexts.as_ptr() as usize);
        match from / size_of::<OperationContext>() {
            slot @ 0..SLOTS => self.flow.left(slot),
            receive @ SLOTS..FIRST_OPERATION => self.unposted.push(receive),
            operation @ FIRST_OPERATION..COUNT => self.operations.complete(operation - FIRST_OPERATION),
            COUNT => self.is_telling = false,
            _ => {}
        }
        Ok(())
    }

    /// Posts receives, and sends due answers and counts. A peer with an answer may rely on the bells before it.
    pub fn settle(&mut self) -> Result<(), FabricError> {
        while let Some(index) = self.unposted.pop() {
            let context = (&raw mut self.contexts[index]).cast();
            if !self.link.receive(context)? {
                self.unposted.push(index);
                break;
            }
        }
        if self.stage == ConnectionStage::Up {
            self.answer()?;
            self.tell()?;
        }
        Ok(())
    }

    fn post_receives(&mut self) -> Result<(), FabricError> {
        if self.link.facts.receives != 0 {
            self.unposted = (SLOTS..SLOTS + RECEIVES).collect();
        }
        self.settle()
    }

    fn begin_use(&mut self) -> Result<(), FabricError> {
        self.atomics = self.link.has_atomics();
        self.stage = ConnectionStage::Up;
        Ok(())
    }

    /// Processes an event of the connection: a request, its completion, or its end.
    pub(super) fn take_events(&mut self) -> Result<(), FabricError> {
        if self.link.facts.kind != MSG {
            return Ok(());
        }
        let event = self.link.event()?;
        match (event.kind, self.stage) {
            (ffi::EVENT_REQUEST, ConnectionStage::Listening(token)) => {
                if event.token_bytes as usize != token.len() || event.token != token {
                    self.link.refuse();
                    return Ok(());
                }
                self.link.admit()?;
                self.stage = ConnectionStage::Connecting;
                self.post_receives()?;
                self.link.accept()
            }
            (ffi::EVENT_REQUEST, _) => {
                self.link.refuse();
                Ok(())
            }
            (ffi::EVENT_CONNECTED, ConnectionStage::Connecting) => self.begin_use(),
            (ffi::EVENT_SHUTDOWN, _) => {
                self.take_last()?;
                Err(FabricError::Disconnected { reason: "the peer has ended the connection".into() })
            }
            (ffi::EVENT_FAILED, ConnectionStage::Listening(_)) => Ok(()),
            (ffi::EVENT_FAILED, _) => {
                Err(FabricError::Disconnected { reason: self.link.error_text(event.error) })
            }
            _ => Ok(()),
        }
    }
}

impl Live {
    /// Processes messages that arrived before the peer ended the connection, its reason among them.
    fn take_last(&mut self) -> Result<(), FabricError> {
        while let Ok(taken @ 1..) = self.link.poll(&mut self.completions) {
            for index in 0..taken {
                self.complete(index)?;
            }
        }
        self.take_messages()
    }
}

fn start(region: &Region) -> NonNull<u8> {
    inside(region, 0)
}

fn inside(region: &Region, offset: u64) -> NonNull<u8> {
    region.pointer(offset, 1).expect("the layout's offsets are inside of the regions that were made for it")
}
