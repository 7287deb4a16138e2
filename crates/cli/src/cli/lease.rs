//! `sublet lease`: ends a lease before its time.

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::Error;

use super::ConnectionArguments;
use super::output::CommandOutput;

const EXAMPLES: &str = "\
Examples:
  sublet ps                show the leases
  sublet lease end LEASE   end a lease; its client gets an error

Leases end by themselves when their client releases them or dies, when they are idle for too long, and when they
expire. Clients renew their leases.";

/// End a lease before its time
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    End(EndArguments),
}

/// End a lease; a lease in use ends with the next report of its node
#[derive(Debug, Args)]
struct EndArguments {
    /// Identifier of the lease, as `sublet ps` shows it
    lease: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Report that a lease ends.
#[derive(Debug, Serialize)]
struct EndedLease<'lease> {
    lease: &'lease str,
}

/// Ends the lease.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let Action::End(EndArguments { lease, connection }) = &arguments.action;
    connection.open()?.end_lease(lease)?;
    output.show(&EndedLease { lease }, |ended| format!("lease {} ends\n", ended.lease))
}
