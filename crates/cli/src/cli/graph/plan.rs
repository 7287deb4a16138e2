//! `sublet graph plan`: shows which components of a deployed graph its next run would place on one node, and why.

use clap::Args;
use serde::Serialize;
use sublet_proto::Error;
use sublet_proto::v1::{PlannedSet, RunPlan};

use crate::cli::ConnectionArguments;
use crate::cli::output::{CommandOutput, table};
use crate::cli::parse::show_bytes;

/// Show which components of a graph its next run would place together, and why
#[derive(Debug, Args)]
pub(super) struct PlanArguments {
    /// The name of a deployed graph
    name: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Plan of a run.
#[derive(Serialize)]
struct PlanView {
    graph: String,
    digest: String,
    /// Number of earlier runs that were considered.
    runs: u32,
    /// Method of the decision: exact or greedy.
    method: &'static str,
    /// Part of the balanced pool that may be leased before components are left apart.
    watermark: f64,
    /// Resources of the balanced pool.
    balanced: PoolView,
    sets: Vec<SetView>,
}

#[derive(Serialize)]
struct PoolView {
    cores: u64,
    cores_leased: u64,
    memory_bytes: u64,
    memory_leased_bytes: u64,
}

/// Components that communicate with each other.
#[derive(Serialize)]
struct SetView {
    components: Vec<String>,
    /// Decision: together, apart, or beside, if no node has enough free for all of them.
    placement: &'static str,
    /// Node for all of them.
    node: Option<String>,
    /// Bytes that they moved in an earlier run, on average.
    moved_bytes: u64,
    /// Maximum of the cores and of the memory that they had leased at a time.
    cores: u64,
    memory_bytes: u64,
    why: &'static str,
}

/// Shows the plan.
pub(super) fn run(arguments: &PlanArguments, output: &CommandOutput) -> Result<(), Error> {
    let planned = arguments.connection.open()?.plan_run(&arguments.name)?;
    let plan = planned.plan.unwrap_or_default();
    output.show(&view(planned.graph, planned.digest, plan), text)
}

fn view(graph: String, digest: String, plan: RunPlan) -> PlanView {
    PlanView {
        graph,
        digest,
        runs: plan.runs,
        method: if plan.is_greedy { "greedy" } else { "exact" },
        watermark: f64::from(plan.watermark_permille) / 1000.0,
        balanced: PoolView {
            cores: plan.balanced_cores,
            cores_leased: plan.balanced_cores_leased,
            memory_bytes: plan.balanced_memory_bytes,
            memory_leased_bytes: plan.balanced_memory_leased_bytes,
        },
        sets: plan.sets.into_iter().map(set_view).collect(),
    }
}

fn set_view(set: PlannedSet) -> SetView {
    let (placement, why) = match (set.is_apart, set.node.is_empty(), set.is_mapped) {
        (true, ..) => ("apart", "the balanced pool is beyond its watermark, and they communicate least"),
        (false, true, _) => ("beside", "no node of the balanced pool has enough free for all of them"),
        (false, false, true) => ("together", "their functions map memory"),
        (false, false, false) => ("together", "they communicate, and the balanced pool has space"),
    };
    SetView {
        components: set.components,
        placement,
        node: (!set.node.is_empty()).then_some(set.node),
        moved_bytes: set.moved_bytes,
        cores: set.cores,
        memory_bytes: set.memory_bytes,
        why,
    }
}

fn text(plan: &PlanView) -> String {
    if plan.sets.is_empty() {
        return format!(
            "no plan for {}: no earlier run that succeeded has moved data between components",
            plan.graph
        );
    }
    let row = |set: &SetView| {
        [
            set.components.join(", "),
            set.placement.to_owned(),
            set.node.clone().unwrap_or_default(),
            show_bytes(set.moved_bytes),
            set.cores.to_string(),
            show_bytes(set.memory_bytes),
            set.why.to_owned(),
        ]
    };
    let headings = ["COMPONENTS", "PLACED", "NODE", "MOVED", "CORES", "MEMORY", "WHY"];
    let sets = table(&headings, &plan.sets.iter().map(row).collect::<Vec<_>>());
    let PoolView { cores, cores_leased, memory_bytes, memory_leased_bytes } = plan.balanced;
    format!(
        "{}: after {} earlier {}, {} decision\nbalanced pool: {cores_leased} of {cores} cores and {} of {} leased, \
         watermark {}\n{sets}",
        plan.graph,
        plan.runs,
        if plan.runs == 1 { "run" } else { "runs" },
        plan.method,
        show_bytes(memory_leased_bytes),
        show_bytes(memory_bytes),
        plan.watermark,
    )
}
