//! A ping-pong with the least work that libfabric allows: the reference for measurements of the endpoint.
//!
//! Each message is one `fi_writedata` to the same address of the peer, which spins on its completion queue and reads
//! nothing else. Over ofi_rxm on tcp each message is two writes, as the endpoint's messages are. An end fails if its
//! peer does nothing for longer than the end's patience.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sublet_proto::to_usize;

use super::OfiNetwork;
use super::contact::Contact;
use super::ffi::{FfiCompletion, Transfer};
use super::link::Post;
use super::live::{Live, SLOTS_OFFSET};
use crate::FabricError;
use crate::exposed::ExposedMemory;
use crate::region::{PAGE_BYTES, Region};
use crate::window::{RegionAddress, Window};

/// Default time limit for the peer's part.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of polls between two readings of the clock, which would add to the measured time.
const POLLS_PER_CLOCK: u32 = 1024;

/// One end of a ping-pong.
pub struct PingPong {
    live: Live,
    counts: Counts,
    patience: Duration,
    descriptor: *mut std::ffi::c_void,
    context: Box<[u64; 8]>,
    /// Behind `live`, whose link has this memory registered.
    outgoing: Region,
}

/// Messages so far.
#[derive(Clone, Copy, Default)]
struct Counts {
    arrived: u64,
    taken: u64,
    left: u64,
    sent: u64,
}

impl PingPong {
    /// Opens the end that connects, and returns its contact. Messages have at most `max_bytes` bytes.
    pub fn open(network: &OfiNetwork, max_bytes: u64) -> Result<(PingPong, Vec<u8>), FabricError> {
        PingPong::new(network, max_bytes, None)
    }

    /// Opens the end that is connected to, and returns its contact.
    pub fn accept(
        network: &OfiNetwork,
        max_bytes: u64,
        contact: &[u8],
    ) -> Result<(PingPong, Vec<u8>), FabricError> {
        let peer = Contact::decode(contact)?;
        let network = OfiNetwork { toward: peer.ip().or(network.toward), ..network.clone() };
        PingPong::new(&network, max_bytes, Some(&peer))
    }

    /// Sets the time limit for the peer's part.
    pub fn patience(self, patience: Duration) -> PingPong {
        PingPong { patience, ..self }
    }

    /// Connects to the peer with this contact, which must [meet](PingPong::meet) this end meanwhile.
    pub fn connect(&mut self, contact: &[u8]) -> Result<(), FabricError> {
        self.live.meet(&Contact::decode(contact)?)?;
        self.meet()
    }

    /// Spins until the peer is connected.
    pub fn meet(&mut self) -> Result<(), FabricError> {
        self.until("the peer is not connected", |end| {
            if !end.live.is_up() {
                // A message that has arrived already is for `receive`.
                end.live.take_events()?;
            }
            Ok(end.live.is_up())
        })
    }

    /// Sends a message.
    pub fn send(&mut self, len_bytes: u64) -> Result<(), FabricError> {
        self.finish()?;
        let outside = || FabricError::out_of_bounds(RegionAddress { region: 0, offset: 0 }, len_bytes);
        let local = self.outgoing.pointer(0, len_bytes).ok_or_else(outside)?;
        let transfer = Transfer {
            local: local.as_ptr().cast(),
            len_bytes: to_usize(len_bytes),
            descriptor: self.descriptor,
            remote: self.live.peer_base + SLOTS_OFFSET,
            key: self.live.peer_key,
            data: 1,
            context: self.context.as_mut_ptr().cast(),
        };
        self.until("the provider takes no message", |end| {
            // SAFETY: the bytes and the context stay in place until the message has left, which is waited for before
            // either is used again; the link is closed before they go.
            let posted = unsafe { end.live.link.post(Post::WriteData, &transfer)? };
            if !posted {
                end.polled()?;
            }
            Ok(posted)
        })?;
        self.counts.sent += 1;
        Ok(())
    }

    /// Spins until the next message has arrived.
    pub fn receive(&mut self) -> Result<(), FabricError> {
        self.until("no message came", |end| {
            Ok(end.counts.arrived != end.counts.taken || end.polled()?.arrived != end.counts.taken)
        })?;
        self.counts.taken += 1;
        Ok(())
    }

    /// Spins until the last message has left. A provider may send only during this end's polls, so call this before the
    /// polls stop.
    pub fn finish(&mut self) -> Result<(), FabricError> {
        self.until("the last message has not left", |end| {
            Ok(end.counts.left == end.counts.sent || end.polled()?.left == end.counts.sent)
        })
    }

    fn new(
        network: &OfiNetwork,
        max_bytes: u64,
        peer: Option<&Contact>,
    ) -> Result<(PingPong, Vec<u8>), FabricError> {
        let nothing = ExposedMemory::new(
            &Region::create("sublet-nothing", PAGE_BYTES)?,
            Arc::new(Window::new(1, PAGE_BYTES)?),
            1,
        )?;
        let outgoing = Region::create("sublet-ping", max_bytes.max(PAGE_BYTES))?;
        let mut live = Live::open(network, Arc::new(nothing), SLOTS_OFFSET + max_bytes)?;
        let memory: NonNull<u8> = outgoing.pointer(0, 1).expect("it has a page at least");
        // SAFETY: `outgoing` stands after `live` and is unmapped after it.
        let descriptor = unsafe { live.link.enroll(memory, outgoing.len_bytes(), false)? }.descriptor;
        let contact = live.contact(peer.is_some())?.encode();
        if let Some(peer) = peer {
            live.meet(peer)?;
        }
        let (counts, context) = (Counts::default(), Box::new([0; 8]));
        let end = PingPong { live, counts, patience: PATIENCE, descriptor, context, outgoing };
        Ok((end, contact))
    }

    /// Repeats a step until it is done, or the peer's time limit has passed.
    #[inline]
    fn until(
        &mut self,
        late: &str,
        mut step: impl FnMut(&mut PingPong) -> Result<bool, FabricError>,
    ) -> Result<(), FabricError> {
        let mut last: Option<Instant> = None;
        loop {
            for _ in 0..POLLS_PER_CLOCK {
                if step(self)? {
                    return Ok(());
                }
            }
            let now = Instant::now();
            if now >= *last.get_or_insert(now + self.patience) {
                let reason = format!("{late} for {} ms of a plain ping-pong", self.patience.as_millis());
                return Err(FabricError::Disconnected { reason });
            }
        }
    }

    /// Returns the counts after one poll.
    #[inline]
    fn polled(&mut self) -> Result<Counts, FabricError> {
        let mut completions = [FfiCompletion::EMPTY; 4];
        let link = &mut self.live.link;
        let taken = link.poll(&mut completions)?;
        for completion in &completions[..taken] {
            if completion.flags & link.remote_data() == 0 {
                // A null context belongs to the bytes of a message whose data complete separately.
                self.counts.left += u64::from(!completion.context.is_null());
                continue;
            }
            self.counts.arrived += 1;
            if link.facts.receives != 0 {
                while !link.receive(completion.context)? {}
            }
        }
        Ok(self.counts)
    }
}

// SAFETY: the pointers are into memory that this owns, or libfabric's of the link that this owns.
unsafe impl Send for PingPong {}
