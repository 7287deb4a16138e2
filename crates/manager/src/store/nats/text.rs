//! Text that is carried where only some characters are allowed: the others are a marker and two hexadecimal digits
//! for each byte.

/// The text with every byte that is not plain marked. The marker is not plain.
pub(super) fn escape(text: &str, marker: char, is_plain: impl Fn(u8) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if is_plain(byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("{marker}{byte:02x}"));
        }
    }
    escaped
}

/// The text that was escaped with this marker; `None` if it was not.
pub(super) fn unescape(escaped: &str, marker: char) -> Option<String> {
    let mut pieces = escaped.split(marker);
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}
