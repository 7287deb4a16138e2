//! Decodes data of kernels: images, stored files, requests to a builder and its answers, and CUDA's formats.

use crate::values;

/// Decodes data of a kind; the first byte is the kind.
///
/// # Panics
/// If the result is inconsistent.
pub fn run(input: &[u8]) {
    let Some((kind, bytes)) = values::<(u8, &[u8])>(input) else { return };
    sublet_devices::fuzzing::read(kind, bytes);
}
