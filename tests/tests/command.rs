//! `sublet` as people and scripts use it to call functions: files, pipes, folders, JSON, exit statuses.

#![allow(clippy::unwrap_used)]

use std::fs;

use sublet::{Allocation, Code};
use sublet_tests::functions::{library, package};
use sublet_tests::platform::{Platform, assert_echoes};

fn number(code: Code) -> Option<i32> {
    i32::try_from(code.number()).ok()
}

#[test]
fn a_deployed_library_is_called_by_name_from_file_to_file() {
    let (platform, folder) = (Platform::start(), tempfile::tempdir().unwrap());
    let deployed = platform.json(&["deploy", &package("calls.c")]);
    assert_eq!((&deployed["name"], &deployed["known"]), (&"libcalls".into(), &false.into()));
    assert!(deployed["functions"].as_array().unwrap().contains(&"libcalls/add_index".into()));

    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    let values: Vec<u8> = (0..300_000u32).flat_map(|value| (value * 3).to_le_bytes()).collect();
    fs::write(&input, &values).unwrap();
    let [from, to] = [&input, &output].map(|path| path.to_str().unwrap());
    let called = platform.json(&["call", "libcalls/add_index", "--input", from, "--output", to]);
    let expected: Vec<u8> = (0..300_000u32).flat_map(|value| (value * 4).to_le_bytes()).collect();
    assert_eq!(fs::read(&output).unwrap(), expected);
    assert_eq!((&called["input_bytes"], &called["output_bytes"]), (&1_200_000.into(), &1_200_000.into()));
    assert!(called["executing_ns"].as_u64() > Some(0) && called["total_ns"].as_u64() > Some(0), "{called}");

    let billed = platform.json(&["bill", called["lease"].as_str().unwrap()]);
    assert_eq!(billed["leases"][0]["usage"]["calls"], 1);
    assert_eq!(billed["total"]["total_nano"], billed["leases"][0]["total_nano"]);
}

#[test]
fn a_call_is_a_part_of_a_pipeline() {
    let platform = Platform::start();
    let name = format!("{}/echo", package("calls.c"));
    for input in [&b""[..], b"hello\n", &[0, 255, 10].repeat(700_000)] {
        let output = platform.pipe(&["call", &name], input);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, input);
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_folder_with_a_manifest_names_its_functions() {
    let (platform, folder) = (Platform::start(), tempfile::tempdir().unwrap());
    let manifest =
        "name = 'mirror'\nlibrary = 'lib/code.so'\n[[function]]\nname = 'reflect'\nsymbol = 'echo'\n";
    fs::create_dir(folder.path().join("lib")).unwrap();
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    fs::copy(library("calls.c"), folder.path().join("lib/code.so")).unwrap();
    let path = folder.path().to_str().unwrap();
    let deployed = platform.json(&["deploy", path]);
    assert_eq!(deployed["functions"], serde_json::json!(["mirror/reflect"]));
    assert_eq!(platform.json(&["deploy", path])["known"], true);
    let digest = deployed["digest"].as_str().unwrap().to_owned();
    for name in ["mirror/reflect".to_owned(), format!("{digest}/reflect"), format!("{path}/reflect")] {
        assert_eq!(platform.pipe(&["call", &name], b"face").stdout, b"face");
    }
    // What the manifest does not name is not to be called.
    platform.assert_refuses(&["call", "mirror/echo", "-o", "/dev/null"], Code::UnknownFunction);
}

#[test]
fn ps_shows_what_is_leased_while_it_is() {
    let platform = Platform::start();
    let leased = Allocation::new(package("calls.c")).memory_bytes(64 << 20);
    let mut client = platform.client_with(&leased);
    assert_echoes(&client);
    let ps = platform.json(&["ps"]);
    let (node, lease) = (&ps["nodes"][0], &ps["leases"][0]);
    assert_eq!((&node["cores_leased"], &node["memory_leased_bytes"]), (&1.into(), &(64 << 20).into()));
    assert_eq!(lease["id"], client.lease().unwrap().id);
    assert_eq!((&lease["package"], &lease["cores"]), (&"libcalls".into(), &1.into()));
    let text = String::from_utf8(platform.run(&["ps"]).stdout).unwrap();
    assert!(text.contains(&client.lease().unwrap().id) && text.contains("64 MiB"), "{text}");
    client.deallocate().unwrap();
    let ps = platform.json(&["ps"]);
    assert_eq!((&ps["nodes"][0]["cores_leased"], ps["leases"].as_array().unwrap().len()), (&0.into(), 0));
    assert_eq!(platform.json(&["ps", "--all"])["leases"][0]["usage"]["calls"], 1);
}

#[test]
fn a_call_that_fails_says_so_by_its_exit_status_and_writes_nothing() {
    let (platform, folder) = (Platform::start(), tempfile::tempdir().unwrap());
    platform.json(&["deploy", &package("faults.c")]);
    let output = folder.path().join("out");
    let to = output.to_str().unwrap();
    for (arguments, code, named) in [
        (&["call", "libfaults/segfault"][..], Code::WorkerDied, "SIGSEGV"),
        (&["call", "libfaults/refuse"], Code::FunctionFailed, "the ink is dry"),
        (&["call", "libfaults/spin", "--deadline", "50ms"], Code::DeadlineExceeded, "libfaults/spin"),
        (&["call", "libfaults/boast", "--capacity", "4"], Code::OutputTooLarge, "5 bytes"),
        (&["call", "libfaults/nothing"], Code::UnknownFunction, "nothing"),
        (&["call", "libnothing/f"], Code::UnknownPackage, "libnothing"),
        (&["call", "echo"], Code::InvalidArgument, "package/function"),
        (&["call", "libfaults/echo", "--input", "/nonexistent"], Code::System, "/nonexistent"),
        (&["call", "libfaults/echo", "--memory", "1000TiB"], Code::InsufficientResources, "memory"),
    ] {
        let message = platform.assert_refuses(&[arguments, &["--output", to]].concat(), code);
        assert!(message.contains(named), "{message}");
    }
    assert!(!output.exists());
    let refused = platform.pipe(&["call", "libfaults/refuse"], b"");
    assert_eq!((refused.status.code(), refused.stdout.len()), (number(Code::FunctionFailed), 0));
    assert!(String::from_utf8_lossy(&refused.stderr).starts_with("error[function_failed]: libfaults/refuse"));
    let nodes = platform.json(&["ps"])["nodes"].take();
    assert_eq!(nodes[0]["cores_leased"], 0, "a failed call keeps no lease");
    assert_eq!(platform.pipe(&["call", "libfaults/echo"], b"good").stdout, b"good");
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let platform = Platform::start();
    let name = format!("{}/echo", package("calls.c"));
    let message = platform.assert_refuses(&["call", &name, "--output", "/nonexistent/out"], Code::System);
    assert!(message.contains("/nonexistent/out"), "{message}");
    let full = platform.pipe(&["call", &name, "--output", "/dev/full"], b"hello");
    assert_eq!(full.status.code(), number(Code::StoreFull));
    platform.assert_serves();
}

#[test]
fn completions_are_written_for_each_shell() {
    let platform = Platform::start();
    for shell in ["bash", "zsh", "fish"] {
        let output = platform.run(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("sublet") && script.contains("deploy"), "{shell}");
    }
    let refused = platform.run(&["completions", "no-such-shell"]);
    assert_eq!(refused.status.code(), number(Code::InvalidArgument));
}
