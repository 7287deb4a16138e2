//! Decodes data of kernels: images, stored files, requests to a builder and its answers, and CUDA's formats.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (kind, bytes) = input;
    sublet_devices::fuzzing::read(kind, bytes);
});
