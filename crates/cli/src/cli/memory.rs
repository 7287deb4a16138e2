//! `sublet memory`: mounts a folder of leased memory.

mod mount;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::Error;

use super::output::CommandOutput;
use super::parse::absolute;
use crate::mount::point::unmount_folder;

const EXAMPLES: &str = "\
Examples:
  sublet memory mount /tmp/spill                             mount a folder of up to 8 GiB, until Ctrl-C
  sublet memory mount /tmp/spill --limit 64GiB --near node7  of up to 64 GiB, on node7 if it has enough
  sublet memory unmount /tmp/spill                           unmount it and wait until its memory is given back

Programs that spill to files use it unchanged, once it is their temporary folder: `SET temp_directory = '/tmp/spill'` in DuckDB.";

/// Mount a folder of leased memory, for programs that spill to files
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Mount(Box<mount::Arguments>),
    Unmount(Unmount),
}

/// Unmount a folder, and wait until its memory is given back
#[derive(Debug, Args)]
struct Unmount {
    /// Path of the folder
    #[arg(value_name = "DIR", value_parser = absolute)]
    folder: PathBuf,
}

/// Report on a folder that was unmounted.
#[derive(Debug, Serialize)]
struct UnmountedFolder {
    folder: String,
    /// Process that has served it; `None` if that had been killed.
    process: Option<u32>,
}

/// Mounts or unmounts a folder.
pub(crate) fn run(arguments: Arguments, output: &CommandOutput) -> Result<(), Error> {
    match arguments.action {
        Action::Mount(arguments) => mount::run(*arguments, output),
        Action::Unmount(Unmount { folder }) => {
            let process = unmount_folder(&folder)?;
            let folder = folder.display().to_string();
            output.show(&UnmountedFolder { folder, process }, |UnmountedFolder { folder, .. }| {
                format!("unmounted {folder}\n")
            })
        }
    }
}
