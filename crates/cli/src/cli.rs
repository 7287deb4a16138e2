//! The command line: parses arguments, runs the command, and prints results and errors.
//!
//! Each command is a module with `Arguments` and `run`. Results go to standard output, in full and at the
//! end; errors and progress go to standard error. With `--json` both are JSON, and nothing else is printed.

mod agent;
mod bench;
mod bill;
mod call;
mod completions;
mod connection;
pub(crate) mod daemon;
mod deploy;
mod doctor;
mod environment;
mod fabrics;
pub(crate) mod files;
mod gc;
mod graph;
mod image;
mod isolations;
mod lease;
mod limits;
mod logs;
mod manager;
mod manual;
mod memory;
mod output;
mod package;
pub(crate) mod parse;
mod profile;
mod ps;
mod pus;
mod runner;
mod runs;
mod sandbox;
mod secret;
mod settings;
mod store;
mod tenant;
mod time;
mod token;
mod up;
mod view;

use std::borrow::Cow;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use rustix::fs::Mode;
use sublet_proto::text::printable_text;
use sublet_proto::{Code, Error};

use connection::{ConnectionArguments, given};
use output::CommandOutput;

const EXAMPLES: &str = "\
Examples:
  sublet up                                      run Sublet on this machine, until Ctrl-C
  sublet deploy ./libx.so                        make the functions of a shared object callable
  sublet call libx/f --input in --output out     call one of them
  sublet package list                            list packages, with their owners and grants
  sublet environment list                        list environments of Python
  sublet ps                                      show nodes, leases, packages and managers
  sublet pus                                     show processing units: processors, devices, prices, neighbours
  sublet logs LEASE                              show the output of a lease's functions
  sublet bill                                    show usage and costs
  sublet secret set DB_KEY < file                store a value that functions get as an environment variable
  sublet memory mount /tmp/spill                 mount a folder of leased memory, for programs that spill to files
  sublet graph show app.json                     draw an application of several components
  sublet profile app.py                          propose where to split an application in Python
  sublet fabrics                                 show the networks that can carry calls on this machine
  sublet doctor                                  show how well its sandboxes isolate

On many machines:
  sublet manager                                 grant leases, keep packages and the ledger
  sublet agent                                   lend one machine's cores; also drain and reclaim them
  sublet runner                                  drive detached runs of graphs
  sublet token create --tenant NAME              create an access token for a tenant
  sublet tenant set NAME --cores 8               limit a tenant's resources
  sublet gc                                      remove packages and graphs that nothing refers to
  sublet store check                             look for damage in a stopped manager's store; backup, restore, repair

Environment:
  SUBLET_MANAGER      addresses of the managers, as unix:/path or https://HOST:PORT, separated by commas
  SUBLET_CA           file with the certificate of the managers' authority, for https
  SUBLET_TOKEN_FILE   file with the access token; or SUBLET_TOKEN: the token itself
  SUBLET_STATE        state folder; by default $XDG_RUNTIME_DIR/sublet or ~/.local/state/sublet
  SUBLET_LOG          log level for standard error: error, warn (default), info, debug

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
    Manager(manager::Arguments),
    Agent(Box<agent::Arguments>),
    Runner(runner::Arguments),
    Deploy(deploy::Arguments),
    Package(package::Arguments),
    Environment(environment::Arguments),
    Call(call::Arguments),
    Ps(ps::Arguments),
    Pus(pus::Arguments),
    Lease(lease::Arguments),
    Memory(memory::Arguments),
    Secret(secret::Arguments),
    Logs(logs::Arguments),
    Bill(bill::Arguments),
    Graph(graph::Arguments),
    Profile(profile::Arguments),
    Run(runs::Arguments),
    Gc(gc::Arguments),
    Token(token::Arguments),
    Tenant(tenant::Arguments),
    Store(store::Arguments),
    Fabrics(fabrics::Arguments),
    Doctor(doctor::Arguments),
    Sandbox(sandbox::Arguments),
    Image(image::Arguments),
    Bench(bench::Arguments),
    Completions(completions::Arguments),
    Manual(manual::Arguments),
}

/// Parses the command line and runs its command.
pub(crate) fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let output = CommandOutput::new(arguments.json);
    match run(arguments.command, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output.fail(&error),
    }
}

impl Command {
    /// The limits of this process with which the command works.
    fn needs(&self) -> &'static limits::Needs {
        match self {
            Command::Up(_) | Command::Manager(_) | Command::Agent(_) | Command::Runner(_) => &limits::SERVER,
            _ => &limits::CLIENT,
        }
    }
}

fn run(command: Command, output: &CommandOutput) -> Result<(), Error> {
    limits::prepare(command.needs())?;
    // The manager and the agent configure their own logs.
    if !matches!(command, Command::Manager(_) | Command::Agent(_)) {
        settings::log_by_environment()?;
    }
    // Commands that serve make files of the same modes whichever umask they are started under: sandboxes, which are other users,
    // read some of them, and other users write none. Files with secrets are made with a mode of their own.
    if matches!(
        command,
        Command::Up(_)
            | Command::Manager(_)
            | Command::Agent(_)
            | Command::Image(_)
            | Command::Store(_)
            | Command::Doctor(_)
            | Command::Bench(_)
    ) {
        rustix::process::umask(Mode::WGRP | Mode::WOTH);
    }
    match command {
        Command::Up(arguments) => up::run(arguments, output),
        Command::Manager(arguments) => manager::run(arguments, output),
        Command::Agent(arguments) => agent::run(*arguments, output),
        Command::Runner(arguments) => runner::run(&arguments, output),
        Command::Deploy(arguments) => deploy::run(&arguments, output),
        Command::Package(arguments) => package::run(&arguments, output),
        Command::Environment(arguments) => environment::run(&arguments, output),
        Command::Call(arguments) => call::run(&arguments, output),
        Command::Graph(arguments) => graph::run(&arguments, output),
        Command::Profile(arguments) => profile::run(&arguments, output),
        Command::Run(arguments) => runs::run(&arguments, output),
        Command::Gc(arguments) => gc::run(&arguments, output),
        Command::Fabrics(arguments) => fabrics::run(&arguments, output),
        Command::Doctor(_) => doctor::run(output),
        Command::Sandbox(arguments) => sandbox::run(arguments, output),
        Command::Image(arguments) => image::run(arguments, output),
        Command::Bench(arguments) => bench::run(&arguments, output),
        Command::Ps(arguments) => ps::run(&arguments, output),
        Command::Pus(arguments) => pus::run(&arguments, output),
        Command::Lease(arguments) => lease::run(&arguments, output),
        Command::Memory(arguments) => memory::run(arguments, output),
        Command::Secret(arguments) => secret::run(&arguments, output),
        Command::Logs(arguments) => logs::run(&arguments, output),
        Command::Bill(arguments) => bill::run(&arguments, output),
        Command::Token(arguments) => token::run(&arguments, output),
        Command::Tenant(arguments) => tenant::run(&arguments, output),
        Command::Store(arguments) => store::run(&arguments, output),
        Command::Completions(arguments) => completions::run(&arguments, Arguments::command(), output),
        Command::Manual(arguments) => manual::run(&arguments, Arguments::command(), output),
    }
}

/// Prints requested help, or the error of an invalid command line.
fn usage(error: &clap::Error) -> ExitCode {
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let is_json = std::env::args_os().any(|argument| argument == "--json");
    if is_json && !asked {
        let message = error.render().to_string();
        let message = message.trim_start_matches("error: ").trim_end();
        return CommandOutput::new(true).fail(&Error::new(Code::InvalidArgument, message));
    }
    // If standard error cannot be written, there is no other way to report it.
    let _ = match printable_text(&error.render().to_string()) {
        Cow::Borrowed(_) => error.print(),
        Cow::Owned(escaped) => write!(std::io::stderr(), "{escaped}"),
    };
    if asked { ExitCode::SUCCESS } else { output::exit_code(Code::InvalidArgument) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_help_and_examples() {
        Arguments::command().debug_assert();
        for command in Arguments::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{} says nothing about itself", command.get_name());
            assert!(command.get_after_help().is_some(), "{} has no example", command.get_name());
        }
    }

    #[test]
    fn help_lists_every_command_with_its_purpose() {
        let help = Arguments::command().render_help().to_string();
        for command in Arguments::command().get_subcommands() {
            let describes = |line: &str| {
                let mut words = line.split_whitespace();
                words.next() == Some(command.get_name()) && words.next().is_some()
            };
            assert!(help.lines().any(describes), "the help lacks {}:\n{help}", command.get_name());
        }
    }

    #[test]
    fn profile_passes_its_arguments_on() {
        let passed = |words: &[&str]| {
            let parsed = Arguments::try_parse_from(["sublet", "profile"].iter().chain(words)).unwrap();
            match parsed.command {
                Command::Profile(arguments) => (parsed.json, arguments.given),
                other => panic!("{other:?}"),
            }
        };
        let program = ["--patch", "split.patch", "app.py", "--json", "-n", "3"];
        assert_eq!(passed(&program), (false, program.map(Into::into).to_vec()));
        assert_eq!(passed(&["--json", "app.py"]), (true, vec!["app.py".into()]));
    }

    /// The command lines of a help text's examples, without their explanations, redirections and the programs around them.
    fn examples(help: &str) -> impl Iterator<Item = Vec<String>> {
        let lines = help.lines().filter_map(|line| line.strip_prefix("  "));
        let commands = lines.flat_map(|line| line.split(" | ")).flat_map(|line| line.split(" && "));
        commands.filter_map(|line| {
            let words = words(line.trim().split("  ").next().unwrap_or_default());
            let words: Vec<_> =
                words.into_iter().take_while(|word| !["<", ">", "&"].contains(&word.as_str())).collect();
            words.first().is_some_and(|word| word == "sublet").then_some(words)
        })
    }

    /// The words of a command line, in which quotes hold words together.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        parts
            .flat_map(|(number, part)| match number % 2 {
                0 => part.split_whitespace().map(str::to_owned).collect(),
                _ => vec![part.to_owned()],
            })
            .collect()
    }

    /// The help texts of a command and all of its subcommands.
    fn helps(command: &clap::Command) -> Vec<String> {
        let own = command.get_after_help().map(ToString::to_string);
        own.into_iter().chain(command.get_subcommands().flat_map(helps)).collect()
    }

    #[test]
    fn examples_of_help_texts_are_valid_command_lines() {
        let helps = helps(&Arguments::command());
        let examples: Vec<_> = helps.iter().flat_map(|help| examples(help)).collect();
        assert!(examples.len() > 50, "only {} examples were found", examples.len());
        for words in examples {
            let parsed = Arguments::try_parse_from(&words);
            assert!(parsed.is_ok(), "{}: {}", words.join(" "), parsed.unwrap_err());
        }
    }
}
