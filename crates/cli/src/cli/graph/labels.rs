//! Texts of a drawn graph: of the boxes of its components, and of its edges.

use sublet_proto::graph::{self, Component, Condition, Edge, Medium, Role};

use crate::cli::parse::show_bytes;

/// Describes the condition of a trigger edge, if it has one.
pub(super) fn condition(edge: &Edge) -> Option<String> {
    edge.condition.as_ref().map(|condition| match condition {
        Condition::When(text) => format!("when {text:?}"),
        Condition::Otherwise => "otherwise".to_owned(),
    })
}

/// Two lines for the box of a component: its name and its function or size.
pub(super) fn label(component: &Component) -> [String; 2] {
    let name = &component.name;
    match &component.role {
        Role::Compute(compute) => {
            let entry = if compute.is_entry { "* " } else { "" };
            let times = match (compute.instances_from, compute.parallelism) {
                (Some(_), most) => format!(" x1..{most}"),
                (None, 1) => String::new(),
                (None, instances) => format!(" x{instances}"),
            };
            let cores = match compute.resources.cores_each() {
                1 => String::new(),
                cores => format!(" ({cores} cores)"),
            };
            let package = match compute.package.strip_prefix("sha256:") {
                Some(digest) => &digest[..12],
                None => &compute.package,
            };
            [format!("{entry}{name}{times}{cores}"), format!("{package}/{}", compute.function)]
        }
        Role::Memory(graph::MemoryNeed { medium: Medium::Device, limit_bytes, .. }) => {
            [name.clone(), format!("{} on a device", show_bytes(*limit_bytes))]
        }
        Role::Memory(graph::MemoryNeed { initial_bytes, increment_bytes, .. }) => {
            let size = |bytes: &Option<u64>| bytes.map_or_else(|| "auto".to_owned(), show_bytes);
            [name.clone(), format!("{} + {}", size(initial_bytes), size(increment_bytes))]
        }
    }
}
