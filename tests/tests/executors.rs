//! Functions that are executed on another processor for a function: executors, what they answer, and what becomes of them.

#![allow(clippy::unwrap_used)]

use std::fs;

use serde_json::Value;
use sublet::{Allocation, Code, Error};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::{kernels, library, package};
use sublet_tests::global::{GlobalProcess, computer, linked_unit, package_in_python, refused};
use sublet_tests::process::{PATIENCE_MS, wait_until, wait_until_busy};
use sublet_tests::root;

/// A function's process, and what it has started.
struct Caller(GlobalProcess);

impl Caller {
    fn of(cluster: &Cluster) -> Caller {
        Caller(GlobalProcess::of(cluster, Allocation::new(package("executors.c")).pu("cpu")))
    }

    /// Starts an executor on the processor of this number.
    fn begin(&self, number: u32, max_bytes: u32) -> Result<u32, Error> {
        Caller::when_it_can(|| self.0.call("begin", &words(&[number, max_bytes])))
    }

    /// Starts an executor on the processor of this number from within another executor.
    fn begin_there(&self, executor: u32, number: u32) -> Result<u32, Error> {
        Caller::when_it_can(|| self.ask(executor, "begin", &words(&[number, 0])))
    }

    fn when_it_can(begin: impl Fn() -> Result<Vec<u8>, Error>) -> Result<u32, Error> {
        let mut begun = None;
        // A core that was given back is lent again when its agent has said so, and a link is made in a moment.
        wait_until("there is a core", || {
            let outcome = begun.insert(begin());
            !outcome.as_ref().is_err_and(|error| {
                ["left", "no processor 1"].iter().any(|what| error.message.contains(what))
            })
        });
        begun.unwrap().map(|begun| u32::from_le_bytes(begun.try_into().unwrap()))
    }

    fn ask(&self, executor: u32, function: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
        self.ask_within(PATIENCE_MS, executor, function, input)
    }

    fn ask_within(&self, ms: u32, executor: u32, function: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
        self.0.call("ask", &asked(ms, executor, function, input))
    }

    fn square(&self, executor: u32, number: u64) -> u64 {
        word(&self.ask(executor, "square", &number.to_le_bytes()).unwrap())
    }
}

/// Encodes the input of the function `ask`.
fn asked(ms: u32, executor: u32, function: &str, input: &[u8]) -> Vec<u8> {
    let mut name = [0; 24];
    name[..function.len()].copy_from_slice(function.as_bytes());
    [&words(&[executor, ms]), name.as_slice(), input].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn leases(cluster: &Cluster) -> usize {
    cluster.json(&["ps"])["leases"].as_array().unwrap().len()
}

#[test]
fn functions_execute_on_this_processor_and_on_another() {
    let cluster = computer(&[]);
    let caller = Caller::of(&cluster);
    let (near, far) = (caller.begin(0, 0).unwrap(), caller.begin(1, 0).unwrap());
    let units = [caller.0.pid() >> 32, linked_unit(&caller.0)];
    for (executor, unit) in [(near, units[0]), (far, units[1])] {
        let pid = word(&caller.ask(executor, "pid", &[]).unwrap());
        assert_eq!(pid, word(&caller.0.call("which", &words(&[executor])).unwrap()));
        assert!(pid >> 32 == unit && pid != caller.0.pid(), "{pid:x}");
        for size in [0, 1, 40, 41, 4096, 8000] {
            let input: Vec<u8> = (0..size).map(|at| (at * 7) as u8).collect();
            assert_eq!(caller.ask(executor, "echo", &input).unwrap(), input);
        }
    }
    // At once, and one after another.
    assert_eq!(word(&caller.0.call("spread", &words(&[near, far, near, far])).unwrap()), 1 + 4 + 9);
    refused(caller.0.call("flood", &words(&[near])), "8 calls of executor");
    refused(caller.ask(near, "pid", &[]), "8 answers of executor");
    // An executor calls one of its own, back on the first processor.
    caller.0.call("stop", &words(&[near])).unwrap();
    let beyond = caller.begin_there(far, 1).unwrap();
    let pid = caller.ask(far, "ask", &asked(PATIENCE_MS, beyond, "pid", &[])).unwrap();
    assert_eq!(word(&pid) >> 32, units[0]);
    let failed = caller.ask(far, "ask", &asked(PATIENCE_MS, beyond, "complain", &[])).unwrap_err();
    assert!(failed.message.ends_with("ask: complain: no such colour"), "{failed}");
    // Their leases end with them, and what they have begun with it.
    caller.0.call("stop", &words(&[far])).unwrap();
    wait_until("their leases have ended", || leases(&cluster) == 1);
    let near = caller.begin(0, 0).unwrap();
    caller.0.call("stop", &words(&[near])).unwrap();
    refused(caller.0.call("stop", &words(&[near])), "is not started");
    wait_until("its lease has ended", || leases(&cluster) == 1);
    drop(caller);
    wait_until("all leases have ended", || leases(&cluster) == 0);
    // Each has its part of the bill.
    let calls = |lease: &Value| lease["usage"]["calls"].as_u64().unwrap_or_default();
    wait_until("all are on the bill", || {
        let bill = cluster.json(&["bill"]);
        let lines = bill["leases"].as_array().unwrap();
        let mut counts: Vec<u64> = lines.iter().map(calls).collect();
        counts.sort_unstable();
        counts.len() == 5 && counts[3] >= 9
    });
}

#[test]
fn errors_come_back_with_the_functions_name() {
    let cluster = computer(&[]);
    let caller = Caller::of(&cluster);
    refused(caller.begin(1, u32::MAX), "4294967295");
    refused(caller.begin(9, 0), "no processor 9");
    let far = caller.begin(1, 4096).unwrap();
    assert_eq!(word(&caller.ask(far, "square|square|square", &2u64.to_le_bytes()).unwrap()), 256);
    assert_eq!(caller.ask(far, "echo|echo", b"as it is").unwrap(), b"as it is");
    let error = caller.ask(far, "square|complain|square", &2u64.to_le_bytes()).unwrap_err();
    assert!(error.message.ends_with("square|complain|square: complain: no such colour"), "{error}");
    let error = caller.ask(far, "square||square", &2u64.to_le_bytes()).unwrap_err();
    assert!(error.message.contains("no function \"\""), "{error}");
    let error = caller.ask(far, "complain", &[]).unwrap_err();
    assert!(error.message.ends_with("complain: no such colour"), "{error}");
    // Whatever the depth, the name of each function that it has passed is there.
    let nested = caller.ask(far, "ask", &asked(PATIENCE_MS, 7, "square", &[])).unwrap_err();
    assert!(nested.message.ends_with("ask: executor 7 is not started"), "{nested}");
    refused(caller.ask(far, "nothing", &[]), "nothing: the package has no function \"nothing\"");
    refused(caller.ask(far, "echo", &[0; 4097]), "echo: 4097 bytes of input");
    refused(caller.ask(far, "", &[]), "a function's name");
    refused(caller.ask(63, "echo", &[]), "executor 63 is not started");
    // A call past its deadline continues, and its answer is discarded.
    for _ in 0..9 {
        refused(caller.ask_within(1, far, "nap", &100u64.to_le_bytes()), "nap: executor");
        // An executor executes its calls in their order.
        assert_eq!(caller.square(far, 11), 121);
    }
    assert_eq!(caller.square(far, 12), 144);
    // A call that kills its process fails, and so does every later call of that executor.
    refused(caller.ask(far, "die", &[]), "die: executor");
    refused(caller.ask(far, "square", &[0; 8]), "square: executor");
    caller.0.call("stop", &words(&[far])).unwrap();
    let again = caller.begin(1, 0).unwrap();
    assert_eq!(caller.square(again, 5), 25);
    // A call that exceeds the free space is refused at once.
    let long = [&words(&[again]), vec![7; 60_000].as_slice()].concat();
    refused(caller.0.call("pile", &long), "1 calls of executor");
}

#[test]
fn a_lost_processor_ends_its_call() {
    let mut cluster = computer(&[]);
    let caller = Caller::of(&cluster);
    let far = caller.begin(1, 0).unwrap();
    assert_eq!(caller.square(far, 3), 9);
    std::thread::scope(|scope| {
        let called = scope.spawn(|| caller.ask(far, "spin", &[]));
        wait_until_busy(cluster.agents[1].worker());
        cluster.agents[1].kill();
        refused(called.join().unwrap(), "has ended");
    });
    refused(caller.ask(far, "square", &4u64.to_le_bytes()), "has ended");
    // The remaining processor still executes calls.
    caller.0.call("stop", &words(&[far])).unwrap();
    assert_eq!(caller.begin(0, 0).map(|near| caller.square(near, 4)).unwrap(), 16);
}

#[test]
fn a_kernel_executes_on_local_and_remote_devices() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    for neighbour in ["node-1", "node-0"] {
        cluster.add_agent_with(LentCores::cores(2), &["--neighbour", neighbour, "--listen", "127.0.0.1:0"]);
    }
    let folder = tempfile::tempdir().unwrap();
    let of = |file: &str| folder.path().join(file);
    fs::copy(library("delegating.c"), of("delegating.so")).unwrap();
    fs::copy(root().join("tests/functions/doubling.cl"), of("doubling.cl")).unwrap();
    let manifest = "name = 'twice'\n[[function]]\nname = 'twice'\n[[build]]\nlibrary = 'delegating.so'\n\
         [[build]]\nlibrary = 'doubling.cl'\nkind = 'opencl'\n\
         [[build.function]]\nname = 'twice'\nsymbol = 'main_kernel'\nbytes_per_item = 1\n";
    fs::write(of("sublet.toml"), manifest).unwrap();
    let host = GlobalProcess::of(
        &cluster,
        Allocation::new(folder.path().to_str().unwrap()).pu("cpu").near(["node-0"]),
    );
    let twice = |number: u32| host.call("twice", &[&number.to_le_bytes()[..], &[1, 2, 100]].concat());
    for number in 0..3 {
        let mut doubled = Err(Error::new(Code::Internal, "nothing was called"));
        wait_until("the nodes are linked, and a core is there", || {
            doubled = twice(number);
            let is_early =
                |error: &Error| ["left", "no processor"].iter().any(|said| error.message.contains(said));
            !doubled.as_ref().is_err_and(is_early)
        });
        assert_eq!(doubled.unwrap(), [2, 4, 200], "{number}");
    }
    let error = twice(4).unwrap_err();
    assert!(error.message.contains("no processor 3"), "{error}");
}

/// Has functions executed by executors of other packages.
struct Elsewhere(GlobalProcess);

impl Elsewhere {
    fn of(cluster: &Cluster) -> Elsewhere {
        Elsewhere(GlobalProcess::of(cluster, Allocation::new(package("delegating.c")).pu("cpu")))
    }

    /// Calls functions on a device, or on the processor.
    fn call(&self, names: [&str; 3], input: &[u8]) -> Result<Vec<u8>, Error> {
        self.when_there_is_a_core("elsewhere", &[names.join("\0").as_bytes(), b"\0", input].concat())
    }

    fn when_there_is_a_core(&self, function: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
        let mut answered = Err(Error::new(Code::Internal, "nothing was called"));
        wait_until("the core of the one before is free", || {
            answered = self.0.call(function, input);
            !answered.as_ref().is_err_and(|error| error.message.contains("left"))
        });
        answered
    }
}

#[test]
fn functions_of_another_package_are_executed_too() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(2));
    cluster.publish(package("portable.c"));
    let host = Elsewhere::of(&cluster);
    assert_eq!(host.call(["libportable", "", "echo"], b"and back").unwrap(), b"and back");
    let error = host.call(["libportable", "", "absent"], b"").unwrap_err();
    assert!(error.message.contains("no function \"absent\""), "{error}");
    let error = host.call(["nowhere", "", "echo"], b"").unwrap_err();
    assert!(error.message.contains("no package \"nowhere\" is deployed"), "{error}");
}

#[test]
fn data_between_successive_kernels_stays_on_the_device() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(2), &["--devices", "opencl"]);
    let folder =
        kernels("staying.cl", "[kernels]\ndeadline_ms = 1000\n", &["mark", "look", "exceed", "spin"]);
    cluster.publish(folder.path());
    let host = Elsewhere::of(&cluster);
    let call = |functions: &str, input: &[u8]| host.call(["staying", "opencl0", functions], input);
    assert_eq!(call("mark", &[5]).unwrap(), [5]);
    // By way of the host what the first has told of is all.
    assert_eq!(call("look", &[5]).unwrap(), [5, 0]);
    assert_eq!(call("mark|look", &[5]).unwrap(), [5, 77]);
    assert_eq!(call("look|mark|look|mark|look", &[6]).unwrap(), [6, 77]);
    let error = call("mark|exceed|look", &[5]).unwrap_err();
    assert!(error.message.contains("mark|exceed|look: exceed: 65537 bytes of output"), "{error}");
    let error = call("mark|nothing", &[5]).unwrap_err();
    assert!(error.message.contains("no function \"nothing\""), "{error}");
    let error = call("mark|spin|look", &[5]).unwrap_err();
    assert!(
        error.message.contains("mark|spin|look: spin: ran longer than its package allows, 1000 ms"),
        "{error}"
    );
    assert_eq!(call("mark|look", &[7]).unwrap(), [7, 77]);
}

/// Answers of one executor to several calls, one a line.
fn several(host: &Elsewhere, names: [&str; 2], calls: &[(&str, &str)]) -> Vec<String> {
    let calls: Vec<String> = calls.iter().map(|(function, input)| format!("{function}\0{input}\0")).collect();
    let input = format!("{}\0{}", names.join("\0"), calls.concat());
    let answered = host.when_there_is_a_core("several", input.as_bytes());
    String::from_utf8(answered.unwrap()).unwrap().lines().map(str::to_owned).collect()
}

/// Whatever executes them: functions `echo` and `twice`, of which the second says what it was given two times.
fn keeps_what_has_a_name(host: &Elsewhere, names: [&str; 2]) {
    let calls = [
        ("echo|@a", "one"),
        ("@a", ""),
        ("@a|twice", ""),
        ("@a|twice|@b|echo", ""),
        ("@b|twice|@a", ""),
        ("@a", ""),
        ("@b", ""),
        ("|@a", "put"),
        ("@a|twice", ""),
        ("|@a|twice", "put"),
        // A call that fails leaves the named buffers as they were.
        ("nothing|@a", "x"),
        ("@a|echo|nothing|@a", ""),
        ("@a", "x"),
        ("@a|@c", ""),
        ("@c", ""),
        ("echo|@", "x"),
        ("echo||@a", "x"),
        ("@a", ""),
        // Nothing takes it away.
        ("|@a", ""),
        ("@a|echo", ""),
        ("@b", ""),
    ];
    let said = several(host, names, &calls);
    let expected = [
        "",
        "one",
        "oneone",
        "oneone",
        "",
        "oneoneoneone",
        "oneone",
        "",
        "putput",
        "putput",
        "!nothing|@a: nothing: the package has no function \"nothing\"",
        "!@a|echo|nothing|@a: nothing: the package has no function \"nothing\"",
        "!@a: 1 bytes of input, and the input is what is in place \"a\"",
        "!@a|@c: place \"c\": what is left there is in another place",
        "!@c: nothing was left in place \"c\"",
        "!echo|@: a place without a name",
        "!echo||@a: : the package has no function \"\"",
        "put",
        "",
        "!@a|echo: nothing was left in place \"a\"",
        "oneone",
    ];
    assert_eq!(said, expected);
    let many: Vec<String> = (0..17).map(|number| format!("|@{number}")).collect();
    let mut calls: Vec<(&str, &str)> = many.iter().map(|call| (call.as_str(), "x")).collect();
    calls.extend([("|@3", ""), ("|@16", "y"), ("@16|twice", ""), ("@0", "")]);
    let said = several(host, names, &calls);
    assert!(said[..16].iter().all(String::is_empty), "{said:?}");
    assert_eq!(said[16], "!|@16: place \"16\": an executor has 16 places at most");
    assert_eq!(said[17..], ["", "", "yy", "x"]);
}

#[test]
fn named_buffers_stay_with_the_executor_on_the_device() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent_with(LentCores::cores(2), &["--devices", "opencl"]);
    let folder = kernels("staying.cl", "", &["mark", "look", "echo", "twice"]);
    cluster.publish(folder.path());
    cluster.publish(package("staying.c"));
    let host = Elsewhere::of(&cluster);
    keeps_what_has_a_name(&host, ["staying", "opencl0"]);
    keeps_what_has_a_name(&host, ["libstaying", ""]);
    // By way of the host what the first has told of would be all.
    let calls = [("mark|@a", "5"), ("@a|look", ""), ("@a|look|look", ""), ("@a", "")];
    assert_eq!(several(&host, ["staying", "opencl0"], &calls), ["", "5M", "5M", "5"]);
}

#[test]
fn python_functions_execute_in_a_copy_of_the_warm_interpreter() {
    let python = root().join("target/tools/python/bin/python3");
    let package = package_in_python().unwrap();
    let cluster = computer(&["--python", python.to_str().unwrap()]);
    let allocation = Allocation::new(package.path().to_str().unwrap()).memory_bytes(64 << 20).pu("cpu");
    let host = GlobalProcess::of(&cluster, allocation);
    let dpu = linked_unit(&host);
    let said = host.call("delegate", &[&(dpu as u32).to_le_bytes()[..], b"shout hello"].concat()).unwrap();
    assert_eq!(String::from_utf8(said).unwrap(), format!("HELLO {dpu:x}"));
    refused(
        host.call("delegate", &[&(dpu as u32).to_le_bytes()[..], b"nothing "].concat()),
        "the package has no function",
    );
    refused(
        host.call("delegate", &[&(dpu as u32).to_le_bytes()[..], b"shout  "].concat()),
        "nothing to shout",
    );
}
