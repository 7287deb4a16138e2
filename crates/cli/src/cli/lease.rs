//! `sublet lease`: ends one that somebody else holds.

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::Error;

use super::Connection;
use super::output::Output;

const EXAMPLES: &str = "\
Examples:
  sublet ps                shows the leases
  sublet lease end LEASE   ends one before its time; its client is told

Leases end by themselves: when their client gives them back or dies, when they are idle for too long, and when their
time is over. Whoever has a lease renews it.";

/// End a lease before its time
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    End(End),
}

/// End a lease; one that is attached ends with its node's next report
#[derive(Debug, Args)]
struct End {
    /// Which; `sublet ps` shows them
    lease: String,

    #[command(flatten)]
    connection: Connection,
}

/// The result.
#[derive(Debug, Serialize)]
struct Ended<'lease> {
    lease: &'lease str,
}

/// Ends.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    let Action::End(End { lease, connection }) = &arguments.action;
    connection.open()?.end_lease(lease)?;
    output.show(&Ended { lease }, |ended| format!("lease {} ends\n", ended.lease))
}
