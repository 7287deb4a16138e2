//! Untrusted text as it is shown on a terminal or written to a log: output of functions, error messages, names.
//!
//! A terminal obeys control characters, and a bidirectional control changes the displayed order of the text after it.
//! Either can hide or forge text that an operator reads. The functions replace such characters by escapes, as `\x1b`
//! and `\u{202e}`, and leave all others unchanged. They do not limit the length.

use std::borrow::Cow;

/// Replaces all control characters but tabs by visible escapes: the result is always one line.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escape(text, |character| character == '\t', in_text)
}

/// Replaces all control characters but tabs and line feeds by visible escapes, in text of several lines.
pub fn printable_text(text: &str) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\t' | '\n'), in_text)
}

/// Returns JSON of the same value, with JSON's own escapes in place of control characters. Outside of strings it has
/// only line feeds.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    escape(json, |character| character == '\n', |number| format!("\\u{number:04x}"))
}

fn in_text(number: u32) -> String {
    if number <= 0xff { format!("\\x{number:02x}") } else { format!("\\u{{{number:x}}}") }
}

fn escape(text: &str, is_kept: impl Fn(char) -> bool, as_escape: impl Fn(u32) -> String) -> Cow<'_, str> {
    let is_escaped = |character: char| is_terminal_control(character) && !is_kept(character);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_escaped(character) {
            false => escaped.push(character),
            true => escaped.push_str(&as_escape(u32::from(character))),
        }
    }
    debug_assert!(!escaped.contains(is_escaped), "a control character is left in {escaped:?}");
    Cow::Owned(escaped)
}

/// Whether a character is a control character, a line or paragraph separator, or controls the direction of the text around it.
pub fn is_terminal_control(character: char) -> bool {
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
    fn escapes_within_json_as_json_does() {
        let json = "{\"a\":\"\u{202e}\u{7f}\u{2028}\u{9b}\\n\"}";
        assert_eq!(printable_json(json), r#"{"a":"\u202e\u007f\u2028\u009b\n"}"#);
        assert_eq!(printable_json("{\n\"a\": \"\u{202e}\"}\n"), "{\n\"a\": \"\\u202e\"}\n");
        assert!(matches!(printable_json(r#"{"a":"\u001b"}"#), Cow::Borrowed(_)));
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
