//! Graphs: applications of more than one component, as they are written down and what makes them valid.
//!
//! A graph has compute components, which execute a function of a package, and memory components, which functions access.
//! A compute component that has ended *triggers* others, each always or if its output says so: its output is their input. While it runs it *accesses* memory
//! components and exchanges *messages* with other compute components that run at the same time. One component is the
//! entry: the run's input is its input. Components are virtual: how many segments hold a memory component and which nodes
//! execute a compute component is decided for each run.
//!
//! The form is JSON, which compilers write and people read; docs/graphs.md says what each field means and
//! `docs/graph.schema.json` is its schema. [`Graph::parse`] is the gate that every document passes, and it trusts
//! nothing. It tells all that is wrong at once, each with its place in the document. A [`Graph`] that it gives
//!
//! - has one entry, from which triggers lead to every other compute component, and triggers lead in no circle;
//! - has no memory component that nobody accesses, and no message between components of which one starts when the other
//!   has ended;
//! - has names that are unique and edges of which both ends are there, each once;
//! - is bounded by the constants here.
//!
//! From: Scad, sections 3.1 and 3.2.

mod check;
mod document;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pool::Pool;
use crate::{Code, Error};
use document::Document;

/// Of the form that is described here.
pub const VERSION: u32 = 1;
/// Largest document, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// Most components of a graph.
pub const MAX_COMPONENTS: usize = 1024;
/// Most edges of a graph.
pub const MAX_EDGES: usize = 16_384;
/// Most instances of a compute component.
pub const MAX_PARALLELISM: u32 = 1024;
/// Largest memory component, and most memory of a compute component's instance, in bytes: a pebibyte.
pub const MAX_MEMORY_BYTES: u64 = 1 << 50;
/// Most segments of a memory component that has its full size.
pub const MAX_SEGMENTS: u64 = 65_536;
/// Most instances of a graph that swap.
pub const MAX_SWAPPING: u32 = 256;
/// How large a memory component is at first, and by how much it grows, if nothing is said and nothing is known.
pub const DEFAULT_SEGMENT_BYTES: u64 = 16 << 20;
/// Longest text of a trigger's condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 256;
/// Most that is told of what is wrong with a document.
pub const MAX_PROBLEMS: usize = 64;

/// A valid graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Of the application.
    pub name: String,
    /// In the order of the document.
    pub components: Vec<Component>,
    /// In the order of the document.
    pub edges: Vec<Edge>,
    /// What one run may hold at a time.
    pub limits: Limits,
}

/// A vertex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Unique in its graph.
    pub name: String,
    /// What it is.
    pub role: Role,
}

/// What a component is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// It executes.
    Compute(Compute),
    /// It holds data.
    Memory(Memory),
}

/// A component that executes a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Name or digest of a deployed package.
    pub package: String,
    /// Which of its functions.
    pub function: String,
    /// Whether a run begins with it.
    pub is_entry: bool,
    /// How many instances execute it at the same time.
    pub parallelism: u32,
    /// Whether it changes anything outside of its run: if so, it is not executed again unasked when a component has died.
    pub has_external_effects: bool,
    /// What is not said of memory is chosen by what earlier runs used.
    pub resources: Resources,
}

/// What each instance of a compute component will need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Kind of processing unit; if there is none, the cheapest for which the package has a build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pu: Option<String>,
    /// Memory of its own, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// In which pool of nodes it must be; if there is none, rather in that of what it needs. This is no hint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// How much it may allocate that is swapped, in bytes: what its own memory has no room for is in memory components. If
    /// there is none, nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_bytes: Option<u64>,
}

/// A component that holds data. It begins with its first access, and ends with the last component that may access it, or
/// when it is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Size of its first segment; nothing: chosen by what earlier runs used.
    pub initial_bytes: Option<u64>,
    /// Size of each segment that is added; nothing: as above.
    pub increment_bytes: Option<u64>,
    /// It grows no further.
    pub limit_bytes: u64,
    /// In which pool of nodes its segments must be; if there is none, rather in that of memory.
    pub pool: Option<Pool>,
}

/// A relation of two components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Index of a compute component.
    pub from: usize,
    /// Index of another component.
    pub to: usize,
    /// Which one.
    pub relation: Relation,
    /// Of a trigger: in which case it does so; always, if there is none.
    pub condition: Option<Condition>,
}

/// In which case a component that has ended triggers another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Its output begins so.
    When(String),
    /// None of its other triggers' texts is what its output begins with.
    Otherwise,
}

/// How two components are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// When the first has ended, the second begins with its output.
    Trigger,
    /// The first reads, or reads and writes, the memory of the second.
    Access(Rights),
    /// They send each other messages, either way.
    Message,
}

/// What may be done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rights {
    /// It may be read.
    Read,
    /// It may be read and written.
    Write,
}

/// The most that one run of a graph holds at a time; what is over it waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Cores of all instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Memory of all components, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// Something that is wrong with a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Where, as `components[2].parallelism`; empty for the document as a whole.
    pub at: String,
    /// What.
    pub message: String,
}

impl Graph {
    /// The graph of a document.
    ///
    /// # Errors
    /// All that is wrong with it, but no more than [`MAX_PROBLEMS`]; if it is not of the form at all, the first of that.
    pub fn parse(json: &[u8]) -> Result<Graph, Vec<Problem>> {
        let document = Document::parse(json).map_err(|problem| vec![problem])?;
        check::graph(document)
    }

    /// The document in one line, with what was left out filled in.
    pub fn to_json(&self) -> String {
        serde_json::to_string(&Document::of(self)).expect("strings and numbers are JSON")
    }

    /// Index of the component with which a run begins.
    pub fn entry(&self) -> usize {
        self.components.iter().position(Component::is_entry).unwrap_or_default()
    }

    /// The edges from a component, and which component each leads to.
    pub fn edges_from(&self, from: usize) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.from == from)
    }

    /// Whether a component that has ended with this output triggers the other end of one of its edges.
    pub fn does_trigger(&self, edge: &Edge, output: &[u8]) -> bool {
        let begins = |text: &String| output.starts_with(text.as_bytes());
        match &edge.condition {
            None => edge.relation == Relation::Trigger,
            Some(Condition::When(text)) => begins(text),
            Some(Condition::Otherwise) => !self
                .edges_from(edge.from)
                .any(|other| matches!(&other.condition, Some(Condition::When(text)) if begins(text))),
        }
    }

    /// The edges to a component.
    pub fn edges_to(&self, to: usize) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.to == to)
    }
}

impl Component {
    /// Whether a run begins with it.
    pub fn is_entry(&self) -> bool {
        self.compute().is_some_and(|compute| compute.is_entry)
    }

    /// What it executes, if it does.
    pub fn compute(&self) -> Option<&Compute> {
        match &self.role {
            Role::Compute(compute) => Some(compute),
            Role::Memory(_) => None,
        }
    }

    /// What it holds, if it does.
    pub fn memory(&self) -> Option<&Memory> {
        match &self.role {
            Role::Memory(memory) => Some(memory),
            Role::Compute(_) => None,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at.as_str() {
            "" => f.write_str(&self.message),
            at => write!(f, "{at}: {}", self.message),
        }
    }
}

/// One error of all that is wrong with the document of this name, a line for each.
pub fn error(document: impl fmt::Display, problems: &[Problem]) -> Error {
    let lines: Vec<String> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    Error::new(Code::InvalidGraph, format!("{document} is no graph:{}", lines.concat()))
}
