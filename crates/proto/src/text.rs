//! Text of strangers as it is shown on a terminal or written to a log: output of functions, error messages, names.
//!
//! A terminal obeys control characters, and shows text after a bidirectional control in another order than it has. Either can
//! hide or forge what an operator reads. Both functions replace such characters by escapes, as `\x1b` and `\u{202e}`, and
//! leave everything else as it is, tabs included. Neither limits the length.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Text with visible escapes in place of all control characters but tabs: one line whatever it holds.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escape(text, |character| character == '\t')
}

/// Text of several lines with visible escapes in place of all control characters but tabs and line feeds.
pub fn printable_text(text: &str) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\t' | '\n'))
}

fn escape(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |character: char| is_obeyed(character) && !is_kept(character);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        let number = u32::from(character);
        // A String accepts all that is written to it.
        let _ = match is_escaped(character) {
            false => escaped.write_char(character),
            true if number <= 0xff => write!(escaped, "\\x{number:02x}"),
            true => write!(escaped, "\\u{{{number:x}}}"),
        };
    }
    Cow::Owned(escaped)
}

/// Whether a character is a control character, a line or paragraph separator, or controls the direction of the text around it.
fn is_obeyed(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters() {
        let text = "a\x1b[2Jb\u{9b}1Ac\rd\0e\x7ff\u{85}";
        assert_eq!(printable_line(text), "a\\x1b[2Jb\\x9b1Ac\\x0dd\\x00e\\x7ff\\x85");
        assert_eq!(printable_text(text), printable_line(text));
    }

    #[test]
    fn escapes_directional_controls_and_separators() {
        let ranges = [0x61c..=0x61c, 0x200e..=0x200f, 0x2028..=0x202e, 0x2066..=0x2069];
        for number in ranges.into_iter().flatten() {
            let character = char::from_u32(number).unwrap();
            let expected = format!("a\\u{{{number:x}}}b");
            assert_eq!(printable_line(&format!("a{character}b")), expected);
            assert_eq!(printable_text(&format!("a{character}b")), expected);
        }
    }

    #[test]
    fn keeps_line_feeds_only_in_text() {
        assert_eq!(printable_line("a\tb\nc\r\n"), "a\tb\\x0ac\\x0d\\x0a");
        assert_eq!(printable_text("a\tb\nc\r\n"), "a\tb\nc\\x0d\n");
    }

    #[test]
    fn borrows_text_without_controls() {
        for text in ["", "plain", "Grüße, 東京, שלום, مرحبا, 👩‍🔬", "back\\slash\t"] {
            assert!(matches!(printable_line(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
