//! A program image: the programs that one `create` made of several functions, in the form that is kept on disk and
//! loaded.
//!
//! Usually it is one device program, in which every kernel has a unique name. Parts that cannot be linked into one (two
//! functions with helpers of one name, complete binaries) are in further programs of the same image.

use crate::bytes::{FieldReader, FieldWriter};

/// Most device programs of one image: one for each sandbox of a vector.
const MAX_PROGRAMS: usize = crate::MAX_VECTOR;

/// Device programs, and the location of each part's kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramImage {
    /// Programs for the driver to load.
    pub programs: Vec<Vec<u8>>,
    /// Location of each part of the image.
    pub places: Vec<KernelLocation>,
}

/// Location of one part's kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelLocation {
    /// Index of the image's program.
    pub program: usize,
    /// Prefix of each kernel's name in that program.
    pub prefix: String,
}

impl ProgramImage {
    pub fn len_bytes(&self) -> u64 {
        self.programs.iter().map(|program| program.len() as u64).sum()
    }

    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(
            self.places.iter().all(|place| place.program < self.programs.len()),
            "an image of {} programs has kernels in others: {:?}",
            self.programs.len(),
            self.places
        );
        let mut writer = FieldWriter::default();
        writer.number(self.programs.len() as u64);
        self.programs.iter().for_each(|program| writer.field(program));
        writer.number(self.places.len() as u64);
        for place in &self.places {
            writer.number(place.program as u64);
            writer.field(place.prefix.as_bytes());
        }
        writer.0
    }

    /// Decodes an image of `parts` parts; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8], parts: usize) -> Option<ProgramImage> {
        let mut reader = FieldReader(bytes);
        let count = reader.count().filter(|count| *count <= MAX_PROGRAMS)?;
        let programs = (0..count).map(|_| reader.field().map(<[u8]>::to_vec)).collect::<Option<Vec<_>>>()?;
        let count = reader.count().filter(|count| *count == parts)?;
        let places =
            (0..count).map(|_| KernelLocation::decode(&mut reader, programs.len())).collect::<Option<_>>()?;
        reader.end()?;
        Some(ProgramImage { programs, places })
    }
}

impl KernelLocation {
    fn decode(reader: &mut FieldReader<'_>, programs: usize) -> Option<KernelLocation> {
        let program = usize::try_from(reader.number()?).ok().filter(|program| *program < programs)?;
        Some(KernelLocation { program, prefix: reader.text()? })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn image() -> ProgramImage {
        let places = vec![
            KernelLocation { program: 1, prefix: "x".into() },
            KernelLocation { program: 0, prefix: String::new() },
        ];
        ProgramImage { programs: vec![vec![1, 2], vec![]], places }
    }

    #[test]
    fn an_image_is_read_as_it_was_written() {
        assert_eq!(ProgramImage::decode(&image().encode(), 2), Some(image()));
        assert_eq!(ProgramImage::decode(&image().encode(), 3), None);
    }

    proptest! {
        #[test]
        fn damaged_images_are_refused_or_hold_together(at in 0..100usize, by in 1..=255u8, cut in 0..100usize) {
            let mut bytes = image().encode();
            let len = bytes.len();
            bytes[at % len] ^= by;
            bytes.truncate(len - cut % len);
            if let Some(image) = ProgramImage::decode(&bytes, 2) {
                prop_assert!(image.places.iter().all(|place| place.program < image.programs.len()));
            }
        }
    }
}
