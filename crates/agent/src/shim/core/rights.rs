//! Capabilities: the rights of processes to FIFOs.

use sublet_proto::v1::{self, shim_message::Body};
use sublet_proto::{Code, Error};
use sublet_xpu::{FifoRights, GlobalId};

use super::{
    DelayedRequest, FifoState, MAX_HOLDERS, Peer, RightsChangeOrigin, ShimCore, Tag, denied, no_fifo,
    no_process,
};

/// Process, FIFO and rights of a change.
type Change = (GlobalId, GlobalId, FifoRights);

impl ShimCore {
    /// Rights of a process of this agent, as far as they are known here.
    pub(super) fn rights(&self, pid: GlobalId, object: GlobalId) -> FifoRights {
        if let Some(fifo) = self.fifos.get(&object) {
            return fifo.rights.get(&pid).copied().unwrap_or_default();
        }
        self.processes.get(&pid).and_then(|process| process.rights.get(&object)).copied().unwrap_or_default()
    }

    /// A FIFO of this agent, for a process that names it: one of another tenant does not exist for it.
    pub(super) fn fifo_for(&self, by: GlobalId, object: GlobalId) -> Result<&FifoState, Error> {
        let tenant = self.processes.get(&by).map(|process| &process.tenant);
        let fifo = self.fifos.get(&object).filter(|fifo| tenant.is_none_or(|tenant| *tenant == fifo.tenant));
        fifo.ok_or_else(|| no_fifo(&object.to_string()))
    }

    /// Handles a grant or revocation by a process of this agent.
    pub(super) fn change(
        &mut self,
        (by, tag): (GlobalId, Tag),
        (process, object, rights): Change,
        revoked: bool,
    ) -> Result<Option<u64>, Error> {
        if self.is_here(object) {
            return self.change_here(
                RightsChangeOrigin::Here { by, tag },
                by,
                (process, object, rights),
                revoked,
            );
        }
        let peer = self.route(object)?;
        if !self.rights(by, object).contains(FifoRights::OWN) {
            return Err(denied(by, "own", object));
        }
        let token = self.await_peers(DelayedRequest::Change { by, tag, peer })?;
        let (by, process, object) = (by.to_bits(), process.to_bits(), object.to_bits());
        self.tell(
            peer,
            Body::Change(v1::RightsChange { token, by, process, object, rights: rights.to_bits(), revoked }),
        );
        Ok(None)
    }

    /// Changes rights to a FIFO of this agent. Returns `None` if the process's agent has to be informed before the
    /// answer.
    pub(super) fn change_here(
        &mut self,
        asked: RightsChangeOrigin,
        by: GlobalId,
        (process, object, rights): Change,
        revoked: bool,
    ) -> Result<Option<u64>, Error> {
        let fifo = self.fifo_for(by, object)?;
        if !fifo.rights_of(by).contains(FifoRights::OWN) {
            return Err(denied(by, "own", object));
        }
        let tenant = fifo.tenant.clone();
        let before = fifo.rights_of(process);
        let after = if revoked { before.without(rights) } else { before | rights };
        if !revoked && before == FifoRights::NONE && fifo.rights.len() >= MAX_HOLDERS {
            let message = format!("{MAX_HOLDERS} processes have rights to FIFO {object} already");
            return Err(Error::new(Code::TooManyInFlight, message));
        }
        if self.is_here(process) {
            // A process of another tenant is reported as missing, so that its existence is not revealed.
            if self.processes.get(&process).is_none_or(|process| process.tenant != tenant) {
                return Err(no_process(process));
            }
            self.set_rights(process, object, after);
            return Ok(Some(0));
        }
        let peer = match self.route(process) {
            Ok(peer) => peer,
            // A process out of reach loses revoked rights as well. An agent that is about to be linked may have
            // received the right in its greeting.
            Err(_) if revoked => {
                self.set_rights(process, object, after);
                let greeted = self.peers.iter().find(|(_, neighbour)| neighbour.units.contains(&process.pu));
                if let Some((&peer, _)) = greeted {
                    self.tell(peer, Body::Update(told_rights(0, process, object, &tenant, after)));
                }
                return Ok(Some(0));
            }
            Err(error) => return Err(error),
        };
        let token =
            self.await_peers(DelayedRequest::Update { asked, peer, revoked, process, object, before })?;
        self.set_rights(process, object, after);
        self.tell(peer, Body::Update(told_rights(token, process, object, &tenant, after)));
        Ok(None)
    }

    /// Sets the rights of a process to a FIFO. Connections that depended on a lost right end with it.
    pub(super) fn set_rights(&mut self, process: GlobalId, object: GlobalId, rights: FifoRights) {
        let Some(fifo) = self.fifos.get_mut(&object) else { return };
        if rights == FifoRights::NONE {
            fifo.rights.remove(&process);
        } else {
            fifo.rights.insert(process, rights);
        }
        if !rights.contains(FifoRights::WRITE) {
            self.end_writer(object, process, Code::PermissionDenied);
        }
        if !rights.contains(FifoRights::READ) {
            self.end_reader(object, process, Code::PermissionDenied);
        }
        debug_assert!(
            self.rights(process, object) == rights,
            "rights of {process} to FIFO {object}: {rights:?}"
        );
    }

    /// Handles the answer of a process's agent to a change of its rights.
    pub(super) fn updated(&mut self, token: u64, outcome: Result<(), Error>) {
        let Some(DelayedRequest::Update { asked, revoked, process, object, before, .. }) =
            self.pending.remove(&token)
        else {
            return;
        };
        let outcome = match outcome {
            Err(_) if revoked => Ok(()),
            Err(error) => {
                self.undo_change(token, process, object, before);
                Err(error)
            }
            Ok(()) => Ok(()),
        };
        match asked {
            RightsChangeOrigin::Here { by, tag } => self.answer((by, tag), outcome.map(|()| 0)),
            RightsChangeOrigin::There { peer, token } => self.done(peer, token, outcome),
            RightsChangeOrigin::Gone => {}
        }
    }

    /// Restores the rights before a failed change. If a later change is under way, it records them as the rights to
    /// restore.
    fn undo_change(&mut self, token: u64, of: GlobalId, to: GlobalId, rights: FifoRights) {
        let later = self.pending.range_mut(token..).find_map(|(_, pending)| match pending {
            DelayedRequest::Update { process, object, before, .. } if (*process, *object) == (of, to) => {
                Some(before)
            }
            _ => None,
        });
        match later {
            Some(before) => *before = rights,
            None => self.set_rights(of, to, rights),
        }
    }

    /// Handles a change of rights to a FIFO of this agent by a neighbour's process.
    pub(super) fn asked_to_change(&mut self, peer: Peer, change: &v1::RightsChange) {
        let token = change.token;
        let id = GlobalId::from_bits;
        let asked = RightsChangeOrigin::There { peer, token };
        let changed = FifoRights::from_bits(change.rights).and_then(|rights| {
            self.change_here(
                asked,
                id(change.by),
                (id(change.process), id(change.object), rights),
                change.revoked,
            )
        });
        match changed {
            Ok(None) => {}
            Ok(Some(_)) => self.done(peer, token, Ok(())),
            Err(error) => self.done(peer, token, Err(error)),
        }
    }

    /// Updates the copy of the rights of this agent's process to a FIFO of a neighbour.
    pub(super) fn update(&mut self, update: &v1::RightsUpdate) -> Result<(), Error> {
        let (pid, object) = (GlobalId::from_bits(update.process), GlobalId::from_bits(update.object));
        let rights = FifoRights::from_bits(update.rights)?;
        let process = self.processes.get_mut(&pid).filter(|process| *process.tenant == *update.tenant);
        let process = process.ok_or_else(|| no_process(pid))?;
        if rights == FifoRights::NONE {
            process.rights.remove(&object);
        } else if process.rights.len() < MAX_HOLDERS || process.rights.contains_key(&object) {
            process.rights.insert(object, rights);
        } else {
            let message = format!("process {pid} has rights to {MAX_HOLDERS} FIFOs of neighbours already");
            return Err(Error::new(Code::TooManyInFlight, message));
        }
        Ok(())
    }

    pub(super) fn done(&mut self, peer: Peer, token: u64, outcome: Result<(), Error>) {
        let (code, message) =
            outcome.map_or_else(|error| (error.code.number(), error.message), |()| (0, String::new()));
        self.tell(peer, Body::Done(v1::ShimDone { token, code, message }));
    }

    /// Removes all rights of a process that has ended on whichever agent.
    pub(super) fn forget_process(&mut self, pid: GlobalId) {
        let held: Vec<GlobalId> = self
            .fifos
            .iter()
            .filter(|(_, fifo)| fifo.rights.contains_key(&pid))
            .map(|(object, _)| *object)
            .collect();
        for object in held {
            if let Some(fifo) = self.fifos.get_mut(&object) {
                fifo.rights.remove(&pid);
            }
            self.end_writer(object, pid, Code::WorkerDied);
        }
    }
}

/// Creates the message that informs a process's agent of its rights.
pub(super) fn told_rights(
    token: u64,
    process: GlobalId,
    object: GlobalId,
    tenant: &str,
    rights: FifoRights,
) -> v1::RightsUpdate {
    let (process, object) = (process.to_bits(), object.to_bits());
    v1::RightsUpdate { token, process, object, tenant: tenant.to_owned(), rights: rights.to_bits() }
}

impl FifoState {
    pub(super) fn rights_of(&self, pid: GlobalId) -> FifoRights {
        self.rights.get(&pid).copied().unwrap_or_default()
    }
}
