//! Prints results and errors as text or JSON.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;
use sublet_fabric::standard::output_was_closed;
use sublet_proto::text::{printable_json, printable_line, printable_text};
use sublet_proto::{Code, Error};

/// Writer for a command's result and errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommandOutput {
    is_json: bool,
}

impl CommandOutput {
    /// Creates an output of text, or of JSON.
    pub(crate) fn new(is_json: bool) -> CommandOutput {
        CommandOutput { is_json }
    }

    /// Whether progress can be shown on a terminal.
    pub(crate) fn is_for_people(&self) -> bool {
        !self.is_json
    }

    /// Prints a result: JSON in one line, or the text for people, with control characters escaped.
    pub(crate) fn show<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Error> {
        print(self.shown(value, text)?.trim_end())
    }

    fn shown<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<String, Error> {
        if !self.is_json {
            return Ok(printable_text(&text(value)).into_owned());
        }
        let line = serde_json::to_string(value).map(|line| printable_json(&line).into_owned());
        debug_assert!(
            line.as_ref().is_ok_and(|line| !line.contains('\n')) || line.is_err(),
            "JSON has several lines: {line:?}"
        );
        line.map_err(|error| {
            Error::new(Code::Internal, format!("the result cannot be written as JSON: {error}"))
        })
    }

    /// Prints that a program is serving. Unlike [`CommandOutput::show`], a closed standard output is no error.
    pub(crate) fn announce<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Error> {
        if output_was_closed() {
            return Ok(());
        }
        self.show(value, text)
    }

    /// Tells what is being done, on standard error if that is a terminal.
    pub(crate) fn note(&self, step: &str) {
        if self.is_for_people() && io::stderr().is_terminal() {
            // If standard error is closed, the command continues.
            let _ = writeln!(io::stderr(), "{}", printable_line(step));
        }
    }

    /// Prints an error and returns its exit status.
    pub(crate) fn fail(&self, error: &Error) -> ExitCode {
        // If standard error is closed, the exit status still reports the error.
        let _ = writeln!(io::stderr(), "{}", self.failure(error));
        exit_code(error.code)
    }

    fn failure(&self, Error { code, message }: &Error) -> String {
        if self.is_json {
            let error = json!({ "code": code.name(), "number": code.number(), "message": message });
            printable_json(&json!({ "error": error }).to_string()).into_owned()
        } else {
            format!("error[{code}]: {}", printable_text(message))
        }
    }
}

/// Exit status of an error.
pub(crate) fn exit_code(code: Code) -> ExitCode {
    ExitCode::from(code.exit_status())
}

/// Checks that standard output is open.
pub(crate) fn check_standard_output() -> Result<(), Error> {
    match output_was_closed() {
        false => Ok(()),
        true => Err(Error::new(Code::System, "cannot write to standard output: it is closed")),
    }
}

/// Prints text and a newline. A reader that has closed its end, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    check_standard_output()?;
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::of_system("cannot write to standard output", &error))
        }
        _ => Ok(()),
    }
}

/// Formats rows under headings, each column as wide as its widest cell. Line feeds in cells are escaped.
pub(crate) fn table<Row: AsRef<[String]>>(headings: &[&str], rows: &[Row]) -> String {
    let mut widths: Vec<_> = headings.iter().map(|heading| heading.len()).collect();
    let cells = |row: &Row| row.as_ref().iter().map(|cell| printable_line(cell).into_owned()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    debug_assert!(
        rows.iter().all(|row| row.len() == headings.len()),
        "a row has not a cell under each of {headings:?}: {rows:?}"
    );
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(headings, &widths);
    for row in &rows {
        text += &line(row, &widths);
    }
    text
}

fn line(cells: &[impl AsRef<str>], widths: &[usize]) -> String {
    let padded: Vec<_> =
        cells.iter().zip(widths).map(|(cell, &width)| format!("{:width$}", cell.as_ref())).collect();
    format!("{}\n", padded.join("  ").trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1".to_owned()], ["long name".to_owned(), "2".to_owned()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME       N\na          1\nlong name  2\n");
    }

    #[test]
    fn escapes_control_characters_in_results_and_errors_for_people() {
        let (people, json) = (CommandOutput::new(false), CommandOutput::new(true));
        let text = "a\tb\n\x1b[2J\u{202e}c\r";
        let escaped = "a\tb\n\\x1b[2J\\u{202e}c\\x0d";
        let shown = |output: &CommandOutput| output.shown(&text, |text| (*text).to_owned()).unwrap();
        assert_eq!(shown(&people), escaped);
        assert_eq!(shown(&json), r#""a\tb\n\u001b[2J\u202ec\r""#);
        assert_eq!(serde_json::from_str::<String>(&shown(&json)).unwrap(), text);
        let error = Error::new(Code::FunctionFailed, text);
        assert_eq!(people.failure(&error), format!("error[{}]: {escaped}", Code::FunctionFailed));
        assert!(!json.failure(&error).contains(['\x1b', '\u{202e}']));
    }

    #[test]
    fn cells_cannot_begin_another_row() {
        let rows = [["a\nnode  2".to_owned(), "1".to_owned()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME          N\na\\x0anode  2  1\n");
    }

    #[test]
    fn every_code_is_an_exit_status_of_its_own() {
        assert_eq!(exit_code(Code::NoCapacity), ExitCode::from(31));
    }
}
