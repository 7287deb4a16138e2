//! Describes the subject of a measurement: the fields with which every result of calls begins.

use serde::Serialize;

use super::rounds::{CalledFunction, Mode};
use super::transport::TransportFields;

/// Fields in the order of the JSON output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Subject {
    pub(super) bench: &'static str,
    #[serde(flatten)]
    pub(super) carried: TransportFields,
    pub(super) mode: Mode,
    pub(super) function: CalledFunction,
    pub(super) size_bytes: u32,
}

impl Subject {
    /// Formats the fields for a table: transport, mode, function and size.
    pub(super) fn cells(&self) -> [String; 4] {
        [
            self.carried.cell(),
            self.mode.name().to_owned(),
            self.function.name().to_owned(),
            self.size_bytes.to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs and people may read the fields in order.
    #[test]
    fn results_begin_with_what_they_are_of() {
        let carried = TransportFields { fabric: "tcp", provider: None, encrypted: Some(false) };
        let subject = Subject {
            bench: "latency",
            carried,
            mode: Mode::Warm,
            function: CalledFunction::Noop,
            size_bytes: 64,
        };
        let json = r#"{"bench":"latency","fabric":"tcp","encrypted":false,"mode":"warm","function":"noop","size_bytes":64}"#;
        assert_eq!(serde_json::to_string(&subject).unwrap(), json);
        assert_eq!(subject.cells(), ["tcp", "warm", "noop", "64"]);
    }
}
