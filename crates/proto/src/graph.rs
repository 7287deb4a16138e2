//! Graphs: applications of more than one component, their form and their validity.
//!
//! A graph has compute components, which execute a function of a package, and memory components, which functions access.
//! A compute component that has ended *triggers* others, each always or depending on its output: its output is their
//! input. While it runs it *accesses* memory components and exchanges *messages* with other compute components that run
//! at the same time. One component is the entry: the run's input is its input. Components are virtual: each run decides
//! how many segments hold a memory component and which nodes execute a compute component.
//!
//! The form is JSON, which compilers write and people read; docs/graphs.md explains each field and
//! `docs/graph.schema.json` is its schema. [`Graph::parse`] checks every document, and trusts nothing. It reports all
//! faults at once, each with its position in the document. A [`Graph`] that it returns
//!
//! - has one entry, from which triggers lead to every other compute component, and triggers lead in no circle;
//! - has no memory component without an access, and no message between components of which one starts when the other
//!   has ended;
//! - has the data from which a number of instances follows when that component begins;
//! - has names that are unique and edges with two existing ends, each once;
//! - is bounded by the constants here.
//!
//! From: Scad, sections 3.1 and 3.2.

mod check;
mod device_memory;
mod document;
mod model;
mod parallelism;
mod problems;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::{Code, Error};
use document::GraphSource;

pub use model::{
    Component, Compute, Condition, DEFAULT_SEGMENT_BYTES, Edge, Graph, InstancesFrom, MAX_COMPONENT_CORES,
    MAX_COMPONENTS, MAX_CONDITION_BYTES, MAX_DEVICE_MEMORY_BYTES, MAX_DOCUMENT_BYTES, MAX_EDGES,
    MAX_MEMORY_BYTES, MAX_PARALLELISM, MAX_PROBLEMS, MAX_SEGMENTS, MAX_SWAPPING, MAX_WARM_S, Medium,
    MemoryNeed, MemoryRights, Problem, Relation, Resources, Role, RunLimits, SwapMedium, VERSION, Warmth,
};

impl Graph {
    /// Parses the graph of a document.
    ///
    /// # Errors
    /// All problems of the document, but no more than [`MAX_PROBLEMS`]; if it is not of the form at all, the first of
    /// these.
    pub fn parse(json: &[u8]) -> Result<Graph, Vec<Problem>> {
        let document = GraphSource::parse(json).map_err(|problem| vec![problem])?;
        check::graph(document)
    }

    /// Writes the document in one line, with defaults filled in.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&GraphSource::of(self)).expect("strings and numbers are JSON")
    }
}

/// Returns one error with all problems of the document of this name, a line for each.
pub fn error(document: impl fmt::Display, problems: &[Problem]) -> Error {
    let lines: Vec<String> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    Error::new(Code::InvalidGraph, format!("{document} is no graph:{}", lines.concat()))
}
