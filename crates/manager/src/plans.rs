//! Plans a run before it begins: which of its components are placed on one node, and on which, by the communication of
//! earlier runs of its graph (Scad 4.3.2 and 4.3.3). The decision itself is [`decide`].
//!
//! A plan is a preference. Components whose node is full by then are placed as without a plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sublet_proto::pool::Pool;
use sublet_proto::v1::{ComponentUse, PlannedSet, RunInfo, RunPlan, Traffic};

use crate::core::{Amount, CommunicatingSet, Core, Decision, Level, ManagedNode, PoolResources, decide};

/// Number of earlier runs of a version of a graph that are considered.
pub(crate) const HISTORY_RUNS: usize = 8;
/// Most runs that are known as running together. Beyond them, the oldest are forgotten.
const MAX_RUNNING: usize = 1024;

/// See the [module](self).
pub(crate) struct RunPlans {
    watermark_permille: u32,
    /// Whether the manager has nodes of its own. The level above racks knows no single nodes.
    has_nodes: bool,
    /// The sets that run together, by the run, whose identifiers sort by time.
    running: Mutex<BTreeMap<String, Vec<CommunicatingSet>>>,
}

/// A node as plans see it.
#[derive(Clone, Debug)]
pub(crate) struct PlanNode {
    name: String,
    pool: Pool,
    lent: Amount,
    free: Amount,
}

/// Components that have communicated in earlier runs.
#[derive(Debug)]
struct MeasuredSet {
    components: Vec<String>,
    set: CommunicatingSet,
}

impl RunPlans {
    pub(crate) fn new(watermark_permille: u32, level: Level) -> RunPlans {
        RunPlans { watermark_permille, has_nodes: level == Level::Rack, running: Mutex::default() }
    }

    /// The nodes that take leases.
    pub(crate) fn nodes(core: &Core) -> Vec<PlanNode> {
        let seen = |node: &ManagedNode| {
            let free = node.free();
            PlanNode {
                name: node.name.to_string(),
                pool: node.pool,
                lent: Amount { cores: node.capacity.cores.into(), memory_bytes: node.capacity.memory_bytes },
                free: Amount { cores: free.cores.into(), memory_bytes: free.memory_bytes },
            }
        };
        core.nodes().filter(|node| node.takes_leases()).map(seen).collect()
    }

    /// Plans a run after these runs of its graph. `None` if they have moved no data between components.
    pub(crate) fn plan(&self, runs: &[RunInfo], mut nodes: Vec<PlanNode>) -> Option<RunPlan> {
        let measured = if self.has_nodes { measure(runs) } else { Vec::new() };
        if measured.is_empty() {
            return None;
        }
        let sets: Vec<CommunicatingSet> = measured.iter().map(|measured| measured.set).collect();
        let running: Vec<CommunicatingSet> = self.running().values().flatten().copied().collect();
        let pools = resources(&nodes);
        let Decision { is_apart, is_exact, .. } = decide(&sets, &running, &pools, self.watermark_permille);
        let planned =
            measured.into_iter().zip(is_apart).map(|(MeasuredSet { components, set }, is_apart)| {
                let node = if is_apart { None } else { take_node(&mut nodes, set.all()) };
                PlannedSet {
                    components,
                    is_apart,
                    node: node.unwrap_or_default(),
                    moved_bytes: set.moved_bytes,
                    cores: set.all().cores,
                    memory_bytes: set.all().memory_bytes,
                    is_mapped: set.is_mapped,
                }
            });
        Some(RunPlan {
            sets: planned.collect(),
            is_greedy: !is_exact,
            watermark_permille: self.watermark_permille,
            balanced_cores: pools.balanced_lent.cores,
            balanced_cores_leased: pools.balanced_leased.cores,
            balanced_memory_bytes: pools.balanced_lent.memory_bytes,
            balanced_memory_leased_bytes: pools.balanced_leased.memory_bytes,
            runs: u32::try_from(runs.len()).unwrap_or(u32::MAX),
        })
    }

    /// A run with this plan has begun.
    pub(crate) fn begin(&self, run: &str, plan: &RunPlan) {
        let together = plan.sets.iter().filter(|planned| !planned.is_apart && !planned.node.is_empty());
        let set = |planned: &PlannedSet| CommunicatingSet {
            moved_bytes: planned.moved_bytes,
            compute: Amount { cores: planned.cores, memory_bytes: planned.memory_bytes },
            memory_bytes: 0,
            is_mapped: planned.is_mapped,
        };
        let sets: Vec<CommunicatingSet> = together.map(set).collect();
        let mut running = self.running();
        if !sets.is_empty() {
            running.insert(run.to_owned(), sets);
        }
        while running.len() > MAX_RUNNING {
            running.pop_first();
        }
    }

    /// A run has ended.
    pub(crate) fn end(&self, run: &str) {
        self.running().remove(run);
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<String, Vec<CommunicatingSet>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The resources of each pool.
fn resources(nodes: &[PlanNode]) -> PoolResources {
    let mut pools = PoolResources::default();
    for PlanNode { pool, lent, free, .. } in nodes {
        match pool {
            Pool::Compute => pools.compute_free = pools.compute_free.plus(*free),
            Pool::Memory => pools.memory_free = pools.memory_free.plus(*free),
            Pool::Balanced => {
                pools.balanced_lent = pools.balanced_lent.plus(*lent);
                pools.balanced_leased = pools.balanced_leased.plus(lent.minus(*free));
            }
            // A plan places nothing on disks.
            Pool::Flash => {}
        }
    }
    pools
}

/// Takes an amount of the node of the balanced pool that has least more, and returns its name.
fn take_node(nodes: &mut [PlanNode], amount: Amount) -> Option<String> {
    let fits = nodes.iter_mut().filter(|node| node.pool == Pool::Balanced && node.free.has(amount));
    let node = fits.min_by_key(|node| (node.free.cores, node.free.memory_bytes))?;
    node.free = node.free.minus(amount);
    Some(node.name.clone())
}

/// Sets of components that have moved data between them, with what they moved and used.
fn measure(runs: &[RunInfo]) -> Vec<MeasuredSet> {
    let pairs = runs.iter().flat_map(|run| &run.components).flat_map(channels);
    let mut sets: Vec<BTreeSet<&str>> = Vec::new();
    for (component, memory, traffic) in pairs {
        if moved(traffic) == 0 {
            continue;
        }
        let mut joined = BTreeSet::from([component, memory]);
        sets.retain(|set| {
            let is_other = !set.contains(component) && !set.contains(memory);
            if !is_other {
                joined.extend(set);
            }
            is_other
        });
        sets.push(joined);
    }
    sets.sort();
    sets.iter().map(|names| measure_set(runs, names)).collect()
}

fn measure_set(runs: &[RunInfo], names: &BTreeSet<&str>) -> MeasuredSet {
    let mut set = CommunicatingSet::default();
    let mut moved_bytes = 0_u64;
    for run in runs {
        let members: Vec<&ComponentUse> = run
            .components
            .iter()
            .filter(|used| used.attempts > 0 && names.contains(used.component.as_str()))
            .collect();
        for (_, _, traffic) in members.iter().copied().flat_map(channels) {
            moved_bytes = moved_bytes.saturating_add(moved(traffic));
            set.is_mapped |= traffic.maps > 0;
        }
        let (compute, memory_bytes) = most_at_a_time(&members);
        set.compute.cores = set.compute.cores.max(compute.cores);
        set.compute.memory_bytes = set.compute.memory_bytes.max(compute.memory_bytes);
        set.memory_bytes = set.memory_bytes.max(memory_bytes);
    }
    set.moved_bytes = moved_bytes / u64::try_from(runs.len().max(1)).unwrap_or(u64::MAX);
    MeasuredSet { components: names.iter().map(|name| (*name).to_owned()).collect(), set }
}

/// The memory components with which a component has communicated.
fn channels(used: &ComponentUse) -> impl Iterator<Item = (&str, &str, Traffic)> {
    let name = used.component.as_str();
    used.channels
        .iter()
        .map(move |channel| (name, channel.memory.as_str(), channel.traffic.unwrap_or_default()))
}

fn moved(traffic: Traffic) -> u64 {
    let copied = traffic.read_bytes.saturating_add(traffic.written_bytes);
    copied.saturating_add(traffic.mapped_bytes)
}

/// The most that compute components, and memory components, had leased at a time. Components that followed each other
/// are not added up.
fn most_at_a_time(members: &[&ComponentUse]) -> (Amount, u64) {
    let (mut compute, mut memory_bytes) = (Amount::default(), 0);
    for begin_us in members.iter().map(|used| used.begin_us) {
        let (mut now, mut memory_now) = (Amount::default(), 0_u64);
        let runs = |used: &&&ComponentUse| {
            used.begin_us == begin_us || (used.begin_us < begin_us && begin_us < used.end_us)
        };
        for used in members.iter().filter(runs) {
            if used.instances == 0 {
                memory_now = memory_now.saturating_add(used.allocated_bytes);
                continue;
            }
            let cores = if used.cores == 0 { used.instances } else { used.cores };
            now = now.plus(Amount { cores: cores.into(), memory_bytes: used.allocated_bytes });
        }
        compute.cores = compute.cores.max(now.cores);
        compute.memory_bytes = compute.memory_bytes.max(now.memory_bytes);
        memory_bytes = memory_bytes.max(memory_now);
    }
    (compute, memory_bytes)
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1::ChannelUse;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn used(component: &str, instances: u32, (begin_us, end_us): (u64, u64)) -> ComponentUse {
        ComponentUse {
            component: component.into(),
            attempts: 1,
            instances,
            cores: instances,
            begin_us,
            end_us,
            allocated_bytes: MIB,
            ..ComponentUse::default()
        }
    }

    fn moves(of: ComponentUse, memory: &str, written_bytes: u64) -> ComponentUse {
        let traffic = Some(Traffic { writes: 1, written_bytes, ..Traffic::default() });
        ComponentUse { channels: vec![ChannelUse { memory: memory.into(), traffic }], ..of }
    }

    /// A run of two components that follow each other and share memory, and of one beside them.
    fn run(bytes: u64) -> RunInfo {
        let components = vec![
            moves(used("first", 2, (0, 10)), "shared", bytes),
            moves(used("second", 1, (10, 20)), "shared", bytes),
            used("shared", 0, (0, 20)),
            moves(used("other", 1, (0, 30)), "own", 1),
            used("own", 0, (0, 30)),
            used("silent", 5, (0, 30)),
        ];
        RunInfo { components, ..RunInfo::default() }
    }

    fn node(name: &str, pool: Pool, cores: u64, free: u64) -> PlanNode {
        let amount = |cores| Amount { cores, memory_bytes: cores * 1024 * MIB };
        PlanNode { name: name.into(), pool, lent: amount(cores), free: amount(free) }
    }

    #[test]
    fn sets_have_what_they_moved_and_used_at_a_time() {
        let sets = measure(&[run(1000), run(3000)]);
        let [shared, own] = sets.as_slice() else { panic!("{sets:?}") };
        assert_eq!(shared.components, ["first", "second", "shared"]);
        assert_eq!(own.components, ["other", "own"]);
        let compute = Amount { cores: 2, memory_bytes: MIB };
        let expected = CommunicatingSet { moved_bytes: 4000, compute, memory_bytes: MIB, is_mapped: false };
        assert_eq!(shared.set, expected);
        assert!(measure(&[run(0)]).iter().all(|set| set.components == ["other", "own"]));
        assert!(measure(&[]).is_empty());
        let most = measure(&[run(u64::MAX), run(u64::MAX)]);
        assert_eq!(most[0].set.moved_bytes, u64::MAX / 2);
    }

    #[test]
    fn sets_run_together_on_smallest_sufficient_node() {
        let plans = RunPlans::new(700, Level::Rack);
        let nodes = || {
            vec![
                node("small", Pool::Balanced, 1, 1),
                node("large", Pool::Balanced, 8, 8),
                node("right", Pool::Balanced, 2, 2),
                node("compute", Pool::Compute, 8, 8),
                node("memory", Pool::Memory, 8, 8),
            ]
        };
        let plan = plans.plan(&[run(1000)], nodes()).unwrap();
        let nodes_of = |plan: &RunPlan| plan.sets.iter().map(|set| set.node.clone()).collect::<Vec<_>>();
        assert_eq!(nodes_of(&plan), ["right", "small"]);
        assert!((plan.balanced_cores, plan.balanced_cores_leased, plan.is_greedy) == (11, 0, false));
        // A run is in progress that communicates more, and fills the pool up to its watermark.
        plans.begin("01", &RunPlan { sets: vec![together(u64::MAX / 2, 7)], ..RunPlan::default() });
        let busy = || nodes().into_iter().map(|of| PlanNode { free: leave(&of), ..of }).collect::<Vec<_>>();
        let plan = plans.plan(&[run(1000)], busy()).unwrap();
        assert_eq!(plan.sets.iter().map(|set| set.is_apart).collect::<Vec<_>>(), [true, true]);
        assert_eq!(nodes_of(&plan), ["", ""]);
        plans.end("01");
        assert!(plans.running().is_empty());
        assert!(RunPlans::new(700, Level::Global).plan(&[run(1000)], nodes()).is_none());
        assert!(plans.plan(&[], nodes()).is_none());
    }

    fn together(moved_bytes: u64, cores: u64) -> PlannedSet {
        PlannedSet { moved_bytes, cores, memory_bytes: MIB, node: "large".into(), ..PlannedSet::default() }
    }

    /// Free resources when 7 cores of the large node are leased.
    fn leave(node: &PlanNode) -> Amount {
        let leased = if node.name == "large" { 7 } else { 0 };
        node.free.minus(Amount { cores: leased, memory_bytes: 0 })
    }

    #[test]
    fn runs_beyond_the_bound_are_forgotten() {
        let plans = RunPlans::new(700, Level::Rack);
        let plan = RunPlan { sets: vec![together(1, 1)], ..RunPlan::default() };
        (0..MAX_RUNNING + 5).for_each(|run| plans.begin(&format!("{run:05}"), &plan));
        let running = plans.running();
        assert_eq!(running.len(), MAX_RUNNING);
        assert_eq!(running.first_key_value().map(|(run, _)| run.as_str()), Some("00005"));
    }
}
