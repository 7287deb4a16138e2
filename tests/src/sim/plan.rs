//! Draws a simulated run from its seed: its size, its load, and its rates of faults.
//!
//! Each run has some of the faults only. A fault that is everywhere hides what another one would show: a cluster whose
//! managers die each second never has a full queue.

use sublet_manager::core::{NodeCapacity, QueueLimits};
use sublet_proto::v1::Quota;

use super::client::Manners;
use super::network::Weather;
use super::random::Random;
use super::sabotage::Sabotage;
use crate::numbers::narrow;

const SECOND_US: u64 = 1_000_000;
/// Share of a run that is without faults and new clients, at its end, and its most.
const CALM_PARTS: u64 = 3;
const MAX_CALM_US: u64 = 400 * SECOND_US;
/// Time of calm beyond the longest lease: managers come back, agents find them, the last reports are stored.
const SETTLING_US: u64 = 60 * SECOND_US;

/// Most clients: idle nodes are what there is most of, and what takes most of the time.
const MAX_CLIENTS: u32 = 128;

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// Seed of all random draws.
    pub seed: u64,
    /// Agents.
    pub nodes: u32,
    /// Simulated time.
    pub duration_us: u64,
    /// Error that is introduced on purpose.
    pub sabotage: Option<Sabotage>,
}

/// Faults of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// A manager dies and is started anew.
    ManagerDies,
    /// An agent dies and is started anew, with its journal or without.
    AgentDies,
    /// Many agents die at once.
    RackDies,
    /// An agent's machine is gone for good.
    AgentGone,
    /// A node takes no leases for a while.
    Drain,
    /// A node is handed back, and lent again later.
    Reclaim,
    /// An agent and a manager do not hear each other, one way or both.
    CutAgent,
    /// All messages to a manager are lost, or all messages from it.
    CutManager,
    /// Clients of a host do not reach a manager.
    CutHost,
    /// Clients of a host do not reach an agent.
    CutClients,
    /// Messages between an agent and a manager take seconds.
    Slow,
    /// The store takes its time.
    StoreSlow,
    /// The store takes nothing.
    StoreFull,
    /// The store does not answer.
    StoreCut,
    /// The network loses, doubles and delays.
    Storm,
    /// All clients ask at once.
    Burst,
    /// The wall clocks of managers' machines jump.
    ClocksJump,
}

const FAULTS: &[SimFault] = &[
    SimFault::ManagerDies,
    SimFault::AgentDies,
    SimFault::RackDies,
    SimFault::AgentGone,
    SimFault::Drain,
    SimFault::Reclaim,
    SimFault::CutAgent,
    SimFault::CutManager,
    SimFault::CutHost,
    SimFault::CutClients,
    SimFault::Slow,
    SimFault::StoreSlow,
    SimFault::StoreFull,
    SimFault::StoreCut,
    SimFault::Storm,
    SimFault::Burst,
    SimFault::ClocksJump,
];

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct SimPlan {
    /// Number of managers on one store.
    pub managers: u8,
    /// Capacity that each node lends.
    pub capacities: Vec<NodeCapacity>,
    /// Quota of each tenant.
    pub quotas: Vec<Quota>,
    /// Limits of the queue of requests.
    pub queue: QueueLimits,
    /// Number of clients, in all.
    pub clients: u32,
    /// Behaviour of the clients.
    pub manners: Manners,
    /// The network without faults.
    pub weather: Weather,
    /// Faults that may happen.
    pub faults: Vec<SimFault>,
    /// The usual time between two faults.
    pub fault_every_us: u64,
    /// Time after which no fault happens and no client sends further requests.
    pub calm_at_us: u64,
    /// The end of the run.
    pub end_at_us: u64,
}

impl SimPlan {
    /// Draws the plan of a run from a seed.
    pub fn draw(options: &SimOptions, random: &mut Random) -> SimPlan {
        let SimOptions { nodes, duration_us, sabotage, .. } = *options;
        let calm_us = (duration_us / CALM_PARTS).min(MAX_CALM_US);
        let managers = sabotage.map_or_else(|| random.pick(&[1, 1, 2, 3]), Sabotage::managers);
        let node_cores = random.pick(&[2, 4, 8, 16]);
        let clients = match sabotage {
            Some(_) => 4 * nodes,
            None => (nodes / random.pick(&[3, 10, 30, 30])).clamp(2, MAX_CLIENTS),
        };
        let max_timeout_ms = (calm_us.saturating_sub(SETTLING_US) / 1_000).max(1_000);
        SimPlan {
            managers,
            capacities: (0..nodes).map(|_| capacity(node_cores, random)).collect(),
            quotas: (0..random.between(1, 6))
                .map(|_| quota((clients * node_cores).min(nodes * node_cores / 2), random))
                .collect(),
            queue: QueueLimits {
                total: narrow(random.between(4, 256)),
                per_tenant: narrow(random.between(2, 64)),
            },
            clients,
            manners: Manners {
                pace_us: random.pick(&[2, 10, 30]) * SECOND_US,
                node_cores,
                max_timeout_ms,
                max_wait_ms: random.pick(&[1_000, 10_000, 60_000]),
                rude_ppm: random.pick(&[0, 50_000, 300_000]),
                managers,
            },
            weather: random.pick(&[
                Weather::FAIR,
                Weather { loss_ppm: 10, duplicate_ppm: 10, delay_us: 200 },
                Weather { loss_ppm: 2_000, duplicate_ppm: 2_000, delay_us: 1_000 },
            ]),
            faults: FAULTS.iter().copied().filter(|_| random.chance_ppm(400_000)).collect(),
            fault_every_us: random.pick(&[1, 5, 20, 60]) * SECOND_US,
            calm_at_us: duration_us - calm_us,
            end_at_us: duration_us,
        }
    }
}

fn capacity(node_cores: u32, random: &mut Random) -> NodeCapacity {
    let cores: u32 = narrow(random.between(1, u64::from(node_cores) * 2 - 1));
    let places: u32 = if random.chance_ppm(500_000) { narrow(random.between(2, 8)) } else { 0 };
    let memory_bytes = u64::from(cores + places) * random.pick(&[192 << 20, 512 << 20]);
    NodeCapacity { cores, places, memory_bytes }
}

fn quota(cores: u32, random: &mut Random) -> Quota {
    let is_limited = random.chance_ppm(500_000);
    let most = cores.max(4);
    Quota {
        cores: is_limited.then_some(most),
        leases: (is_limited && random.chance_ppm(300_000)).then_some(most / 2),
        memory_bytes: (is_limited && random.chance_ppm(300_000)).then_some(u64::from(most) << 28),
        ..Quota::default()
    }
}
