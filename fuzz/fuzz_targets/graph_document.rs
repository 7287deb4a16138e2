//! Runs the fuzz target `graph_document` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::graph_document::run(input));
