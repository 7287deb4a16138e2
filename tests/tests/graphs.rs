//! `sublet graph`, as people and compilers use it.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use sublet::Code;
use sublet_tests::platform::sublet;
use sublet_tests::read;

/// Runs `sublet graph` with this on its standard input.
fn graph(arguments: &[&str], document: &str) -> Output {
    let mut command = sublet();
    command.arg("graph").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Who needs no document does not read it.
    let _ = child.stdin.take().unwrap().write_all(document.as_bytes());
    child.wait_with_output().unwrap()
}

#[track_caller]
fn said(arguments: &[&str], document: &str) -> String {
    let output = graph(arguments, document);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The document that docs/graphs.md shows.
fn documented() -> String {
    let text = read("docs/graphs.md");
    let (_, rest) = text.split_once("```json title=\"app.json\"\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn the_documented_graph_is_valid() {
    let checked: Value = serde_json::from_str(&said(&["check", "-", "--json"], &documented())).unwrap();
    assert_eq!(checked, json!({ "name": "regression", "compute": 3, "memory": 2, "edges": 7 }));
    assert!(said(&["check", "-"], &documented()).contains("regression is valid"));
}

#[test]
fn errors_have_their_place_and_a_stable_code() {
    let document = documented().replace("\"to\": \"train\"", "\"to\": \"trian\"").replace(": 2 }", ": 0 }");
    let output = graph(&["check", "-"], &document);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(Code::InvalidGraph.number() as i32), "{text}");
    for line in [
        "error[invalid_graph]: - is no graph:",
        "  components[1].parallelism: 0 is not within 1 to 1024",
        "  edges[0].to: there is no component \"trian\"",
    ] {
        assert!(text.lines().any(|told| told == line), "{line} is not in {text}");
    }
    let output = graph(&["check", "/nowhere/app.json"], "");
    assert_eq!(output.status.code(), Some(Code::InvalidArgument.number() as i32));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere/app.json"));
}

#[test]
fn a_graph_as_json_has_all_defaults() {
    let shown = said(&["show", "-", "--json"], &documented());
    let value: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(value["components"][0]["parallelism"], 1);
    assert!(value["components"][4]["increment_bytes"].is_null(), "it is chosen by what earlier runs used");
    assert_eq!(said(&["show", "-", "--json"], &shown), shown);
}

#[test]
fn a_drawing_has_every_component_and_every_edge() {
    let drawn = said(&["show", "-"], &documented());
    println!("{drawn}");
    for name in ["* load", "train x2", "validate", "lr/train", "samples", "16 MiB + 4 MiB", "weights"] {
        assert!(drawn.contains(name), "{name} is not in\n{drawn}");
    }
    let above_legend = drawn.rsplit_once("\n\n").unwrap().0;
    assert_eq!(above_legend.matches(['▼', '▲']).count(), 7, "{drawn}");
    let svg = said(&["show", "-", "--svg", "-"], &documented());
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"), "{svg}");
    assert_eq!((svg.matches("<rect ").count(), svg.matches("marker-end=").count()), (5, 7), "{svg}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.svg");
    said(&["show", "-", "--svg", file.to_str().unwrap()], &documented());
    assert_eq!(std::fs::read_to_string(&file).unwrap().trim_end(), svg.trim_end());
}

/// A graph of `components` compute components, of which the first is the entry, with these triggers.
fn of_triggers(components: usize, triggers: impl Iterator<Item = (usize, usize)>) -> String {
    let name = |n: usize| format!("c{n}");
    let component = |n: usize| json!({ "name": name(n), "type": "compute", "entry": n == 0, "package": "p", "function": "f" });
    let edge = |(from, to): (usize, usize)| json!({ "type": "trigger", "from": name(from), "to": name(to) });
    let components: Vec<Value> = (0..components).map(component).collect();
    let edges: Vec<Value> = triggers.map(edge).collect();
    json!({ "version": 1, "name": "many", "components": components, "edges": edges }).to_string()
}

#[test]
fn a_graph_of_many_components_is_drawn() {
    let tree = (1..200).map(|n| ((n - 1) / 3, n));
    let document = of_triggers(200, tree.chain((100..200).map(|n| (n % 7, n))));
    let drawn = said(&["show", "-"], &document);
    assert!((0..200).all(|n| drawn.contains(&format!(" c{n} "))), "{drawn}");
    assert_eq!(said(&["show", "-", "--svg", "-"], &document).matches("<rect ").count(), 200);
}

#[test]
fn conditions_are_drawn() {
    let document = of_triggers(3, [(0, 1), (0, 2)].into_iter()).replacen(
        r#""to":"c1""#,
        r#""to":"c1","when":"x<\u001b""#,
        1,
    );
    let document = document.replacen(r#""to":"c2""#, r#""to":"c2","otherwise":true"#, 1);
    let drawn = said(&["show", "-"], &document);
    assert!(drawn.contains("◇ c0 ── c1 when \"x<\\u{1b}\"\n◇ c0 ── c2 otherwise\n"), "{drawn}");
    assert_eq!(drawn.matches('◇').count(), 4, "{drawn}");
    let svg = said(&["show", "-", "--svg", "-"], &document);
    assert!(
        svg.contains("<title>when &quot;x&lt;\\u{1b}&quot;</title>")
            && svg.contains("<title>otherwise</title>")
    );
}

#[test]
fn a_graph_with_too_many_edges_is_shown_as_json() {
    let document = of_triggers(50, (0..50).flat_map(|from| (from + 1..50).map(move |to| (from, to))));
    for arguments in [&["show", "-"][..], &["show", "-", "--svg", "-"]] {
        let output = graph(arguments, &document);
        assert_eq!(output.status.code(), Some(Code::InvalidArgument.number() as i32));
        assert!(String::from_utf8_lossy(&output.stderr).contains("1225 edges"), "{output:?}");
    }
    assert!(said(&["show", "-", "--json"], &document).contains("c49"));
}

/// The schema of graph documents, and the documented graph.
fn schema_and_graph() -> (jsonschema::Validator, Value) {
    let schema: Value = serde_json::from_str(&said(&["schema"], "")).unwrap();
    (jsonschema::validator_for(&schema).unwrap(), serde_json::from_str(&documented()).unwrap())
}

/// Asserts that the schema and `check` both refuse a document.
#[track_caller]
fn assert_refused(schema: &jsonschema::Validator, bad: &Value, at: &str) {
    assert!(!schema.is_valid(bad), "the schema takes {at} of {bad}");
    let status = graph(&["check", "-"], &bad.to_string()).status.code();
    assert_eq!(status, Some(Code::InvalidGraph.number() as i32), "check takes {at} of {bad}");
}

#[test]
fn schema_accepts_what_check_accepts() {
    let (schema, good) = schema_and_graph();
    let errors: Vec<_> = schema.iter_errors(&good).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let defaults: Value = serde_json::from_str(&said(&["show", "-", "--json"], &documented())).unwrap();
    assert!(schema.is_valid(&defaults));
    let digest = format!("sha256:{}", "a".repeat(64));
    for package in
        ["a/b", &digest, &format!("uid:0/{digest}"), &format!("a/b@{digest}"), &format!("b@{digest}")]
    {
        let mut document = good.clone();
        for component in document["components"].as_array_mut().unwrap() {
            if component["type"] == "compute" {
                component["package"] = json!(package);
            }
        }
        assert!(schema.is_valid(&document), "the schema refuses {package}");
        assert_eq!(graph(&["check", "-"], &document.to_string()).status.code(), Some(0), "{package}");
    }
}

/// Tests the rules that a schema can express.
#[test]
fn schema_refuses_what_check_refuses() {
    let (schema, good) = schema_and_graph();
    for (at, value) in [
        ("/version", json!(2)),
        ("/name", json!(".hidden")),
        ("/name", json!("a".repeat(65))),
        ("/colour", json!("red")),
        ("/components", json!([])),
        ("/components/0/type", json!("gpu")),
        ("/components/0/package", json!("a/b/c")),
        ("/components/0/package", json!("./b")),
        ("/components/0/package", json!("a/b@1")),
        ("/components/0/package", json!("sha256:0")),
        ("/components/0/initial_bytes", json!(4096)),
        ("/components/0/resources", json!({ "threads": 2 })),
        ("/components/0/resources", json!({ "memory_bytes": 0 })),
        ("/components/0/resources", json!({ "memory_bytes": 32 << 20, "swap_bytes": 4096 })),
        ("/components/0/resources", json!({ "cores": 0 })),
        ("/components/0/resources", json!({ "cores": 1025 })),
        ("/components/0/resources", json!({ "cores": 1.5 })),
        ("/components/0/resources", json!({ "cores": "2" })),
        ("/components/1/parallelism", json!(0)),
        ("/components/1/parallelism", json!(1025)),
        ("/components/1/parallelism", json!("4")),
        ("/components/1/parallelism", json!({ "from": "load" })),
        ("/components/1/parallelism", json!({ "from": "load", "limit": 0 })),
        ("/components/1/parallelism", json!({ "from": "load", "limit": 8, "least": 1 })),
        ("/components/1/parallelism", json!({ "from": "samples", "bytes_each": 0, "limit": 8 })),
        ("/components/3/function", json!("f")),
        ("/components/3/initial_bytes", json!(4095)),
        ("/components/3/initial_bytes", json!((1u64 << 40) + 1)),
        ("/components/3/limit_bytes", json!((1u64 << 50) + 1)),
        ("/components/3/result", json!("yes")),
        ("/components/3/medium", json!("tape")),
        ("/edges/0/type", json!("calls")),
        ("/edges/0/rights", json!("read")),
        ("/edges/0/when", json!("")),
        ("/edges/0/when", json!("x".repeat(257))),
        ("/edges/0/otherwise", json!("yes")),
        ("/edges/2/when", json!("x")),
        ("/edges/2/rights", json!("own")),
        ("/limits", json!({ "cores": 0 })),
        ("/limits", json!({ "memory_bytes": 1 })),
        ("/limits", json!({ "nodes": 1 })),
        ("/limits", json!({ "application_cores": 0 })),
        ("/limits", json!({ "application_memory_bytes": 1 })),
    ] {
        let mut bad = good.clone();
        let (parent, field) = at.rsplit_once('/').unwrap();
        bad.pointer_mut(parent).unwrap()[field] = value;
        assert_refused(&schema, &bad, at);
    }
    for (at, field) in
        [("/components/0", "package"), ("/components/0", "function"), ("/edges/2", "rights"), ("", "name")]
    {
        let mut bad = good.clone();
        bad.pointer_mut(at).unwrap().as_object_mut().unwrap().remove(field).unwrap();
        assert_refused(&schema, &bad, at);
    }
}
