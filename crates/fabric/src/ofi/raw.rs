//! A ping-pong as plain as libfabric allows: what the endpoint is measured against.
//!
//! Each message is one `fi_writedata` to the same place of the peer, who spins on its completion queue and looks at
//! nothing else.

use std::ptr::NonNull;
use std::sync::Arc;

use super::Network;
use super::contact::Contact;
use super::ffi::{Completion, Transfer};
use super::link::Post;
use super::live::{Live, SLOTS_OFFSET};
use crate::FabricError;
use crate::exposed::Exposed;
use crate::region::{PAGE_BYTES, Region};
use crate::window::{Address, Window};

/// One end of a ping-pong.
pub struct PingPong {
    live: Live,
    arrived: u64,
    taken: u64,
    left: u64,
    sent: u64,
    descriptor: *mut std::ffi::c_void,
    context: Box<[u64; 8]>,
    /// After `live`, whose link has it registered.
    outgoing: Region,
}

impl PingPong {
    /// The end that connects, and its contact. Messages have at most so many bytes.
    pub fn open(network: &Network, max_bytes: u64) -> Result<(PingPong, Vec<u8>), FabricError> {
        PingPong::new(network, max_bytes, None)
    }

    /// The end that is connected to, and its contact.
    pub fn accept(
        network: &Network,
        max_bytes: u64,
        contact: &[u8],
    ) -> Result<(PingPong, Vec<u8>), FabricError> {
        let peer = Contact::decode(contact)?;
        let network = Network { toward: peer.ip().or(network.toward), ..network.clone() };
        PingPong::new(&network, max_bytes, Some(&peer))
    }

    /// Goes on with the peer whose contact is there. The other end must call [`PingPong::is_up`] meanwhile.
    pub fn connect(&mut self, contact: &[u8]) -> Result<(), FabricError> {
        self.live.meet(&Contact::decode(contact)?)?;
        while !self.is_up()? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Whether the peer is connected; lets it be.
    pub fn is_up(&mut self) -> Result<bool, FabricError> {
        if !self.live.is_up() {
            // What has arrived already is a message for `receive`.
            self.live.take_events()?;
        }
        Ok(self.live.is_up())
    }

    /// Sends a message.
    pub fn send(&mut self, len_bytes: u64) -> Result<(), FabricError> {
        while self.left < self.sent {
            self.poll()?;
        }
        let outside = || FabricError::out_of_bounds(Address { region: 0, offset: 0 }, len_bytes);
        let local = self.outgoing.pointer(0, len_bytes).ok_or_else(outside)?;
        let transfer = Transfer {
            local: local.as_ptr().cast(),
            len_bytes: len_bytes as usize,
            descriptor: self.descriptor,
            remote: self.live.peer_base + SLOTS_OFFSET,
            key: self.live.peer_key,
            data: 1,
            context: self.context.as_mut_ptr().cast(),
        };
        // SAFETY: the bytes and the context stay in place until the message has left, which is waited for before either
        // is used again; the link is closed before they go.
        while !unsafe { self.live.link.post(Post::WriteData, &transfer)? } {
            self.poll()?;
        }
        self.sent += 1;
        Ok(())
    }

    /// Spins until the next message is here.
    pub fn receive(&mut self) -> Result<(), FabricError> {
        while self.arrived == self.taken {
            self.poll()?;
        }
        self.taken += 1;
        Ok(())
    }

    fn new(
        network: &Network,
        max_bytes: u64,
        peer: Option<&Contact>,
    ) -> Result<(PingPong, Vec<u8>), FabricError> {
        let nothing = Exposed::new(
            &Region::create("sublet-nothing", PAGE_BYTES)?,
            Arc::new(Window::reserve(1, PAGE_BYTES)?),
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
        let context = Box::new([0; 8]);
        Ok((
            PingPong { live, arrived: 0, taken: 0, left: 0, sent: 0, descriptor, context, outgoing },
            contact,
        ))
    }

    #[inline]
    fn poll(&mut self) -> Result<(), FabricError> {
        let mut completions = [Completion::EMPTY; 4];
        let link = &mut self.live.link;
        let taken = link.poll(&mut completions)?;
        for completion in &completions[..taken] {
            if completion.flags & link.remote_data() == 0 {
                self.left += 1;
                continue;
            }
            self.arrived += 1;
            if link.facts.receives != 0 {
                while !link.receive(completion.context)? {}
            }
        }
        Ok(())
    }
}

// SAFETY: the pointers are into memory that this owns, or libfabric's of the link that this owns.
unsafe impl Send for PingPong {}
