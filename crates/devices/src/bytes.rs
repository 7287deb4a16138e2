//! Encodes fields one after the other, each behind its length: the format of images, cache files and the builder's
//! messages. The reader trusts no length.

/// Writes fields.
#[derive(Default)]
pub(crate) struct FieldWriter(pub Vec<u8>);

impl FieldWriter {
    pub fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// Reads what a [`FieldWriter`] has written, or nothing.
pub(crate) struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    pub fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    pub fn field(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (field, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(field)
    }

    pub fn text(&mut self) -> Option<String> {
        String::from_utf8(self.field()?.to_vec()).ok()
    }

    /// Reads a count of the items that follow, each of at least one number.
    pub fn count(&mut self) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len() / size_of::<u64>()).then_some(count)
    }

    /// Checks that no bytes are left.
    pub fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// Output of an untrusted program, as text for a log: bounded, without control characters except line ends.
pub(crate) fn told(bytes: &[u8], most_bytes: usize) -> String {
    let kept = &bytes[..bytes.len().min(most_bytes)];
    let kept = kept.split(|byte| *byte == 0).next().unwrap_or_default();
    let clean = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    let text: String = String::from_utf8_lossy(kept).chars().map(clean).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_no_length_is_trusted() {
        let mut writer = FieldWriter::default();
        writer.field(b"some");
        writer.number(7);
        let mut reader = FieldReader(&writer.0);
        assert_eq!((reader.field(), reader.number(), reader.end()), (Some(&b"some"[..]), Some(7), Some(())));
        for cut in 0..writer.0.len() {
            let mut reader = FieldReader(&writer.0[..cut]);
            assert!(reader.field().is_none() || reader.number().is_none());
        }
        assert!(FieldReader(&u64::MAX.to_le_bytes()).field().is_none());
        assert!(FieldReader(&u64::MAX.to_le_bytes()).count().is_none());
    }

    #[test]
    fn untrusted_text_is_bounded_and_has_no_control_characters() {
        assert_eq!(told(b"error:\n\x1b[2J bad\xff\0rest", 100), "error:\n [2J bad\u{fffd}");
        assert_eq!(told(&[b'x'; 100], 10), "x".repeat(10));
    }
}
