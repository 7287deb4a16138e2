//! Tests calls: hot, warm and cold, copied and not, one and many, waited for in every way, and their cost.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::Value;
use sublet::{Allocation, CallOptions, Code, InputMemory, Invoker, OutputMemory, Policy};
use sublet_means::{Means, skip};
use sublet_tests::assert_fails;
use sublet_tests::executor::block_on;
use sublet_tests::functions::package;
use sublet_tests::platform::{PlatformProcess, assert_echoes, assert_more_calls_than_slots};
use sublet_tests::process::{PATIENCE, thread_states, wait_until};

fn calls() -> Allocation {
    Allocation::new(package("calls.c"))
}

/// Calls `add_index` with words in any memory, and checks each value.
fn check_values(
    client: &Invoker,
    input: &(impl InputMemory + ?Sized),
    output: &mut (impl InputMemory + OutputMemory + ?Sized),
) {
    let done = client.submit("add_index", input, output).unwrap().wait().unwrap();
    let (input, output) = (words(input), words(output));
    assert_eq!(done.output_bytes, 4 * input.len());
    let expected = input.iter().enumerate().map(|(index, value)| value.wrapping_add(index as u32));
    assert!(output.iter().copied().take(input.len()).eq(expected));
}

fn words(memory: &(impl InputMemory + ?Sized)) -> Vec<u32> {
    let bytes = memory.shared_bytes().to_vec();
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

/// Calls that wait for something that does not happen end, and the test with them.
fn patient() -> CallOptions {
    CallOptions { deadline: Some(Instant::now() + PATIENCE), ..CallOptions::default() }
}

/// Usage of the only lease that has not ended, as the manager knows it, once a report has arrived.
fn bill(platform: &PlatformProcess) -> Value {
    let mut usage = Value::Null;
    wait_until("the lease is on the bill", || {
        let bill = platform.json(&["bill"]);
        let mut lines = bill["leases"].as_array().into_iter().flatten();
        let running = lines.find(|line| line["state"] != "ended");
        usage = running.map(|line| line["usage"].clone()).unwrap_or_default();
        !usage.is_null()
    });
    usage
}

/// Waits for a report of the agent that was made after this one.
fn later_bill(platform: &PlatformProcess, earlier: &Value) -> Value {
    let mut now = Value::Null;
    wait_until("the agent reports", || {
        now = bill(platform);
        now["allocated_ns"].as_u64() > earlier["allocated_ns"].as_u64()
    });
    now
}

#[test]
fn a_worker_starts_cold_and_says_when_it_reached_what() {
    let platform = PlatformProcess::start();
    assert!(platform.workers().is_empty());
    let client = platform.client("calls.c");
    let cold = client.cold_start().unwrap();
    // The new process may run before its agent learns that it was spawned.
    for step in [cold.spawned_ns, cold.entered_ns] {
        let steps = [cold.asked_ns, cold.requested_ns, cold.package_ready_ns, step, cold.ready_ns];
        assert!(steps[0] > 0 && steps.is_sorted(), "{cold:?}");
    }
    assert!(cold.entered_ns < cold.loaded_ns && cold.loaded_ns < cold.ready_ns, "{cold:?}");
    assert_eq!(platform.workers().len(), 1);
    assert_echoes(&client);
}

#[test]
fn a_hot_worker_polls_and_a_warm_worker_sleeps() {
    let platform = PlatformProcess::start();
    let mut client = platform.invoker();
    for (policy, state) in [(Policy::AlwaysHot, 'R'), (Policy::AlwaysWarm, 'S')] {
        client.allocate(&calls().policy(policy)).unwrap();
        assert_echoes(&client);
        let worker = platform.worker();
        wait_until("the worker waits as its policy says", || thread_states(worker, "worker 0") == [state]);
        assert_echoes(&client);
        let usage = client.deallocate().unwrap();
        assert_eq!((usage.calls, usage.polling_ns > 0), (2, policy == Policy::AlwaysHot), "{usage:?}");
    }
}

#[test]
fn a_hot_worker_becomes_warm_and_polls_after_a_call() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&calls().policy(Policy::HotFor(Duration::from_millis(20))));
    let worker = platform.worker();
    for _ in 0..2 {
        assert_echoes(&client);
        wait_until("the worker falls asleep", || thread_states(worker, "worker 0") == ['S']);
    }
    let asleep = later_bill(&platform, &bill(&platform));
    let still = later_bill(&platform, &asleep);
    let polled_ms = |bill: &Value| bill["polling_ns"].as_u64().unwrap() / 1_000_000;
    // The same, but for the last digits: the agent knows the rate of the counter better and better.
    assert!(polled_ms(&still) <= polled_ms(&asleep) + 1, "{asleep} {still}");
    assert!(polled_ms(&still) >= 2 * 20, "after each of two calls it polled for that long: {still}");
    assert_echoes(&client);
    wait_until("it polls after a call", || polled_ms(&bill(&platform)) >= polled_ms(&still) + 19);
}

#[test]
fn executing_polling_and_allocated_time_are_accounted_apart() {
    let platform = PlatformProcess::start();
    for (policy, polls) in [(Policy::AlwaysHot, true), (Policy::AlwaysWarm, false)] {
        let mut client = platform.client_with(&calls().policy(policy));
        let lease = client.lease().unwrap().id.clone();
        let options = CallOptions { timed: true, ..patient() };
        let (busy, ms) = (client.function("busy").unwrap(), [30u32]);
        let done = client.submit_with(busy, &ms, &mut [0u8; 0], options).unwrap().wait().unwrap();
        assert!(done.executing >= Duration::from_millis(29), "{done:?}");
        let nanoseconds = |field: &str| bill(&platform)[field].as_u64().unwrap();
        // A warm worker looks once more before it sleeps.
        wait_until("the worker waits as its policy says", || {
            thread_states(platform.worker(), "worker 0") == [if polls { 'R' } else { 'S' }]
        });
        let (polled, allocated) = (nanoseconds("polling_ns"), nanoseconds("allocated_ns"));
        wait_until("it waits for 30 ms", || {
            let (field, before) = if polls { ("polling_ns", polled) } else { ("allocated_ns", allocated) };
            nanoseconds(field) >= before + 30_000_000
        });
        let usage = client.deallocate().unwrap();
        assert_eq!((usage.calls, usage.failed_calls), (1, 0));
        assert!(usage.executing_ns >= 29_000_000, "{usage:?}");
        // The agent knows the rate of the counter better and better.
        assert_eq!(usage.polling_ns >= polled + 29_000_000, polls, "{polled} ns polled before: {usage:?}");
        assert!(usage.allocated_ns >= 59_000_000, "{usage:?}");
        assert!(usage.executing_ns + usage.polling_ns <= usage.allocated_ns, "{usage:?}");

        let bill = platform.json(&["bill", &lease]);
        let line = &bill["leases"][0];
        assert_eq!((&line["lease"], &line["state"]), (&lease.into(), &"ended".into()));
        assert_eq!(line["usage"]["executing_ns"], usage.executing_ns);
        assert_eq!(line["usage"]["polling_ns"], usage.polling_ns);
        let [allocation, compute, polling, total] =
            ["allocation_nano", "compute_nano", "polling_nano", "total_nano"]
                .map(|field| line[field].as_u64().unwrap());
        assert_eq!(allocation + compute + polling, total);
        assert!(allocation > 0 && compute > 0 && (!polls || polling > 0), "{line}");
    }
    let bill = platform.json(&["bill"]);
    let sum: u64 =
        bill["leases"].as_array().unwrap().iter().map(|line| line["total_nano"].as_u64().unwrap()).sum();
    assert_eq!(bill["total"]["total_nano"], sum);
}

#[test]
fn allocating_ahead_of_time_charges_no_polling_when_warm() {
    let platform = PlatformProcess::start();
    let mut client = platform.client_with(&calls().policy(Policy::AlwaysWarm));
    // Starting is computing; sleeping is not.
    let nanoseconds = |bill: &Value, field: &str| bill[field].as_u64().unwrap();
    wait_until("only allocated time grows", || {
        let bill = bill(&platform);
        nanoseconds(&bill, "executing_ns") < nanoseconds(&bill, "allocated_ns") / 2
    });
    let usage = client.deallocate().unwrap();
    assert_eq!((usage.polling_ns, usage.calls), (0, 0), "{usage:?}");
    assert!(usage.executing_ns < usage.allocated_ns / 2, "{usage:?}");
}

#[test]
fn an_early_release_frees_the_cores_at_once() {
    let platform = PlatformProcess::start();
    let all = calls().cores(platform.cores());
    let mut client = platform.invoker();
    for _ in 0..5 {
        client.allocate(&all).unwrap();
        assert_echoes(&client);
        client.deallocate().unwrap();
        assert!(platform.workers().is_empty());
    }
    let leases = platform.json(&["ps", "--all"])["leases"].take();
    assert!(leases.as_array().unwrap().iter().all(|lease| lease["state"] == "ended"), "{leases}");
}

#[test]
fn call_numbers_wrap_without_a_wrong_result() {
    /// The immediate value of a call holds 16 bits of its number.
    const CALLS: u32 = (1 << 16) + 5000;
    let platform = PlatformProcess::start();
    let client = platform.client_with(&calls().policy(Policy::HotFor(Duration::from_millis(50))));
    let mut input = client.buffer::<u32>(2).unwrap();
    let mut output = client.buffer::<u32>(2).unwrap();
    for number in 0..CALLS {
        input.copy_from_slice(&[number, !number]);
        client.submit("add_index", &input, &mut output).unwrap().wait().unwrap();
        assert_eq!([output.get(0), output.get(1)], [number, (!number).wrapping_add(1)]);
    }
}

#[test]
fn more_calls_than_slots_wait_for_a_slot() {
    let platform = PlatformProcess::start();
    let mut client = platform.client_with(&calls().slots(4));
    assert_more_calls_than_slots(&client);
    assert_eq!(client.deallocate().unwrap().calls, 200);
}

#[test]
fn results_that_are_not_collected_are_bounded_in_number() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let mut calls: Vec<_> =
        (0..1024).map(|_| client.submit::<[u8], [u8]>("noop", &[], &mut []).unwrap()).collect();
    let refused = client.submit::<[u8], [u8]>("noop", &[], &mut []).map(|_| ());
    assert_fails(refused, Code::TooManyInFlight, &["1024", "worker 0"]);
    calls.pop().unwrap().wait().unwrap();
    assert_echoes(&client);
    for call in calls {
        call.wait().unwrap();
    }
}

#[test]
fn the_allocators_memory_is_the_functions_memory() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let mut words = client.buffer::<u32>(3).unwrap();
    words.fill(0);
    let converse = client.function("converse").unwrap();
    let mut output = [0u8; 0];
    let mut call = client.submit_with(converse, &words, &mut output, patient()).unwrap();
    wait_until("the function says that it runs", || words.atomic(0).load(Ordering::Acquire) == 1);
    assert!(!call.is_ready());
    words.atomic(1).store(41, Ordering::Release);
    call.wait().unwrap();
    assert_eq!(words.to_vec(), [1, 41, 42]);
}

#[test]
fn other_memory_is_copied_whole_at_any_size_and_alignment() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&calls().slot_bytes(100_000));
    let bytes: Vec<u8> = (0..100_008u32).map(|n| ((n * 31) >> 3) as u8).collect();
    let mut output = vec![0u8; 100_008];
    for (offset, len) in [(0, 1), (1, 63), (3, 64), (5, 65), (7, 4095), (1, 4097), (2, 99_999), (8, 100_000)]
    {
        output.fill(0xee);
        let (input, room) = (&bytes[offset..offset + len], &mut output[offset..]);
        let done = client.submit("echo", input, room).unwrap().wait().unwrap();
        assert_eq!((done.output_bytes, &output[offset..offset + len]), (len, input));
        assert!(output[..offset].iter().chain(&output[offset + len..]).all(|&byte| byte == 0xee));
    }
}

#[test]
fn input_and_output_may_each_be_the_allocators_or_not() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let (mine, mut mine_out) = (vec![5u32; 1000], vec![0u32; 1000]);
    let mut own = client.buffer::<u32>(1000).unwrap();
    own.fill(6);
    let mut own_out = client.buffer::<u32>(1000).unwrap();
    check_values(&client, &mine, &mut mine_out);
    check_values(&client, &mine, &mut own_out);
    check_values(&client, &own, &mut mine_out);
    check_values(&client, &own, &mut own_out);
    // A piece of a buffer is the buffer's memory as well.
    check_values(&client, &own.part(3..500), &mut own_out.part_mut(7..));
}

#[test]
fn buffers_may_be_older_than_the_lease_and_outlive_it() {
    let platform = PlatformProcess::start();
    let mut client = platform.invoker();
    let mut before = client.buffer::<u32>(1000).unwrap();
    before.fill(9);
    let mut output = client.buffer::<u32>(1000).unwrap();
    for _ in 0..2 {
        client.allocate(&calls()).unwrap();
        check_values(&client, &before, &mut output);
        let mut during = client.buffer::<u32>(1000).unwrap();
        during.copy_from_slice(&output.to_vec());
        check_values(&client, &during, &mut output);
        client.deallocate().unwrap();
    }
}

#[test]
fn the_allocator_grows_under_a_live_lease() {
    /// More than the allocator's first region, 64 MiB, has left.
    const VALUES: usize = 12 << 20;
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let worker = platform.worker();
    let mut buffers: Vec<_> = (0..4).map(|_| client.buffer::<u32>(VALUES).unwrap()).collect();
    for buffer in &mut buffers {
        // Its two ends; the rest stays untouched, and takes no memory.
        let [head, tail] = [0, VALUES - 1000];
        for at in [head, tail] {
            buffer.part_mut(at..at + 1000).fill(at as u32 + 1);
            let mut output = vec![0u32; 1000];
            check_values(&client, &buffer.part(at..at + 1000), &mut output);
        }
    }
    assert_eq!(platform.worker(), worker, "it did not take another worker");
}

#[test]
fn several_workers_execute_different_functions_at_once() {
    let platform = PlatformProcess::start();
    if platform.cores() < 2 {
        skip(Means::Cores(2), "this machine has one core");
        return;
    }
    let client = platform.client_with(&calls().cores(2));
    assert_eq!(client.workers(), 2);
    let mut words = client.buffer::<u32>(2).unwrap();
    for (first, second) in [(0, 1), (1, 0)] {
        words.fill(0);
        let submit = |name, worker, output| {
            let options = CallOptions { worker: Some(worker), ..patient() };
            client.submit_with::<_, [u8]>(client.function(name).unwrap(), &words, output, options).unwrap()
        };
        // Each of them waits for the other.
        let calls = [submit("meet_first", first, &mut []), submit("meet_second", second, &mut [])];
        for call in calls {
            call.wait().unwrap();
        }
    }
    // Without being told, calls go to whichever is idle.
    words.fill(0);
    let calls = ["meet_first", "meet_second"].map(|name| {
        client.submit_with::<_, [u8]>(client.function(name).unwrap(), &words, &mut [], patient()).unwrap()
    });
    for call in calls {
        call.wait().unwrap();
    }
}

#[test]
fn threads_submit_at_once_and_each_gets_its_own_results() {
    let platform = PlatformProcess::start();
    let client = platform.client_with(&calls().slots(4));
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let client = &client;
            scope.spawn(move || {
                let mut own = client.buffer::<u32>(4).unwrap();
                let mut output = [0u32; 4];
                for number in 0..1000 {
                    let value = thread << 24 | number;
                    own.fill(value);
                    check_values(client, &own, &mut output);
                    check_values(client, &[value; 3], &mut output);
                }
            });
        }
    });
}

#[test]
fn a_call_can_be_polled_and_waited_for_in_part() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let mut words = client.buffer::<u32>(3).unwrap();
    words.fill(0);
    let converse = client.function("converse").unwrap();
    let mut output = [0u8; 0];
    let mut call = client.submit_with(converse, &words, &mut output, patient()).unwrap();
    assert!(!call.is_ready() && !call.wait_timeout(Duration::from_millis(20)));
    words.atomic(1).store(1, Ordering::Release);
    assert!(call.wait_timeout(PATIENCE) && call.is_ready());
    call.wait().unwrap();
}

#[test]
fn a_dropped_call_is_waited_for() {
    let platform = PlatformProcess::start();
    let mut client = platform.client("calls.c");
    let mut words = client.buffer::<u32>(3).unwrap();
    words.fill(0);
    let converse = client.function("converse").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(client.submit_with(converse, &words, &mut [0u8; 0], patient()).unwrap()));
        wait_until("the function says that it runs", || words.atomic(0).load(Ordering::Acquire) == 1);
        words.atomic(1).store(7, Ordering::Release);
    });
    assert_eq!(words.get(2), 8, "it was dropped before the function had returned");
    assert_eq!(client.deallocate().unwrap().calls, 1);
}

#[test]
fn a_call_can_be_awaited_and_wakes_its_task() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let (busy, ms) = (client.function("busy").unwrap(), [50u32]);
    let (done, wakes) = block_on(async {
        client.submit_with(busy, &ms, &mut [0u8; 0], CallOptions::default()).unwrap().await
    });
    assert_eq!(done.unwrap().output_bytes, 0);
    assert!(wakes >= 1, "it was polled again without being woken");
    let (done, _) = block_on(async { client.submit("echo", b"hello", &mut [0u8; 5]).unwrap().await });
    assert_eq!(done.unwrap().output_bytes, 5);
}

#[test]
fn awaited_calls_that_lose_their_worker_wake_with_the_reason() {
    let platform = PlatformProcess::start();
    let client = platform.client("faults.c");
    let worker = platform.worker();
    let mut flag = client.buffer::<u32>(1).unwrap();
    flag.fill(0);
    std::thread::scope(|scope| {
        let awaiting =
            scope.spawn(|| block_on(async { client.submit("spin", &flag, &mut [0u8; 0]).unwrap().await }).0);
        wait_until("the call begins", || flag.atomic(0).load(Ordering::Acquire) == 1);
        sublet_tests::platform::kill(worker, rustix::process::Signal::KILL);
        assert_fails(awaiting.join().unwrap(), Code::WorkerDied, &["SIGKILL"]);
    });
    assert_echoes(&client);
}

#[test]
fn many_calls_are_awaited_together() {
    let platform = PlatformProcess::start();
    let client = platform.client("calls.c");
    let inputs: Vec<[u32; 1]> = (0..100).map(|n| [n]).collect();
    let mut outputs = vec![[0u32; 1]; inputs.len()];
    let (ended, _) = block_on(async {
        let calls: Vec<_> = inputs
            .iter()
            .zip(&mut outputs)
            .map(|(input, output)| client.submit("echo", input, output).unwrap())
            .collect();
        let mut ended = 0;
        for call in calls {
            ended += call.await.unwrap().output_bytes;
        }
        ended
    });
    assert_eq!((ended, outputs), (400, inputs));
}
