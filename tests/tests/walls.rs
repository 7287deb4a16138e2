//! The walls of the house: which crate may import which, where unsafe code may stand, how many invariants each crate
//! asserts, and that no test is left out of the programs that run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sublet_tests::{files, read};

/// A crate of the workspace that users receive, with its rules.
struct Rules {
    name: &'static str,
    /// The folder of its manifest.
    folder: &'static str,
    /// The crates of this workspace that it may import. Each stands above it in the table.
    may_import: &'static [&'static str],
    unsafe_code: UnsafeCode,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UnsafeCode {
    Allowed,
    Forbidden,
}

use UnsafeCode::{Allowed, Forbidden};

/// The only list of import rules and of crates with unsafe code. The code map of ARCHITECTURE.md has the same crates in the
/// same order, which a test below checks.
const CRATES: &[Rules] = &[
    Rules { name: "sublet-proto", folder: "crates/proto", may_import: &[], unsafe_code: Forbidden },
    Rules { name: "sublet-admission", folder: "crates/admission", may_import: &[], unsafe_code: Forbidden },
    Rules {
        name: "sublet-fabric",
        folder: "crates/fabric",
        may_import: &["sublet-proto"],
        unsafe_code: Allowed,
    },
    Rules {
        name: "sublet-xpu",
        folder: "crates/xpu",
        may_import: &["sublet-proto", "sublet-fabric"],
        unsafe_code: Allowed,
    },
    Rules {
        name: "sublet-runtime",
        folder: "crates/runtime",
        may_import: &["sublet-proto", "sublet-fabric", "sublet-xpu"],
        unsafe_code: Allowed,
    },
    Rules {
        name: "sublet-wasm",
        folder: "crates/wasm",
        may_import: &["sublet-proto", "sublet-runtime"],
        unsafe_code: Forbidden,
    },
    Rules {
        name: "sublet-sandbox",
        folder: "crates/sandbox",
        may_import: &["sublet-proto"],
        unsafe_code: Allowed,
    },
    Rules {
        name: "sublet-template-node",
        folder: "crates/template-node",
        may_import: &["sublet-proto", "sublet-runtime", "sublet-sandbox", "sublet-xpu"],
        unsafe_code: Allowed,
    },
    Rules {
        name: "sublet-python-buffers",
        folder: "crates/python-buffers",
        may_import: &[],
        unsafe_code: Allowed,
    },
    Rules {
        name: "sublet-template-python",
        folder: "crates/template-python",
        may_import: &[
            "sublet-proto",
            "sublet-xpu",
            "sublet-runtime",
            "sublet-sandbox",
            "sublet-python-buffers",
        ],
        unsafe_code: Allowed,
    },
    Rules {
        name: "sublet-image",
        folder: "crates/image",
        may_import: &["sublet-proto"],
        unsafe_code: Forbidden,
    },
    Rules {
        name: "sublet-devices",
        folder: "crates/devices",
        may_import: &["sublet-proto", "sublet-fabric", "sublet-runtime"],
        unsafe_code: Allowed,
    },
    Rules {
        name: "sublet-agent",
        folder: "crates/agent",
        may_import: &[
            "sublet-proto",
            "sublet-admission",
            "sublet-fabric",
            "sublet-xpu",
            "sublet-runtime",
            "sublet-sandbox",
            "sublet-image",
        ],
        unsafe_code: Forbidden,
    },
    Rules {
        name: "sublet-manager",
        folder: "crates/manager",
        may_import: &["sublet-proto", "sublet-admission", "sublet-fabric"],
        unsafe_code: Forbidden,
    },
    Rules {
        name: "sublet",
        folder: "crates/sublet",
        may_import: &["sublet-proto", "sublet-runtime"],
        unsafe_code: Forbidden,
    },
    Rules {
        name: "sublet-bench",
        folder: "crates/bench",
        may_import: &["sublet-proto", "sublet-fabric", "sublet-runtime", "sublet-sandbox"],
        unsafe_code: Forbidden,
    },
    Rules {
        name: "sublet-cli",
        folder: "crates/cli",
        may_import: &[
            "sublet-proto",
            "sublet-fabric",
            "sublet-runtime",
            "sublet-sandbox",
            "sublet-image",
            "sublet-agent",
            "sublet-manager",
            "sublet-bench",
        ],
        unsafe_code: Forbidden,
    },
    Rules {
        name: "sublet-capi",
        folder: "crates/capi",
        may_import: &["sublet-xpu", "sublet"],
        unsafe_code: Allowed,
    },
    Rules { name: "sublet-function", folder: "crates/function", may_import: &[], unsafe_code: Allowed },
    Rules {
        name: "sublet-python",
        folder: "python",
        may_import: &["sublet-proto", "sublet-image", "sublet-python-buffers", "sublet"],
        unsafe_code: Allowed,
    },
];

/// The crates that programs of users import.
const FACADES: &[&str] = &["sublet", "sublet-function"];

/// Crates that stay free of what would make them something else.
const NEVER_IMPORT: &[(&str, &[&str], &str)] = &[
    ("sublet-proto", &["tokio", "rustix", "libc", "nix"], "it does no I/O"),
    ("sublet-admission", &["tokio", "rustix", "libc", "nix", "tracing"], "it decides, and its callers act"),
    ("sublet-fabric", &["tokio", "tonic", "prost"], "it is the hot path, below any async runtime"),
    ("sublet-xpu", &["tokio", "tonic"], "its calls are on the hot path, on the caller's own thread"),
    ("sublet-wasm", &["tokio", "tonic"], "a worker's thread executes one call at a time"),
    (
        "sublet-sandbox",
        &["tokio", "tonic", "ureq", "rustls", "tar"],
        "it forks, which an async runtime does not survive, and holds rights that no reader of strangers' bytes should have",
    ),
    (
        "sublet-template-node",
        &["tokio", "tonic"],
        "its process is forked, and Node.js brings the event loop of the copies",
    ),
    (
        "sublet-template-python",
        &["tokio", "tonic"],
        "its process is forked, which an async runtime does not survive",
    ),
    (
        "sublet-python-buffers",
        &["tokio", "tonic", "rustix", "libc", "nix"],
        "it only reaches the memory of Python's objects",
    ),
    ("sublet-image", &["tokio", "tonic"], "it waits for one thing at a time"),
    (
        "sublet-devices",
        &["tokio", "tonic", "opencl3", "cudarc"],
        "drivers are loaded at run time, by thin bindings",
    ),
    (
        "sublet-function",
        &["tokio", "tonic", "rustix", "libc", "nix"],
        "it is compiled into users' functions, for WebAssembly as well",
    ),
];

/// Functions that make a slice from a pointer, or copy by pointers: forbidden except in [`RAW_MEMORY`].
const RAW_WORDS: &[&str] = &[
    "from_raw_parts",
    "from_raw_parts_mut",
    "slice_from_raw_parts",
    "slice_from_raw_parts_mut",
    "copy_nonoverlapping",
    "copy_to_nonoverlapping",
    "copy_from_nonoverlapping",
    "from_ptr_range",
    "from_mut_ptr_range",
];

/// Further forms of the same, as text within a line: a copy by pointers, and pointers to slices and arrays, which `as_ref`
/// and `as_mut` turn into references. The pointer methods `copy_to` and `copy_from` are not found: `SharedBytes` has
/// methods of these names.
const RAW_FORMS: &[&str] = &["ptr::copy(", "cast::<[", "*const [", "*mut [", "NonNull<["];

/// The files that use one of [`RAW_WORDS`] or [`RAW_FORMS`]: how often, and why this is sound. Other code reaches memory
/// that other processes may write by `sublet_fabric::SharedBytes` only.
const RAW_MEMORY: &[(&str, usize, &str)] = &[
    ("crates/fabric/src/shared.rs", 1, "the copy of `SharedBytes` itself, which makes no reference"),
    ("crates/fabric/src/memory/region.rs", 1, "a slice of atomics, which others may write"),
    ("crates/fabric/src/memory/stretch.rs", 1, "a private mapping, borrowed exclusively"),
    ("crates/fabric/src/memory/faults/kernel.rs", 1, "a structure on the stack, which the kernel fills"),
    (
        "crates/fabric/src/ofi/outgoing.rs",
        1,
        "a message slot in memory that is registered for local access only",
    ),
    (
        "crates/fabric/src/ofi/transfer/words.rs",
        1,
        "a write of two words, without a reference, to memory that is registered for local access only",
    ),
    (
        "crates/runtime/src/arena/buffer.rs",
        2,
        "two unsafe functions, whose callers vouch that no process writes the buffer meanwhile",
    ),
    ("crates/runtime/src/swap.rs", 2, "a private mapping, lent as a vector's memory is"),
    (
        "crates/runtime/src/swap/page_out.rs",
        1,
        "pages that were moved aside or protected, so that no thread writes them",
    ),
    ("crates/runtime/src/swap/page_in.rs", 1, "a slot that its mark gives to one thread"),
    ("crates/runtime/src/worker/swapping/functions.rs", 1, "realloc: its caller gives up the old piece"),
    ("crates/runtime/src/worker/swapping/mappings.rs", 1, "mremap: its caller gives up the old mapping"),
    ("crates/xpu/src/c.rs", 1, "a list that a C program passes, and does not write during the call"),
    ("crates/devices/src/cuda/live.rs", 1, "what a driver has compiled, copied at once"),
    (
        "crates/devices/src/opencl/live.rs",
        2,
        "device memory that the driver has mapped for one command queue",
    ),
    (
        "crates/python-buffers/src/lib.rs",
        2,
        "the view of a Python object, which copies as `SharedBytes` does",
    ),
    ("crates/function/src/memory.rs", 4, "views of input and output, which copy as `SharedBytes` does"),
];

/// The least assertions in a thousand lines of each crate outside of tests.
const LEAST_ASSERTIONS: usize = 3;

/// The lints of casts that may lose something, as the root of each crate has them. Lints of the workspace cannot leave out
/// tests, which cast numbers that they have chosen.
const CAST_LINTS: &str = "#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]";

/// Calls of the macros that assert. The names of those for debug builds end in the same way.
const ASSERTIONS: &[&str] = &["assert!(", "assert_eq!(", "assert_ne!("];

/// Names that say nothing about what a crate is for.
const NAMELESS: &[&str] = &["common", "utils", "util", "types", "helpers", "misc"];

/// The workspace's members, as cargo describes them.
fn packages() -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(sublet_tests::root())
        .output()
        .expect("cargo runs: it runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    metadata["packages"].as_array().expect("metadata lists packages").clone()
}

/// Each workspace member's manifest path and the normal dependencies of it, by package name.
fn members() -> BTreeMap<String, (String, Vec<String>)> {
    packages().iter().map(member).collect()
}

fn member(package: &Value) -> (String, (String, Vec<String>)) {
    let text = |value: &Value| value.as_str().expect("metadata has text here").to_owned();
    let dependencies = package["dependencies"].as_array().expect("a package lists its dependencies");
    let normal = dependencies.iter().filter(|dependency| dependency["kind"].is_null());
    let names = normal.map(|dependency| text(&dependency["name"])).collect();
    (text(&package["name"]), (text(&package["manifest_path"]), names))
}

fn is_ours(name: &str) -> bool {
    name == "sublet" || name.starts_with("sublet-")
}

#[test]
fn imports_point_down_only() {
    for (name, (_, imports)) in members() {
        let Some(rules) = CRATES.iter().find(|rules| rules.name == name) else { continue };
        let allowed = rules.may_import;
        for import in imports.iter().filter(|import| is_ours(import)) {
            assert!(allowed.contains(&import.as_str()), "{name} imports {import}; it may import {allowed:?}");
        }
    }
}

#[test]
fn each_crate_stands_below_what_it_may_import() {
    for (index, rules) in CRATES.iter().enumerate() {
        let is_above = |import: &&str| CRATES[..index].iter().any(|above| above.name == *import);
        let misplaced: Vec<_> = rules.may_import.iter().filter(|import| !is_above(import)).collect();
        assert!(misplaced.is_empty(), "{} may import {misplaced:?}, which do not stand above it", rules.name);
    }
}

#[test]
fn the_code_map_lists_crates_in_import_order() {
    let architecture = read("ARCHITECTURE.md");
    let row = |rules: &Rules| architecture.find(&format!("\n| `{}` | ", rules.folder));
    let rows: Vec<_> = CRATES
        .iter()
        .map(|rules| row(rules).unwrap_or_else(|| panic!("no row of the code map for {}", rules.folder)))
        .collect();
    for (index, pair) in rows.windows(2).enumerate() {
        let [above, below] = [&CRATES[index], &CRATES[index + 1]].map(|rules| rules.folder);
        assert!(pair[0] < pair[1], "the code map has {below} above {above}: see CRATES in tests/walls.rs");
    }
}

#[test]
fn what_stands_outside_of_crates_sees_only_the_facade() {
    for (name, (manifest, imports)) in members() {
        if name.starts_with("sublet-examples") || manifest.contains("/examples/") {
            for import in imports.iter().filter(|import| is_ours(import)) {
                assert!(
                    FACADES.contains(&import.as_str()),
                    "{name} is what a user writes: it imports {FACADES:?} only"
                );
            }
        }
        assert!(name != "xtask" || imports.is_empty(), "xtask compiles in a second: it imports nothing");
    }
}

#[test]
fn walls_keep_foreign_dependencies_out() {
    let members = members();
    for (name, forbidden, why) in NEVER_IMPORT {
        let (_, imports) = members.get(*name).unwrap_or_else(|| panic!("there is no crate {name}"));
        for import in imports {
            assert!(!forbidden.contains(&import.as_str()), "{name} imports {import}, but {why}");
        }
    }
}

#[test]
fn every_crate_has_a_name_that_describes_it() {
    for (name, (manifest, _)) in members() {
        if manifest.contains("/crates/") {
            let known = CRATES.iter().any(|rules| {
                rules.name == name && manifest.ends_with(&format!("/{}/Cargo.toml", rules.folder))
            });
            assert!(
                known,
                "{name} has no import rule: say in tests/walls.rs where it is and what it may import"
            );
        }
        let last = name.rsplit('-').next().unwrap_or_default();
        assert!(!NAMELESS.contains(&last), "{name}: a crate is named for its duty");
    }
}

/// The source files of a program, which is one file, or of a library, which is a folder; none of other targets.
fn sources(target: &Value) -> Vec<PathBuf> {
    let kinds = target["kind"].as_array().expect("a target has kinds");
    let path = target["src_path"].as_str().expect("a target has a source");
    let path = Path::new(path).strip_prefix(sublet_tests::root()).expect("it is in the repository");
    let folder = path.parent().expect("a file is in a folder").to_string_lossy();
    if kinds.iter().any(|kind| kind == "bin") {
        vec![path.to_owned()]
    } else if kinds.iter().any(|kind| kind.as_str().is_some_and(|kind| kind.ends_with("lib"))) {
        files(&folder, &[".rs"])
    } else {
        Vec::new()
    }
}

#[test]
fn targets_that_are_not_built_as_tests_have_none() {
    let packages = packages();
    let targets = packages.iter().filter_map(|package| package["targets"].as_array()).flatten();
    let without_tests: Vec<_> = targets.filter(|target| target["test"] == false).collect();
    assert!(without_tests.iter().any(|target| target["name"] == "sublet-worker"), "{without_tests:?}");
    for path in without_tests.into_iter().flat_map(sources) {
        let source = without_comments_and_strings(&read(&path));
        assert!(!source.contains("#[test]"), "{}: remove `test = false` of its target", path.display());
    }
}

#[test]
fn every_file_of_tests_is_in_a_program() {
    let manifests = ["crates", "tests"].map(|folder| files(folder, &["Cargo.toml"]));
    let listed = manifests.iter().flatten().filter(|path| read(path).contains("\nautotests = false\n"));
    let folders: Vec<_> = listed.filter_map(|manifest| Some(manifest.parent()?.join("tests"))).collect();
    assert!(folders.contains(&PathBuf::from("tests/tests")), "{folders:?}");
    for folder in folders {
        let mut files = files(&folder.to_string_lossy(), &[".rs"]);
        files.retain(|path| path.parent() == Some(folder.as_path()));
        let name = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (programs, modules): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|path| name(path).ends_with("suites"));
        let programs: String = programs.iter().map(read).collect();
        for module in modules {
            let declared = programs.matches(&format!("mod {};\n", name(&module))).count();
            assert_eq!(
                declared,
                1,
                "{}: a program of the folder, *suites.rs, names it once",
                module.display()
            );
        }
    }
}

#[test]
fn unsafe_code_stands_behind_its_wall() {
    let allowed: Vec<_> =
        CRATES.iter().filter(|rules| rules.unsafe_code == Allowed).map(|rules| rules.folder).collect();
    let sources = files("crates", &[".rs"]).into_iter().chain(files("xtask", &[".rs"]));
    // Tests of a crate may need it, as a counting allocator does; what is shipped may not.
    for path in sources.filter(|path| !path.iter().any(|part| part == "tests" || part == "benches")) {
        if allowed.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let path = path.to_string_lossy();
        for (index, line) in without_comments_and_strings(&read(path.as_ref())).lines().enumerate() {
            let unsafe_here = words(line).any(|word| word == "unsafe")
                || (line.contains("allow(") && words(line).any(|word| word == "unsafe_code"));
            assert!(!unsafe_here, "{path}:{}: unsafe code outside of {allowed:?}", index + 1);
        }
    }
}

#[test]
fn makes_no_slices_of_memory_that_others_may_write() {
    let sources = files("crates", &[".rs"]).into_iter().chain(files("python", &[".rs"]));
    let mut found = BTreeMap::new();
    for path in sources.filter(|path| !is_test(path)) {
        let source = without_comments_and_strings(&read(&path));
        let raw_words = words(&source).filter(|word| RAW_WORDS.contains(word)).count();
        let raw_forms: usize = RAW_FORMS.iter().map(|form| source.matches(form).count()).sum();
        if raw_words + raw_forms > 0 {
            found.insert(path.to_string_lossy().into_owned(), raw_words + raw_forms);
        }
    }
    let allowed = RAW_MEMORY.iter().map(|(path, count, _)| ((*path).to_owned(), *count)).collect();
    assert_eq!(
        found, allowed,
        "{RAW_WORDS:?} and {RAW_FORMS:?} by file: use sublet_fabric::SharedBytes, or say in tests/walls.rs why this is sound"
    );
}

#[test]
fn asserts_invariants_in_every_crate() {
    for Rules { name, folder, .. } in CRATES {
        let (mut lines, mut assertions) = (0, 0);
        for path in files(folder, &[".rs"]).into_iter().filter(|path| !is_test(path)) {
            let source = read(&path);
            let outside = lines_outside_of_tests(&source);
            lines += outside.len();
            assertions += outside.into_iter().filter(|line| is_assertion(line)).count();
        }
        let least = lines * LEAST_ASSERTIONS / 1000;
        assert!(
            assertions >= least,
            "{name} has {assertions} assertions in {lines} lines, and needs {least}: assert the invariants that its \
             documents state where they are kept"
        );
    }
}

#[test]
fn argues_casts_of_numbers_in_every_crate() {
    for folder in CRATES.iter().map(|rules| rules.folder).chain(["xtask", "tests"]) {
        let root = ["lib.rs", "main.rs"].map(|name| Path::new(folder).join("src").join(name));
        let root = root.into_iter().find(|root| sublet_tests::root().join(root).exists());
        let root = root.unwrap_or_else(|| panic!("{folder} has neither a library nor a program"));
        assert!(read(&root).contains(CAST_LINTS), "{} does not turn on {CAST_LINTS}", root.display());
        for path in files(folder, &[".rs"]).into_iter().filter(|path| !is_test(path)) {
            let is_silent = read(&path).contains("allow(clippy::cast_");
            assert!(!is_silent, "{} allows casts: use #[expect] with a reason", path.display());
        }
    }
}

fn is_assertion(line: &str) -> bool {
    !line.trim_start().starts_with("//") && ASSERTIONS.iter().any(|form| line.contains(form))
}

/// Returns the lines of a source, except for modules and other items that are compiled for tests only.
fn lines_outside_of_tests(source: &str) -> Vec<&str> {
    let mut outside = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test") {
            outside.push(line);
            continue;
        }
        let head = lines.find(|line| !line.starts_with("#[") && !line.starts_with("//"));
        // A longer item ends with a brace in the first column.
        if head.is_some_and(|head| !head.ends_with([';', '}'])) {
            while lines.next().is_some_and(|line| !line.starts_with('}')) {}
        }
    }
    outside
}

#[test]
fn finds_assertions_outside_of_tests() {
    let source = "debug_assert!(a);\n#[cfg(test)]\nmod sim;\n// assert!(b)\n#[cfg(test)]\n#[allow(unused)]\n\
                  mod tests {\n    assert_eq!(c, d);\n}\nassert_ne!(e, f);";
    let outside = lines_outside_of_tests(source);
    assert_eq!(outside, ["debug_assert!(a);", "// assert!(b)", "assert_ne!(e, f);"]);
    assert_eq!(outside.into_iter().filter(|line| is_assertion(line)).count(), 2);
}

/// Whether a file is of a crate's tests, benchmarks or examples: alone, or beside its code.
fn is_test(path: &Path) -> bool {
    let is_beside = path.file_name().is_some_and(|name| name == "tests.rs");
    is_beside || path.iter().any(|part| part == "tests" || part == "benches" || part == "examples")
}

#[test]
fn every_unsafe_wall_has_its_lints() {
    for (name, (manifest, _)) in members() {
        let manifest = read(manifest);
        assert!(manifest.contains("[lints]\nworkspace = true"), "{name} does not take the workspace's lints");
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The source with comments and string literals blanked, line by line. Good for finding words, nothing finer: raw
/// strings are blanked up to their first quote.
fn without_comments_and_strings(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut in_string = false;
    let mut characters = source.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\n' => out.push('\n'),
            '\\' if in_string => {
                characters.next_if(|&next| next != '\n');
            }
            '"' => in_string = !in_string,
            _ if in_string => {}
            '\'' if characters.next_if_eq(&'"').is_some() => {}
            '/' if characters.peek() == Some(&'/') => {
                while characters.next_if(|&next| next != '\n').is_some() {}
            }
            c => out.push(c),
        }
    }
    out
}

#[test]
fn comments_and_strings_hide_words() {
    let source = "let a = \"unsafe \\\" unsafe\"; // unsafe\nlet quote = '\"'; unsafe { b() }";
    assert_eq!(without_comments_and_strings(source), "let a = ; \nlet quote = '; unsafe { b() }");
}
