//! Runs the fuzz target `package_validate` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::package_validate::run(input));
