//! The log of a run: its latest events, as the managers keep them.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use sublet_proto::run::{MAX_NOTE_BYTES, MAX_NOTES};
use sublet_proto::v1::RunNote;

use super::news::News;

/// See the [module](self).
#[derive(Default)]
pub(super) struct RunLog {
    /// The oldest first.
    notes: VecDeque<RunNote>,
}

impl RunLog {
    /// Continues the log of the processes that drove the run before.
    pub(super) fn new(notes: Vec<RunNote>) -> RunLog {
        let mut log = RunLog { notes: notes.into() };
        log.forget_oldest();
        log
    }

    /// Adds an event of a component.
    pub(super) fn add(&mut self, news: &News) {
        match news {
            News::Began { component, attempt: 1 } => self.note(component, "started".to_owned()),
            News::Began { component, attempt } => {
                self.note(component, format!("started again (attempt {attempt})"));
            }
            News::Ended { component, took } => self.note(component, format!("done, after {took:?}")),
            News::Waits { component, error } => self.note(component, format!("waiting: {error}")),
            News::Lost { component, error } => self.note(component, format!("lost: {error}")),
            News::Failed { component, error, report } => {
                let printed = printed(report);
                let between = if printed.is_empty() { "" } else { "\n" };
                self.note(component, format!("failed: {error}{between}{printed}"));
            }
        }
    }

    /// Adds an event of a component, or of the run itself if the name is empty.
    pub(super) fn note(&mut self, component: &str, mut text: String) {
        let end = (0..=text.len().min(MAX_NOTE_BYTES)).rev().find(|&end| text.is_char_boundary(end));
        text.truncate(end.unwrap_or_default());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.notes.push_back(RunNote { at_unix_ms, component: component.to_owned(), text });
        self.forget_oldest();
    }

    /// The events, the oldest first.
    pub(super) fn notes(&self) -> Vec<RunNote> {
        debug_assert!(self.notes.len() <= MAX_NOTES, "{} events are kept", self.notes.len());
        self.notes.iter().cloned().collect()
    }

    fn forget_oldest(&mut self) {
        while self.notes.len() > MAX_NOTES {
            self.notes.pop_front();
        }
    }
}

/// Output and traceback in the report of a failed function in Python.
fn printed(report: &[u8]) -> String {
    let Ok(report) = serde_json::from_slice::<Value>(report) else { return String::new() };
    let printed = report["printed"].as_array().into_iter().flatten();
    let mut text: String = printed
        .filter_map(|said| match &said[1] {
            Value::String(text) => Some(text.clone()),
            record => record["msg"].as_str().map(|text| format!("{text}\n")),
        })
        .collect();
    text.push_str(report["text"].as_str().unwrap_or_default());
    text
}

#[cfg(test)]
mod tests {
    use sublet_proto::{Code, Error};

    use super::*;

    #[test]
    fn keeps_the_latest_events() {
        let mut log = RunLog::default();
        for attempt in 1..=200 {
            log.add(&News::Began { component: "c".to_owned(), attempt });
        }
        let notes = log.notes();
        assert_eq!((notes.len(), &*notes[MAX_NOTES - 1].text), (MAX_NOTES, "started again (attempt 200)"));
        let continued = RunLog::new(notes).notes();
        assert_eq!((continued.len(), &*continued[0].text), (MAX_NOTES, "started again (attempt 73)"));
    }

    #[test]
    fn cuts_long_texts_between_characters() {
        let mut log = RunLog::default();
        log.note("", "ä".repeat(MAX_NOTE_BYTES));
        log.note("", format!("a{}", "ä".repeat(MAX_NOTE_BYTES)));
        let lengths: Vec<usize> = log.notes().iter().map(|note| note.text.len()).collect();
        assert_eq!(lengths, [MAX_NOTE_BYTES, MAX_NOTE_BYTES - 1]);
    }

    #[test]
    fn shows_what_a_failed_function_printed() {
        let mut log = RunLog::default();
        let report = br#"{"printed":[["stdout","a\n"],["log",{"msg":"b"}]],"text":"Traceback:\n"}"#;
        let error = Error::new(Code::FunctionFailed, "x");
        for report in [&report[..], b""] {
            let (component, error) = ("c".to_owned(), error.clone());
            log.add(&News::Failed { component, error, report: report.to_vec() });
        }
        let texts: Vec<String> = log.notes().into_iter().map(|note| note.text).collect();
        assert_eq!(texts, ["failed: x\na\nb\nTraceback:\n", "failed: x"]);
    }
}
