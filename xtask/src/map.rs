//! `cargo xtask map`: lists the source files by folder, each with the first sentence of its head comment.
//!
//! The head comment is the only place that states a file's duty: no document repeats the list. A test asserts that each
//! file has one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::options::ChoreOptions;
use crate::{circles, root};

/// Folders of build outputs and of inputs that fuzzing has found.
const GENERATED: &[&str] =
    &["target", "corpus", "artifacts", "seeds", "minimal", "node_modules", "__pycache__", "build", "dist"];

/// Endings of the names of source files.
const SOURCES: &[&str] = &["rs", "c", "cpp", "h", "hpp", "cl", "f90", "go", "js", "proto", "py", "pyi", "sh"];

/// Prints every source file with its duty, by folder; with `--circles`, circles of imports in place of files.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let circles = options.take("circles");
    options.end()?;
    match circles.as_deref() {
        Some("yes") => return circles::chore(false),
        Some("write") => return circles::chore(true),
        Some(other) => return Err(io::Error::other(format!("--circles {other}: must be yes or write"))),
        None => {}
    }
    let mut folders: BTreeMap<PathBuf, Vec<(String, String)>> = BTreeMap::new();
    for path in files(SOURCES)? {
        let source = fs::read_to_string(root().join(&path))?;
        let duty = duty(&path, &source).unwrap_or_else(|| "(no head comment)".to_owned());
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        folders.entry(path.parent().unwrap_or(Path::new("")).to_path_buf()).or_default().push((name, duty));
    }
    match print(&folders) {
        // The reader, `head` for instance, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        printed => printed.map(|()| ExitCode::SUCCESS),
    }
}

fn print(folders: &BTreeMap<PathBuf, Vec<(String, String)>>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (folder, files) in folders {
        writeln!(out, "{}/", folder.display())?;
        let width = files.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, duty) in files {
            writeln!(out, "  {name:<width$}  {duty}")?;
        }
    }
    Ok(())
}

/// The repository's files whose names have one of these extensions, as sorted paths from the top folder.
pub fn files(extensions: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(&root(), extensions, &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind, name) = (entry.path(), entry.file_type()?, entry.file_name());
        let name = name.to_string_lossy();
        if kind.is_dir() && !name.starts_with('.') && !GENERATED.contains(&name.as_ref()) {
            collect(&path, extensions, found)?;
        } else if kind.is_file()
            && path.extension().is_some_and(|end| extensions.iter().any(|&extension| end == extension))
        {
            found.push(path.strip_prefix(root()).unwrap_or(&path).to_path_buf());
        }
    }
    Ok(())
}

/// The first sentence of a source file's head comment; `None` if the file does not begin with one.
pub fn duty(path: &Path, source: &str) -> Option<String> {
    let extension = path.extension()?.to_str()?;
    let lines = source.lines().skip_while(|line| line.is_empty() || line.starts_with("#!/"));
    let paragraph = match extension {
        "rs" => paragraph(lines, "//!"),
        "sh" => paragraph(lines, "#"),
        "f90" => paragraph(lines, "!"),
        "py" | "pyi" if source_begins(source, "\"\"\"") => block(lines, "\"\"\"", "\"\"\""),
        "py" | "pyi" => paragraph(lines, "#"),
        _ if source_begins(source, "/*") => block(lines, "/*", "*/"),
        _ => paragraph(lines, "//"),
    };
    Some(first_sentence(&paragraph)).filter(|duty| !duty.is_empty())
}

/// Whether the first line of a source that is neither empty nor names an interpreter starts with `mark`.
fn source_begins(source: &str, mark: &str) -> bool {
    let mut lines = source.lines().filter(|line| !line.is_empty() && !line.starts_with("#!/"));
    lines.next().is_some_and(|line| line.starts_with(mark))
}

/// The first paragraph of a comment whose lines all start with `mark`.
fn paragraph<'a>(lines: impl Iterator<Item = &'a str>, mark: &str) -> String {
    let comment = lines.map_while(|line| line.strip_prefix(mark)).map(str::trim);
    comment.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The first paragraph of a comment between two marks, whose lines may start with an asterisk.
fn block<'a>(lines: impl Iterator<Item = &'a str>, open: &str, close: &str) -> String {
    let text = lines.collect::<Vec<_>>().join("\n");
    let comment = text.strip_prefix(open).unwrap_or_default().split(close).next().unwrap_or_default();
    let lines = comment.lines().map(|line| line.trim().trim_start_matches('*').trim());
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The text up to the first full stop that ends a sentence.
fn first_sentence(paragraph: &str) -> String {
    let end = paragraph.match_indices(". ").map(|(at, _)| at + 1).find(|&end| {
        // A sentence starts with a capital letter or with code: "e.g. this" does not end one.
        paragraph[end..].trim_start().starts_with(|first: char| first.is_uppercase() || first == '`')
    });
    paragraph[..end.unwrap_or(paragraph.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_file_states_its_duty() {
        let files = files(SOURCES).unwrap();
        assert!(files.len() > 500, "only {} source files were found", files.len());
        let read = |path: &PathBuf| fs::read_to_string(root().join(path)).unwrap();
        let bare: Vec<_> = files.iter().filter(|path| duty(path, &read(path)).is_none()).collect();
        assert!(bare.is_empty(), "these files do not begin with a comment that states their duty: {bare:#?}");
    }

    #[test]
    fn duties_are_statements() {
        const QUESTIONS: [&str; 10] =
            ["What", "Who", "Whom", "Whoever", "How", "Where", "Which", "When", "Whether", "Of"];
        let is_question = |path: &&PathBuf| {
            let source = fs::read_to_string(root().join(path)).unwrap();
            let duty = duty(path, &source).unwrap_or_default();
            QUESTIONS.contains(&duty.split(' ').next().unwrap_or_default())
        };
        let files = files(SOURCES).unwrap();
        let questions: Vec<_> = files.iter().filter(is_question).collect();
        assert!(questions.is_empty(), "state the duty by a verb or a noun in the heads of {questions:#?}");
    }

    #[test]
    fn duty_is_the_first_sentence_of_the_head() {
        let cases = [
            (
                "a.rs",
                "//! Reads a file: one\n//! line. Then more.\n\nuse a;\n",
                Some("Reads a file: one line."),
            ),
            ("a.rs", "use a;\n\n//! Reads.\n", None),
            ("a.rs", "// Reads.\n", None),
            ("a.sh", "#!/bin/sh\n# Installs.\n#\n# More.\n", Some("Installs.")),
            ("a.sh", "#!/bin/sh\nset -e\n", None),
            ("a.py", "\"\"\"Sends calls.\n\nMore.\n\"\"\"\n", Some("Sends calls.")),
            ("a.py", "import os\n\"\"\"Sends calls.\"\"\"\n", None),
            ("a.h", "/* a.h: lists\n * names.\n *\n * More. */\n", Some("a.h: lists names.")),
            ("a.h", "#ifndef A\n/* Lists. */\n", None),
            ("a.cpp", "// Prints.\n#include <a>\n", Some("Prints.")),
            ("a.c", "/* */\n", None),
            ("a.f90", "! Adds\n! numbers.\n!\n! More.\nmodule a\n", Some("Adds numbers.")),
            ("a.f90", "module a\n! Adds.\n", None),
            ("a.go", "// Adds.\npackage main\n", Some("Adds.")),
        ];
        for (name, source, expected) in cases {
            assert_eq!(duty(Path::new(name), source).as_deref(), expected, "{name}: {source:?}");
        }
    }
}
