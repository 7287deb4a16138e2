//! `cargo xtask map --circles yes`: lists the circles of imports between the files of each crate.
//!
//! File A imports from file B if A names an item that B defines. An item that a module re-exports belongs to the file
//! that defines it, and a re-export alone is no import. Code under `#[cfg(test)]` does not count. Two files are in one
//! circle if each leads to the other by imports.
//!
//! The table `xtask/circles.txt` holds the number of circles of each crate and of the files in them. A test fails where
//! there are more, so that the numbers only fall. A crate without a line in the table has no circle.

mod graph;
mod source;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::map::files;
use crate::root;
use graph::{ModulePath, circles, imports};
use source::SourceFile;

/// Path of the table of allowed numbers.
const TABLE: &str = "xtask/circles.txt";

/// Number of circles of each crate, and of the files in them.
type Counts = BTreeMap<String, (usize, usize)>;

/// A circle of imports between files of one crate.
struct Circle {
    krate: String,
    /// Each file, the file that it imports from, and the names that it imports.
    imports: Vec<(PathBuf, PathBuf, Vec<String>)>,
    files: usize,
}

/// Prints the circles of all crates, or writes the table of their numbers.
pub fn chore(write: bool) -> io::Result<ExitCode> {
    let found = find()?;
    if write {
        fs::write(root().join(TABLE), table(&counts(&found)))?;
        return Ok(ExitCode::SUCCESS);
    }
    match print(&found) {
        // The reader, `head` for instance, has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        printed => printed.map(|()| ExitCode::SUCCESS),
    }
}

fn print(found: &[Circle]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for circle in found {
        writeln!(out, "{}: a circle of {} files", circle.krate, circle.files)?;
        for (from, to, names) in &circle.imports {
            writeln!(out, "  {} imports from {}: {}", from.display(), to.display(), names.join(", "))?;
        }
    }
    for (krate, (circles, files)) in counts(found) {
        writeln!(out, "{krate}: {circles} circles, {files} files in them")?;
    }
    Ok(())
}

/// Every circle of every crate.
fn find() -> io::Result<Vec<Circle>> {
    let mut crates: BTreeMap<String, BTreeMap<ModulePath, (PathBuf, SourceFile)>> = BTreeMap::new();
    for path in files(&["rs"])? {
        if let Some((krate, module)) = module_of(&path) {
            let source = SourceFile::read(&fs::read_to_string(root().join(&path))?);
            crates.entry(krate).or_default().insert(module, (path, source));
        }
    }
    Ok(crates.iter().flat_map(|(krate, modules)| circles_of(krate, modules)).collect())
}

fn circles_of(krate: &str, modules: &BTreeMap<ModulePath, (PathBuf, SourceFile)>) -> Vec<Circle> {
    let sources = modules.iter().map(|(module, (_, source))| (module.clone(), source)).collect();
    let imports = imports(&sources);
    let circle = |members: Vec<ModulePath>| {
        let within = imports.iter().filter(|((from, to), _)| members.contains(from) && members.contains(to));
        let named = within.map(|((from, to), names)| {
            (modules[from].0.clone(), modules[to].0.clone(), names.iter().cloned().collect())
        });
        Circle { krate: krate.to_owned(), imports: named.collect(), files: members.len() }
    };
    circles(&imports).into_iter().map(circle).collect()
}

/// The crate and the module of a source file; `None` for tests, programs and files outside of `crates`.
fn module_of(path: &Path) -> Option<(String, ModulePath)> {
    let parts: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let ["crates", krate, "src", folders @ .., file] = parts.as_slice() else { return None };
    let name = file.strip_suffix(".rs")?;
    if folders.iter().chain([&name]).any(|part| matches!(*part, "tests" | "bin" | "main")) {
        return None;
    }
    let last = Some(name).filter(|name| !matches!(*name, "lib" | "mod"));
    Some(((*krate).to_owned(), folders.iter().copied().chain(last).map(str::to_owned).collect()))
}

fn counts(found: &[Circle]) -> Counts {
    let mut counts = Counts::new();
    for circle in found {
        let (circles, files) = counts.entry(circle.krate.clone()).or_default();
        *circles += 1;
        *files += circle.files;
    }
    counts
}

fn table(counts: &Counts) -> String {
    let lines = counts.iter().map(|(krate, (circles, files))| format!("{krate} {circles} {files}\n"));
    format!(
        "# Circles of imports that are left in each crate, and the files in them. Numbers only fall.\n{}",
        lines.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Counts {
        let table = fs::read_to_string(root().join(TABLE)).unwrap();
        let entry = |line: &str| {
            let fields: Vec<_> = line.split(' ').collect();
            let [krate, circles, files] = fields[..] else {
                panic!("{TABLE}: not a crate and two numbers: {line:?}")
            };
            (krate.to_owned(), (circles.parse().unwrap(), files.parse().unwrap()))
        };
        table.lines().filter(|line| !line.starts_with('#')).map(entry).collect()
    }

    /// The crates that have more circles, or more files in them, than allowed.
    fn worse(found: &Counts, allowed: &Counts) -> Vec<String> {
        let limit = |krate: &String| allowed.get(krate).copied().unwrap_or_default();
        let is_worse = |(krate, (circles, files)): &(&String, &(usize, usize))| {
            *circles > limit(krate).0 || *files > limit(krate).1
        };
        let told = |(krate, found): (&String, &(usize, usize))| {
            format!("{krate}: {found:?} circles and files in them, {:?} allowed", limit(krate))
        };
        found.iter().filter(is_worse).map(told).collect()
    }

    #[test]
    fn no_crate_gets_a_circle() {
        let worse = worse(&counts(&find().unwrap()), &allowed());
        assert!(worse.is_empty(), "see cargo xtask map --circles yes: {worse:#?}");
    }

    #[test]
    fn table_holds_what_was_found() {
        let expected = table(&counts(&find().unwrap()));
        assert_eq!(
            fs::read_to_string(root().join(TABLE)).unwrap(),
            expected,
            "there are fewer circles: write it by cargo xtask map --circles write"
        );
    }

    #[test]
    fn refuses_more_circles_and_more_files() {
        let counts = |circles, files| Counts::from([("agent".to_owned(), (circles, files))]);
        assert!(worse(&counts(2, 5), &counts(2, 5)).is_empty());
        assert_eq!(worse(&counts(3, 5), &counts(2, 5)).len(), 1);
        assert_eq!(worse(&counts(1, 6), &counts(2, 5)).len(), 1);
        assert_eq!(worse(&counts(1, 2), &Counts::new()).len(), 1);
    }

    #[test]
    fn modules_are_named_by_paths() {
        let module =
            |path: &str| module_of(Path::new(path)).map(|(krate, module)| (krate, module.join("::")));
        let of = |krate: &str, module: &str| Some((krate.to_owned(), module.to_owned()));
        assert_eq!(module("crates/agent/src/lib.rs"), of("agent", ""));
        assert_eq!(module("crates/agent/src/shim.rs"), of("agent", "shim"));
        assert_eq!(module("crates/agent/src/shim/link.rs"), of("agent", "shim::link"));
        assert_eq!(module("crates/agent/src/shim/mod.rs"), of("agent", "shim"));
        assert_eq!(module("crates/agent/src/shim/tests.rs"), None);
        assert_eq!(module("crates/agent/src/bin/agent.rs"), None);
        assert_eq!(module("xtask/src/map.rs"), None);
    }
}
