//! Runs of graphs with components on a device, whose memory stays there or is shared with components on processors.
//! The device is PoCL's: the processor.

#![allow(clippy::unwrap_used)]

use std::ffi::OsStr;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use sublet::{Access, Application, Code, News, Outcome, RunOptions};
use sublet_proto::v1::{ComponentUse, Traffic};
use sublet_tests::assert_fails;
use sublet_tests::functions::{kernels, library};
use sublet_tests::graph::{access, compute, document, memory, trigger};
use sublet_tests::platform::{PlatformProcess, kill};
use sublet_tests::process::{PATIENCE, resident_kib};

fn platform() -> PlatformProcess {
    let platform = PlatformProcess::start();
    let kernels = kernels("staying.cl", "", &["mark", "look", "twice", "echo"]);
    let library = library("components.c");
    for package in [kernels.path(), library.as_path()] {
        let deployed = platform.run(&[OsStr::new("deploy"), package.as_os_str()]);
        assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    }
    platform
}

fn kernel(name: &str, function: &str) -> Value {
    json!({
        "name": name, "type": "compute", "package": "staying", "function": function,
        "resources": { "pu": "opencl" },
    })
}

fn entry(mut component: Value) -> Value {
    component["entry"] = json!(true);
    component
}

/// A memory component on the device.
fn on_device(name: &str) -> Value {
    json!({ "name": name, "type": "memory", "medium": "device", "limit_bytes": 4096 })
}

fn application(platform: &PlatformProcess, document: &[u8]) -> Application {
    let options = RunOptions { patience: PATIENCE, retries: 100, ..RunOptions::default() };
    Application::deploy(Access::parse(&platform.address()).unwrap(), document, options).unwrap()
}

/// The first kernel writes a byte behind the length that it reports, so the second sees it only if the data stayed on
/// the device. Between the kernels, another component may be executed.
fn marked(between: bool) -> Vec<u8> {
    let mut components = vec![
        entry(kernel("mark", "mark")),
        kernel("look", "look"),
        compute("show", "show"),
        on_device("kept"),
        memory("shown"),
    ];
    let mut edges = vec![
        trigger("look", "show"),
        access("mark", "kept", "write"),
        access("look", "kept", "read"),
        access("look", "shown", "write"),
        access("show", "shown", "read"),
    ];
    match between {
        false => edges.push(trigger("mark", "look")),
        true => {
            components.push(compute("between", "later"));
            edges.extend([trigger("mark", "between"), trigger("between", "look")]);
        }
    }
    document("marked", &components, &edges)
}

fn of<'outcome>(outcome: &'outcome Outcome, name: &str) -> &'outcome ComponentUse {
    outcome.components.iter().find(|used| used.component == name).unwrap()
}

/// Data that a component moved to and from a memory component.
fn moved(outcome: &Outcome, component: &str, memory: &str) -> Traffic {
    let channels = &of(outcome, component).channels;
    channels
        .iter()
        .find(|channel| channel.memory == memory)
        .and_then(|channel| channel.traffic)
        .unwrap_or_default()
}

#[test]
fn data_between_kernels_never_leaves_the_device() {
    let platform = platform();
    let application = application(&platform, &marked(false));
    for input in [b"5", b"6"] {
        let outcome = application.run(input).unwrap();
        assert_eq!(
            outcome.outputs[0].1,
            [vec![input[0], b'M']],
            "the second kernel sees what the first did not tell of"
        );
        for component in ["mark", "look"] {
            assert_eq!(moved(&outcome, component, "kept"), Traffic::default(), "no byte crosses");
        }
        assert_eq!(of(&outcome, "kept").allocated_bytes, 0, "no segment is leased");
        let written = moved(&outcome, "look", "shown");
        assert_eq!((written.writes, written.written_bytes), (1, 2));
        let read = moved(&outcome, "show", "shown");
        assert_eq!((read.reads, read.read_bytes), (1, 2));
    }
}

#[test]
fn kernels_read_memory_that_other_components_write() {
    let platform = platform();
    let components = [
        entry(compute("fill", "fill")),
        kernel("twice", "twice"),
        compute("show", "show"),
        memory("numbers"),
        memory("shown"),
    ];
    let edges = [
        trigger("fill", "twice"),
        trigger("twice", "show"),
        access("fill", "numbers", "write"),
        access("twice", "numbers", "read"),
        access("twice", "shown", "write"),
        access("show", "shown", "read"),
    ];
    let application = application(&platform, &document("twice", &components, &edges));
    let outcome = application.run(&1000u64.to_le_bytes()).unwrap();
    let numbers: Vec<u8> = (1..=1000u64).flat_map(u64::to_le_bytes).collect();
    assert!(outcome.outputs[0].1 == [[numbers.clone(), numbers].concat()], "the numbers two times");
    assert_eq!(moved(&outcome, "twice", "numbers").read_bytes, 8000);
    assert_eq!(moved(&outcome, "twice", "shown").written_bytes, 16000);
}

#[test]
fn data_that_is_lost_with_its_worker_is_written_again() {
    let platform = platform();
    let application = application(&platform, &marked(true));
    let is_first = AtomicBool::new(true);
    let outcome = application.run_with(b"5", |news| {
        let begins = matches!(news, News::Began { component, .. } if component == "between");
        if begins && is_first.swap(false, Ordering::Relaxed) {
            // That of the kernels, and perhaps that of this component, which then begins again as well.
            platform.workers().into_iter().for_each(|worker| kill(worker, Signal::KILL));
        }
    });
    let outcome = outcome.unwrap();
    assert_eq!(outcome.outputs[0].1, [b"5M".to_vec()]);
    assert!(of(&outcome, "mark").attempts >= 2, "{:?}", of(&outcome, "mark"));
}

/// Whether a worker executes kernels: its program has the kind of the device as its argument.
fn has_kernels(worker: u32) -> bool {
    let line = fs::read(format!("/proc/{worker}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == b"opencl")
}

#[test]
fn lost_data_is_written_again_once() {
    let platform = platform();
    let application = application(&platform, &marked(true));
    let mut killed = 0;
    let outcome = application.run_with(b"5", |news| {
        if matches!(news, News::Began { component, .. } if component == "between") {
            let kernels: Vec<u32> =
                platform.workers().into_iter().filter(|&worker| has_kernels(worker)).collect();
            killed += kernels.len();
            kernels.into_iter().for_each(|worker| kill(worker, Signal::KILL));
        }
    });
    let outcome = outcome.unwrap();
    assert_eq!(outcome.outputs[0].1, [b"5M".to_vec()]);
    let attempts = ["mark", "between"].map(|name| of(&outcome, name).attempts);
    // No second worker is prepared for the kernel that reads, while the one that writes is executed again.
    assert_eq!((killed, attempts), (1, [2, 1]));
}

#[test]
fn device_memory_is_freed_when_no_kernel_needs_it() {
    const COUNT: usize = 9;
    let platform = platform();
    // Each kernel reads what the one before it has written.
    let (mut components, mut edges) = (Vec::new(), Vec::new());
    for at in 0..COUNT {
        let (name, kept) = (format!("echo{at}"), format!("kept{at}"));
        let mut echo = kernel(&name, "echo");
        echo["resources"]["memory_bytes"] = json!(512u64 << 20);
        components.push(if at == 0 { entry(echo) } else { echo });
        let mut kept_memory = on_device(&kept);
        kept_memory["limit_bytes"] = json!(32u64 << 20);
        components.push(kept_memory);
        edges.push(access(&name, &kept, "write"));
        if let Some(before) = at.checked_sub(1) {
            edges.push(trigger(&format!("echo{before}"), &name));
            edges.push(access(&name, &format!("kept{before}"), "read"));
        }
    }
    let application = application(&platform, &document("freed", &components, &edges));
    let mut resident = Vec::new();
    application
        .run_with(b"5", |news| {
            if let News::Ended { .. } = news {
                resident.push(resident_kib(platform.worker()));
            }
        })
        .unwrap();
    assert_eq!(resident.len(), COUNT, "{resident:?}");
    // Two are needed at a time. Without the others, the memory does not grow by one more.
    assert!(resident[COUNT - 1] < resident[2] + (32 << 10), "{resident:?} KiB");
}

#[test]
fn device_memory_takes_no_initial_bytes_of_the_caller() {
    let platform = platform();
    let application = application(&platform, &marked(false));
    let contents = vec![("kept".to_owned(), b"7".to_vec())];
    let refused = application.run_filled(b"5", contents, |_| {}, || true);
    assert_fails(refused, Code::InvalidArgument, &["kept", "is on a device"]);
}
