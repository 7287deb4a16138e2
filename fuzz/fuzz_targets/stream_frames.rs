//! Runs the fuzz target `stream_frames` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::stream_frames::run(input));
