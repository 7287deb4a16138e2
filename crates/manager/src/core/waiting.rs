//! Requests that wait for capacity: bounded, first come first served for a tenant, tenants in turn.
//!
//! A tenant whose request is too large for the free resources is passed over, but only [`MAX_OVERTAKES`] times: then no
//! other request is served until this one is granted or gives up. So no tenant starves another, neither by many
//! requests nor by small ones. A tenant that lets its grants lapse [loses its turn](WaitQueue::postpone). If the
//! passed-over request waits for one pool, only grants in that pool count, and the other pools stay open. A request for
//! devices bars no other: a device may be leased for hours, and cores that stay free meanwhile would not help it.

use std::collections::{BTreeMap, VecDeque};

use sublet_proto::{Code, Error};

use super::ClientRequest;
use super::ids::{RequestId, TenantKey};
use super::pools::Pools;

/// Most grants that may overtake a request whose turn it is.
pub const MAX_OVERTAKES: u32 = 64;

/// Limits of the queue, in requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Most requests of all tenants.
    pub total: usize,
    /// Most requests of one tenant.
    pub per_tenant: usize,
}

impl Default for QueueLimits {
    fn default() -> QueueLimits {
        QueueLimits { total: 16_384, per_tenant: 4_096 }
    }
}

#[derive(Debug)]
struct WaitingRequest {
    request: Box<ClientRequest>,
    until_ms: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct WaitQueue {
    limits: QueueLimits,
    of_tenants: BTreeMap<TenantKey, VecDeque<WaitingRequest>>,
    /// Tenants with waiting requests, in the order of their turns.
    turns: VecDeque<TenantKey>,
    len: usize,
    /// Grants that overtook the request whose turn it is, in pools where it may be placed.
    overtakes: u32,
    /// Whether the tenant whose turn it is is held back, because all waiting tenants are. It then bars no other.
    is_first_held_back: bool,
}

impl WaitQueue {
    pub(super) fn new(limits: QueueLimits) -> WaitQueue {
        WaitQueue {
            limits,
            of_tenants: BTreeMap::new(),
            turns: VecDeque::new(),
            len: 0,
            overtakes: 0,
            is_first_held_back: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the pools in which the request may be placed whose turn it is, unless it waits for devices.
    fn first(&self) -> Pools {
        let queue = self.turns.front().and_then(|tenant| self.of_tenants.get(tenant));
        let first = queue.and_then(VecDeque::front).filter(|first| first.request.needs.devices.is_empty());
        first.map_or(Pools::NONE, |first| first.request.locality.pools)
    }

    /// Returns the pools in which no request may be served before the one whose turn it is.
    pub(super) fn barred(&self) -> Pools {
        if self.overtakes >= MAX_OVERTAKES && !self.is_first_held_back { self.first() } else { Pools::NONE }
    }

    /// Counts a grant in these pools to a request that came later than the first.
    pub(super) fn overtaken(&mut self, pools: Pools) {
        self.overtakes = self.overtakes.saturating_add(u32::from(self.first().meets(pools)));
    }

    /// Puts the turns of tenants that are held back after those of all others.
    pub(super) fn postpone(&mut self, is_held_back: impl Fn(TenantKey) -> bool) {
        let first = self.turns.front().copied();
        let (held_back, mut turns): (VecDeque<_>, VecDeque<_>) =
            self.turns.drain(..).partition(|&tenant| is_held_back(tenant));
        self.is_first_held_back = turns.is_empty();
        turns.extend(held_back);
        self.turns = turns;
        debug_assert_eq!(self.turns.len(), self.of_tenants.len(), "turns, and tenants that wait");
        if self.turns.front().copied() != first {
            self.overtakes = 0;
        }
    }

    /// Takes a request in, or says that there are too many.
    pub(super) fn push(
        &mut self,
        request: Box<ClientRequest>,
        until_ms: u64,
        turn: QueuePosition,
    ) -> Result<(), Error> {
        let too_many = |message| Err(Error::new(Code::TryLater, message));
        let tenant = request.tenant;
        if self.of_tenants.get(&tenant).map_or(0, VecDeque::len) >= self.limits.per_tenant {
            return too_many(format!(
                "{} requests of this tenant are waiting already",
                self.limits.per_tenant
            ));
        }
        if self.len >= self.limits.total {
            return too_many(format!("{} requests are waiting already", self.limits.total));
        }
        let queue = self.of_tenants.entry(tenant).or_default();
        let is_alone = queue.is_empty();
        match turn {
            QueuePosition::First => {
                queue.push_front(WaitingRequest { request, until_ms });
                self.turns.retain(|other| *other != tenant);
                self.turns.push_front(tenant);
            }
            QueuePosition::Last => {
                queue.push_back(WaitingRequest { request, until_ms });
                if is_alone {
                    self.turns.push_back(tenant);
                }
            }
        }
        self.len += 1;
        debug_assert!(self.len <= self.limits.total, "{} requests wait, at most {:?}", self.len, self.limits);
        debug_assert_eq!(self.turns.len(), self.of_tenants.len(), "turns, and tenants that wait");
        Ok(())
    }

    /// Takes the first request out, in the order of turns, that `serve` grants outside of the pools that it is given. One
    /// that it refuses for good is answered by it, too. Says whether one was taken out.
    pub(super) fn serve(&mut self, mut serve: impl FnMut(&ClientRequest, Pools) -> TurnOutcome) -> bool {
        let barred = self.barred();
        for turn in 0..self.turns.len() {
            let barred = if turn == 0 { Pools::NONE } else { barred };
            if barred == Pools::ALL {
                break;
            }
            let tenant = self.turns[turn];
            let Some(first) = self.of_tenants.get(&tenant).and_then(VecDeque::front) else { continue };
            let served = serve(&first.request, barred);
            if let TurnOutcome::NoCapacity = served {
                continue;
            }
            self.pop(turn);
            match (turn, served) {
                (0, _) => self.overtakes = 0,
                (_, TurnOutcome::Granted(pools)) => self.overtaken(pools),
                _ => {}
            }
            return true;
        }
        false
    }

    /// Takes out the first request of the tenant with this turn, whose next turn comes after all others.
    fn pop(&mut self, turn: usize) {
        let Some(tenant) = self.turns.remove(turn) else { return };
        let Some(queue) = self.of_tenants.get_mut(&tenant) else { return };
        debug_assert!(!queue.is_empty(), "{tenant:?} has a turn, and no request");
        self.len -= usize::from(queue.pop_front().is_some());
        if queue.is_empty() {
            self.of_tenants.remove(&tenant);
        } else {
            self.turns.push_back(tenant);
        }
    }

    /// Takes out every request for which `is_over` returns true.
    pub(super) fn take_out(
        &mut self,
        mut is_over: impl FnMut(&ClientRequest, u64) -> bool,
    ) -> Vec<ClientRequest> {
        let first = self.turns.front().copied();
        let mut out = Vec::new();
        for queue in self.of_tenants.values_mut() {
            let (over, left): (VecDeque<_>, VecDeque<_>) = std::mem::take(queue)
                .into_iter()
                .partition(|waiter| is_over(&waiter.request, waiter.until_ms));
            *queue = left;
            out.extend(over.into_iter().map(|waiter| *waiter.request));
        }
        self.len -= out.len();
        self.of_tenants.retain(|_, queue| !queue.is_empty());
        self.turns.retain(|tenant| self.of_tenants.contains_key(tenant));
        if self.turns.front().copied() != first {
            self.overtakes = 0;
        }
        out
    }

    /// Panics unless each tenant with waiting requests has exactly one turn, and all of them are counted.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn assert_consistent(&self) {
        let mut turns: Vec<TenantKey> = self.turns.iter().copied().collect();
        turns.sort_unstable();
        assert!(turns.iter().eq(self.of_tenants.keys()), "turns {turns:?} of {:?}", self.of_tenants.keys());
        let lens = self.of_tenants.values().map(VecDeque::len);
        assert_eq!(lens.clone().sum::<usize>(), self.len, "waiting requests");
        assert!(lens.clone().all(|len| (1..=self.limits.per_tenant).contains(&len)), "{:?}", self.limits);
    }

    /// Whether a request of this name waits.
    pub(super) fn contains(&self, tenant: TenantKey, id: RequestId) -> bool {
        let queue = self.of_tenants.get(&tenant);
        queue.is_some_and(|queue| queue.iter().any(|waiter| waiter.request.id == id))
    }
}

/// Turn of a request that is to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueuePosition {
    /// The next turn, as before.
    First,
    /// A turn after its tenant's other requests, and its tenant's turn after those of others.
    Last,
}

/// Result of a waiting request's turn.
pub(super) enum TurnOutcome {
    /// Leases were granted in these pools.
    Granted(Pools),
    Refused,
    NoCapacity,
}
