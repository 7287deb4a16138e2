//! Packages of several builds as clients and operators see them: each checked when it is deployed, the cheapest that is free
//! taken, and any by its name.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use sublet::{Allocation, Code, Invoker};
use sublet_tests::cluster::{Cluster, ClusterPlan, LentCores};
use sublet_tests::functions::{library, module};
use sublet_tests::platform::{PlatformProcess, assert_echoes};
use sublet_tests::process::wait_until;
use sublet_tests::{assert_fails, root};
use tempfile::TempDir;

const NATIVE: &str = "[[build]]\nlibrary = 'native.so'\n";
const FOREIGN: &str = "[[build]]\nlibrary = 'foreign.so'\n";
const WASM: &str = "[[build]]\nlibrary = 'portable.wasm'\n";
const OPENCL: &str = "[[build]]\nkind = 'opencl'\nlibrary = 'kernels.cl'\n";
const ON_PROCESSORS: &str = "[[profile]]\npu = 'cpu'\n";
const ON_DEVICES: &str = "[[profile]]\npu = 'opencl'\nspeed = 4\nmemory_bytes = 33554432\n";
/// Time in which earlier leases end.
const PATIENCE: Duration = Duration::from_secs(180);
/// Memory that costs little beside a core, at the default prices.
const MIB: u64 = 1 << 20;

/// One function, `echo`, in these builds.
fn package(builds: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |file: &str, bytes: &[u8]| fs::write(folder.path().join(file), bytes).unwrap();
    let native = fs::read(library("portable.c")).unwrap();
    put("native.so", &native);
    put("foreign.so", &for_another_processor(native));
    put("portable.wasm", &fs::read(module("portable.c")).unwrap());
    put("kernels.cl", &fs::read(root().join("tests/functions/kernels.cl")).unwrap());
    let function = "[[function]]\nname = 'echo'\n";
    let bytes = if builds.contains(&OPENCL) { "bytes_per_item = 1\n" } else { "" };
    let manifest = format!("name = 'many'\n{function}{bytes}{}", builds.concat());
    put("sublet.toml", manifest.as_bytes());
    folder
}

/// The same shared object, said to be for aarch64 here, and for x86-64 there.
fn for_another_processor(mut object: Vec<u8>) -> Vec<u8> {
    const MACHINE: usize = 18;
    let other: u16 = if cfg!(target_arch = "x86_64") { 183 } else { 62 };
    object[MACHINE..MACHINE + 2].copy_from_slice(&other.to_le_bytes());
    object
}

fn allocation(package: &TempDir) -> Allocation {
    Allocation::new(package.path().to_str().unwrap()).memory_bytes(64 * MIB)
}

/// Checks that calls are answered, and returns the processing unit and the build that execute a client's calls.
fn ran_on(client: &Invoker) -> (String, u32) {
    assert_echoes(client);
    let lease = client.lease().unwrap();
    (lease.pu, lease.build)
}

fn is(pu: &str, build: u32) -> (String, u32) {
    (pu.to_owned(), build)
}

#[test]
fn each_build_is_called_by_its_processing_units_name() {
    let platform = PlatformProcess::start();
    let many = package(&[WASM, NATIVE, OPENCL]);
    let path = many.path().to_str().unwrap();
    let deployed = platform.json(&["deploy", path]);
    let kinds: Vec<_> = deployed["builds"].as_array().unwrap().iter().map(|build| &build["kind"]).collect();
    assert_eq!(kinds, ["wasm", "native", "opencl"]);
    let output = many.path().join("output");
    let call = |more: &[&str]| {
        let mut words = vec!["call", "many/echo", "--output", output.to_str().unwrap(), "--json"];
        words.extend(more);
        let called = platform.pipe(&words, b"by any of them");
        assert!(called.status.success(), "{}", String::from_utf8_lossy(&called.stderr));
        assert_eq!(fs::read(&output).unwrap(), b"by any of them");
        let called: serde_json::Value = serde_json::from_slice(&called.stdout).unwrap();
        (called["pu"].as_str().unwrap().to_owned(), called["build"].as_u64().unwrap() as u32)
    };
    assert_eq!(call(&[]), is("cpu", 0), "of builds at one price the first");
    assert_eq!(call(&["--pu", "cpu"]), is("cpu", 0));
    assert_eq!(call(&["--pu", "opencl"]), is("opencl", 2));
    let refused = |pu: &str, code: Code| {
        platform.assert_refuses(&["call", "many/echo", "-o", output.to_str().unwrap(), "--pu", pu], code)
    };
    let message = refused("cuda", Code::WrongArchitecture);
    assert!(message.contains("many has no build for cuda, but for wasm32, "), "{message}");
    refused("abacus", Code::InsufficientResources);
    let bill = platform.json(&["bill"]);
    let units: Vec<_> = bill["leases"].as_array().unwrap().iter().map(|line| &line["pu"]).collect();
    assert_eq!(units, ["opencl", "cpu", "cpu"], "{bill}");
}

#[test]
fn a_build_for_another_processor_is_passed_over() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&allocation(&package(&[FOREIGN, NATIVE])));
    assert_eq!(ran_on(&client), is("cpu", 1));
    let client = platform.client_with(&allocation(&package(&[FOREIGN, WASM])));
    assert_eq!(ran_on(&client), is("cpu", 1));
    let foreign = package(&[FOREIGN]);
    platform.assert_refuses(&["deploy", foreign.path().to_str().unwrap()], Code::WrongArchitecture);
}

#[test]
fn deploying_reports_what_is_wrong_with_any_build() {
    let platform = PlatformProcess::start();
    let refused = |builds: &[&str], damaged: Option<&str>, code: Code, said: &str| {
        let package = package(builds);
        if let Some(file) = damaged {
            let path = package.path().join(file);
            let whole = fs::read(&path).unwrap();
            fs::write(path, &whole[..whole.len() / 2]).unwrap();
        }
        let message = platform.assert_refuses(&["deploy", package.path().to_str().unwrap()], code);
        assert!(message.contains(said), "{message}");
    };
    refused(&[NATIVE, WASM], Some("portable.wasm"), Code::InvalidPackage, "portable.wasm");
    refused(&[NATIVE, FOREIGN], Some("foreign.so"), Code::InvalidPackage, "foreign.so");
    refused(&[NATIVE, "[[build]]\nlibrary = 'absent.so'\n"], None, Code::InvalidPackage, "absent.so");
    refused(&[NATIVE, NATIVE], None, Code::InvalidPackage, "are both for");
    let named = "[[build.function]]\nname = 'echo'\nsymbol = 'nothing'\n";
    refused(&[NATIVE, WASM, named], None, Code::MissingSymbol, "portable.wasm does not export");
    refused(&[NATIVE, OPENCL, "[[build.function]]\nname = 'ecko'\n"], None, Code::InvalidPackage, "ecko");
}

/// A manager for which computing on a device has this price; on a processor it is 20000.
fn priced(compute_nano: u32) -> (Cluster, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let prices = folder.path().join("manager.toml");
    fs::write(&prices, format!("[price.pu.opencl]\ncompute = {compute_nano}\n")).unwrap();
    let arguments = vec!["--config".to_owned(), prices.display().to_string()];
    (Cluster::start(ClusterPlan { arguments, ..ClusterPlan::default() }), folder)
}

#[test]
fn the_requests_weights_choose_the_cheaper_or_faster_profile() {
    let (mut cluster, folder) = priced(100_000);
    cluster.add_agent_with(LentCores::cores(2), &["--devices", "opencl"]);
    let both = package(&[NATIVE, OPENCL, ON_PROCESSORS, ON_DEVICES]);
    let lease = |package: &TempDir, time_weight: f64| {
        let mut client = cluster.invoker();
        let wanted =
            Allocation::new(package.path().to_str().unwrap()).time_weight(time_weight).wait(PATIENCE);
        client.allocate(&wanted).map(|()| {
            assert_echoes(&client);
            client.lease().unwrap()
        })
    };
    // A second's work costs a fifth more than it costs on a processor and takes a fourth of the time.
    let cheap = lease(&both, 0.0).unwrap();
    assert_eq!((cheap.pu.as_str(), cheap.build), ("cpu", 0));
    let explained =
        cheap.choice.starts_with("by price: cpu (20") && cheap.choice.contains("is taken, opencl (25");
    assert!(explained, "{}", cheap.choice);
    let fast = lease(&both, 1.0).unwrap();
    assert_eq!((fast.pu.as_str(), fast.build, fast.memory_bytes), ("opencl", 1, 32 * MIB));
    assert!(fast.choice.starts_with("by time: opencl (25") && fast.choice.contains("speed 4) is taken"));
    for wrong in [-0.1, 1.1, f64::NAN] {
        assert_fails(lease(&both, wrong), Code::InvalidArgument, &["thousandths that time counts"]);
    }
    // Without a profile, a lease goes to a processing unit of another kind only when the client asks for it.
    let one = lease(&package(&[NATIVE, OPENCL, ON_DEVICES]), 0.0).unwrap();
    assert_eq!((one.pu.as_str(), one.choice.as_str()), ("opencl", ""));

    let (path, output) = (both.path().to_str().unwrap(), folder.path().join("output"));
    let input = folder.path().join("sublet.toml");
    fs::write(&input, "what is echoed").unwrap();
    cluster.json(&["deploy", path]);
    let called = |weight: &str| {
        let files = [&input, &output].map(|file| file.to_str().unwrap());
        cluster.json(&[
            "call",
            "many/echo",
            "-i",
            files[0],
            "-o",
            files[1],
            "--time-weight",
            weight,
            "--wait",
            "180s",
        ])
    };
    for (weight, pu, by) in
        [("0", "cpu", "by price: "), ("0.9", "opencl", "by price and, to 90 %, by time: ")]
    {
        let called = called(weight);
        assert_eq!(called["pu"], pu);
        assert!(called["choice"].as_str().unwrap().starts_with(by), "{called}");
    }
    cluster.wait_until_idle();
    let bill = cluster.json(&["bill", "--by", "pu"]);
    let shares: Vec<_> =
        bill["pus"].as_array().unwrap().iter().map(|line| line["pu"].as_str().unwrap()).collect();
    assert_eq!(shares.iter().collect::<BTreeSet<_>>(), [&"cpu", &"opencl"].into(), "{bill}");
}

#[test]
fn the_cheapest_free_unit_is_taken_first() {
    let (mut cluster, _folder) = priced(1_000);
    cluster.add_agent_with(LentCores::cores(1), &["--devices", "opencl"]);
    cluster.add_agent_with(LentCores::cores(1), &["--devices", "none"]);
    wait_until("both nodes are there", || cluster.managers[0].nodes().len() == 2);
    let many = package(&[NATIVE, OPENCL]);
    let lease = || {
        let mut client = cluster.invoker();
        client.allocate(&allocation(&many)).map(|()| client)
    };
    let first = lease().unwrap();
    assert_eq!(ran_on(&first), is("opencl", 1));
    let second = lease().unwrap();
    assert_eq!(ran_on(&second), is("cpu", 0));
    assert_fails(lease(), Code::NoCapacity, &["opencl: ", "cpu/", "0 of 1 free"]);
    let price = |client: &Invoker| client.lease().unwrap().price.unwrap().compute_nano_per_core_s;
    assert_eq!([price(&first), price(&second)], [1_000, 20_000]);
    drop(first);
    wait_until("the device is free", || lease().is_ok_and(|third| ran_on(&third) == is("opencl", 1)));
}
