//! Machines as batch systems, containers and build tools make them: without user namespaces, in nested control groups, with
//! long paths and low limits, and with the client in another PID namespace. Each condition is really made.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sublet::{Allocation, Code, FabricChoice, Policy};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::functions::{library, package};
use sublet_tests::platform::{PlatformProcess, assert_echoes, sublet};
use sublet_tests::process::stay_on_lowest_core;

const MIB: u64 = 1 << 20;
const GRAPH: &str = r#"{"version": 1, "name": "small", "components":
    [{"name": "a", "type": "compute", "entry": true, "package": "libcalls", "function": "echo"}], "edges": []}"#;

/// A command whose program is another one, which executes it.
fn wrapped<A: AsRef<OsStr>>(wrapper: &str, arguments: &[A], command: &Command) -> Command {
    let mut wrapped = Command::new(wrapper);
    wrapped.args(arguments).arg(command.get_program()).args(command.get_args());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(variable, value),
            None => wrapped.env_remove(variable),
        };
    }
    wrapped
}

fn up(state: &Path) -> Command {
    let mut up = sublet();
    up.args(["up", "--json", "--state"]).arg(state).stdin(Stdio::null()).stdout(Stdio::piped());
    up
}

/// Code and message of a failed command.
#[track_caller]
fn refused(output: &Output) -> (String, String) {
    let said = String::from_utf8_lossy(&output.stderr);
    // Processes of the node write lines of their own beside the error.
    let line = said.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    let error: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {said}"));
    let text = |field: &str| error["error"][field].as_str().unwrap_or_default().to_owned();
    (text("code"), text("message"))
}

/// Has a shell do something before it becomes the command.
fn after(preparation: &str) -> [String; 3] {
    ["-c".into(), format!("{preparation}\nexec \"$@\""), "sh".into()]
}

/// A command in a namespace of users that may have none below it, without the rights over it, as in a container.
fn without_namespaces(command: &Command) -> Command {
    let none = after("echo 0 > /proc/sys/user/max_user_namespaces");
    let without_rights = wrapped("setpriv", &["--bounding-set=-all", "--inh-caps=-all"], command);
    let shell = wrapped("sh", &none, &without_rights);
    wrapped("unshare", &["--user", "--map-root-user"], &shell)
}

/// Numbers of system calls, which are the same on all architectures.
const MOUNT_SETATTR: u32 = 442;
const CLONE3: u32 = 435;

/// Program that becomes another one for which some system calls do not exist: their numbers, then the program.
const WITHOUT_CALLS: &str = r"
import ctypes, errno, os, struct, sys
numbers = [int(number) for number in sys.argv[1].split(',')]
code = [(0x20, 0, 0, 0)]
for number in numbers:
    code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.ENOSYS)]
code.append((0x06, 0, 0, 0x7fff0000))
text = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *one) for one in code))
class Filter(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('code', ctypes.c_void_p)]
filter = Filter(len(code), ctypes.addressof(text))
system = ctypes.CDLL(None)
assert system.prctl(38, 1, 0, 0, 0) == 0 and system.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0
os.execvp(sys.argv[2], sys.argv[2:])
";

/// A command for which these system calls do not exist, as on an older kernel or in a container.
fn without_calls(calls: &[u32], command: &Command) -> Command {
    let numbers: Vec<_> = calls.iter().map(ToString::to_string).collect();
    wrapped("python3", &["-c", WITHOUT_CALLS, &numbers.join(",")], command)
}

#[test]
fn names_the_calls_that_an_old_kernel_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let old = without_calls(&[MOUNT_SETATTR], &up(folder.path()));
    let output = wrapped("timeout", &["60"], &old).output().unwrap();
    let (code, message) = refused(&output);
    assert_eq!((output.stdout.len(), code.as_str()), (0, "system"), "{message}");
    for part in ["functions cannot be isolated", "mount_setattr", "Linux 5.12", "--isolation weak"] {
        assert!(message.contains(part), "{message}");
    }
    let mut doctor = sublet();
    let looked = without_calls(&[MOUNT_SETATTR], doctor.arg("doctor")).output().unwrap();
    let said = String::from_utf8_lossy(&looked.stdout);
    assert!(
        looked.status.success() && said.contains("mount_setattr, which Linux has from 5.12 on"),
        "{said}"
    );
    assert!(said.contains("`sublet up` lends nothing"), "{said}");
}

#[test]
fn serves_where_clone3_is_refused() {
    let platform = PlatformProcess::start_by(|up| without_calls(&[CLONE3], up));
    platform.assert_serves();
}

/// A platform of weak isolation on a machine without namespaces, as Docker's default makes it.
fn weak_platform() -> PlatformProcess {
    PlatformProcess::start_by(|up| {
        let mut weak = wrapped("env", &[] as &[&str], up);
        weak.args(["--isolation", "weak", "--python", "python3"]);
        without_namespaces(&without_calls(&[CLONE3, MOUNT_SETATTR], &weak))
    })
}

#[test]
fn weak_isolation_serves_without_namespaces_and_says_so() {
    let platform = weak_platform();
    platform.assert_serves();
    assert_eq!(platform.said["node"]["isolations"], serde_json::json!(["weak"]), "{}", platform.said);
    let shown = platform.json(&["ps"]);
    assert_eq!(shown["nodes"][0]["isolations"], serde_json::json!(["weak"]), "{shown}");
    let text = String::from_utf8(platform.run(&["ps"]).stdout).unwrap();
    assert!(text.contains("functions are isolated weakly"), "{text}");
    let any = Allocation::new(package("calls.c"));
    for allocation in [any.clone(), any.clone().isolation("weak")] {
        let mut client = platform.client_with(&allocation);
        assert_echoes(&client);
        assert_eq!(client.isolation().as_deref(), Some("weak"));
        client.deallocate().unwrap();
    }
    let mut client = platform.invoker();
    assert_fails(
        client.allocate(&any.clone().isolation("process")),
        Code::InsufficientResources,
        &["isolation \"process\""],
    );
    assert_fails(client.allocate(&any.isolation("vm")), Code::InvalidArgument, &["\"vm\"", "runsc"]);
    assert_fails(
        client.allocate(&Allocation::new(package("calls.c")).temporary_bytes(MIB)),
        Code::InsufficientResources,
        &["temporary space"],
    );
}

#[test]
fn functions_of_weak_isolation_in_python_import_their_modules() {
    let platform = weak_platform();
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("sublet.toml"),
        "name = 'weakly'\nkind = 'python'\nlibrary = 'weakly.py'\n\n[[function]]\nname = 'answer'\n",
    )
    .unwrap();
    let source = "import os\n\n\ndef answer(data):\n    try:\n        os.fork()\n    except PermissionError:\n        return b'one process'\n";
    fs::write(folder.path().join("weakly.py"), source).unwrap();
    let deployed = platform.run(&["deploy", folder.path().to_str().unwrap()]);
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    let called = platform.pipe(&["call", "weakly/answer"], b"");
    assert_eq!(called.stdout, b"one process", "{}", String::from_utf8_lossy(&called.stderr));
}

#[test]
fn isolation_is_demanded_of_ordinary_nodes() {
    let platform = PlatformProcess::start();
    let any = Allocation::new(package("calls.c"));
    let mut client = platform.client_with(&any.clone().isolation("process"));
    assert_echoes(&client);
    assert_eq!(client.isolation().as_deref(), Some("process"));
    client.deallocate().unwrap();
    for (name, code, part) in [
        ("weak", Code::InsufficientResources, "isolation \"weak\""),
        ("runsc", Code::InsufficientResources, "isolation \"runsc\""),
        ("container", Code::InvalidArgument, "no image"),
    ] {
        assert_fails(client.allocate(&any.clone().isolation(name)), code, &[part]);
    }
}

#[test]
fn weak_isolation_excludes_what_needs_mounts() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, named) in [
        (&["--isolation", "weak,process"][..], "no other isolation"),
        (&["--isolation", "weak", "--folder", "data=/usr"], "lends no folders"),
        (&["--isolation", "weak", "--temporary", "1MiB"], "no temporary files"),
        (&["--isolation", "weak", "--standby", "64MiB"], "no processes on standby"),
        (&["--isolation", "weak", "--devices", "opencl"], "no kernels"),
    ] {
        let output = wrapped("timeout", &["60"], up(folder.path()).args(flags)).output().unwrap();
        let (code, message) = refused(&output);
        assert!(code == "invalid_argument" && message.contains(named), "{code}: {message}");
    }
}

#[test]
fn refuses_standby_memory_that_is_of_no_use() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, named) in [
        (&["--python", "none", "--standby", "64MiB"][..], "modules of Python"),
        (&["--standby", "1MiB"], "at least"),
        (&["--memory", "64MiB", "--standby", "64MiB"], "must be left to lend"),
    ] {
        let output = wrapped("timeout", &["60"], up(folder.path()).args(flags)).output().unwrap();
        let (code, message) = refused(&output);
        assert!(code == "invalid_argument" && message.contains(named), "{code}: {message}");
    }
}

#[test]
fn refuses_to_start_without_user_namespaces() {
    let folder = tempfile::tempdir().unwrap();
    // A node that starts all the same would never end.
    let output = wrapped("timeout", &["60"], &without_namespaces(&up(folder.path()))).output().unwrap();
    let (code, message) = refused(&output);
    assert_eq!((output.stdout.len(), code.as_str()), (0, "system"), "{message}");
    for part in [
        "functions cannot be isolated on this machine",
        "user.max_user_namespaces",
        "--security-opt",
        "--isolation weak",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

/// A control group of a controller of version 1 or of version 2, nested in that of this process, which is removed at the end.
struct Group(PathBuf);

impl Group {
    /// Makes a group and writes these files; returns `None` where this process may not make one.
    fn make(controller: &str, files: &[(&str, &str)]) -> Option<Group> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let is_it = |line: &&str| {
            line.split(':').nth(1).is_some_and(|words| words.split(',').any(|word| word == controller))
        };
        let path = groups.lines().find(is_it)?.splitn(3, ':').nth(2)?.trim_start_matches('/');
        let folder = Path::new("/sys/fs/cgroup").join(controller).join(path);
        let folder = folder.join(format!("hosts-{}/inner", std::process::id()));
        fs::create_dir_all(&folder).ok()?;
        let group = Group(folder);
        for (file, text) in files {
            fs::write(group.0.parent()?.join(file), text).ok()?;
        }
        Some(group)
    }

    /// Shell command that moves the shell into the group.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.0.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The agent's own groups may still be in the group, because the agent does not wait for their removal.
        sublet_tests::process::wait_until("the group is empty", || {
            let below = fs::read_dir(&self.0).into_iter().flatten().flatten();
            below.filter(|entry| entry.path().is_dir()).for_each(|entry| drop(fs::remove_dir(entry.path())));
            fs::remove_dir(&self.0).is_ok()
        });
        let _ = self.0.parent().map(fs::remove_dir);
    }
}

#[test]
fn lends_what_nested_control_groups_allow() {
    let limit = (512 * MIB).to_string();
    let memory = Group::make("memory", &[("memory.limit_in_bytes", &limit)]);
    let quota = [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "100000")];
    let (Some(memory), Some(cpu)) = (memory, Group::make("cpu", &quota)) else {
        let why = "this user may make no control groups of version 1; version 2 is tested by its files alone";
        skip(Means::ControllerV1("memory"), why);
        return;
    };
    let enter = after(&format!("{}\n{}", memory.enter(), cpu.enter()));
    let platform = PlatformProcess::start_by(|up| wrapped("sh", &enter, up));
    let lent = platform.said["node"]["memory_bytes"].as_u64().unwrap();
    assert_eq!((platform.cores(), lent), (1, 512 * MIB / 4 * 3), "{}", platform.said);
    platform.assert_serves();
    let folder = tempfile::tempdir().unwrap();
    for (flags, named) in [(&["--memory", "1GiB"][..], "control"), (&["--cores", "2"], "quota")] {
        let mut asks = up(folder.path());
        let (code, message) = refused(&wrapped("sh", &enter, asks.args(flags)).output().unwrap());
        assert!(code == "insufficient_resources" && message.contains(named), "{code}: {message}");
    }
    drop(platform);
}

#[test]
fn serves_from_a_state_folder_whose_sockets_have_long_paths() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("t".repeat(90)).join("u".repeat(90));
    let platform = PlatformProcess::start_in(&state);
    platform.assert_serves();
    let input = folder.path().join("input");
    fs::write(&input, "far").unwrap();
    let call = ["call", package("calls.c").as_str(), "--input"].map(str::to_owned);
    let called = platform.run(&[&call[..], &[input.display().to_string()]].concat());
    // A path alone names no function.
    assert!(!called.status.success());
    assert!(platform.run(&["deploy", &package("calls.c")]).status.success());
    let called = platform.run(&["call", "libcalls/echo", "--input", input.to_str().unwrap()]);
    assert_eq!(called.stdout, b"far", "{}", String::from_utf8_lossy(&called.stderr));
    let socket = state.join("agent.sock");
    assert!(platform.run(&["sandbox", "--agent", socket.to_str().unwrap(), "state"]).status.success());
}

#[test]
fn address_space_is_reserved_by_need() {
    let limited = ["--as=3221225472"];
    let platform = PlatformProcess::start_by(|up| wrapped("prlimit", &limited, up));
    let library = library("calls.c");
    assert!(platform.run(&["deploy", library.to_str().unwrap()]).status.success());
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("input"), folder.path().join("output"));
    let bytes: Vec<u8> = (0..40 * MIB).map(|index| (index >> 3) as u8).collect();
    fs::write(&input, &bytes).unwrap();
    let mut call = platform.command();
    call.args(["call", "libcalls/echo", "--input"]).arg(&input).arg("--output").arg(&output);
    let called = wrapped("prlimit", &["--as=1073741824"], &call).output().unwrap();
    assert!(called.status.success(), "{}", String::from_utf8_lossy(&called.stderr));
    assert!(fs::read(&output).unwrap() == bytes, "the output is another");
    // A call that does not fit fails with an error that names the limit.
    let called = wrapped("prlimit", &["--as=134217728"], call.arg("--json")).output().unwrap();
    if !called.status.success() {
        let (code, message) = refused(&called);
        assert!(code == "limit_too_low" && message.contains("ulimit -v"), "{code}: {message}");
    }
}

#[test]
fn a_node_with_too_low_limits_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let limits = [
        ("--nofile=128", "ulimit -n"),
        ("--nofile=12", "ulimit -n"),
        ("--as=268435456", "ulimit -v"),
        ("--fsize=1048576", "ulimit -f"),
    ];
    for program in ["up", "manager", "agent"] {
        let mut serve = sublet();
        serve.args([program, "--json", "--state"]).arg(folder.path()).stdin(Stdio::null());
        for (limit, named) in limits {
            let (code, message) = refused(&wrapped("prlimit", &[limit], &serve).output().unwrap());
            assert!(code == "limit_too_low" && message.contains(named), "{program}: {code}: {message}");
        }
    }
    // A soft limit is raised as far as the hard one allows.
    let soft = PlatformProcess::start_by(|up| wrapped("prlimit", &["--nofile=128:4096"], up));
    soft.assert_serves();
}

#[test]
fn a_too_low_file_size_limit_is_reported() {
    let platform = PlatformProcess::start();
    assert!(platform.run(&["deploy", &package("calls.c")]).status.success());
    let mut call = platform.command();
    call.args(["call", "libcalls/echo", "--json", "--output", "/dev/null"]).stdin(Stdio::null());
    let (code, message) = refused(&wrapped("prlimit", &["--fsize=65536"], &call).output().unwrap());
    assert!(code == "limit_too_low" && message.contains("ulimit -f"), "{code}: {message}");
}

#[test]
fn client_that_takes_the_signal_names_the_limit() {
    let platform = PlatformProcess::start();
    let mut client = Command::new(env!("CARGO_BIN_EXE_holding-client"));
    client.args([platform.address(), package("faults.c")]);
    let output = wrapped("prlimit", &["--fsize=65536"], &client).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("ulimit -f"), "{:?}: {said}", output.status);
}

#[test]
fn client_below_its_limits_names_the_limit() {
    let platform = PlatformProcess::start();
    assert!(platform.run(&["deploy", &package("calls.c")]).status.success());
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("input"), folder.path().join("output"));
    fs::write(&input, vec![7u8; 100_000]).unwrap();
    let mut call = platform.command();
    call.args(["call", "libcalls/echo", "--json", "--input"]).arg(&input).arg("--output").arg(&output);
    let limited = |limit: String| wrapped("prlimit", &[limit], &call).output().unwrap();
    for files in 6..=40 {
        let called = limited(format!("--nofile={files}:{files}"));
        assert_eq!(called.status.success(), files >= 32, "{files} files");
        if files < 32 {
            let (code, message) = refused(&called);
            assert!(code == "limit_too_low" && message.contains("ulimit -n"), "{files}: {message}");
        }
    }
    for mib in [60, 64, 96, 160] {
        let called = limited(format!("--as={}", mib * MIB));
        assert_eq!(called.status.success(), mib >= 64, "{mib} MiB");
        if mib < 64 {
            let (code, message) = refused(&called);
            assert!(code == "limit_too_low" && message.contains("ulimit -v"), "{mib} MiB: {message}");
        }
    }
}

/// Tries every number of open files from too few to connect up to enough for a lease.
#[test]
fn lease_without_enough_files_names_the_limit() {
    let platform = PlatformProcess::start();
    let mut client = Command::new(env!("CARGO_BIN_EXE_holding-client"));
    client.args([platform.address(), package("faults.c")]);
    for files in 10..=40 {
        let mut limited = wrapped("prlimit", &[format!("--nofile={files}:{files}")], &client);
        let mut started = limited.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(started.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if !line.is_empty() {
            started.kill().unwrap();
            started.wait().unwrap();
            assert!(files > 12, "the limit was not reached with {files} files");
            return;
        }
        let said = String::from_utf8(started.wait_with_output().unwrap().stderr).unwrap();
        assert!(said.contains("ulimit -n"), "{files} files: {said}");
    }
    panic!("40 files are not enough for a lease");
}

#[test]
fn file_beyond_the_limit_of_file_sizes_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (graph, svg) = (folder.path().join("graph.json"), folder.path().join("graph.svg"));
    fs::write(&graph, GRAPH).unwrap();
    let mut show = sublet();
    show.args(["--json", "graph", "show"]).arg(&graph).arg("--svg").arg(&svg);
    let mut printed = wrapped("prlimit", &["--fsize=64"], sublet().args(["--json", "graph", "schema"]));
    printed.stdout(fs::File::create(folder.path().join("schema")).unwrap());
    for mut command in [wrapped("prlimit", &["--fsize=64"], &show), printed] {
        let (code, message) = refused(&command.output().unwrap());
        assert!(code == "limit_too_low" && message.contains("ulimit -f"), "{code}: {message}");
    }
}

#[test]
fn client_and_agent_have_pid_namespaces_of_their_own() {
    let platform = PlatformProcess::start();
    assert!(platform.run(&["deploy", &package("calls.c")]).status.success());
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    fs::write(&input, "elsewhere").unwrap();
    let mut call = platform.command();
    call.args(["call", "libcalls/echo", "--input"]).arg(&input);
    let own = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let called = wrapped("unshare", &own, &call).output().unwrap();
    assert_eq!(called.stdout, b"elsewhere", "{}", String::from_utf8_lossy(&called.stderr));
    drop(platform);
    let inside = PlatformProcess::start_by(|up| wrapped("unshare", &own, up));
    inside.assert_serves();
}

#[test]
fn warns_a_client_whose_hot_workers_have_every_core() {
    const CHILD: &str = "SUBLET_TEST_HOT_CLIENT";
    if let Ok(given) = std::env::var(CHILD) {
        let [how, address] = given.split(' ').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
        stay_on_lowest_core();
        let mut client = sublet::Invoker::connect_to(&address).unwrap();
        let tcp = FabricChoice::Tcp { encrypted: false };
        let mut allocate = |cores, policy, fabric, more| {
            eprintln!("allocating");
            let allocation = Allocation::new(package("calls.c")).cores(cores).policy(policy);
            client.allocate(&allocation.fabric(fabric)).unwrap();
            if more > 0 {
                client.grow(more).unwrap();
            }
            assert_echoes(&client);
            client.deallocate().unwrap();
        };
        allocate(1, Policy::AlwaysWarm, FabricChoice::Shm, 0);
        allocate(2, Policy::AlwaysWarm, FabricChoice::Shm, 0);
        // These workers may have another machine's cores.
        allocate(2, Policy::AlwaysHot, tcp, 0);
        match how.as_str() {
            "grow" => allocate(1, Policy::AlwaysHot, FabricChoice::Shm, 1),
            _ => allocate(2, Policy::AlwaysHot, FabricChoice::Shm, 0),
        }
        // It has been warned.
        allocate(2, Policy::AlwaysHot, FabricChoice::Shm, 0);
        return;
    }
    let cores = std::thread::available_parallelism().unwrap().get();
    let platform = PlatformProcess::start_with(|command| {
        command.args(["--listen", "127.0.0.1:0"]);
    });
    if cores != 2 {
        skip(Means::ExactCores(2), format_args!("made for a machine of 2 cores, this one has {cores}"));
        return;
    }
    let own = std::env::current_exe().unwrap();
    let name = "hosts::warns_a_client_whose_hot_workers_have_every_core";
    for how in ["grow", "take"] {
        let mut client = Command::new(&own);
        client.args(["--exact", name, "--nocapture"]).env(CHILD, format!("{how} {}", platform.address()));
        let said = String::from_utf8_lossy(&client.output().unwrap().stderr).into_owned();
        let parts: Vec<&str> = said.split("allocating\n").collect();
        assert!(parts.len() == 6 && parts[4].contains("always hot workers poll on all 2 cores"), "{said}");
        assert_eq!(said.matches("always hot workers").count(), 1, "{said}");
    }
}
