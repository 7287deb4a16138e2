//! Graphs of components, as clients write them down.

use sublet_proto::graph::Graph;

/// Parses a document.
///
/// # Panics
/// If a graph is not the same after it was written and parsed again, or a document is refused without a problem.
pub fn run(input: &[u8]) {
    match Graph::parse(input) {
        Ok(graph) => assert_eq!(Graph::parse(graph.to_json().as_bytes()), Ok(graph)),
        Err(problems) => assert!(!problems.is_empty()),
    }
}
