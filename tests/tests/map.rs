//! The documents agree with the tree: maps rot unless something fails when they do.

use std::collections::BTreeSet;

use sublet_proto::Code;
use sublet_tests::{files, read};

/// A call, in the order in which a reader follows it: the file, and what to look for in it.
const READERS_PATH: &[(&str, &str)] = &[
    ("examples/rust/hello.rs", "fn main"),
    ("crates/runtime/src/invoker.rs", "fn submit"),
    ("crates/runtime/src/wire.rs", "struct"),
    ("crates/fabric/src/shm.rs", "fn put_imm"),
    ("crates/runtime/src/worker.rs", "fn run"),
];

/// Where each of these happens: the file, and the function, which the document names beside each other.
const PLACES: &[(&str, &str)] = &[
    ("crates/runtime/src/lease/dispatch.rs", "publish"),
    ("crates/manager/src/core/grant.rs", "try_grant"),
    ("crates/manager/src/core/placement.rs", "place"),
    ("crates/agent/src/leases/book.rs", "admit"),
    ("crates/runtime/src/swap/page_out.rs", "let_region_go"),
];

/// Longest file on that path, in lines: one sitting.
const ONE_SITTING: usize = 600;

/// Most lines of a text that a new reader reads in 40 minutes.
const MAX_LINES: usize = 600;

/// The targets of a document's relative links, without their anchors.
fn links(markdown: &str) -> BTreeSet<String> {
    let targets = markdown.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    local.map(|target| target.split('#').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_code_map_names_every_crate() {
    let architecture = read("ARCHITECTURE.md");
    for manifest in files("crates", &["Cargo.toml"]) {
        let folder = manifest.parent().expect("a manifest stands in a folder").display().to_string();
        assert!(architecture.contains(&format!("\n| `{folder}` | ")), "the code map has no row for {folder}");
    }
}

#[test]
fn the_readers_path_exists_with_files_of_limited_length() {
    let architecture = read("ARCHITECTURE.md");
    for (path, mark) in READERS_PATH {
        let source = read(path);
        let lines = source.lines().count();
        assert!(source.contains(mark), "{path} has no {mark:?}");
        assert!(lines <= ONE_SITTING, "{path} has {lines} lines: one sitting is {ONE_SITTING}");
        assert!(links(&architecture).contains(*path), "ARCHITECTURE.md does not lead the reader to {path}");
    }
}

#[test]
fn architecture_leads_to_the_places_where_it_happens() {
    let architecture = read("ARCHITECTURE.md");
    for (path, function) in PLACES {
        assert!(read(path).contains(&format!("fn {function}(")), "{path} has no function {function}");
        let (_, after) =
            architecture.split_once(&format!("]({path})")).unwrap_or_else(|| panic!("no link to {path}"));
        let paragraph = after.split("\n\n").next().unwrap_or_default();
        assert!(
            paragraph.contains(&format!("`{function}`")),
            "ARCHITECTURE.md does not name {function} of {path}"
        );
    }
}

#[test]
fn architecture_is_read_in_40_minutes() {
    let lines = read("ARCHITECTURE.md").lines().count();
    assert!(
        lines <= MAX_LINES,
        "ARCHITECTURE.md has {lines} lines; move details to docs/internals ({MAX_LINES})"
    );
}

#[test]
fn every_error_code_is_documented() {
    let document = read("docs/reference/error-codes.md");
    for code in Code::ALL {
        let row = format!("| {} | `{}` |", code.number(), code.name());
        assert!(document.contains(&row), "error-codes.md has no row {row:?}");
    }
    let rows = document.lines().filter(|line| is_code_row(line)).count();
    assert_eq!(rows, Code::ALL.len(), "error-codes.md has rows for codes that do not exist");
}

/// Whether a line is a table row of a number and a name in lower case, as `| 10 | `invalid_argument` | ...`.
fn is_code_row(line: &str) -> bool {
    let mut cells = line.split('|').skip(1).map(str::trim);
    let (number, name) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
    let name = name.trim_matches('`');
    number.parse::<u32>().is_ok()
        && !name.is_empty()
        && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}

#[test]
fn every_chore_that_a_document_names_exists() {
    let (makefile, chores) = (read("Makefile"), read("xtask/src/main.rs"));
    for document in files("", &[".md"]) {
        let (text, document) = (read(&document), document.display());
        for target in words_after(&text, "make ") {
            assert!(makefile.contains(&format!("\n{target}:")), "{document} names `make {target}`");
        }
        for chore in words_after(&text, "cargo xtask ") {
            let listed = ["\"", " "].iter().any(|end| chores.contains(&format!("usage: \"{chore}{end}")));
            assert!(listed, "{document} names `cargo xtask {chore}`");
        }
    }
}

/// The words that follow a command's start at the start of a line of code. Splitting at each back-tick leaves spans
/// and fenced blocks alike at the odd places.
fn words_after<'a>(markdown: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    let code = markdown.split('`').skip(1).step_by(2).flat_map(str::lines);
    let commands = code.filter_map(move |line| line.trim_start().strip_prefix(start));
    let words =
        commands.filter_map(|rest| rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next());
    words.filter(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
}

#[test]
fn no_file_names_a_developers_own_folders() {
    let homes = ["home", "root", "Users"].map(|folder| format!("/{folder}/"));
    let endings =
        [".rs", ".md", ".toml", ".sh", ".h", ".hpp", ".c", ".cpp", ".proto", ".in", ".yml", "Makefile"];
    for path in files("", &endings) {
        let text = read(&path);
        for home in &homes {
            let named = text.match_indices(home).any(|(at, _)| !is_a_process(&text[..at]));
            assert!(!named, "{} names {home}", path.display());
        }
    }
}

/// Whether a text ends in the path of a process: what `root` in it names is nobody's home.
fn is_a_process(text: &str) -> bool {
    text.rsplit('/').nth(1) == Some("proc")
}
