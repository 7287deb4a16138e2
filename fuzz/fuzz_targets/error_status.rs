//! Runs the fuzz target `error_status` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::error_status::run(input));
