//! Graphs of components, as clients write them down.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sublet_proto::graph::Graph;

fuzz_target!(|bytes: &[u8]| {
    match Graph::parse(bytes) {
        Ok(graph) => assert_eq!(Graph::parse(graph.to_json().as_bytes()), Ok(graph)),
        Err(problems) => assert!(!problems.is_empty()),
    }
});
