//! Runs the fuzz target `node_messages` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::node_messages::run(input));
