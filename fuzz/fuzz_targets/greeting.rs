//! Runs the fuzz target `greeting` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::greeting::run(input));
