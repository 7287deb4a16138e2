//! `sublet graph`: checks, shows, deploys and runs graphs of components.

mod detached;
mod documents;
mod history;
mod labels;
mod layout;
mod plan;
mod plot;
mod run;
mod svg;
mod terminal;
mod top;
mod trigger;

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_proto::graph::Graph;
use sublet_proto::text::{printable_json, printable_text};
use sublet_proto::{Code, Error};

use super::ConnectionArguments;
use super::output::{CommandOutput, print};
use super::parse::show_count;

/// Maximum number of edges that are drawn: more are unreadable and slow to lay out.
const MAX_DRAWN_EDGES: usize = 1024;

const SCHEMA: &str = include_str!("../../../../docs/graph.schema.json");

const EXAMPLES: &str = "\
Examples:
  sublet graph check app.json              list all errors, each with its position
  sublet graph show app.json               draw its components and edges
  sublet graph show app.json --svg app.svg
  sublet graph schema > graph.schema.json  print the JSON schema, for editors and compilers
  sublet graph deploy app.json             store it at the managers under its name
  sublet graph remove app                  remove its name and all versions that no unfinished run needs
  sublet graph run app.json < in.bin       deploy and run it, with standard input as the entry's input
  sublet graph run app --retries 10        run a deployed graph by its name
  sublet graph run app --detach < in.bin   start a run that continues without this command, and print its identifier
  sublet graph wait RUN                    wait for its end, and write its output
  sublet graph wait RUN --timeout 10s --output out
  sublet graph logs RUN                    show its latest events: starts, losses, failures and what failed functions printed
  sublet graph cancel RUN                  end a run before it is done
  sublet graph plan app                    show which components its next run places on one node, and why
  sublet graph top                         show the current runs and the resources of their components
  sublet graph history app                 list its runs
  sublet graph history RUN                 show what each component used, and memory leased and used over time
  sublet graph history RUN --svg run.svg   draw memory over time
  sublet graph resume RUN                  continue a run whose client is gone
  sublet graph trigger app.json --files inbox
                                           start a run for each new file; other events: see its --help

A graph is a JSON document, which docs/graphs.md describes. - means standard input.";

/// Check, show, deploy and run graphs of components
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List all errors of a graph
    Check {
        /// The document, or - for standard input
        file: PathBuf,
    },
    /// Draw a graph
    Show {
        /// The document, or - for standard input
        file: PathBuf,

        /// Draw it as SVG into this file, or - for standard output
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Print the JSON schema of graphs
    Schema,
    Deploy(run::Deploy),
    /// List deployed graphs
    List {
        #[command(flatten)]
        connection: ConnectionArguments,
    },
    /// Remove a graph and all versions of it that no unfinished run needs
    Remove {
        /// Name of the graph, or the digest of one version
        #[arg(value_name = "NAME|DIGEST")]
        graph: String,

        #[command(flatten)]
        connection: ConnectionArguments,
    },
    Run(run::RunArguments),
    Plan(plan::PlanArguments),
    Resume(run::Resume),
    Wait(detached::WaitArguments),
    Cancel(detached::CancelArguments),
    Logs(detached::LogsArguments),
    Trigger(trigger::Trigger),
    History(history::HistoryArguments),
    Top(top::Top),
}

/// Versions of a graph that were removed.
#[derive(Serialize)]
struct RemovedVersions {
    /// Digests of the removed versions.
    removed: Vec<String>,
    /// Number of versions that unfinished runs need.
    kept: u32,
}

/// Report on a valid graph.
#[derive(Serialize)]
struct GraphReport<'graph> {
    name: &'graph str,
    compute: usize,
    memory: usize,
    edges: usize,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    match &arguments.command {
        Command::Check { file } => check(&documents::read(file)?, output),
        Command::Show { file, svg } => show(&documents::read(file)?, svg.as_deref(), output),
        Command::Schema => print(SCHEMA.trim_end()),
        Command::Deploy(deploy) => run::deploy(deploy, output),
        Command::List { connection } => run::list(connection, output),
        Command::Remove { graph, connection } => remove(graph, connection, output),
        Command::Run(arguments) => run::run(arguments, output),
        Command::Plan(arguments) => plan::run(arguments, output),
        Command::Resume(arguments) => run::resume(arguments, output),
        Command::Wait(arguments) => detached::wait(arguments, output),
        Command::Cancel(arguments) => detached::cancel(arguments, output),
        Command::Logs(arguments) => detached::logs(arguments, output),
        Command::Trigger(arguments) => trigger::run(arguments, output),
        Command::History(arguments) => history::run(arguments, output),
        Command::Top(arguments) => top::run(arguments, output),
    }
}

fn remove(graph: &str, connection: &ConnectionArguments, output: &CommandOutput) -> Result<(), Error> {
    let reply = connection.open()?.remove_graph(graph)?;
    let removed = reply.removed.into_iter().map(|version| version.digest).collect();
    output.show(&RemovedVersions { removed, kept: reply.kept }, |RemovedVersions { removed, kept }| {
        let mut text = format!("removed {} of {graph}", show_count(removed.len() as u64, "version"));
        if *kept > 0 {
            text += &format!("; unfinished runs need {}", show_count((*kept).into(), "version"));
        }
        text + "\n"
    })
}

fn check(graph: &Graph, output: &CommandOutput) -> Result<(), Error> {
    let memory = graph.components.iter().filter(|component| component.memory().is_some()).count();
    let compute = graph.components.len() - memory;
    let checked = GraphReport { name: &graph.name, compute, memory, edges: graph.edges.len() };
    output.show(&checked, |checked| {
        let GraphReport { name, compute, memory, edges } = checked;
        let count = |n: usize, what| show_count(n as u64, what);
        let (compute, memory) = (count(*compute, "compute component"), count(*memory, "memory component"));
        format!("{name} is valid: {compute}, {memory}, {}", count(*edges, "edge"))
    })
}

fn show(graph: &Graph, svg: Option<&Path>, output: &CommandOutput) -> Result<(), Error> {
    if svg.is_none() && !output.is_for_people() {
        return print(&printable_json(&graph.to_json()));
    }
    if graph.edges.len() > MAX_DRAWN_EDGES {
        let (name, edges) = (&graph.name, graph.edges.len());
        let message =
            format!("{name} has {edges} edges, at most {MAX_DRAWN_EDGES} are drawn; --json shows all of it");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    match svg {
        None => print(printable_text(&terminal::draw(graph)).trim_end()),
        Some(file) => documents::write_svg(file, &svg::draw(graph)),
    }
}
