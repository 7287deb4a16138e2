//! `sublet graph wait`, `cancel` and `logs`: runs that this command does not drive.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use sublet_proto::Error;
use sublet_runtime::run::{LogLine, RunHandle};

use super::run::OutputDestination;
use crate::cli::ConnectionArguments;
use crate::cli::output::CommandOutput;
use crate::cli::parse::duration;
use crate::cli::time::show_moment;

/// Wait until a detached run has ended, and write its output
///
/// The exit status is 0 if the run succeeded, and otherwise that of the run's error.
#[derive(Debug, Args)]
pub(super) struct WaitArguments {
    /// The run's identifier, as `sublet graph run --detach` prints it
    run: String,

    /// Wait at most this long: then the command fails, and the run continues [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    #[command(flatten)]
    destination: OutputDestination,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// End a run before it is done
///
/// The process that drives it gives its cores and memory back within about a second. The run cannot be resumed.
#[derive(Debug, Args)]
pub(super) struct CancelArguments {
    /// The run's identifier
    run: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Show the latest events of a run
///
/// The log has starts, ends, losses and failures of components, with what a failed function in Python printed, and the
/// processes that drove the run. The managers keep the latest 128 events. `sublet logs LEASE` shows what other functions print.
#[derive(Debug, Args)]
pub(super) struct LogsArguments {
    /// The run's identifier
    run: String,

    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Report on a cancelled run.
#[derive(Serialize)]
struct CancelledRun<'run> {
    run: &'run str,
}

/// Log of a run.
#[derive(Serialize)]
struct RunLogOutput<'run> {
    run: &'run str,
    events: Vec<EventView>,
}

#[derive(Serialize)]
struct EventView {
    at_unix_ms: u64,
    /// Absent: the run itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    component: Option<String>,
    text: String,
}

impl From<LogLine> for EventView {
    fn from(line: LogLine) -> EventView {
        let LogLine { at_unix_ms, component, text } = line;
        EventView { at_unix_ms, component: Some(component).filter(|name| !name.is_empty()), text }
    }
}

/// Waits for a run.
pub(super) fn wait(arguments: &WaitArguments, output: &CommandOutput) -> Result<(), Error> {
    let WaitArguments { run, timeout, destination, connection } = arguments;
    destination.check(output)?;
    let outcome = RunHandle::open(connection.access()?, run)?.wait(*timeout)?;
    let info = connection.open()?.read_run(run, u64::MAX)?.info.unwrap_or_default();
    debug_assert!(info.ended_unix_ms >= info.began_unix_ms, "run {run} ended before it began");
    let took = Duration::from_millis(info.ended_unix_ms.saturating_sub(info.began_unix_ms));
    destination.finish(&outcome, took, output)
}

/// Cancels a run.
pub(super) fn cancel(arguments: &CancelArguments, output: &CommandOutput) -> Result<(), Error> {
    let CancelArguments { run, connection } = arguments;
    RunHandle::open(connection.access()?, run)?.cancel()?;
    output.show(&CancelledRun { run }, |CancelledRun { run }| format!("cancelled {run}"))
}

/// Shows the log of a run.
pub(super) fn logs(arguments: &LogsArguments, output: &CommandOutput) -> Result<(), Error> {
    let LogsArguments { run, connection } = arguments;
    let lines = RunHandle::open(connection.access()?, run)?.logs()?;
    let log = RunLogOutput { run, events: lines.into_iter().map(EventView::from).collect() };
    output.show(&log, |log| {
        if log.events.is_empty() {
            return "no events were reported yet".to_owned();
        }
        log.events.iter().map(line).collect()
    })
}

/// Formats an event: further lines of its text are indented.
fn line(event: &EventView) -> String {
    let EventView { at_unix_ms, component, text } = event;
    debug_assert!(component.as_ref().is_none_or(|name| !name.is_empty()), "a component without a name");
    let (component, text) = (component.as_deref().unwrap_or("run"), text.trim_end().replace('\n', "\n    "));
    format!("{} {component}: {text}\n", show_moment(*at_unix_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_several_lines_are_indented() {
        let event = |component: &str, text: &str| {
            let (component, text) = (component.to_owned(), text.to_owned());
            line(&EventView::from(LogLine { at_unix_ms: 0, component, text }))
        };
        assert_eq!(event("c", "failed: x\na\n"), "1970-01-01T00:00:00Z c: failed: x\n    a\n");
        assert_eq!(event("", "driven by n"), "1970-01-01T00:00:00Z run: driven by n\n");
    }
}
