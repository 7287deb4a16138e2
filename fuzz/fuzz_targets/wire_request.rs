//! Runs the fuzz target `wire_request` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::wire_request::run(input));
