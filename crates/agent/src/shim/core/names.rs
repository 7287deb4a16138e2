//! Names of FIFOs: each is unique among the FIFOs of its tenant in the whole computer.
//!
//! A process that requests a name makes its agent ask all neighbours. A neighbour refuses if it has a FIFO of that
//! name, or if it requests the name for a FIFO with the lower id. If its own FIFO has the higher id, it gives up its
//! own claim. So of two concurrent claims exactly one succeeds, whichever other neighbours are asked.

use std::collections::{BTreeMap, BTreeSet};

use sublet_proto::v1::{self, shim_message::Body};
use sublet_proto::{Code, Error};
use sublet_xpu::wire::check_name_len;
use sublet_xpu::{FifoRights, FifoShape, GlobalId};

use super::fifo_names::TenantFifoName;
use super::{Claim, DelayedRequest, FifoDescriptor, FifoState, MAX_FIFOS, Peer, ShimCore, ShimEffect, Tag};

impl ShimCore {
    /// Creates a FIFO, which the calling process reads.
    pub(super) fn init(
        &mut self,
        (by, tag): (GlobalId, Tag),
        name: String,
        shape: FifoShape,
    ) -> Result<Option<u64>, Error> {
        let shape = shape.check()?;
        let process = self.process(by)?;
        if process.fifos.len() >= MAX_FIFOS {
            return Err(Error::new(
                Code::TooManyInFlight,
                format!("process {by} has {MAX_FIFOS} FIFOs, and no more"),
            ));
        }
        check_name_len(name.len())?;
        let name = (!name.is_empty()).then(|| TenantFifoName { tenant: process.tenant.clone(), name });
        let object = self.new_id(by.pu);
        let Some(name) = name else { return self.make((by, tag), object, None, shape).map(|()| None) };
        if let Some(holder) = self.held_here(&name).or_else(|| self.pending_claim(&name)) {
            return Err(taken(&name.name, holder));
        }
        if self.peers.is_empty() {
            self.names.insert(name.clone(), object);
            return self.make((by, tag), object, Some(name), shape).map(|()| None);
        }
        let awaits: BTreeSet<Peer> = self.peers.keys().copied().collect();
        let told = name.told(object);
        let claim = Claim { by, tag, name, shape, object, awaits: awaits.clone(), lost_to: None };
        let token = self.await_peers(DelayedRequest::Claim(claim))?;
        for peer in awaits {
            self.tell(peer, Body::Claim(v1::NameClaim { token, name: Some(told.clone()) }));
        }
        Ok(None)
    }

    /// The FIFO of this agent that has a name.
    pub(super) fn held_here(&self, name: &TenantFifoName) -> Option<GlobalId> {
        self.names.holders(name).find(|holder| self.is_here(*holder))
    }

    /// The FIFO for which a process of this agent claims a name now.
    pub(super) fn pending_claim(&self, wanted: &TenantFifoName) -> Option<GlobalId> {
        self.pending.values().find_map(|pending| match pending {
            DelayedRequest::Claim(Claim { name, object, lost_to: None, .. }) if name == wanted => {
                Some(*object)
            }
            _ => None,
        })
    }

    /// Handles a neighbour's claim to a name.
    pub(super) fn claimed(&mut self, peer: Peer, token: u64, claimed: &v1::FifoName) {
        let (name, object) = (TenantFifoName::of(claimed), GlobalId::from_bits(claimed.object));
        let claiming = || self.pending_claim(&name).filter(|own| *own < object);
        let holder = self.held_here(&name).or_else(claiming);
        if holder.is_none() {
            self.give_up_claim(&name, object);
            self.learn_name(peer, name, object);
        }
        let holder = holder.map_or(0, GlobalId::to_bits);
        self.tell(peer, Body::Name(v1::NameAnswer { token, holder }));
    }

    /// Gives up a claim of this agent to another FIFO.
    pub(super) fn give_up_claim(&mut self, wanted: &TenantFifoName, to: GlobalId) {
        for pending in self.pending.values_mut() {
            if let DelayedRequest::Claim(Claim { name, lost_to, .. }) = pending
                && name == wanted
            {
                lost_to.get_or_insert(to);
            }
        }
    }

    /// Handles a neighbour's answer to a claim; also called when that neighbour will not answer any more.
    pub(super) fn claim_answered(&mut self, peer: Peer, token: u64, holder: Option<GlobalId>) {
        let Some(DelayedRequest::Claim(Claim { awaits, lost_to, .. })) = self.pending.get_mut(&token) else {
            return;
        };
        awaits.remove(&peer);
        if let Some(holder) = holder {
            lost_to.get_or_insert(holder);
        }
        if !awaits.is_empty() {
            return;
        }
        let Some(DelayedRequest::Claim(claim)) = self.pending.remove(&token) else { return };
        let Claim { by, tag, name, shape, object, lost_to, .. } = claim;
        if let Some(holder) = lost_to {
            self.release_name(&name, object);
            return self.answer((by, tag), Err(taken(&name.name, holder)));
        }
        self.names.insert(name.clone(), object);
        if let Err(error) = self.make((by, tag), object, Some(name.clone()), shape) {
            self.release_name(&name, object);
            self.answer((by, tag), Err(error));
        }
    }

    /// A name is free again, which neighbours learn lazily.
    pub(super) fn release_name(&mut self, name: &TenantFifoName, object: GlobalId) {
        self.names.remove(name, object);
        if !self.peers.is_empty() {
            self.gone.names.push(name.told(object));
        }
    }

    fn make(
        &mut self,
        (by, tag): (GlobalId, Tag),
        object: GlobalId,
        name: Option<TenantFifoName>,
        shape: FifoShape,
    ) -> Result<(), Error> {
        let tenant = self.process(by)?.tenant.clone();
        let at = self.describe(by, FifoDescriptor::Reader(object))?;
        let fifo = FifoState {
            name,
            tenant,
            shape,
            creator: by,
            reader: Some((by, at.descriptor)),
            rights: BTreeMap::from([(by, FifoRights::ALL)]),
            writers: BTreeMap::new(),
            next_connection: 1,
        };
        debug_assert!(
            fifo.name.as_ref().is_none_or(|name| self.held_here(name) == Some(object)),
            "the name of FIFO {object} is another's: {:?}",
            fifo.name
        );
        let before = self.fifos.insert(object, fifo);
        debug_assert!(before.is_none(), "FIFO {object} is made twice");
        if let Some(process) = self.processes.get_mut(&by) {
            process.fifos.insert(object);
        }
        self.out.push_back(ShimEffect::Read { at, tag, object, shape });
        Ok(())
    }
}

fn taken(name: &str, holder: GlobalId) -> Error {
    Error::new(Code::AlreadyAllocated, format!("the name {name:?} is taken by FIFO {holder}"))
}
