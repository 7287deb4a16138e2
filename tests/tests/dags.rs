//! Functions that a graph connects, on the processors and devices of one computer, called by a function.

#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use sublet::{Allocation, Code, Error};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::{kernels, package};
use sublet_tests::global::{GlobalProcess, computer, linked_unit, refused};
use sublet_tests::process::{PATIENCE_MS, wait_until, wait_until_busy};

/// Has graphs called.
struct Caller(GlobalProcess);

/// A graph's executors.
struct Chain<'caller> {
    caller: &'caller Caller,
    number: u32,
}

impl Caller {
    fn of(cluster: &Cluster) -> Caller {
        cluster.publish(package("dags.c"));
        Caller(GlobalProcess::of(cluster, Allocation::new("libdags").pu("cpu")))
    }

    /// Starts a graph's executors, if that can be now, and says by which number it is called.
    fn join(&self, graph: &Value) -> Result<Vec<u8>, Error> {
        self.0.call("join", &[&0u32.to_le_bytes(), graph.to_string().as_bytes()].concat())
    }

    fn start(&self, graph: &Value) -> Result<Chain<'_>, Error> {
        let mut started = Err(Error::new(Code::Internal, "nothing was called"));
        // A core that was given back is lent again when its agent has said so, and a link is made in a moment.
        wait_until("there is a core", || {
            started = self.join(graph);
            let is_early =
                |error: &Error| ["left", "of kind"].iter().any(|what| error.message.contains(what));
            !started.as_ref().is_err_and(is_early)
        });
        started.map(|number| Chain { caller: self, number: u32::from_le_bytes(number.try_into().unwrap()) })
    }
}

impl Chain<'_> {
    fn call(&self, input: &str) -> Result<Vec<u8>, Error> {
        self.call_within(PATIENCE_MS, input)
    }

    fn call_within(&self, ms: u32, input: &str) -> Result<Vec<u8>, Error> {
        let words = [self.number.to_le_bytes(), ms.to_le_bytes()].concat();
        self.caller.0.call("run", &[&words, input.as_bytes()].concat())
    }

    fn text(&self, input: &str) -> String {
        String::from_utf8(self.call(input).unwrap()).unwrap()
    }
}

impl Drop for Chain<'_> {
    fn drop(&mut self) {
        // It may have ended with its process.
        let _ = self.caller.0.call("part", &self.number.to_le_bytes());
    }
}

/// Components as `name=function`, after an `@` on a unit of that kind; edges as `from>to`, after a `?` if the output begins so, and after
/// a `!` otherwise.
fn graph(components: &[&str], edges: &[&str]) -> Value {
    let component = |(number, text): (usize, &&str)| {
        let (text, pu) = text.split_once('@').map_or((*text, None), |(text, pu)| (text, Some(pu)));
        let (name, function) = text.split_once('=').unwrap_or((text, text));
        let (package, function) = function.split_once('/').unwrap_or(("libdags", function));
        let mut component = json!({ "name": name, "type": "compute", "package": package, "function": function, "entry": number == 0 });
        if let Some(pu) = pu {
            component["resources"] = json!({ "pu": pu });
        }
        component
    };
    let edge = |text: &&str| {
        let (ends, when) = text.split_once('?').map_or((*text, None), |(ends, when)| (ends, Some(when)));
        let (from, to) = ends.trim_end_matches('!').split_once('>').unwrap();
        let mut edge = json!({ "type": "trigger", "from": from, "to": to });
        if let Some(when) = when {
            edge["when"] = json!(when);
        }
        if ends.ends_with('!') {
            edge["otherwise"] = json!(true);
        }
        edge
    };
    let components: Vec<Value> = components.iter().enumerate().map(component).collect();
    let edges: Vec<Value> = edges.iter().map(edge).collect();
    json!({ "version": 1, "name": "dag", "components": components, "edges": edges })
}

/// The parts of a message.
fn parts(message: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut parts) = (message, Vec::new());
    while let Some((len, after)) = rest.split_first_chunk::<8>() {
        let len = u64::from_le_bytes(*len) as usize;
        parts.push(after[..len].to_vec());
        rest = &after[len.next_multiple_of(8)..];
    }
    parts
}

fn pids(message: &[u8]) -> Vec<u64> {
    parts(message).into_iter().map(|pid| u64::from_le_bytes(pid.try_into().unwrap())).collect()
}

fn leases(cluster: &Cluster) -> usize {
    cluster.json(&["ps"])["leases"].as_array().unwrap().len()
}

#[test]
fn a_chain_changes_processors_only_where_it_names_them() {
    let cluster = computer(&[]);
    let caller = Caller::of(&cluster);
    let dpu = linked_unit(&caller.0);
    assert_eq!(caller.0.call("find", b"dpu\0").unwrap(), (dpu as u32).to_le_bytes());
    refused(caller.0.call("find", b"gpu\0"), "has a unit of kind \"gpu\"");
    let alone = caller.start(&graph(&["a", "b", "c"], &["a>b", "b>c"])).unwrap();
    assert_eq!((alone.text("in "), leases(&cluster)), ("in abc".into(), 2));
    drop(alone);
    let across = graph(&["a", "b@dpu", "c@dpu", "last=a"], &["a>b", "b>c", "c>last"]);
    let across = caller.start(&across).unwrap();
    for turn in 0..50 {
        assert_eq!(across.text(&format!("{turn} ")), format!("{turn} abca"));
    }
    assert_eq!(leases(&cluster), 3, "one executor on each");
    drop(across);
    wait_until("their leases have ended", || leases(&cluster) == 1);
    refused(Chain { caller: &caller, number: 0 }.call(""), "chain 0 is not started");
}

#[test]
fn components_execute_at_once_on_free_cores() {
    let cluster = computer(&[]);
    let caller = Caller::of(&cluster);
    let dpu = linked_unit(&caller.0);
    let forked = |pu: &str| {
        let branch = |name: &str| format!("{name}=which@{pu}");
        let (one, two) = (branch("one"), branch("two"));
        caller.start(&graph(&["a", &one, &two, "echo"], &["a>one", "a>two", "one>echo", "two>echo"])).unwrap()
    };
    let there = forked("dpu");
    let found = pids(&there.call("").unwrap());
    assert!(
        found.len() == 2 && found[0] != found[1] && found.iter().all(|pid| pid >> 32 == dpu),
        "{found:x?}"
    );
    drop(there);
    wait_until("their leases have ended", || leases(&cluster) == 1);
    // There is one core left here.
    let found = pids(&forked("cpu").call("").unwrap());
    assert!(found.len() == 2 && found[0] == found[1] && found[0] >> 32 != dpu, "{found:x?}");
    // More than an executor takes at a time.
    let names: Vec<String> = (0..20).map(|number| format!("c{number}=echo")).collect();
    let components: Vec<&str> = ["a"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let edges: Vec<String> = (0..20).map(|number| format!("a>c{number}")).collect();
    let edges: Vec<&str> = edges.iter().map(String::as_str).collect();
    let wide = caller.start(&graph(&components, &edges)).unwrap();
    assert_eq!(parts(&wide.call("x").unwrap()), vec![b"xa".to_vec(); 20]);
}

#[test]
fn whom_an_output_triggers_is_what_its_conditions_say() {
    let cluster = computer(&[]);
    let caller = Caller::of(&cluster);
    let edges = ["echo>a?cat", "echo>b!", "a>c", "b>c"];
    let chosen = caller.start(&graph(&["echo", "a@dpu", "b", "c"], &edges)).unwrap();
    for (input, output) in
        [("cat ", "cat ac"), ("dog ", "dog bc"), ("ca", "cabc"), ("cat", "catac"), ("", "bc")]
    {
        assert_eq!(chosen.text(input), output);
    }
    drop(chosen);
    // A component that is left out leaves out its successors.
    let edges = ["echo>a?x", "a>b", "echo>c?y", "b>last", "c>last"];
    let chosen = caller.start(&graph(&["echo", "a", "b@dpu", "c", "last=echo"], &edges)).unwrap();
    assert_eq!(
        (chosen.text("x"), chosen.text("y"), chosen.text("z")),
        ("xab".into(), "yc".into(), String::new())
    );
}

#[test]
fn what_goes_wrong_ends_the_call_and_no_other() {
    let cluster = computer(&[]);
    let caller = Caller::of(&cluster);
    linked_unit(&caller.0);
    let edges = ["echo>complain?bad", "echo>nap?1", "echo>die?die", "complain>a", "nap>a", "echo>c?c"];
    let components = ["echo", "complain@dpu", "nap@dpu", "die@dpu", "a", "c@dpu"];
    let chain = caller.start(&graph(&components, &edges)).unwrap();
    let error = chain.call("bad").unwrap_err();
    assert!(error.message.ends_with("complain: no such colour"), "{error}");
    assert_eq!(chain.text("c"), "cc");
    for _ in 0..3 {
        // On a machine that stands still the time may be over before the first component has ended.
        let error = chain.call_within(10, "100").unwrap_err();
        let is_told = ["nap: ", "echo: "].iter().any(|name| error.message.contains(name));
        assert!(is_told && error.message.contains("in time"), "{error}");
    }
    assert_eq!((chain.text("c"), chain.text("1")), ("cc".into(), "1a".into()), "and not what came too late");
    let error = chain.call("die").unwrap_err();
    assert!(error.message.contains("die: executor"), "{error}");
    let error = chain.call("die").unwrap_err();
    assert!(error.message.contains("has ended"), "{error}");
    assert_eq!(chain.text("c"), "cc", "functions of other executors continue");
    drop(chain);
    // And what is no chain at all.
    let mut wide = graph(&["a", "b"], &["a>b"]);
    wide["components"][1]["parallelism"] = json!(2);
    let error = caller.start(&wide).err().unwrap();
    assert!(error.message.contains("components[1].parallelism: "), "{error}");
    let error = caller.start(&json!({ "version": 1 })).err().unwrap();
    assert!(error.message.contains("missing field"), "{error}");
    refused(caller.join(&graph(&["a@fpga"], &[])), "fpga");
    let error = caller.start(&graph(&["a", "x=nowhere/x"], &["a>x"])).err().unwrap();
    assert!(error.message.contains("no package \"nowhere\" is deployed"), "{error}");
    wait_until("nothing is left of them", || leases(&cluster) == 1);
}

#[test]
fn a_lost_unit_ends_its_call_and_others_continue() {
    let mut cluster = computer(&[]);
    let caller = Caller::of(&cluster);
    linked_unit(&caller.0);
    let over_both = graph(&["echo", "spin@dpu", "a", "c"], &["echo>spin?1", "spin>a", "echo>c?c"]);
    let chain = caller.start(&over_both).unwrap();
    assert_eq!(chain.text("1"), "1a");
    std::thread::scope(|scope| {
        let called = scope.spawn(|| chain.call("11"));
        wait_until_busy(cluster.agents[1].worker());
        cluster.agents[1].kill();
        let error = called.join().unwrap().unwrap_err();
        assert!(error.message.contains("spin: executor") && error.message.ends_with("has ended"), "{error}");
    });
    refused(chain.call("1"), "has ended");
    assert_eq!(chain.text("c"), "cc");
    drop(chain);
    wait_until("the unit is known to be gone", || {
        caller.join(&over_both).is_err_and(|error| error.message.contains("of kind \"dpu\""))
    });
    cluster.agents[1].restart();
    assert_eq!(caller.start(&over_both).unwrap().text("1"), "1a");
    wait_until("nothing is left of them", || leases(&cluster) == 1);
}

#[test]
fn successive_components_leave_their_data_on_the_device() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(2), &["--devices", "opencl"]);
    let folder = kernels("staying.cl", "", &["mark", "look"]);
    cluster.publish(folder.path());
    let caller = Caller::of(&cluster);
    let components = ["mark=staying/mark@opencl", "look=staying/look@opencl"];
    let chain = caller.start(&graph(&components, &["mark>look"])).unwrap();
    assert_eq!(chain.call("5").unwrap(), b"5M", "the second kernel has seen what the first did not tell of");
    drop(chain);
    wait_until("its lease has ended", || leases(&cluster) == 1);
    // Several that read it are executed where it is.
    let components = ["mark=staying/mark@opencl", "one=staying/look@opencl", "two=staying/look@opencl"];
    let chain = caller.start(&graph(&components, &["mark>one", "mark>two"])).unwrap();
    for input in ["5", "6"] {
        assert_eq!(parts(&chain.call(input).unwrap()), vec![format!("{input}M").into_bytes(); 2]);
    }
    assert_eq!(leases(&cluster), 2, "one executor on the device");
}
