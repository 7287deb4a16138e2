//! `sublet manual`: writes the manual pages that packages of the command install.

use std::fs;
use std::path::PathBuf;

use clap::{Args, Command};
use serde_json::json;
use sublet_proto::{Code, Error};

use super::output::CommandOutput;

const EXAMPLES: &str = "\
Examples:
  sublet manual /usr/local/share/man/man1";

/// Write the manual pages of the command and of its subcommands to a folder
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Folder of the pages; it is created if it does not exist
    folder: PathBuf,
}

/// Writes one page for the command and one for each subcommand.
pub(crate) fn run(arguments: &Arguments, command: Command, output: &CommandOutput) -> Result<(), Error> {
    let folder = &arguments.folder;
    let written = fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    written.map_err(|error| {
        let message = format!("cannot write manual pages to {}: {error}", folder.display());
        Error::new(Code::InvalidArgument, message)
    })?;
    let folder = folder.display().to_string();
    output.show(&json!({ "folder": folder }), |_| format!("wrote the manual pages to {folder}\n"))
}
