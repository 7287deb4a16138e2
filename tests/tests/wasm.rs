//! WebAssembly packages as clients and operators see them: deployed, called and refused like any other. A call that
//! fails does not affect other calls.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use sublet::{Allocation, Code, Completion, Error, FabricChoice, Invoker, Policy};
use sublet_tests::assert_fails;
use sublet_tests::functions::{module, package};
use sublet_tests::platform::{PlatformProcess, assert_echoes, assert_echoes_of_every_size, sublet};
use sublet_tests::process::is_alive;

const MIB: u64 = 1 << 20;

fn allocation(source: &'static str) -> Allocation {
    Allocation::new(module(source).to_str().unwrap()).memory_bytes(64 * MIB)
}

fn call(client: &Invoker, function: &str, input: &[u32]) -> Result<(Completion, [u32; 16]), Error> {
    let mut output = [0u32; 16];
    let done = client.submit(function, input, &mut output)?.wait()?;
    Ok((done, output))
}

/// `modules.c` with a deadline that is soon over, as a package of its own.
fn hurried(folder: &Path) -> Allocation {
    fs::copy(module("modules.c"), folder.join("modules.wasm")).unwrap();
    let manifest = "name = 'hurried'\nlibrary = 'modules.wasm'\n[wasm]\ndeadline_ms = 100\n";
    fs::write(folder.join("sublet.toml"), manifest).unwrap();
    Allocation::new(folder.to_str().unwrap()).memory_bytes(64 * MIB)
}

#[test]
fn one_source_answers_alike_natively_and_as_a_module() {
    let platform = PlatformProcess::start_with(|up| {
        up.args(["--listen", "127.0.0.1:0"]);
    });
    let native = Allocation::new(package("portable.c"));
    let over_tcp = allocation("portable.c").fabric(FabricChoice::Tcp { encrypted: false });
    for allocation in [native, allocation("portable.c"), over_tcp] {
        let mut client = platform.client_with(&allocation);
        assert_echoes_of_every_size(&mut client);
        let (done, output) = call(&client, "room", &[]).unwrap();
        assert_eq!((done.output_bytes, output[0]), (4, 64));
        let refused = client.submit("refuse", b"not today\0", &mut [0u8; 8]).unwrap().wait();
        assert_fails(refused, Code::FunctionFailed, &["portable/refuse", "not today"]);
        assert_fails(call(&client, "boast", &[]), Code::OutputTooLarge, &["65", "64"]);
        assert_fails(client.function("sublet_allocate").map(|_| ()), Code::UnknownFunction, &["echo"]);
        assert_echoes(&client);
        client.deallocate().unwrap();
    }
}

#[test]
fn a_failed_call_ends_alone_and_its_worker_survives() {
    let platform = PlatformProcess::start();
    let folder = tempfile::tempdir().unwrap();
    let client = platform.client_with(&hurried(folder.path()));
    let worker = platform.worker();
    for (function, code, said) in [
        ("spin", Code::DeadlineExceeded, "ran longer than its package allows, 100 ms"),
        ("recurse", Code::FunctionFailed, "trap"),
        ("fall_down", Code::FunctionFailed, "stack"),
        ("trap", Code::FunctionFailed, "unreachable"),
        ("read_outside", Code::FunctionFailed, "out of bounds"),
        ("leave", Code::FunctionFailed, "exited with status 0"),
        ("print_nowhere", Code::FunctionFailed, "outside of its memory"),
    ] {
        assert_fails(call(&client, function, &[]), code, &[&format!("hurried/{function}"), said]);
        assert_eq!(call(&client, "traces", &[3]).unwrap().1[..3], [7, 0, 0], "after {function}");
    }
    assert_eq!(platform.worker(), worker);
    assert!(is_alive(worker));
    platform.assert_serves();
}

#[test]
fn the_lease_limits_memory_and_the_worker_survives() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&allocation("modules.c"));
    let worker = platform.worker();
    for _ in 0..3 {
        let (_, output) = call(&client, "devour", &[16]).unwrap();
        assert!((500..1024).contains(&output[0]), "{} pages of 64 KiB", output[0]);
    }
    let large = client.buffer::<u8>(40 << 20).unwrap();
    let mut output = client.buffer::<u8>(40 << 20).unwrap();
    let refused = client.submit("overflow", &large, &mut output).unwrap().wait();
    assert_fails(refused, Code::MemoryExceeded, &["input and output", "83886"]);
    assert_eq!(call(&client, "divide", &[7]).unwrap().1[0], 1);
    assert_eq!(platform.worker(), worker);
}

#[test]
fn workers_of_several_threads_have_instances_of_their_own() {
    let platform = PlatformProcess::start();
    let cores = platform.cores().min(4);
    let allocation = allocation("modules.c").cores(cores).memory_bytes(256 * MIB).policy(Policy::AlwaysWarm);
    let client = platform.client_with(&allocation);
    let mut outputs = vec![[0u32; 16]; 64];
    let calls: Vec<_> =
        outputs.iter_mut().map(|output| client.submit("traces", &[40u32], output).unwrap()).collect();
    for call in calls {
        assert_eq!(call.wait().unwrap().output_bytes, 12);
    }
    assert!(outputs.iter().all(|output| output[..3] == [7, 0, 0]), "{outputs:?}");
}

#[test]
fn a_module_is_deployed_listed_and_called_by_the_command() {
    let platform = PlatformProcess::start();
    let path = module("portable.c");
    let deployed = platform.json(&["deploy", path.to_str().unwrap()]);
    assert!(deployed["builds"][0]["kind"] == "wasm", "{deployed}");
    assert_eq!(deployed["builds"][0]["architecture"], "wasm32");
    let output = platform.pipe(&["call", "portable/echo", "--input", "-", "--output", "-"], b"by a module");
    assert_eq!(output.stdout, b"by a module", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(platform.json(&["deploy", &package("calls.c")])["builds"][0]["kind"], "native");
}

#[test]
fn an_invalid_module_is_refused_at_deployment_or_lease() {
    let platform = PlatformProcess::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("broken.wasm");
    let whole = fs::read(module("portable.c")).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let message = platform.assert_refuses(&["deploy", path.to_str().unwrap()], Code::InvalidPackage);
    assert!(message.contains("broken.wasm"), "{message}");
    // Code that is no code is found by the compiler, in the worker's sandbox.
    let mut damaged = whole;
    let code = damaged.windows(2).rposition(|pair| pair == [0x20, 0x00]).unwrap();
    damaged[code] = 0xff;
    fs::write(&path, &damaged).unwrap();
    let refused = platform.invoker().allocate(&Allocation::new(path.to_str().unwrap()));
    assert_fails(refused, Code::InvalidPackage, &["broken.wasm cannot be used"]);
    platform.assert_serves();
}

#[test]
fn a_node_names_the_missing_worker_program() {
    let folder = tempfile::tempdir().unwrap();
    let worker = folder.path().join("sublet-worker");
    let original =
        sublet().get_envs().find(|(name, _)| *name == "SUBLET_WORKER").unwrap().1.unwrap().to_owned();
    fs::copy(original, &worker).unwrap();
    let platform = PlatformProcess::start_with(|up| {
        up.env("SUBLET_WORKER", &worker);
    });
    let refused = platform.invoker().allocate(&allocation("portable.c"));
    assert_fails(
        refused,
        Code::System,
        &["portable.wasm is of the kind wasm", "sublet-worker-wasm is missing"],
    );
    platform.assert_serves();
}
