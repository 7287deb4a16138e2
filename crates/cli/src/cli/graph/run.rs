//! `sublet graph deploy`, `list`, `run` and `resume`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};
use sublet_proto::run::MAX_OUTPUT_BYTES;
use sublet_proto::text::{printable_line, printable_text};
use sublet_proto::v1::GraphInfo;
use sublet_proto::{Code, Error};
use sublet_runtime::fabrics::FabricChoice;
use sublet_runtime::run::{Application, News, Outcome, RunOptions};

use super::history::{ComponentUse, component_uses, show_uses};
use super::{parse, read_document};
use crate::cli::Connection;
use crate::cli::files::{is_dash, read_up_to, write_output};
use crate::cli::output::{Output, table};
use crate::cli::parse::{duration, fabric, show_bytes, show_ns};
use crate::cli::time::show_moment;

/// Give the managers a graph, to be run by its name
#[derive(Debug, Args)]
pub(super) struct Deploy {
    /// The document, or - for standard input
    file: PathBuf,

    #[command(flatten)]
    connection: Connection,
}

/// Run a graph
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The document, which is deployed on the way, or the name or digest of a deployed graph. A document's path has a slash or
    /// ends with .json
    graph: String,

    /// File with the entry's input, or - for standard input
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    input: PathBuf,

    #[command(flatten)]
    terms: Terms,
}

/// Go on with a run whose client is gone
#[derive(Debug, Args)]
pub(super) struct Resume {
    /// The run's identifier, as `sublet graph history` shows it
    run: String,

    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, Args)]
struct Terms {
    /// File for the output, or - for standard output: that of the last component, or of several instances each behind its
    /// length, as docs/graphs.md says
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Say nothing of what happens meanwhile
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    conditions: Conditions,
}

/// How a graph is run.
#[derive(Debug, Args)]
pub(super) struct Conditions {
    /// Begin a component again, up to so often, if it, its memory or its node is lost
    #[arg(long, value_name = "N", default_value_t = 3)]
    retries: u32,

    /// Wait at most so long for the cores and the memory of a component
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s")]
    wait: Duration,

    /// Make the next components' environments ready so long after those before them have begun, or `never`
    #[arg(long, value_name = "TIME", value_parser = prewarm, default_value = "0s")]
    prewarm: Prewarm,

    /// What carries calls and memory: auto, shm, tcp or tcp+tls [default: $SUBLET_FABRIC, and else shared memory on a node's
    /// own machine, and the best common network from another one]
    #[arg(long, value_name = "FABRIC", value_parser = fabric)]
    fabric: Option<FabricChoice>,

    #[command(flatten)]
    pub(super) connection: Connection,
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

    /// The graph of a document, which is deployed, or of a name.
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

impl Terms {
    fn check(&self, output: &Output) -> Result<(), Error> {
        if is_dash(&self.output) && !output.is_for_people() {
            let message =
                "--json and the graph's output cannot share standard output: name a file with --output";
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(())
    }

    /// Says what happens, to people.
    fn tell(&self, output: &Output) -> impl FnMut(&News) + use<> {
        let is_told = output.is_for_people() && !self.quiet;
        move |news| {
            if is_told {
                eprintln!("{}", line(news));
            }
        }
    }

    fn finish(&self, outcome: &Outcome, took: Duration, output: &Output) -> Result<(), Error> {
        write_output(&self.output, &outputs(outcome))?;
        let ran = Ran {
            run: &outcome.run,
            total_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            components: component_uses(&outcome.components),
        };
        if is_dash(&self.output) {
            return Ok(());
        }
        output.show(&ran, |ran| {
            let Ran { run, total_ns, components } = ran;
            format!("run {run} has ended well in {}\n{}", show_ns(*total_ns), show_uses(components))
        })
    }
}

/// The result.
#[derive(Serialize)]
struct Ran<'run> {
    run: &'run str,
    total_ns: u64,
    components: Vec<ComponentUse>,
}

#[derive(Serialize)]
struct Deployed {
    name: String,
    digest: String,
    components: u32,
    size_bytes: u64,
    deployed_unix_ms: u64,
}

impl From<GraphInfo> for Deployed {
    fn from(info: GraphInfo) -> Deployed {
        let GraphInfo { name, digest, size_bytes, deployed_unix_ms, components } = info;
        Deployed { name, digest, components, size_bytes, deployed_unix_ms }
    }
}

/// Deploys.
pub(super) fn deploy(arguments: &Deploy, output: &Output) -> Result<(), Error> {
    let document = read_document(&arguments.file)?;
    // What is wrong is told with the file's name, and without asking anybody.
    parse(&arguments.file, &document)?;
    let deployed = Deployed::from(arguments.connection.open()?.deploy_graph(document)?);
    output.show(&deployed, |deployed| format!("{} {}", deployed.name, deployed.digest))
}

/// The result of `list`.
#[derive(Serialize)]
struct Graphs {
    graphs: Vec<Deployed>,
}

/// Lists.
pub(super) fn list(connection: &Connection, output: &Output) -> Result<(), Error> {
    let graphs: Vec<Deployed> = connection.open()?.graphs()?.into_iter().map(Deployed::from).collect();
    output.show(&Graphs { graphs }, |Graphs { graphs }| {
        let row = |graph: &Deployed| {
            let Deployed { name, digest, components, size_bytes, deployed_unix_ms } = graph;
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

/// Runs.
pub(super) fn run(arguments: &Run, output: &Output) -> Result<(), Error> {
    let Run { graph, input, terms } = arguments;
    terms.check(output)?;
    let application = terms.conditions.open(graph, terms.conditions.options())?;
    let failed = |error| Error::new(Code::System, format!("reading the input {}: {error}", input.display()));
    // One byte more than a run takes says that there is too much.
    let bytes = read_up_to(input, MAX_OUTPUT_BYTES as u64 + 1).map_err(failed)?;
    let begun = Instant::now();
    let outcome = application.run_with(&bytes, terms.tell(output))?;
    terms.finish(&outcome, begun.elapsed(), output)
}

/// Goes on.
pub(super) fn resume(arguments: &Resume, output: &Output) -> Result<(), Error> {
    let Resume { run, terms } = arguments;
    terms.check(output)?;
    let Conditions { connection, .. } = &terms.conditions;
    let info = connection.open()?.read_run(run, u64::MAX)?.info.unwrap_or_default();
    let application = Application::open(connection.access()?, &info.digest, terms.conditions.options())?;
    let begun = Instant::now();
    let outcome = application.resume(run, terms.tell(output))?;
    terms.finish(&outcome, begun.elapsed(), output)
}

/// Says what happens. Components and packages choose a part of it.
fn line(news: &News) -> String {
    let text = match news {
        News::Began { component, attempt: 1 } => format!("{component} begins"),
        News::Began { component, attempt } => format!("{component} begins again ({attempt})"),
        News::Ended { component, took } => {
            format!(
                "{component} is done, after {}",
                show_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX))
            )
        }
        News::Waits { component, error } => format!("{component} waits: {error}"),
        News::Lost { component, error } => format!("{component} was lost: {error}"),
        News::Failed { component, report, .. } => format!("{component} has failed{}", reported(report)),
    };
    printable_text(&text).into_owned()
}

/// What a failing function has printed, and its traceback.
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

/// A run's output, in the form of a message.
pub(super) fn outputs(outcome: &Outcome) -> Vec<u8> {
    let all: Vec<&[u8]> =
        outcome.outputs.iter().flat_map(|(_, outputs)| outputs.iter().map(Vec::as_slice)).collect();
    sublet_proto::run::message(&all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_what_a_failing_component_has_printed_and_its_traceback() {
        let report = br#"{"printed":[["stdout","a\n"],["log",{"msg":"b\u001b[2J"}]],"text":"Traceback:\n  x\n","errors":[]}"#;
        assert_eq!(reported(report), "\n  a\n  b\\x1b[2J\n  Traceback:\n    x");
        assert_eq!(reported(b"no report"), "");
    }

    #[test]
    fn news_hold_no_control_characters() {
        let error = Error::new(Code::WorkerDied, "gone\x1b[2J\u{202e}");
        assert_eq!(line(&News::Waits { component: "c".to_owned(), error }), "c waits: gone\\x1b[2J\\u{202e}");
    }
}
