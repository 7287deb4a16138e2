//! Problems of a graph document, as they are found.

use std::ops::RangeInclusive;

use super::model::{MAX_PROBLEMS, Problem};
use crate::names::name_form;
use crate::package::is_name;

/// Problems that were found so far.
#[derive(Default)]
pub(super) struct Problems(pub(super) Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, at: impl Into<String>, message: impl Into<String>) {
        if self.0.len() < MAX_PROBLEMS {
            self.0.push(Problem { at: at.into(), message: message.into() });
        }
    }

    pub(super) fn check_name(&mut self, at: String, name: &str) {
        if !is_name(name) {
            self.add(at, format!("{name:?} is no name: {}", name_form()));
        }
    }

    pub(super) fn check_within(&mut self, at: String, value: u64, bounds: RangeInclusive<u64>) {
        if !bounds.contains(&value) {
            self.add(at, format!("{value} is not within {} to {}", bounds.start(), bounds.end()));
        }
    }
}
