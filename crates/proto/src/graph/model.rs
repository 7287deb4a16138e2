//! The parts of a graph and their bounds.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pool::Pool;

/// Version of the form that is described here.
pub const VERSION: u32 = 1;
/// Largest document, in bytes.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// Most components of a graph.
pub const MAX_COMPONENTS: usize = 1024;
/// Most edges of a graph.
pub const MAX_EDGES: usize = 16_384;
/// Most instances of a compute component.
pub const MAX_PARALLELISM: u32 = 1024;
/// Most cores of a compute component's instances together.
pub const MAX_COMPONENT_CORES: u32 = 65_536;
/// Largest memory component, and most memory of a compute component's instance, in bytes: a pebibyte.
pub const MAX_MEMORY_BYTES: u64 = 1 << 50;
/// Most segments of a memory component that has its full size.
pub const MAX_SEGMENTS: u64 = 65_536;
/// Most instances of a graph that swap.
pub const MAX_SWAPPING: u32 = 256;
/// Largest memory component on a device, in bytes: a kernel gets sizes of 32 bits, of which the largest is an error.
pub const MAX_DEVICE_MEMORY_BYTES: u64 = 0xffff_fffe;
/// First size of a memory component, and size of its growth, if neither the graph nor earlier runs tell.
pub const DEFAULT_SEGMENT_BYTES: u64 = 16 << 20;
/// Longest text of a trigger's condition, in bytes.
pub const MAX_CONDITION_BYTES: usize = 256;
/// Longest time for which workers of an application are kept between its runs, in seconds: 4 hours.
pub const MAX_WARM_S: u32 = 14_400;
/// Most problems of a document that are reported.
pub const MAX_PROBLEMS: usize = 64;

/// A valid graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    /// Name of the application.
    pub name: String,
    /// Components in the order of the document.
    pub components: Vec<Component>,
    /// Edges in the order of the document.
    pub edges: Vec<Edge>,
    /// Limits of one run's resources at a time.
    pub limits: RunLimits,
    /// Rule by which runners keep idle workers of detached runs.
    pub warm: Warmth,
}

/// A vertex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Name, unique in its graph.
    pub name: String,
    /// Type of the component, with its own fields.
    pub role: Role,
}

/// Type of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A component that executes a function.
    Compute(Compute),
    /// A component that holds data.
    Memory(MemoryNeed),
}

/// A component that executes a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Name or digest of a deployed package.
    pub package: String,
    /// Name of the package's function.
    pub function: String,
    /// Whether a run begins with it.
    pub is_entry: bool,
    /// Number of instances that execute it at the same time; the most if the number follows from data.
    pub parallelism: u32,
    /// Data from which the number of instances follows when it begins; `None`: the number is fixed.
    pub instances_from: Option<InstancesFrom>,
    /// Whether it changes anything outside of its run: if so, it is not executed again unasked when a component has
    /// died.
    pub has_external_effects: bool,
    /// Resources of each instance; memory that is left out is chosen from the usage of earlier runs.
    pub resources: Resources,
}

/// Data from which the number of a component's instances follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstancesFrom {
    /// The number with which the output of a component that triggers it begins.
    Output {
        /// Index of that component.
        component: usize,
    },
    /// One instance for each part of a memory component, and at least one.
    Memory {
        /// Index of the memory component.
        memory: usize,
        /// Size of a part, in bytes.
        bytes_each: u64,
    },
}

/// Resources that each instance of a compute component needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Kind of processing unit; `None`: the cheapest for which the package has a build.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pu: Option<String>,
    /// Cores, all on one node; `None`: one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Memory of its own, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Pool of nodes in which it must be; `None`: preferably the pool of its resources. A named pool is mandatory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<Pool>,
    /// Memory that it may allocate and swap, in bytes: memory components hold what exceeds its own memory. `None`: no
    /// memory is swapped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_bytes: Option<u64>,
}

impl Resources {
    /// Returns the number of cores of an instance.
    pub fn cores_each(&self) -> u32 {
        self.cores.unwrap_or(1)
    }
}

impl Compute {
    /// Returns the number of cores of all instances together.
    pub fn cores(&self) -> u32 {
        self.parallelism.saturating_mul(self.resources.cores_each())
    }
}

/// A component that holds data. It begins with its first access, and ends with the last component that may access it, or
/// when it is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Size of its first segment; `None`: chosen from the usage of earlier runs.
    pub initial_bytes: Option<u64>,
    /// Size of each segment that is added; `None`: chosen from the usage of earlier runs.
    pub increment_bytes: Option<u64>,
    /// Largest size, in bytes.
    pub limit_bytes: u64,
    /// Pool of nodes in which its segments must be; `None`: preferably the memory pool.
    pub pool: Option<Pool>,
    /// Whether it is the result of the run: then it does not end with the last component, and the client reads it.
    pub is_result: bool,
    /// Kind of memory that holds it.
    pub medium: Medium,
}

/// Kind of memory that holds a memory component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Memory of nodes, in segments.
    #[default]
    Memory,
    /// Memory of the device on which the components that access it are executed, one after another by one worker.
    Device,
}

/// A relation of two components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Index of a compute component.
    pub from: usize,
    /// Index of another component.
    pub to: usize,
    /// Type of the relation.
    pub relation: Relation,
    /// Condition of a trigger; `None`: it always triggers.
    pub condition: Option<Condition>,
}

/// Condition on which a component that has ended triggers another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The output begins with this text.
    When(String),
    /// The output begins with none of the texts of the component's other triggers.
    Otherwise,
}

/// Type of a relation of two components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// When the first has ended, the second begins with its output.
    Trigger,
    /// The first reads, or reads and writes, the memory of the second.
    Access(MemoryRights),
    /// The two components send each other messages, either way.
    Message,
}

/// Right to access memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryRights {
    /// The memory may be read.
    Read,
    /// The memory may be read and written.
    Write,
}

/// The most that one run of a graph holds at a time, and all of its runs together; requests beyond it wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RunLimits {
    /// Cores of all instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Memory of all components, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Cores of all runs of the application.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_cores: Option<u32>,
    /// Memory of all runs of the application, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_memory_bytes: Option<u64>,
    /// Whether compute components may outgrow their own memory: what exceeds it is swapped, where that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap: Option<bool>,
    /// Medium that holds swapped data; `None`: memory of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_medium: Option<SwapMedium>,
}

/// Medium that holds the swapped data of compute components.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapMedium {
    /// Memory of nodes.
    Memory,
    /// Disks, of nodes that lend parts of them.
    Flash,
}

impl RunLimits {
    /// Tells whether all runs of the application together are limited.
    pub fn limit_application(&self) -> bool {
        self.application_cores.is_some() || self.application_memory_bytes.is_some()
    }
}

/// Rule by which runners keep the idle workers of an application's detached runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Warmth {
    /// Workers are given back when their run has ended.
    #[default]
    Off,
    /// Workers are kept for this number of seconds after a run: 1 to [`MAX_WARM_S`].
    For(u32),
    /// Times follow from the arrivals of earlier runs.
    Auto,
}

/// A problem in a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Position, as `components[2].parallelism`; empty for the document as a whole.
    pub at: String,
    /// Description of the problem.
    pub message: String,
}

impl Graph {
    /// Returns the index of the component with which a run begins.
    pub fn entry(&self) -> usize {
        self.components.iter().position(Component::is_entry).unwrap_or_default()
    }

    /// Returns the index of the memory component that is the result of a run, if there is one.
    pub fn result(&self) -> Option<usize> {
        self.components.iter().position(Component::is_result)
    }

    /// The edges from a component, and which component each leads to.
    pub fn edges_from(&self, from: usize) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(move |edge| edge.from == from)
    }

    /// Whether a component that has ended with this output triggers the other end of one of its edges.
    pub fn does_trigger(&self, edge: &Edge, output: &[u8]) -> bool {
        debug_assert!(
            edge.condition.is_none() || edge.relation == Relation::Trigger,
            "only a trigger has a condition: {edge:?}"
        );
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
    /// Tells whether a run begins with it.
    pub fn is_entry(&self) -> bool {
        self.compute().is_some_and(|compute| compute.is_entry)
    }

    /// Tells whether it is the memory component that is the result of a run.
    pub fn is_result(&self) -> bool {
        self.memory().is_some_and(|memory| memory.is_result)
    }

    /// Returns its compute part, if it is a compute component.
    pub fn compute(&self) -> Option<&Compute> {
        match &self.role {
            Role::Compute(compute) => Some(compute),
            Role::Memory(_) => None,
        }
    }

    /// Returns its memory part, if it is a memory component.
    pub fn memory(&self) -> Option<&MemoryNeed> {
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
