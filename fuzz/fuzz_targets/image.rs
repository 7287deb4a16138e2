//! Runs the fuzz target `image` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::image::run(input));
