//! The command line: what there is to say, and how results and errors are shown.
//!
//! Each command is a file of its own with `Arguments` and `run`. Results go to standard output, in full and at the
//! end; errors and progress go to standard error. With `--json` both are JSON, and nothing else is printed.

mod bench;
mod bill;
mod call;
mod completions;
mod deploy;
mod output;
mod parse;
mod ps;
mod up;
mod view;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use sublet_proto::{Code, Error};
use sublet_runtime::manager::{ManagerClient, default_address};

use output::Output;

const EXAMPLES: &str = "\
Examples:
  sublet up                                      run Sublet on this machine, until Ctrl-C
  sublet deploy ./libx.so                        make the functions of a shared object callable
  sublet call libx/f --input in --output out     call one of them
  sublet ps                                      what is there, and who uses it
  sublet bill                                    what it has cost

Environment:
  SUBLET_MANAGER   the manager's address, as unix:/path
  SUBLET_STATE     the folder of its state; by default $XDG_RUNTIME_DIR/sublet or ~/.local/state/sublet
  SUBLET_LOG       what is logged to standard error: error, warn (default), info, debug

The exit status is 0, or the number of the error's code, which --json prints too.";

/// Run functions on leased cores, at the speed of memory.
#[derive(Debug, Parser)]
#[command(name = "sublet", version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Arguments {
    /// Print results and errors as JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Arguments),
    Deploy(deploy::Arguments),
    Call(call::Arguments),
    Ps(ps::Arguments),
    Bill(bill::Arguments),
    Bench(bench::Arguments),
    Completions(completions::Arguments),
}

/// For commands that ask a manager.
#[derive(Debug, Args)]
struct Connection {
    /// Address of the manager, as unix:/path [default: this user's own `sublet up`]
    #[arg(long, value_name = "ADDRESS", env = "SUBLET_MANAGER", hide_env_values = true)]
    manager: Option<String>,
}

impl Connection {
    fn open(&self) -> Result<ManagerClient, Error> {
        ManagerClient::connect(&self.address())
    }

    fn address(&self) -> String {
        self.manager.clone().filter(|address| !address.is_empty()).unwrap_or_else(default_address)
    }
}

/// Reads the command line and does what it says.
pub(crate) fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    log_to_stderr();
    let output = Output::new(arguments.json);
    match run(arguments.command, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output.fail(&error),
    }
}

fn run(command: Command, output: &Output) -> Result<(), Error> {
    match command {
        Command::Up(arguments) => up::run(arguments, output),
        Command::Deploy(arguments) => deploy::run(&arguments, output),
        Command::Call(arguments) => call::run(&arguments, output),
        Command::Bench(arguments) => bench::run(&arguments, output),
        Command::Ps(arguments) => ps::run(&arguments, output),
        Command::Bill(arguments) => bill::run(&arguments, output),
        Command::Completions(arguments) => completions::run(&arguments, output),
    }
}

/// Help that was asked for, or a command line that means nothing.
fn usage(error: &clap::Error) -> ExitCode {
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let is_json = std::env::args_os().any(|argument| argument == "--json");
    if is_json && !asked {
        let message = error.render().to_string();
        let message = message.trim_start_matches("error: ").trim_end();
        return Output::new(true).fail(&Error::new(Code::InvalidArgument, message));
    }
    // Nothing can be done if not even this can be printed.
    let _ = error.print();
    if asked { ExitCode::SUCCESS } else { output::exit_code(Code::InvalidArgument) }
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("SUBLET_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed_and_explains_itself() {
        Arguments::command().debug_assert();
        for command in Arguments::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{} says nothing about itself", command.get_name());
            assert!(command.get_after_help().is_some(), "{} has no example", command.get_name());
        }
    }
}
