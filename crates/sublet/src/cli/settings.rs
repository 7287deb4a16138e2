//! A configuration as the command shows it, and the log as it says.

use std::io::IsTerminal;

use serde::Serialize;
use sublet_proto::{Code, Error};
use tracing_subscriber::EnvFilter;

use super::output::{Output, table};
use crate::config::{Line, Settings};

/// The result of `--print-config`.
#[derive(Debug, Serialize)]
struct Configuration {
    configuration: Vec<Line>,
}

/// Shows every key with its value and who has set it.
pub(crate) fn show(settings: &Settings, output: &Output) -> Result<(), Error> {
    output.show(&Configuration { configuration: settings.lines() }, |shown| {
        let rows: Vec<_> = shown.configuration.iter().map(row).collect();
        table(&["KEY", "VALUE", "FROM"], &rows)
    })
}

fn row(line: &Line) -> [String; 3] {
    let value = line.value.clone().unwrap_or_else(|| format!("({})", line.meaning.unwrap_or_default()));
    [line.key.clone(), value, line.from.clone()]
}

/// Logs to standard error what the settings say.
pub(crate) fn start_log(settings: &Settings) -> Result<(), Error> {
    let filter = |text: &str| {
        EnvFilter::try_new(text).map_err(|error| format!("{text:?} is no level or filter: {error}"))
    };
    log(settings.needed("log", filter)?)
}

/// Logs to standard error what `$SUBLET_LOG` says, or warnings.
pub(crate) fn log_by_environment() {
    let filter = EnvFilter::try_from_env("SUBLET_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    // It is the first and only one of this process.
    let _ = log(filter);
}

fn log(filter: EnvFilter) -> Result<(), Error> {
    let is_terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let log = log.with_ansi(is_terminal);
    log.try_init().map_err(|error| Error::new(Code::Internal, format!("the log cannot be opened: {error}")))
}
