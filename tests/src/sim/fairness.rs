//! A manager's queue as those see it who wait in it: bounded, first come first served for a tenant, and no tenant
//! overtaken without end by others.

use std::collections::VecDeque;

use sublet_manager::core::{MAX_OVERTAKES, QueueLimits, RequestId};

use super::truth::{Invariant, Truth};
use crate::numbers::narrow;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Fairness {
    limits: QueueLimits,
    tenants: Vec<VecDeque<FairnessWaiter>>,
    /// Tenants without a turn, because they let grants lapse.
    held_back: Vec<bool>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct FairnessWaiter {
    request: RequestId,
    /// Requests that were granted while this was its tenant's first.
    overtaken: u32,
    /// Changes meanwhile that may have given the turn to another tenant: requests that left without a grant, and tenants
    /// that were held back or are no longer.
    left: u32,
}

impl Fairness {
    pub(super) fn new(limits: QueueLimits, tenants: usize) -> Fairness {
        Fairness { limits, tenants: vec![VecDeque::new(); tenants], held_back: vec![false; tenants], len: 0 }
    }

    /// Notes which tenants are held back now. Grants overtake a tenant only while it is not.
    pub(super) fn hold_back(&mut self, is_held_back: impl Fn(usize) -> bool) {
        for tenant in 0..self.tenants.len() {
            let is_held_back = is_held_back(tenant);
            if std::mem::replace(&mut self.held_back[tenant], is_held_back) == is_held_back {
                continue;
            }
            self.turns_change();
            if let Some(first) = self.tenants[tenant].front_mut() {
                first.overtaken = 0;
            }
        }
    }

    fn turns_change(&mut self) {
        for first in self.tenants.iter_mut().filter_map(VecDeque::front_mut) {
            first.left += 1;
        }
    }

    /// Whether no request of a tenant waits.
    pub(super) fn is_empty(&self, tenant: u32) -> bool {
        self.tenants[tenant as usize].is_empty()
    }

    /// A request waits, from now on.
    pub(super) fn waits(&mut self, request: RequestId, tenant: u32, truth: &mut Truth) {
        let waiters = &mut self.tenants[tenant as usize];
        if waiters.iter().any(|waiter| waiter.request == request) {
            return;
        }
        waiters.push_back(FairnessWaiter { request, overtaken: 0, left: 0 });
        self.len += 1;
        let of_tenant = waiters.len();
        if of_tenant > self.limits.per_tenant || self.len > self.limits.total {
            let found = format!(
                "{of_tenant} requests of tenant {tenant} wait, {} in all; the limits are {:?}",
                self.len, self.limits
            );
            truth.violated(Invariant::QueuesAreBounded, found);
        }
    }

    /// A request is granted, whether it waited or not.
    pub(super) fn granted(&mut self, request: RequestId, truth: &mut Truth) {
        let turns = narrow::<_, u32>(self.tenants.len()) + 1;
        for (tenant, waiters) in self.tenants.iter_mut().enumerate() {
            let Some(first) = waiters.front_mut() else { continue };
            if first.request == request {
                continue;
            }
            first.overtaken += u32::from(!self.held_back[tenant]);
            let most = (MAX_OVERTAKES + 1) * (turns + first.left);
            if first.overtaken > most {
                let found = format!("{first:?} of tenant {tenant} has been overtaken more than {most} times");
                truth.violated(Invariant::NobodyStarves, found);
            }
            if waiters.iter().any(|waiter| waiter.request == request) {
                let found = format!("request {request} of tenant {tenant} was served before its turn");
                truth.violated(Invariant::NobodyStarves, found);
            }
        }
        self.remove(request);
    }

    /// A request does not wait any more.
    pub(super) fn left(&mut self, request: RequestId) {
        if self.remove(request) {
            self.turns_change();
        }
    }

    fn remove(&mut self, request: RequestId) -> bool {
        let before = self.len;
        for waiters in &mut self.tenants {
            if let Some(at) = waiters.iter().position(|waiter| waiter.request == request) {
                waiters.remove(at);
                self.len -= 1;
            }
        }
        self.len < before
    }
}
