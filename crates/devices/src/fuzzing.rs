//! Gives the fuzz target `devices` access to every decoder of bytes that another process has written. Compiled with
//! the feature `fuzzing` only.

use crate::builder::wire;
use crate::cuda::formats;
use crate::image::ProgramImage;
use crate::store::record;

/// Expected number of parts of an image or an answer; any number will do.
const PARTS: usize = 2;

/// Decodes bytes of a kind, and checks that the result is consistent.
///
/// # Panics
/// If the result is not consistent.
pub fn read(kind: u8, bytes: &[u8]) {
    match kind % 5 {
        0 => {
            if let Some(image) = ProgramImage::decode(bytes, PARTS) {
                assert!(image.places.iter().all(|place| place.program < image.programs.len()));
                assert_eq!(image.encode(), bytes);
            }
        }
        1 => drop(record::decode(bytes.to_vec(), &[0; 32])),
        2 => {
            if let Some((identity, parts)) = wire::decode_job(bytes) {
                assert_eq!(wire::encode_job(&identity, &parts.borrowed()), bytes);
            }
        }
        3 => {
            if let Some(Ok(build)) = wire::decode_answer(bytes, PARTS) {
                assert!(build.parts.iter().flatten().all(|part| part.program < build.programs.len()));
            }
        }
        _ => drop(formats::check(bytes)),
    }
}
