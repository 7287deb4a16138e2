//! Packages of Node.js as clients and operators see them. A call that fails does not affect other calls.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use sublet::{Allocation, Code, Error, FabricChoice, Invoker, Policy};
use sublet_tests::assert_fails;
use sublet_tests::platform::PlatformProcess;
use sublet_tests::process::wait_until;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

fn platform() -> PlatformProcess {
    PlatformProcess::start_with(|up| {
        up.args(["--listen", "127.0.0.1:0", "--node", "node"]);
    })
}

fn allocation() -> Allocation {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("functions/nodejs");
    Allocation::new(folder.to_str().unwrap()).memory_bytes(128 * MIB)
}

/// A package of these files, with a function `f`.
fn package(manifest: &str, files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let manifest = format!("name = 'p'\nkind = 'nodejs'\n{manifest}\n[[function]]\nname = 'f'\n");
    for (name, text) in files.iter().chain(&[("sublet.toml", manifest.as_str())]) {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn of(folder: &Path) -> Allocation {
    Allocation::new(folder.to_str().unwrap()).memory_bytes(64 * MIB)
}

fn call(client: &Invoker, function: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
    let mut output = vec![0u8; 64 << 10];
    let done = client.submit(function, input, &mut output)?.wait()?;
    output.truncate(done.output_bytes);
    Ok(output)
}

#[track_caller]
fn assert_answers(client: &Invoker, function: &str, input: &[u8], expected: &[u8]) {
    let said = call(client, function, input).unwrap();
    assert_eq!(String::from_utf8_lossy(&said), String::from_utf8_lossy(expected), "{function}");
}

#[test]
fn functions_exchange_bytes_text_and_json() {
    let platform = platform();
    for allocation in [allocation(), allocation().fabric(FabricChoice::Tcp { encrypted: true })] {
        let client = platform.client_with(&allocation);
        for size in [0, 1, 100, 60_000] {
            let input: Vec<u8> = (0..size).map(|at| (at * 7) as u8).collect();
            assert_eq!(call(&client, "echo", &input).unwrap(), input);
        }
        for (kind, expected) in [
            ("nothing", b"".as_slice()),
            ("null", b"null"),
            ("text", "é".as_bytes()),
            ("number", b"1.5"),
            ("object", br#"{"a":[1,"b"]}"#),
            ("words", &[1, 0, 2, 0]),
            ("buffer", &[7, 8]),
            ("view", &[2, 3]),
        ] {
            assert_eq!(call(&client, "kinds", kind.as_bytes()).unwrap(), expected, "{kind}");
        }
        assert_answers(&client, "sum", b"[1, 2, 3.5]", b"6.5");
        assert_answers(&client, "nested", b"", b"deep");
        assert_fails(call(&client, "kinds", b"function"), Code::FunctionFailed, &["returned a function"]);
        assert_fails(call(&client, "kinds", b"cycle"), Code::FunctionFailed, &["TypeError", "circular"]);
        assert_fails(call(&client, "sum", b"[1,"), Code::FunctionFailed, &["nodejs/sum failed: SyntaxError"]);
    }
}

#[test]
fn promises_are_awaited_and_the_event_loop_runs_meanwhile() {
    let platform = platform();
    let client = platform.client_with(&allocation());
    let process = platform.worker();
    for round in 0..3 {
        assert_answers(&client, "later", b"hello", b"hello");
        assert_answers(&client, "read", b"", b"sublet-worker\n");
        let never = call(&client, "never", b"");
        assert_fails(never, Code::FunctionFailed, &["the promise is never settled: no work is left"]);
        assert_answers(&client, "remember", b"", (round + 1).to_string().as_bytes());
    }
    // Work that no call awaits is done while another one waits.
    assert_answers(&client, "loose", b"begin", b"not yet");
    assert_answers(&client, "later", b"hello", b"hello");
    assert_answers(&client, "loose", b"", b"done");
    assert_eq!(platform.worker(), process);
}

#[test]
fn errors_are_those_of_their_calls() {
    let platform = platform();
    let client = platform.client_with(&allocation());
    let process = platform.worker();
    for (function, said) in [
        ("refuse", "nodejs/refuse failed: not today"),
        ("reject", "nodejs/reject failed: Missing: no such thing"),
        (
            "stumble",
            "TypeError: Cannot read properties of undefined (reading 'property') (at exports.stumble (index.js:",
        ),
        ("throw_text", "threw { reason: 'a text' }, which is no Error"),
    ] {
        assert_fails(call(&client, function, b""), Code::FunctionFailed, &[said]);
        assert_answers(&client, "echo", b"hello", b"hello");
    }
    assert_fails(call(&client, "large", b"65537"), Code::OutputTooLarge, &["65537", "65536"]);
    assert_eq!(call(&client, "large", b"65536").unwrap(), [7; 65536]);
    assert_fails(client.function("tools").map(|_| ()), Code::UnknownFunction, &["echo"]);
    assert_eq!(platform.worker(), process);
}

#[test]
fn the_log_has_the_stacks_of_errors_and_printed_text() {
    let platform = platform();
    let client = platform.client_with(&allocation());
    let lease = client.leases()[0].id.to_string();
    assert_answers(&client, "print", b"this", b"");
    assert_fails(call(&client, "reject", b""), Code::FunctionFailed, &["Missing"]);
    wait_until("the log has all of it", || {
        let state = platform.state().to_str().unwrap().to_owned();
        let log = platform.run(&["logs", &lease, "--state", &state]).stdout;
        let log = String::from_utf8_lossy(&log);
        let lines = ["printed this", "complained", "Missing: no such thing", "index.js:", "nor tomorrow"];
        lines[..4].iter().all(|line| log.contains(line))
    });
}

#[test]
fn the_end_of_a_process_ends_only_its_calls() {
    let platform = platform();
    let client = platform.client_with(&allocation());
    for (function, said) in [("quit", "status 3"), ("forget", "status 1"), ("grow", "SIG")] {
        assert_fails(call(&client, function, b""), Code::WorkerDied, &[said]);
        assert_answers(&client, "echo", b"hello", b"hello");
    }
}

#[test]
fn each_core_has_a_process_of_its_own() {
    let platform = platform();
    let cores = platform.cores().min(2);
    let allocation = allocation().cores(cores).memory_bytes(256 * MIB).policy(Policy::AlwaysWarm);
    let client = platform.client_with(&allocation);
    assert_eq!(platform.workers().len() as u32, cores);
    let randoms: Vec<_> = (0..8).map(|_| call(&client, "random", b"").unwrap()).collect();
    let mut distinct = randoms.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), randoms.len(), "copies of one process have random numbers of their own");
}

#[test]
fn modules_of_ecmascript_and_dependencies_are_loaded() {
    let platform = platform();
    let exported = "import { twice } from 'tools';\nimport { basename } from 'node:path';\n\
        export const f = async (input) => twice(basename(input.toString()));\n";
    let tools = "{\"name\": \"tools\", \"type\": \"module\", \"exports\": \"./index.js\"}";
    let dependency = [
        ("node_modules/tools/package.json", tools),
        ("node_modules/tools/index.js", "export const twice = (text) => text + text;\n"),
    ];
    let module = [&[("m.mjs", exported)], &dependency[..]].concat();
    let by_type =
        [&[("m.js", exported), ("package.json", "{\"type\": \"module\"}")], &dependency[..]].concat();
    let by_default = [("m.mjs", "export default { f: (input) => input.toString() + '/b/aa' };\n")];
    for (library, files) in [("m.mjs", &module[..]), ("m.js", &by_type), ("m.mjs", &by_default)] {
        let folder = package(&format!("library = '{library}'"), files);
        let client = platform.client_with(&of(folder.path()));
        assert_answers(&client, "f", b"/b/a", if files.len() > 1 { b"aa" } else { b"/b/a/b/aa" });
    }
}

/// A registry of npm on this machine with one dependency, `tools`, in files that clients keep in this folder.
struct Registry {
    folder: TempDir,
    address: String,
    is_open: Arc<AtomicBool>,
}

const DEPENDENCIES: &str =
    "{\"dependencies\": {\"tools\": \"1.0.0\"}, \"devDependencies\": {\"unused\": \"1.0.0\"}}";

impl Registry {
    /// Serves the file of the dependency to any number of clients.
    fn start() -> Registry {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("package");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("package.json"), "{\"name\": \"tools\", \"version\": \"1.0.0\"}").unwrap();
        fs::write(source.join("index.js"), "exports.twice = (text) => text + text;\n").unwrap();
        let archive = folder.path().join("tools.tgz");
        let mut tar = Command::new("tar");
        let made = tar.arg("-czf").arg(&archive).arg("-C").arg(folder.path()).arg("package").status();
        assert!(made.unwrap().success());
        let archive = fs::read(archive).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let is_open = Arc::new(AtomicBool::new(true));
        let is_serving = Arc::clone(&is_open);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = BufReader::new(client.unwrap());
                let mut line = String::new();
                while client.read_line(&mut line).unwrap_or_default() > 2 {
                    line.clear();
                }
                let (status, body) = if is_serving.load(SeqCst) {
                    ("200 OK", archive.as_slice())
                } else {
                    ("404 Not Found", &[][..])
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                let _ = client.get_mut().write_all(&[head.as_bytes(), body].concat());
            }
        });
        Registry { folder, address, is_open }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Makes every later installation fail.
    fn close(&self) {
        self.is_open.store(false, SeqCst);
        fs::remove_dir_all(self.cache()).unwrap();
    }

    /// A package whose lock file names the dependency; `more` follows in its entry.
    fn package(&self, more: &str) -> TempDir {
        let address = &self.address;
        let entry =
            |more: &str| format!("{{\"version\": \"1.0.0\", \"resolved\": \"{address}/tools.tgz\"{more}}}");
        let lock = format!(
            "{{\"name\": \"p\", \"lockfileVersion\": 3, \"packages\": {{\"\": {DEPENDENCIES}, \
             \"node_modules/tools\": {}, \"node_modules/unused\": {}}}}}",
            entry(more),
            entry(", \"dev\": true")
        );
        // The registry is on this machine, whatever the machine's own configuration is.
        let configuration = format!(
            "registry={address}/\nnoproxy=127.0.0.1\nfetch-retries=0\nupdate-notifier=false\ncache={}\n",
            self.cache().display()
        );
        let module = "exports.f = (input) => require('tools').twice(input.toString());\n";
        let files = [
            ("m.js", module),
            ("package.json", DEPENDENCIES),
            (".npmrc", &configuration),
            ("node_modules/stale/index.js", ""),
            ("package-lock.json", &lock),
        ];
        package("library = 'm.js'", &files)
    }
}

#[test]
fn npm_installs_the_dependencies_of_a_lock_file() {
    let platform = platform();
    let registry = Registry::start();
    let folder = registry.package("");
    let client = platform.client_with(&of(folder.path()));
    assert_answers(&client, "f", b"ab", b"abab");
    let names: Vec<_> = fs::read_dir(folder.path().join("node_modules")).unwrap().collect();
    assert_eq!(names.len(), 1, "the folder itself does not change");
    let wrong = registry.package(", \"integrity\": \"sha512-AAAA\"");
    let refused = platform.invoker().allocate(&of(wrong.path()));
    assert_fails(refused.map(drop), Code::InvalidPackage, &["npm ci", "EINTEGRITY"]);
}

#[test]
fn installs_locked_dependencies_once() {
    let platform = platform();
    let registry = Registry::start();
    let folder = registry.package("");
    let digest = platform.invoker().deploy(folder.path()).unwrap();
    registry.close();
    assert_eq!(platform.invoker().deploy(folder.path()).unwrap(), digest);
    let client = platform.client_with(&of(folder.path()));
    assert_answers(&client, "f", b"ab", b"abab");
    // Installed modules in the folder itself belong to none of its packages.
    fs::write(folder.path().join("node_modules/stale/index.js"), "changed").unwrap();
    assert_eq!(platform.invoker().deploy(folder.path()).unwrap(), digest);
    // Any other file of the package may be a reason to install others.
    for file in ["m.js", "package-lock.json", "sublet.toml", "more.txt"] {
        let path = folder.path().join(file);
        let before = fs::read(&path).unwrap_or_default();
        fs::write(&path, [before.as_slice(), b"\n"].concat()).unwrap();
        let refused = platform.invoker().deploy(folder.path());
        assert_fails(refused.map(drop), Code::InvalidPackage, &["npm ci"]);
        fs::write(&path, before).unwrap();
    }
}

#[test]
fn modules_that_cannot_be_loaded_are_named() {
    let platform = platform();
    for (text, said) in [
        ("require('nowhere')", "Cannot find module 'nowhere'"),
        ("throw null", "p: threw null, which is no Error"),
        ("throw new TypeError('at start')", "p: TypeError: at start (at Object.<anonymous> (m.js:1:7))"),
        ("exports.g = () => 1; exports.h = 2", "the module exports no function \"f\", but g"),
        ("await_something_else()", "ReferenceError: await_something_else is not defined (at Object"),
    ] {
        let folder = package("library = 'm.js'", &[("m.js", text)]);
        let mut client = platform.invoker();
        let refused = client.allocate(&of(folder.path()));
        assert_fails(refused.map(drop), Code::InvalidPackage, &[said]);
    }
    let folder =
        package("library = 'm.mjs'", &[("m.mjs", "export const f = await new Promise(() => {});\n")]);
    let refused = platform.invoker().allocate(&of(folder.path()));
    assert_fails(refused.map(drop), Code::InvalidPackage, &["the promise is never settled"]);
}

#[test]
fn nodes_without_nodejs_are_named() {
    let folder = package("library = 'm.js'", &[("m.js", "exports.f = () => 1\n")]);
    let platform = PlatformProcess::start();
    let refused = platform.invoker().allocate(&of(folder.path()));
    let said = ["p is for nodejs, but no node executes Node.js", "sublet up --node PROGRAM"];
    assert_fails(refused.map(drop), Code::WrongArchitecture, &said);
    drop(platform);
    let platform = self::platform();
    let other = package("library = 'm.js'\nnodejs = { version = '9' }", &[("m.js", "exports.f = () => 1\n")]);
    let refused = platform.invoker().allocate(&of(other.path()));
    assert_fails(refused.map(drop), Code::WrongArchitecture, &["p is for nodejs9, but nodes are nodejs"]);
    let units = platform.json(&["pus"]);
    assert!(units.to_string().contains("\"nodejs2"), "{units}");
}
