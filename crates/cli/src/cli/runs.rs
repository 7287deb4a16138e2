//! `sublet run`: what the managers keep of runs of graphs.

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::Error;

use super::Connection;
use super::output::Output;
use super::parse::show_count;

const EXAMPLES: &str = "\
Examples:
  sublet run remove RUN          its record, with what its components used
  sublet run remove --ended      of all runs of this tenant that have ended

`sublet graph history` shows runs, `sublet graph resume` continues one whose client is gone.";

/// Remove what is kept of runs of graphs
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

/// Remove runs that have ended
#[derive(Debug, Args)]
struct Remove {
    /// Identifiers of runs
    #[arg(value_name = "RUN", required_unless_present = "ended")]
    runs: Vec<String>,

    /// All runs of this tenant that have ended
    #[arg(long, conflicts_with = "runs")]
    ended: bool,

    #[command(flatten)]
    connection: Connection,
}

/// How many runs were removed.
#[derive(Debug, Serialize)]
struct Removed {
    removed: u32,
}

/// Removes runs.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    let Action::Remove(remove) = &arguments.action;
    let removed = Removed { removed: remove.connection.open()?.remove_runs(&remove.runs)? };
    output.show(&removed, |Removed { removed }| format!("removed {}\n", show_count((*removed).into(), "run")))
}
