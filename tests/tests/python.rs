//! Packages of Python, as callers of any language and operators see them. The tests of Python callers are in
//! `python/tests`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sublet::{Allocation, Code, FabricChoice};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::platform::{PlatformProcess, assert_echoes, assert_echoes_of_every_size};
use sublet_tests::process::{wait_until, with_growing_time};
use tempfile::TempDir;

const MODULE: &str = "
import os

def echo(input):
    return bytes(input)

def nothing(input):
    return None

def fails(input):
    raise ValueError('what is wrong')

def leaves(input):
    os._exit(7)

def takes(input):
    return len(bytearray(1 << 40))

def far(input):
    import math
    return str(math.factorial(int(bytes(input)))).encode()
";

/// A package of that module, with more in its manifest.
fn package(more: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("words.py"), MODULE).unwrap();
    let functions = ["echo", "nothing", "fails", "leaves", "takes", "far"];
    let functions: String = functions.iter().map(|name| format!("[[function]]\nname = '{name}'\n")).collect();
    let manifest = format!("name = 'words'\nkind = 'python'\nlibrary = 'words.py'\n{functions}{more}");
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    folder
}

fn allocation(package: &TempDir) -> Allocation {
    Allocation::new(package.path().to_str().unwrap()).memory_bytes(64 << 20)
}

fn platform() -> PlatformProcess {
    let python = sublet_tests::root().join("target/tools/python/bin/python3");
    PlatformProcess::start_with(|up| {
        up.arg("--python").arg(python).args(["--listen", "127.0.0.1:0"]);
    })
}

#[test]
fn callers_of_any_language_call_functions_in_python_with_bytes() {
    let platform = platform();
    let package = package("");
    let mut client = platform.client_with(&allocation(&package));
    assert_echoes(&client);
    assert_echoes_of_every_size(&mut client);
    let call = |function: &str, input: &[u8], output: &mut [u8]| {
        client.submit(function, input, output)?.wait().map(|done| done.output_bytes)
    };
    assert_eq!(call("nothing", b"", &mut []).unwrap(), 0);
    let mut output = [0; 64];
    assert_eq!((call("far", b"10", &mut output).unwrap(), &output[..7]), (7, b"3628800".as_slice()));
    assert_fails(call("echo", b"long", &mut [0; 3]), Code::OutputTooLarge, &["4 bytes", "3"]);
    assert_fails(
        call("fails", b"", &mut []),
        Code::FunctionFailed,
        &["words/fails", "ValueError: what is wrong"],
    );
    assert_fails(call("takes", b"", &mut []), Code::MemoryExceeded, &["words/takes"]);
    assert_fails(call("leaves", b"", &mut []), Code::WorkerDied, &["status 7", "words/leaves"]);
    assert_echoes(&client);
    assert_fails(call("absent", b"", &mut []), Code::UnknownFunction, &["absent"]);
}

#[test]
fn the_command_calls_them_and_each_worker_is_a_lease() {
    let platform = platform();
    let package = package("");
    platform.json(&["deploy", package.path().to_str().unwrap()]);
    let output = package.path().join("output");
    let called = platform.pipe(&["call", "words/echo", "-o", output.to_str().unwrap()], b"said in Python");
    assert!(called.status.success(), "{}", String::from_utf8_lossy(&called.stderr));
    assert_eq!(fs::read(output).unwrap(), b"said in Python");
    let client = platform.client_with(&allocation(&package).cores(2));
    assert_eq!((client.leases().len(), client.workers()), (2, 2));
    assert_eq!(platform.workers().len(), 2);
    let shown = platform.run(&["ps"]);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("python3."), "{shown:?}");
}

/// A package of that module that imports another one, which is in the package if it has a text.
fn importing(module: &str, text: Option<&str>) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("words.py"), MODULE).unwrap();
    if let Some(text) = text {
        fs::write(folder.path().join(format!("{module}.py")), text).unwrap();
    }
    let function = "[[function]]\nname = 'echo'\n";
    let manifest = format!(
        "name = 'words'\nkind = 'python'\nlibrary = 'words.py'\n{function}[python]\nimports = ['{module}']\n"
    );
    fs::write(folder.path().join("sublet.toml"), manifest).unwrap();
    folder
}

#[test]
fn caller_of_the_command_limits_a_start() {
    let platform = platform();
    let package = importing("endless", Some("import threading\nthreading.Event().wait()\n"));
    platform.json(&["deploy", package.path().to_str().unwrap()]);
    let input = package.path().join("sublet.toml");
    let output = package.path().join("output");
    let files = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
    // Within a short time a slow machine may not come to the import.
    with_growing_time(Duration::from_secs(3), |limit| {
        let seconds = limit.as_secs();
        let call = ["call", "words/echo", "--start-timeout", &format!("{seconds}s")];
        let said = platform.assert_refuses(&[&call[..], &files].concat(), Code::DeadlineExceeded);
        assert!(said.contains(&format!("did not start within {seconds} s")), "{said}");
        said.contains("importing endless").then_some(())
    });
}

/// The Python of the tests, with a module of this name beside its own.
fn python_with(folder: &Path, module: &str, text: &str) -> PathBuf {
    let python = sublet_tests::root().join("target/tools/python/bin/python3");
    let made = Command::new(python).args(["-m", "venv", "--without-pip"]).arg(folder).status();
    assert!(made.unwrap().success());
    let library = fs::read_dir(folder.join("lib")).unwrap().next().unwrap().unwrap().path();
    fs::write(library.join(format!("site-packages/{module}.py")), text).unwrap();
    folder.join("bin/python3")
}

#[test]
fn leases_take_processes_that_have_imported_modules_with_threads() {
    if !Means::Controller("memory").is_here() || !Means::Controller("cpuset").is_here() {
        skip(Means::Controller("memory"), "without control groups no process is put on standby");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n";
    let python = python_with(&folder.path().join("environment"), "threaded", text);
    let platform = PlatformProcess::start_with(|up| {
        up.arg("--python").arg(&python).args(["--cores", "2", "--memory", "1GiB", "--standby", "256MiB"]);
    });
    let nodes = platform.json(&["ps"]);
    assert_eq!(nodes["nodes"][0]["memory_bytes"], 768 << 20, "standby is not lent: {nodes}");
    let package = importing("threaded", None);
    let allocation = allocation(&package).memory_bytes(128 << 20);
    let takes_standby = |allocation: &Allocation| {
        let mut client = platform.client_with(allocation);
        let mut output = [0; 8];
        let done = client.submit("echo", &b"threaded"[..], &mut output[..]).unwrap().wait().unwrap();
        assert_eq!((done.output_bytes, &output), (8, b"threaded"));
        let is_warm = client.cold_imports().is_none();
        client.deallocate().unwrap();
        is_warm
    };
    // Processes wait only for modules that are known to fit into no template.
    wait_until("a process waits, and the manager knows", || {
        takes_standby(&allocation);
        let standby = &platform.json(&["ps"])["nodes"][0]["standby"][0];
        standby["modules"] == "threaded" && standby["waiting"].as_u64() > Some(0)
    });
    wait_until("a lease takes a process that waits", || takes_standby(&allocation));
    let with_variable = allocation.clone().variable("LEVEL", "3");
    assert!(!takes_standby(&with_variable), "modules may read variables when they are imported");
    wait_until("people see what waits", || {
        let shown = platform.run(&["ps"]);
        String::from_utf8_lossy(&shown.stdout).contains("for leases with threaded imported")
    });
}

#[test]
fn reports_what_the_node_or_the_module_lacks() {
    let platform = platform();
    let refused = |more: &str, code: Code, named: &[&str]| {
        assert_fails(platform.invoker().allocate(&allocation(&package(more))), code, named);
    };
    refused("[python]\nversion = '3.5'\n", Code::WrongArchitecture, &["python3.5", "python3."]);
    refused("[python]\nimports = ['no_such_module']\n", Code::InvalidPackage, &["no_such_module"]);
    refused("[[function]]\nname = 'absent'\n", Code::InvalidPackage, &["absent"]);
    refused("[[function]]\nname = 'os'\n", Code::InvalidPackage, &["os", "cannot be called"]);
    let without = PlatformProcess::start();
    let taken = without.invoker().allocate(&allocation(&package("")));
    assert_fails(taken, Code::WrongArchitecture, &["words", "python"]);
}

#[test]
fn over_a_network_they_are_the_same() {
    let platform = platform();
    let package = package("");
    for encrypted in [false, true] {
        let tcp = FabricChoice::Tcp { encrypted };
        let mut client = platform.client_with(&allocation(&package).fabric(tcp.clone()));
        assert_eq!(client.fabrics(), [tcp]);
        assert_echoes(&client);
        assert_echoes_of_every_size(&mut client);
    }
}
