//! Tests that idle processes use no processor time: counted in ticks, over some seconds.

#![allow(clippy::unwrap_used)]

use std::thread::sleep;
use std::time::{Duration, Instant};

use sublet::{Allocation, Policy};
use sublet_tests::functions::package;
use sublet_tests::platform::{PlatformProcess, assert_echoes};
use sublet_tests::process::{TICKS_PER_SECOND, cpu_ticks, thread_states, wait_until};

const WATCHED: Duration = Duration::from_secs(5);

/// Processor time that processes use while they are watched, in hundredths of a core.
fn percent_of_a_core(pids: [u32; 2]) -> f64 {
    let ticks = || pids.map(cpu_ticks).iter().sum::<u64>();
    let (before, since) = (ticks(), Instant::now());
    sleep(WATCHED);
    (ticks() - before) as f64 * 100.0 / (since.elapsed().as_secs_f64() * TICKS_PER_SECOND as f64)
}

#[test]
fn an_idle_platform_uses_under_1_percent_of_a_core() {
    let platform = PlatformProcess::start();
    let allocation = Allocation::new(package("calls.c"));
    let mut client =
        platform.client_with(&allocation.clone().policy(Policy::HotFor(Duration::from_millis(5))));
    for _ in 0..100 {
        assert_echoes(&client);
    }
    let worker = platform.worker();
    wait_until("the worker falls asleep", || thread_states(worker, "worker 0") == ['S']);
    let idle = percent_of_a_core([platform.pid(), worker]);
    println!("sublet up and a warm worker: {idle:.2}% of a core");
    assert!(idle < 1.0, "{idle}% of a core");

    // The same measurement sees a worker that polls.
    client.deallocate().unwrap();
    client.allocate(&allocation.policy(Policy::AlwaysHot)).unwrap();
    let worker = platform.worker();
    let before = cpu_ticks(worker);
    wait_until("a hot worker uses its core", || cpu_ticks(worker) >= before + TICKS_PER_SECOND / 20);
}
