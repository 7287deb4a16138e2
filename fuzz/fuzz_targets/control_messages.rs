//! Runs the fuzz target `control_messages` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::control_messages::run(input));
