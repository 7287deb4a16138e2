//! `sublet` as people and scripts use it to call functions: files, pipes, folders, JSON, exit statuses.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::json;
use sublet::{Allocation, Code};
use sublet_tests::cluster::free_address;
use sublet_tests::functions::{library, package};
use sublet_tests::platform::{PlatformProcess, assert_echoes, sublet};
use sublet_tests::process::wait_until;
use sublet_tests::program::ServerProgram;

fn number(code: Code) -> Option<i32> {
    i32::try_from(code.number()).ok()
}

#[test]
fn a_deployed_library_is_called_by_name_with_files() {
    let (platform, folder) = (PlatformProcess::start(), tempfile::tempdir().unwrap());
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
    let platform = PlatformProcess::start();
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
    let (platform, folder) = (PlatformProcess::start(), tempfile::tempdir().unwrap());
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
    // A function that the manifest does not name cannot be called.
    platform.assert_refuses(&["call", "mirror/echo", "-o", "/dev/null"], Code::UnknownFunction);
}

#[test]
fn ps_shows_what_is_leased_while_it_is() {
    let platform = PlatformProcess::start();
    let leased = Allocation::new(package("calls.c")).memory_bytes(64 << 20);
    let mut client = platform.client_with(&leased);
    assert_echoes(&client);
    let ps = platform.json(&["ps"]);
    let (node, lease) = (&ps["nodes"][0], &ps["leases"][0]);
    assert_eq!((&node["cores_leased"], &node["memory_leased_bytes"]), (&1.into(), &(64 << 20).into()));
    assert_eq!(node["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(lease["id"], client.lease().unwrap().id);
    assert_eq!((&lease["package"], &lease["cores"]), (&"libcalls".into(), &1.into()));
    let text = String::from_utf8(platform.run(&["ps"]).stdout).unwrap();
    assert!(text.contains(&client.lease().unwrap().id) && text.contains("64 MiB"), "{text}");
    for arguments in [&["ps"][..], &["ps", "--nodes"]] {
        let text = String::from_utf8(platform.run(arguments).stdout).unwrap();
        let (heading, row) = text.split_once('\n').unwrap();
        assert!(heading.trim_end().ends_with("VERSION"), "{text}");
        let row = row.lines().next().unwrap();
        assert!(row.trim_end().ends_with(concat!(" ", env!("CARGO_PKG_VERSION"))), "{text}");
    }
    client.deallocate().unwrap();
    let ps = platform.json(&["ps"]);
    assert_eq!((&ps["nodes"][0]["cores_leased"], ps["leases"].as_array().unwrap().len()), (&0.into(), 0));
    assert_eq!(platform.json(&["ps", "--all"])["leases"][0]["usage"]["calls"], 1);
}

#[test]
fn a_failed_call_exits_with_its_code_and_writes_nothing() {
    let (platform, folder) = (PlatformProcess::start(), tempfile::tempdir().unwrap());
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
    let platform = PlatformProcess::start();
    let name = format!("{}/echo", package("calls.c"));
    let message = platform.assert_refuses(&["call", &name, "--output", "/nonexistent/out"], Code::System);
    assert!(message.contains("/nonexistent/out"), "{message}");
    let full = platform.pipe(&["call", &name, "--output", "/dev/full"], b"hello");
    assert_eq!(full.status.code(), number(Code::StoreFull));
    platform.assert_serves();
}

#[test]
fn an_output_to_a_closed_descriptor_fails() {
    let platform = PlatformProcess::start();
    let name = format!("{}/echo", package("calls.c"));
    let program = platform.command().get_program().to_owned();
    let word = platform.state().join("word");
    fs::write(&word, "hello").unwrap();
    let print = format!("{}/print", package("printing.c"));
    let called = platform.json(&["call", &print, "--input", word.to_str().unwrap(), "--output", "/dev/null"]);
    let lease = called["lease"].as_str().unwrap();
    let logs = ["logs", lease, "--state", platform.state().to_str().unwrap()];
    for words in [&["call", &name, "--output", "-"][..], &["ps"], &["ps", "--json"], &logs] {
        let script = "program=$1; shift; echo hello | \"$program\" \"$@\" >&-";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]).arg(&program).args(words).env("SUBLET_MANAGER", platform.address());
        let closed = shell.output().unwrap();
        let said = String::from_utf8_lossy(&closed.stderr);
        assert_eq!(closed.status.code(), number(Code::System), "{words:?}: {said}");
        assert!(said.contains("standard output") && said.contains("closed"), "{said}");
    }
    // Who throws the output away on purpose is not in error.
    let mut thrown = platform.command();
    thrown.args(["call", &name, "--output", "-"]).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(thrown.status().unwrap().success());
}

#[test]
fn paths_in_errors_cannot_change_the_direction_of_text() {
    let path = "no-such\u{202e}gnp.json";
    for (arguments, escaped) in [
        (&["graph", "show", path][..], r"\u{202e}gnp.json"),
        (&["--json", "graph", "show", path], r"\u202egnp.json"),
        (&["graph", "show", "x", path], r"\u{202e}gnp.json"),
        (&["--json", "graph", "show", "x", path], r"\u202egnp.json"),
    ] {
        let output = sublet().args(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(escaped), "{arguments:?}: {said:?}");
        assert!(!said.contains('\u{202e}'), "{arguments:?}: {said:?}");
    }
}

#[test]
fn usage_lines_name_only_what_is_required() {
    let platform = PlatformProcess::start();
    let refused = platform.run(&["call"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("Usage: sublet call") && !said.contains("--manager"), "{said}");
}

#[test]
fn a_graph_that_is_not_there_has_no_history() {
    let platform = PlatformProcess::start();
    let message = platform.assert_refuses(&["graph", "history", "nosuch"], Code::UnknownGraph);
    assert!(message.contains("nosuch"), "{message}");
    assert_eq!(platform.json(&["graph", "list"]), json!({ "graphs": [] }));
    assert_eq!(platform.json(&["graph", "history"]), json!({ "runs": [] }));
    assert_eq!(platform.json(&["graph", "top"]), json!({ "runs": [] }));
}

#[test]
fn a_log_level_that_does_not_exist_is_refused() {
    let platform = PlatformProcess::start();
    let mut loud = platform.command();
    let refused = loud.args(["ps"]).env("SUBLET_LOG", "loud").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), number(Code::InvalidArgument), "{said}");
    assert!(said.contains("SUBLET_LOG") && said.contains("\"loud\""), "{said}");
    for program in ["manager", "agent"] {
        let state = platform.state().join(program);
        let refused = platform.run(&[program, "--log", "loud", "--state", state.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == number(Code::InvalidArgument) && said.contains("--log"), "{said}");
    }
}

#[test]
fn a_node_lends_at_least_4_mib() {
    let folder = tempfile::tempdir().unwrap();
    for memory in ["0", "1", "4095KiB"] {
        let mut up = sublet();
        up.args(["up", "--memory", memory, "--state"]).arg(folder.path());
        let refused = up.output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), number(Code::InvalidArgument), "{memory}: {said}");
        assert!(said.contains("at least 4194304 bytes"), "{said}");
    }
}

#[test]
fn a_host_without_a_name_is_localhost() {
    let script = "echo '(none)' > /proc/sys/kernel/hostname && exec \"$@\"";
    let platform = PlatformProcess::start_by(|up| {
        let mut own = Command::new("unshare");
        own.args(["--uts", "sh", "-c", script, "sh"]).arg(up.get_program()).args(up.get_args());
        for (variable, value) in up.get_envs() {
            value.map(|value| own.env(variable, value));
        }
        own
    });
    assert_eq!(platform.said["node"]["name"], "localhost");
    // Each of several nodes needs a name of its own.
    let mut agent = Command::new("unshare");
    agent.args(["--uts", "sh", "-c", script, "sh"]).arg(sublet().get_program()).arg("agent");
    let refused = agent.args(["--state"]).arg(platform.state().join("other")).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == number(Code::InvalidArgument) && said.contains("--name"), "{said}");
}

#[test]
fn a_token_file_that_others_may_change_is_warned_of() {
    let platform = PlatformProcess::start();
    let token = platform.state().join("token");
    fs::write(&token, "sublet_0_secret\n").unwrap();
    for (mode, warning) in [(0o666, "changed by other users"), (0o644, "read by other users"), (0o600, "")] {
        fs::set_permissions(&token, Permissions::from_mode(mode)).unwrap();
        let said = platform.run(&["ps", "--token-file", token.to_str().unwrap()]).stderr;
        let said = String::from_utf8_lossy(&said).into_owned();
        assert_eq!(said.contains("token file"), !warning.is_empty(), "{mode:o}: {said}");
        assert!(said.contains(warning), "{mode:o}: {said}");
    }
    fs::set_permissions(&token, Permissions::from_mode(0o666)).unwrap();
    let mut agent = sublet();
    // It ends soon: it cannot lend that many cores.
    agent.args(["agent", "--cores", "99999", "--token-file"]).arg(&token);
    let said = agent.arg("--state").arg(platform.state().join("other")).output().unwrap().stderr;
    assert!(String::from_utf8_lossy(&said).contains("changed by other users"), "{said:?}");
}

#[test]
fn an_unreachable_manager_is_reported_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let ps = |manager: &str, state: &Path| {
        let mut ps = sublet();
        let said = ps.args(["ps", "--manager", manager]).env("SUBLET_STATE", state).output().unwrap().stderr;
        String::from_utf8_lossy(&said).into_owned()
    };
    let own = format!("unix:{}/manager.sock", folder.path().display());
    assert!(ps(&own, folder.path()).contains("start one with: sublet up"));
    // Something listens at the address of this user's own, so starting another would not help.
    let listener = UnixListener::bind(folder.path().join("manager.sock")).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let said = ps(&own, folder.path());
    assert!(said.contains("no manager answers") && !said.contains("start one with"), "{said}");
    // By TLS, and asked without.
    let (ip, port) = free_address();
    let manager = ServerProgram::start("manager", folder.path(), {
        let state = folder.path().join("m");
        move || {
            let mut manager = sublet();
            manager.args(["manager", "--json", "--listen", &format!("{ip}:{port}"), "--state"]).arg(&state);
            manager
        }
    });
    let said = ps(&format!("http://{ip}:{port}"), folder.path());
    assert!(said.contains(&format!("a manager with TLS is reached by https://{ip}:{port}")), "{said}");
    let without_tls = free_address();
    let plain = ServerProgram::start("plain", folder.path(), {
        let state = folder.path().join("p");
        move || {
            let (ip, port) = without_tls;
            let mut manager = sublet();
            manager.args(["manager", "--json", "--tls-mode", "off", "--listen", &format!("{ip}:{port}")]);
            manager.arg("--state").arg(&state);
            manager
        }
    });
    let (ip, port) = without_tls;
    let mut by_tls = sublet();
    by_tls.args(["ps", "--manager", &format!("https://{ip}:{port}"), "--ca"]);
    let said = by_tls.arg(folder.path().join("m/tls/ca.pem")).output().unwrap().stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains(&format!("a manager without TLS is reached by http://{ip}:{port}")), "{said}");
    drop((manager, plain));
    // Another user's.
    let platform = PlatformProcess::start();
    if !rustix::process::getuid().is_root() {
        return;
    }
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(sublet().get_program());
    let said =
        other.args(["ps", "--manager", &platform.address()]).env("SUBLET_STATE", platform.state()).output();
    let said = String::from_utf8_lossy(&said.unwrap().stderr).into_owned();
    assert!(said.contains("it is another user's") && !said.contains("start one with"), "{said}");
}

#[test]
fn manager_is_reached_by_its_advertised_address() {
    let (folder, (ip, port)) = (tempfile::tempdir().unwrap(), free_address());
    let (state, address) = (folder.path().join("m"), format!("https://{ip}:{port}"));
    let _manager = ServerProgram::start("manager", folder.path(), {
        let (state, address) = (state.clone(), address.clone());
        move || {
            let mut manager = sublet();
            manager.args(["manager", "--json", "--advertise", &address, "--listen"]);
            manager.arg(format!("0.0.0.0:{port}")).arg("--state").arg(&state);
            manager
        }
    });
    let mut ps = sublet();
    ps.args(["ps", "--json", "--manager", &address, "--ca"]).arg(state.join("tls/ca.pem"));
    // The certificate is valid for the address, so the manager asks for a token.
    let asked = ps.output().unwrap();
    assert_eq!(asked.status.code(), number(Code::Unauthenticated), "{asked:?}");
}

#[test]
fn platform_serves_without_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" >&-", "sh"]).arg(sublet().get_program());
    let mut up = shell.args(["up", "--python", "none", "--state"]).arg(folder.path()).spawn().unwrap();
    let address = format!("unix:{}/manager.sock", folder.path().display());
    let is_served = || sublet().args(["ps", "--manager", &address]).output().unwrap().status.success();
    wait_until("it serves", || {
        assert!(up.try_wait().unwrap().is_none(), "it has ended");
        is_served()
    });
    // It prints its first line before it looks for a signal: if that ended it, it would not succeed.
    rustix::process::kill_process(Pid::from_child(&up), Signal::INT).unwrap();
    assert!(up.wait().unwrap().success());
}

#[test]
fn completions_are_written_for_each_shell() {
    let platform = PlatformProcess::start();
    for shell in ["bash", "zsh", "fish"] {
        let output = platform.run(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("sublet") && script.contains("deploy"), "{shell}");
    }
    let refused = platform.run(&["completions", "no-such-shell"]);
    assert_eq!(refused.status.code(), number(Code::InvalidArgument));
}
