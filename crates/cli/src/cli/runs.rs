//! `sublet run`: removes the records of runs of graphs.

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::Error;

use super::ConnectionArguments;
use super::output::CommandOutput;
use super::parse::show_count;

const EXAMPLES: &str = "\
Examples:
  sublet run remove RUN          remove its record, with the usage of its components
  sublet run remove --ended      remove the records of all ended runs of this tenant

`sublet graph history` shows runs, `sublet graph resume` continues one whose client is gone.";

/// Remove the records of runs of graphs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Remove(Remove),
}

/// Remove the records of ended runs
#[derive(Debug, Args)]
struct Remove {
    /// Identifiers of runs
    #[arg(value_name = "RUN", required_unless_present = "ended")]
    runs: Vec<String>,

    /// Remove all ended runs of this tenant
    #[arg(long, conflicts_with = "runs")]
    ended: bool,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Number of removed runs.
#[derive(Debug, Serialize)]
struct RemovedRuns {
    removed: u32,
}

/// Removes runs.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let Action::Remove(remove) = &arguments.action;
    let removed = RemovedRuns { removed: remove.connection.open()?.remove_runs(&remove.runs)? };
    output.show(&removed, |RemovedRuns { removed }| {
        format!("removed {}\n", show_count((*removed).into(), "run"))
    })
}
