//! Tests of the tables that name tests as evidence, as the invariants of ARCHITECTURE.md and the threats of docs/security.md
//! do, and of the table of limits, which names modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::root;

/// A table whose last column names tests.
struct EvidenceTable {
    document: &'static str,
    heading: &'static str,
    columns: usize,
    /// Fewer rows mean that a part of the table is not read.
    least_rows: usize,
}

const TABLES: &[EvidenceTable] = &[
    EvidenceTable { document: "ARCHITECTURE.md", heading: "\n## Invariants\n", columns: 2, least_rows: 20 },
    EvidenceTable {
        document: "docs/security.md",
        heading: "\n## Threats and their tests\n",
        columns: 3,
        least_rows: 60,
    },
];

/// A test: its file, and its function's name.
type Test = (PathBuf, String);

fn read(path: &Path) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cells of each row below the heading of columns, in the first table of the section.
fn rows<'text>(document: &'text str, table: &EvidenceTable) -> Vec<Vec<&'text str>> {
    let (_, section) = document.split_once(table.heading).expect("the document has the table's section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let lines = section.lines().filter(|line| line.starts_with("| "));
    lines.skip(1).map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// The tests that a cell names: each link to a file is followed by names of tests in that file.
fn tests(document: &str, cell: &str) -> Vec<Test> {
    let folder = Path::new(document).parent().unwrap_or(Path::new(""));
    let of_a_file = |part: &str| {
        let (target, names) = part.split_once(')').unwrap_or_else(|| panic!("no link in {part}"));
        let file = normal(&folder.join(target));
        let names: Vec<_> = names.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        names.into_iter().map(move |name| (file.clone(), name))
    };
    cell.split("](").skip(1).flat_map(of_a_file).collect()
}

/// The path without `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::ParentDir => drop(path.pop()),
            other => path.push(other),
        }
        path
    })
}

fn exists((file, name): &Test) -> bool {
    let source = read(file);
    ["fn", "def"].iter().any(|word| source.contains(&format!("{word} {name}(")))
}

#[test]
fn every_row_names_tests_that_exist() {
    for table in TABLES {
        let (name, text) = (table.document, read(Path::new(table.document)));
        let rows = rows(&text, table);
        assert!(rows.len() >= table.least_rows, "{name} has {} rows", rows.len());
        for row in rows {
            assert_eq!(row.len(), table.columns, "{name}: cells in {row:?}");
            assert!(row.iter().all(|cell| !cell.is_empty()), "{name}: an empty cell in {row:?}");
            let tests = tests(name, row[table.columns - 1]);
            assert!(!tests.is_empty(), "{name} names no test for: {}", row[0]);
            let missing: Vec<_> = tests.iter().filter(|test| !exists(test)).collect();
            assert!(missing.is_empty(), "{name}: {}: these tests do not exist: {missing:?}", row[0]);
        }
    }
}

#[test]
fn table_of_threats_names_every_attack_test() {
    let table = &TABLES[1];
    let text = read(Path::new(table.document));
    let named: BTreeSet<Test> =
        rows(&text, table).iter().flat_map(|row| tests(table.document, row[table.columns - 1])).collect();
    for file in ["machine", "memory", "network", "sandboxes"] {
        let file = PathBuf::from(format!("tests/tests/hostile_tenants/{file}.rs"));
        for part in read(&file).split("#[test]\nfn ").skip(1) {
            let name = part.split('(').next().unwrap_or_default().to_owned();
            assert!(named.contains(&(file.clone(), name.clone())), "the table does not name {name}");
        }
    }
}

/// Tells whether a module of a crate exists: as a file, or within its parent's.
fn is_module(module: &str) -> bool {
    let (name, path) = module.split_once("::").unwrap_or((module, ""));
    let source = root().join("crates").join(name).join("src");
    let (parent, last) = path.rsplit_once("::").unwrap_or(("", path));
    let file = source.join(path.replace("::", "/")).with_extension("rs");
    let enclosing = if parent.is_empty() { "lib".to_owned() } else { parent.replace("::", "/") };
    let enclosing = fs::read_to_string(source.join(enclosing).with_extension("rs")).unwrap_or_default();
    path.is_empty() && source.is_dir() || file.is_file() || enclosing.contains(&format!("mod {last} {{"))
}

#[test]
fn every_limit_names_modules_that_exist() {
    let text = read(Path::new("docs/reference/limits.md"));
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| what |");
    let rows: Vec<_> = text.lines().filter(is_row).collect();
    assert!(rows.len() >= 100, "{} rows", rows.len());
    for row in rows {
        let place = row.trim_matches('|').rsplit(" | ").next().unwrap_or_default();
        let mut modules = place.split('`').skip(1).step_by(2).peekable();
        assert!(modules.peek().is_some(), "no module in {row}");
        let missing: Vec<_> = modules.filter(|module| !is_module(module)).collect();
        assert!(missing.is_empty(), "no such modules: {missing:?} in {row}");
    }
}
