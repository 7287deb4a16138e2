//! Tests what functions get beside their package: environment variables, secrets, folders that a node lends, and space
//! for temporary files.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use sublet::{Allocation, Code, Error, FabricChoice, Invoker};
use sublet_proto::v1::PackageGrant;
use sublet_tests::assert_fails;
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores, connect};
use sublet_tests::functions::{library, package};
use sublet_tests::platform::PlatformProcess;
use sublet_tests::process::wait_until;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// Value of the secret of these tests, which must be found nowhere.
const VALUE: &str = "correct-horse-battery-staple-7f3a";

fn call(client: &Invoker, function: &str, input: &str) -> Result<String, Error> {
    let mut output = vec![0u8; 64 << 10];
    let done = client.submit(function, input.as_bytes(), &mut output)?.wait()?;
    Ok(String::from_utf8_lossy(&output[..done.output_bytes]).into_owned())
}

#[track_caller]
fn assert_answers(client: &Invoker, function: &str, input: &str, expected: &str) {
    assert_eq!(call(client, function, input).unwrap(), expected, "{function} {input}");
}

/// A package of `needs.c` with a manifest.
fn folder(manifest: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(library("needs.c"), folder.path().join("needs.so")).unwrap();
    let head = "name = 'needs'\nlibrary = 'needs.so'\n";
    fs::write(folder.path().join("sublet.toml"), format!("{head}{manifest}")).unwrap();
    folder
}

fn of(folder: &Path) -> Allocation {
    Allocation::new(folder.to_str().unwrap()).memory_bytes(64 * MIB)
}

/// A package in an interpreter with a function `variable`, which tells the value of an environment variable when its module
/// was imported and when it is called.
fn interpreted(kind: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (file, source) = match kind {
        "python" => (
            "p.py",
            "import os\nFIRST = dict(os.environ)\ndef variable(name):\n    name = bytes(name).decode()\n    \
             return (FIRST.get(name, '-') + ' ' + os.environ.get(name, '-')).encode()\n\
             import time\ndef hour(_):\n    return str(time.localtime(0).tm_hour).encode()\n",
        ),
        _ => (
            "p.js",
            "const first = { ...process.env };\nexports.variable = (name) =>\n  \
             `${first[name] ?? '-'} ${process.env[name] ?? '-'}`;\n\
             exports.hour = () => `${new Date(0).getHours()}`;\n",
        ),
    };
    fs::write(folder.path().join(file), source).unwrap();
    let functions = ["variable", "hour"].map(|name| format!("[[function]]\nname = '{name}'\n")).concat();
    let manifest = format!(
        "name = 'p'\nkind = '{kind}'\nlibrary = '{file}'\n{functions}[environment]\nPACKAGE = 'set'\n"
    );
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    folder
}

#[track_caller]
fn set_secret(platform: &PlatformProcess, name: &str, value: &str) {
    let output = platform.pipe(&["secret", "set", name], value.as_bytes());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!String::from_utf8_lossy(&output.stdout).contains(VALUE));
}

/// Files beneath a folder with these bytes in them.
fn files_with(folder: &Path, bytes: &[u8]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file()
                && fs::read(&path).is_ok_and(|content| content.windows(bytes.len()).any(|part| part == bytes))
            {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn variables_of_a_lease_replace_those_of_its_package() {
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--listen", "127.0.0.1:0"]);
    });
    let folder = folder("[environment]\nLEVEL = '1'\nREGION = 'north'\n");
    for allocation in [of(folder.path()), of(folder.path()).fabric(FabricChoice::Tcp { encrypted: true })] {
        let client = platform.client_with(&allocation.variable("LEVEL", "a=b \"ü\"").variable("EMPTY", ""));
        assert_answers(&client, "variable", "LEVEL", "a=b \"ü\"");
        assert_answers(&client, "variable", "REGION", "north");
        assert_answers(&client, "variable", "EMPTY", "");
        assert_fails(call(&client, "variable", "OTHER"), Code::FunctionFailed, &["not set"]);
    }
    let called = platform.run(&[
        "call",
        &format!("{}/variable", folder.path().display()),
        "--env",
        "LEVEL=7",
        "--input",
        "/dev/null",
    ]);
    assert_eq!(called.status.code(), Some(Code::FunctionFailed.number() as i32), "the name is empty");
    let called = platform
        .pipe(&["call", &format!("{}/variable", folder.path().display()), "--env", "LEVEL=7"], b"LEVEL");
    assert_eq!(called.stdout, b"7", "{}", String::from_utf8_lossy(&called.stderr));
}

/// The Python of the tests.
fn python() -> PathBuf {
    sublet_tests::root().join("target/tools/python/bin/python3")
}

#[test]
fn copies_of_warm_interpreters_see_variables_when_modules_are_imported() {
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--node", "node", "--python"]).arg(python());
    });
    set_secret(&platform, "KEY", VALUE);
    // Each in the form that its language knows without a database of zones.
    for (kind, zone) in [("python", "UTC-5"), ("nodejs", "Etc/GMT-5")] {
        let folder = interpreted(kind);
        let allocation = of(folder.path()).memory_bytes(128 * MIB).variable("LEASE", "set too");
        let allocation = allocation.variable("TZ", zone).secret("K", "KEY");
        let client = platform.client_with(&allocation);
        assert_answers(&client, "variable", "PACKAGE", "set set");
        assert_answers(&client, "variable", "LEASE", "set too set too");
        assert_answers(&client, "variable", "K", &format!("{VALUE} {VALUE}"));
        assert_answers(&client, "variable", "OTHER", "- -");
        assert_answers(&client, "hour", "", "5");
    }
}

#[test]
fn invalid_needs_are_refused_by_name() {
    let platform = PlatformProcess::start();
    let plain = || Allocation::new(package("needs.c")).memory_bytes(64 * MIB);
    for (wrong, code, named) in [
        (plain().variable("1A", "hidden"), Code::InvalidArgument, "1A"),
        (plain().variable("LD_PRELOAD", "hidden"), Code::InvalidArgument, "LD_PRELOAD"),
        (plain().variable("A", "x").variable("A", "y"), Code::InvalidArgument, "A is set twice"),
        (plain().variable("A", "x".repeat(40_000)), Code::InvalidArgument, "40001 bytes"),
        (plain().secret("K", "missing"), Code::InvalidArgument, "no secret \"missing\""),
        (plain().secret("K", "../x"), Code::InvalidArgument, "../x"),
        (plain().folder("datasets"), Code::InsufficientResources, "no node lends folder \"datasets\""),
        (plain().folder("../etc"), Code::InvalidArgument, "../etc"),
        (plain().temporary_bytes(65 * MIB), Code::InvalidArgument, "part of the lease's memory"),
        (plain().temporary_bytes(1), Code::InvalidArgument, "at least"),
    ] {
        let message = assert_fails(platform.invoker().allocate(&wrong), code, &[named]);
        assert!(!message.contains("hidden"), "{message}");
    }
    for (arguments, named) in [
        (&["secret", "remove", "missing"][..], "missing"),
        (&["secret", "set", "a/b", "--file", "/dev/null"], "a/b"),
        (&["secret", "set", "A", "--file", "/dev/null"], "0 bytes"),
    ] {
        let message = platform.assert_refuses(arguments, Code::InvalidArgument);
        assert!(message.contains(named), "{message}");
    }
    let large = platform.pipe(&["secret", "set", "A"], &[b'x'; 20_000]);
    assert!(!large.status.success() && String::from_utf8_lossy(&large.stderr).contains("16384"));
    for (manifest, named) in [
        ("[environment]\nA = 1\n", "A"),
        ("[environment]\nSUBLET_X = ''\n", "SUBLET_X"),
        ("folders = ['..']\n", "\"..\""),
        ("secrets = ['a-b']\n", "a-b"),
    ] {
        let folder = folder(manifest);
        let message =
            platform.assert_refuses(&["deploy", folder.path().to_str().unwrap()], Code::InvalidPackage);
        assert!(message.contains(named), "{message}");
    }
    platform.assert_serves();
}

#[test]
fn secret_is_seen_by_functions_and_found_nowhere_else() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(2));
    let (alice, bob) = (cluster.user("alice"), cluster.user("bob"));
    let client = connect(&alice);
    client.manager().set_secret("db-key", VALUE.to_owned()).unwrap();
    let package = folder("[secrets]\nDB_KEY = 'db-key'\n");
    let mut client = connect(&alice);
    client.allocate(&of(package.path()).secret("OTHER", "db-key")).unwrap();
    assert_answers(&client, "variable", "DB_KEY", VALUE);
    assert_answers(&client, "variable", "OTHER", VALUE);
    let lease = client.leases()[0].id.clone();
    // Neither the environment nor the command line with which a process was started has it.
    let environment = call(&client, "read_file", "/proc/self/environ").unwrap();
    assert!(!environment.contains(VALUE), "{environment}");
    let worker = cluster.agents[0].worker();
    for file in ["environ", "cmdline"] {
        let shown = fs::read(format!("/proc/{worker}/{file}")).unwrap();
        assert!(!String::from_utf8_lossy(&shown).contains(VALUE), "{file}");
    }
    let shown =
        [&["ps", "--json"][..], &["bill", "--json"], &["secret", "list", "--json"], &["pus", "--json"]];
    for arguments in shown {
        let output = cluster.command().args(arguments).output().unwrap();
        assert!(
            output.status.success() && !String::from_utf8_lossy(&output.stdout).contains(VALUE),
            "{arguments:?}"
        );
    }
    client.deallocate().unwrap();
    let bill = format!("{:?}", cluster.final_bill(&lease));
    assert!(!bill.contains(VALUE));
    assert!(!format!("{:?}", cluster.lease(&lease)).contains(VALUE));
    // Both states, and the logs of managers and agents beside them.
    assert_eq!(files_with(cluster.folder(), VALUE.as_bytes()), Vec::<PathBuf>::new());
    assert!(!files_with(cluster.folder(), b"db-key").is_empty(), "the search reads the store");

    // Another tenant neither sees it nor gets it, by its own lease or by the package of the first.
    let other = connect(&bob);
    assert!(other.manager().secrets().unwrap().is_empty());
    assert_fails(other.manager().remove_secret("db-key"), Code::InvalidArgument, &["bob", "db-key"]);
    let mut other = connect(&bob);
    let named = of(package.path()).secret("DB_KEY", "db-key");
    assert_fails(other.allocate(&named), Code::InvalidArgument, &["bob", "db-key"]);
    assert_eq!(connect(&alice).manager().secrets().unwrap()[0].name, "db-key");
}

#[test]
fn package_of_another_tenant_gets_only_named_secrets() {
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(1));
    let (alice, bob) = (cluster.user("alice"), cluster.user("bob"));
    let package = folder("secrets = ['KEY']\n");
    let author = connect(&bob);
    author.manager().set_secret("KEY", "bobs".to_owned()).unwrap();
    let mut author = connect(&bob);
    author.allocate(&of(package.path())).unwrap();
    assert_answers(&author, "variable", "KEY", "bobs");
    author.deallocate().unwrap();
    let deployed = sublet_proto::package::from_files(
        &fs::read_to_string(package.path().join("sublet.toml")).unwrap(),
        vec![sublet_proto::v1::PackageFile {
            path: "needs.so".into(),
            data: fs::read(package.path().join("needs.so")).unwrap(),
            executable: true,
        }],
    );
    author.manager().deploy(sublet_proto::package::encode(&deployed.unwrap())).unwrap();
    let grant = PackageGrant { tenant: "alice".into(), right: 2 };
    author.manager().grant_package("needs", grant).unwrap();
    let mut client = connect(&alice);
    client.manager().set_secret("KEY", "of alice".to_owned()).unwrap();
    let granted = || Allocation::new("bob/needs").memory_bytes(64 * MIB);
    assert_fails(client.allocate(&granted()), Code::PermissionDenied, &["needs", "bob", "\"KEY\""]);
    client.allocate(&granted().secret("KEY", "KEY")).unwrap();
    assert_answers(&client, "variable", "KEY", "of alice");
}

#[test]
fn secrets_survive_the_restart_of_a_manager() {
    let mut cluster = Cluster::start(ClusterPlan::of_managers(2));
    cluster.add_agent(LentCores::cores(2));
    let alice = cluster.user("alice");
    let client = connect(&alice);
    client.manager().set_secret("KEY", VALUE.to_owned()).unwrap();
    drop(client);
    // Managers of one store need the same key: the second has none until it is copied there.
    let (first, second) = (cluster.managers[0].state().to_owned(), cluster.managers[1].state().to_owned());
    let copied = [first.join("secrets.key"), second.join("secrets.key")];
    let (from, to) = if copied[0].exists() { (&copied[0], &copied[1]) } else { (&copied[1], &copied[0]) };
    assert!(from.exists() && !to.exists());
    assert_eq!(fs::metadata(from).unwrap().permissions().mode() & 0o777, 0o600);
    let without = usize::from(to == &copied[1]);
    let mut alone = cluster.access(&cluster.managers[without].address, &cluster.user_token("alice").secret);
    let refused = connect(&alone).manager().set_secret("OTHER", "x".to_owned());
    assert_fails(refused, Code::System, &["secrets.key"]);
    fs::copy(from, to).unwrap();
    connect(&alone).manager().set_secret("OTHER", "x".to_owned()).unwrap();
    for manager in &mut cluster.managers {
        manager.kill();
        manager.restart();
    }
    alone = cluster.access(&cluster.addresses(), &cluster.user_token("alice").secret);
    wait_until("the node is with a manager again", || {
        let mut client = connect(&alone);
        let leased = client.allocate(&Allocation::new(package("needs.c")).secret("K", "KEY"));
        leased.is_ok() && call(&client, "variable", "K").unwrap() == VALUE
    });
    assert_eq!(files_with(cluster.folder(), VALUE.as_bytes()), Vec::<PathBuf>::new());
}

/// A cluster with a node that lends a read-only folder and a scratch folder, and one that lends nothing.
fn lending(folder: &Path) -> Cluster {
    let (data, work) = (folder.join("data"), folder.join("work"));
    fs::create_dir_all(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    fs::write(data.join("numbers"), "1 2 3").unwrap();
    fs::set_permissions(data.join("numbers"), Permissions::from_mode(0o644)).unwrap();
    let settings = format!(
        "[folder.data]\npath = '{}'\n[folder.work]\npath = '{}'\naccess = 'scratch'\n",
        data.display(),
        work.display()
    );
    let file = folder.join("agent.toml");
    fs::write(&file, settings).unwrap();
    let mut cluster = Cluster::start(ClusterPlan::default());
    cluster.add_agent(LentCores::cores(1));
    let config = ["--config", file.to_str().unwrap(), "--temporary", "8MiB"];
    cluster.add_agent_with(LentCores::cores(1), &config);
    cluster
}

#[test]
fn lent_folders_are_read_only_or_the_tenants_own() {
    let outer = tempfile::tempdir().unwrap();
    let cluster = lending(outer.path());
    let (alice, bob) = (cluster.user("alice"), cluster.user("bob"));
    let both = Allocation::new(package("needs.c")).memory_bytes(64 * MIB).folder("data").folder("work");
    let mut client = connect(&alice);
    client.allocate(&both).unwrap();
    assert_eq!(client.leases()[0].node, "node-1", "the other node does not lend them");
    assert_answers(&client, "read_file", "/folders/data/numbers", "1 2 3");
    let read_only = ["Read-only file system"];
    assert_fails(call(&client, "write_file", "/folders/data/numbers"), Code::FunctionFailed, &read_only);
    for path in ["/folders/data/new", "/folders/new"] {
        let refused = call(&client, "write_file", path).unwrap_err().message;
        assert!(refused.contains("Read-only") || refused.contains("denied"), "{path}: {refused}");
    }
    assert_answers(&client, "write_file", "/folders/work/mine", "");
    assert_answers(&client, "status", "/folders/work", "1000 700");
    client.deallocate().unwrap();

    // The file is kept for the tenant's next lease, and is not another tenant's.
    client.allocate(&both).unwrap();
    assert_answers(&client, "read_file", "/folders/work/mine", "written");
    client.deallocate().unwrap();
    let mut other = connect(&bob);
    other.allocate(&both).unwrap();
    assert_fails(call(&other, "read_file", "/folders/work/mine"), Code::FunctionFailed, &["No such file"]);
    assert_answers(&other, "write_file", "/folders/work/mine", "");
    for path in ["/folders/work/../alice/mine", "/folders/work/../../work/alice/mine"] {
        assert!(call(&other, "read_file", path).is_err(), "{path}");
    }
    other.deallocate().unwrap();
    let part = outer.path().join("work/alice");
    assert_eq!(fs::read(part.join("mine")).unwrap(), b"written");
    assert_eq!(fs::metadata(&part).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(outer.path().join("work")).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::read_to_string(outer.path().join("data/numbers")).unwrap(), "1 2 3");

    // Without a request there is no folder, and a request that no node can serve names what is missing.
    other.allocate(&Allocation::new(package("needs.c"))).unwrap();
    assert!(call(&other, "read_file", "/folders/data/numbers").is_err());
    other.deallocate().unwrap();
    assert_fails(other.allocate(&both.clone().folder("tapes")), Code::InsufficientResources, &["\"tapes\""]);
    let two = both.clone().cores(2);
    assert_fails(other.allocate(&two), Code::InsufficientResources, &["2 cores", "offer"]);
    client.allocate(&both).unwrap();
    assert_fails(other.allocate(&both), Code::NoCapacity, &["0 of them free"]);
}

#[test]
fn interpreters_use_lent_folders() {
    let outer = tempfile::tempdir().unwrap();
    let (data, work) = (outer.path().join("data"), outer.path().join("work"));
    fs::create_dir(&data).unwrap();
    fs::write(data.join("numbers"), "1 2 3").unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    let (data, work) = (format!("data={}", data.display()), format!("work={}", work.display()));
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--folder", &data, "--scratch-folder", &work, "--python"]).arg(python());
    });
    let folder = tempfile::tempdir().unwrap();
    let source = "def copy(_):\n    with open('/folders/data/numbers') as read, open('/folders/work/x', 'w') as write:\n        \
                  write.write(read.read())\n    return open('/folders/work/x', 'rb').read()\n\
                  def spoil(_):\n    open('/folders/data/numbers', 'w')\n";
    fs::write(folder.path().join("p.py"), source).unwrap();
    let manifest = "name = 'p'\nkind = 'python'\nlibrary = 'p.py'\nfolders = ['data', 'work']\n\
                    [[function]]\nname = 'copy'\n[[function]]\nname = 'spoil'\n";
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    let client = platform.client_with(&of(folder.path()).memory_bytes(128 * MIB));
    assert_answers(&client, "copy", "", "1 2 3");
    assert_fails(call(&client, "spoil", ""), Code::FunctionFailed, &["Read-only file system"]);
}

#[test]
fn full_temporary_space_is_an_error_of_the_call() {
    let outer = tempfile::tempdir().unwrap();
    let cluster = lending(outer.path());
    let mut client = connect(&cluster.user("alice"));
    let space = |bytes| Allocation::new(package("needs.c")).memory_bytes(128 * MIB).temporary_bytes(bytes);
    client.allocate(&space(4 * MIB)).unwrap();
    let kib = |said: String| said.strip_suffix(" ENOSPC").and_then(|kib| kib.parse::<u64>().ok());
    let filled = kib(call(&client, "fill", "/tmp/x").unwrap());
    assert!(filled.is_some_and(|kib| (3 << 10..=4 << 10).contains(&kib)), "{filled:?} KiB");
    // The worker serves on.
    assert_answers(&client, "write_file", "/tmp/y", "");
    client.deallocate().unwrap();
    client.allocate(&space(100 * MIB)).unwrap();
    assert_eq!(client.leases()[0].node, "node-0", "the other node lends 8 MiB at most");
    let filled = kib(call(&client, "fill", "/tmp/x").unwrap());
    assert!(filled.is_some_and(|kib| kib > 90 << 10), "{filled:?} KiB");
    client.deallocate().unwrap();
    let neither = space(100 * MIB).folder("data");
    assert_fails(client.allocate(&neither), Code::InsufficientResources, &["temporary space"]);
    cluster.assert_serves();
}
