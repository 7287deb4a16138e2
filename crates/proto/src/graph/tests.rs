//! Tests of graph documents: valid ones, and every problem that the check reports.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A graph of every kind of component and edge.
fn document() -> Value {
    json!({
        "version": 1,
        "name": "regression",
        "components": [
            { "name": "load", "type": "compute", "entry": true, "package": "lr", "function": "load" },
            { "name": "train", "type": "compute", "package": "lr", "function": "train", "parallelism": 4,
              "resources": { "pu": "cpu", "cores": 3, "memory_bytes": 32 << 20, "pool": "compute", "swap_bytes": 1 << 30 } },
            { "name": "watch", "type": "compute", "package": format!("sha256:{}", "a".repeat(64)),
              "function": "watch", "external_effects": true },
            { "name": "samples", "type": "memory", "initial_bytes": 1 << 20, "increment_bytes": 1 << 16,
              "limit_bytes": 1 << 30, "pool": "memory" },
            { "name": "weights", "type": "memory" },
        ],
        "edges": [
            { "type": "trigger", "from": "load", "to": "train" },
            { "type": "trigger", "from": "load", "to": "watch" },
            { "type": "message", "from": "train", "to": "watch" },
            { "type": "access", "from": "load", "to": "samples", "rights": "write" },
            { "type": "access", "from": "train", "to": "samples", "rights": "read" },
            { "type": "access", "from": "train", "to": "weights", "rights": "write" },
        ],
        "limits": { "cores": 8, "memory_bytes": 1u64 << 32 },
    })
}

fn parse(document: &Value) -> Result<Graph, Vec<Problem>> {
    Graph::parse(document.to_string().as_bytes())
}

/// Returns the document with one change, as a JSON pointer and its new value; null removes it.
fn changed(at: &str, value: Value) -> Value {
    let mut document = document();
    let (parent, field) = at.rsplit_once('/').unwrap();
    match document.pointer_mut(parent).unwrap() {
        Value::Array(items) if field == "-" => items.push(value),
        Value::Array(items) if value.is_null() => drop(items.remove(field.parse().unwrap())),
        Value::Array(items) => items[field.parse::<usize>().unwrap()] = value,
        Value::Object(fields) if value.is_null() => drop(fields.remove(field).unwrap()),
        Value::Object(fields) => drop(fields.insert(field.into(), value)),
        other => panic!("{other} has no fields"),
    }
    document
}

fn edge(r#type: &str, from: &str, to: &str) -> Value {
    json!({ "type": r#type, "from": from, "to": to })
}

#[test]
fn component_that_swaps_may_leave_out_its_memory() {
    let graph = parse(&changed("/components/1/resources/memory_bytes", Value::Null)).unwrap();
    let resources = &graph.components[1].compute().unwrap().resources;
    assert_eq!((resources.memory_bytes, resources.swap_bytes), (None, Some(1 << 30)));
}

#[test]
fn parses_a_document_with_defaults_for_missing_fields() {
    let graph = parse(&document()).unwrap();
    assert_eq!((graph.name.as_str(), graph.entry()), ("regression", 0));
    let load = graph.components[0].compute().unwrap();
    assert_eq!((load.parallelism, load.has_external_effects, load.is_entry), (1, false, true));
    let train = graph.components[1].compute().unwrap();
    assert_eq!((train.parallelism, train.resources.memory_bytes), (4, Some(32 << 20)));
    assert_eq!((train.cores(), load.cores()), (12, 1));
    assert_eq!((train.resources.swap_bytes, load.resources.swap_bytes), (Some(1 << 30), None));
    let weights = graph.components[4].memory().unwrap();
    assert_eq!((weights.initial_bytes, weights.increment_bytes), (None, None), "earlier runs say");
    assert_eq!(weights.limit_bytes, DEFAULT_SEGMENT_BYTES * MAX_SEGMENTS);
    let access = Edge { from: 1, to: 4, relation: Relation::Access(MemoryRights::Write), condition: None };
    assert_eq!(graph.edges[5], access);
    assert_eq!((graph.edges_from(0).count(), graph.edges_to(3).count()), (3, 2));
    assert_eq!(
        graph.limits,
        RunLimits { cores: Some(8), memory_bytes: Some(1 << 32), ..RunLimits::default() }
    );
}

#[test]
fn a_function_alone_is_a_graph() {
    let component = json!({ "name": "f", "type": "compute", "entry": true, "package": "p", "function": "f" });
    parse(&json!({ "version": 1, "name": "f", "components": [component] })).unwrap();
}

#[test]
fn written_graph_parses_to_the_same_graph() {
    let graph = parse(&document()).unwrap();
    assert_eq!(Graph::parse(graph.to_json().as_bytes()).unwrap(), graph);
}

/// A change of the document, the position of the problem, and a part of its message.
type ProblemCase = (&'static str, Value, &'static str, &'static str);

#[track_caller]
fn assert_reports<const N: usize>(cases: [ProblemCase; N]) {
    for (at, value, place, said) in cases {
        let problems = parse(&changed(at, value.clone())).expect_err(at);
        let is_told = |problem: &Problem| problem.at == place && problem.message.contains(said);
        assert!(problems.iter().any(is_told), "{at} = {value}: {problems:?}");
    }
}

#[test]
fn reports_each_problem_of_components_with_its_position() {
    let small = json!({ "name": "m", "type": "memory", "initial_bytes": 8192, "limit_bytes": 4096 });
    let fine = json!({ "name": "m", "type": "memory", "increment_bytes": 4096, "limit_bytes": 1u64 << 40 });
    assert_reports([
        ("/version", json!(2), "version", "only version 1"),
        ("/version", json!("1"), "version", "invalid type"),
        ("/name", Value::Null, "", "missing field `name`"),
        ("/name", json!(""), "name", "no name"),
        ("/colour", json!("red"), "colour", "unknown field `colour`"),
        ("/components", json!([]), "components", "there are 0"),
        ("/components/0/name", json!("../load"), "components[0].name", "no name"),
        ("/components/1/name", json!("load"), "components[1].name", "components[0] already"),
        ("/components/0/type", json!("gpu"), "components[0].type", "expected `compute` or `memory`"),
        ("/components/0/package", Value::Null, "components[0].package", "needs this field"),
        ("/components/0/function", Value::Null, "components[0].function", "needs this field"),
        ("/components/0/package", json!("a/b/c"), "components[0].package", "no name"),
        ("/components/0/entry", Value::Null, "components", "no component is the entry"),
        ("/components/1/entry", json!(true), "components", "load, train are all the entry"),
        ("/components/1/parallelism", json!(0), "components[1].parallelism", "1 to 1024"),
        ("/components/1/parallelism", json!(1025), "components[1].parallelism", "1 to 1024"),
        ("/components/1/parallelism", json!(-1), "components[1].parallelism", "invalid value"),
        (
            "/components/1/initial_bytes",
            json!(4096),
            "components[1].initial_bytes",
            "type compute has no such",
        ),
        ("/components/3/function", json!("f"), "components[3].function", "type memory has no such"),
        ("/components/3/initial_bytes", json!(1), "components[3].initial_bytes", "4096 to"),
        ("/components/3/increment_bytes", json!((1u64 << 40) + 1), "components[3].increment_bytes", "within"),
        ("/components/3/limit_bytes", json!(1u64 << 51), "components[3].limit_bytes", "within"),
        ("/components/3/limit_bytes", json!(1e30), "components[3].limit_bytes", "invalid type"),
        ("/components/4", small, "components[4].limit_bytes", "less than the initial size"),
        ("/components/4", fine, "components[4].increment_bytes", "65536 segments"),
        ("/components/0", json!(["load", "memory"]), "components[0]", "expected an object"),
    ]);
}

/// A planner, a component whose number of instances follows from data, and memory that the planner writes.
fn counted(parallelism: &Value, more: &Value, edges: &[Value]) -> Value {
    let compute = |name: &str| json!({ "name": name, "type": "compute", "package": "p", "function": "f" });
    let (mut plan, mut map) = (compute("plan"), compute("map"));
    plan["entry"] = json!(true);
    map["parallelism"] = parallelism.clone();
    for (field, value) in more.as_object().unwrap() {
        map[field] = value.clone();
    }
    let access =
        |from: &str, rights: &str| json!({ "type": "access", "from": from, "to": "rows", "rights": rights });
    let mut all = vec![edge("trigger", "plan", "map"), access("plan", "write"), access("map", "read")];
    all.extend_from_slice(edges);
    json!({ "version": 1, "name": "counted", "edges": all,
            "components": [plan, map, { "name": "rows", "type": "memory" }, compute("other")] })
}

#[test]
fn number_of_instances_follows_from_an_output_or_from_memory() {
    let other = [edge("trigger", "plan", "other")];
    let sources = [
        (json!({ "from": "plan", "limit": 64 }), InstancesFrom::Output { component: 0 }),
        (
            json!({ "from": "rows", "bytes_each": 100, "limit": 64 }),
            InstancesFrom::Memory { memory: 2, bytes_each: 100 },
        ),
    ];
    for (parallelism, source) in sources {
        let graph = parse(&counted(&parallelism, &json!({}), &other)).unwrap();
        let map = graph.components[1].compute().unwrap();
        assert_eq!((map.parallelism, map.instances_from), (64, Some(source)));
        assert_eq!(parse(&serde_json::from_str(&graph.to_json()).unwrap()).unwrap(), graph);
    }
}

#[test]
fn reports_each_problem_of_a_number_that_follows_from_data() {
    let other = edge("trigger", "plan", "other");
    let (plan, rows) =
        (json!({ "from": "plan", "limit": 8 }), json!({ "from": "rows", "bytes_each": 1, "limit": 8 }));
    let swapping = json!({ "resources": { "memory_bytes": 32 << 20, "swap_bytes": 16 << 20 } });
    let message = edge("message", "map", "other");
    let cases = [
        (json!({ "from": "plan" }), json!({}), None, "", "missing field `limit`"),
        (json!({ "from": "plan", "limit": 0 }), json!({}), None, ".limit", "1 to 1024"),
        (json!({ "from": "plan", "limit": 1025 }), json!({}), None, ".limit", "1 to 1024"),
        (json!({ "from": "plan", "limit": "8" }), json!({}), None, ".limit", "invalid type"),
        (json!({ "from": "plan", "limit": 8, "least": 2 }), json!({}), None, ".least", "unknown field"),
        (json!({ "from": "absent", "limit": 8 }), json!({}), None, ".from", "no component \"absent\""),
        (json!({ "from": "rows", "limit": 8 }), json!({}), None, ".bytes_each", "of type memory"),
        (
            json!({ "from": "plan", "bytes_each": 1, "limit": 8 }),
            json!({}),
            None,
            ".bytes_each",
            "of type compute",
        ),
        (
            json!({ "from": "rows", "bytes_each": 0, "limit": 8 }),
            json!({}),
            None,
            ".bytes_each",
            "not within 1",
        ),
        (json!({ "from": "other", "limit": 8 }), json!({}), None, "", "\"other\" does not trigger"),
        (json!({ "from": "map", "limit": 8 }), json!({}), None, "", "\"map\" does not trigger"),
        (json!([8]), json!({}), None, "", "a number of instances, or an object"),
        (json!(-1), json!({}), None, "", "invalid value"),
        (plan, swapping, None, "", "has swap_bytes"),
        (rows, json!({}), Some(message), "", "exchanges messages"),
    ];
    for (parallelism, more, message, field, said) in cases {
        let edges: Vec<Value> = [Some(other.clone()), message].into_iter().flatten().collect();
        let problems = parse(&counted(&parallelism, &more, &edges)).expect_err(said);
        let at = format!("components[1].parallelism{field}");
        let is_told = |problem: &Problem| problem.at == at && problem.message.contains(said);
        assert!(problems.iter().any(is_told), "{parallelism}: {problems:?}");
    }
}

#[test]
fn source_of_a_number_is_written_before_and_never_skipped() {
    let rows = json!({ "from": "rows", "bytes_each": 1, "limit": 8 });
    let mut unwritten = counted(&rows, &json!({}), &[edge("trigger", "plan", "other")]);
    unwritten["edges"][1]["rights"] = json!("read");
    let mut unread = counted(&rows, &json!({}), &[edge("trigger", "plan", "other")]);
    unread["edges"].as_array_mut().unwrap().remove(2);
    let plan = json!({ "from": "plan", "limit": 8 });
    let mut conditional = counted(&plan, &json!({}), &[edge("trigger", "plan", "other")]);
    conditional["edges"][0]["when"] = json!("1");
    let mut wide = counted(&plan, &json!({}), &[edge("trigger", "plan", "other")]);
    wide["components"][0]["parallelism"] = json!(2);
    // "other" is skipped if the output of "plan" begins otherwise, and "map" is executed.
    let from_other = json!({ "from": "other", "limit": 8 });
    let mut skipped = counted(&from_other, &json!({}), &[edge("trigger", "plan", "other")]);
    skipped["edges"][3]["when"] = json!("1");
    skipped["edges"].as_array_mut().unwrap().push(edge("trigger", "other", "map"));
    for (document, said) in [
        (unwritten, "no component that writes \"rows\" ends before \"map\" begins"),
        (unread, "\"map\" has no access to \"rows\""),
        (conditional, "\"plan\" does not trigger \"map\" without a condition"),
        (wide, "\"plan\" has 2 instances"),
        (skipped, "\"other\" may be left out"),
    ] {
        let problems = parse(&document).expect_err(said);
        let is_told =
            |problem: &Problem| problem.at == "components[1].parallelism" && problem.message.contains(said);
        assert!(problems.iter().any(is_told), "{said}: {problems:?}");
    }
}

#[test]
fn a_run_has_one_result_that_a_component_writes() {
    let result = json!({ "name": "weights", "type": "memory", "result": true });
    let graph = parse(&changed("/components/4", result)).unwrap();
    assert_eq!((graph.result(), parse(&document()).unwrap().result()), (Some(4), None));
    assert_eq!(Graph::parse(graph.to_json().as_bytes()).unwrap(), graph);
    let mut two = changed("/components/4/result", json!(true));
    two["components"][3]["result"] = json!(true);
    let mut unwritten = changed("/components/4/result", json!(true));
    unwritten["edges"][5]["rights"] = json!("read");
    for (document, at, said) in [
        (two, "components[4].result", "samples, weights are all the result"),
        (unwritten, "components[4].result", "no component writes \"weights\""),
        (changed("/components/0/result", json!(true)), "components[0].result", "type compute has no such"),
        (changed("/components/4/result", json!("yes")), "components[4].result", "invalid type"),
    ] {
        let problems = parse(&document).expect_err(said);
        let is_told = |problem: &Problem| problem.at == at && problem.message.contains(said);
        assert!(problems.iter().any(is_told), "{said}: {problems:?}");
    }
}

#[test]
fn reports_each_problem_of_edges_with_its_position() {
    assert_reports([
        ("/edges/0/to", json!("absent"), "edges[0].to", "there is no component \"absent\""),
        ("/edges/0/from", json!("absent"), "edges[0].from", "there is no component \"absent\""),
        ("/edges/0/to", json!("samples"), "edges[0].to", "\"samples\" is of type memory"),
        ("/edges/3/from", json!("weights"), "edges[3].from", "\"weights\" is of type memory"),
        ("/edges/3/to", json!("train"), "edges[3].to", "\"train\" is of type compute"),
        ("/edges/3/rights", Value::Null, "edges[3].rights", "read or write"),
        ("/edges/3/rights", json!("own"), "edges[3].rights", "unknown variant"),
        ("/edges/0/rights", json!("read"), "edges[0].rights", "trigger have no such field"),
        ("/edges/0/type", json!("calls"), "edges[0].type", "unknown variant"),
        ("/edges/-", edge("trigger", "load", "train"), "edges[6]", "the same as edges[0]"),
        ("/edges/-", edge("message", "watch", "train"), "edges[6]", "the same as edges[2]"),
        ("/edges/-", edge("trigger", "load", "load"), "edges[6]", "to itself"),
        ("/edges/-", edge("trigger", "train", "load"), "edges", "circle: load -> train -> load"),
        (
            "/edges/-",
            edge("message", "load", "watch"),
            "edges[6]",
            "\"watch\" starts when \"load\" has ended",
        ),
        ("/edges/0", Value::Null, "components[1]", "\"train\" is never executed"),
        ("/edges/5", Value::Null, "components[4]", "\"weights\" is never accessed"),
        ("/edges/0", json!(["trigger", "load", "train", null]), "edges[0]", "expected an object"),
    ]);
}

#[test]
fn reports_each_problem_of_resources_and_limits_with_its_position() {
    assert_reports([
        ("/components/1/resources/pu", json!("a/b"), "components[1].resources.pu", "no name"),
        (
            "/components/1/resources/memory_bytes",
            json!(u64::MAX),
            "components[1].resources.memory_bytes",
            "within",
        ),
        ("/components/1/resources/cores", json!(0), "components[1].resources.cores", "1 to 1024"),
        ("/components/1/resources/cores", json!(1025), "components[1].resources.cores", "1 to 1024"),
        ("/components/1/resources/cores", json!(2.5), "components[1].resources.cores", "invalid type"),
        (
            "/components/1",
            json!({ "name": "train", "type": "compute", "package": "p", "function": "f",
                    "parallelism": 1024, "resources": { "cores": 65 } }),
            "components[1].resources.cores",
            "have 66560 cores",
        ),
        ("/components/1/resources/threads", json!(2), "components[1].resources.threads", "unknown field"),
        ("/limits/cores", json!(0), "limits.cores", "without a core"),
        ("/limits/memory_bytes", json!(1), "limits.memory_bytes", "within"),
        ("/limits/swap_medium", json!("disk"), "limits.swap_medium", "expected `memory` or `flash`"),
        ("/components/4/pool", json!("flash"), "components[4].pool", "limits.swap_medium"),
        (
            "/components/0/resources",
            json!({ "pool": "flash" }),
            "components[0].resources.pool",
            "limits.swap_medium",
        ),
        ("/limits/nodes", json!(1), "limits.nodes", "unknown field"),
        ("/limits/application_cores", json!(0), "limits.application_cores", "without a core"),
        ("/limits/application_cores", json!("2"), "limits.application_cores", "invalid type"),
        ("/limits/application_memory_bytes", json!(1), "limits.application_memory_bytes", "within"),
        ("/limits", json!([8, 1u64 << 32]), "limits", "expected an object"),
        (
            "/components/1/resources/swap_bytes",
            json!(1 << 20),
            "components[1].resources.swap_bytes",
            "not within 16777216 to",
        ),
        (
            "/components/1/resources/swap_bytes",
            json!(1u64 << 39),
            "components[1].resources.swap_bytes",
            "4 instances with",
        ),
        (
            "/components/1/resources/swap_bytes",
            json!("1"),
            "components[1].resources.swap_bytes",
            "invalid type",
        ),
        (
            "/components/1/resources/memory_bytes",
            json!(1 << 20),
            "components[1].resources.swap_bytes",
            "it takes 33554432",
        ),
        ("/components/1/parallelism", json!(257), "components", "257 instances have swap_bytes"),
        (
            "/components/3/resources",
            json!({ "swap_bytes": 1 << 30 }),
            "components[3].resources",
            "type memory has no such",
        ),
        ("/components/1/resources", json!(["cpu", 4096]), "components[1].resources", "expected an object"),
    ]);
}

/// Builds a graph of four components, of which one triggers others by these edges, as ends and condition.
fn choosing(edges: &[(&str, Value)]) -> Value {
    let compute = |name: &str| json!({ "name": name, "type": "compute", "package": "p", "function": "f" });
    let mut components: Vec<Value> = ["a", "b", "c", "d"].map(compute).into();
    components[0]["entry"] = json!(true);
    let edge = |(ends, condition): &(&str, Value)| {
        let mut edge = edge("trigger", &ends[..1], &ends[1..]);
        edge.as_object_mut().unwrap().extend(condition.as_object().unwrap().clone());
        edge
    };
    let edges: Vec<Value> = edges.iter().map(edge).collect();
    json!({ "version": 1, "name": "g", "components": components, "edges": edges })
}

#[test]
fn who_is_triggered_is_what_an_output_begins_with() {
    let document = choosing(&[
        ("ab", json!({ "when": "cat" })),
        ("ac", json!({ "otherwise": true })),
        ("ad", json!({ "when": "c" })),
        ("bd", json!({ "otherwise": false })),
    ]);
    let graph = parse(&document).unwrap();
    let triggered = |output: &[u8]| {
        let edges = graph.edges_from(0).filter(|edge| graph.does_trigger(edge, output));
        edges.map(|edge| edge.to).collect::<Vec<_>>()
    };
    assert_eq!(triggered(b"cat and more"), [1, 3]);
    assert_eq!(triggered(b"ca"), [3]);
    assert_eq!(triggered(b"dog"), [2]);
    assert_eq!(triggered(b""), [2]);
    assert!(graph.edges_from(1).all(|edge| graph.does_trigger(edge, b"")), "no condition");
    assert_eq!(Graph::parse(graph.to_json().as_bytes()).unwrap(), graph);
}

#[test]
fn rejects_meaningless_conditions() {
    let rest = [("ac", json!({})), ("ad", json!({}))];
    let of = |condition: Value| choosing(&[&[("ab", condition)], &rest[..]].concat());
    let with = |at: &str, value: Value| {
        let mut document = of(json!({ "when": "x" }));
        *document.pointer_mut(at).unwrap() = value;
        document
    };
    for (document, place, said) in [
        (of(json!({ "when": "" })), "edges[0].when", "0 bytes"),
        (of(json!({ "when": "x".repeat(257) })), "edges[0].when", "1 to 256"),
        (of(json!({ "when": 1 })), "edges[0].when", "invalid type"),
        (of(json!({ "when": "x", "otherwise": true })), "edges[0].otherwise", "one of the two"),
        (of(json!({ "otherwise": true })), "edges[0].otherwise", "\"a\" has no trigger with \"when\""),
        (
            with(
                "/components/0",
                json!({ "name": "a", "type": "compute", "entry": true, "package": "p", "function": "f",
                "parallelism": 2 }),
            ),
            "edges[0]",
            "2 instances",
        ),
        (
            with("/edges/1", json!({ "type": "message", "from": "b", "to": "c", "when": "x" })),
            "edges[1].when",
            "message have no such field",
        ),
        (with("/edges/1", edge("message", "d", "b")), "edges[1]", "\"b\" may be left out"),
    ] {
        let problems = parse(&document).expect_err(said);
        let is_told = |problem: &Problem| problem.at == place && problem.message.contains(said);
        assert!(problems.iter().any(is_told), "{document}: {problems:?}");
    }
}

#[test]
fn rejects_entry_triggered_by_a_component_that_never_runs() {
    let mut document = changed("/edges/-", edge("trigger", "idle", "load"));
    let idle = json!({ "name": "idle", "type": "compute", "package": "p", "function": "f" });
    document["components"].as_array_mut().unwrap().push(idle);
    let problems = parse(&document).unwrap_err();
    assert!(problems.iter().any(|problem| problem.at == "components[0].entry"), "{problems:?}");
}

#[test]
#[cfg_attr(miri, ignore = "it takes hours under Miri")]
fn reports_all_problems_at_once_up_to_the_limit() {
    let mut document = changed("/components/1/parallelism", json!(0));
    document["limits"]["cores"] = json!(0);
    document["edges"][0]["to"] = json!("absent");
    let places: Vec<String> = parse(&document).unwrap_err().into_iter().map(|problem| problem.at).collect();
    assert_eq!(places, ["limits.cores", "edges[0].to", "components[1].parallelism"]);
    document["edges"] = (0..1000).map(|_| edge("trigger", "absent", "no.one")).collect();
    assert_eq!(parse(&document).unwrap_err().len(), MAX_PROBLEMS);
}

#[test]
#[cfg_attr(miri, ignore = "it takes hours under Miri")]
fn rejects_too_large_documents_before_checking_them() {
    let problems = Graph::parse(&vec![b' '; MAX_DOCUMENT_BYTES + 1]).unwrap_err();
    assert!(problems[0].message.contains("at most 1048576"), "{problems:?}");
    let mut document = document();
    document["edges"] = (0..=MAX_EDGES).map(|_| edge("trigger", "a", "b")).collect();
    assert_eq!(parse(&document).unwrap_err()[0].at, "edges");
    let component = |n: usize| json!({ "name": format!("m{n}"), "type": "memory" });
    document = changed("/components", (0..=MAX_COMPONENTS).map(component).collect());
    assert_eq!(parse(&document).unwrap_err()[0].at, "components");
}

#[test]
fn reports_invalid_json_with_line_and_column() {
    for (text, said) in [
        ("", "EOF"),
        ("{\n  \"version\": 1,,\n", "line 2 column 16"),
        ("[]", "expected an object"),
        ("{\"version\": 1, \"version\": 1}", "duplicate field"),
        (&format!("{} {{}}", document()), "trailing characters"),
        (&"[".repeat(100_000), "line 1"),
    ] {
        let problems = Graph::parse(text.as_bytes()).unwrap_err();
        assert!(problems.len() == 1 && problems[0].to_string().contains(said), "{text:.40}: {problems:?}");
    }
    let all = error("it", &Graph::parse(b"{}").unwrap_err());
    assert_eq!(all.code, Code::InvalidGraph);
}

#[test]
#[cfg_attr(miri, ignore = "it takes hours under Miri")]
fn checks_the_largest_circles_and_layered_graphs() {
    let name = |n: usize| format!("c{n}");
    let component = |n: usize| json!({ "name": name(n), "type": "compute", "entry": n == 0, "package": "p", "function": "f" });
    let components: Vec<Value> = (0..MAX_COMPONENTS).map(component).collect();
    let chain = |n: usize| edge("trigger", &name(n), &name((n + 1) % MAX_COMPONENTS));
    let document =
        |edges: Vec<Value>| json!({ "version": 1, "name": "g", "components": components, "edges": edges });
    parse(&document((0..MAX_COMPONENTS - 1).map(chain).collect())).unwrap();
    let problems = parse(&document((0..MAX_COMPONENTS).map(chain).collect())).unwrap_err();
    assert!(problems[0].message.contains("c1023 -> c0"), "{:.80}", problems[0].message);
    // Each of sixteen layers triggers all of the next, and all exchange messages with those beside them.
    let width = MAX_EDGES / MAX_COMPONENTS / 2;
    let mut edges: Vec<Value> = (1..=width).map(|to| edge("trigger", &name(0), &name(to))).collect();
    for from in 1..MAX_COMPONENTS {
        let layer = (from - 1) / width;
        let next = 1 + (layer + 1) * width;
        edges.extend(
            (next..(next + width).min(MAX_COMPONENTS)).map(|to| edge("trigger", &name(from), &name(to))),
        );
        edges.extend((from + 1..next.min(MAX_COMPONENTS)).map(|to| edge("message", &name(from), &name(to))));
    }
    parse(&document(edges)).unwrap();
}

#[test]
fn warmth_is_off_unless_the_document_says_otherwise() {
    assert_eq!(parse(&document()).unwrap().warm, Warmth::Off);
    for (value, warm) in [
        (json!("off"), Warmth::Off),
        (json!("auto"), Warmth::Auto),
        (json!(1), Warmth::For(1)),
        (json!(MAX_WARM_S), Warmth::For(MAX_WARM_S)),
    ] {
        let graph = parse(&changed("/warm", value)).unwrap();
        assert_eq!(graph.warm, warm);
        assert_eq!(Graph::parse(graph.to_json().as_bytes()).unwrap(), graph);
    }
    assert_reports([
        ("/warm", json!(0), "warm", "kept for 1 to 14400 s"),
        ("/warm", json!(MAX_WARM_S + 1), "warm", "kept for 1 to 14400 s"),
        ("/warm", json!(u64::MAX), "warm", "kept for 1 to 14400 s"),
        ("/warm", json!(-1), "warm", "invalid type"),
        ("/warm", json!("always"), "warm", "invalid value"),
    ]);
}

proptest! {
    #[test]
    fn no_bytes_are_trusted(at in 0usize..2000, value: u8, bytes: Vec<u8>) {
        let mut json = document().to_string().into_bytes();
        let at = at % json.len();
        json[at] = value;
        if let Ok(graph) = Graph::parse(&json) {
            prop_assert_eq!(Graph::parse(graph.to_json().as_bytes()).unwrap(), graph);
        }
        let _ = Graph::parse(&bytes);
    }
}

#[test]
fn medium_of_swapped_data_is_refused_where_nothing_swaps() {
    let component = json!({ "name": "f", "type": "compute", "entry": true, "package": "p", "function": "f" });
    let mut graph = json!({ "version": 1, "name": "f", "components": [component] });
    graph["limits"] = json!({ "swap_medium": "flash" });
    for is_off in [Value::Null, json!(false)] {
        graph["limits"]["swap"] = is_off;
        let problems = parse(&graph).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].at == "limits.swap_medium" && problems[0].message.contains("no component swaps"));
    }
    graph["limits"]["swap"] = json!(true);
    let parsed = parse(&graph).unwrap();
    assert_eq!(parsed.limits.swap_medium, Some(SwapMedium::Flash));
    assert_eq!(Graph::parse(parsed.to_json().as_bytes()).unwrap(), parsed);
    graph["limits"]["swap"] = json!(false);
    graph["components"][0]["resources"] = json!({ "swap_bytes": 1u64 << 30 });
    parse(&graph).unwrap();
}
