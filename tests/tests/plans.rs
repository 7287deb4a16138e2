//! Tests plans of runs: components that communicated in earlier runs are placed on one node, or left apart when the
//! balanced pool is beyond its watermark.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use sublet::{Access, Application, Outcome, RunOptions};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::library;

const MIB: u64 = 1 << 20;
const LETTERS: u64 = 300;

/// A graph of two components in this pool that send each other messages, behind one that leaves their nodes alone.
fn document(pool: &Value) -> Vec<u8> {
    let compute = |name: &str, function: &str, memory_bytes: u64, pool: &Value| {
        json!({
            "name": name, "type": "compute", "package": "libcomponents", "function": function,
            "entry": name == "start", "resources": { "memory_bytes": memory_bytes, "pool": pool },
        })
    };
    let edge = |kind: &str, from: &str, to: &str| json!({ "type": kind, "from": from, "to": to });
    let components = [
        compute("start", "later", 16 * MIB, &json!("memory")),
        compute("ask", "ask", 8 * MIB, pool),
        compute("tell", "tell", 8 * MIB, pool),
    ];
    let edges =
        [edge("trigger", "start", "ask"), edge("trigger", "start", "tell"), edge("message", "ask", "tell")];
    json!({ "version": 1, "name": "talk", "components": components, "edges": edges }).to_string().into_bytes()
}

/// A cluster with a node for each number of cores and its pool.
fn cluster(arguments: &[&str], nodes: &[(u32, &str)]) -> Cluster {
    let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
    let mut cluster = Cluster::start(ClusterPlan { arguments, ..ClusterPlan::default() });
    for &(cores, pool) in nodes {
        cluster.add_agent_with(LentCores::cores(cores), &["--memory", "1GiB", "--pool", pool]);
    }
    cluster.publish(library("components.c"));
    cluster
}

/// The application, of the tenant for which the cluster's command asks.
fn application(cluster: &Cluster, pool: &Value) -> Application {
    let access = Access::parse(&cluster.managers[0].socket()).unwrap();
    let options = RunOptions { prewarm: None, ..RunOptions::default() };
    Application::deploy(access, &document(pool), options).unwrap()
}

/// Runs the application, and returns the nodes of some components.
fn run(cluster: &Cluster, application: &Application, names: &[&str]) -> (Outcome, Vec<String>) {
    let outcome = application.run(&LETTERS.to_le_bytes()).unwrap();
    cluster.wait_until_idle();
    let node_of = |name: &&str| {
        let used = outcome.components.iter().find(|used| used.component == *name).unwrap();
        let [node] = used.nodes.as_slice() else { panic!("{used:?}") };
        node.clone()
    };
    let nodes = names.iter().map(node_of).collect();
    (outcome, nodes)
}

fn plan(cluster: &Cluster) -> Value {
    cluster.json(&["graph", "plan", "talk"])
}

#[test]
fn components_that_communicated_are_placed_together_next_time() {
    let cluster = cluster(&[], &[(1, "balanced"), (2, "balanced"), (1, "memory")]);
    let application = application(&cluster, &json!("balanced"));
    assert_eq!(plan(&cluster)["sets"], json!([]), "nothing is known yet");
    let (outcome, mut nodes) = run(&cluster, &application, &["ask", "tell"]);
    nodes.sort();
    assert_eq!(nodes, ["node-0", "node-1"], "the first node takes one of them");

    let shown = cluster.json(&["graph", "history", &outcome.run]);
    let asked = &shown["components"][1]["channels"][0];
    assert_eq!((asked["memory"].as_str(), asked["writes"].as_u64()), (Some("ask~tell"), Some(LETTERS)));
    let planned = plan(&cluster);
    let set = &planned["sets"][0];
    assert_eq!(set["components"], json!(["ask", "ask~tell", "tell"]), "{planned}");
    assert_eq!(
        (&set["placement"], &set["node"], &set["cores"]),
        (&json!("together"), &json!("node-1"), &json!(2))
    );
    assert!(set["moved_bytes"].as_u64() >= Some(4 * 8 * LETTERS), "{planned}");
    assert_eq!((&planned["watermark"], &planned["method"]), (&json!(0.7), &json!("exact")));
    let text = cluster.command().args(["graph", "plan", "talk"]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("ask, ask~tell, tell") && text.contains("together"), "{text}");

    let (_, nodes) = run(&cluster, &application, &["ask", "tell", "ask~tell"]);
    assert_eq!(nodes, ["node-1"; 3]);
}

#[test]
fn components_are_left_apart_beyond_the_watermark() {
    let cluster = cluster(&["--pools-watermark", "0"], &[(2, "balanced"), (2, "compute"), (1, "memory")]);
    let application = application(&cluster, &Value::Null);
    run(&cluster, &application, &["ask", "tell"]);
    let planned = plan(&cluster);
    let set = &planned["sets"][0];
    assert_eq!((&set["placement"], &set["node"]), (&json!("apart"), &Value::Null), "{planned}");
    let (_, nodes) = run(&cluster, &application, &["ask", "tell", "ask~tell"]);
    assert_eq!(nodes, ["node-1", "node-1", "node-2"]);
}
