//! `sublet gc`: removes packages and graphs that nothing in the store refers to.

use clap::Args;
use serde::Serialize;
use sublet_proto::Error;

use super::ConnectionArguments;
use super::output::CommandOutput;
use super::parse::{show_bytes, show_count};

const EXAMPLES: &str = "\
Examples:
  sublet package remove old && sublet gc    free the disk space of a removed package at once

The command keeps packages and graphs that a name, a version, an active lease or an unfinished run refers to. Managers
do the same each hour. Only operators may run it.";

/// Remove packages and graphs from the store that nothing refers to
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Number and size of the removed objects.
#[derive(Debug, Serialize)]
struct GarbageReport {
    blobs: u32,
    bytes: u64,
}

/// Requests a garbage collection from a manager.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let removed = arguments.connection.open()?.collect_garbage()?;
    let removed = GarbageReport { blobs: removed.blobs, bytes: removed.bytes };
    output.show(&removed, |GarbageReport { blobs, bytes }| {
        let count = show_count((*blobs).into(), "blob");
        format!("removed {count} ({}) that nothing referred to\n", show_bytes(*bytes))
    })
}
