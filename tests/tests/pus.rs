//! Processing units as operators see them, and neighbours: real managers and agents, and agents of the test's own that say what
//! they like. The device is PoCL's: the processor.

#![allow(clippy::unwrap_used)]

use std::fs;

use serde_json::{Value, json};
use sublet::{Access, Code, Error};
use sublet_proto::pu;
use sublet_proto::v1::nodes_client::NodesClient;
use sublet_proto::v1::{
    ConnectedNodes, CreateTokenRequest, DeviceUnit, Neighbour, Neighbours, NodeDescription, NodeRegistration,
    NodeReport, NodeState, Registration, Role,
};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::platform::sublet;
use sublet_tests::process::wait_until;
use sublet_tests::rounds::wait_for_reports;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;

/// An agent's end of the protocol, and no agent behind it.
struct AgentByHand {
    name: &'static str,
    runtime: Runtime,
    access: Access,
    stub: NodesClient<Channel>,
    registered: NodeRegistration,
    sequence: u64,
    /// Version of its neighbours that the agent reports to know.
    known: u64,
}

impl AgentByHand {
    /// Makes an agent with a token for its node.
    fn new(cluster: &Cluster, name: &'static str) -> AgentByHand {
        let token = cluster.token(&CreateTokenRequest {
            role: Role::Agent.into(),
            node: name.into(),
            ..CreateTokenRequest::default()
        });
        let access = cluster.access(&cluster.addresses(), &token.secret);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let channel = runtime.block_on(async { access.channel(0) }).unwrap();
        let (stub, registered) = (NodesClient::new(channel), NodeRegistration::default());
        AgentByHand { name, runtime, access, stub, registered, sequence: 0, known: 0 }
    }

    fn node(&self, neighbours: &[&str]) -> NodeDescription {
        NodeDescription {
            name: self.name.into(),
            agent: format!("unix:/nonexistent/{}.sock", self.name),
            architecture: std::env::consts::ARCH.into(),
            cores: 1,
            memory_bytes: 1 << 30,
            host: format!("host of {}", self.name),
            neighbours: neighbours.iter().map(|name| name.to_string()).collect(),
            ..NodeDescription::default()
        }
    }

    /// Registers the node, and returns the neighbours that the manager sends.
    fn registers(&mut self, node: NodeDescription) -> Result<Neighbours, Error> {
        let (node, instance) = (Some(node), format!("{:032x}", 7));
        let registration = Registration { node, instance, ..Registration::default() };
        let request = self.access.authorize(tonic::Request::new(registration));
        let answer = self.runtime.block_on(self.stub.register(request));
        self.registered = answer.map_err(|status| Error::from_status(&status))?.into_inner();
        self.sequence = 0;
        let told = self.registered.neighbours.clone().unwrap();
        self.known = told.version;
        Ok(told)
    }

    fn names(&mut self, neighbours: &[&str]) -> Vec<Neighbour> {
        self.registers(self.node(neighbours)).unwrap().all
    }

    /// Sends a report, and returns the neighbours if the manager sends them.
    fn reports(&mut self) -> Option<Vec<Neighbour>> {
        self.sequence += 1;
        let report = NodeReport {
            node: self.name.into(),
            registration: self.registered.registration,
            sequence: self.sequence,
            clock_unix_ms: self.registered.now_unix_ms,
            state: NodeState::Lending.into(),
            neighbours: self.known,
            connected: Some(ConnectedNodes { nodes: ["dpu", "absent"].map(str::to_owned).into() }),
            ..NodeReport::default()
        };
        let request = self.access.authorize(tonic::Request::new(report));
        let told = self.runtime.block_on(self.stub.report(request)).unwrap().into_inner().neighbours?;
        assert_ne!(told.version, self.known);
        self.known = told.version;
        Some(told.all)
    }
}

#[test]
fn neighbours_share_a_secret_that_each_registration_renews() {
    let cluster = Cluster::start(ClusterPlan::default());
    let [mut host, mut dpu, mut other, mut liar] =
        ["host", "dpu", "other", "liar"].map(|name| AgentByHand::new(&cluster, name));
    assert_eq!(host.names(&["dpu", "other"]), []);
    assert_eq!(host.reports(), None);
    let of_host = dpu.names(&["host"]).remove(0);
    let of_dpu = host.reports().unwrap().remove(0);
    assert_eq!(of_host.secret.len(), 32);
    assert_eq!(of_dpu.secret, of_host.secret);
    let expected = Neighbour {
        node: "host".into(),
        unit: pu::id("host", "cpu"),
        network: None,
        secret: of_dpu.secret.clone(),
        registration: host.registered.registration,
        host: "host of host".into(),
        agent: "unix:/nonexistent/host.sock".into(),
        bridge: String::new(),
    };
    assert_eq!(of_host, expected);
    assert_eq!((host.reports(), dpu.reports()), (None, None), "what is known is not told again");

    let of_other = other.names(&["host"]).remove(0);
    assert_ne!(of_other.secret, of_dpu.secret, "each link has its own");
    assert_eq!(host.reports().unwrap().len(), 2);
    // The host bridges the two that name it: they have a secret, too.
    let [_, bridged] = <[Neighbour; 2]>::try_from(dpu.reports().unwrap()).unwrap();
    assert_eq!((bridged.node.as_str(), bridged.bridge.as_str()), ("other", "host"));
    assert!(![&of_other.secret, &of_dpu.secret].contains(&&bridged.secret), "and the host does not know it");

    // An agent that lies about its neighbours learns nothing, and changes nothing for them.
    assert_eq!(liar.names(&["host", "dpu", "absent"]), []);
    assert_eq!((liar.reports(), host.reports(), dpu.reports()), (None, None, None));
    let in_anothers_name = NodeDescription { name: "dpu".into(), ..liar.node(&["host"]) };
    assert_fails(liar.registers(in_anothers_name), Code::PermissionDenied, &["dpu"]);

    let again = dpu.names(&["host"]).remove(0);
    assert_ne!(again.secret, of_host.secret);
    let told = host.reports().unwrap();
    let renewed: Vec<_> = told.iter().map(|one| (one.node.as_str(), &one.secret)).collect();
    assert_eq!(renewed, [("dpu", &again.secret), ("other", &of_other.secret)], "the other link stays");
    let renewed = other.reports().unwrap().remove(1).secret;
    assert!(renewed != bridged.secret, "of the two that are bridged");
    let anew = host.names(&["dpu", "other"]);
    assert!(anew[0].secret != again.secret && anew[1].secret != of_other.secret);
    assert_eq!(dpu.reports().unwrap()[0].secret, anew[0].secret);

    host.reports();
    let shown = cluster.json(&["pus"]);
    assert!(!shown.to_string().contains("secret"), "{shown}");
    // An agent's report of nodes that are not its neighbours is not shown.
    assert_eq!(unit(&shown, "host", "cpu")["connected"], json!(["dpu"]));
    assert_eq!(unit(&shown, "liar", "cpu")["connected"], json!([]));
    let why = |neighbour: &str, why: &str| json!({ "node": "liar", "neighbour": neighbour, "why": why });
    let expected = [
        why("host", "host does not name liar"),
        why("dpu", "dpu does not name liar"),
        why("absent", "no node absent is registered with this manager"),
    ];
    assert_eq!(shown["unlinked"], json!(expected));
}

#[test]
fn neighbours_and_devices_that_cannot_be_are_refused() {
    let cluster = Cluster::start(ClusterPlan::default());
    let mut liar = AgentByHand::new(&cluster, "liar");
    let many: Vec<String> = (0..65).map(|number| format!("n{number}")).collect();
    let device = DeviceUnit { unit: "cuda0".into(), kind: "cuda".into(), ..DeviceUnit::default() };
    for (node, named) in [
        (liar.node(&["liar"]), "itself"),
        (liar.node(&["a", "a"]), "a twice"),
        (liar.node(&["a/cpu"]), "a/cpu"),
        (NodeDescription { neighbours: many, ..liar.node(&[]) }, "65 neighbours"),
        (NodeDescription { device_units: vec![device], ..liar.node(&[]) }, "cuda0"),
        (NodeDescription { pu: "DPU\n".into(), ..liar.node(&[]) }, "of no node"),
    ] {
        assert_fails(liar.registers(node), Code::InvalidArgument, &[named]);
    }
    for (arguments, named) in [
        (["--neighbour", "a/cpu"], "a/cpu"),
        (["--neighbour", "liar"], "itself"),
        (["--pu", "opencl"], "opencl"),
        (["--pu", "a DPU"], "a DPU"),
    ] {
        let told = ["agent", "--print-config", "--name", "liar"];
        let output = sublet().args(told).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(Code::InvalidArgument.number() as i32), "{said}");
        assert!(said.contains(named) && said.contains(arguments[0]), "{said}");
    }
}

fn unit<'shown>(shown: &'shown Value, node: &str, unit: &str) -> &'shown Value {
    let mut units = shown["units"].as_array().unwrap().iter();
    let found = units.find(|shown| shown["node"] == node && shown["unit"] == unit);
    found.unwrap_or_else(|| panic!("no {node}/{unit} in {shown}"))
}

#[test]
fn processors_and_devices_are_units_with_capacity_and_price() {
    let folder = tempfile::tempdir().unwrap();
    let prices = folder.path().join("manager.toml");
    let text = "[price.pu.opencl]\ncompute = 1000\n[price.pu.dpu]\ncompute = 500\npolling = 600\n";
    fs::write(&prices, text).unwrap();
    let arguments = vec!["--config".to_owned(), prices.display().to_string()];
    let mut cluster = Cluster::start(ClusterPlan { arguments, ..ClusterPlan::default() });
    cluster.add_agent_with(LentCores::cores(1), &["--memory", "1GiB"]);
    cluster
        .add_agent_with(LentCores::shared(1, 4), &["--memory", "1GiB", "--devices", "none", "--pu", "dpu"]);
    let shown = cluster.json(&["pus"]);
    let names: Vec<_> =
        shown["units"].as_array().unwrap().iter().map(|unit| (&unit["node"], &unit["unit"])).collect();
    let expected = [("node-0", "cpu"), ("node-0", "opencl0"), ("node-1", "cpu")]
        .map(|(node, unit)| (json!(node), json!(unit)));
    assert_eq!(names, expected.each_ref().map(|(node, unit)| (node, unit)));

    let processor = unit(&shown, "node-0", "cpu");
    assert_eq!(processor["id"], pu::id("node-0", "cpu"));
    assert_eq!(
        [&processor["kind"], &processor["architecture"]],
        [&json!("cpu"), &json!(std::env::consts::ARCH)]
    );
    assert_eq!((&processor["cores"], &processor["memory_bytes"]), (&json!(1), &json!(1u64 << 30)));
    assert_eq!(processor["abilities"], json!(["native", "wasm"]));
    assert_eq!(processor["price"]["compute_nano_per_core_s"], 20_000);
    let device = unit(&shown, "node-0", "opencl0");
    assert_eq!((&device["kind"], &device["abilities"]), (&json!("opencl"), &json!(["opencl"])));
    assert!(
        device["model"].as_str().is_some_and(|model| !model.is_empty()),
        "PoCL says what it is: {device}"
    );
    // It computes on the cores that the node lends.
    assert_eq!(device["cores"], 1);
    // PoCL offers most of the machine's memory, and not of the 1 GiB of the sandbox in which the agent starts it.
    assert!(device["memory_bytes"].as_u64().unwrap() > 1 << 30, "{device}");
    assert_eq!(device["price"]["compute_nano_per_core_s"], 1_000);
    let dpu = unit(&shown, "node-1", "cpu");
    assert_eq!((&dpu["kind"], &dpu["cores"]), (&json!("dpu"), &json!(1)));
    let price = &dpu["price"];
    assert_eq!(
        [&price["compute_nano_per_core_s"], &price["polling_nano_per_core_s"]],
        [&json!(500), &json!(600)]
    );
    assert_eq!(price["allocation_nano_per_gib_s"], 1_000, "what is not said is as elsewhere");

    let table = cluster.command().arg("pus").output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("node-0/opencl0") && table.contains("1000/500/600"), "{table}");
}

/// Neighbours with which a node is linked, as its processor shows.
fn neighbours(cluster: &Cluster, node: &str) -> Value {
    unit(&cluster.json(&["pus"]), node, "cpu")["neighbours"].clone()
}

/// Neighbours to whose agents that of a node is connected.
fn connected(cluster: &Cluster, node: &str) -> Value {
    unit(&cluster.json(&["pus"]), node, "cpu")["connected"].clone()
}

/// The registrations of a neighbour by which an agent was ever linked with it, as its log tells.
fn linked(cluster: &Cluster, agent: usize, neighbour: &str) -> Vec<String> {
    let log = plain(&cluster.agents[agent].log());
    let lines = log.lines().filter(|line| line.contains("a neighbour is linked") && line.contains(neighbour));
    lines.map(|line| line.rsplit_once("registration=").unwrap().1.to_owned()).collect()
}

/// Removes a terminal's colours from a log.
fn plain(log: &str) -> String {
    let mut parts = log.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or(part, |(_, rest)| rest))
}

#[test]
fn neighbours_are_linked_again_after_a_restart() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(1), &["--devices", "none", "--neighbour", "node-1"]);
    cluster.add_agent_with(LentCores::cores(1), &["--devices", "none", "--neighbour", "node-0"]);
    let both = |cluster: &Cluster| [neighbours(cluster, "node-0"), neighbours(cluster, "node-1")];
    assert_eq!(both(&cluster), [json!(["node-1"]), json!(["node-0"])]);
    wait_until("both agents know", || {
        linked(&cluster, 0, "node-1").len() == 1 && linked(&cluster, 1, "node-0").len() == 1
    });
    let first = linked(&cluster, 0, "node-1").remove(0);
    let are_connected = || {
        connected(&cluster, "node-0") == json!(["node-1"])
            && connected(&cluster, "node-1") == json!(["node-0"])
    };
    wait_until("both agents are connected", are_connected);

    cluster.agents[1].restart();
    wait_until("the other agent knows of the new registration, by which the secret is another", || {
        linked(&cluster, 0, "node-1").last().is_some_and(|latest| *latest != first)
    });
    assert_eq!(both(&cluster), [json!(["node-1"]), json!(["node-0"])]);

    cluster.agents[1].pause();
    wait_until("the silent node is lost", || neighbours(&cluster, "node-0") == json!([]));
    wait_until("the other agent is not connected", || connected(&cluster, "node-0") == json!([]));
    assert_eq!(connected(&cluster, "node-1"), Value::Null, "what a lost agent last said");
    let shown = cluster.json(&["pus"]);
    assert_eq!(unit(&shown, "node-1", "cpu")["state"], "lost");
    let lost = |node: &str, neighbour: &str| json!({ "node": node, "neighbour": neighbour, "why": "node-1 is lost" });
    assert_eq!(shown["unlinked"], json!([lost("node-0", "node-1"), lost("node-1", "node-0")]));
    let parted = "a neighbour is not linked any more";
    wait_until("the other agent knows", || cluster.agents[0].log().contains(parted));
    cluster.agents[1].resume();
    wait_until("both are linked again", || both(&cluster) == [json!(["node-1"]), json!(["node-0"])]);
    wait_until("both are connected again", || {
        connected(&cluster, "node-0") == json!(["node-1"])
            && connected(&cluster, "node-1") == json!(["node-0"])
    });
}

#[test]
fn an_unanswered_neighbour_is_reported_by_command_and_log() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(
        LentCores::cores(1),
        &["--devices", "none", "--neighbour", "node-1", "--neighbour", "absent"],
    );
    cluster.add_agent_with(LentCores::cores(1), &["--devices", "none"]);
    assert_eq!([neighbours(&cluster, "node-0"), neighbours(&cluster, "node-1")], [json!([]), json!([])]);
    let told = String::from_utf8(cluster.command().arg("pus").output().unwrap().stdout).unwrap();
    let in_vain = "node-0 names node-1 as its neighbour but is not linked to it: node-1 does not name node-0";
    assert!(told.contains(in_vain) && told.contains("no node absent is registered"), "{told}");
    let complaints =
        |cluster: &Cluster| cluster.agents[0].log().matches("a neighbour is not linked:").count();
    wait_until("its log tells", || complaints(&cluster) == 2);
    wait_for_reports(&cluster.managers[0], "node-0", 3);
    assert_eq!(complaints(&cluster), 2, "once for each");
    assert!(!cluster.agents[1].log().contains("neighbour"), "{}", cluster.agents[1].log());
}
