//! Splits a source file or document into the texts that people read: comments, messages, names, paragraphs.

use std::path::Path;

/// Role of a text in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// First paragraph of a documentation comment.
    Doc,
    /// Paragraph of a comment or of a document.
    Prose,
    /// String literal of several words.
    Message,
    /// Name of a type, at its definition.
    Type,
    /// Name of a type that other modules see, at its definition.
    ExportedType,
    /// Name of a test.
    Test,
    /// Name of a function, module or constant, at its definition.
    Name,
}

/// A text and the number of the line on which it starts.
#[derive(Debug, PartialEq, Eq)]
pub struct Text {
    pub kind: Kind,
    pub line: usize,
    pub text: String,
}

impl Text {
    /// Whether the text consists of sentences.
    pub fn is_prose(&self) -> bool {
        matches!(self.kind, Kind::Doc | Kind::Prose)
    }

    /// Whether the text is a name in the code.
    pub fn is_name(&self) -> bool {
        !self.is_prose() && self.kind != Kind::Message
    }

    /// Whether the text names a type that other modules see.
    pub fn is_exported_type(&self) -> bool {
        self.kind == Kind::ExportedType
    }
}

/// Notation of comments and strings in a language.
struct Syntax {
    line_comment: &'static str,
    has_block_comments: bool,
    has_char_literals: bool,
    quotes: &'static [&'static str],
}

const RUST_AND_C: Syntax =
    Syntax { line_comment: "//", has_block_comments: true, has_char_literals: true, quotes: &["\""] };
const JAVASCRIPT: Syntax = Syntax {
    line_comment: "//",
    has_block_comments: true,
    has_char_literals: false,
    quotes: &["\"", "'", "`"],
};
const GO: Syntax =
    Syntax { line_comment: "//", has_block_comments: true, has_char_literals: true, quotes: &["\"", "`"] };
const FORTRAN: Syntax =
    Syntax { line_comment: "!", has_block_comments: false, has_char_literals: false, quotes: &["'", "\""] };
const PYTHON: Syntax = Syntax {
    line_comment: "#",
    has_block_comments: false,
    has_char_literals: false,
    quotes: &["\"\"\"", "'''", "\"", "'"],
};

/// The texts of a file.
pub fn texts(path: &Path, source: &str) -> Vec<Text> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("md") => document(source),
        Some("rs") => {
            let (mut texts, code) = split(source, &RUST_AND_C);
            texts.extend(names(&code));
            texts
        }
        Some("js") => split(source, &JAVASCRIPT).0,
        Some("go") => split(source, &GO).0,
        Some("f90") => split(source, &FORTRAN).0,
        Some("py" | "pyi") => split(source, &PYTHON).0,
        Some("sh" | "toml" | "yml" | "yaml") => comment_lines(source),
        _ => split(source, &RUST_AND_C).0,
    }
}

/// Paragraphs of a Markdown document, without code, tables and headings.
fn document(source: &str) -> Vec<Text> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (at, line) in source.lines().enumerate() {
        let trimmed = line.trim();
        let is_fence = trimmed.starts_with("```");
        in_code ^= is_fence;
        let is_prose = !in_code && !is_fence && !trimmed.starts_with(['#', '|']);
        lines.push((at + 1, if is_prose { trimmed.to_owned() } else { String::new() }));
    }
    paragraphs(&lines, Kind::Prose)
}

/// Comments of a file whose comments start with `#` and take whole lines.
fn comment_lines(source: &str) -> Vec<Text> {
    let comment = |line: &str| line.trim().strip_prefix('#').unwrap_or("").trim().to_owned();
    let lines: Vec<_> = source.lines().enumerate().map(|(at, line)| (at + 1, comment(line))).collect();
    paragraphs(&lines, Kind::Prose)
}

/// Joins lines to paragraphs. An empty line ends one, and a mark of a list starts one.
fn paragraphs(lines: &[(usize, String)], first: Kind) -> Vec<Text> {
    let mut texts: Vec<Text> = Vec::new();
    let (mut is_open, mut in_code) = (false, false);
    for (line, content) in lines {
        let is_fence = content.starts_with("```");
        in_code ^= is_fence;
        let item = ["- ", "* ", "> "].iter().find_map(|mark| content.strip_prefix(mark));
        let is_blank = content.is_empty() || in_code || is_fence;
        match texts.last_mut() {
            _ if is_blank => is_open = false,
            Some(open) if is_open && item.is_none() => {
                open.text.push(' ');
                open.text.push_str(content);
            }
            _ => {
                let kind = if texts.is_empty() { first } else { Kind::Prose };
                texts.push(Text { kind, line: *line, text: item.unwrap_or(content).to_owned() });
                is_open = true;
            }
        }
    }
    texts
}

/// The position of a reader in a source.
struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    /// Takes up to the end of the first `end`, or all that is left.
    fn take_through(&mut self, end: &str) -> &'a str {
        let bytes = self.rest.find(end).map_or(self.rest.len(), |at| at + end.len());
        self.take(bytes)
    }

    /// Takes a string whose opening quote has been taken, and returns its contents.
    fn take_string(&mut self, quote: &str) -> &'a str {
        let mut is_escaped = false;
        for (at, character) in self.rest.char_indices() {
            if !is_escaped && self.rest[at..].starts_with(quote) {
                let contents = self.take(at);
                self.take(quote.len());
                return contents;
            }
            is_escaped = !is_escaped && character == '\\';
        }
        self.take(self.rest.len())
    }
}

/// Comments and messages of a source, and what is left: its code, each string and comment replaced by a space.
fn split(source: &str, syntax: &Syntax) -> (Vec<Text>, Vec<(usize, String)>) {
    let mut splitter = Splitter {
        syntax,
        cursor: Cursor { rest: source, line: 1 },
        texts: Vec::new(),
        comment: Vec::new(),
        is_doc: false,
        code: vec![(1, String::new())],
        word_before: false,
    };
    while let Some(next) = splitter.cursor.rest.chars().next() {
        splitter.take_next(next);
    }
    splitter.end_comment();
    (splitter.texts, splitter.code)
}

/// The state of a split: the position in the source, and the results so far.
struct Splitter<'a> {
    syntax: &'a Syntax,
    cursor: Cursor<'a>,
    texts: Vec<Text>,
    /// Lines of the line comment that has not ended.
    comment: Vec<(usize, String)>,
    /// Whether that comment is documentation.
    is_doc: bool,
    code: Vec<(usize, String)>,
    /// Whether the last character of the code belongs to a word.
    word_before: bool,
}

impl Splitter<'_> {
    /// Takes the comment, string or character that starts with `next`.
    fn take_next(&mut self, next: char) {
        let rest = self.cursor.rest;
        if rest.starts_with(self.syntax.line_comment) {
            self.take_line_comment();
        } else if self.syntax.has_block_comments && rest.starts_with("/*") {
            self.take_block_comment();
        } else if let Some(hashes) = raw_string(rest, self.word_before, self.syntax) {
            self.take_raw_string(hashes);
        } else if let Some(quote) = self.syntax.quotes.iter().find(|quote| rest.starts_with(**quote)) {
            self.take_string(quote);
        } else {
            self.take_code(next);
        }
    }

    /// Ends the line comment, and adds its paragraphs to the texts.
    fn end_comment(&mut self) {
        self.texts.extend(paragraphs(&self.comment, comment_kind(self.is_doc)));
        self.comment.clear();
    }

    /// Whether code stands before the position on the same line.
    fn is_trailing(&self) -> bool {
        self.code.last().is_some_and(|(_, code)| !code.trim().is_empty())
    }

    fn take_line_comment(&mut self) {
        let line = self.cursor.line;
        let whole = self.cursor.take_through("\n").trim();
        let content = content(whole.trim_start_matches(['/', '!', '#']));
        let doc = ["///", "//!"].iter().any(|mark| whole.starts_with(mark));
        let is_trailing = self.is_trailing();
        if is_trailing || self.comment.last().is_some_and(|(last, _)| *last + 1 < line || doc != self.is_doc)
        {
            self.end_comment();
        }
        if is_trailing {
            self.texts.extend(paragraphs(&[(line, content)], Kind::Prose));
        } else {
            self.is_doc = doc;
            self.comment.push((line, content));
        }
        if let Some((_, code)) = self.code.last_mut() {
            code.push(' ');
        }
        self.code.push((self.cursor.line, String::new()));
    }

    fn take_block_comment(&mut self) {
        let line = self.cursor.line;
        let whole = self.cursor.take_through("*/").trim_start_matches("/*").trim_end_matches("*/");
        let strip = |line_of: &str| content(line_of.trim().trim_start_matches(['*', '!']));
        let lines: Vec<_> =
            whole.lines().enumerate().map(|(at, line_of)| (line + at, strip(line_of))).collect();
        let kind = comment_kind(!self.is_trailing());
        self.texts.extend(paragraphs(&lines, kind));
    }

    fn take_raw_string(&mut self, hashes: usize) {
        let line = self.cursor.line;
        self.cursor.take(hashes + 2);
        let end = format!("\"{}", "#".repeat(hashes));
        let contents = self.cursor.take_through(&end).trim_end_matches(end.as_str());
        self.texts.extend(message(line, contents));
        self.word_before = false;
    }

    fn take_string(&mut self, quote: &str) {
        let line = self.cursor.line;
        self.cursor.take(quote.len());
        let contents = self.cursor.take_string(quote);
        if quote.len() == 3 {
            let trimmed = |(at, line_of): (usize, &str)| (line + at, line_of.trim().to_owned());
            let lines: Vec<_> = contents.lines().enumerate().map(trimmed).collect();
            self.texts.extend(paragraphs(&lines, Kind::Doc));
        } else {
            self.texts.extend(message(line, contents));
        }
        self.word_before = false;
    }

    fn take_code(&mut self, next: char) {
        let bytes = if self.syntax.has_char_literals { char_literal(self.cursor.rest) } else { 0 };
        let taken = self.cursor.take(bytes.max(next.len_utf8()));
        self.word_before = next.is_alphanumeric() || next == '_';
        if taken == "\n" {
            self.code.push((self.cursor.line, String::new()));
        } else if bytes == 0
            && let Some((_, code)) = self.code.last_mut()
        {
            code.push(next);
        }
    }
}

/// The text of a comment's line without its mark; empty for code, which is indented by four spaces.
fn content(line: &str) -> String {
    if line.starts_with("     ") { String::new() } else { line.trim().to_owned() }
}

fn comment_kind(is_doc: bool) -> Kind {
    if is_doc { Kind::Doc } else { Kind::Prose }
}

/// A string literal, if it may be a message: it has several words.
fn message(line: usize, contents: &str) -> Option<Text> {
    let text = contents.replace("\\n", " ").replace("\\\n", " ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.contains(' ').then_some(Text { kind: Kind::Message, line, text })
}

/// Number of `#` before the quote of a raw string that starts here.
fn raw_string(rest: &str, word_before: bool, syntax: &Syntax) -> Option<usize> {
    let after = rest.strip_prefix('r').filter(|_| syntax.has_char_literals && !word_before)?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

/// Length of the character literal that starts here; 0 where none does, as at a lifetime.
fn char_literal(rest: &str) -> usize {
    let Some(content) = rest.strip_prefix('\'') else { return 0 };
    let mut characters = content.char_indices();
    let is_escape = characters.next().is_some_and(|(_, first)| first == '\\');
    if is_escape {
        characters.next();
        return content[2..].find('\'').map_or(0, |at| at + 4);
    }
    characters.next().filter(|(_, second)| *second == '\'').map_or(0, |(at, _)| at + 2)
}

/// Names at their definitions in Rust code.
fn names(code: &[(usize, String)]) -> Vec<Text> {
    let mut names = Vec::new();
    let mut is_test = false;
    for (line, content) in code {
        let trimmed = content.trim();
        is_test |= trimmed.starts_with("#[test]");
        let is_exported = trimmed.starts_with("pub");
        let words: Vec<&str> = trimmed
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .collect();
        let Some(keyword) = words.iter().position(|word| KEYWORDS.contains(word)) else { continue };
        let Some(name) = words.get(keyword + 1).filter(|_| is_definition(&words[..keyword])) else {
            continue;
        };
        let kind = match words[keyword] {
            "struct" | "enum" | "union" | "trait" if is_exported => Kind::ExportedType,
            "struct" | "enum" | "union" | "trait" => Kind::Type,
            "fn" if is_test => Kind::Test,
            _ => Kind::Name,
        };
        is_test = false;
        names.push(Text { kind, line: *line, text: (*name).to_owned() });
    }
    names
}

/// Words that a definition starts with.
const KEYWORDS: &[&str] = &["struct", "enum", "union", "trait", "fn", "mod", "const", "static"];

/// Whether only visibility and qualifiers stand before the keyword of a definition.
fn is_definition(before: &[&str]) -> bool {
    let qualifiers = ["pub", "crate", "super", "in", "self", "unsafe", "extern", "async", "C", "default"];
    before.iter().all(|word| qualifiers.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, source: &str) -> Vec<(Kind, usize, String)> {
        texts(Path::new(name), source).into_iter().map(|text| (text.kind, text.line, text.text)).collect()
    }

    #[test]
    fn rust_is_split_into_comments_messages_and_names() {
        let source = "/// Reads\n/// a file.\n///\n/// - Errors.\npub struct Reader<'a>(&'a str);\n\nfn read() {\n    \
                      // Waits.\n    let quote = '\"';\n    log(\"no \\\"such\\\" file\", r#\"a \"raw\" one\"#);\n}\n";
        let expected = [
            (Kind::Doc, 1, "Reads a file."),
            (Kind::Prose, 4, "Errors."),
            (Kind::Message, 10, "no \\\"such\\\" file"),
            (Kind::Message, 10, "a \"raw\" one"),
            (Kind::Prose, 8, "Waits."),
            (Kind::ExportedType, 5, "Reader"),
            (Kind::Name, 7, "read"),
        ];
        let expected: Vec<_> =
            expected.into_iter().map(|(kind, line, text)| (kind, line, text.to_owned())).collect();
        assert_eq!(found("a.rs", source), expected);
    }

    #[test]
    fn distinguishes_tests_from_other_functions() {
        let found = found("a.rs", "#[test]\n#[ignore]\nfn rejects_nothing() {}\nfn helper() {}\n");
        assert_eq!(found[0], (Kind::Test, 3, "rejects_nothing".to_owned()));
        assert_eq!(found[1], (Kind::Name, 4, "helper".to_owned()));
    }

    #[test]
    fn documents_are_split_into_paragraphs_without_code() {
        let source = "# What\n\nOne\ntwo.\n- three\n\n```sh\nls -l\n```\n| a | b |\nFour.\n";
        let expected = [(3, "One two."), (5, "three"), (11, "Four.")];
        let expected: Vec<_> =
            expected.into_iter().map(|(line, text)| (Kind::Prose, line, text.to_owned())).collect();
        assert_eq!(found("a.md", source), expected);
    }

    #[test]
    fn python_and_c_have_comments_of_their_own() {
        let python = found("a.py", "\"\"\"Sends calls.\n\nMore.\n\"\"\"\nx = 'a b'  # Note.\n");
        assert_eq!(python[0], (Kind::Doc, 1, "Sends calls.".to_owned()));
        assert_eq!(python[2], (Kind::Message, 5, "a b".to_owned()));
        assert_eq!(python[3], (Kind::Prose, 5, "Note.".to_owned()));
        let header = found("a.h", "/* One\n *\n *     code; */\nint x; /* two */\n");
        assert_eq!(header, [(Kind::Doc, 1, "One".to_owned()), (Kind::Prose, 4, "two".to_owned())]);
    }
}
