//! The table of threats in docs/security.md names tests that exist, and all of this suite.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use sublet_tests::read;

const DOCUMENT: &str = "docs/security.md";
const HEADING: &str = "\n## Threats and their tests\n";
/// Rows below which something has been lost.
const LEAST_ROWS: usize = 60;

/// A test as a row names it: after a link to its file, in the document's folder.
type Named = (PathBuf, String);

/// The rows of the table: the threat, what stops it, and the tests.
fn rows(document: &str) -> Vec<[&str; 3]> {
    let (_, section) = document.split_once(HEADING).expect("the document has a section on tests");
    let section = section.split("\n## ").next().unwrap_or_default();
    let cells = section.lines().filter(|line| line.starts_with("| ")).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        <[&str; 3]>::try_from(cells).unwrap_or_else(|cells| panic!("{} cells in {line}", cells.len()))
    });
    // The first one names the columns.
    cells.skip(1).collect()
}

/// The tests of a row: each link is followed by the names of tests in that file.
fn tests(cell: &str) -> Vec<Named> {
    let of_a_file = |part: &str| {
        let (target, names) = part.split_once(')').unwrap_or_else(|| panic!("no link in {part}"));
        let file = normal(&Path::new(DOCUMENT).parent().unwrap().join(target));
        let names: Vec<_> = names.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(!names.is_empty(), "no test of {target} is named");
        names.into_iter().map(move |name| (file.clone(), name))
    };
    cell.split("](").skip(1).flat_map(of_a_file).collect()
}

/// A path without `..`.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, component| {
        match component {
            Component::ParentDir => drop(path.pop()),
            other => path.push(other),
        }
        path
    })
}

fn is_there((file, name): &Named) -> bool {
    let source = read(file);
    source.contains(&format!("fn {name}(")) || source.contains(&format!("def {name}("))
}

#[test]
fn every_threat_names_what_stops_it_and_tests_that_exist() {
    let document = read(DOCUMENT);
    let rows = rows(&document);
    assert!(rows.len() >= LEAST_ROWS, "{} rows", rows.len());
    for [threat, stops, cell] in rows {
        assert!(!threat.is_empty() && !stops.is_empty(), "an empty cell beside {cell}");
        let tests = tests(cell);
        assert!(!tests.is_empty(), "no test of the threat: {threat}");
        for test in tests {
            assert!(is_there(&test), "{} has no test {}, of the threat: {threat}", test.0.display(), test.1);
        }
    }
}

#[test]
fn every_test_of_the_suite_is_in_the_table() {
    let document = read(DOCUMENT);
    let named: BTreeSet<Named> = rows(&document).iter().flat_map(|row| tests(row[2])).collect();
    for file in ["machine", "memory", "network", "sandboxes"] {
        let file = PathBuf::from(format!("tests/tests/strangers/{file}.rs"));
        let source = read(&file);
        for part in source.split("#[test]\nfn ").skip(1) {
            let name = part.split('(').next().unwrap_or_default().to_owned();
            assert!(named.contains(&(file.clone(), name.clone())), "the table does not name {name}");
        }
    }
}
