//! The walls of the house: which crate may import which, and where unsafe code may stand.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;
use sublet_tests::{files, read};

/// What each crate of `crates/` may import of the others. A crate that is not here is not a crate of the house.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("sublet-proto", &[]),
    ("sublet-admission", &[]),
    ("sublet-fabric", &["sublet-proto"]),
    ("sublet-xpu", &["sublet-proto", "sublet-fabric"]),
    ("sublet-sandbox", &["sublet-proto"]),
    ("sublet-template-node", &["sublet-sandbox"]),
    ("sublet-python-buffers", &[]),
    (
        "sublet-template-python",
        &["sublet-proto", "sublet-sandbox", "sublet-xpu", "sublet-runtime", "sublet-python-buffers"],
    ),
    ("sublet-python", &["sublet", "sublet-python-buffers"]),
    ("sublet-image", &["sublet-proto"]),
    ("sublet-runtime", &["sublet-proto", "sublet-fabric", "sublet-xpu"]),
    ("sublet-devices", &["sublet-proto", "sublet-fabric", "sublet-runtime"]),
    ("sublet-wasm", &["sublet-proto", "sublet-runtime"]),
    ("sublet-manager", &["sublet-proto", "sublet-admission", "sublet-fabric"]),
    (
        "sublet-agent",
        &[
            "sublet-proto",
            "sublet-admission",
            "sublet-fabric",
            "sublet-xpu",
            "sublet-runtime",
            "sublet-sandbox",
            "sublet-image",
        ],
    ),
    ("sublet", &["sublet-proto", "sublet-runtime"]),
    ("sublet-bench", &["sublet-proto", "sublet-fabric", "sublet-sandbox", "sublet-runtime"]),
    (
        "sublet-cli",
        &[
            "sublet-proto",
            "sublet-fabric",
            "sublet-sandbox",
            "sublet-image",
            "sublet-runtime",
            "sublet-manager",
            "sublet-agent",
            "sublet-bench",
        ],
    ),
    ("sublet-capi", &["sublet", "sublet-xpu"]),
];

/// Crates that stay free of what would make them something else.
const NEVER_IMPORT: &[(&str, &[&str], &str)] = &[
    ("sublet-proto", &["tokio", "rustix", "libc", "nix"], "it does no I/O"),
    ("sublet-admission", &["tokio", "rustix", "libc", "nix", "tracing"], "it decides, and its callers act"),
    ("sublet-fabric", &["tokio", "tonic", "prost"], "it is the hot path, below any async runtime"),
    (
        "sublet-sandbox",
        &["tokio", "tonic", "ureq", "rustls", "tar"],
        "it forks, which an async runtime does not survive, and holds rights that no reader of strangers' bytes should have",
    ),
    ("sublet-image", &["tokio", "tonic"], "it waits for one thing at a time"),
    (
        "sublet-devices",
        &["tokio", "tonic", "opencl3", "cudarc"],
        "drivers are loaded at run time, by thin bindings",
    ),
];

/// The folders whose sources may hold unsafe code.
const UNSAFE_WALL: &[&str] = &[
    "crates/fabric/",
    "crates/xpu/",
    "crates/sandbox/",
    "crates/template-node/",
    "crates/python-buffers/",
    "crates/template-python/",
    "python/",
    "crates/devices/",
    "crates/runtime/",
    "crates/capi/",
];

/// Names that say nothing about what a crate is for.
const NAMELESS: &[&str] = &["common", "utils", "util", "types", "helpers", "misc"];

/// Each workspace member's manifest path and the normal dependencies of it, by package name.
fn members() -> BTreeMap<String, (String, Vec<String>)> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(sublet_tests::root())
        .output()
        .expect("cargo runs: it runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    packages.iter().map(member).collect()
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
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(of, _)| *of == name) else { continue };
        for import in imports.iter().filter(|import| is_ours(import)) {
            assert!(allowed.contains(&import.as_str()), "{name} imports {import}; it may import {allowed:?}");
        }
    }
}

#[test]
fn what_stands_outside_of_crates_sees_only_the_facade() {
    for (name, (manifest, imports)) in members() {
        if name.starts_with("sublet-examples") || manifest.contains("/examples/") {
            for import in imports.iter().filter(|import| is_ours(import)) {
                assert_eq!(import, "sublet", "{name} is what a user writes: it imports the facade only");
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
fn every_crate_of_the_house_is_known_by_a_name_that_says_what_it_is() {
    for (name, (manifest, _)) in members() {
        if manifest.contains("/crates/") {
            let known = MAY_IMPORT.iter().any(|(of, _)| *of == name);
            assert!(known, "{name} has no import rule: say in tests/walls.rs what it may import");
        }
        let last = name.rsplit('-').next().unwrap_or_default();
        assert!(!NAMELESS.contains(&last), "{name}: a crate is named for its duty");
    }
}

#[test]
fn unsafe_code_stands_behind_its_wall() {
    let sources = files("crates", &[".rs"]).into_iter().chain(files("xtask", &[".rs"]));
    // Tests of a crate may need it, as a counting allocator does; what is shipped may not.
    for path in sources.filter(|path| !path.iter().any(|part| part == "tests" || part == "benches")) {
        let path = path.to_string_lossy();
        if UNSAFE_WALL.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        for (index, line) in without_comments_and_strings(&read(path.as_ref())).lines().enumerate() {
            let unsafe_here = words(line).any(|word| word == "unsafe")
                || (line.contains("allow(") && words(line).any(|word| word == "unsafe_code"));
            assert!(!unsafe_here, "{path}:{}: unsafe code outside of {UNSAFE_WALL:?}", index + 1);
        }
    }
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
