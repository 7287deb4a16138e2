//! Runs the fuzz target `ticket_verify` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::ticket_verify::run(input));
