//! Runs the fuzz target `listeners` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::listeners::run(input));
