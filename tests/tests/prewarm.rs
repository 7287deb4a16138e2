//! Environments that are prepared ahead: a component's worker is leased while the component before it runs (Scad's tau).

#![allow(clippy::unwrap_used)]

use std::sync::OnceLock;
use std::thread::scope;
use std::time::{Duration, Instant};

use serde_json::json;
use sublet::{Access, Application, News, RunOptions};
use sublet_tests::functions::library;
use sublet_tests::graph::{compute_with, document, trigger};
use sublet_tests::platform::PlatformProcess;
use sublet_tests::process::PATIENCE;

const MIB: u64 = 1 << 20;

/// A component that lasts two seconds, and one after it that cannot have its worker.
fn two() -> Vec<u8> {
    let of = |mib: u64| json!({ "resources": { "memory_bytes": mib * MIB } });
    let mut first = of(64);
    first["entry"] = json!(true);
    let components = [compute_with("first", "linger", &first), compute_with("second", "later", &of(96))];
    document("two", &components, &[trigger("first", "second")])
}

/// Runs the graph, and returns the time from the begin of its first component until a second worker was leased, if that
/// was before the first component had ended.
fn leased_ahead(platform: &PlatformProcess, prewarm: Option<Duration>) -> Option<Duration> {
    let access = Access::parse(&platform.address()).unwrap();
    let options = RunOptions { prewarm, patience: PATIENCE, ..RunOptions::default() };
    let application = Application::deploy(access, &two(), options).unwrap();
    let (client, began, mut ahead) = (platform.invoker(), OnceLock::new(), None);
    let workers = || client.manager().leases().unwrap().iter().filter(|lease| lease.cores > 0).count();
    let has_ended = || {
        let runs = client.manager().runs_going_on("two", 1).unwrap();
        let run = runs.first().map(|run| run.run.clone());
        run.is_none_or(|run| !client.manager().read_run(&run, 0).unwrap().entries.is_empty())
    };
    scope(|scope| {
        let run = scope.spawn(|| {
            let begins = |news: &News| {
                if let News::Began { component, .. } = news
                    && component == "first"
                {
                    let _ = began.set(Instant::now());
                }
            };
            application.run_with(b"\0x", begins).unwrap()
        });
        while !run.is_finished() && ahead.is_none() {
            // Looked at in this order, what was leased was leased before the component ended.
            if workers() > 1 && !has_ended() {
                ahead = Some(began.get().map_or(Duration::ZERO, Instant::elapsed));
            }
        }
        assert_eq!(run.join().unwrap().outputs[0].1, [b"\0x".to_vec()]);
    });
    ahead
}

#[test]
fn prepares_a_component_while_the_one_before_it_runs() {
    let platform = PlatformProcess::start();
    let deployed = platform.command().arg("deploy").arg(library("components.c")).output().unwrap();
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    assert!(leased_ahead(&platform, Some(Duration::ZERO)).is_some(), "nothing was prepared");
    assert_eq!(leased_ahead(&platform, None), None, "it was prepared although it should not");
    // On a machine that stands still it may be prepared when the first component has ended, but never earlier than tau.
    let tau = Duration::from_secs(1);
    let ahead = leased_ahead(&platform, Some(tau));
    assert!(ahead.is_none_or(|ahead| ahead >= tau), "{ahead:?} after the first component began");
}
