//! The configuration of `sublet manager` and `sublet agent`, as an operator meets it: what holds, and what is refused.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use sublet_proto::Code;
use tempfile::TempDir;

/// A configuration file in a folder of its own.
struct Case {
    _folder: TempDir,
    file: PathBuf,
}

impl Case {
    fn new(text: &str) -> Case {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        Case { _folder: folder, file }
    }

    fn run(&self, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = sublet();
        command.args([program, "--print-config", "--json", "--config"]).arg(&self.file).args(arguments);
        command.envs(environment.iter().copied()).output().unwrap()
    }

    /// Value and source of each key.
    fn holds(&self, program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> ConfigDocument {
        let output = self.run(program, arguments, environment);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        ConfigDocument(shown["configuration"].as_array().unwrap().clone())
    }

    fn refused(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments, &[]);
        assert_eq!(output.status.code(), Some(Code::InvalidArgument.number() as i32), "{output:?}");
        assert!(output.stdout.is_empty());
        let error: Value = serde_json::from_slice(&output.stderr).unwrap();
        error["error"]["message"].as_str().unwrap().to_owned()
    }
}

struct ConfigDocument(Vec<Value>);

impl ConfigDocument {
    fn of(&self, key: &str) -> (&str, &str) {
        let line = self.0.iter().find(|line| line["key"] == key).unwrap_or_else(|| panic!("no {key}"));
        (line["value"].as_str().unwrap_or("nothing"), line["from"].as_str().unwrap())
    }
}

fn sublet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sublet"));
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("SUBLET_") {
            command.env_remove(variable);
        }
    }
    command
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

#[test]
fn flag_overrides_environment_overrides_file_overrides_default() {
    let case = Case::new("log = 'debug'\n[price]\ncompute = 1\npolling = 1\nallocation = 1\n");
    let environment =
        [("SUBLET_PRICE_POLLING", "2"), ("SUBLET_PRICE_ALLOCATION", "2"), ("SUBLET_LISTEN", "")];
    let held = case.holds("manager", &["--price-allocation", "3"], &environment);
    let file = case.file.display();
    assert_eq!(held.of("store.kind"), ("embedded", "default"));
    assert_eq!(held.of("listen"), ("0.0.0.0:7433", "default"), "a variable set to nothing says nothing");
    assert_eq!(held.of("price.compute"), ("1", format!("{file}:3").as_str()));
    assert_eq!(held.of("price.polling"), ("2", "SUBLET_PRICE_POLLING"));
    assert_eq!(held.of("price.allocation"), ("3", "--price-allocation"));
    assert_eq!(held.of("advertise"), ("nothing", "default"));
}

#[test]
fn lists_may_be_arrays_commas_or_repeated_flags() {
    let case = Case::new("listen = ['127.0.0.1:1', '[::1]:2']\n");
    assert_eq!(case.holds("manager", &[], &[]).of("listen").0, "127.0.0.1:1,[::1]:2");
    let environment = [("SUBLET_LISTEN", "127.0.0.1:3, 127.0.0.1:4")];
    assert_eq!(case.holds("manager", &[], &environment).of("listen").1, "SUBLET_LISTEN");
    let flags = ["--listen", "127.0.0.1:5", "--listen", "127.0.0.1:6"];
    assert_eq!(
        case.holds("manager", &flags, &environment).of("listen"),
        ("127.0.0.1:5,127.0.0.1:6", "--listen")
    );
}

#[test]
fn secrets_are_hidden() {
    let case = Case::new("[store]\nkind = 'nats'\nurl = 'nats://me:very-secret@host:4222'\n");
    let output = case.run("manager", &[], &[]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("@host:4222") && !shown.contains("very-secret"), "{shown}");
    let output = Case::new("").run("agent", &[], &[("SUBLET_TOKEN", "sublet_1_very-secret")]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("SUBLET_TOKEN") && !shown.contains("very-secret"), "{shown}");
}

#[test]
fn errors_name_line_key_and_allowed_values() {
    for (program, text, named) in [
        ("manager", "\nlistn = []", &["config.toml:2", "listn", "listen"][..]),
        ("manager", "[tls]\nkye = 'k'", &["config.toml:2", "tls.kye", "tls.key"]),
        ("manager", "listen = 7433", &["config.toml:1", "listen", "a list of texts"]),
        ("manager", "listen = ['host']", &["config.toml:1", "listen", "0.0.0.0:7433"]),
        ("manager", "price.compute = '20'", &["config.toml:1", "price.compute", "whole number"]),
        ("manager", "store.kind = 'etcd'", &["config.toml:1", "store.kind", "embedded or nats"]),
        ("manager", "state = 'a", &["config.toml:1"]),
        ("agent", "\n\ncores = 'four'", &["config.toml:3", "cores", "whole number"]),
        ("agent", "memory = 'much'", &["config.toml:1", "memory", "64MiB"]),
        ("agent", "idle_timeout = '5'", &["config.toml:1", "idle_timeout", "10s"]),
        ("agent", "clients = 'friends'", &["config.toml:1", "clients", "own-user", "all-users"]),
        ("agent", "[device.cuda]\ncdi = 'gpu'", &["config.toml:2", "device.cuda.cdi", "vendor.com/class"]),
        ("agent", "[device.x]\nnodes = ['/dev/../x']", &["config.toml:2", "device.x.nodes", "/dev/../x"]),
        ("agent", "managers = ['http://198.51.100.1:1']", &["config.toml:1", "managers", "https"]),
    ] {
        let error = Case::new(text).refused(program, &[]);
        assert!(named.iter().all(|part| error.contains(part)), "{text:?}: {error}");
    }
}

#[test]
fn values_that_contradict_each_other_are_refused_with_both_names() {
    for (program, text, flags, named) in [
        ("manager", "store.url = 'nats://a'", &[][..], &["config.toml:1", "store.url", "store.kind"][..]),
        ("manager", "store.kind = 'nats'", &[], &["store.url", "--store-url"]),
        ("manager", "tls.certificate = 'c'", &[], &["tls.key", "--tls-key"]),
        (
            "manager",
            "[tls]\nmode = 'generated'\ncertificate = 'c'\nkey = 'k'",
            &[],
            &["config.toml:3", "tls.mode"],
        ),
        ("manager", "tls.mode = 'off'", &[], &["config.toml:1", "tls.mode", "0.0.0.0:7433", "loopback"]),
        ("manager", "queue.total = 1", &["--queue-per-tenant", "2"], &["--queue-per-tenant", "queue.total"]),
        (
            "agent",
            "[device.x]\ncdi = 'a.com/b'\nnodes = ['/dev/y']",
            &[],
            &["config.toml:3", "device.x.nodes", "cdi"],
        ),
        ("agent", "shared_places = 2", &[], &["config.toml:1", "shared_places", "shared_cores"]),
        (
            "agent",
            "shared_cores = 3",
            &["--shared-places", "2"],
            &["--shared-places", "number of shared cores (3)"],
        ),
        ("agent", "token = 't'\ntoken_file = 'f'", &[], &["config.toml:1", "config.toml:2"]),
    ] {
        let error = Case::new(text).refused(program, flags);
        assert!(named.iter().all(|part| error.contains(part)), "{text:?} {flags:?}: {error}");
    }
}

#[test]
fn the_documented_examples_are_taken() {
    for (program, file) in [("manager", "manager.toml"), ("agent", "agent.toml")] {
        let config = examples().join(file);
        let output = sublet().args([program, "--print-config", "--config"]).arg(&config).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let output =
        sublet().args(["agent", "--print-config", "--config", "/nonexistent.toml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(Code::System.number() as i32));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent.toml"));
}

#[test]
fn an_agent_that_does_not_run_cannot_be_told() {
    let folder = tempfile::tempdir().unwrap();
    for wanted in ["--drain", "--reclaim", "--lend"] {
        let output = sublet().args(["agent", wanted, "--state"]).arg(folder.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(Code::AgentUnreachable.number() as i32), "{output:?}");
    }
    for flags in [&["--drain", "--lend"][..], &["--drain", "--grace", "5s"], &["--grace", "5s"]] {
        let output = sublet().arg("agent").args(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(Code::InvalidArgument.number() as i32), "{flags:?}");
    }
}

#[test]
fn variable_that_overrides_the_file_is_logged() {
    let case = Case::new("managers = ['https://m:1']\n");
    let mut agent = sublet();
    // The log starts before the values are read, one of which is wrong.
    agent
        .args(["agent", "--cores", "many", "--config"])
        .arg(&case.file)
        .env("SUBLET_MANAGER", "unix:/m.sock");
    let said = String::from_utf8(agent.output().unwrap().stderr).unwrap();
    assert!(said.contains("SUBLET_MANAGER overrides managers in "), "{said}");
}
