//! Reads the imports, the definitions and the paths of one Rust source file, without its tests.

use std::collections::BTreeSet;

/// Keywords that are followed by the name of an item that they define.
const DEFINES: &[&str] =
    &["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

/// A path of names: the first may be `crate`, `self` or `super`.
pub type NamePath = Vec<String>;

/// An import by `use`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Inline modules of the file around it.
    pub scope: NamePath,
    pub path: NamePath,
    /// Name that it is known by; `*` for all names of a module, `_` for none.
    pub name: String,
    pub is_public: bool,
}

/// The imports, definitions and names of one file.
#[derive(Debug, Default)]
pub struct SourceFile {
    pub imports: Vec<Import>,
    /// Names of the items that it defines at the top.
    pub defines: BTreeSet<String>,
    /// Paths in its code, each with the inline modules around it.
    pub paths: BTreeSet<(NamePath, NamePath)>,
    /// Names that are used in its code, outside of imports.
    pub words: BTreeSet<String>,
}

impl SourceFile {
    /// Reads a source.
    pub fn read(source: &str) -> SourceFile {
        let tokens = without_tests(&tokens(source));
        let mut file = SourceFile::default();
        // Inline modules, each with the depth of its braces.
        let (mut depth, mut modules) = (0usize, Vec::<(usize, String)>::new());
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let scope = || modules.iter().map(|(_, name)| name.clone()).collect::<NamePath>();
            let next = tokens.get(at + 1).map_or("", String::as_str);
            match token.as_str() {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    if modules.last().is_some_and(|(open, _)| *open == depth) {
                        modules.pop();
                    }
                }
                // A bound of captured lifetimes, `use<'a>`, is no import.
                "use" if next != "<" => {
                    let end = tokens[at..]
                        .iter()
                        .position(|token| token == ";")
                        .map_or(tokens.len(), |len| at + len);
                    let is_public = at > 0 && matches!(tokens[at - 1].as_str(), "pub" | ")");
                    for (path, name) in use_tree(&tokens[at + 1..end]) {
                        file.imports.push(Import { scope: scope(), path, name, is_public });
                    }
                    at = end;
                }
                "mod" if tokens.get(at + 2).is_some_and(|token| token == "{") => {
                    modules.push((depth, next.to_owned()));
                    depth += 1;
                    at += 2;
                }
                // The name of a submodule is no use of it.
                "mod" => at += 1,
                keyword if DEFINES.contains(&keyword) && depth == modules.len() => {
                    let name = tokens[at + 1..].iter().find(|token| is_name(token) && *token != "mut");
                    file.defines.extend(name.filter(|_| modules.is_empty()).cloned());
                }
                word if is_name(word) => {
                    let path = path_at(&tokens, at);
                    // A field or a method belongs to the type, whatever else has its name.
                    if at == 0 || tokens[at - 1] != "." {
                        file.words.insert(path[0].clone());
                    }
                    at += 2 * (path.len() - 1);
                    if path.len() > 1 {
                        file.paths.insert((scope(), path));
                    }
                }
                _ => {}
            }
            at += 1;
        }
        file
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The longest path of names that starts at a token.
fn path_at(tokens: &[String], at: usize) -> NamePath {
    let mut path = vec![tokens[at].clone()];
    let mut next = at + 1;
    while tokens.get(next).is_some_and(|token| token == "::")
        && let Some(name) = tokens.get(next + 1).filter(|token| is_name(token))
    {
        path.push(name.clone());
        next += 2;
    }
    path
}

/// The paths of a `use` tree, each with the name that it is known by.
fn use_tree(tokens: &[String]) -> Vec<(NamePath, String)> {
    let mut path = NamePath::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.as_str() {
            "{" => {
                let under = branches(&tokens[at + 1..]).into_iter().flat_map(use_tree);
                return under
                    .map(|(mut under, name)| {
                        // `module::{self}` is the module, known by its own name.
                        if under == ["self"] {
                            under.clear();
                        }
                        let full: NamePath = path.iter().cloned().chain(under).collect();
                        let name =
                            if name == "self" { full.last().cloned().unwrap_or_default() } else { name };
                        (full, name)
                    })
                    .collect();
            }
            "as" => return vec![(path, tokens.get(at + 1).cloned().unwrap_or_default())],
            "*" => return vec![(path, "*".to_owned())],
            "::" => {}
            name => path.push(name.to_owned()),
        }
        at += 1;
    }
    let name = path.last().cloned().unwrap_or_default();
    if path.is_empty() { Vec::new() } else { vec![(path, name)] }
}

/// The parts between commas, up to the brace that ends the list.
fn branches(tokens: &[String]) -> Vec<&[String]> {
    let (mut depth, mut begin, mut found) = (0, 0, Vec::new());
    for (at, token) in tokens.iter().enumerate() {
        match token.as_str() {
            "{" => depth += 1,
            "}" if depth == 0 => {
                found.push(&tokens[begin..at]);
                return found;
            }
            "}" => depth -= 1,
            "," if depth == 0 => {
                found.push(&tokens[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The tokens without the items that only tests have.
fn without_tests(tokens: &[String]) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at..].iter().take(TEST.len()).eq(TEST.iter()) {
            at = item_end(tokens, at + TEST.len());
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The end of an item: behind its braces, or behind a semicolon or comma outside of all brackets.
fn item_end(tokens: &[String], mut at: usize) -> usize {
    let mut depth = 0usize;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" if depth == 1 => return at,
            "}" | ")" | "]" if depth == 0 => return at - 1,
            "}" | ")" | "]" => depth -= 1,
            ";" | "," if depth == 0 => return at,
            _ => {}
        }
    }
    at
}

/// Names, `::` and single signs; without comments, texts, characters and lifetimes.
fn tokens(source: &str) -> Vec<String> {
    let chars: Vec<char> = source.chars().collect();
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(&first) = chars.get(at) {
        let second = chars.get(at + 1).copied().unwrap_or_default();
        match (first, second) {
            ('/', '/') => at = skip_until(&chars, at, |rest| rest[0] == '\n'),
            ('/', '*') => at = comment_end(&chars, at),
            ('"', _) => at = text_end(&chars, at + 1),
            ('\'', _) => at = quote_end(&chars, at),
            (':', ':') => {
                found.push("::".to_owned());
                at += 2;
            }
            (first, _) if first.is_whitespace() => at += 1,
            (first, _) if is_part(first) => {
                let end = skip_until(&chars, at, |rest| !is_part(rest[0]));
                let word: String = chars[at..end].iter().collect();
                at = end;
                match (word.as_str(), chars.get(end)) {
                    ("r" | "br" | "cr", Some('"' | '#')) => match raw_text_end(&chars, end) {
                        Some(end) => at = end,
                        // A raw name: `r#type`.
                        None => at = end + 1,
                    },
                    ("b" | "c", Some('"' | '\'')) => {}
                    _ => found.push(word),
                }
            }
            _ => {
                found.push(first.to_string());
                at += 1;
            }
        }
    }
    found
}

fn skip_until(chars: &[char], mut at: usize, is_end: impl Fn(&[char]) -> bool) -> usize {
    while at < chars.len() && !is_end(&chars[at..]) {
        at += 1;
    }
    at
}

/// The end of a comment between marks, which may contain others.
fn comment_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    break;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn text_end(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// The end of a raw text whose first quote or number sign is at this place; `None` if none begins there.
fn raw_text_end(chars: &[char], at: usize) -> Option<usize> {
    let open = skip_until(chars, at, |rest| rest[0] != '#');
    let marks = open - at;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let is_end = |rest: &[char]| {
        rest[0] == '"' && rest.len() > marks && rest[1..=marks].iter().all(|&character| character == '#')
    };
    Some((skip_until(chars, open + 1, is_end) + 1 + marks).min(chars.len()))
}

/// The end of a character or a lifetime.
fn quote_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => skip_until(chars, at + 3, |rest| rest[0] == '\'') + 1,
        (_, Some('\'')) => at + 3,
        _ => at + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NamePath {
        text.split("::").map(str::to_owned).collect()
    }

    fn imported(source: &str) -> Vec<(String, String)> {
        let imports = SourceFile::read(source).imports;
        imports.into_iter().map(|import| (import.path.join("::"), import.name)).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(path, name)| ((*path).to_owned(), (*name).to_owned())).collect()
    }

    #[test]
    fn reads_trees_of_imports() {
        let source = "use crate::a::{self, b::{C, D as E}, *};\nuse super::f as _;";
        let expected = [
            ("crate::a", "a"),
            ("crate::a::b::C", "C"),
            ("crate::a::b::D", "E"),
            ("crate::a", "*"),
            ("super::f", "_"),
        ];
        assert_eq!(imported(source), pairs(&expected));
    }

    #[test]
    fn knows_re_exports() {
        let file = SourceFile::read("pub use a::A; pub(crate) use b::B; use c::C;");
        let public: Vec<bool> = file.imports.iter().map(|import| import.is_public).collect();
        assert_eq!(public, [true, true, false]);
    }

    #[test]
    fn ignores_tests() {
        let source = "#[cfg(test)]\nmod tests { use super::a; }\n#[cfg(test)]\nuse crate::b;\nuse crate::c;";
        assert_eq!(imported(source), pairs(&[("crate::c", "c")]));
        assert!(SourceFile::read("#[cfg(test)]\nfn f() { crate::a::b() }\nfn g() {}").paths.is_empty());
    }

    #[test]
    fn ignores_comments_and_texts() {
        let source = r##"
            // crate::a::A
            /* crate::b::B /* crate::c::C */ crate::d::D */
            const T: (&str, &str, u8) = ("crate::e::E \" crate::f::F", r#"crate::g::G " "#, b'"');
            fn f<'a>(x: &'a str) { crate::h::H }
        "##;
        let file = SourceFile::read(source);
        assert_eq!(file.paths, BTreeSet::from([(NamePath::new(), path("crate::h::H"))]));
    }

    #[test]
    fn finds_definitions_at_the_top() {
        let source =
            "pub(crate) struct A; fn b() { fn inner() {} } static mut C: u8 = 0; mod m { struct D; }";
        let defines: Vec<String> = SourceFile::read(source).defines.into_iter().collect();
        assert_eq!(defines, ["A", "C", "b"]);
    }

    #[test]
    fn knows_inline_modules() {
        let file = SourceFile::read("mod m { use super::A; fn f() { super::b() } } fn g() { c::d() }");
        assert_eq!(file.imports[0].scope, ["m"]);
        let expected = [(path("m"), path("super::b")), (NamePath::new(), path("c::d"))];
        assert_eq!(file.paths, BTreeSet::from(expected));
    }

    #[test]
    fn words_are_no_imports_fields_or_submodules() {
        let file = SourceFile::read("mod a; use b::B; fn f(c: C) { c.d }");
        assert!(file.words.contains("C") && file.words.contains("c"));
        assert!(["a", "b", "B", "d"].iter().all(|word| !file.words.contains(*word)), "{:?}", file.words);
    }
}
