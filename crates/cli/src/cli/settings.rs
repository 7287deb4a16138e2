//! Shows a configuration, and sets up the log that it asks for.

use std::fmt;
use std::io::IsTerminal;

use serde::Serialize;
use sublet_proto::text::printable_line;
use sublet_proto::{Code, Error};
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format;

use super::output::{CommandOutput, table};
use crate::config::{ConfigLine, EffectiveSettings};

/// Output of `--print-config`.
#[derive(Debug, Serialize)]
struct Configuration {
    configuration: Vec<ConfigLine>,
}

/// Shows every key with its value and source.
pub(crate) fn show(settings: &EffectiveSettings, output: &CommandOutput) -> Result<(), Error> {
    output.show(&Configuration { configuration: settings.lines() }, |shown| {
        let rows: Vec<_> = shown.configuration.iter().map(row).collect();
        table(&["KEY", "VALUE", "FROM"], &rows)
    })
}

fn row(line: &ConfigLine) -> [String; 3] {
    let value = line.value.clone().unwrap_or_else(|| format!("({})", line.meaning.unwrap_or_default()));
    [line.key.clone(), value, line.from.clone()]
}

/// Starts the log on standard error, and logs which keys of the file the environment overrides.
pub(crate) fn start_log(settings: &EffectiveSettings) -> Result<(), Error> {
    log(settings.needed("log", filter)?)?;
    settings.warnings().for_each(|warning| tracing::warn!("{warning}"));
    Ok(())
}

/// Starts the log on standard error at the level of `$SUBLET_LOG`, or for warnings.
pub(crate) fn log_by_environment() -> Result<(), Error> {
    let said = std::env::var("SUBLET_LOG").ok().filter(|text| !text.is_empty());
    let filter = filter(said.as_deref().unwrap_or("warn"));
    log(filter.map_err(|why| Error::new(Code::InvalidArgument, format!("SUBLET_LOG: {why}")))?)
}

/// Parses a log filter. The library would take an unknown level for a target, and log everything of that.
fn filter(text: &str) -> Result<EnvFilter, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let allowed = || {
        format!("{text:?} is not a log level: {}, or TARGET=LEVEL, separated by commas", LEVELS.join(", "))
    };
    let is_level = |word: &str| LEVELS.iter().any(|level| word.eq_ignore_ascii_case(level));
    let is_directive = |directive: &str| match directive.rsplit_once('=') {
        Some((target, level)) => !target.trim().is_empty() && is_level(level.trim()),
        None => is_level(directive.trim()),
    };
    if !text.split(',').all(is_directive) {
        return Err(allowed());
    }
    EnvFilter::try_new(text).map_err(|_| allowed())
}

/// Writes a field of a log line, escaped: peers and functions choose parts of it, which must not begin another line.
fn write_field(writer: &mut format::Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let text = format!("{value:?}");
    match (field.name(), printable_line(&text)) {
        ("message", text) => writer.write_str(&text),
        (name, text) => write!(writer, "{name}={text}"),
    }
}

fn log(filter: EnvFilter) -> Result<(), Error> {
    let is_terminal = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let log = log.with_ansi(is_terminal).fmt_fields(format::debug_fn(write_field).delimited(" "));
    log.try_init().map_err(|error| Error::new(Code::Internal, format!("cannot start the log: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_hold_no_control_characters() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let file = std::fs::File::options().append(true).open(log.path()).unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(file).with_ansi(false);
        let subscriber = subscriber.fmt_fields(format::debug_fn(write_field).delimited(" ")).finish();
        tracing::subscriber::with_default(subscriber, || {
            let error = "gone\n2026 ERROR forged\x1b[2J\u{202e}";
            tracing::warn!(%error, cores = 2, "lease \r{error}");
        });
        let text = std::fs::read_to_string(log.path()).unwrap();
        let escaped = "gone\\x0a2026 ERROR forged\\x1b[2J\\u{202e}";
        assert!(text.ends_with(&format!(": lease \\x0d{escaped} error={escaped} cores=2\n")), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn rejects_unknown_log_levels() {
        for text in ["warn", "DEBUG", "off", "info,sublet_agent=debug", "sublet_manager::shell=trace, error"]
        {
            assert!(filter(text).is_ok(), "{text}");
        }
        for text in ["loud", "", "warning", "sublet_agent", "sublet_agent=loud", "=info", "info,"] {
            let why = filter(text).unwrap_err();
            assert!(why.contains("error, warn, info, debug"), "{text}: {why}");
        }
    }
}
