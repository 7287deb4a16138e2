//! The real `sublet` command, as users and scripts see it. No function is called here.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sublet_proto::Code;
use tempfile::TempDir;

fn sublet(state: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
    // Workers are not started by any of these tests.
    command.env("SUBLET_STATE", state).env("SUBLET_WORKER", "/bin/true").env_remove("SUBLET_MANAGER");
    command
}

/// A running `sublet up`, killed at the end.
struct Up {
    process: Child,
    said: Value,
}

impl Up {
    fn start(state: &Path) -> Up {
        let mut process = sublet(state)
            .args(["up", "--json", "--cores", "1", "--memory", "512MiB", "--name", "here"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Up { process, said: serde_json::from_str(&line).unwrap_or_else(|_| panic!("it said {line:?}")) }
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        self.process.wait().unwrap().code()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(state: &Path, arguments: &[&str]) -> Output {
    sublet(state).args(arguments).output().unwrap()
}

fn json(state: &Path, arguments: &[&str]) -> Value {
    let output = run(state, &[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn fails(state: &Path, arguments: &[&str], code: Code) -> String {
    let output = run(state, arguments);
    assert_eq!(output.status.code(), Some(code.number() as i32), "{arguments:?}");
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

fn library(folder: &TempDir) -> String {
    let (source, object) = (folder.path().join("x.c"), folder.path().join("libx.so"));
    std::fs::write(&source, "unsigned f(void* in, unsigned size, void* out) { return size; }").unwrap();
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&object).arg(&source).status().unwrap();
    assert!(made.success(), "cc failed");
    object.display().to_string()
}

#[test]
fn second_terminal_lists_the_node_and_deploys_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut up = Up::start(&state);
    assert_eq!(up.said["manager"], format!("unix:{}/manager.sock", state.display()));
    assert_eq!((&up.said["node"]["name"], &up.said["node"]["cores"]), (&"here".into(), &1.into()));

    let deployed = json(&state, &["deploy", &library(&folder)]);
    assert_eq!((&deployed["known"], &deployed["functions"][0]), (&false.into(), &"libx/f".into()));
    assert_eq!(json(&state, &["deploy", &library(&folder)])["known"], true);

    let ps = json(&state, &["ps"]);
    assert_eq!((&ps["packages"][0]["name"], &ps["nodes"][0]["cores_leased"]), (&"libx".into(), &0.into()));
    assert_eq!(json(&state, &["bill"])["total"]["total_nano"], 0);
    let text = String::from_utf8(run(&state, &["ps"]).stdout).unwrap();
    assert!(text.contains("libx/f") && text.contains("0 of 1"), "{text}");

    assert!(fails(&state, &["bill", "nothing"], Code::UnknownLease).contains("nothing"));
    assert_eq!(up.signal(Signal::TERM), Some(0));
    assert!(!state.join("manager.sock").exists());
}

#[test]
fn second_up_on_one_folder_reports_the_owners_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path());
    let error = fails(folder.path(), &["up"], Code::AlreadyRunning);
    assert!(error.contains(&up.process.id().to_string()), "{error}");
    assert_eq!(up.signal(Signal::INT), Some(0));
}

#[test]
fn backs_up_the_running_store_of_a_relative_state_folder() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut up = Up::start(&state);
    let backup = sublet(&state)
        .current_dir(folder.path())
        .args(["store", "backup", "copy.sqlite", "--state", "state"])
        .output()
        .unwrap();
    assert!(backup.status.success(), "{}", String::from_utf8_lossy(&backup.stderr));
    assert!(folder.path().join("copy.sqlite").exists());
    assert_eq!(up.signal(Signal::TERM), Some(0));
}

#[test]
fn what_a_killed_up_leaves_behind_is_cleared_away() {
    let folder = tempfile::tempdir().unwrap();
    Up::start(folder.path()).signal(Signal::KILL);
    assert!(folder.path().join("manager.sock").exists());
    let mut up = Up::start(folder.path());
    assert_eq!(json(folder.path(), &["ps"])["nodes"][0]["name"], "here");
    assert_eq!(up.signal(Signal::TERM), Some(0));
}

#[test]
fn errors_have_a_code_in_text_json_and_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let error = fails(folder.path(), &["ps"], Code::ManagerUnreachable);
    assert!(error.starts_with("error[manager_unreachable]: ") && error.contains("sublet up"), "{error}");
    let error = fails(folder.path(), &["deploy", "/nonexistent", "--json"], Code::InvalidArgument);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(
        (&error["error"]["code"], &error["error"]["number"]),
        (&"invalid_argument".into(), &10.into())
    );
    let error = fails(folder.path(), &["ps", "--manager", "tcp://host", "--json"], Code::InvalidArgument);
    assert!(error.contains("unix:/path"), "{error}");
    let error = fails(folder.path(), &["up", "--memory", "much", "--json"], Code::InvalidArgument);
    assert!(error.contains("64MiB"), "{error}");
    fails(folder.path(), &["nonsense"], Code::InvalidArgument);
}

#[test]
fn operator_creates_and_revokes_tokens_and_sets_quotas() {
    let folder = tempfile::tempdir().unwrap();
    let mut up = Up::start(folder.path());
    let state = folder.path();
    let made =
        json(state, &["token", "create", "--tenant", "alice", "--lifetime", "30d", "--note", "laptop"]);
    let (id, secret) = (made["id"].as_str().unwrap(), made["secret"].as_str().unwrap());
    assert!(secret.starts_with(&format!("sublet_{id}_")), "{secret}");
    let lifetime_ms = made["expires_unix_ms"].as_u64().unwrap() - made["created_unix_ms"].as_u64().unwrap();
    assert_eq!(lifetime_ms, 30 * 24 * 3600 * 1000);
    let listed = run(state, &["token", "list"]).stdout;
    let listed = String::from_utf8(listed).unwrap();
    assert!(listed.contains(id) && listed.contains("laptop") && !listed.contains(secret), "{listed}");
    assert!(json(state, &["token", "revoke", secret])["revoked_unix_ms"].as_u64() > Some(0));
    assert_eq!(json(state, &["token", "list"])["tokens"].as_array().unwrap().len(), 0);
    assert_eq!(json(state, &["token", "list", "--all"])["tokens"][0]["id"], id);

    let quota = ["tenant", "set", "alice", "--cores", "4", "--memory", "1GiB", "--spend", "2.5"];
    assert_eq!(json(state, &quota)["spend_limit_nano"], 2_500_000_000u64);
    let changed = json(state, &["tenant", "set", "alice", "--cores", "none", "--leases", "2"]);
    let limits = ["cores_limit", "memory_limit_bytes", "leases_limit"].map(|limit| changed[limit].as_u64());
    assert_eq!(limits, [None, Some(1 << 30), Some(2)]);
    let tenants = json(state, &["tenant", "list"]);
    assert!(tenants["tenants"].as_array().unwrap().iter().any(|tenant| tenant["name"] == "alice"));
    assert_eq!(up.signal(Signal::TERM), Some(0));
}

#[test]
fn requests_that_make_no_sense_reach_no_manager() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, named) in [
        (&["token", "create"][..], "--tenant"),
        (&["token", "create", "--role", "agent"], "--node"),
        (&["token", "create", "--tenant", "a", "--max-cores", "4"], "--role agent"),
        (&["token", "create", "--tenant", "a", "--lifetime", "soon"], "10s"),
        (&["tenant", "set", "a", "--spend", "1,5"], "12.50"),
        (&["tenant", "set", "a", "--cores", "many"], "none"),
        (&["bill", "--from", "yesterday"], "-2h"),
        (&["bill", "--from", "2026-01-02", "--to", "2026-01-01"], "--from"),
        (&["bill", "--period", "1h"], "--by period"),
        (&["ps", "--manager", "http://198.51.100.1:7433"], "https"),
        (&["ps", "--manager", "https://localhost:7433", "--token-file", "/nonexistent"], "/nonexistent"),
    ] {
        let error = fails(folder.path(), arguments, Code::InvalidArgument);
        assert!(error.contains(named), "{arguments:?}: {error}");
    }
}

#[test]
fn more_than_the_machine_has_cannot_be_lent() {
    let folder = tempfile::tempdir().unwrap();
    fails(folder.path(), &["up", "--cores", "100000"], Code::InsufficientResources);
}

#[test]
fn every_command_explains_itself_with_an_example() {
    let folder = tempfile::tempdir().unwrap();
    for command in [
        "up",
        "manager",
        "agent",
        "deploy",
        "ps",
        "profile",
        "lease",
        "bill",
        "token",
        "tenant",
        "bench",
        "completions",
        "manual",
    ] {
        let help = run(folder.path(), &[command, "--help"]);
        assert!(
            help.status.success() && String::from_utf8_lossy(&help.stdout).contains("Examples:"),
            "{command}"
        );
    }
    let script = run(folder.path(), &["completions", "bash"]).stdout;
    assert!(String::from_utf8_lossy(&script).contains("complete"));
}

#[test]
fn profile_is_executed_by_the_named_python() {
    let folder = tempfile::tempdir().unwrap();
    let module = folder.path().join("sublet");
    std::fs::create_dir(&module).unwrap();
    std::fs::write(module.join("__init__.py"), "").unwrap();
    std::fs::write(module.join("profile.py"), "import sys\nprint(*sys.argv[1:])\n").unwrap();
    let profile = |python: &Path| {
        let arguments = ["--json", "profile", "--app", "a", "app.py", "--json"];
        let mut command = sublet(folder.path());
        command.args(arguments).env("SUBLET_PYTHON", python).env("PYTHONPATH", folder.path());
        command.output().unwrap()
    };
    let said = profile(Path::new("python3"));
    assert_eq!(String::from_utf8(said.stdout).unwrap(), "--json --app a app.py --json\n");
    // Programs in place of an interpreter: one succeeds whatever it is to do, and one prints what it is to execute.
    let (succeeds, prints) = (Path::new("/bin/true"), Path::new("/bin/echo"));
    let (lacks, missing) = ("does not have the package sublet", folder.path().join("none"));
    for (python, named) in [(succeeds, lacks), (prints, lacks), (missing.as_path(), "none")] {
        let output = profile(python);
        assert_eq!(output.status.code(), Some(Code::InvalidArgument.number() as i32));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(named) && error.contains("SUBLET_PYTHON"), "{error}");
        assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn manual_has_a_page_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    assert!(run(folder.path(), &["manual", pages.to_str().unwrap()]).status.success());
    for (page, words) in
        [("sublet.1", "sublet\\-up(1)"), ("sublet-up.1", ".SH OPTIONS"), ("sublet-token-create.1", "tenant")]
    {
        let text = std::fs::read_to_string(pages.join(page)).unwrap();
        assert!(text.contains(words), "{page} lacks {words:?}: {text}");
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    let file = folder.path().join("file");
    fails(folder.path(), &["manual", file.to_str().unwrap()], Code::InvalidArgument);
}
