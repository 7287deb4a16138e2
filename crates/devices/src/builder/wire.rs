//! Encodes the requests to a builder and its answers. Neither end trusts the other's lengths.

use crate::MAX_VECTOR;
use crate::bytes::{FieldReader, FieldWriter};
use crate::driver::{BuildResult, BuiltPart, ImagePart};

const SOURCE: u64 = 1;
const OBJECT: u64 = 2;
const BINARY: u64 = 3;

/// Decoded parts, which own their content.
pub(crate) struct DecodedParts(Vec<OwnedPart>);

enum OwnedPart {
    Source { text: String, options: String, kernels: Vec<String>, prefix: String },
    Object { bytes: Vec<u8>, prefix: String },
    Binary(Vec<u8>),
}

impl DecodedParts {
    pub fn borrowed(&self) -> Vec<ImagePart<'_>> {
        self.0.iter().map(OwnedPart::borrow).collect()
    }
}

impl OwnedPart {
    fn borrow(&self) -> ImagePart<'_> {
        match self {
            OwnedPart::Source { text, options, kernels, prefix } => {
                ImagePart::Source { text, options, kernels, prefix }
            }
            OwnedPart::Object { bytes, prefix } => ImagePart::Object { bytes: bytes.clone(), prefix },
            OwnedPart::Binary(bytes) => ImagePart::Binary(bytes),
        }
    }
}

pub(crate) fn encode_job(identity: &str, parts: &[ImagePart<'_>]) -> Vec<u8> {
    let mut writer = FieldWriter::default();
    writer.field(identity.as_bytes());
    writer.number(parts.len() as u64);
    for part in parts {
        match part {
            ImagePart::Source { text, options, kernels, prefix } => {
                writer.number(SOURCE);
                [text, options, prefix].iter().for_each(|text| writer.field(text.as_bytes()));
                writer.number(kernels.len() as u64);
                kernels.iter().for_each(|kernel| writer.field(kernel.as_bytes()));
            }
            ImagePart::Object { bytes, prefix } => {
                writer.number(OBJECT);
                writer.field(bytes);
                writer.field(prefix.as_bytes());
            }
            ImagePart::Binary(bytes) => {
                writer.number(BINARY);
                writer.field(bytes);
            }
        }
    }
    writer.0
}

pub(crate) fn decode_job(bytes: &[u8]) -> Option<(String, DecodedParts)> {
    let mut reader = FieldReader(bytes);
    let identity = reader.text()?;
    let count = reader.count().filter(|count| *count <= MAX_VECTOR)?;
    let parts = (0..count).map(|_| decode_part(&mut reader)).collect::<Option<_>>()?;
    reader.end()?;
    Some((identity, DecodedParts(parts)))
}

fn decode_part(reader: &mut FieldReader<'_>) -> Option<OwnedPart> {
    Some(match reader.number()? {
        SOURCE => {
            let [text, options, prefix] = [reader.text()?, reader.text()?, reader.text()?];
            let count = reader.count()?;
            let kernels = (0..count).map(|_| reader.text()).collect::<Option<_>>()?;
            OwnedPart::Source { text, options, kernels, prefix }
        }
        OBJECT => OwnedPart::Object { bytes: reader.field()?.to_vec(), prefix: reader.text()? },
        BINARY => OwnedPart::Binary(reader.field()?.to_vec()),
        _ => return None,
    })
}

/// Encodes a whole build, or the reason why nothing could be built.
pub(crate) fn encode_answer(built: &Result<BuildResult, String>) -> Vec<u8> {
    let mut writer = FieldWriter::default();
    let build = match built {
        Ok(build) => build,
        Err(reason) => {
            writer.number(0);
            writer.field(reason.as_bytes());
            return writer.0;
        }
    };
    writer.number(1);
    writer.number(build.programs.len() as u64);
    build.programs.iter().for_each(|program| writer.field(program));
    for part in &build.parts {
        match part {
            Ok(BuiltPart { object, program, is_prefixed }) => {
                writer.number(1);
                writer.field(object.as_deref().unwrap_or_default());
                writer.number(*program as u64);
                writer.number(u64::from(*is_prefixed));
            }
            Err(log) => {
                writer.number(0);
                writer.field(log.as_bytes());
            }
        }
    }
    writer.0
}

/// Decodes the answer of [`encode_answer`] for `parts` parts; `None` if it is not one.
pub(crate) fn decode_answer(bytes: &[u8], parts: usize) -> Option<Result<BuildResult, String>> {
    let mut reader = FieldReader(bytes);
    if reader.number()? == 0 {
        return Some(Err(said(reader.field()?)));
    }
    let count = reader.count().filter(|count| *count <= MAX_VECTOR)?;
    let programs = (0..count).map(|_| reader.field().map(<[u8]>::to_vec)).collect::<Option<Vec<_>>>()?;
    let parts = (0..parts).map(|_| decode_built(&mut reader, programs.len())).collect::<Option<_>>()?;
    reader.end()?;
    Some(Ok(BuildResult { programs, parts }))
}

fn decode_built(reader: &mut FieldReader<'_>, programs: usize) -> Option<Result<BuiltPart, String>> {
    if reader.number()? == 0 {
        return Some(Err(said(reader.field()?)));
    }
    let object = Some(reader.field()?.to_vec()).filter(|object| !object.is_empty());
    let program = usize::try_from(reader.number()?).ok().filter(|program| *program < programs)?;
    Some(Ok(BuiltPart { object, program, is_prefixed: reader.number()? != 0 }))
}

fn said(bytes: &[u8]) -> String {
    crate::bytes::told(bytes, crate::MAX_MESSAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn build() -> BuildResult {
        let part = BuiltPart { object: Some(vec![1]), program: 1, is_prefixed: true };
        BuildResult { programs: vec![vec![1, 2], vec![3]], parts: vec![Ok(part), Err("no".into())] }
    }

    #[test]
    fn a_job_and_its_answer_arrive_as_they_were_sent() {
        let kernels = ["f".to_owned(), "g".to_owned()];
        let source = ImagePart::Source { text: "text", options: "-DX", kernels: &kernels, prefix: "p_" };
        let parts = [source, ImagePart::Object { bytes: vec![7], prefix: "q_" }, ImagePart::Binary(&[8])];
        let job = encode_job("device", &parts);
        let (identity, read) = decode_job(&job).unwrap();
        assert_eq!((identity.as_str(), encode_job("device", &read.borrowed())), ("device", job));
        let answer = encode_answer(&Ok(build()));
        assert_eq!(encode_answer(&decode_answer(&answer, 2).unwrap()), answer);
        assert_eq!(decode_answer(&encode_answer(&Err("why".into())), 2).unwrap().unwrap_err(), "why");
        assert!(decode_answer(&[], 2).is_none() && decode_answer(&answer, 1).is_none());
    }

    proptest! {
        #[test]
        fn whatever_a_builder_answers_holds_together(at in 0..200usize, by in 1..=255u8, cut in 0..200usize) {
            let mut answer = encode_answer(&Ok(build()));
            let len = answer.len();
            answer[at % len] ^= by;
            answer.truncate(len - cut % len);
            if let Some(Ok(build)) = decode_answer(&answer, 2) {
                prop_assert!(build.parts.iter().flatten().all(|part| part.program < build.programs.len()));
            }
        }
    }
}
