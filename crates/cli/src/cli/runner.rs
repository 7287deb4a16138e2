//! `sublet runner`: drives detached runs of graphs until a signal.

use clap::Args;
use serde::Serialize;
use sublet_proto::Error;
use sublet_runtime::Access;
use sublet_runtime::run::{Runner, RunnerNews, RunnerOptions};

use super::ConnectionArguments;
use super::daemon::{self, DaemonPhase, ForWhom, Signals, blocking, notify, own_node_name, stop_in_order};
use super::output::CommandOutput;
use super::parse::show_count;

const EXAMPLES: &str = "\
Examples:
  sublet runner                    drive detached runs, up to 16 at a time
  sublet runner --at-once 64       drive more of them

With the token of an operator it drives the runs of all tenants, each with the rights of its tenant; with that of a user, the runs of
this tenant. Several runners stand in for each other: when one is gone, others continue its runs within seconds. `sublet up` drives
runs itself.

It runs until Ctrl-C or SIGTERM, then hands its runs back to the other runners. A second Ctrl-C stops it at once.";

/// Number of runs that `sublet up` drives at a time, and `sublet runner` by default.
const AT_ONCE: u32 = 16;

/// Drive detached runs of graphs
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Maximum number of concurrent runs
    #[arg(long, value_name = "N", default_value_t = AT_ONCE, value_parser = clap::value_parser!(u32).range(1..=256))]
    at_once: u32,

    /// Name of this runner in the logs of runs [default: the host name]
    #[arg(long)]
    name: Option<String>,

    #[command(flatten)]
    connection: ConnectionArguments,

    #[command(flatten)]
    for_whom: ForWhom,
}

/// Report that the runner is running.
#[derive(Debug, Serialize)]
struct RunnerReady {
    runner: String,
    at_once: u32,
    pid: u32,
}

/// Runs until a signal.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    daemon::run(serve(arguments, output))
}

async fn serve(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    let mut signals = Signals::listen_for(&arguments.for_whom)?;
    let name = arguments.name.clone().unwrap_or_else(own_node_name);
    let options = RunnerOptions::new(name, arguments.at_once);
    let ready =
        RunnerReady { runner: options.name.clone(), at_once: options.at_once, pid: std::process::id() };
    debug_assert!((1..=256).contains(&options.at_once), "{} runs at a time", options.at_once);
    let access = arguments.connection.access()?;
    let runner = blocking(move || Runner::start(access, options, log)).await?;
    notify(DaemonPhase::Ready);
    let shown = output.announce(&ready, |ready| {
        let runs = show_count(ready.at_once.into(), "detached run");
        format!("runner {} drives up to {runs} at a time\nCtrl-C hands them to other runners\n", ready.runner)
    });
    if shown.is_ok() {
        signals.next().await;
    }
    let stop = blocking(move || {
        runner.stop();
        Ok(())
    });
    stop_in_order(stop, &mut signals).await.and(shown)
}

/// Starts the runner of `sublet up`.
pub(super) fn start_of_up(access: Access) -> Result<Runner, Error> {
    Runner::start(access, RunnerOptions::new(own_node_name(), AT_ONCE), log)
}

fn log(news: &RunnerNews) {
    match news {
        RunnerNews::Taken { run, tenant, epoch } => tracing::info!(run, tenant, epoch, "drives a run"),
        RunnerNews::Left { run, tenant, error: None } => tracing::info!(run, tenant, "the run succeeded"),
        RunnerNews::Left { run, tenant, error: Some(error) } => {
            tracing::info!(run, tenant, %error, "the run failed, or another process drives it");
        }
        RunnerNews::Prewarmed { graph, tenant, error: None } => {
            tracing::info!(graph, tenant, "leased workers for a run that is expected");
        }
        RunnerNews::Prewarmed { graph, tenant, error: Some(error) } => {
            tracing::info!(graph, tenant, %error, "leased no workers for a run that is expected");
        }
        RunnerNews::Unable { error } => tracing::warn!(%error, "cannot look for detached runs"),
    }
}
