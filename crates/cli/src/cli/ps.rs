//! `sublet ps`: shows nodes, leases, packages and managers.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use sublet_proto::Error;
use sublet_proto::text::printable_line;

use super::ConnectionArguments;
use super::output::{CommandOutput, table};
use super::parse::{show_bytes, show_ns};
use super::time::now_ms;
use super::view::{
    CacheView, ColdImportsView, EnvironmentView, LeaseView, ManagerView, NetworkView, NodeView, PackageView,
    StandbyView, WEAK_ISOLATION,
};

const EXAMPLES: &str = "\
Examples:
  sublet ps           show nodes, leases, packages and managers
  sublet ps --all     show also ended leases
  sublet ps --nodes   show only nodes, with their addresses and fabrics
  sublet ps --json    {\"nodes\": [...], \"leases\": [...], \"packages\": [...], \"managers\": [...]}

The state of a node is lending, draining (no new leases), reclaimed (withdrawn), or lost (no report for too long).
Its pool is compute, memory or balanced, as its agent says or by its free cores and memory, or flash: its memory is then
part of a disk.";

/// Number of functions of a package that its row names.
const FUNCTIONS_SHOWN: usize = 3;

/// Show nodes, leases, packages and managers
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Show also ended leases
    #[arg(long, conflicts_with = "nodes")]
    all: bool,

    /// Show only nodes, with their addresses and fabrics
    #[arg(long)]
    nodes: bool,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Output without `--nodes`.
#[derive(Debug, Serialize)]
struct Everything {
    nodes: Vec<NodeView>,
    leases: Vec<LeaseView>,
    packages: Vec<PackageView>,
    environments: Vec<EnvironmentView>,
    managers: Vec<ManagerView>,
}

/// Output with `--nodes`.
#[derive(Debug, Serialize)]
struct NodesOutput {
    nodes: Vec<NodeView>,
}

/// Prints the state of the managers as tables or JSON.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let manager = arguments.connection.open()?;
    if arguments.nodes {
        let nodes = NodesOutput { nodes: manager.nodes()?.into_iter().map(NodeView::from).collect() };
        return output.show(&nodes, nodes_text);
    }
    let leases = if arguments.all { manager.leases_with_ended()? } else { manager.leases()? };
    let (environments, packages): (Vec<_>, Vec<_>) =
        manager.packages()?.into_iter().partition(|package| package.is_environment());
    let everything = Everything {
        nodes: manager.nodes()?.into_iter().map(NodeView::from).collect(),
        leases: leases.into_iter().map(LeaseView::from).collect(),
        packages: packages.into_iter().map(PackageView::from).collect(),
        environments: environments.into_iter().map(EnvironmentView::from).collect(),
        managers: manager.managers()?.into_iter().map(ManagerView::from).collect(),
    };
    let now_ms = now_ms();
    output.show(&everything, |everything| text(everything, now_ms))
}

fn text(everything: &Everything, now_ms: u64) -> String {
    let Everything { nodes, leases, packages, environments, managers } = everything;
    let notes_on_nodes = missing_shares(nodes) + &weak_isolation(nodes) + &on_standby(nodes);
    let nodes: Vec<_> = nodes.iter().map(|node| node_row(node, now_ms)).collect();
    let notes = cold_imports(leases);
    let lease_rows: Vec<_> = leases.iter().map(|lease| lease_row(lease, environments, now_ms)).collect();
    let has_environments = leases.iter().any(|lease| !lease.environment.is_empty());
    let packages: Vec<_> = packages.iter().map(package_row).collect();
    let mut tables = vec![
        table(
            &[
                "NODE",
                "STATE",
                "POOL",
                "RACK",
                "ARCHITECTURE",
                "CORES LEASED",
                "SHARED LEASED",
                "MEMORY LEASED",
                "LAST REPORT",
                "VERSION",
            ],
            &nodes,
        ) + &notes_on_nodes,
        lease_table(&lease_rows, has_environments) + &notes,
        table(&["PACKAGE", "OWNER", "SIZE", "FOR", "DIGEST", "FUNCTIONS"], &packages),
    ];
    // A table of a single manager would tell the user nothing new.
    if managers.len() > 1 {
        let managers: Vec<_> = managers.iter().map(|manager| manager_row(manager, now_ms)).collect();
        tables.push(table(&["MANAGER", "OF", "NODES", "CORES FREE", "WAITING", "LAST SEEN"], &managers));
    }
    tables.join("\n")
}

/// Returns a line for each node whose shared cores are not shared by weight.
fn missing_shares(nodes: &[NodeView]) -> String {
    let nodes = nodes.iter().filter(|node| node.shared_cores > 0 && !node.has_core_shares);
    let lines = nodes.map(|node| {
        let line = format!(
            "{} has no cpu controller: a lease with many processes slows the others on its shared core",
            node.name
        );
        format!("{}\n", printable_line(&line))
    });
    lines.collect()
}

/// Returns a line for each node whose functions have no namespaces.
fn weak_isolation(nodes: &[NodeView]) -> String {
    let weak = nodes.iter().filter(|node| node.is_weak());
    weak.map(|node| format!("{}\n", printable_line(&format!("{}: {WEAK_ISOLATION}", node.name)))).collect()
}

/// Returns a line for each set of modules with which processes of a node wait.
fn on_standby(nodes: &[NodeView]) -> String {
    let kept = nodes.iter().flat_map(|node| node.standby.iter().map(move |standby| (&node.name, standby)));
    let lines = kept.map(|(node, StandbyView { modules, waiting, importing, memory_bytes, tenant })| {
        let plural = if *waiting == 1 { "process waits" } else { "processes wait" };
        let more = if *importing > 0 { format!(", {importing} more in preparation") } else { String::new() };
        let bytes = show_bytes(*memory_bytes);
        let of = if tenant.is_empty() { String::new() } else { format!(" of {tenant}") };
        let line =
            format!("{node}: {waiting} {plural} for leases{of} with {modules} imported{more} ({bytes})");
        format!("{}\n", printable_line(&line))
    });
    lines.collect()
}

/// Returns a line for each module that a node cannot keep warm for the leases.
fn cold_imports(leases: &[LeaseView]) -> String {
    let cold = leases.iter().filter_map(|lease| Some((&lease.node, lease.cold_imports.as_ref()?)));
    let lines = cold.map(|(node, ColdImportsView { module, reason, import_ms })| {
        let time = if *import_ms > 0 { format!(" ({import_ms} ms)") } else { String::new() };
        let line = format!(
            "{node} cannot keep {module} warm, because importing it {reason}: each lease imports it anew"
        );
        ((node, module, reason), format!("{}{time}\n", printable_line(&line)))
    });
    lines.collect::<BTreeMap<_, _>>().into_values().collect()
}

fn nodes_text(NodesOutput { nodes }: &NodesOutput) -> String {
    let rows: Vec<_> = nodes.iter().map(reach_row).collect();
    table(&["NODE", "STATE", "ADDRESS", "FABRICS", "CACHE", "AGENT", "VERSION"], &rows) + &on_standby(nodes)
}

/// Returns the version of a node's agent.
fn version(node: &NodeView) -> String {
    if node.version.is_empty() { "-".to_owned() } else { node.version.clone() }
}

fn reach_row(node: &NodeView) -> [String; 7] {
    let none = || "-".to_owned();
    let fabrics = |network: &NetworkView| match network.encrypted {
        true => format!("{}, encrypted over tcp", network.fabrics.join(", ")),
        false => network.fabrics.join(", "),
    };
    [
        node.name.clone(),
        node.state.to_owned(),
        node.network.as_ref().map_or_else(none, |network| network.address.clone()),
        node.network.as_ref().map_or_else(none, fabrics),
        node.cache.as_ref().map_or_else(none, cache),
        node.agent.clone(),
        version(node),
    ]
}

fn cache(cache: &CacheView) -> String {
    format!("{} of {}", show_bytes(cache.used_bytes), show_bytes(cache.limit_bytes))
}

fn manager_row(manager: &ManagerView, now_ms: u64) -> [String; 6] {
    [
        manager.address.clone(),
        if manager.global { "all racks" } else { "a rack" }.to_owned(),
        manager.nodes.to_string(),
        manager.cores_free.to_string(),
        manager.waiting.to_string(),
        format!("{} ago", seconds(now_ms.saturating_sub(manager.last_seen_unix_ms))),
    ]
}

fn node_row(node: &NodeView, now_ms: u64) -> [String; 10] {
    [
        node.name.clone(),
        node.state.to_owned(),
        node.pool.clone(),
        node.rack.clone().unwrap_or_else(|| "-".to_owned()),
        // The kinds of packages that this node can run.
        [std::slice::from_ref(&node.architecture), &node.devices, &node.runtimes].concat().join(", "),
        format!("{} of {}", node.cores_leased, node.cores),
        shared(node),
        format!("{} of {}", show_bytes(node.memory_leased_bytes), show_bytes(node.memory_bytes)),
        format!("{} ago", seconds(now_ms.saturating_sub(node.last_report_unix_ms))),
        version(node),
    ]
}

/// Describes the use of shared cores: workers, their limit, and the number of cores.
fn shared(node: &NodeView) -> String {
    match node.shared_places {
        0 => "-".to_owned(),
        places => format!("{} of {places} on {}", node.shared_leased, node.shared_cores),
    }
}

/// Returns the table of leases, with their environments if any has one.
fn lease_table(rows: &[[String; 9]], has_environments: bool) -> String {
    let headings = ["LEASE", "PACKAGE", "NODE", "CORES", "MEMORY", "STATE", "ENDS", "CALLS", "ENVIRONMENT"];
    let shown = if has_environments { headings.len() } else { headings.len() - 1 };
    let rows: Vec<_> = rows.iter().map(|row| row[..shown].to_vec()).collect();
    table(&headings[..shown], &rows)
}

/// Returns the name of a lease's environment, or the beginning of its digest if the name is not known.
fn environment_of(lease: &LeaseView, environments: &[EnvironmentView]) -> String {
    const SHOWN: usize = "sha256:".len() + 12;
    let known = environments.iter().find(|environment| environment.digest == lease.environment);
    match (known, lease.environment.as_str()) {
        (Some(environment), _) => environment.name.clone(),
        (None, "") => "-".to_owned(),
        (None, digest) => digest.chars().take(SHOWN).collect(),
    }
}

fn lease_row(lease: &LeaseView, environments: &[EnvironmentView], now_ms: u64) -> [String; 9] {
    let ends = if lease.end_reason.is_empty() {
        format!("in {}", seconds(lease.expires_unix_ms.saturating_sub(now_ms)))
    } else {
        lease.end_reason.clone()
    };
    [
        lease.id.clone(),
        lease.shown_package(),
        lease.node.clone(),
        if lease.shared { format!("{} shared", lease.cores) } else { lease.cores.to_string() },
        show_bytes(lease.memory_bytes),
        lease.state.to_owned(),
        ends,
        lease.usage.calls.to_string(),
        environment_of(lease, environments),
    ]
}

fn package_row(package: &PackageView) -> [String; 6] {
    let mut functions = package.functions.iter().take(FUNCTIONS_SHOWN).cloned().collect::<Vec<_>>().join(" ");
    if package.functions.len() > FUNCTIONS_SHOWN {
        functions += &format!(" and {} more", package.functions.len() - FUNCTIONS_SHOWN);
    }
    let (name, owner) = (package.name.clone(), package.owner.clone());
    [name, owner, show_bytes(package.size_bytes), package.architectures(), package.short_digest(), functions]
}

fn seconds(ms: u64) -> String {
    show_ns(ms.saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use sublet_proto::v1;

    use super::*;

    #[test]
    fn shows_processes_on_standby_with_their_memory() {
        let of = |modules: &str, waiting, importing, memory_bytes| v1::StandbyProcesses {
            modules: modules.to_owned(),
            waiting,
            importing,
            memory_bytes,
            tenant: String::new(),
        };
        let owned = v1::StandbyProcesses { tenant: "alice".to_owned(), ..of("beta", 1, 0, 2 << 20) };
        let node = NodeView::from(v1::NodeInfo {
            description: Some(v1::NodeDescription { name: "n".to_owned(), ..Default::default() }),
            standby: vec![of("torch", 2, 0, 3 << 20), of("polars\n", 1, 1, 1 << 20), owned],
            ..Default::default()
        });
        assert_eq!(
            on_standby(&[node]),
            "n: 2 processes wait for leases with torch imported (3 MiB)\n\
             n: 1 process waits for leases with polars\\x0a imported, 1 more in preparation (1 MiB)\n\
             n: 1 process waits for leases of alice with beta imported (2 MiB)\n"
        );
    }

    #[test]
    fn shows_each_cold_import_once_in_one_line() {
        let lease = |node: &str, reason: &str, import_ms| {
            let cold = v1::ColdImports { module: "m".to_owned(), reason: reason.to_owned(), import_ms };
            LeaseView::from(v1::Lease {
                node: node.to_owned(),
                cold_imports: Some(cold),
                ..v1::Lease::default()
            })
        };
        let reason = "fails\nwith \x1b[2J";
        let leases = [lease("a", reason, 5), lease("a", reason, 6), lease("b", reason, 0)];
        let text = cold_imports(&leases);
        let said =
            "cannot keep m warm, because importing it fails\\x0awith \\x1b[2J: each lease imports it anew";
        assert_eq!(text, format!("a {said} (6 ms)\nb {said}\n"));
    }
}
