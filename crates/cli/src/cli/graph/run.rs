//! `sublet graph deploy`, `list`, `run` and `resume`: deploys, lists and runs graphs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use sublet_proto::run::MAX_OUTPUT_BYTES;
use sublet_proto::text::{printable_line, printable_text};
use sublet_proto::v1::GraphInfo;
use sublet_proto::{Code, Error};
use sublet_runtime::Memory;
use sublet_runtime::fabrics::FabricChoice;
use sublet_runtime::run::{Application, News, Outcome, RunOptions};

use super::documents::{parse, read_document};
use super::history::{ComponentUse, component_uses, show_uses};
use crate::cli::ConnectionArguments;
use crate::cli::files::{is_dash, read_up_to, write_output, write_parts};
use crate::cli::output::{CommandOutput, table};
use crate::cli::parse::{duration, fabric, show_bytes, show_ns};
use crate::cli::time::show_moment;

/// Number of bytes of a memory component that are written at a time.
const PART_BYTES: u64 = 1 << 20;

/// Store a graph at the managers, to run it by its name
#[derive(Debug, Args)]
pub(super) struct Deploy {
    /// The document, or - for standard input
    file: PathBuf,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Run a graph
#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// A document, which is deployed first, or the name or digest of a deployed graph. The path of a document contains a
    /// slash or ends with .json
    graph: String,

    /// File with the entry's input, or - for standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    input: PathBuf,

    /// Start the run and print its identifier: it continues without this command, driven by a runner, as of `sublet up`. See
    /// `sublet graph wait`, `cancel` and `logs`
    #[arg(long, conflicts_with = "output")]
    detach: bool,

    #[command(flatten)]
    terms: Terms,
}

/// Continue a run whose client is gone
#[derive(Debug, Args)]
pub(super) struct Resume {
    /// The run's identifier, as `sublet graph history` shows it
    run: String,

    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, Args)]
struct Terms {
    #[command(flatten)]
    destination: OutputDestination,

    /// Print no progress
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    conditions: Conditions,
}

/// Destination of a run's output.
#[derive(Debug, Args)]
pub(super) struct OutputDestination {
    /// File for the output of the last component, or - for standard output; outputs of several instances are each preceded
    /// by their length, as docs/graphs.md describes. If the graph declares a memory component as the result, its bytes
    /// are written instead
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Options for running a graph.
#[derive(Debug, Args)]
pub(super) struct Conditions {
    /// Restart a component up to N times if it, its memory or its node is lost
    #[arg(long, value_name = "N", default_value_t = 3)]
    retries: u32,

    /// Maximum time to wait for the cores and memory of a component
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    wait: Duration,

    /// Prepare the environments of the next components this long after their predecessors have started, or `never`
    #[arg(long, value_name = "TIME", value_parser = prewarm, default_value = "0s")]
    prewarm: Prewarm,

    /// Fabric for calls and memory: auto, shm, tcp or tcp+tls [default: $SUBLET_FABRIC, or shared memory on the node's own
    /// machine and the best common network from other machines]
    #[arg(long, value_name = "FABRIC", value_parser = fabric)]
    fabric: Option<FabricChoice>,

    #[command(flatten)]
    pub(super) connection: ConnectionArguments,
}

#[derive(Clone, Copy, Debug)]
struct Prewarm(Option<Duration>);

fn prewarm(text: &str) -> Result<Prewarm, String> {
    match text {
        "never" => Ok(Prewarm(None)),
        time => duration(time).map(|time| Prewarm(Some(time))),
    }
}

impl Conditions {
    pub(super) fn options(&self) -> RunOptions {
        RunOptions {
            patience: self.wait,
            retries: self.retries,
            prewarm: self.prewarm.0,
            fabric: self.fabric.clone(),
            ..RunOptions::default()
        }
    }

    /// Opens a graph: deploys a document, or looks up a name or digest.
    pub(super) fn open(&self, graph: &str, options: RunOptions) -> Result<Application, Error> {
        let access = self.connection.access()?;
        if graph.contains('/') || graph.ends_with(".json") || graph == "-" {
            let file = Path::new(graph);
            let document = read_document(file)?;
            parse(file, &document)?;
            return Application::deploy(access, &document, options);
        }
        Application::open(access, graph, options)
    }
}

impl OutputDestination {
    pub(super) fn check(&self, output: &CommandOutput) -> Result<(), Error> {
        if is_dash(&self.output) && !output.is_for_people() {
            let message =
                "--json and the graph's output cannot both go to standard output: name a file with --output";
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(())
    }

    pub(super) fn finish(
        &self,
        outcome: &Outcome,
        took: Duration,
        output: &CommandOutput,
    ) -> Result<(), Error> {
        match &outcome.result {
            None => write_output(&self.output, &outputs(outcome))?,
            Some(result) => write_memory(&self.output, &result.memory)?,
        }
        let ran = RunReport {
            run: &outcome.run,
            total_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            components: component_uses(&outcome.components),
        };
        if is_dash(&self.output) {
            return Ok(());
        }
        output.show(&ran, |ran| {
            let RunReport { run, total_ns, components } = ran;
            format!("run {run} succeeded in {}\n{}", show_ns(*total_ns), show_uses(components))
        })
    }
}

impl Terms {
    /// Returns a function that prints progress for people.
    fn tell(&self, output: &CommandOutput) -> impl FnMut(&News) + use<> {
        let is_told = output.is_for_people() && !self.quiet;
        move |news| {
            if is_told {
                eprintln!("{}", line(news));
            }
        }
    }
}

/// Writes the bytes of a memory component, a part at a time.
fn write_memory(path: &Path, memory: &Memory) -> Result<(), Error> {
    let (mut at, len_bytes) = (0, memory.len_bytes());
    write_parts(path, || {
        let mut part = vec![0; usize::try_from((len_bytes - at).min(PART_BYTES)).unwrap_or_default()];
        memory.read(at, &mut part)?;
        at += part.len() as u64;
        Ok(part)
    })
}

/// Report on a successful run.
#[derive(Serialize)]
struct RunReport<'run> {
    run: &'run str,
    total_ns: u64,
    components: Vec<ComponentUse>,
}

/// A run that continues without this command.
#[derive(Serialize)]
struct DetachedRun<'run> {
    run: &'run str,
}

#[derive(Serialize)]
struct DeployedGraph {
    name: String,
    digest: String,
    components: u32,
    size_bytes: u64,
    deployed_unix_ms: u64,
}

impl From<GraphInfo> for DeployedGraph {
    fn from(info: GraphInfo) -> DeployedGraph {
        let GraphInfo { name, digest, size_bytes, deployed_unix_ms, components, swaps: _ } = info;
        DeployedGraph { name, digest, components, size_bytes, deployed_unix_ms }
    }
}

/// Deploys a graph.
pub(super) fn deploy(arguments: &Deploy, output: &CommandOutput) -> Result<(), Error> {
    let document = read_document(&arguments.file)?;
    // Errors of the document are reported here, with the file's name, before a manager is contacted.
    parse(&arguments.file, &document)?;
    let deployed = DeployedGraph::from(arguments.connection.open()?.deploy_graph(document)?);
    output.show(&deployed, |deployed| format!("{} {}", deployed.name, deployed.digest))
}

/// Output of `list`.
#[derive(Serialize)]
struct GraphsOutput {
    graphs: Vec<DeployedGraph>,
}

/// Lists deployed graphs.
pub(super) fn list(connection: &ConnectionArguments, output: &CommandOutput) -> Result<(), Error> {
    let graphs: Vec<DeployedGraph> =
        connection.open()?.graphs()?.into_iter().map(DeployedGraph::from).collect();
    output.show(&GraphsOutput { graphs }, |GraphsOutput { graphs }| {
        let row = |graph: &DeployedGraph| {
            let DeployedGraph { name, digest, components, size_bytes, deployed_unix_ms } = graph;
            [
                name.clone(),
                components.to_string(),
                show_bytes(*size_bytes),
                show_moment(*deployed_unix_ms),
                digest.clone(),
            ]
        };
        table(
            &["NAME", "COMPONENTS", "SIZE", "DEPLOYED", "DIGEST"],
            &graphs.iter().map(row).collect::<Vec<_>>(),
        )
    })
}

/// Runs a graph.
pub(super) fn run(arguments: &RunArguments, output: &CommandOutput) -> Result<(), Error> {
    let RunArguments { graph, input, detach, terms } = arguments;
    if !detach {
        terms.destination.check(output)?;
    }
    let application = terms.conditions.open(graph, terms.conditions.options())?;
    let failed = |error| Error::of_system(format_args!("reading the input {}", input.display()), &error);
    // One byte more than the limit, so that input that is too large is detected.
    let bytes = read_up_to(input, MAX_OUTPUT_BYTES as u64 + 1).map_err(failed)?;
    if *detach {
        let handle = application.detach(&bytes)?;
        return output.show(&DetachedRun { run: handle.id() }, |detached| detached.run.to_owned());
    }
    let begun = Instant::now();
    let outcome = application.run_with(&bytes, terms.tell(output))?;
    terms.destination.finish(&outcome, begun.elapsed(), output)
}

/// Continues a run.
pub(super) fn resume(arguments: &Resume, output: &CommandOutput) -> Result<(), Error> {
    let Resume { run, terms } = arguments;
    terms.destination.check(output)?;
    let Conditions { connection, .. } = &terms.conditions;
    let info = connection.open()?.read_run(run, u64::MAX)?.info.unwrap_or_default();
    let application = Application::open(connection.access()?, &info.digest, terms.conditions.options())?;
    let begun = Instant::now();
    let outcome = application.resume(run, terms.tell(output))?;
    terms.destination.finish(&outcome, begun.elapsed(), output)
}

/// Formats a progress line. It contains text that components and packages choose.
fn line(news: &News) -> String {
    let text = match news {
        News::Began { component, attempt: 1 } => format!("{component} started"),
        News::Began { component, attempt } => format!("{component} started again (attempt {attempt})"),
        News::Ended { component, took } => {
            format!(
                "{component} is done, after {}",
                show_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
            )
        }
        News::Waits { component, error } => format!("{component} is waiting: {error}"),
        News::Lost { component, error } => format!("{component} was lost: {error}"),
        News::Failed { component, report, .. } => format!("{component} failed{}", reported(report)),
    };
    printable_text(&text).into_owned()
}

/// Output and traceback of a failed function.
fn reported(report: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Report {
        printed: Vec<(String, serde_json::Value)>,
        text: String,
    }
    let Ok(Report { printed, text }) = serde_json::from_slice(report) else { return String::new() };
    let said = |(_, what): &(String, serde_json::Value)| match what {
        serde_json::Value::String(text) => text.clone(),
        record => record["msg"].as_str().map(|text| format!("{text}\n")).unwrap_or_default(),
    };
    let printed: String = printed.iter().map(said).collect();
    printed.lines().chain(text.lines()).map(|line| format!("\n  {}", printable_line(line))).collect()
}

/// Encodes a run's output as a message.
pub(super) fn outputs(outcome: &Outcome) -> Vec<u8> {
    let all: Vec<&[u8]> =
        outcome.outputs.iter().flat_map(|(_, outputs)| outputs.iter().map(Vec::as_slice)).collect();
    sublet_proto::run::message(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_output_and_traceback_of_failed_component() {
        let report = br#"{"printed":[["stdout","a\n"],["log",{"msg":"b\u001b[2J"}]],"text":"Traceback:\n  x\n","errors":[]}"#;
        assert_eq!(reported(report), "\n  a\n  b\\x1b[2J\n  Traceback:\n    x");
        assert_eq!(reported(b"no report"), "");
    }

    #[test]
    fn escapes_control_characters_in_progress() {
        let error = Error::new(Code::WorkerDied, "gone\x1b[2J\u{202e}");
        assert_eq!(
            line(&News::Waits { component: "c".to_owned(), error }),
            "c is waiting: gone\\x1b[2J\\u{202e}"
        );
    }
}
