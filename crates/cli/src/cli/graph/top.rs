//! `sublet graph top`: shows the current runs and the resources of their components.

use std::io::IsTerminal;
use std::thread::sleep;
use std::time::Duration;

use clap::Args;
use sublet_proto::Error;
use sublet_proto::text::printable_text;
use sublet_runtime::manager::ManagerClient;

use super::history::{ComponentUse, RunSummaries, RunSummary, is_run, shown};
use crate::cli::ConnectionArguments;
use crate::cli::output::{CommandOutput, print, table};
use crate::cli::parse::{duration, show_bytes, show_ns};
use crate::cli::time::now_ms;

/// Age at which a report is overdue: drivers report each second.
const SILENCE_MS: u64 = 5000;
/// Maximum number of runs that are listed.
const RUNS: u32 = 100;
/// Escape sequence that clears the terminal and its scrollback.
const CLEAR: &str = "\x1b[H\x1b[2J\x1b[3J";

/// Show the current runs and the resources of their components
#[derive(Debug, Args)]
pub(super) struct Top {
    /// The name of a graph, or the identifier of a run [default: runs of all graphs]
    name: Option<String>,

    /// Show the runs once and exit; the default without a terminal and with --json
    #[arg(long)]
    once: bool,

    /// Refresh interval
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1s")]
    every: Duration,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Shows the runs, once or repeatedly.
pub(super) fn run(arguments: &Top, output: &CommandOutput) -> Result<(), Error> {
    let manager = arguments.connection.open()?;
    let name = arguments.name.as_deref().unwrap_or_default();
    if arguments.once || !output.is_for_people() || !std::io::stdout().is_terminal() {
        return output
            .show(&RunSummaries { runs: look(&manager, name)? }, |RunSummaries { runs }| screen(runs));
    }
    loop {
        let runs = look(&manager, name)?;
        print(&format!("{CLEAR}{}", printable_text(&screen(&runs))))?;
        sleep(arguments.every);
    }
}

fn look(manager: &ManagerClient, name: &str) -> Result<Vec<RunSummary>, Error> {
    if is_run(name) {
        let page = manager.read_run(name, u64::MAX)?;
        let run = page.info.filter(|info| info.ended_unix_ms == 0);
        return Ok(run.map(shown).into_iter().collect());
    }
    Ok(manager.runs_going_on(name, RUNS)?.into_iter().map(shown).collect())
}

fn screen(runs: &[RunSummary]) -> String {
    if runs.is_empty() {
        return "no run in progress".to_owned();
    }
    let now_ms = now_ms();
    runs.iter().map(|run| one(run, now_ms)).collect::<Vec<_>>().join("\n")
}

fn one(run: &RunSummary, now_ms: u64) -> String {
    let since = |at_ms: u64| show_ns(now_ms.saturating_sub(at_ms).saturating_mul(1_000_000));
    let sum = |of: fn(&ComponentUse) -> u64| show_bytes(run.components.iter().map(of).sum());
    let mut text = format!(
        "{}  {}  for {}  leased {}  used {}\n",
        run.graph,
        run.run,
        since(run.began_unix_ms),
        sum(|of| of.allocated_now_bytes),
        sum(|of| of.used_now_bytes)
    );
    match run.reported_unix_ms {
        // The first report comes after this age.
        None if now_ms.saturating_sub(run.began_unix_ms) < SILENCE_MS => {}
        None => text += "  no reports: its client is gone, or cannot reach a manager\n",
        Some(at_ms) if now_ms.saturating_sub(at_ms) >= SILENCE_MS => {
            text +=
                &format!("  no report for {}: its client is gone, or cannot reach a manager\n", since(at_ms));
        }
        Some(_) => {}
    }
    let bytes = |bytes: u64| if bytes == 0 { String::new() } else { show_bytes(bytes) };
    let row = |of: &ComponentUse| {
        [
            of.component.clone(),
            of.state.unwrap_or_default().to_owned(),
            if of.instances == 0 { "memory".to_owned() } else { of.instances.to_string() },
            if of.cores == 0 { String::new() } else { of.cores.to_string() },
            bytes(of.allocated_now_bytes),
            bytes(of.used_now_bytes),
            of.nodes.join(", "),
            of.waits_for.as_ref().map_or(String::new(), |what| format!("waits for {what}")),
        ]
    };
    let rows: Vec<_> = run.components.iter().map(row).collect();
    if !rows.is_empty() {
        text += &table(
            &["  COMPONENT", "STATE", "INSTANCES", "CORES", "LEASED", "USED", "NODES", ""],
            &indented(rows),
        );
    }
    text
}

fn indented(mut rows: Vec<[String; 8]>) -> Vec<[String; 8]> {
    rows.iter_mut().for_each(|row| row[0].insert_str(0, "  "));
    rows
}
