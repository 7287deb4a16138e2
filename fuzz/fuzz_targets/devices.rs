//! Runs the fuzz target `devices` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::devices::run(input));
