//! Grants, renews and ends leases, as clients request. And the one place where leases begin and end.

use std::sync::Arc;

use sublet_proto::v1::{Price, Usage};
use sublet_proto::{Code, Error};

use super::ids::{LeaseId, RequestId, TenantKey};
use super::lease::{Lease, LeaseEnd, LeasePhase, Marks};
use super::messages::{ApplicationLimits, ClientRequest, CoreAction, Renewal, TokenStatus};
use super::placement::{Placement, PlacementPart};
use super::pools::Pools;
use super::resources::{LeaseResources, LendingState};
use super::waiting::{QueuePosition, TurnOutcome, WaitQueue};
use super::{Core, placement, terms};

impl Core {
    pub(super) fn request(
        &mut self,
        now_ms: u64,
        mut request: Box<ClientRequest>,
        out: &mut Vec<CoreAction>,
    ) {
        let (tenant, id) = (request.tenant, request.id);
        if let Some(handed) = self.handed_before(&mut request) {
            return out.push(handed);
        }
        if let Some(leases) = self.leases.of_request(tenant, id) {
            let leases = leases.to_vec();
            return out.push(CoreAction::Granted { tenant, request: id, leases });
        }
        if !self.waiting.is_empty() && self.waiting.contains(tenant, id) {
            return;
        }
        if let Err(error) = self.check_application(now_ms, &request) {
            return out.push(CoreAction::Refused { tenant, request: id, error });
        }
        // A request that was handed to a rack in vain keeps its turn.
        let turn = if request.refusals.are_any() { QueuePosition::First } else { QueuePosition::Last };
        self.postpone(now_ms);
        // The tenant of a request with an unverified token may be held back.
        let may_be_held_back =
            request.standing == TokenStatus::Provisional && self.tenants.is_any_held_back(now_ms);
        let granted = match (self.tenants.held_back_until(tenant, now_ms), turn) {
            (Some(until_ms), _) => Err(held_back(&self.tenants.get(tenant).name, until_ms - now_ms)),
            (None, _) if may_be_held_back => Err(Error::new(
                Code::NoCapacity,
                "a tenant is held back: tokens are verified before leases are granted",
            )),
            (None, QueuePosition::First) => self.try_grant(now_ms, &request, Pools::NONE),
            (None, QueuePosition::Last) => self.try_grant_in_turn(now_ms, &request),
        };
        let refused = match granted {
            Ok((granted, pools)) => {
                self.waiting.overtaken(pools);
                return out.push(granted);
            }
            Err(error) => error,
        };
        // Without any node, as after a manager's start or while its nodes are being drained, a request may wait for
        // one; so may a request that a rack has refused, for the capacity that was there when it was handed on.
        let was_there = turn == QueuePosition::First && refused.code.is_shortage();
        let may_come = refused.code == Code::NoCapacity || was_there || !self.nodes.has_any_for(&request);
        let may_wait = may_come && request.wait_ms > 0;
        if refused.code == Code::NoCapacity {
            self.tenants.get_mut(tenant).wait(now_ms);
        }
        let until_ms = now_ms.saturating_add(request.wait_ms);
        let error = if may_wait { self.waiting.push(request, until_ms, turn).err() } else { Some(refused) };
        if let Some(error) = error {
            out.push(CoreAction::Refused { tenant, request: id, error });
        }
    }

    fn try_grant_in_turn(
        &mut self,
        now_ms: u64,
        request: &ClientRequest,
    ) -> Result<(CoreAction, Pools), Error> {
        let barred = self.waiting.barred();
        let is_barred = request.locality.pools.meets(barred);
        self.try_grant(now_ms, request, barred).map_err(|error| {
            if !is_barred || !error.code.is_shortage() {
                return error;
            }
            let (waiting, place) = (self.waiting.len(), barred.place());
            let message = format!("{waiting} requests are waiting, and it is the turn of another{place}");
            Error::new(Code::NoCapacity, message)
        })
    }

    /// All of the request's leases, outside of the barred pools, or none; of the level above racks, a rack for all of them.
    /// Says in which pools they are.
    fn try_grant(
        &mut self,
        now_ms: u64,
        request: &ClientRequest,
        barred: Pools,
    ) -> Result<(CoreAction, Pools), Error> {
        let pools = request.locality.pools.without(barred);
        if pools.is_empty() {
            return Err(Error::new(Code::NoCapacity, format!("it is the turn of another{}", barred.place())));
        }
        let placed = self.place_within_quota(request, pools)?;
        let Placement { choice, parts, why } = placed;
        debug_assert_eq!(
            parts.iter().map(|part| u64::from(part.amount.workers)).sum::<u64>(),
            u64::from(request.terms.workers),
            "workers of {parts:?}"
        );
        self.tenants.get(request.tenant).check(parts.iter().map(|part| part.amount))?;
        let pool_of = |part: &PlacementPart| self.nodes.get(part.node).map(|node| node.pool);
        let pools = parts.iter().filter_map(pool_of).fold(Pools::NONE, Pools::with);
        if let Some(handed) = self.hand(now_ms, request, &parts) {
            return Ok((handed, pools));
        }
        let price = self.nodes.classes.price(choice.class);
        let why: Arc<str> = why.into();
        let leases = parts
            .into_iter()
            .map(|part| {
                debug_assert!(
                    self.nodes.get(part.node).is_some_and(|node| {
                        let (LeaseResources { workers, shared, memory_bytes, .. }, free) =
                            (part.amount, node.free());
                        workers <= free.workers(shared) && memory_bytes <= free.memory_bytes
                    }),
                    "{part:?} is more than what is free of {:?}",
                    self.nodes.get(part.node)
                );
                let id = LeaseId::new(now_ms, self.chance.wide());
                self.begin(Lease {
                    id,
                    request: Some(request.id),
                    tenant: request.tenant,
                    application: request.application.map(|application| application.key),
                    run: request.application.and_then(|application| application.run),
                    node: part.node,
                    package: request.package.clone(),
                    class: choice.class,
                    build: choice.build,
                    choice: why.clone(),
                    amount: part.amount,
                    granted_ms: now_ms,
                    issued_ms: now_ms,
                    expires_ms: now_ms.saturating_add(request.terms.timeout_ms),
                    idle_timeout_ms: request.terms.idle_timeout_ms,
                    options: request.terms.options,
                    needs: self
                        .nodes
                        .get(part.node)
                        .map_or_else(|| request.needs.clone(), |node| node.meant(&request.needs)),
                    price,
                    state: LeasePhase::Granted,
                    provisional: request.standing == TokenStatus::Provisional,
                    usage: Usage::default(),
                    functions: Vec::new(),
                    cold_imports: None,
                    end: None,
                    revision: 0,
                    marks: Marks::default(),
                });
                id
            })
            .collect();
        Ok((CoreAction::Granted { tenant: request.tenant, request: request.id, leases }, pools))
    }

    /// Checks the limits over all runs of the application for which a request is. A request beyond them does not wait
    /// here, where it would take the turn of others: its client asks again.
    fn check_application(&mut self, now_ms: u64, request: &ClientRequest) -> Result<(), Error> {
        let Some(ApplicationLimits { key, quota, run }) = request.application else { return Ok(()) };
        let application = self.tenants.get_mut(key);
        application.quota = quota;
        let checked = application.check_application(request.terms.workers, request.terms.memory_bytes);
        match run {
            Some(run) => application.check_run(now_ms, (run, request.wait_ms), checked),
            None => checked,
        }
    }

    /// Places a request in those of the pools in which the tenant's quota leaves it enough memory.
    fn place_within_quota(&mut self, request: &ClientRequest, pools: Pools) -> Result<Placement, Error> {
        let (tenant, bytes) = (self.tenants.get(request.tenant), request.terms.memory_bytes);
        let allowed = pools.without(tenant.full_pools(bytes));
        if allowed.is_empty() {
            return Err(tenant.pool_refusal(pools, bytes));
        }
        let placed = placement::place(&self.nodes, request, allowed, &mut self.chance);
        match placed {
            Err(error) if error.code == Code::InsufficientResources && allowed != pools => {
                // The quota is the reason only if another pool could take it.
                match placement::place(&self.nodes, request, pools, &mut self.chance) {
                    Err(error) if error.code != Code::NoCapacity => Err(error),
                    _ => Err(tenant.pool_refusal(pools, bytes)),
                }
            }
            placed => placed,
        }
    }

    /// Grants free capacity to waiting requests, in turn.
    pub(super) fn serve_waiting(&mut self, now_ms: u64, out: &mut Vec<CoreAction>) {
        if self.waiting.is_empty() {
            return;
        }
        self.postpone(now_ms);
        let mut waiting = std::mem::replace(&mut self.waiting, WaitQueue::new(self.queue));
        while waiting.serve(|request, barred| self.serve(now_ms, request, barred, out)) {}
        self.waiting = waiting;
    }

    /// Puts tenants that let their grants lapse after those that do not.
    fn postpone(&mut self, now_ms: u64) {
        if !self.waiting.is_empty() {
            self.waiting.postpone(|tenant| self.tenants.held_back_until(tenant, now_ms).is_some());
        }
    }

    fn serve(
        &mut self,
        now_ms: u64,
        request: &ClientRequest,
        barred: Pools,
        out: &mut Vec<CoreAction>,
    ) -> TurnOutcome {
        let (tenant, id) = (request.tenant, request.id);
        if self.tenants.held_back_until(tenant, now_ms).is_some() {
            return TurnOutcome::NoCapacity;
        }
        if let Err(error) = self.check_application(now_ms, request) {
            out.push(CoreAction::Refused { tenant, request: id, error });
            return TurnOutcome::Refused;
        }
        match self.try_grant(now_ms, request, barred) {
            Ok((granted, pools)) => {
                out.push(granted);
                TurnOutcome::Granted(pools)
            }
            // Less may be there now than when it came; it waits for more.
            Err(error) if error.code.is_shortage() => TurnOutcome::NoCapacity,
            Err(error) => {
                out.push(CoreAction::Refused { tenant, request: id, error });
                TurnOutcome::Refused
            }
        }
    }

    /// Withdraws a request whose client waits no more. Leases that were granted meanwhile end because no client
    /// attaches.
    pub(super) fn withdraw(&mut self, tenant: TenantKey, request: RequestId) {
        self.waiting.take_out(|waiting, _| waiting.tenant == tenant && waiting.id == request);
    }

    /// Refuses the requests whose wait is over.
    pub(super) fn end_waits(&mut self, now_ms: u64, out: &mut Vec<CoreAction>) {
        for request in self.waiting.take_out(|_, until_ms| until_ms <= now_ms) {
            let message = format!("{} did not become free within {} ms", request.asks(), request.wait_ms);
            let error = Error::new(Code::NoCapacity, message);
            out.push(CoreAction::Refused { tenant: request.tenant, request: request.id, error });
        }
    }

    /// Gives a provisional lease to its tenant, if that tenant's quota allows it.
    pub(super) fn verified(&mut self, id: LeaseId, tenant: TenantKey) {
        let Some(key) = self.leases.find(id) else { return };
        let Some(lease) = self.leases.get(key).filter(|lease| lease.is_active() && lease.provisional) else {
            return;
        };
        let (before, amount, spent_nano) = (lease.tenant, lease.amount, lease.marks.billed_nano);
        if before != tenant {
            if let Err(error) = self.tenants.get(tenant).check([amount]) {
                return self.rejected(id, error);
            }
            for (tenant, is_its) in [(before, false), (tenant, true)] {
                let tenant = self.tenants.get_mut(tenant);
                if is_its {
                    tenant.add(amount)
                } else {
                    tenant.remove(amount)
                }
                let own = &mut tenant.own.spent_nano;
                *own = if is_its { own.saturating_add(spent_nano) } else { own.saturating_sub(spent_nano) };
            }
            self.leases.change_tenant(key, tenant);
        }
        if let Some(lease) = self.leases.get_mut(key) {
            lease.provisional = false;
        }
    }

    pub(super) fn rejected(&mut self, id: LeaseId, error: Error) {
        let Some(key) = self.leases.find(id) else { return };
        // A caller with an invalid token has no tenant: its use of the sandbox so far is not billed.
        if let Some(lease) = self.leases.get_mut(key).filter(|lease| lease.provisional) {
            lease.price = Price::default();
            self.account(key);
        }
        self.order_end(id, error);
    }

    pub(super) fn renew(&mut self, now_ms: u64, renewal: Renewal, out: &mut Vec<CoreAction>) {
        let id = renewal.lease;
        out.push(match self.try_renew(now_ms, &renewal) {
            Ok(()) => CoreAction::Renewed(id),
            Err(error) => CoreAction::NotRenewed(id, error),
        });
    }

    fn try_renew(&mut self, now_ms: u64, renewal: &Renewal) -> Result<(), Error> {
        let unknown = || Error::new(Code::UnknownLease, format!("there is no lease {}", renewal.lease));
        let key = self.leases.find(renewal.lease).ok_or_else(unknown)?;
        let lease =
            self.leases.get_mut(key).filter(|lease| lease.state != LeasePhase::Moved).ok_or_else(unknown)?;
        if let Some(end) = &lease.end {
            let code = end.code.unwrap_or(Code::LeaseEnded);
            return Err(Error::new(code, format!("lease {} has ended: {}", lease.id, end.reason)));
        }
        if let Some(error) = &lease.marks.ordered {
            return Err(error.clone());
        }
        if lease.expires_ms <= now_ms {
            return Err(Error::new(Code::LeaseExpired, format!("lease {} has expired", lease.id)));
        }
        let lending = self.nodes.get(lease.node).map_or(LendingState::Open, |node| node.lending);
        check_lending(lending, lease.id, lease.expires_ms - now_ms)?;
        self.tenants.get(lease.tenant).check([])?;
        lease.expires_ms = lease.expires_ms.max(now_ms.saturating_add(terms::timeout_ms(renewal.timeout_ms)));
        lease.issued_ms = now_ms;
        if lease.state == LeasePhase::Attached {
            self.leases.touch(key);
        }
        Ok(())
    }

    /// Ends a lease, by its agent, with the answer to its next report. A lease without an attached client holds its
    /// resources until the agent has acknowledged the order: until then it would still accept the ticket.
    pub(super) fn order_end(&mut self, id: LeaseId, error: Error) {
        let key = self.leases.find(id);
        if let Some(lease) = key.and_then(|key| self.leases.get_mut(key)).filter(|lease| lease.is_active()) {
            lease.marks.ordered.get_or_insert(error);
        }
    }

    /// Adds a lease, which holds its resources from now on.
    pub(super) fn begin(&mut self, mut lease: Lease) -> u32 {
        let node = lease.node;
        #[expect(clippy::cast_possible_truncation, reason = "the keys of leases have 32 bits")]
        let slot = self.nodes.get(node).map_or(0, |node| node.leases.len() as u32);
        lease.marks.node_slot = slot;
        let key = self.leases.insert(lease);
        debug_assert!(self.nodes.get(node).is_some(), "lease {key} begins on {node:?}, which does not exist");
        if let Some(node) = self.nodes.get_mut(node) {
            node.leases.push(key);
        }
        self.hold(key);
        key
    }

    /// Adds a lease's resources to those leased on its node.
    pub(super) fn hold(&mut self, key: u32) {
        let Some(lease) = self.leases.get(key) else { return };
        debug_assert!(lease.is_active(), "lease {} holds resources, and is {:?}", lease.id, lease.state);
        let (amount, is_attached) = (lease.amount, lease.state == LeasePhase::Attached);
        let needs = lease.needs.clone();
        for counted in [Some(lease.tenant), lease.application].into_iter().flatten() {
            self.tenants.get_mut(counted).add(amount);
        }
        if let (Some(application), Some(run)) = (lease.application, lease.run) {
            self.tenants.get_mut(application).runs.add(run);
        }
        self.nodes.change(lease.node, |node| {
            node.leased = node.leased.plus(amount);
            node.count_devices(&needs, true);
            *(if is_attached { &mut node.attached } else { &mut node.unattached }) += 1;
        });
    }

    /// A lease's resources are free, since it is from now on in this state. Gives the one that it was in, if it held any.
    pub(super) fn release(&mut self, key: u32, state: LeasePhase) -> Option<LeasePhase> {
        let lease = self.leases.get_mut(key).filter(|lease| lease.is_active())?;
        let before = std::mem::replace(&mut lease.state, state);
        debug_assert!(!lease.is_active(), "lease {} is released, and stays {state:?}", lease.id);
        lease.marks.ordered = None;
        let (amount, needs) = (lease.amount, lease.needs.clone());
        for counted in [Some(lease.tenant), lease.application].into_iter().flatten() {
            self.tenants.get_mut(counted).remove(amount);
        }
        if let (Some(application), Some(run)) = (lease.application, lease.run) {
            self.tenants.get_mut(application).runs.remove(run);
        }
        self.nodes.change(lease.node, |node| {
            node.leased = node.leased.minus(amount);
            node.count_devices(&needs, false);
            debug_assert!(
                if before == LeasePhase::Attached { node.attached > 0 } else { node.unattached > 0 },
                "node {} has no lease that is {before:?}: {} attached, {} not",
                node.name,
                node.attached,
                node.unattached
            );
            *(if before == LeasePhase::Attached { &mut node.attached } else { &mut node.unattached }) -= 1;
        });
        Some(before)
    }

    /// A lease ends: its resources are free. One that was never attached is forgotten at once.
    pub(super) fn end(&mut self, key: u32, end: LeaseEnd, out: &mut Vec<CoreAction>) {
        let Some(before) = self.release(key, LeasePhase::Ended) else { return };
        if before == LeasePhase::Granted {
            return self.forget(key, out);
        }
        if let Some(lease) = self.leases.get_mut(key) {
            lease.end = Some(end);
        }
        self.leases.touch(key);
        if let Some((lease, revision)) = self.leases.take_one(key) {
            out.push(CoreAction::Save { lease, revision });
        }
    }

    /// Forgets a lease that holds nothing, and with the last lease of an unregistered node also the node.
    pub(super) fn forget(&mut self, key: u32, out: &mut Vec<CoreAction>) {
        let Some(lease) = self.leases.remove(key) else { return };
        debug_assert!(!lease.is_active(), "lease {} is forgotten, and is {:?}", lease.id, lease.state);
        debug_assert!(
            lease.is_stored(),
            "lease {} is forgotten at revision {}, and stored at {}",
            lease.id,
            lease.revision,
            lease.marks.saved_revision
        );
        out.push(CoreAction::Forgotten(lease.id));
        let Some(node) = self.nodes.get_mut(lease.node) else { return };
        let slot = lease.marks.node_slot as usize;
        debug_assert_eq!(node.leases.get(slot), Some(&key), "lease {} in the list of its node", lease.id);
        node.leases.swap_remove(slot);
        if let Some(&moved) = node.leases.get(slot)
            && let Some(moved) = self.leases.get_mut(moved)
        {
            moved.marks.node_slot = lease.marks.node_slot;
        }
        if self.nodes.get(lease.node).is_some_and(|node| node.registration == 0 && node.leases.is_empty()) {
            self.nodes.remove(lease.node);
        }
    }

    /// Brings the tenant's spending up to the lease's cost.
    pub(super) fn account(&mut self, key: u32) {
        let Some(lease) = self.leases.get_mut(key) else { return };
        let cost_nano = lease.cost_nano();
        let before = std::mem::replace(&mut lease.marks.billed_nano, cost_nano);
        let own = &mut self.tenants.get_mut(lease.tenant).own;
        debug_assert!(
            before <= own.spent_nano.saturating_add(cost_nano),
            "lease {} was billed {before} nano-units of {} that its tenant has spent",
            lease.id,
            own.spent_nano
        );
        own.spent_nano = own.spent_nano.saturating_add(cost_nano).saturating_sub(before);
    }
}

/// A node that is on its way out keeps its leases until they end, and no longer.
fn check_lending(lending: LendingState, lease: LeaseId, left_ms: u64) -> Result<(), Error> {
    let (code, why) = match lending {
        LendingState::Open => return Ok(()),
        LendingState::Draining => (Code::NoCapacity, "is being drained"),
        LendingState::Reclaimed => (Code::NodeReclaimed, "is being handed back"),
    };
    Err(Error::new(code, format!("lease {lease} ends in {left_ms} ms and cannot be renewed: its node {why}")))
}

/// Says why a tenant waits although enough may be free.
#[cold]
fn held_back(tenant: &str, left_ms: u64) -> Error {
    let message = format!(
        "tenant {tenant} did not attach to leases that it was granted: while others wait, its requests wait for {left_ms} ms"
    );
    Error::new(Code::NoCapacity, message)
}
