//! Reads the output of `sublet bench --json`: an object, or a list of objects, whose values are strings, numbers or
//! booleans.
//!
//! Objects inside of objects are skipped: no value that is shown here lies in one.

use std::collections::BTreeMap;

/// One measurement: a flat JSON object's fields by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    fields: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Number(f64),
    Truth(bool),
    Nothing,
}

/// Fields that the benchmarks do not print: [`Measurement::by`] and [`Measurement::over`] add them.
const LINK: &str = "link";
const COMMAND: &str = "command";
/// Deepest nesting that is read.
const MAX_DEPTH: usize = 16;

impl Measurement {
    /// Parses the measurements in a line of output. Returns an empty list if the line is not valid JSON.
    pub fn all_of(line: &str) -> Vec<Measurement> {
        let mut reader = JsonReader { rest: line.trim(), measurements: Vec::new() };
        match reader.value(0) {
            Some(_) if reader.rest.is_empty() => reader.measurements,
            _ => Vec::new(),
        }
    }

    /// Creates a measurement from its benchmark's name and one numeric field.
    pub fn of(bench: &str, field: &str, number: f64) -> Measurement {
        let bench = ("bench".to_owned(), Value::Text(bench.to_owned()));
        Measurement { fields: [bench, (field.to_owned(), Value::Number(number))].into() }
    }

    /// Adds the command that took the measurement.
    pub fn by(mut self, command: &str) -> Measurement {
        self.fields.insert(COMMAND.to_owned(), Value::Text(command.to_owned()));
        self
    }

    /// The command that took the measurement.
    pub fn command(&self) -> Option<&str> {
        self.text(COMMAND)
    }

    /// The numbers, by the names of their fields.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        self.fields.iter().filter_map(|(name, value)| match value {
            Value::Number(number) => Some((name.as_str(), *number)),
            _ => None,
        })
    }

    /// The string fields, which describe the subject of the measurement, without the command.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter_map(|(name, value)| match value {
            Value::Text(text) if name != COMMAND => Some(text.as_str()),
            _ => None,
        })
    }

    /// Adds the rate of the link that the measurement used, if it used one.
    pub fn over(mut self, link: Option<&str>) -> Measurement {
        if let Some(rate) = link {
            self.fields.insert(LINK.to_owned(), Value::Text(rate.to_owned()));
        }
        self
    }

    /// The rate of the link that the measurement used.
    pub fn link(&self) -> Option<&str> {
        self.text(LINK)
    }

    pub fn text(&self, field: &str) -> Option<&str> {
        match self.fields.get(field)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn number(&self, field: &str) -> Option<f64> {
        match self.fields.get(field)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub fn is(&self, field: &str) -> bool {
        self.fields.get(field) == Some(&Value::Truth(true))
    }
}

/// Reads from the front of the rest of the text. Only objects at the top, or in a list there, are kept: a list adds one
/// level of nesting, an object two.
struct JsonReader<'text> {
    rest: &'text str,
    measurements: Vec<Measurement>,
}

impl JsonReader<'_> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '{' => self.object(depth).map(|()| Value::Nothing),
            '[' => self.list(depth).map(|()| Value::Nothing),
            '"' => self.text().map(Value::Text),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        let mut measurement = Measurement::default();
        self.members('{', '}', |reader| {
            let name = reader.text()?;
            reader.take(':')?;
            let value = reader.value(depth + 2)?;
            measurement.fields.insert(name, value);
            Some(())
        })?;
        if depth <= 1 {
            self.measurements.push(measurement);
        }
        Some(())
    }

    fn list(&mut self, depth: usize) -> Option<()> {
        self.members('[', ']', |reader| reader.value(depth + 1).map(drop))
    }

    fn members(
        &mut self,
        open: char,
        close: char,
        mut member: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(open)?;
        if self.take(close).is_some() {
            return Some(());
        }
        loop {
            member(self)?;
            if self.take(',').is_none() {
                return self.take(close);
            }
        }
    }

    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        let mut characters = self.rest.strip_prefix('"')?.char_indices();
        while let Some((at, character)) = characters.next() {
            match character {
                '"' => {
                    self.rest = self.rest[at + 2..].trim_start();
                    return Some(text);
                }
                // The tables show no control characters, so every escaped character stands for itself.
                '\\' => text.push(characters.next()?.1),
                other => text.push(other),
            }
        }
        None
    }

    fn word(&mut self) -> Option<Value> {
        let end = self.rest.find([',', '}', ']', ':', ' ']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        match word {
            "true" => Some(Value::Truth(true)),
            "false" => Some(Value::Truth(false)),
            "null" => Some(Value::Nothing),
            number => number.parse().ok().map(Value::Number),
        }
    }

    fn take(&mut self, what: char) -> Option<()> {
        self.rest = self.rest.strip_prefix(what)?.trim_start();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_has_the_fields_of_its_object() {
        let line =
            r#"{"bench":"latency","fabric":"tcp","encrypted":true,"n":20096,"median_ns":1.25e1,"p":null}"#;
        let measurements = Measurement::all_of(line);
        assert_eq!(measurements.len(), 1);
        assert_eq!(
            (measurements[0].text("fabric"), measurements[0].number("median_ns")),
            (Some("tcp"), Some(12.5))
        );
        assert!(
            measurements[0].is("encrypted")
                && !measurements[0].is("p")
                && measurements[0].number("p").is_none()
        );
    }

    #[test]
    fn a_sweep_is_a_list_of_measurements() {
        assert_eq!(Measurement::all_of(r#"{"a": {"size_bytes": 9}}"#).len(), 1);
        let measurements = Measurement::all_of(
            r#"[{"size_bytes": 0, "x": {"size_bytes": 9}}, {"size_bytes": 64, "y": [{"z": 1}]}]"#,
        );
        let sizes: Vec<_> = measurements.iter().map(|measurement| measurement.number("size_bytes")).collect();
        assert_eq!(sizes, [Some(0.0), Some(64.0)]);
    }

    #[test]
    fn what_is_no_json_has_no_measurements() {
        for line in ["", "warning: x", "{", "{}}", "[1,", r#"{"a":}"#, r#"{"a":"x}"#, &"[".repeat(1000)] {
            assert_eq!(Measurement::all_of(line), [], "{line}");
        }
        assert_eq!(Measurement::all_of("{}").len(), 1);
    }
}
