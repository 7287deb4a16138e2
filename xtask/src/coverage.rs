//! `cargo xtask coverage`: runs the Rust tests with LLVM's counters, and prints which share of each crate's lines they reach.
//!
//! Programs that a test starts are counted, too. A process that is killed, and one in a sandbox, writes no counts, so the
//! results are a lower bound. Only pytest calls the module for Python, so its lines count as not reached. Counters
//! change the code of every crate, so these builds have a folder of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::suites::{self, Suite};
use crate::{PROFILE, cargo, musl, root};

/// Folder of the builds and of the counts, below the repository's top folder.
const FOLDER: &str = "target/coverage";

/// Programs that tests start.
const PROGRAMS: &[&str] =
    &["sublet", "sublet-worker", "sublet-worker-wasm", "sublet-worker-kernels", "sublet-spawner"];

/// Libraries without a test program of their own: the module for Python.
const LIBRARIES: &[&str] = &["lib_native.so"];

/// Number of lines of a crate that can be reached, and of those that a test reached.
#[derive(Debug, Default, PartialEq)]
struct LineCoverage {
    all: u64,
    reached: u64,
}

/// Builds, runs the tests, merges their counts and prints the share of each crate.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    let mut step = Step::start("coverage", Show::Everything)?;
    let outcome = measure(&mut step)?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(step: &mut Step) -> io::Result<StepOutcome> {
    let folder = root().join(FOLDER);
    let counts = folder.join("counts");
    let environment = [
        ("RUSTFLAGS", OsString::from("-Cinstrument-coverage")),
        ("CARGO_TARGET_DIR", folder.join("build").into_os_string()),
        ("LLVM_PROFILE_FILE", counts.join("%m-%p.profraw").into_os_string()),
    ];
    let mut build = cargo();
    build.args(["build", "--profile", PROFILE, "--workspace", "--lib", "--bins", "--examples", "--tests"]);
    build.envs(environment.iter().cloned());
    let mut component = Command::new("rustup");
    component.args(["component", "add", "llvm-tools"]);
    let programs = folder.join("build").join(PROFILE);
    if !(step.run(component)? && step.run(build)? && musl::build(step, PROFILE, &programs)?) {
        return Ok(StepOutcome::Failed);
    }
    let Some(tests) = suites::list(step, &environment)? else { return Ok(StepOutcome::Failed) };
    // Build scripts have written counts as well.
    if counts.exists() {
        fs::remove_dir_all(&counts)?;
    }
    let objects = objects(&tests, &programs);
    let passed = suites::run_suites(step, tests, None, &environment)?;
    let tools = tools()?;
    let merged = folder.join("merged.profdata");
    let mut merge = Command::new(tools.join("llvm-profdata"));
    merge.args(["merge", "--sparse", "--failure-mode=all", "-o"]).arg(&merged).arg(&counts);
    if !step.run(merge)? {
        return Ok(StepOutcome::Failed);
    }
    let mut export = Command::new(tools.join("llvm-cov"));
    export
        .args(["export", "--format=lcov", "--skip-functions", "--instr-profile"])
        .arg(&merged)
        .args(objects);
    let exported = export.output()?;
    let crates = by_crate(&String::from_utf8_lossy(&exported.stdout));
    print!("\n{}", table(&crates));
    Ok(StepOutcome::from(passed && exported.status.success() && !crates.is_empty()))
}

/// The arguments that name the programs and libraries to llvm-cov.
fn objects(tests: &[Suite], programs: &Path) -> Vec<OsString> {
    // Several suites may be of one binary.
    let tests: BTreeSet<PathBuf> = tests.iter().map(|suite| suite.program.clone()).collect();
    let built = PROGRAMS.iter().chain(LIBRARIES).map(|name| programs.join(name));
    let files = built.chain(tests);
    files.flat_map(|file| [OsString::from("--object"), file.into_os_string()]).skip(1).collect()
}

/// The folder of LLVM's programs that belong to this compiler.
fn tools() -> io::Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "target-libdir"]).current_dir(root()).output()?;
    let libraries = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let folder = libraries.parent().map(|folder| folder.join("bin"));
    folder.ok_or_else(|| io::Error::other("rustc names no folder of libraries"))
}

/// Adds up the lines of a report in lcov's form: `SF:file`, then `LF:lines` and `LH:lines reached`.
fn by_crate(report: &str) -> BTreeMap<String, LineCoverage> {
    let mut crates: BTreeMap<String, LineCoverage> = BTreeMap::new();
    let mut name = None;
    for line in report.lines() {
        if let Some(file) = line.strip_prefix("SF:") {
            name = crate_of(file);
        } else if let Some(name) = &name {
            let lines = crates.entry(name.clone()).or_default();
            let count = |prefix| line.strip_prefix(prefix).and_then(|count| count.parse().ok()).unwrap_or(0);
            lines.all += count("LF:");
            lines.reached += count("LH:");
        }
    }
    crates
}

/// The crate whose sources hold this file; none for tests, dependencies and generated code.
fn crate_of(file: &str) -> Option<String> {
    let (name, rest) = match file.split_once("/crates/") {
        Some((_, below)) => below.split_once('/')?,
        None => ("python", file.split_once("/python/")?.1),
    };
    let is_source = rest.starts_with("src/") && !rest.contains("/tests") && !file.contains("/target/");
    is_source.then(|| name.to_owned())
}

fn table(crates: &BTreeMap<String, LineCoverage>) -> String {
    let mut text = String::from("CRATE             LINES   REACHED\n");
    let (mut all, mut reached) = (0, 0);
    for (name, lines) in crates {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<16} {:>6}   {:>6.1}%", lines.all, share(lines.reached, lines.all));
        all += lines.all;
        reached += lines.reached;
    }
    let _ = writeln!(text, "{:<16} {all:>6}   {:>6.1}%", "total", share(reached, all));
    text
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_the_lines_of_each_crate_without_its_tests() {
        let report = "SF:/a/crates/proto/src/code.rs\nDA:1,1\nLF:10\nLH:5\nend_of_record\n\
                      SF:/a/crates/proto/src/text.rs\nLF:10\nLH:10\nend_of_record\n\
                      SF:/a/crates/proto/src/code/tests.rs\nLF:9\nLH:9\nend_of_record\n\
                      SF:/a/python/src/call.rs\nLF:5\nLH:0\nend_of_record\n\
                      SF:/a/crates/template-python/src/lib.rs\nLF:4\nLH:4\nend_of_record\n\
                      SF:/a/examples/python/functions.rs\nLF:3\nLH:3\nend_of_record\n\
                      SF:/registry/src/tokio/src/lib.rs\nLF:7\nLH:0\nend_of_record\n";
        let crates = by_crate(report);
        let expected = [("proto", 20, 15), ("python", 5, 0), ("template-python", 4, 4)]
            .map(|(name, all, reached)| (name.to_owned(), LineCoverage { all, reached }));
        assert_eq!(crates, BTreeMap::from(expected));
        assert!(table(&crates).contains("75.0%"), "{}", table(&crates));
    }
}
