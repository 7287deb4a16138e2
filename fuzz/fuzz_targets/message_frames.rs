//! Runs the fuzz target `message_frames` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::message_frames::run(input));
