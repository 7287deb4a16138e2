//! Reads the output of `sublet bench --json`: an object, or a list of objects, each of which is a measurement.
//!
//! The fields of an object inside of a measurement become fields of the measurement: `rejected.median_ns`. An object in
//! a list there is named by its first text: `steps.sandbox.median_us`.

use std::collections::BTreeMap;

/// One measurement: its fields by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    fields: Fields,
}

type Fields = BTreeMap<String, Value>;

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Number(f64),
    Truth(bool),
    Nothing,
    Object(Fields),
    List(Vec<Value>),
}

/// Fields that the benchmarks do not print: [`Measurement::by`] and [`Measurement::over`] add them.
const LINK: &str = "link";
const COMMAND: &str = "command";
/// Fields whose text identifies a lease or a run, and describes nothing.
const IDENTIFIERS: [&str; 2] = ["lease", "run"];
/// Deepest nesting that is read.
const MAX_DEPTH: usize = 16;

impl Measurement {
    /// Parses the measurements in a line of output. Returns an empty list if the line is not valid JSON.
    pub fn all_of(line: &str) -> Vec<Measurement> {
        let mut reader = JsonReader { rest: line.trim() };
        match reader.value(0) {
            Some(Value::Object(fields)) if reader.rest.is_empty() => vec![Measurement::flat(fields)],
            Some(Value::List(items)) if reader.rest.is_empty() => {
                items.into_iter().filter_map(Measurement::of_item).collect()
            }
            _ => Vec::new(),
        }
    }

    fn of_item(item: Value) -> Option<Measurement> {
        match item {
            Value::Object(fields) => Some(Measurement::flat(fields)),
            _ => None,
        }
    }

    fn flat(fields: Fields) -> Measurement {
        let mut measurement = Measurement::default();
        for (name, value) in fields {
            measurement.add(name, value);
        }
        measurement
    }

    /// Adds a value, or the values inside of it, whose names begin with the given one.
    fn add(&mut self, name: String, value: Value) {
        match value {
            Value::Object(fields) => {
                for (inner, value) in fields {
                    self.add(format!("{name}.{inner}"), value);
                }
            }
            Value::List(items) => {
                for (position, item) in items.into_iter().enumerate() {
                    let (label, item) = labelled(position, item);
                    self.add(format!("{name}.{label}"), item);
                }
            }
            simple => {
                self.fields.insert(name, simple);
            }
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

    /// The string fields, which describe the subject of the measurement, without the command and identifiers.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().filter_map(|(name, value)| match value {
            Value::Text(text) if name != COMMAND && !IDENTIFIERS.contains(&name.as_str()) => {
                Some(text.as_str())
            }
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

    /// Whether this is a measurement: it has a number, and is not the error that a command prints.
    pub fn has_measured(&self) -> bool {
        let is_error = |name: &String| name == "error" || name.starts_with("error.");
        self.numbers().next().is_some() && !self.fields.keys().any(is_error)
    }

    pub fn is(&self, field: &str) -> bool {
        self.fields.get(field) == Some(&Value::Truth(true))
    }
}

/// Returns the name of a list's item and the item: the name is the item's first text, or else its position.
fn labelled(position: usize, item: Value) -> (String, Value) {
    let mut fields = match item {
        Value::Object(fields) => fields,
        simple => return (position.to_string(), simple),
    };
    let first =
        fields.iter().find(|(_, value)| matches!(value, Value::Text(_))).map(|(name, _)| name.clone());
    let label = match first.and_then(|name| fields.remove(&name)) {
        Some(Value::Text(text)) => text,
        _ => position.to_string(),
    };
    (label, Value::Object(fields))
}

/// Reads from the front of the rest of the text.
struct JsonReader<'text> {
    rest: &'text str,
}

impl JsonReader<'_> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.rest.chars().next()? {
            '{' => self.object(depth).map(Value::Object),
            '[' => self.list(depth).map(Value::List),
            '"' => self.text().map(Value::Text),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Fields> {
        let mut fields = Fields::new();
        self.members('{', '}', |reader| {
            let name = reader.text()?;
            reader.take(':')?;
            let value = reader.value(depth + 1)?;
            fields.insert(name, value);
            Some(())
        })?;
        Some(fields)
    }

    fn list(&mut self, depth: usize) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        self.members('[', ']', |reader| {
            items.push(reader.value(depth + 1)?);
            Some(())
        })?;
        Some(items)
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
    fn values_inside_of_a_measurement_are_its_fields() {
        let line = r#"{"bench":"cold","steps":[{"step":"sandbox","median_us":3},{"step":"function","median_us":4}],
"plain":{"n":5,"deep":{"n":6}},"sizes":[7,8],"run":"b1","lease":"1-2"}"#;
        let measurement = Measurement::all_of(line).remove(0);
        let numbers: Vec<_> = measurement.numbers().collect();
        let expected = [
            ("plain.deep.n", 6.0),
            ("plain.n", 5.0),
            ("sizes.0", 7.0),
            ("sizes.1", 8.0),
            ("steps.function.median_us", 4.0),
            ("steps.sandbox.median_us", 3.0),
        ];
        assert_eq!(numbers, expected);
        assert_eq!(measurement.labels().collect::<Vec<_>>(), ["cold"]);
        assert!(measurement.has_measured());
        for line in [r#"{"error":{"code":"io","status":5}}"#, r#"{"error":"x","n":1}"#, r#"{"bench":"cold"}"#]
        {
            assert!(!Measurement::all_of(line)[0].has_measured(), "{line}");
        }
    }

    #[test]
    fn what_is_no_json_has_no_measurements() {
        for line in ["", "warning: x", "{", "{}}", "[1,", r#"{"a":}"#, r#"{"a":"x}"#, &"[".repeat(1000)] {
            assert_eq!(Measurement::all_of(line), [], "{line}");
        }
        assert_eq!(Measurement::all_of("{}").len(), 1);
    }
}
