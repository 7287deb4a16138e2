//! The sandboxes of one spawner, and the verbs.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

use sublet_proto::v1::sandbox_request::Body;
use sublet_proto::v1::{
    SandboxAnswer, SandboxCreate, SandboxIds, SandboxKill, SandboxList, SandboxRequest, SandboxSpec,
};

use super::birth;
use super::sandbox::Sandbox;
use super::templates::Stock;
use super::workshop::Workshop;
use crate::wire::{self, decode_spec, encode_answer};
use crate::{MAX_SANDBOXES, SandboxError, SandboxId, SandboxState, SandboxStatus, Signal};

/// Sandboxes that are listed at once: their states fit into a packet.
const LISTED: usize = 512;

/// A new sandbox, and the outcome of its steps until now.
type NewEntry = (SandboxId, Result<(), SandboxError>);

/// A sandbox that is requested, with the descriptors that came with its specification.
struct CreationRequest {
    spec: SandboxSpec,
    control: Option<OwnedFd>,
    log: Option<OwnedFd>,
}

impl CreationRequest {
    /// Copies it for a second attempt; nothing if there are no more descriptors.
    fn copy(&self) -> Option<CreationRequest> {
        let copy = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose().ok();
        Some(CreationRequest {
            spec: self.spec.clone(),
            control: copy(&self.control)?,
            log: copy(&self.log)?,
        })
    }
}

/// See the [module](self).
pub(super) struct SandboxTable {
    /// Dropped, and dead, before what they were made with.
    entries: BTreeMap<SandboxId, Sandbox>,
    created: u64,
    pub(super) workshop: Workshop,
}

impl SandboxTable {
    pub(super) fn new(workshop: Workshop) -> SandboxTable {
        SandboxTable { entries: BTreeMap::new(), created: 0, workshop }
    }

    /// Serves a request. Returns the answers, and a descriptor for each sandbox that was made, in the answers' order.
    pub(super) fn serve(
        &mut self,
        request: SandboxRequest,
        fds: Vec<OwnedFd>,
    ) -> (Vec<SandboxAnswer>, Vec<BorrowedFd<'_>>) {
        match request.body {
            Some(Body::Create(create)) => self.create(create, fds),
            Some(Body::Start(SandboxIds { ids })) => (self.start(&ids), Vec::new()),
            Some(Body::State(SandboxIds { ids })) => (self.each(&ids, SandboxTable::state), Vec::new()),
            Some(Body::Kill(SandboxKill { ids, signal })) => {
                (self.each(&ids, |table, id| table.kill(id, signal)), Vec::new())
            }
            Some(Body::Delete(SandboxIds { ids })) => (self.each(&ids, SandboxTable::delete), Vec::new()),
            Some(Body::List(SandboxList { from })) => (self.list(from), Vec::new()),
            // No sandbox of the table is concerned.
            Some(Body::Standby(_)) | None => (Vec::new(), Vec::new()),
        }
    }

    fn list(&mut self, from: u64) -> Vec<SandboxAnswer> {
        let ids: Vec<_> = self.entries.range(SandboxId(from)..).take(LISTED).map(|(id, _)| id.0).collect();
        debug_assert!(self.entries.len() <= MAX_SANDBOXES, "{} sandboxes", self.entries.len());
        self.each(&ids, SandboxTable::state)
    }

    fn create(
        &mut self,
        create: SandboxCreate,
        fds: Vec<OwnedFd>,
    ) -> (Vec<SandboxAnswer>, Vec<BorrowedFd<'_>>) {
        let mut fds = fds.into_iter();
        let (mut begun, mut again) = (Vec::new(), BTreeMap::new());
        for spec in create.specs {
            let control = fds.next();
            let log = spec.has_log.then(|| fds.next()).flatten();
            let request = CreationRequest { spec, control, log };
            let copy = request.copy();
            let id = self.next_id();
            begun.push((id, self.begin(id, request, Stock::Used)));
            again.extend(copy.filter(|_| self.workshop.has_used_stock).map(|request| (id, request)));
        }
        let mut made = self.complete(begun, create.start);
        for (id, outcome) in &mut made {
            let Err(error) = &*outcome else { continue };
            let Some(request) = again.remove(id) else { continue };
            eprintln!("sublet-spawner: sandbox {id} is made of another process: {error}");
            let begun = vec![(*id, self.begin(*id, request, Stock::Unused))];
            *outcome = self.complete(begun, create.start).pop().map_or(Ok(()), |(_, outcome)| outcome);
        }
        let answers: Vec<_> = made
            .into_iter()
            .map(|(id, outcome)| {
                let state = outcome.and_then(|()| self.state(id));
                let made = self.entries.get(&id);
                let cold_imports = made.and_then(Sandbox::cold_imports).cloned();
                let standby = made.is_some_and(Sandbox::is_standby);
                SandboxAnswer { cold_imports, standby, ..encode_answer(id, state) }
            })
            .collect();
        debug_assert!(
            answers
                .iter()
                .all(|answer| answer.failure.is_some() != self.entries.contains_key(&SandboxId(answer.id))),
            "a sandbox that failed is kept, or another one is not: {answers:?}"
        );
        let fds = answers
            .iter()
            .filter_map(|answer| Some(self.entries.get(&SandboxId(answer.id))?.pidfd()))
            .collect();
        (answers, fds)
    }

    fn next_id(&mut self) -> SandboxId {
        let id = SandboxId(self.created);
        self.created += 1;
        debug_assert!(self.entries.range(id..).next().is_none(), "sandbox {id:?} is there before it is made");
        id
    }

    fn begin(
        &mut self,
        id: SandboxId,
        CreationRequest { spec, control, log }: CreationRequest,
        stock: Stock,
    ) -> Result<(), SandboxError> {
        debug_assert!(!self.entries.contains_key(&id), "sandbox {id:?} is made twice");
        self.workshop.has_used_stock = false;
        if self.entries.len() >= MAX_SANDBOXES {
            return Err(SandboxError::TooMany);
        }
        let spec = decode_spec(spec, control, log)?;
        let sandbox = birth::begin(&mut self.workshop, id, (spec, stock))?;
        self.entries.insert(id, sandbox);
        Ok(())
    }

    /// Takes all that have begun to their ends: they are made, and started if that is wanted.
    fn complete(&mut self, begun: Vec<NewEntry>, start: bool) -> Vec<NewEntry> {
        let mut made = begun;
        if start {
            // It finds the order when it is ready, and does not wait for this process in between.
            made = self.go_on(made, |sandbox| birth::order_start(sandbox));
        }
        made = self.go_on(made, |sandbox| birth::await_made(sandbox));
        if start {
            made = self.go_on(made, |sandbox| {
                sandbox.set_running(birth::await_running(sandbox)?);
                Ok(())
            });
        }
        made
    }

    /// Takes all one step further. Those that fail are gone.
    fn go_on(
        &mut self,
        sandboxes: Vec<NewEntry>,
        mut step: impl FnMut(&mut Sandbox) -> Result<(), SandboxError>,
    ) -> Vec<NewEntry> {
        let mut next = |(id, outcome): NewEntry| {
            let outcome = outcome.and_then(|()| step(self.get(id)?));
            if let Err(error) = &outcome {
                let removed = self.entries.remove(&id);
                if let Some(template) = removed.as_ref().and_then(Sandbox::template) {
                    self.workshop.templates.give_up(template, error);
                }
            }
            (id, outcome)
        };
        sandboxes.into_iter().map(&mut next).collect()
    }

    fn start(&mut self, ids: &[u64]) -> Vec<SandboxAnswer> {
        let ordered: Vec<_> = ids
            .iter()
            .map(|&id| {
                let id = SandboxId(id);
                let ordered = self.get(id).and_then(|sandbox| match sandbox.state().status {
                    SandboxStatus::Created => birth::order_start(sandbox),
                    status => Err(SandboxError::WrongStatus { id, status, verb: "start" }),
                });
                (id, ordered)
            })
            .collect();
        let started = ordered.into_iter().map(|(id, ordered)| {
            let started = ordered.and_then(|()| {
                let sandbox = self.get(id)?;
                let pid = birth::await_running(sandbox).inspect_err(|_| sandbox.end())?;
                sandbox.set_running(pid);
                Ok(sandbox.state())
            });
            encode_answer(id, started)
        });
        started.collect()
    }

    fn each(
        &mut self,
        ids: &[u64],
        verb: impl Fn(&mut SandboxTable, SandboxId) -> Result<SandboxState, SandboxError>,
    ) -> Vec<SandboxAnswer> {
        ids.iter().map(|&id| encode_answer(SandboxId(id), verb(self, SandboxId(id)))).collect()
    }

    fn state(&mut self, id: SandboxId) -> Result<SandboxState, SandboxError> {
        Ok(self.get(id)?.state())
    }

    fn kill(&mut self, id: SandboxId, signal: i32) -> Result<SandboxState, SandboxError> {
        let sandbox = self.get(id)?;
        let named = Signal::from_named_raw(signal);
        let signal =
            named.ok_or_else(|| SandboxError::system("sending a signal", rustix::io::Errno::INVAL))?;
        sandbox.kill(signal)?;
        Ok(sandbox.state())
    }

    fn delete(&mut self, id: SandboxId) -> Result<SandboxState, SandboxError> {
        let state = self.state(id)?;
        if state.status == SandboxStatus::Running {
            return Err(SandboxError::WrongStatus { id, status: state.status, verb: "delete" });
        }
        let removed = self.entries.remove(&id);
        debug_assert!(removed.is_some(), "sandbox {id:?} was {state:?}, and is not in the table");
        Ok(state)
    }

    fn get(&mut self, id: SandboxId) -> Result<&mut Sandbox, SandboxError> {
        self.entries.get_mut(&id).ok_or(SandboxError::Unknown(id))
    }
}

/// The answers of a spawner that can make no sandboxes.
pub(super) fn refuse(request: &SandboxRequest, error: &SandboxError) -> Vec<SandboxAnswer> {
    let each = wire::each(wire::count(request), error).into_iter();
    each.map(|refusal| encode_answer(SandboxId(0), refusal)).collect()
}
