//! Measures the lease requests that the core decides in a second, on one processor core, with 10,000 nodes.
//!
//! `cargo bench -p sublet-manager`. The promise is a million a second, and 200,000 of components, which have neighbours and
//! keys, in pools and racks or not: SPECIFICATION.md, "The control plane". A grant here is only the request. A whole
//! life is the request, the report that the lease has run and ended, the store's answer, and the report after which the
//! lease is forgotten.

use std::collections::{HashMap, VecDeque};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sublet_manager::core::{
    AgentReport, Amount, ClientRequest, CommunicatingSet, Core, CoreAction, CoreEvent, CoreSettings,
    InstanceId, Joining, LeaseId, LeaseReport, LeaseTerms, LendingState, Locality, NodeKey, PoolResources,
    QueueLimits, Refusals, ReportedEnd, RequestId, TenantKey, TokenStatus, decide,
};
use sublet_proto::price::Prices;
use sublet_proto::v1::{LeaseRequest, NodeDescription, PackageBuild, PackageInfo, Usage};

const ARCHITECTURE: &str = "x86_64";
const NODES: u32 = 10_000;
const NODE_CORES: u32 = 16;
const NODE_MEMORY_BYTES: u64 = 64 << 30;
/// Cores of the requests, in turn.
const SIZES: [u32; 8] = [1, 1, 1, 2, 2, 4, 8, 16];
/// Leases whose requests are timed together.
const BATCH: u64 = 1_000;
/// Percentage of a nearly full cluster that is leased.
const NEARLY_FULL: u64 = 95;

/// Nodes of a rack, in a run with racks. Such a run has pools, too: two in five nodes are of the compute pool, one of
/// the memory pool.
const RACK_NODES: u32 = 40;
const POOLS: [&str; 5] = ["compute", "balanced", "memory", "compute", "balanced"];

/// Whether nodes name a pool and a rack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nodes {
    Alike,
    InPoolsAndRacks,
}

/// A core with its nodes, and the leases that it has granted.
struct Cluster {
    core: Core,
    tenant: TenantKey,
    package: Arc<PackageInfo>,
    terms: Vec<LeaseTerms>,
    /// Whether requests are for components of applications, beside neighbours and with keys.
    are_components: bool,
    registered: HashMap<NodeKey, RegisteredNode>,
    leases: VecDeque<LeaseId>,
    cores_leased: u64,
    requests: u128,
    now_ms: u64,
    out: Vec<CoreAction>,
}

struct RegisteredNode {
    registration: u64,
    sequence: u64,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster::of(Nodes::Alike)
    }

    fn of(nodes: Nodes) -> Cluster {
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
        let mut cluster = Cluster {
            core,
            tenant,
            package: Arc::new(PackageInfo { builds: vec![build], ..PackageInfo::default() }),
            terms: SIZES.iter().map(|&cores| terms(cores)).collect(),
            are_components: false,
            registered: HashMap::new(),
            leases: VecDeque::new(),
            cores_leased: 0,
            requests: 0,
            now_ms: 1_000_000,
            out: Vec::new(),
        };
        (0..NODES).for_each(|node| cluster.register(node, nodes));
        cluster
    }

    fn nearly_full() -> Cluster {
        Cluster::new().filled()
    }

    fn filled(self) -> Cluster {
        let mut cluster = self;
        while cluster.cores_leased < u64::from(NODES * NODE_CORES) * NEARLY_FULL / 100 {
            cluster.grant();
        }
        cluster
    }

    fn full() -> Cluster {
        let mut cluster = Cluster::new();
        cluster.terms = vec![terms(1)];
        while cluster.cores_leased < u64::from(NODES * NODE_CORES) {
            cluster.grant();
        }
        cluster
    }

    fn register(&mut self, node: u32, nodes: Nodes) {
        let (pool, rack) = match nodes {
            Nodes::Alike => (String::new(), String::new()),
            Nodes::InPoolsAndRacks => {
                (POOLS[node as usize % POOLS.len()].to_owned(), format!("rack-{}", node / RACK_NODES))
            }
        };
        let description = NodeDescription {
            name: format!("node-{node}"),
            agent: "unix:/agent".to_owned(),
            architecture: ARCHITECTURE.to_owned(),
            cores: NODE_CORES,
            memory_bytes: NODE_MEMORY_BYTES,
            pool,
            rack,
            ..NodeDescription::default()
        };
        let joining = Joining {
            description,
            instance: InstanceId(u128::from(node) + 1),
            generation: 1,
            leases: Vec::new(),
        };
        self.core.on_event(self.now_ms, CoreEvent::Register(Box::new(joining)), &mut self.out);
        for action in self.out.drain(..) {
            let CoreAction::Registered { node, registration, .. } = action else { panic!("{action:?}") };
            self.registered.insert(node, RegisteredNode { registration, sequence: 0 });
        }
    }

    /// Has the core decide one request; the actions are in `out`.
    fn request(&mut self) {
        self.requests += 1;
        let request = ClientRequest {
            id: RequestId(self.requests),
            tenant: self.tenant,
            standing: TokenStatus::Verified,
            pu: String::new(),
            package: self.package.clone(),
            terms: self.terms[self.requests as usize % self.terms.len()],
            locality: self.locality(),
            needs: Arc::default(),
            wait_ms: 0,
            refusals: Refusals::default(),
            application: None,
        };
        self.core.on_event(self.now_ms, CoreEvent::Request(Box::new(request)), &mut self.out);
    }

    /// Every other component has two neighbours that run already; each has a key.
    fn locality(&self) -> Locality {
        if !self.are_components {
            return Locality::default();
        }
        let (number, neighbour) = (self.requests, |node: u128| format!("node-{}", node % u128::from(NODES)));
        let near = if number.is_multiple_of(2) {
            vec![neighbour(number), neighbour(number * 7)]
        } else {
            Vec::new()
        };
        let warm = format!("application-{}/component-{}", number % 5_000, number % 7);
        Locality::of(&LeaseRequest { near, warm, ..LeaseRequest::default() }).expect("it is within limits")
    }

    fn grant(&mut self) {
        self.request();
        self.keep();
    }

    /// Notes the granted leases.
    fn keep(&mut self) {
        for action in self.out.drain(..) {
            let leases = match action {
                CoreAction::Granted { leases, .. } => leases,
                // Their places follow from their keys, so a node with as many free cores as the largest has may be missing.
                CoreAction::Refused { .. } if self.are_components => continue,
                action => panic!("{action:?}"),
            };
            for lease in leases {
                self.cores_leased +=
                    self.core.lease(lease).map_or(0, |lease| u64::from(lease.amount.workers));
                self.leases.push_back(lease);
            }
        }
    }

    /// Ends the oldest lease, and has the end reported, stored and acknowledged.
    fn end_oldest(&mut self) {
        let id = self.leases.pop_front().expect("a lease was granted before");
        let lease = self.core.lease(id).expect("a lease that has not ended is not forgotten");
        let (node, workers) = (lease.node, lease.amount.workers);
        self.cores_leased -= u64::from(workers);
        self.report(node, id);
        let saves: Vec<(LeaseId, u64)> = self
            .out
            .drain(..)
            .filter_map(|action| match action {
                CoreAction::Save { lease, revision } => Some((lease, revision)),
                _ => None,
            })
            .collect();
        for (lease, revision) in saves {
            self.core.on_event(self.now_ms, CoreEvent::Saved(lease, revision), &mut self.out);
        }
        self.report(node, id);
        self.out.clear();
    }

    fn report(&mut self, node: NodeKey, lease: LeaseId) {
        let known = self.registered.get_mut(&node).expect("every node has registered");
        known.sequence += 1;
        let usage = Usage { allocated_ns: 1_000_000, executing_ns: 500_000, calls: 1, ..Usage::default() };
        let ended = Some(ReportedEnd { code: 0, reason: String::new() });
        let report = AgentReport {
            node,
            registration: known.registration,
            sequence: known.sequence,
            answered: known.sequence - 1,
            clock_ms: self.now_ms,
            lending: LendingState::Open,
            leases: vec![LeaseReport { lease, usage, functions: Vec::new(), cold_imports: None, ended }],
            neighbours: 0,
        };
        self.core.on_event(self.now_ms, CoreEvent::Report(report), &mut self.out);
    }

    /// Returns the time that the requests take; their grants are given back in between, unmeasured.
    fn time_requests(&mut self, requests: u64) -> Duration {
        let mut took = Duration::ZERO;
        let mut left = requests;
        while left > 0 {
            let batch = left.min(BATCH);
            let before = self.leases.len();
            let started = Instant::now();
            (0..batch).for_each(|_| self.request());
            took += started.elapsed();
            self.keep();
            while self.leases.len() > before {
                self.end_oldest();
            }
            left -= batch;
        }
        took
    }
}

fn terms(cores: u32) -> LeaseTerms {
    LeaseTerms::of(&LeaseRequest { cores, max_nodes: 1, ..LeaseRequest::default() })
        .expect("the sizes are within limits")
}

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core/10000 nodes");
    group.throughput(Throughput::Elements(1));
    for (name, cluster) in [("empty", Cluster::new as fn() -> Cluster), ("nearly full", Cluster::nearly_full)]
    {
        let mut cluster = cluster();
        group.bench_function(format!("grant, {name}"), |bencher| {
            bencher.iter_custom(|requests| cluster.time_requests(requests));
        });
        group.bench_function(format!("whole life, {name}"), |bencher| {
            bencher.iter(|| {
                cluster.grant();
                cluster.end_oldest();
            });
        });
    }
    let in_racks = || Cluster::of(Nodes::InPoolsAndRacks);
    let clusters: [(&str, &dyn Fn() -> Cluster); 4] = [
        ("empty", &Cluster::new),
        ("nearly full", &Cluster::nearly_full),
        ("in pools and racks, empty", &in_racks),
        ("in pools and racks, nearly full", &|| in_racks().filled()),
    ];
    for (name, cluster) in clusters {
        let mut cluster = Cluster { are_components: true, ..cluster() };
        group.bench_function(format!("component, {name}"), |bencher| {
            bencher.iter_custom(|requests| cluster.time_requests(requests));
        });
    }
    let mut cluster = Cluster::full();
    group.bench_function("refusal, full", |bencher| {
        bencher.iter(|| {
            cluster.request();
            black_box(cluster.out.pop())
        });
    });
    group.finish();
}

/// Times the decision on the sets of a run that competes with others, 1,000 candidates in all, for a pool that is full.
/// It is to take less than 100 ms.
fn aggregation(criterion: &mut Criterion) {
    let amount = |cores, gib: u64| Amount { cores, memory_bytes: gib << 30 };
    let set = |number: u64| CommunicatingSet {
        moved_bytes: number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24,
        compute: amount(1 + number % 7, 1 + number % 5),
        memory_bytes: (1 + number % 11) << 30,
        is_mapped: number.is_multiple_of(10),
    };
    let sets: Vec<CommunicatingSet> = (0..1000).map(set).collect();
    let pools = PoolResources {
        balanced_lent: amount(4000, 16_000),
        balanced_leased: amount(4000, 16_000),
        compute_free: amount(2000, 3000),
        memory_free: amount(0, 8000),
    };
    let mut group = criterion.benchmark_group("aggregation");
    group.bench_function("1,000 candidates", |bencher| {
        bencher.iter(|| decide(black_box(&sets[..10]), &sets[10..], &pools, 700));
    });
    group.finish();
}

criterion_group!(benches, decisions, aggregation);
criterion_main!(benches);
