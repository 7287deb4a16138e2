//! `sublet graph history`: what runs there were, what their components used, and how much memory was leased and used over time.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use sublet_proto::v1::{self, ComponentState, RunInfo};
use sublet_proto::{Code, Error};

use super::plot::{self, Point};
use super::write_svg;
use crate::cli::Connection;
use crate::cli::output::{Output, table};
use crate::cli::parse::{show_bytes, show_ns};
use crate::cli::time::show_moment;

/// Show runs, or what the components of one used, and its memory over time
#[derive(Debug, Args)]
pub(super) struct History {
    /// The name of a graph, or the identifier of a run [default: runs of all graphs]
    name: Option<String>,

    /// So many runs, the newest first
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: u32,

    /// Draw the memory of the run into this file instead, or - for standard output
    #[arg(long, value_name = "FILE", requires = "name")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    connection: Connection,
}

/// A run, as it is shown.
#[derive(Serialize)]
pub(super) struct Run {
    pub(super) run: String,
    pub(super) graph: String,
    digest: String,
    pub(super) began_unix_ms: u64,
    /// None: it goes on, or its client is gone.
    ended_unix_ms: Option<u64>,
    /// Why it failed.
    error: Option<Failure>,
    /// The packages of its components, as they were when it began.
    packages: Vec<Package>,
    pub(super) components: Vec<ComponentUse>,
    /// When `components` was said, of a run that goes on.
    pub(super) reported_unix_ms: Option<u64>,
    /// Of one run that is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    points: Option<Vec<Point>>,
}

#[derive(Serialize)]
struct Failure {
    code: &'static str,
    message: String,
}

/// A package of a run's components.
#[derive(Serialize)]
struct Package {
    /// As the graph names it.
    package: String,
    /// What the run leases, by digest.
    pinned: String,
}

/// What a component of a run had.
#[derive(Debug, Serialize)]
pub(super) struct ComponentUse {
    pub(super) component: String,
    /// Waiting, running or done, when it was said.
    pub(super) state: Option<&'static str>,
    /// How often it was executed, or made.
    attempts: u32,
    /// Of a compute component; 0 of memory.
    pub(super) instances: u32,
    /// From the run's begin.
    begin_us: u64,
    end_us: u64,
    /// Most that was leased, and used.
    allocated_bytes: u64,
    used_bytes: u64,
    allocated_byte_us: u64,
    used_byte_us: u64,
    /// When it was said.
    pub(super) allocated_now_bytes: u64,
    pub(super) used_now_bytes: u64,
    /// Where it is, or was last.
    pub(super) nodes: Vec<String>,
    /// What of the run's own keeps it from going on.
    pub(super) waits_for: Option<String>,
}

/// As it is shown.
pub(super) fn component_uses(uses: &[v1::ComponentUse]) -> Vec<ComponentUse> {
    let shown = |used: &v1::ComponentUse| ComponentUse {
        component: used.component.clone(),
        state: state(used.state()),
        attempts: used.attempts,
        instances: used.instances,
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
    };
    uses.iter().map(shown).collect()
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

/// Several runs.
#[derive(Serialize)]
pub(super) struct Runs {
    pub(super) runs: Vec<Run>,
}

/// Shows.
pub(super) fn run(arguments: &History, output: &Output) -> Result<(), Error> {
    let manager = arguments.connection.open()?;
    let name = arguments.name.as_deref().unwrap_or_default();
    if is_run(name) {
        let page = manager.read_run(name, u64::MAX)?;
        let points: Vec<Point> = page.points.into_iter().map(Point::from).collect();
        let run = shown(page.info.unwrap_or_default());
        if let Some(file) = &arguments.svg {
            let title = format!("memory of a run of {}", run.graph);
            return write_svg(file, &plot::draw_svg(&title, &points));
        }
        let plot = plot::draw(&points);
        let run = Run { points: Some(points), ..run };
        return output.show(&run, |run| {
            let (packages, uses) = (show_packages(&run.packages), show_uses(&run.components));
            format!("{}\n{uses}\n{packages}\n{plot}", status(run))
        });
    }
    if arguments.svg.is_some() {
        let message = format!("{name:?} is no run: --svg draws one, by its identifier");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    let runs: Vec<Run> = manager.runs(name, arguments.limit)?.into_iter().map(shown).collect();
    if runs.is_empty() && !name.is_empty() && !manager.graphs()?.iter().any(|graph| graph.name == name) {
        let message =
            format!("no graph {name:?} is deployed and none of that name has run: see `sublet graph list`");
        return Err(Error::new(Code::UnknownGraph, message));
    }
    output.show(&Runs { runs }, |Runs { runs }| {
        let row = |run: &Run| {
            let began = show_moment(run.began_unix_ms);
            let took = run.ended_unix_ms.map_or(String::new(), |ended| {
                show_ns(ended.saturating_sub(run.began_unix_ms).saturating_mul(1_000_000))
            });
            [run.run.clone(), run.graph.clone(), began, took, status(run)]
        };
        table(&["RUN", "GRAPH", "BEGAN", "TOOK", "STATE"], &runs.iter().map(row).collect::<Vec<_>>())
    })
}

/// Whether this can be the identifier of a run.
pub(super) fn is_run(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// As it is shown.
pub(super) fn shown(info: RunInfo) -> Run {
    let error = (info.code != 0)
        .then(|| Failure { code: Code::from_number(info.code).name(), message: info.message });
    let package = |v1::PinnedPackage { package, pinned }| Package { package, pinned };
    Run {
        packages: info.packages.into_iter().map(package).collect(),
        run: info.run,
        graph: info.graph,
        digest: info.digest,
        began_unix_ms: info.began_unix_ms,
        ended_unix_ms: (info.ended_unix_ms != 0).then_some(info.ended_unix_ms),
        error,
        components: component_uses(&info.components),
        reported_unix_ms: (info.reported_unix_ms != 0).then_some(info.reported_unix_ms),
        points: None,
    }
}

fn status(run: &Run) -> String {
    match (&run.error, run.ended_unix_ms) {
        (Some(Failure { code, message }), _) => format!("{code}: {message}"),
        (None, Some(_)) => "well".to_owned(),
        (None, None) => "goes on, or its client is gone: sublet graph resume".to_owned(),
    }
}

fn show_packages(packages: &[Package]) -> String {
    let row = |package: &Package| [package.package.clone(), package.pinned.clone()];
    table(&["PACKAGE", "USED AS"], &packages.iter().map(row).collect::<Vec<_>>())
}

/// What the components of a run had, for people.
pub(super) fn show_uses(uses: &[ComponentUse]) -> String {
    let row = |used: &ComponentUse| {
        let us = |us: u64| show_ns(us.saturating_mul(1000));
        [
            used.component.clone(),
            used.attempts.to_string(),
            us(used.begin_us),
            us(used.end_us.saturating_sub(used.begin_us)),
            show_bytes(used.allocated_bytes),
            show_bytes(used.used_bytes),
            match used.allocated_byte_us {
                0 => String::new(),
                allocated => format!("{:.0}%", 100.0 * used.used_byte_us as f64 / allocated as f64),
            },
        ]
    };
    let headings = ["COMPONENT", "ATTEMPTS", "BEGAN", "TOOK", "LEASED", "USED", "OVER TIME"];
    table(&headings, &uses.iter().map(row).collect::<Vec<_>>())
}
