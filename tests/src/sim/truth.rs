//! Knows the true state of a run, which no party sees, and checks its invariants.
//!
//! The models tell [`Truth`] what happens: a ticket is signed, an agent takes up a registration, a lease attaches, a
//! worker's time is over. It looks at what the event has touched, and keeps the first violation that it finds:
//!
//! - no core, shared place or byte of a node is leased twice, where leased means: attached, or promised by a ticket that
//!   the agent would still take;
//! - a ticket is taken once, under the registration it was issued for, and never after its agent has said that it
//!   takes it no more;
//! - no lease outlives its time by more than [`GRACE_US`] and what the drift of two clocks makes of it;
//! - the store never has more usage than there was, and in the end has all of it that any agent could report;
//! - no lease ends because its agent is thought to be gone, and is not;
//! - no tenant gets more than its quota;
//! - once messages have arrived, no manager counts more for a tenant than what agents have and what has been granted
//!   lately, whichever managers those agents have been with;
//! - a lease is on a node whose operator allows the isolation that its client demands, and its ticket names that.

use std::collections::HashMap;
use std::fmt;

use sublet_manager::core::{LeaseId, LeaseResources, NodeCapacity};
use sublet_proto::isolation::Isolation;
use sublet_proto::ticket::ATTACH_GRACE_MS;
use sublet_proto::v1::{Quota, TenantUse, Usage};

use super::clock::{MAX_DRIFT_PPM, SimClock};
use super::isolation;
use super::worker::{self, SimWorker};
use crate::numbers::narrow;

/// How long after its expiry a lease may be on its way out.
pub const GRACE_US: u64 = 1_000_000;
/// How long it may take until managers have heard from each other what tenants have: two heartbeats.
const HEARSAY_US: u64 = 3_000_000;
/// How many bits of a registration lie below its manager's epoch.
const EPOCH_SHIFT: u32 = 32;

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvariantViolation {
    /// The invariant that was violated.
    pub of: Invariant,
    /// Description of what was found.
    pub found: String,
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.of, self.found)
    }
}

/// Invariants of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invariant {
    /// Invariant of cores, shared places and bytes.
    NothingIsLeasedTwice,
    /// Invariant of tickets.
    TicketsAreTakenOnce,
    /// Invariant of leases.
    LeasesEndInTime,
    /// Invariant of resources.
    NothingLeaks,
    /// Invariant of usage: its upper bound.
    NothingIsBilledTwice,
    /// Invariant of usage: its lower bound.
    NoUsageIsLost,
    /// Invariant of requests.
    RequestsAreAnsweredOnce,
    /// Invariant of requests that wait.
    QueuesAreBounded,
    /// Invariant of tenants whose requests wait.
    NobodyStarves,
    /// Invariant of tenants.
    QuotasHold,
    /// Invariant of the leases of all managers together.
    LeasesCountOnce,
    /// Invariant of leases whose agent is alive.
    NothingEndsWithoutCause,
    /// Invariant of leases that demand an isolation.
    IsolationsAreAllowed,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Invariant::NothingIsLeasedTwice => "nothing is leased twice",
            Invariant::TicketsAreTakenOnce => "tickets are taken once, while they are good",
            Invariant::LeasesEndInTime => "leases end in time",
            Invariant::NothingLeaks => "what is released is leased again",
            Invariant::NothingIsBilledTwice => "nothing is billed that was not used",
            Invariant::NoUsageIsLost => "no usage is lost",
            Invariant::RequestsAreAnsweredOnce => "requests are answered once",
            Invariant::QueuesAreBounded => "queues are bounded",
            Invariant::NobodyStarves => "no tenant starves another",
            Invariant::QuotasHold => "quotas hold",
            Invariant::LeasesCountOnce => "leases count once",
            Invariant::NothingEndsWithoutCause => "no lease ends without a cause",
            Invariant::IsolationsAreAllowed => "demanded isolations are allowed",
        })
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Truth {
    nodes: Vec<TrueNode>,
    leases: Vec<TrueLease>,
    by_id: HashMap<LeaseId, u32>,
    /// Generation of each registration.
    generations: HashMap<u64, u64>,
    /// Leases that managers may count, by their index; those that are over for long are left out by and by.
    counted: Vec<u32>,
    tenants: Vec<TrueTenant>,
    /// Epochs of the managers that are alive.
    epochs: Vec<u64>,
    /// True time until which managers may not know of each other.
    hearsay_until_us: u64,
    violation: Option<InvariantViolation>,
}

/// An agent's node.
#[derive(Debug)]
struct TrueNode {
    capacity: NodeCapacity,
    /// Attached leases, and open tickets of the current registration.
    held: HeldResources,
    registration: u64,
    registered_us: u64,
    /// Generation of the registration that the agent has requested last.
    generation: u64,
    /// Leases that are open or attached, by their index.
    live: Vec<u32>,
    /// Whether the agent does not come back.
    is_lost: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeldResources {
    cores: u64,
    places: u64,
    memory_bytes: u64,
}

impl HeldResources {
    fn add(&mut self, amount: LeaseResources) {
        *self.workers(amount.shared) += u64::from(amount.workers);
        self.memory_bytes += amount.memory_bytes;
    }

    fn remove(&mut self, amount: LeaseResources) {
        *self.workers(amount.shared) -= u64::from(amount.workers);
        self.memory_bytes -= amount.memory_bytes;
    }

    fn workers(&mut self, shared: bool) -> &mut u64 {
        if shared { &mut self.places } else { &mut self.cores }
    }

    fn fits(&self, capacity: NodeCapacity) -> bool {
        self.cores <= capacity.cores.into()
            && self.places <= capacity.places.into()
            && self.memory_bytes <= capacity.memory_bytes
    }
}

#[derive(Debug, Default)]
struct TrueTenant {
    quota: Quota,
    cores: u64,
    memory_bytes: u64,
    leases: u64,
}

/// A lease as it is granted.
#[derive(Clone, Copy, Debug)]
pub struct GrantedTruth {
    /// Id of the lease.
    pub id: LeaseId,
    /// Number of the lease's agent.
    pub agent: u32,
    /// Number of the lease's tenant.
    pub tenant: u32,
    /// Resources that the lease holds.
    pub amount: LeaseResources,
    /// Registration that the ticket names.
    pub registration: u64,
    /// Time of issue in the ticket: the clock of the manager that signed it.
    pub issued_ms: u64,
    /// Time from the grant to the end.
    pub timeout_ms: u64,
}

#[derive(Debug)]
struct TrueLease {
    granted: GrantedTruth,
    granted_us: u64,
    life: Life,
    /// True time by which it is over.
    ends_by_us: u64,
    /// True time at which the lease was seen to be over.
    over_us: Option<u64>,
    /// Usage that the store has.
    stored: Usage,
    /// Usage that a manager has heard, and the epoch of that manager.
    heard: Option<(Usage, u64)>,
    /// Part of the usage that can be known.
    known: KnownUsage,
}

/// Part of a lease's usage that the store must have in the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum KnownUsage {
    /// All of it: its agent lives.
    All,
    /// The usage that a dead agent's journal says.
    Journal(Usage),
    /// The usage that its manager has heard, if that manager is alive: no other party knows anything.
    Hearsay,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Life {
    /// The agent would take the lease's ticket, now or once it takes up the ticket's registration.
    Open,
    /// The ticket is invalid, and no client ever showed it.
    Void,
    /// The lease is attached, with its node's clock and the reading of that clock.
    Attached(SimClock, u64),
    /// The lease has ended, with all that it used.
    Ended(Usage),
}

impl Truth {
    /// Makes the state before the first event.
    pub fn new(capacities: impl Iterator<Item = NodeCapacity>, tenants: usize) -> Truth {
        let node = |capacity| TrueNode {
            capacity,
            held: HeldResources::default(),
            registration: 0,
            registered_us: 0,
            generation: 0,
            live: Vec::new(),
            is_lost: false,
        };
        Truth {
            nodes: capacities.map(node).collect(),
            leases: Vec::new(),
            by_id: HashMap::new(),
            generations: HashMap::new(),
            counted: Vec::new(),
            tenants: (0..tenants).map(|_| TrueTenant::default()).collect(),
            epochs: Vec::new(),
            hearsay_until_us: 0,
            violation: None,
        }
    }

    /// The first violation, if there is one.
    pub fn violation(&self) -> Option<&InvariantViolation> {
        self.violation.as_ref()
    }

    /// Notes a violation that another checker has found.
    #[cold]
    pub fn violated(&mut self, of: Invariant, found: String) {
        self.violation.get_or_insert(InvariantViolation { of, found });
    }

    /// Sets the quota that a tenant has from now on.
    pub fn set_quota(&mut self, tenant: u32, quota: Quota) {
        self.tenants[tenant as usize].quota = quota;
    }

    /// A manager has started, under this epoch.
    pub fn manager_started(&mut self, epoch: u64) {
        self.epochs.push(epoch);
    }

    /// The manager of this epoch is gone.
    pub fn manager_gone(&mut self, epoch: u64) {
        self.epochs.retain(|&other| other != epoch);
    }

    /// Managers cannot hear from each other until a while from now.
    pub fn unsettle(&mut self, until_us: u64) {
        self.hearsay_until_us = self.hearsay_until_us.max(until_us + HEARSAY_US);
    }

    /// Registration under which an agent takes tickets now.
    pub fn registration(&self, agent: u32) -> u64 {
        self.nodes[agent as usize].registration
    }

    /// How many leases were ever granted.
    pub fn leases_granted(&self) -> u64 {
        self.leases.len() as u64
    }

    /// A manager has signed a ticket for a new lease.
    pub fn grant(&mut self, now_us: u64, granted: GrantedTruth) {
        let index: u32 = narrow(self.leases.len());
        self.by_id.insert(granted.id, index);
        self.counted.push(index);
        self.leases.push(TrueLease {
            granted,
            granted_us: now_us,
            life: Life::Open,
            ends_by_us: ends_by_us(now_us, granted.timeout_ms),
            over_us: None,
            stored: Usage::default(),
            heard: None,
            known: KnownUsage::All,
        });
        let node = &mut self.nodes[granted.agent as usize];
        node.live.push(index);
        let tenant = &mut self.tenants[granted.tenant as usize];
        tenant.cores += u64::from(granted.amount.workers);
        tenant.memory_bytes += granted.amount.memory_bytes;
        tenant.leases += 1;
        if granted.registration == node.registration {
            self.hold(granted);
        }
        if self.is_outdated(&granted) {
            self.nodes[granted.agent as usize].live.retain(|&other| other != index);
            return self.close(index, Life::Void);
        }
        self.check_quota(now_us, granted.tenant, granted.registration >> EPOCH_SHIFT);
    }

    /// Checks the isolation of a lease that was just granted: the one that its client demands, and the one in its ticket.
    pub fn isolate(&mut self, id: LeaseId, demanded: Option<Isolation>, in_ticket: &str) {
        let Some(lease) = self.lease_mut(id) else { return };
        let agent = lease.granted.agent;
        if !isolation::may_have(agent, demanded) || demanded.map_or("", Isolation::name) != in_ticket {
            let allowed = isolation::allowed(agent);
            let found = format!(
                "lease {id} demands {demanded:?}, its ticket says {in_ticket:?}, and agent {agent} allows {allowed:?}"
            );
            self.violated(Invariant::IsolationsAreAllowed, found);
        }
    }

    /// Whether the agent has asked for a later registration than the ticket's, and will not take that one up any more.
    /// False if the generation of the ticket's registration is not known.
    fn is_outdated(&self, granted: &GrantedTruth) -> bool {
        let latest = self.nodes[granted.agent as usize].generation;
        self.generations.get(&granted.registration).is_some_and(|generation| (1..latest).contains(generation))
    }

    /// Whether a lease was granted under this name.
    pub fn knows(&self, id: LeaseId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// A manager has signed a ticket with a later end.
    pub fn renew(&mut self, now_us: u64, id: LeaseId, timeout_ms: u64) {
        let Some(&index) = self.by_id.get(&id) else { return };
        let lease = &mut self.leases[index as usize];
        lease.ends_by_us = lease.ends_by_us.max(ends_by_us(now_us, timeout_ms));
        // With a new ticket a client that has not attached yet may still attach for a while, and managers have to count
        // that.
        lease.over_us = None;
        if !self.counted.contains(&index) {
            self.counted.push(index);
        }
    }

    /// A manager has taken a registration of this generation in, whether or not its agent ever hears of it.
    pub fn registered(&mut self, registration: u64, generation: u64) {
        self.generations.insert(registration, generation);
    }

    /// An agent asks for a registration. It has never more than one on its way, so that it will not take up an earlier
    /// one later; until it has this one, no ticket holds.
    pub fn asks(&mut self, now_us: u64, agent: u32, generation: u64) {
        self.nodes[agent as usize].generation = generation;
        self.adopt(now_us, agent, 0);
    }

    /// An agent has taken up a registration: tickets of others are void.
    pub fn adopt(&mut self, now_us: u64, agent: u32, registration: u64) {
        let node = &mut self.nodes[agent as usize];
        node.registration = registration;
        node.registered_us = now_us;
        node.held = HeldResources::default();
        for index in std::mem::take(&mut node.live) {
            let TrueLease { life, granted, .. } = self.leases[index as usize];
            if life == Life::Open && granted.registration != registration {
                self.close(index, Life::Void);
            } else {
                self.nodes[agent as usize].live.push(index);
                self.hold(granted);
            }
        }
    }

    /// An agent says in a report that the clock shows at least this: it takes no ticket any more that was too old by
    /// then, or whose lease was over.
    pub fn promise(&mut self, agent: u32, clock_ms: u64) {
        let node = &mut self.nodes[agent as usize];
        if node.live.is_empty() {
            return;
        }
        let registration = node.registration;
        self.close_all(agent, |lease| {
            lease.life == Life::Open
                && lease.granted.registration == registration
                && lease.granted.issued_ms + ATTACH_GRACE_MS.min(lease.granted.timeout_ms) < clock_ms
        });
    }

    /// An agent has heard that a lease has ended: if it has not taken the ticket so far, it does not any more.
    pub fn void(&mut self, agent: u32, id: LeaseId) {
        self.close_all(agent, |lease| lease.granted.id == id && lease.life == Life::Open);
    }

    /// An agent has taken a ticket.
    pub fn attach(&mut self, agent: u32, id: LeaseId, clock: SimClock, clock_ns: u64) {
        let Some(&index) = self.by_id.get(&id) else {
            let found = format!("agent {agent} took a ticket of lease {id}, which was never granted");
            return self.violated(Invariant::TicketsAreTakenOnce, found);
        };
        let registration = self.nodes[agent as usize].registration;
        let lease = &mut self.leases[index as usize];
        let granted = lease.granted;
        if lease.life != Life::Open || granted.agent != agent || granted.registration != registration {
            let found = format!(
                "agent {agent} under registration {registration} took the ticket of {granted:?}, which is {:?}",
                lease.life
            );
            return self.violated(Invariant::TicketsAreTakenOnce, found);
        }
        lease.life = Life::Attached(clock, clock_ns);
    }

    /// A lease's workers are gone, having used this much.
    pub fn end(&mut self, now_us: u64, id: LeaseId, used: Usage) {
        let Some(&index) = self.by_id.get(&id) else { return };
        let lease = &self.leases[index as usize];
        if !lease.is_attached() {
            return;
        }
        let agent = lease.granted.agent;
        self.check_end(now_us, index);
        self.close(index, Life::Ended(used));
        self.nodes[agent as usize].live.retain(|&other| other != index);
    }

    /// The agent of a lease has died, and its end had not been acknowledged. This is what its journal has of it.
    pub fn survives(&mut self, id: LeaseId, journal: Option<Usage>) {
        if let Some(lease) = self.lease_mut(id) {
            lease.known = journal.map_or(KnownUsage::Hearsay, KnownUsage::Journal);
        }
    }

    /// Notes that a manager, in the life with this epoch, has heard what a lease has used.
    pub fn heard(&mut self, id: LeaseId, usage: Usage, epoch: u64) {
        if let Some(lease) = self.lease_mut(id)
            && lease.heard.is_none_or(|(known, _)| worker::is_within(&known, &usage))
        {
            lease.heard = Some((usage, epoch));
        }
    }

    /// Notes that an agent is gone, and its leases have been ended one by one: no agent takes its tickets.
    pub fn agent_gone(&mut self, agent: u32) {
        self.close_all(agent, |lease| lease.life == Life::Open);
    }

    /// Does what [`Truth::agent_gone`] does for an agent that does not come back: managers never learn what has become
    /// of any lease that it ever had, not even from an agent that starts anew and finds the lease in the store.
    pub fn agent_lost(&mut self, agent: u32) {
        self.nodes[agent as usize].is_lost = true;
        let all = (0..).zip(&self.leases).filter(|(_, lease)| lease.granted.agent == agent);
        self.counted.extend(all.map(|(index, _)| index));
        self.counted.sort_unstable();
        self.counted.dedup();
    }

    /// The store has this of a lease.
    pub fn stored(&mut self, now_us: u64, id: LeaseId, usage: Usage) {
        let Some(lease) = self.lease_mut(id) else {
            let found = format!("the store has lease {id}, which was never granted");
            return self.violated(Invariant::NothingIsBilledTwice, found);
        };
        lease.stored = usage;
        let used = lease.used(now_us);
        if !worker::is_within(&usage, &used) {
            let found = format!("lease {id} has used {used:?} and is billed {usage:?}");
            self.violated(Invariant::NothingIsBilledTwice, found);
        }
    }

    /// Checks everything, also what nothing has touched.
    pub fn check(&mut self, now_us: u64) {
        for agent in 0..narrow::<_, u32>(self.nodes.len()) {
            let node = &self.nodes[agent as usize];
            let mut sum = HeldResources::default();
            let live: Vec<u32> = node.live.clone();
            let registration = node.registration;
            for index in live {
                let lease = &self.leases[index as usize];
                if lease.is_attached() || lease.granted.registration == registration {
                    sum.add(lease.granted.amount);
                }
                if lease.is_attached() {
                    self.check_end(now_us, index);
                }
            }
            assert_eq!(
                sum, self.nodes[agent as usize].held,
                "the simulator's own sums of agent {agent} are wrong"
            );
            self.check_capacity(agent);
        }
    }

    /// Checks what the manager of an epoch believes that tenants have, by their numbers. To be called when messages
    /// arrive and have done so for long enough. The usage of agents that are gone for good is not checked, because no
    /// party knows it.
    pub fn check_counted(
        &self,
        now_us: u64,
        epoch: u64,
        used: impl Iterator<Item = TenantUse>,
    ) -> Option<String> {
        let mut most = vec![TenantUse::default(); self.tenants.len()];
        for &index in &self.counted {
            let GrantedTruth { tenant, amount, .. } = self.leases[index as usize].granted;
            let most = &mut most[tenant as usize];
            most.cores += amount.workers;
            most.memory_bytes += amount.memory_bytes;
            most.leases += 1;
        }
        let all = most.iter().zip(used).enumerate();
        let mut wrong = all.filter(|(_, (most, used))| {
            used.cores > most.cores || used.memory_bytes > most.memory_bytes || used.leases > most.leases
        });
        wrong.next().map(|(tenant, (most, used))| {
            format!("the manager of epoch {epoch} counts {used:?} for tenant {tenant} at {now_us} us, who has {most:?}")
        })
    }

    /// Forgets leases that have been over for so long that all managers must know.
    pub fn forget_over(&mut self, now_us: u64) {
        let (leases, nodes) = (&mut self.leases, &self.nodes);
        self.counted.retain(|&index| {
            let lease = &mut leases[index as usize];
            match lease.life {
                Life::Open | Life::Attached(..) => true,
                _ if nodes[lease.granted.agent as usize].is_lost => true,
                Life::Void | Life::Ended(_) => {
                    let over_us = *lease.over_us.get_or_insert(now_us);
                    over_us + HEARSAY_US >= now_us
                }
            }
        });
    }

    /// Checks what must hold once faults have stopped and time has passed.
    pub fn check_final(&mut self) {
        for index in 0..self.leases.len() {
            let lease = &self.leases[index];
            let id = lease.granted.id;
            if lease.is_attached() {
                let found = format!("{lease:?} is still attached");
                self.violated(Invariant::LeasesEndInTime, found);
            } else if let Life::Ended(used) = lease.life
                && let least = lease.least(used, &self.epochs)
                && !worker::is_within(&least, &lease.stored)
            {
                let found = format!("lease {id} has used {used:?}, {least:?} is known: {lease:?}");
                self.violated(Invariant::NoUsageIsLost, found);
            }
        }
    }

    fn lease_mut(&mut self, id: LeaseId) -> Option<&mut TrueLease> {
        let index = *self.by_id.get(&id)?;
        Some(&mut self.leases[index as usize])
    }

    fn hold(&mut self, granted: GrantedTruth) {
        self.nodes[granted.agent as usize].held.add(granted.amount);
        self.check_capacity(granted.agent);
    }

    fn close_all(&mut self, agent: u32, is_over: impl Fn(&TrueLease) -> bool) {
        let live = std::mem::take(&mut self.nodes[agent as usize].live);
        let (over, left): (Vec<u32>, Vec<u32>) =
            live.into_iter().partition(|&index| is_over(&self.leases[index as usize]));
        self.nodes[agent as usize].live = left;
        over.into_iter().for_each(|index| self.close(index, Life::Void));
    }

    /// A lease that was live holds nothing any more.
    fn close(&mut self, index: u32, life: Life) {
        let lease = &mut self.leases[index as usize];
        let granted = lease.granted;
        let was_attached = lease.is_attached();
        lease.life = life;
        let node = &mut self.nodes[granted.agent as usize];
        if was_attached || granted.registration == node.registration {
            node.held.remove(granted.amount);
        }
        let tenant = &mut self.tenants[granted.tenant as usize];
        tenant.cores -= u64::from(granted.amount.workers);
        tenant.memory_bytes -= granted.amount.memory_bytes;
        tenant.leases -= 1;
    }

    fn check_capacity(&mut self, agent: u32) {
        let TrueNode { capacity, held, .. } = self.nodes[agent as usize];
        if !held.fits(capacity) {
            let found = format!("agent {agent} has {capacity:?}, of which {held:?} is leased");
            self.violated(Invariant::NothingIsLeasedTwice, found);
        }
    }

    fn check_end(&mut self, now_us: u64, index: u32) {
        let TrueLease { granted, ends_by_us, .. } = self.leases[index as usize];
        if now_us > ends_by_us {
            let late_ms = (now_us - ends_by_us) / 1_000;
            let found = format!("{granted:?} was attached {late_ms} ms after its time and grace");
            self.violated(Invariant::LeasesEndInTime, found);
        }
    }

    fn check_quota(&mut self, now_us: u64, number: u32, epoch: u64) {
        let tenant = &self.tenants[number as usize];
        if !tenant.is_over() || now_us < self.hearsay_until_us {
            return;
        }
        let known = self.known_to(now_us, number, epoch);
        if known.is_over() {
            let live =
                self.nodes.iter().flat_map(|node| &node.live).map(|&index| &self.leases[index as usize]);
            let leases: Vec<&TrueLease> = live.filter(|lease| lease.granted.tenant == number).collect();
            let found = format!(
                "tenant {number}, by what the manager of epoch {epoch} could know, has {known:?}; all: {leases:?}"
            );
            self.violated(Invariant::QuotasHold, found);
        }
    }

    /// Usage of a tenant by all that a manager can know: leases of its own nodes, and those that have been on nodes of
    /// other living managers for long enough.
    fn known_to(&self, now_us: u64, number: u32, epoch: u64) -> TrueTenant {
        let mut known = TrueTenant { quota: self.tenants[number as usize].quota, ..TrueTenant::default() };
        for node in &self.nodes {
            let leases = node.live.iter().map(|&index| &self.leases[index as usize]);
            for lease in leases.filter(|lease| lease.granted.tenant == number) {
                let of = if lease.is_attached() { node.registration } else { lease.granted.registration };
                let is_own = of >> EPOCH_SHIFT == epoch;
                if !lease.is_attached() && lease.ends_by_us - GRACE_US < now_us {
                    continue;
                }
                let since_us = lease.granted_us.max(node.registered_us) + HEARSAY_US;
                if is_own || (self.epochs.contains(&(of >> EPOCH_SHIFT)) && since_us < now_us) {
                    known.cores += u64::from(lease.granted.amount.workers);
                    known.memory_bytes += lease.granted.amount.memory_bytes;
                    known.leases += 1;
                }
            }
        }
        known
    }
}

impl TrueTenant {
    fn is_over(&self) -> bool {
        let over = |held: u64, most: Option<u64>| most.is_some_and(|most| held > most);
        over(self.cores, self.quota.cores.map(u64::from))
            || over(self.memory_bytes, self.quota.memory_bytes)
            || over(self.leases, self.quota.leases.map(u64::from))
    }
}

impl TrueLease {
    fn is_attached(&self) -> bool {
        matches!(self.life, Life::Attached(..))
    }

    /// Usage of the lease until now.
    fn used(&self, now_us: u64) -> Usage {
        match self.life {
            Life::Open | Life::Void => Usage::default(),
            Life::Ended(used) => used,
            Life::Attached(clock, since_ns) => {
                let GrantedTruth { id, amount, .. } = self.granted;
                SimWorker::of(id, amount.workers).used(clock.read_ns(now_us) - since_ns)
            }
        }
    }

    /// Least usage of the lease that the store must have.
    fn least(&self, used: Usage, epochs: &[u64]) -> Usage {
        match (self.known, self.heard) {
            (KnownUsage::All, _) => used,
            (KnownUsage::Journal(usage), _) => usage,
            (KnownUsage::Hearsay, Some((usage, epoch))) if epochs.contains(&epoch) => usage,
            (KnownUsage::Hearsay, _) => Usage::default(),
        }
    }
}

/// Latest true time at which a lease is over that times out by a manager's clock and then by its agent's.
fn ends_by_us(now_us: u64, timeout_ms: u64) -> u64 {
    let drift_us = timeout_ms * 2 * MAX_DRIFT_PPM.unsigned_abs() / 1_000;
    now_us + timeout_ms * 1_000 + drift_us + GRACE_US
}
