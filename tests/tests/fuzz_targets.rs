//! Fuzz targets with their made and kept inputs, and with a fixed number of mutations of these: the same in every run.
//!
//! This needs no build of its own, and finds what the inputs at hand reach. `cargo xtask fuzz` searches for others, by the
//! code that they reach.

#![allow(clippy::unwrap_used)]

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use serde_json::Value;
use sublet_tests::mutation::mutate;
use sublet_tests::{files, read, root};

/// Seed of all mutations.
const SEED: u64 = 1;
/// Time after which an input hangs.
const HANG: Duration = Duration::from_secs(120);
/// Interval at which the time of the current input and the memory are checked.
const LOOK: Duration = Duration::from_millis(200);
/// Most memory of this process, in bytes: an input that makes a decoder take more is a finding.
const MAX_MEMORY_BYTES: u64 = 1 << 30;
/// Bytes of an input that a failure shows.
const SHOWN_BYTES: usize = 1024;

/// Makes a test of each target. The number of mutations is what takes a few seconds: fewer where an input opens
/// connections or unpacks files.
macro_rules! replayed {
    ($($target:ident: $mutations:literal $(, then $end:path)?;)*) => {
        $(
            #[test]
            fn $target() {
                let inputs = inputs(stringify!($target));
                replay(stringify!($target), sublet_fuzz_targets::$target::run, inputs, $mutations, HANG);
                $($end();)?
            }
        )*

        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
    };
}

replayed! {
    control_messages: 100_000;
    devices: 100_000;
    error_status: 100_000;
    graph_document: 100_000;
    greeting: 50_000;
    image: 5_000;
    listeners: 1_000, then sublet_fuzz_targets::listeners::stop;
    message_frames: 100_000;
    node_messages: 100_000;
    package_validate: 20_000;
    stream_frames: 20_000;
    ticket_verify: 50_000;
    wire_request: 100_000;
}

/// An input, and where it comes from.
#[derive(Clone)]
struct TracedInput {
    origin: String,
    bytes: Vec<u8>,
}

impl fmt::Display for TracedInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} bytes: ", self.origin, self.bytes.len())?;
        self.bytes.iter().take(SHOWN_BYTES).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if self.bytes.len() > SHOWN_BYTES { f.write_str("...") } else { Ok(()) }
    }
}

/// Runs a target with each input, then with mutations of the inputs.
///
/// # Panics
/// If the target panics at one, takes longer than `hang`, or this process takes too much memory. The message names target
/// and input.
fn replay(target: &str, run: fn(&[u8]), inputs: Vec<TracedInput>, mutations: u64, hang: Duration) {
    let current = Arc::new(Mutex::new(None));
    let (running, ended) = channel::<()>();
    let runner = thread::spawn({
        let current = current.clone();
        move || {
            // Closed when this thread ends, by a panic as well.
            let _running = running;
            let bytes: Vec<&[u8]> = inputs.iter().map(|input| &*input.bytes).collect();
            let mutated = (0..mutations).map(|number| TracedInput {
                origin: format!("mutation {number} of seed {SEED}"),
                bytes: mutate(&bytes, SEED, number),
            });
            for input in inputs.iter().cloned().chain(mutated) {
                let bytes = input.bytes.clone();
                *current.lock().unwrap() = Some((Instant::now(), input));
                run(&bytes);
            }
        }
    });
    let named = || match &*current.lock().unwrap() {
        Some((_, input)) => format!("{target} with {input}"),
        None => format!("{target} without an input"),
    };
    while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let since = current.lock().unwrap().as_ref().map(|(since, _): &(Instant, TracedInput)| *since);
        let is_hanging = since.is_some_and(|since| since.elapsed() > hang);
        assert!(!is_hanging, "has not ended in {} s: {}", hang.as_secs(), named());
        assert_memory(named);
    }
    assert!(runner.join().is_ok(), "has panicked: {}", named());
    assert_memory(named);
}

fn assert_memory(named: impl Fn() -> String) {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let most_bytes = line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10;
    assert!(
        most_bytes <= MAX_MEMORY_BYTES,
        "the process of all targets took {} MiB, at or before {}",
        most_bytes >> 20,
        named()
    );
}

/// The inputs that a target has before any mutation: made ones, then kept ones.
fn inputs(target: &str) -> Vec<TracedInput> {
    let mut inputs = made(target);
    inputs.extend(kept(target));
    inputs
}

/// Inputs that `fuzz-seeds` makes with the real encoders. Some targets have none.
fn made(target: &str) -> Vec<TracedInput> {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_fuzz-seeds")).arg(folder.path()).status().unwrap();
    assert!(status.success(), "fuzz-seeds: {status}");
    let seeds = folder.path().join(target);
    let numbers = 0..fs::read_dir(&seeds).map_or(0, |seeds| seeds.count());
    numbers
        .map(|number| TracedInput {
            origin: format!("made input {number}"),
            bytes: fs::read(seeds.join(number.to_string())).unwrap(),
        })
        .collect()
}

/// Inputs that libFuzzer has found, and `cargo xtask fuzz-keep` has kept.
fn kept(target: &str) -> Vec<TracedInput> {
    let path = root().join(format!("fuzz/kept/{target}.tar.gz"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut inputs = Vec::new();
    for entry in tar::Archive::new(GzDecoder::new(file)).entries().unwrap() {
        let mut entry = entry.unwrap();
        if entry.header().entry_type().is_file() {
            let origin = format!("kept input {}", entry.path().unwrap().display());
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            inputs.push(TracedInput { origin, bytes });
        }
    }
    assert!(!inputs.is_empty(), "{} has no input", path.display());
    inputs
}

/// The only form of a program for libFuzzer. The test above calls the same function with the same argument, so a program
/// in this form compiles, and no step of a test run needs to compile it.
fn program(target: &str) -> String {
    format!(
        "//! Runs the fuzz target `{target}` under libFuzzer.\n#![no_main]\n\n\
         libfuzzer_sys::fuzz_target!(|input: &[u8]| sublet_fuzz_targets::{target}::run(input));\n"
    )
}

/// The names of a folder's files that have an ending, without it.
fn names(folder: &str, ending: &str) -> Vec<String> {
    let paths = files(folder, &[ending]);
    let name = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_suffix(ending).unwrap().to_owned()
    };
    paths.iter().map(name).collect()
}

#[test]
fn each_target_has_a_program_for_libfuzzer_and_kept_inputs() {
    let mut replayed = REPLAYED.to_vec();
    replayed.sort_unstable();
    let modules = names("tests/fuzz-targets/src", ".rs").into_iter().filter(|name| name != "lib");
    assert_eq!(modules.collect::<Vec<_>>(), replayed, "modules of targets, and those that are replayed");
    assert_eq!(names("fuzz/fuzz_targets", ".rs"), replayed, "programs, and targets that are replayed");
    assert_eq!(names("fuzz/kept", ".tar.gz"), replayed, "kept inputs, and targets that are replayed");
    for target in replayed {
        let path = format!("fuzz/fuzz_targets/{target}.rs");
        assert_eq!(read(&path), program(target), "{path} has not the form of all programs for libFuzzer");
    }
}

#[test]
fn the_manifest_of_the_programs_for_libfuzzer_names_them_all() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
        .arg(root().join("fuzz/Cargo.toml"))
        .output()
        .expect("cargo runs: it runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let package = &metadata["packages"][0];
    let mut programs = Vec::new();
    for program in package["targets"].as_array().unwrap() {
        let (name, path) = (program["name"].as_str().unwrap(), program["src_path"].as_str().unwrap());
        assert_eq!(Path::new(path), root().join(format!("fuzz/fuzz_targets/{name}.rs")));
        programs.push(name);
    }
    programs.sort_unstable();
    let mut replayed = REPLAYED.to_vec();
    replayed.sort_unstable();
    assert_eq!(programs, replayed, "programs of fuzz/Cargo.toml, and targets that are replayed");
    let dependencies = package["dependencies"].as_array().unwrap();
    let mut names: Vec<_> = dependencies.iter().map(|dependency| dependency["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, [Some("libfuzzer-sys"), Some("sublet-fuzz-targets")], "all that a program names");
}

#[test]
fn a_failure_names_target_and_input() {
    let planted = |bytes: Vec<u8>| vec![TracedInput { origin: "planted input".into(), bytes }];
    let failure = |run: fn(&[u8]), inputs, hang| {
        let panic = catch_unwind(|| replay("planted", run, inputs, 1000, hang)).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };
    let panics_at_once: fn(&[u8]) = |input| assert_ne!(input, [7, 255]);
    assert_eq!(
        failure(panics_at_once, planted(vec![7, 255]), HANG),
        "has panicked: planted with planted input, 2 bytes: 07ff"
    );
    let panics_at_a_mutation: fn(&[u8]) = |input| assert!(input.starts_with(&[7]));
    let message = failure(panics_at_a_mutation, planted(vec![7; 8]), HANG);
    assert!(message.starts_with("has panicked: planted with mutation "), "{message}");
    let hangs: fn(&[u8]) = |_| {
        loop {
            thread::park();
        }
    };
    let message = failure(hangs, planted(vec![0; 2000]), Duration::ZERO);
    assert!(
        message.starts_with("has not ended in 0 s: planted with planted input, 2000 bytes: 0000"),
        "{message}"
    );
    assert!(message.ends_with("00..."), "{message}");
}
