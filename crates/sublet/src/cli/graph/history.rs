//! `sublet graph history`: what runs there were, and what their components used.

use clap::Args;
use serde::Serialize;
use sublet_proto::v1::{self, RunInfo};
use sublet_proto::{Code, Error};

use crate::cli::Connection;
use crate::cli::output::{Output, table};
use crate::cli::parse::{show_bytes, show_ns};
use crate::cli::time::show_moment;

/// Show runs, or what the components of one used
#[derive(Debug, Args)]
pub(super) struct History {
    /// The name of a graph, or the identifier of a run [default: runs of all graphs]
    name: Option<String>,

    /// So many runs, the newest first
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: u32,

    #[command(flatten)]
    connection: Connection,
}

/// A run, as it is shown.
#[derive(Serialize)]
struct Run {
    run: String,
    graph: String,
    digest: String,
    began_unix_ms: u64,
    /// None: it goes on, or its client is gone.
    ended_unix_ms: Option<u64>,
    /// Why it failed.
    error: Option<Failure>,
    components: Vec<ComponentUse>,
}

#[derive(Serialize)]
struct Failure {
    code: &'static str,
    message: String,
}

/// What a component of a run had.
#[derive(Debug, Serialize)]
pub(super) struct ComponentUse {
    component: String,
    /// How often it was executed, or made.
    attempts: u32,
    /// Of a compute component; 0 of memory.
    instances: u32,
    /// From the run's begin.
    begin_us: u64,
    end_us: u64,
    /// Most that was leased, and used.
    allocated_bytes: u64,
    used_bytes: u64,
    allocated_byte_us: u64,
    used_byte_us: u64,
}

/// As it is shown.
pub(super) fn component_uses(uses: &[v1::ComponentUse]) -> Vec<ComponentUse> {
    let shown = |used: &v1::ComponentUse| ComponentUse {
        component: used.component.clone(),
        attempts: used.attempts,
        instances: used.instances,
        begin_us: used.begin_us,
        end_us: used.end_us,
        allocated_bytes: used.allocated_bytes,
        used_bytes: used.used_bytes,
        allocated_byte_us: used.allocated_byte_us,
        used_byte_us: used.used_byte_us,
    };
    uses.iter().map(shown).collect()
}

/// Shows.
pub(super) fn run(arguments: &History, output: &Output) -> Result<(), Error> {
    let manager = arguments.connection.open()?;
    let name = arguments.name.as_deref().unwrap_or_default();
    if is_run(name) {
        let run = shown(manager.read_run(name, u64::MAX)?.info.unwrap_or_default());
        return output.show(&run, |run| format!("{}\n{}", status(run), show_uses(&run.components)));
    }
    let runs: Vec<Run> = manager.runs(name, arguments.limit)?.into_iter().map(shown).collect();
    output.show(&runs, |runs| {
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

fn is_run(name: &str) -> bool {
    name.len() == 32 && name.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

fn shown(info: RunInfo) -> Run {
    let error = (info.code != 0)
        .then(|| Failure { code: Code::from_number(info.code).name(), message: info.message });
    Run {
        run: info.run,
        graph: info.graph,
        digest: info.digest,
        began_unix_ms: info.began_unix_ms,
        ended_unix_ms: (info.ended_unix_ms != 0).then_some(info.ended_unix_ms),
        error,
        components: component_uses(&info.components),
    }
}

fn status(run: &Run) -> String {
    match (&run.error, run.ended_unix_ms) {
        (Some(Failure { code, message }), _) => format!("{code}: {message}"),
        (None, Some(_)) => "well".to_owned(),
        (None, None) => "goes on, or its client is gone: sublet graph resume".to_owned(),
    }
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
            if used.instances == 0 { show_bytes(used.used_bytes) } else { String::new() },
        ]
    };
    let headings = ["COMPONENT", "ATTEMPTS", "BEGAN", "TOOK", "LEASED", "USED"];
    table(&headings, &uses.iter().map(row).collect::<Vec<_>>())
}
