//! Neighbours: their messages, and what happens when one is linked or out of reach.

use std::collections::BTreeSet;

use sublet_proto::v1::{self, shim_message::Body};
use sublet_proto::{Code, Error, pu};
use sublet_xpu::GlobalId;

use super::rights::told_rights;
use super::{
    Claim, DelayedRequest, MAX_NAME_BYTES, MAX_PEER_NAMES, MAX_TOLD, Peer, RightsChangeOrigin, ShimCore,
    ShimNeighbour, TenantFifoName,
};

/// A neighbour has sent a message that it must not send: no further message of it is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProtocolViolation(pub(crate) String);

impl ShimCore {
    /// Greets a linked neighbour: the agent of `node`, which serves `units`. The first messages tell it what is known
    /// here, and all later ones what changes.
    pub(crate) fn greet(&mut self, peer: Peer, node: &str, units: &[u32]) {
        self.unlinked(peer);
        let is_theirs = |pid: &GlobalId| units.contains(&pid.pu);
        let held = self.fifos.iter().filter_map(|(object, fifo)| {
            let name = fifo.name.as_ref().filter(|name| self.held_here(name) == Some(*object));
            name.map(|name| name.told(*object))
        });
        let claimed = self.pending.values().filter_map(|pending| match pending {
            DelayedRequest::Claim(Claim { name, object, lost_to: None, .. }) => Some(name.told(*object)),
            _ => None,
        });
        let rights = self.fifos.iter().flat_map(|(object, fifo)| {
            let held = fifo.rights.iter().filter(|(pid, _)| is_theirs(pid));
            held.map(|(pid, rights)| told_rights(0, *pid, *object, &fifo.tenant, *rights))
        });
        let (names, rights): (Vec<_>, Vec<_>) = (held.chain(claimed).collect(), rights.collect());
        self.peers.insert(
            peer,
            ShimNeighbour { node: node.into(), units: units.into(), ..ShimNeighbour::default() },
        );
        let told = |names: &[v1::FifoName], rights: &[v1::RightsUpdate], more| {
            let (instance, units) = (self.instance.clone(), self.units.iter().copied().collect());
            let (kind, names, rights) = (self.kind.clone(), names.into(), rights.into());
            Body::Sync(v1::ShimSync { instance, units, names, rights, more, kind })
        };
        let names = names.chunks(MAX_TOLD).map(|some| told(some, &[], true));
        let rights = rights.chunks(MAX_TOLD).map(|some| told(&[], some, true));
        let all: Vec<Body> = names.chain(rights).chain([told(&[], &[], false)]).collect();
        all.into_iter().for_each(|body| self.tell(peer, body));
    }

    /// Handles the first message of a neighbour, with its parts combined.
    pub(crate) fn linked(
        &mut self,
        peer: Peer,
        sync: &v1::ShimSync,
        units: &[u32],
    ) -> Result<(), ProtocolViolation> {
        if let Some(unit) = sync.units.iter().find(|unit| !units.contains(unit)) {
            return Err(ProtocolViolation(format!(
                "it says that it serves processing unit {unit:x}, which is not its own"
            )));
        }
        let kind = pu::kind(&sync.kind);
        if !pu::is_processor_kind(kind) {
            return Err(ProtocolViolation(format!("it says that its processor is of kind {kind:.40?}")));
        }
        let known = self.instances.insert(peer, sync.instance.clone());
        if known.is_some_and(|known| known != sync.instance) {
            self.restarted(units);
        }
        let Some(neighbour) = self.peers.get_mut(&peer) else { return Ok(()) };
        neighbour.is_linked = true;
        neighbour.kind = kind.to_owned();
        for &unit in &sync.units {
            self.routes.insert(unit, peer);
        }
        // Only the rights that the neighbour states now are valid.
        for process in self.processes.values_mut() {
            process.rights.retain(|object, _| !units.contains(&object.pu));
        }
        for name in &sync.names {
            self.check_name(peer, Some(name))?;
            self.meet(peer, name);
        }
        for update in &sync.rights {
            self.check_own(peer, update.object)?;
            // An update for a process that has ended fails: the neighbour will learn of the end.
            let _ = self.update(update);
        }
        Ok(())
    }

    /// Resolves a name that both nodes may have: the FIFO with the lower id keeps it.
    fn meet(&mut self, peer: Peer, told: &v1::FifoName) {
        let (name, theirs) = (TenantFifoName::of(told), GlobalId::from_bits(told.object));
        if let Some(ours) = self.held_here(&name).filter(|ours| theirs < *ours) {
            self.release_name(&name, ours);
        }
        if self.pending_claim(&name).is_some_and(|ours| theirs < ours) {
            self.give_up_claim(&name, theirs);
        }
        self.learn_name(peer, name, theirs);
    }

    /// Notes that a neighbour's FIFO has this name or claims it.
    pub(super) fn learn_name(&mut self, peer: Peer, name: TenantFifoName, object: GlobalId) {
        let Some(neighbour) = self.peers.get_mut(&peer) else { return };
        if neighbour.names.len() < MAX_PEER_NAMES {
            neighbour.names.insert((name.clone(), object));
            self.names.insert(name, object);
        }
    }

    /// Removes a neighbour that is out of reach: calls that wait for it are answered, and its names are free.
    /// Connections of its processes last as long as their sockets do, and so do its processes' rights.
    pub(crate) fn unlinked(&mut self, peer: Peer) {
        let Some(neighbour) = self.peers.remove(&peer) else { return };
        self.routes.retain(|_, of| *of != peer);
        debug_assert!(
            self.routes.values().all(|peer| self.peers.contains_key(peer)),
            "a route leads to a peer that is not linked: {:?}",
            self.routes
        );
        for (name, object) in neighbour.names {
            self.names.remove(&name, object);
        }
        self.forget_asked(|asked| matches!(asked, RightsChangeOrigin::There { peer: by, .. } if by == peer));
        let lost = || Error::new(Code::AgentUnreachable, format!("processing unit {peer:x} is out of reach"));
        for token in self.pending.keys().copied().collect::<Vec<_>>() {
            match self.pending.get(&token) {
                Some(DelayedRequest::Claim(claim)) if claim.awaits.contains(&peer) => {
                    self.claim_answered(peer, token, None)
                }
                Some(DelayedRequest::Update { peer: of, .. }) if *of == peer => {
                    self.updated(token, Err(lost()))
                }
                Some(
                    DelayedRequest::Change { by, tag, peer: of }
                    | DelayedRequest::Connect { by, tag, peer: of, .. },
                ) if *of == peer => {
                    let call = (*by, *tag);
                    self.pending.remove(&token);
                    self.answer(call, Err(lost()));
                }
                _ => {}
            }
        }
    }

    /// Removes the processes of a neighbour whose agent was restarted.
    fn restarted(&mut self, units: &[u32]) {
        let is_theirs = |pid: &GlobalId| units.contains(&pid.pu);
        let holders = self.fifos.values().flat_map(|fifo| fifo.rights.keys().copied());
        for pid in holders.filter(is_theirs).collect::<BTreeSet<_>>() {
            self.forget_process(pid);
        }
        let lost: Vec<(GlobalId, GlobalId, u32)> = self
            .processes
            .iter()
            .flat_map(|(pid, process)| {
                process.descriptors.values().filter_map(|what| match what {
                    super::FifoDescriptor::Writer { object, connection, is_over: false }
                        if is_theirs(object) =>
                    {
                        Some((*pid, *object, *connection))
                    }
                    _ => None,
                })
            })
            .collect();
        for (writer, object, connection) in lost {
            let code = Code::AgentUnreachable.number();
            let (object, writer) = (object.to_bits(), writer.to_bits());
            self.ended_there(&v1::FifoEnded { object, connection, writer, code });
        }
        for process in self.processes.values_mut() {
            process.rights.retain(|object, _| !is_theirs(object));
        }
    }

    /// Handles a message of a neighbour.
    pub(crate) fn heard(&mut self, peer: Peer, message: v1::ShimMessage) -> Result<(), ProtocolViolation> {
        match self.peers.get(&peer) {
            None => return Ok(()),
            Some(neighbour) if !neighbour.is_linked => {
                return Err(ProtocolViolation("it does not begin with what it knows".into()));
            }
            Some(_) => {}
        }
        match message.body {
            Some(Body::Claim(v1::NameClaim { token, name })) => {
                self.check_name(peer, name.as_ref())?;
                self.claimed(peer, token, &name.unwrap_or_default());
            }
            Some(Body::Name(v1::NameAnswer { token, holder })) => {
                let holder = (holder != 0).then(|| GlobalId::from_bits(holder));
                self.claim_answered(peer, token, holder);
            }
            Some(Body::Change(change)) => {
                self.check_own(peer, change.by)?;
                self.asked_to_change(peer, &change);
            }
            Some(Body::Update(update)) => {
                self.check_own(peer, update.object)?;
                let updated = self.update(&update);
                self.done(peer, update.token, updated);
            }
            Some(Body::Done(done)) => self.done_there(peer, &done),
            Some(Body::Connect(asked)) => {
                self.check_own(peer, asked.writer)?;
                self.asked_to_connect(peer, &asked);
            }
            Some(Body::Invited(invited)) => self.invited(peer, invited),
            Some(Body::Closed(closed)) => self.closed_there(peer, &closed),
            Some(Body::Ended(ended)) => {
                self.check_own(peer, ended.object)?;
                self.ended_there(&ended);
            }
            Some(Body::Gone(gone)) => self.gone_there(peer, &gone)?,
            Some(Body::Alive(_)) => {}
            Some(Body::Sync(_)) | None => {
                return Err(ProtocolViolation("it says what makes no sense once it is linked".into()));
            }
        }
        Ok(())
    }

    fn done_there(&mut self, peer: Peer, done: &v1::ShimDone) {
        let outcome = match done.code {
            0 => Ok(()),
            code => Err(Error::new(Code::from_number(code), done.message.clone())),
        };
        match self.pending.get(&done.token) {
            Some(DelayedRequest::Update { peer: of, .. }) if *of == peer => self.updated(done.token, outcome),
            Some(DelayedRequest::Change { by, tag, peer: of }) if *of == peer => {
                let call = (*by, *tag);
                self.pending.remove(&done.token);
                self.answer(call, outcome.map(|()| 0));
            }
            Some(DelayedRequest::Connect { peer: of, .. }) if *of == peer => {
                let Some(DelayedRequest::Connect { by, tag, object, to, .. }) =
                    self.pending.remove(&done.token)
                else {
                    return;
                };
                let error = outcome
                    .err()
                    .unwrap_or_else(|| Error::new(Code::Protocol, "a neighbour connects by nothing"));
                self.refused((by, tag), object, to, error);
            }
            _ => {}
        }
    }

    fn gone_there(&mut self, peer: Peer, gone: &v1::ShimGone) -> Result<(), ProtocolViolation> {
        for &pid in &gone.processes {
            self.check_own(peer, pid)?;
            self.forget_process(GlobalId::from_bits(pid));
        }
        for told in &gone.names {
            self.check_name(peer, Some(told))?;
            let (name, object) = (TenantFifoName::of(told), GlobalId::from_bits(told.object));
            self.names.remove(&name, object);
            if let Some(neighbour) = self.peers.get_mut(&peer) {
                neighbour.names.remove(&(name, object));
            }
        }
        Ok(())
    }

    /// Checks that a neighbour sends messages only about its own processes and FIFOs.
    fn check_own(&self, peer: Peer, id: u64) -> Result<(), ProtocolViolation> {
        let id = GlobalId::from_bits(id);
        if self.routes.get(&id.pu) == Some(&peer) {
            return Ok(());
        }
        Err(ProtocolViolation(format!("it speaks for {id}, which is not its own")))
    }

    fn check_name(&self, peer: Peer, told: Option<&v1::FifoName>) -> Result<(), ProtocolViolation> {
        let told = told.ok_or_else(|| ProtocolViolation("it speaks of a name without saying it".into()))?;
        if told.name.is_empty() || told.name.len() > MAX_NAME_BYTES {
            return Err(ProtocolViolation(format!("it speaks of a name of {} bytes", told.name.len())));
        }
        self.check_own(peer, told.object)
    }
}
