//! `sublet graph history`: shows past runs, what their components used, and their memory over time.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use sublet_proto::v1::{self, ComponentState, RunInfo};
use sublet_proto::{Code, Error};

use super::documents::write_svg;
use super::plot::{self, MemoryPoint};
use crate::cli::ConnectionArguments;
use crate::cli::output::{CommandOutput, table};
use crate::cli::parse::{show_bytes, show_ns};
use crate::cli::time::show_moment;

/// Show runs, or one run with its components and its memory over time
#[derive(Debug, Args)]
pub(super) struct HistoryArguments {
    /// The name of a graph, or the identifier of a run [default: runs of all graphs]
    name: Option<String>,

    /// Number of runs to show, the newest first
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: u32,

    /// Draw the memory of the run as SVG into this file, or - for standard output
    #[arg(long, value_name = "FILE", requires = "name")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// A run as the command shows it.
#[derive(Serialize)]
pub(super) struct RunSummary {
    pub(super) run: String,
    pub(super) graph: String,
    digest: String,
    pub(super) began_unix_ms: u64,
    /// Time of the end; none while the run continues or after its client is gone.
    ended_unix_ms: Option<u64>,
    /// Error of a failed run.
    error: Option<FailureView>,
    /// Whether a runner drives the run, and not a client.
    detached: bool,
    /// Process that drives the run, if one does; as of the latest time that it has taken the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    runner: Option<String>,
    /// Packages of the components at the start of the run.
    packages: Vec<RunPackageView>,
    pub(super) components: Vec<ComponentUse>,
    /// Time of the report behind `components`, for a run that continues.
    pub(super) reported_unix_ms: Option<u64>,
    /// Memory over time, if the command shows a single run.
    #[serde(skip_serializing_if = "Option::is_none")]
    points: Option<Vec<MemoryPoint>>,
}

#[derive(Serialize)]
struct FailureView {
    code: &'static str,
    message: String,
}

/// A package of a run's components.
#[derive(Serialize)]
struct RunPackageView {
    /// Name of the package in the graph.
    package: String,
    /// Digest of the package that the run leases.
    pinned: String,
}

/// Resources of a component of a run.
#[derive(Debug, Serialize)]
pub(super) struct ComponentUse {
    pub(super) component: String,
    /// State at the time of the report: waiting, running or done.
    pub(super) state: Option<&'static str>,
    /// Number of executions, or of allocations of memory.
    attempts: u32,
    /// Number of instances of a compute component; 0 for memory.
    pub(super) instances: u32,
    /// Cores of all instances of a compute component; 0 for memory.
    pub(super) cores: u32,
    /// Start of the component, counted from the start of the run.
    begin_us: u64,
    end_us: u64,
    /// Maximum of leased memory.
    allocated_bytes: u64,
    used_bytes: u64,
    allocated_byte_us: u64,
    used_byte_us: u64,
    /// Leased memory at the time of the report.
    pub(super) allocated_now_bytes: u64,
    pub(super) used_now_bytes: u64,
    /// Nodes that execute or hold the component, or did so last.
    pub(super) nodes: Vec<String>,
    /// Name of the component of the same run that this one waits for.
    pub(super) waits_for: Option<String>,
    /// Segments of memory that the workers had joined when the component started.
    joined_ahead: u32,
    /// Processor time of the component's sandboxes.
    cpu_ns: u64,
    /// Data that the functions of a compute component moved, for each memory component and each message edge.
    channels: Vec<ChannelUse>,
}

/// Data that a compute component moved to and from a memory component.
#[derive(Debug, Serialize)]
struct ChannelUse {
    /// Name of the memory component; "a~b" for the messages of the edge from a to b; "c/swap" for the swap space of c.
    memory: String,
    reads: u64,
    read_bytes: u64,
    writes: u64,
    written_bytes: u64,
    /// Number of requests for addresses of mapped memory.
    maps: u64,
    /// Bytes whose addresses were handed out. Accesses through an address are not counted.
    mapped_bytes: u64,
}

/// Converts the managers' records for output.
pub(super) fn component_uses(uses: &[v1::ComponentUse]) -> Vec<ComponentUse> {
    let shown = |used: &v1::ComponentUse| ComponentUse {
        component: used.component.clone(),
        state: state(used.state()),
        attempts: used.attempts,
        instances: used.instances,
        // A record of an earlier version has an instance for each core.
        cores: if used.cores == 0 { used.instances } else { used.cores },
        begin_us: used.begin_us,
        end_us: used.end_us,
        allocated_bytes: used.allocated_bytes,
        used_bytes: used.used_bytes,
        allocated_byte_us: used.allocated_byte_us,
        used_byte_us: used.used_byte_us,
        allocated_now_bytes: used.allocated_now_bytes,
        used_now_bytes: used.used_now_bytes,
        nodes: used.nodes.clone(),
        waits_for: (!used.waits_for.is_empty()).then(|| used.waits_for.clone()),
        joined_ahead: used.joined_ahead,
        cpu_ns: used.cpu_ns,
        channels: used.channels.iter().map(channel_use).collect(),
    };
    uses.iter().map(shown).collect()
}

fn channel_use(channel: &v1::ChannelUse) -> ChannelUse {
    let v1::Traffic { reads, read_bytes, writes, written_bytes, maps, mapped_bytes } =
        channel.traffic.unwrap_or_default();
    let memory = channel.memory.clone();
    ChannelUse { memory, reads, read_bytes, writes, written_bytes, maps, mapped_bytes }
}

fn state(state: ComponentState) -> Option<&'static str> {
    match state {
        ComponentState::Unspecified => None,
        ComponentState::Waiting => Some("waiting"),
        ComponentState::Running => Some("running"),
        ComponentState::Done => Some("done"),
        ComponentState::Skipped => Some("skipped"),
    }
}

/// Output for several runs.
#[derive(Serialize)]
pub(super) struct RunSummaries {
    pub(super) runs: Vec<RunSummary>,
}

/// Shows runs.
pub(super) fn run(arguments: &HistoryArguments, output: &CommandOutput) -> Result<(), Error> {
    let manager = arguments.connection.open()?;
    let name = arguments.name.as_deref().unwrap_or_default();
    if is_run(name) {
        let page = manager.read_run(name, u64::MAX)?;
        let points: Vec<MemoryPoint> = page.points.into_iter().map(MemoryPoint::from).collect();
        let run = shown(page.info.unwrap_or_default());
        if let Some(file) = &arguments.svg {
            let title = format!("memory of a run of {}", run.graph);
            return write_svg(file, &plot::draw_svg(&title, &points));
        }
        let plot = plot::draw(&points);
        let run = RunSummary { points: Some(points), ..run };
        return output.show(&run, |run| {
            let (packages, uses) = (show_packages(&run.packages), show_uses(&run.components));
            let moved = show_channels(&run.components);
            format!("{}\n{uses}\n{moved}{packages}\n{plot}", status(run))
        });
    }
    if arguments.svg.is_some() {
        let message = format!("{name:?} is not the identifier of a run, which --svg needs");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let runs: Vec<RunSummary> = manager.runs(name, arguments.limit)?.into_iter().map(shown).collect();
    if runs.is_empty() && !name.is_empty() && !manager.graphs()?.iter().any(|graph| graph.name == name) {
        let message =
            format!("no graph {name:?} is deployed, and no run has this name: see `sublet graph list`");
        return Err(Error::new(Code::UnknownGraph, message));
    }
    output.show(&RunSummaries { runs }, |RunSummaries { runs }| {
        let row = |run: &RunSummary| {
            let began = show_moment(run.began_unix_ms);
            let took = run.ended_unix_ms.map_or(String::new(), |ended| {
                show_ns(ended.saturating_sub(run.began_unix_ms).saturating_mul(1_000_000))
            });
            [run.run.clone(), run.graph.clone(), began, took, status(run)]
        };
        table(&["RUN", "GRAPH", "BEGAN", "TOOK", "STATE"], &runs.iter().map(row).collect::<Vec<_>>())
    })
}

/// Returns whether the name has the form of a run's identifier.
pub(super) fn is_run(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Converts a manager's record for output.
pub(super) fn shown(info: RunInfo) -> RunSummary {
    let error = (info.code != 0)
        .then(|| FailureView { code: Code::from_number(info.code).name(), message: info.message });
    let runner = info.lease.map(|lease| lease.runner).filter(|runner| !runner.is_empty());
    let package = |v1::PinnedPackage { package, pinned }| RunPackageView { package, pinned };
    RunSummary {
        packages: info.packages.into_iter().map(package).collect(),
        run: info.run,
        graph: info.graph,
        digest: info.digest,
        began_unix_ms: info.began_unix_ms,
        ended_unix_ms: (info.ended_unix_ms != 0).then_some(info.ended_unix_ms),
        error,
        detached: info.terms.is_some(),
        runner: runner.filter(|_| info.ended_unix_ms == 0),
        components: component_uses(&info.components),
        reported_unix_ms: (info.reported_unix_ms != 0).then_some(info.reported_unix_ms),
        points: None,
    }
}

fn status(run: &RunSummary) -> String {
    match (&run.error, run.ended_unix_ms) {
        (Some(FailureView { code, message }), _) => format!("{code}: {message}"),
        (None, Some(_)) => "well".to_owned(),
        (None, None) if run.detached => match &run.runner {
            Some(runner) => format!("driven by {}", runner.split('#').next().unwrap_or_default()),
            None => "waits for a runner: sublet up, or sublet runner".to_owned(),
        },
        (None, None) => "running, or its client is gone: sublet graph resume".to_owned(),
    }
}

fn show_packages(packages: &[RunPackageView]) -> String {
    let row = |package: &RunPackageView| [package.package.clone(), package.pinned.clone()];
    table(&["PACKAGE", "USED AS"], &packages.iter().map(row).collect::<Vec<_>>())
}

/// Formats the resources of a run's components as a table.
pub(super) fn show_uses(uses: &[ComponentUse]) -> String {
    let row = |used: &ComponentUse| {
        let us = |us: u64| show_ns(us.saturating_mul(1000));
        [
            used.component.clone(),
            used.attempts.to_string(),
            if used.cores == 0 { String::new() } else { used.cores.to_string() },
            us(used.begin_us),
            us(used.end_us.saturating_sub(used.begin_us)),
            if used.cpu_ns == 0 { String::new() } else { show_ns(used.cpu_ns) },
            show_bytes(used.allocated_bytes),
            show_bytes(used.used_bytes),
            match used.allocated_byte_us {
                0 => String::new(),
                allocated => format!("{:.0}%", 100.0 * used.used_byte_us as f64 / allocated as f64),
            },
        ]
    };
    let headings = ["COMPONENT", "ATTEMPTS", "CORES", "BEGAN", "TOOK", "CPU", "LEASED", "USED", "OVER TIME"];
    table(&headings, &uses.iter().map(row).collect::<Vec<_>>())
}

/// Formats the data that components moved as a table, with an empty line behind it. Returns an empty string if they
/// moved none.
fn show_channels(uses: &[ComponentUse]) -> String {
    let row = |(used, channel): (&ComponentUse, &ChannelUse)| {
        let took_us = used.end_us.saturating_sub(used.begin_us);
        let moved = u128::from(channel.read_bytes) + u128::from(channel.written_bytes);
        let rate = (moved * 1_000_000).checked_div(took_us.into());
        [
            used.component.clone(),
            channel.memory.clone(),
            channel.reads.to_string(),
            show_bytes(channel.read_bytes),
            channel.writes.to_string(),
            show_bytes(channel.written_bytes),
            show_bytes(channel.mapped_bytes),
            rate.map_or(String::new(), |rate| {
                format!("{}/s", show_bytes(u64::try_from(rate).unwrap_or(u64::MAX)))
            }),
        ]
    };
    let all = uses.iter().flat_map(|used| used.channels.iter().map(move |channel| (used, channel)));
    let rows: Vec<_> = all.map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let headings = ["COMPONENT", "MEMORY", "READS", "READ", "WRITES", "WRITTEN", "MAPPED", "RATE"];
    format!("{}\n", table(&headings, &rows))
}
