//! Placement of components and of their memory on many simulated nodes, by a manager's core and by a greedy method.
//!
//! Applications come one after the other, and the oldest ends when most of the memory is leased. Each has a component, and a
//! memory component that it accesses (Scad, sections 4.1.1 and 5.2.3). The core gets the requests that a run sends: the
//! memory is to be near the component. The greedy method takes the first node that has enough free, for each of both.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sublet_manager::core::{
    AgentReport, ClientRequest, Core, CoreAction, CoreEvent, CoreSettings, InstanceId, Joining, LeaseId,
    LeaseReport, LeaseTerms, LendingState, Locality, NodeKey, QueueLimits, Refusals, ReportedEnd, RequestId,
    TenantKey, TokenStatus,
};
use sublet_proto::price::Prices;
use sublet_proto::v1::{LeaseRequest, NodeDescription, PackageBuild, PackageInfo, Usage};

use crate::numbers::narrow;

const ARCHITECTURE: &str = "x86_64";
const NODE_CORES: u32 = 16;
const NODE_MEMORY_BYTES: u64 = 64 << 30;
/// Nodes of a rack.
const RACK_NODES: usize = 40;
/// Percentage of the memory that is leased, from which on the oldest application ends.
const LOAD_PERCENT: u64 = 80;
/// Cores of the components, in turn.
const CORES: [u32; 8] = [1, 1, 1, 2, 2, 4, 8, 16];
/// Largest memory component, in GiB.
const MAX_MEMORY_GIB: u64 = 32;
const NOW_MS: u64 = 1_000_000;

/// Size of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct PlacementScale {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of applications that come.
    pub applications: u64,
}

/// Resources that an application needs.
#[derive(Clone, Copy, Debug)]
struct Demand {
    number: u64,
    cores: u32,
    component_bytes: u64,
    memory_bytes: u64,
}

impl Demand {
    fn of(number: u64) -> Demand {
        let cores = CORES[narrow::<u64, usize>(number % 8)];
        let gib = 1 + (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % MAX_MEMORY_GIB;
        Demand { number, cores, component_bytes: u64::from(cores) << 30, memory_bytes: gib << 30 }
    }

    fn bytes(&self) -> u64 {
        self.component_bytes + self.memory_bytes
    }
}

/// The nodes of an application, by their numbers.
#[derive(Clone, Copy, Debug)]
struct Pair {
    component: usize,
    memory: usize,
}

/// A method of placement.
trait PlacementMethod {
    /// Places an application, or returns `None` if there is not enough free.
    fn place(&mut self, demand: &Demand) -> Option<Pair>;

    /// Frees what an application had.
    fn end(&mut self, demand: &Demand, pair: Pair);
}

/// Counts of a simulation.
#[derive(Clone, Copy, Debug, Default)]
struct PlacementTally {
    placed: u64,
    refused: u64,
    on_one_node: u64,
    in_one_rack: u64,
    took: Duration,
}

impl PlacementTally {
    fn share(&self, of: u64) -> f64 {
        of as f64 / self.placed.max(1) as f64
    }

    fn refused_share(&self) -> f64 {
        self.refused as f64 / (self.placed + self.refused).max(1) as f64
    }

    fn micros_each(&self) -> f64 {
        self.took.as_secs_f64() * 1e6 / (self.placed + self.refused).max(1) as f64
    }
}

/// Simulates both methods. Returns their measurements as JSON, in the form of the rows of `cargo xtask bench scad`.
pub fn report(scale: PlacementScale) -> Value {
    let ours = simulate(&mut CorePlacement::new(scale.nodes), scale);
    let greedy = simulate(&mut GreedyPlacement::new(scale.nodes), scale);
    let case = format!("{} nodes", scale.nodes);
    let row = |measure: &str, unit: &str, of: fn(&PlacementTally) -> f64| {
        json!({
            "bench": "scad", "row": "placement", "case": case, "measure": measure, "unit": unit,
            "sublet": of(&ours), "peers": { "greedy": of(&greedy) },
        })
    };
    Value::Array(vec![
        row("pairs on one node", "", |tally| tally.share(tally.on_one_node)),
        row("pairs in one rack", "", |tally| tally.share(tally.in_one_rack)),
        row("applications refused", "", PlacementTally::refused_share),
        row("both decisions", "us", PlacementTally::micros_each),
    ])
}

fn simulate(method: &mut impl PlacementMethod, scale: PlacementScale) -> PlacementTally {
    let most_bytes = u64::from(scale.nodes) * NODE_MEMORY_BYTES / 100 * LOAD_PERCENT;
    let (mut tally, mut leased_bytes) = (PlacementTally::default(), 0);
    let mut running: VecDeque<(Demand, Pair)> = VecDeque::new();
    for demand in (0..scale.applications).map(Demand::of) {
        while leased_bytes + demand.bytes() > most_bytes
            && let Some((oldest, pair)) = running.pop_front()
        {
            leased_bytes -= oldest.bytes();
            method.end(&oldest, pair);
        }
        let began = Instant::now();
        let placed = method.place(&demand);
        tally.took += began.elapsed();
        let Some(pair) = placed else {
            tally.refused += 1;
            continue;
        };
        tally.placed += 1;
        tally.on_one_node += u64::from(pair.component == pair.memory);
        tally.in_one_rack += u64::from(pair.component / RACK_NODES == pair.memory / RACK_NODES);
        leased_bytes += demand.bytes();
        running.push_back((demand, pair));
    }
    tally
}

/// Greedy method, which takes the first node that has enough free.
struct GreedyPlacement {
    free: Vec<(u32, u64)>,
}

impl GreedyPlacement {
    fn new(nodes: u32) -> GreedyPlacement {
        GreedyPlacement { free: (0..nodes).map(|_| (NODE_CORES, NODE_MEMORY_BYTES)).collect() }
    }

    fn take(&mut self, cores: u32, bytes: u64) -> Option<usize> {
        let has_free = |free: &(u32, u64)| free.0 >= cores && free.1 >= bytes;
        let node = self.free.iter().position(has_free)?;
        self.free[node].0 -= cores;
        self.free[node].1 -= bytes;
        Some(node)
    }

    fn give_back(&mut self, node: usize, cores: u32, bytes: u64) {
        self.free[node].0 += cores;
        self.free[node].1 += bytes;
    }
}

impl PlacementMethod for GreedyPlacement {
    fn place(&mut self, demand: &Demand) -> Option<Pair> {
        let component = self.take(demand.cores, demand.component_bytes)?;
        let Some(memory) = self.take(0, demand.memory_bytes) else {
            self.give_back(component, demand.cores, demand.component_bytes);
            return None;
        };
        Some(Pair { component, memory })
    }

    fn end(&mut self, demand: &Demand, pair: Pair) {
        self.give_back(pair.component, demand.cores, demand.component_bytes);
        self.give_back(pair.memory, 0, demand.memory_bytes);
    }
}

struct RegisteredNode {
    number: usize,
    registration: u64,
    sequence: u64,
}

/// A manager's core, whose nodes report at once what it orders.
struct CorePlacement {
    core: Core,
    tenant: TenantKey,
    package: Arc<PackageInfo>,
    nodes: HashMap<NodeKey, RegisteredNode>,
    leases: HashMap<u64, [LeaseId; 2]>,
    requests: u128,
    out: Vec<CoreAction>,
}

impl CorePlacement {
    fn new(nodes: u32) -> CorePlacement {
        let settings = CoreSettings {
            epoch: 1,
            seed: 1,
            prices: Prices::default(),
            queue: QueueLimits::default(),
            balanced_bytes: None,
        };
        let mut core = Core::new(settings);
        let tenant = core.tenant_key("tenant");
        let build = PackageBuild { architecture: ARCHITECTURE.to_owned(), ..PackageBuild::default() };
        let mut placement = CorePlacement {
            core,
            tenant,
            package: Arc::new(PackageInfo { builds: vec![build], ..PackageInfo::default() }),
            nodes: HashMap::new(),
            leases: HashMap::new(),
            requests: 0,
            out: Vec::new(),
        };
        (0..nodes).for_each(|node| placement.register(node));
        placement
    }

    fn register(&mut self, node: u32) {
        let number = narrow::<u32, usize>(node);
        let description = NodeDescription {
            name: format!("node-{node}"),
            agent: "unix:/agent".to_owned(),
            architecture: ARCHITECTURE.to_owned(),
            cores: NODE_CORES,
            memory_bytes: NODE_MEMORY_BYTES,
            rack: format!("rack-{}", number / RACK_NODES),
            ..NodeDescription::default()
        };
        let joining = Joining {
            description,
            instance: InstanceId(u128::from(node) + 1),
            generation: 1,
            leases: Vec::new(),
        };
        self.core.on_event(NOW_MS, CoreEvent::Register(Box::new(joining)), &mut self.out);
        for action in self.out.drain(..) {
            if let CoreAction::Registered { node, registration, .. } = action {
                self.nodes.insert(node, RegisteredNode { number, registration, sequence: 0 });
            }
        }
    }

    /// Requests a lease. Returns its name and its node.
    fn request(&mut self, package: Arc<PackageInfo>, asked: &LeaseRequest) -> Option<(LeaseId, NodeKey)> {
        self.requests += 1;
        let request = ClientRequest {
            id: RequestId(self.requests),
            tenant: self.tenant,
            standing: TokenStatus::Verified,
            pu: String::new(),
            package,
            terms: LeaseTerms::of(asked).expect("the sizes are within limits"),
            locality: Locality::of(asked).expect("the preferences are within limits"),
            needs: Arc::default(),
            wait_ms: 0,
            refusals: Refusals::default(),
            application: None,
        };
        self.core.on_event(NOW_MS, CoreEvent::Request(Box::new(request)), &mut self.out);
        let mut granted = None;
        for action in self.out.drain(..) {
            if let CoreAction::Granted { leases, .. } = action {
                granted = leases.first().copied();
            }
        }
        let lease = self.core.lease(granted?)?;
        Some((lease.id, lease.node))
    }

    fn number_of(&self, node: NodeKey) -> usize {
        self.nodes[&node].number
    }

    /// Ends a lease: its node reports the end, the store takes it, and the node reports again.
    fn end_lease(&mut self, id: LeaseId) {
        let node = self.core.lease(id).expect("a lease that has not ended is known").node;
        self.report(node, id);
        let mut saves = Vec::new();
        for action in self.out.drain(..) {
            if let CoreAction::Save { lease, revision } = action {
                saves.push((lease, revision));
            }
        }
        for (lease, revision) in saves {
            self.core.on_event(NOW_MS, CoreEvent::Saved(lease, revision), &mut self.out);
        }
        self.report(node, id);
        self.out.clear();
    }

    fn report(&mut self, node: NodeKey, lease: LeaseId) {
        let known = self.nodes.get_mut(&node).expect("every node has registered");
        known.sequence += 1;
        let ended = Some(ReportedEnd { code: 0, reason: String::new() });
        let report = AgentReport {
            node,
            registration: known.registration,
            sequence: known.sequence,
            answered: known.sequence - 1,
            clock_ms: NOW_MS,
            lending: LendingState::Open,
            leases: vec![LeaseReport {
                lease,
                usage: Usage::default(),
                functions: Vec::new(),
                cold_imports: None,
                ended,
            }],
            neighbours: 0,
        };
        self.core.on_event(NOW_MS, CoreEvent::Report(report), &mut self.out);
    }
}

impl PlacementMethod for CorePlacement {
    fn place(&mut self, demand: &Demand) -> Option<Pair> {
        let asked = LeaseRequest {
            cores: demand.cores,
            memory_bytes: demand.component_bytes,
            max_nodes: 1,
            ..LeaseRequest::default()
        };
        let (component, node) = self.request(self.package.clone(), &asked)?;
        let near = self.core.node(node).map(|node| node.name.to_string());
        let asked = LeaseRequest {
            memory_bytes: demand.memory_bytes,
            near: near.into_iter().collect(),
            ..LeaseRequest::default()
        };
        let Some((memory, memory_node)) = self.request(Arc::default(), &asked) else {
            self.end_lease(component);
            return None;
        };
        self.leases.insert(demand.number, [component, memory]);
        Some(Pair { component: self.number_of(node), memory: self.number_of(memory_node) })
    }

    fn end(&mut self, demand: &Demand, _: Pair) {
        for lease in self.leases.remove(&demand.number).into_iter().flatten() {
            self.end_lease(lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: PlacementScale = PlacementScale { nodes: 200, applications: 2_000 };

    #[test]
    fn core_places_more_pairs_together_than_greedy_method() {
        let report = report(SCALE);
        let together = &report[0];
        assert_eq!(together["measure"], "pairs on one node");
        let (ours, greedy) = (together["sublet"].as_f64(), together["peers"]["greedy"].as_f64());
        assert!(ours > greedy && ours <= Some(1.0), "{report}");
    }

    #[test]
    fn ended_applications_leave_nothing_leased() {
        let mut placement = CorePlacement::new(4);
        for number in 0..40 {
            let demand = Demand::of(number);
            let pair = placement.place(&demand).expect("the nodes are empty");
            placement.end(&demand, pair);
        }
        assert!(placement.core.nodes().all(|node| node.leased.memory_bytes == 0 && node.leased.cores == 0));
    }
}
