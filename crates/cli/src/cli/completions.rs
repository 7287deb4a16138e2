//! `sublet completions`: prints a completion script for a shell.

use clap::Args;
use clap_complete::Shell;
use serde_json::json;
use sublet_proto::{Code, Error};

use super::output::CommandOutput;

const EXAMPLES: &str = "\
Examples:
  source <(sublet completions bash)
  sublet completions zsh > ~/.zfunc/_sublet
  sublet completions fish > ~/.config/fish/completions/sublet.fish";

/// Print a script that completes the command line in a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Name of the shell
    shell: Shell,
}

/// Prints the completion script of this command line.
pub(crate) fn run(
    arguments: &Arguments,
    mut command: clap::Command,
    output: &CommandOutput,
) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "sublet", &mut script);
    let script = String::from_utf8(script)
        .map_err(|_| Error::new(Code::Internal, "the completion script is not UTF-8"))?;
    let shell = arguments.shell.to_string();
    output.show(&json!({ "shell": shell, "script": script }), |_| script.clone())
}
