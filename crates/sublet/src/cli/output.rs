//! How results and errors are shown: for people, or as JSON.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::json;
use sublet_fabric::standard::output_was_closed;
use sublet_proto::{Code, Error};

/// Where a command's result goes.
#[derive(Debug)]
pub(crate) struct Output {
    is_json: bool,
}

impl Output {
    /// For people, or as JSON.
    pub(crate) fn new(is_json: bool) -> Output {
        Output { is_json }
    }

    /// Whether a person reads along.
    pub(crate) fn is_for_people(&self) -> bool {
        !self.is_json
    }

    /// Prints a result: its JSON in one line, or what a person wants to know of it.
    pub(crate) fn show<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<(), Error> {
        let text = if self.is_json {
            let line = serde_json::to_string(value);
            line.map_err(|error| Error::new(Code::Internal, format!("the result is no JSON: {error}")))?
        } else {
            text(value)
        };
        print(text.trim_end())
    }

    /// Says that a program serves, as [`Output::show`]. One that was started without standard output serves all the same.
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

    /// Shows an error and gives the exit status for it.
    pub(crate) fn fail(&self, error: &Error) -> ExitCode {
        let Error { code, message } = error;
        let text = if self.is_json {
            let error = json!({ "code": code.name(), "number": code.number(), "message": message });
            json!({ "error": error }).to_string()
        } else {
            format!("error[{code}]: {message}")
        };
        // If even standard error is closed, the exit status still tells.
        let _ = writeln!(io::stderr(), "{text}");
        exit_code(*code)
    }
}

/// The exit status of an error.
pub(crate) fn exit_code(code: Code) -> ExitCode {
    u8::try_from(code.number()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// That what is written to standard output goes anywhere.
pub(crate) fn check_standard_output() -> Result<(), Error> {
    match output_was_closed() {
        false => Ok(()),
        true => Err(Error::new(Code::System, "cannot write to standard output: it is closed")),
    }
}

/// Prints text and a newline; a reader that has gone away, as `head` does, is no error.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    check_standard_output()?;
    let mut stdout = io::stdout().lock();
    match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::new(Code::System, format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Rows under headings, in columns as wide as they need to be.
pub(crate) fn table<Row: AsRef<[String]>>(headings: &[&str], rows: &[Row]) -> String {
    let mut widths: Vec<_> = headings.iter().map(|heading| heading.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = line(headings, &widths);
    for row in rows {
        text += &line(row.as_ref(), &widths);
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
    fn every_code_is_an_exit_status_of_its_own() {
        assert_eq!(exit_code(Code::NoCapacity), ExitCode::from(31));
    }
}
