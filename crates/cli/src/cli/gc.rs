//! `sublet gc`: removal of what nothing in the store refers to.

use clap::Args;
use serde::Serialize;
use sublet_proto::Error;

use super::Connection;
use super::output::Output;
use super::parse::{show_bytes, show_count};

const EXAMPLES: &str = "\
Examples:
  sublet package remove old && sublet gc    the disk has the room of a removed package at once

Kept are packages and graphs that a name, a version, an active lease or an unfinished run refers to. Managers do the same
each hour. For operators.";

/// Remove packages and graphs from the store that nothing refers to
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(flatten)]
    connection: Connection,
}

/// What was removed.
#[derive(Debug, Serialize)]
struct Removed {
    blobs: u32,
    bytes: u64,
}

/// Asks a manager to collect.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    let removed = arguments.connection.open()?.collect_garbage()?;
    let removed = Removed { blobs: removed.blobs, bytes: removed.bytes };
    output.show(&removed, |Removed { blobs, bytes }| {
        let count = show_count((*blobs).into(), "blob");
        format!("removed {count} ({}) that nothing referred to\n", show_bytes(*bytes))
    })
}
