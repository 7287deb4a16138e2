//! Two processing units of two architectures: this machine's agent, and that of an emulated one which is its DPU. Clients are on
//! a third machine, so that all calls go over TCP.
//!
//! All of it is done by `cargo xtask second-pu`, which makes the emulated machine ready. Times mean nothing there.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde_json::{Value, json};
use sublet::{Allocation, Code, Invoker};
use sublet_proto::v1::{CreateTokenRequest, NodeState, Role};
use sublet_tests::assert_fails;
use sublet_tests::cluster::{CLIENT_HOST, Cluster, ClusterPlan, FIRST_AGENT_HOST, LentCores};
use sublet_tests::emulated::{
    AGENT_PORT, ARCHITECTURE, COMPILER, EmulatedMachine, program as foreign_program,
};
use sublet_tests::functions::{foreign, library, program};
use sublet_tests::global::{
    GlobalProcess, READ, WRITE, allow, exchange, linked_unit, package_in_python, refused,
};
use sublet_tests::network::{Host, SwitchedNetwork};
use sublet_tests::process::{PATIENCE, wait_until};
use sublet_tests::root;
use tempfile::TempDir;

/// The emulated machine's node, and the other.
const DPU: &str = "dpu";
const HOST: &str = "node-0";
const MIB: u64 = 1 << 20;

const MODULE: &str = "
import errno, os, platform, socket

def where(input):
    return (platform.machine() + ' ' + bytes(input).decode()).encode()

def template(input):
    # The secret of hashes is as old as the interpreter: copies of one have the same.
    return f'{os.getpid()} {hash(\"what two interpreters hash differently\")}'.encode()

def walls(input):
    status = dict(line.split(':', 1) for line in open('/proc/self/status'))
    said = [f'{wall}: {status[wall].strip()}' for wall in ['NoNewPrivs', 'Seccomp']]
    try:
        socket.socket()
    except OSError as error:
        said.append(f'socket: {errno.errorcode[error.errno]}')
    return ', '.join(said).encode()

def fails(input):
    raise ValueError('what is wrong')
";

type Act = fn(&mut Computer);

/// Parts of the test, by their names.
const PARTS: &[(&str, Act)] = &[
    ("units", units_are_shown_as_neighbours_with_their_architectures),
    ("walls", sandboxes_have_their_walls_there),
    ("builds", builds_of_both_architectures_are_called_by_the_names_of_their_units),
    ("chain", calls_alternate_between_the_units),
    ("python", functions_in_python_are_called_there),
    ("template", workers_in_python_begin_as_copies_of_one_interpreter),
    ("fifos", processes_of_both_send_each_other_messages),
    ("programs", programs_of_both_architectures_are_spawned_by_one_path),
    ("executors", functions_are_executed_there_for_a_function_here),
    ("copies", functions_in_python_are_executed_by_copies_of_an_interpreter_there),
    ("graphs", graphs_go_over_both_units),
    ("death", calls_fail_with_what_happened_when_the_agent_there_is_killed_and_it_comes_back),
];
/// Environment variable in which the chore names parts, separated by commas; without it all are done.
const ONLY: &str = "SUBLET_SECOND_PU_ONLY";

/// State that all parts share.
struct Computer {
    machine: EmulatedMachine,
    cluster: Cluster,
    here: Host,
}

impl Computer {
    fn start() -> Computer {
        let network =
            SwitchedNetwork::of_machines(FIRST_AGENT_HOST + 2).expect("the chore asks root for namespaces");
        let (here, there) = (network.host(CLIENT_HOST), network.host(FIRST_AGENT_HOST + 1));
        let mut cluster = Cluster::start(ClusterPlan { network: Some(network), ..ClusterPlan::default() });
        let python = root().join("target/tools/python/bin/python3");
        let own = ["--devices", "none", "--neighbour", DPU, "--python", python.to_str().unwrap()];
        cluster.add_agent_with(LentCores::cores(2), &own);
        let machine = Computer::boot(&cluster, &there);
        Computer { machine, cluster, here }
    }

    /// Boots the DPU, and starts its agent.
    fn boot(cluster: &Cluster, there: &Host) -> EmulatedMachine {
        let request = CreateTokenRequest { role: Role::Agent.into(), node: DPU.into(), ..Default::default() };
        let token = cluster.token(&request).secret.into_bytes();
        let files = [("token", token), ("ca.pem", fs::read(cluster.ca_file()).unwrap())];
        let advertise = format!("{}:{AGENT_PORT}", there.address(0));
        let (managers, listen) = (cluster.addresses(), format!("0.0.0.0:{AGENT_PORT}"));
        let agent = [
            ["--name", DPU],
            ["--pu", "dpu"],
            ["--neighbour", HOST],
            ["--manager", &managers],
            ["--ca", "/sublet/ca.pem"],
            ["--token-file", "/sublet/token"],
            ["--listen", &listen],
            ["--advertise", &advertise],
            ["--cores", "2"],
            ["--memory", "1GiB"],
            ["--devices", "none"],
            ["--python", "/usr/bin/python3"],
        ];
        let mut machine = EmulatedMachine::boot(there, &files, &agent.concat());
        machine.start_agent();
        machine
    }

    /// A client with a lease on a kind of processing unit.
    fn client(&self, package: &TempDir, kind: &str) -> Invoker {
        let mut invoker = self.cluster.invoker();
        invoker.allocate(&allocation(package, kind)).unwrap_or_else(|error| panic!("{kind}: {error}"));
        invoker
    }

    fn process(&self, package: &TempDir, kind: &str) -> GlobalProcess {
        GlobalProcess::of(&self.cluster, allocation(package, kind))
    }
}

#[test]
#[ignore = "needs an emulated machine: cargo xtask second-pu"]
fn two_architectures_are_one_computer() {
    let parts = chosen(std::env::var(ONLY).ok().as_deref());
    let mut computer = Computer::start();
    let failed: Vec<_> =
        parts.iter().filter(|part| !is_done(&mut computer, part)).map(|(name, _)| name).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

fn chosen(only: Option<&str>) -> Vec<(&'static str, Act)> {
    let Some(only) = only else { return PARTS.to_vec() };
    let named = |name| PARTS.iter().find(|(known, _)| *known == name).copied();
    only.split(',').map(|name| named(name).unwrap_or_else(|| panic!("there is no part {name:?}"))).collect()
}

/// Does a part as a client on a machine of its own, and says on a line for the chore how it ended. If it failed, the DPU's agent may
/// know why.
fn is_done(computer: &mut Computer, (name, act): &(&str, Act)) -> bool {
    let (began, here) = (Instant::now(), computer.here.clone());
    let acted = catch_unwind(AssertUnwindSafe(|| here.run(|| act(computer))));
    if acted.is_err() {
        println!("the end of the log of the agent of {DPU}:\n{}", computer.machine.log());
    }
    let result = if acted.is_ok() { "ok" } else { "FAILED" };
    println!("\npart {name} {result} {}", began.elapsed().as_secs());
    acted.is_ok()
}

/// A package of one source, compiled for both processors.
fn package(source: &'static str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(library(source), folder.path().join("here.so")).unwrap();
    fs::copy(foreign(COMPILER, source), folder.path().join("there.so")).unwrap();
    let name = source.strip_suffix(".c").unwrap();
    let builds = "[[build]]\nlibrary = 'here.so'\n[[build]]\nlibrary = 'there.so'\n";
    fs::write(folder.path().join("sublet.toml"), format!("name = '{name}'\n{builds}")).unwrap();
    folder
}

fn python() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("words.py"), MODULE).unwrap();
    let functions = ["where", "template", "walls", "fails"]
        .map(|name| format!("[[function]]\nname = '{name}'\n"))
        .concat();
    let manifest = format!("name = 'words'\nkind = 'python'\nlibrary = 'words.py'\n{functions}");
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    folder
}

fn allocation(package: &TempDir, kind: &str) -> Allocation {
    let path = package.path().to_str().unwrap();
    Allocation::new(path).memory_bytes(64 * MIB).pu(kind).wait(PATIENCE)
}

fn call(client: &Invoker, function: &str, input: &[u8]) -> Result<Vec<u8>, sublet::Error> {
    let mut output = vec![0u8; 4096];
    let done = client.submit(function, input, &mut output)?.wait()?;
    output.truncate(done.output_bytes);
    Ok(output)
}

/// A node's processor, as operators see it.
fn processor(shown: &Value, node: &str) -> Value {
    let mut units = shown["units"].as_array().unwrap().iter();
    let found = units.find(|unit| unit["node"] == node && unit["unit"] == "cpu");
    found.unwrap_or_else(|| panic!("no {node}/cpu in {shown}")).clone()
}

fn is_linked(cluster: &Cluster) -> bool {
    let shown = cluster.json(&["pus"]);
    processor(&shown, HOST)["neighbours"] == json!([DPU])
        && processor(&shown, DPU)["neighbours"] == json!([HOST])
}

fn units_are_shown_as_neighbours_with_their_architectures(Computer { cluster, machine, .. }: &mut Computer) {
    assert_eq!(machine.run("uname -m").trim(), ARCHITECTURE);
    wait_until("the units are linked", || is_linked(cluster));
    let shown = cluster.json(&["pus"]);
    let said = [HOST, DPU].map(|node| {
        let unit = processor(&shown, node);
        ["kind", "architecture"].map(|field| unit[field].as_str().unwrap().to_owned())
    });
    assert_eq!(said, [["cpu", std::env::consts::ARCH], ["dpu", ARCHITECTURE]]);
    assert_eq!(processor(&shown, DPU)["cores"], 2);
}

fn sandboxes_have_their_walls_there(computer: &mut Computer) {
    let told = computer.machine.run("/sublet/sublet doctor --json");
    let told = told.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("{told}"));
    let told: Value = serde_json::from_str(told).unwrap();
    for wall in told["walls"].as_array().unwrap() {
        println!("{}: {} ({})", wall["wall"], wall["strength"], wall["why"]);
        // A wall that the machine's kernel does not fully support is weaker.
        assert_ne!(wall["strength"], "missing");
    }
    let client = computer.client(&python(), "dpu");
    let said = String::from_utf8(call(&client, "walls", b"").unwrap()).unwrap();
    assert_eq!(said, "NoNewPrivs: 1, Seccomp: 2, socket: EPERM");
}

fn builds_of_both_architectures_are_called_by_the_names_of_their_units(computer: &mut Computer) {
    let package = package("portable.c");
    for (kind, build) in [("cpu", 0), ("dpu", 1)] {
        let client = computer.client(&package, kind);
        let lease = client.lease().unwrap();
        assert_eq!((lease.pu.as_str(), lease.build), (kind, build));
        let fabrics: Vec<_> = client.fabrics().iter().map(ToString::to_string).collect();
        assert_eq!(fabrics, ["tcp"]);
        for size in [0, 1, 4095] {
            let input: Vec<u8> = (0..size).map(|at| (at * 7) as u8).collect();
            assert_eq!(call(&client, "echo", &input).unwrap(), input, "{size} bytes on {kind}");
        }
        assert_eq!(words(&call(&client, "add_index", &bytes(&[5, 5, 5])).unwrap()), [5, 6, 7]);
    }
}

fn functions_in_python_are_called_there(computer: &mut Computer) {
    let client = computer.client(&python(), "dpu");
    assert_eq!(call(&client, "where", b"it is").unwrap(), format!("{ARCHITECTURE} it is").as_bytes());
    assert_fails(call(&client, "fails", b""), Code::FunctionFailed, &["ValueError: what is wrong"]);
    assert_eq!(call(&client, "where", b"").unwrap(), format!("{ARCHITECTURE} ").as_bytes());
}

fn workers_in_python_begin_as_copies_of_one_interpreter(computer: &mut Computer) {
    let package = python();
    let [one, two] = [(); 2].map(|()| {
        let mut client = computer.client(&package, "dpu");
        let said = String::from_utf8(call(&client, "template", b"").unwrap()).unwrap();
        client.deallocate().unwrap();
        said.split_once(' ').unwrap().1.to_owned()
    });
    assert_eq!(one, two, "interpreters that each started by themselves have different secrets");
}

fn processes_of_both_send_each_other_messages(computer: &mut Computer) {
    let package = package("neighbours.c");
    wait_until("the units are linked", || is_linked(&computer.cluster));
    let [host, dpu] = ["cpu", "dpu"].map(|kind| computer.process(&package, kind));
    assert_ne!(host.pid() >> 32, dpu.pid() >> 32, "one processing unit");
    let (forth, from_dpu) = host.make("to the host").unwrap();
    refused(dpu.join("to the host"), "has no right to write");
    allow(&host, [dpu.pid(), forth, WRITE]);
    let to_host = dpu.join("to the host").unwrap();
    exchange((&host, from_dpu), (&dpu, to_host));
    let (back, from_host) = dpu.make("to the dpu").unwrap();
    allow(&dpu, [host.pid(), back, WRITE]);
    let to_dpu = host.join("to the dpu").unwrap();
    exchange((&dpu, from_host), (&host, to_dpu));
    // Names are the computer's, and rights are the unit's own to look at.
    refused(host.make("to the dpu"), "is taken");
    refused(dpu.make("to the host"), "is taken");
    assert_eq!((host.rights(back), dpu.rights(forth), dpu.rights(back)), (2, 2, 7));
    refused(dpu.words("allow", &[dpu.pid(), forth, READ]), "no right to own");
    // A right that is revoked is gone on both sides, whichever owns the FIFO.
    for ((owner, object, fd), (writer, to), name) in [
        ((&host, forth, from_dpu), (&dpu, to_host), "to the host"),
        ((&dpu, back, from_host), (&host, to_dpu), "to the dpu"),
    ] {
        writer.say(to, b"unread").unwrap();
        owner.words("forbid", &[writer.pid(), object, WRITE]).unwrap();
        refused(owner.hear(fd, 0), "no process has written");
        refused(writer.say(to, b"late"), "was revoked");
        refused(writer.join(name), "no right to write");
    }
}

fn programs_of_both_architectures_are_spawned_by_one_path(computer: &mut Computer) {
    let package = package("neighbours.c");
    let built = [(std::env::consts::ARCH, program("child.c")), (ARCHITECTURE, foreign_program("child.c"))];
    for (architecture, program) in built {
        let folder = package.path().join("bin").join(architecture);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(program, folder.join("child")).unwrap();
    }
    let parent = computer.process(&package, "cpu");
    let units = [parent.pid() >> 32, linked_unit(&parent)];
    let (object, fd) = parent.make("news").unwrap();
    for unit in units {
        let words = [unit, object, WRITE].map(u64::to_le_bytes).concat();
        let said = [&words, b"bin/{arch}/child\0news\0news\0end\0".as_slice()].concat();
        let child = u64::from_le_bytes(parent.call("spawn", &said).unwrap().try_into().unwrap());
        let (from, said) = parent.hear(fd, 60_000).unwrap();
        assert_eq!((child >> 32, from), (unit, child));
        let said = String::from_utf8(said).unwrap();
        assert!(said.starts_with(&format!("{child:x} child - 0 -")), "{said}");
    }
}

fn functions_are_executed_there_for_a_function_here(computer: &mut Computer) {
    let caller = computer.process(&package("executors.c"), "cpu");
    let there = linked_unit(&caller);
    let begun = caller.call("begin", &bytes(&[1, 0])).unwrap();
    let ask = |function: &str, input: &[u8]| {
        let mut name = [0; 24];
        name[..function.len()].copy_from_slice(function.as_bytes());
        caller.call("ask", &[&begun, 20_000u32.to_le_bytes().as_slice(), &name, input].concat())
    };
    let pid = u64::from_le_bytes(ask("pid", b"").unwrap().try_into().unwrap());
    assert_eq!(pid >> 32, there);
    for size in [0, 1, 40, 41, 4096, 8000] {
        let input: Vec<u8> = (0..size).map(|at| (at * 7) as u8).collect();
        assert_eq!(ask("echo", &input).unwrap(), input);
    }
    assert_eq!(ask("square|square", &3u64.to_le_bytes()).unwrap(), 81u64.to_le_bytes());
    refused(ask("complain", b""), "complain: no such colour");
    caller.call("stop", &begun).unwrap();
}

fn functions_in_python_are_executed_by_copies_of_an_interpreter_there(computer: &mut Computer) {
    let host = computer.process(&package_in_python().unwrap(), "cpu");
    let there = linked_unit(&host);
    for _ in 0..2 {
        let said =
            host.call("delegate", &[&(there as u32).to_le_bytes()[..], b"shout hello"].concat()).unwrap();
        assert_eq!(String::from_utf8(said).unwrap(), format!("HELLO {there:x}"));
    }
    refused(
        host.call("delegate", &[&(there as u32).to_le_bytes()[..], b"shout  "].concat()),
        "nothing to shout",
    );
}

fn graphs_go_over_both_units(computer: &mut Computer) {
    let caller = computer.process(&package("dags.c"), "cpu");
    linked_unit(&caller);
    let component = |(number, (name, pu)): (usize, &(&str, &str))| {
        let what = json!({ "name": name, "type": "compute", "package": "dags", "function": name, "entry": number == 0 });
        let mut what = what.as_object().unwrap().clone();
        what.insert("resources".into(), json!({ "pu": pu }));
        Value::Object(what)
    };
    let parts = [("a", "cpu"), ("b", "dpu"), ("c", "cpu")];
    let components: Vec<Value> = parts.iter().enumerate().map(component).collect();
    let edges =
        [("a", "b"), ("b", "c")].map(|(from, to)| json!({ "type": "trigger", "from": from, "to": to }));
    let graph = json!({ "version": 1, "name": "alternating", "components": components, "edges": edges });
    let chain = caller.call("join", &[&0u32.to_le_bytes(), graph.to_string().as_bytes()].concat()).unwrap();
    for turn in 0..16 {
        let input = format!("{turn} ");
        let run = [&chain, 20_000u32.to_le_bytes().as_slice(), input.as_bytes()].concat();
        let said = caller.call("run", &run).unwrap();
        assert_eq!(String::from_utf8(said).unwrap(), format!("{input}abc"));
    }
    caller.call("part", &chain).unwrap();
}

fn calls_alternate_between_the_units(computer: &mut Computer) {
    let package = package("portable.c");
    let units = ["cpu", "dpu"].map(|kind| computer.client(&package, kind));
    let mut chain = vec![1, 1, 1, 1];
    for step in 1..=32 {
        let done = call(&units[step % units.len()], "add_index", &bytes(&chain)).unwrap();
        chain = words(&done);
        let expected: Vec<u32> = (0..4).map(|index| 1 + index * step as u32).collect();
        assert_eq!(chain, expected, "after {step} calls");
    }
}

fn calls_fail_with_what_happened_when_the_agent_there_is_killed_and_it_comes_back(computer: &mut Computer) {
    let package = package("calls.c");
    let client = computer.client(&package, "dpu");
    let mut nothing = [0u8; 0];
    let in_flight = client.submit("busy", &[60_000u32], &mut nothing).unwrap();
    computer.machine.kill_agent();
    assert_fails(in_flight.wait(), Code::AgentUnreachable, &["agent"]);
    assert_fails(call(&client, "echo", b"late"), Code::AgentUnreachable, &["agent"]);
    drop(client);
    let cluster = &computer.cluster;
    wait_until("the manager misses it", || cluster.node(DPU).unwrap().state() == NodeState::Lost);
    let near = computer.client(&package, "cpu");
    assert_eq!(call(&near, "echo", b"beside it").unwrap(), b"beside it");
    computer.machine.start_agent();
    wait_until("the units are linked again", || is_linked(cluster));
    let client = computer.client(&package, "dpu");
    assert_eq!(call(&client, "echo", b"again").unwrap(), b"again");
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}
