//! Workers that write over the memory that they share with their clients: deadlines hold, and no call waits for ever.

#![allow(clippy::unwrap_used)]

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use sublet::{Allocation, Buffer, CallOptions, Code, Completion, Error, FabricChoice, Function, Invoker};
use sublet_tests::assert_fails;
use sublet_tests::executor::block_on;
use sublet_tests::functions::package;
use sublet_tests::platform::{PlatformProcess, assert_echoes, kill};
use sublet_tests::process::{PATIENCE, thread_states, wait_until, with_growing_time};

const RESULTS: &str = "sublet-results";
const INBOX: &str = "sublet-inbox";
/// The client's buffers.
const BUFFERS: &str = "sublet-buffers";
/// Results that a worker may have written before: they name nothing.
const ZEROS: u8 = 0;
/// Results that no call had asked for.
const GARBAGE: u8 = 0xaa;

#[derive(Clone, Copy)]
enum How {
    Once = 0,
    Always = 1,
    ThenReturn = 2,
    /// Once, a third of a second after its call began: its caller sleeps by then.
    OnceLater = 3,
}

/// The input of `scribble`.
fn order(pattern: u8, how: How, region: &str) -> [u8; 64] {
    let mut order = [0; 64];
    (order[0], order[1]) = (pattern, how as u8);
    order[4..4 + region.len()].copy_from_slice(region.as_bytes());
    order
}

/// An order in memory in which its function tells when it has written.
fn told_order(client: &Invoker, pattern: u8, how: How, region: &str) -> Buffer<u8> {
    let mut told = client.buffer::<u8>(64).unwrap();
    told.copy_from_slice(&order(pattern, how, region));
    told.set(2, 1);
    told
}

fn wait_until_written(order: &Buffer<u8>) {
    wait_until("the function has written", || order.get(3) == 1);
}

fn platform() -> PlatformProcess {
    PlatformProcess::start_with(|up| {
        up.args(["--listen", "127.0.0.1:0"]);
    })
}

/// Makes calls at the same time, each in a thread of its own and by these options, which end within [`PATIENCE`].
fn end_of_calls(
    client: &Invoker,
    calls: &[(&str, &[u8])],
    options: CallOptions,
) -> Vec<Result<Completion, Error>> {
    let (ended, ends) = channel();
    std::thread::scope(|scope| {
        for &(function, input) in calls {
            let (function, ended) = (client.function(function).unwrap(), ended.clone());
            scope.spawn(move || {
                let mut output = [0u8; 64];
                let call = client.submit_with(function, input, &mut output, options);
                ended.send(call.and_then(|call| call.wait())).unwrap();
            });
        }
        calls
            .iter()
            .map(|_| ends.recv_timeout(PATIENCE).unwrap_or_else(|_| abort("a call does not end")))
            .collect()
    })
}

/// Ends the test's process: a thread that waits for ever would keep a failed test from ending.
fn abort(why: &str) -> ! {
    eprintln!("{why}");
    std::process::abort()
}

/// Options of a call with a deadline `time` from now.
fn within(time: Duration) -> CallOptions {
    CallOptions { deadline: Some(Instant::now() + time), ..CallOptions::default() }
}

fn scribble(client: &Invoker) -> Function {
    client.function("scribble").unwrap()
}

#[test]
fn deadlines_hold_while_a_worker_writes_over_its_results() {
    let platform = platform();
    for pattern in [ZEROS, 0xff] {
        let client = platform.client("scribbling.c");
        let order = order(pattern, How::Always, RESULTS);
        let deadline = within(Duration::from_millis(300));
        let ends = end_of_calls(&client, &[("scribble", &order)], deadline);
        for end in ends {
            let error = end.unwrap_err();
            assert!(matches!(error.code, Code::DeadlineExceeded | Code::Protocol), "{error:?}");
            assert!(!error.message.contains("has not ended"), "{error}");
        }
        assert_echoes(&client);
    }
}

#[test]
fn deadlines_hold_when_a_worker_clears_its_clients_watches() {
    let platform = platform();
    let client = platform.client("scribbling.c");
    let order = order(ZEROS, How::OnceLater, RESULTS);
    let mut ends = end_of_calls(&client, &[("scribble", &order)], within(Duration::from_secs(1)));
    assert_fails_whole(ends.remove(0), Code::DeadlineExceeded);
    assert_echoes(&client);
}

/// Calls that take long enough for their client to look at their lines, on records that a worker before wrote over.
fn assert_slow_calls_succeed(client: &Invoker) {
    let ends =
        end_of_calls(client, &[("linger", &[]), ("linger", &[]), ("linger", &[])], CallOptions::default());
    for end in ends {
        end.unwrap();
    }
}

/// The worker has ended when its call does.
fn assert_fails_whole(end: Result<Completion, Error>, code: Code) {
    let error = end.unwrap_err();
    assert_eq!(error.code, code, "{error}");
    assert!(!error.message.contains("has not ended"), "{error}");
}

#[test]
fn overwritten_results_or_requests_end_calls_without_a_deadline() {
    let platform = platform();
    let words = ["the worker process was stopped: it wrote"];
    for region in [RESULTS, INBOX] {
        for how in [How::Once, How::ThenReturn] {
            let client = platform.client("scribbling.c");
            let order = order(GARBAGE, how, region);
            let mut outputs = [[0u8; 64]; 4];
            let (first, others) = outputs.split_at_mut(1);
            let scribbling = client.submit("scribble", &order, &mut first[0]).unwrap();
            let waiting: Vec<_> =
                others.iter_mut().map(|output| client.submit("echo", b"hello", output).unwrap()).collect();
            let (ended, ends) = channel();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    waiting.into_iter().for_each(|call| ended.send(call.wait()).unwrap());
                    ended.send(scribbling.wait()).unwrap();
                });
                let mut lost = 0;
                for _ in 0..4 {
                    let end = ends.recv_timeout(PATIENCE).unwrap_or_else(|_| abort("a call does not end"));
                    // Calls that the worker has answered before or after it wrote have their results.
                    if let Err(error) = end {
                        assert_fails(Err::<(), _>(error), Code::Protocol, &words);
                        lost += 1;
                    }
                }
                // A worker that returns may answer the others before they are harmed.
                assert!(lost > 0 || matches!(how, How::ThenReturn), "{region}: nothing was noticed");
            });
            assert_echoes(&client);
            assert_slow_calls_succeed(&client);
        }
    }
}

#[test]
fn calls_queued_behind_corrupted_calls_end() {
    let platform = platform();
    for region in [RESULTS, INBOX] {
        for how in ["wait", "future", "polling"] {
            let client = platform.client("scribbling.c");
            let order = told_order(&client, GARBAGE, How::Once, region);
            let mut outputs = [[0u8; 64]; 2];
            let [first, second] = &mut outputs;
            let scribbling = client.submit("scribble", &order, first).unwrap();
            let worker = platform.worker();
            // Values that are sent from now on stay as they are.
            wait_until_written(&order);
            wait_until("it sleeps", || thread_states(worker, "worker 0") == ['S']);
            let behind = client.submit("echo", b"hello", second).unwrap();
            let (ended, ends) = channel();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let mut behind = behind;
                    while how == "polling" && !behind.is_ready() {}
                    let end = if how == "future" { block_on(behind).0 } else { behind.wait() };
                    ended.send(end).unwrap();
                });
                let end = ends.recv_timeout(PATIENCE).unwrap_or_else(|_| abort("a call does not end"));
                assert_fails(end, Code::Protocol, &["the worker process was stopped: it wrote"]);
            });
            assert_fails(scribbling.wait(), Code::Protocol, &["it wrote"]);
            assert_echoes(&client);
        }
    }
}

#[test]
fn a_dying_worker_that_clears_watches_leaves_no_call_waiting() {
    let platform = platform();
    let client = platform.client("scribbling.c");
    let order = told_order(&client, ZEROS, How::OnceLater, RESULTS);
    let mut output = [0u8; 64];
    let call = client.submit("scribble", &order, &mut output).unwrap();
    let worker = platform.worker();
    let (ended, ends) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || ended.send(call.wait()).unwrap());
        // From then on neither it nor its client does anything.
        wait_until_written(&order);
        wait_until("it sleeps", || thread_states(worker, "worker 0") == ['S']);
        kill(worker, Signal::KILL);
        let end = ends.recv_timeout(PATIENCE).unwrap_or_else(|_| abort("the call does not end"));
        assert_fails(end, Code::WorkerDied, &["SIGKILL"]);
    });
}

#[test]
fn copies_buffer_values_that_a_worker_overwrites() {
    let platform = platform();
    let client = platform.client("scribbling.c");
    let mut values = client.buffer::<u32>(1000).unwrap();
    values.fill(7);
    let order = order(GARBAGE, How::Always, BUFFERS);
    let overwritten = u32::from_ne_bytes([GARBAGE; 4]);
    let mut outputs = [[0u8; 64]; 10];
    let mut outputs = outputs.iter_mut();
    let call = with_growing_time(Duration::from_secs(1), |time| {
        let end = Instant::now() + time;
        let deadline = CallOptions { deadline: Some(end), ..CallOptions::default() };
        let call = client.submit_with(scribble(&client), &order, outputs.next()?, deadline).ok()?;
        wait_until("the worker overwrites the buffer, or its time is over", || {
            values.get(999) == overwritten || Instant::now() > end
        });
        (values.get(999) == overwritten).then_some(call)
    });
    // No call uses the buffer: the client may write it, and each byte is then its own or the worker's.
    values.fill(7);
    let is_from_either = |value: u32| {
        value.to_ne_bytes().iter().zip(7u32.to_ne_bytes()).all(|(&byte, own)| byte == own || byte == GARBAGE)
    };
    assert!(values.iter().all(is_from_either) && values.to_vec().into_iter().all(is_from_either));
    assert_fails_whole(call.wait(), Code::DeadlineExceeded);
    values.fill(7);
    assert!(values.iter().all(|value| value == 7), "the worker process has ended, and its function with it");
    assert_echoes(&client);
}

#[test]
fn results_that_no_worker_can_have_are_refused() {
    let platform = platform();
    let failed = Code::FunctionFailed.number();
    let too_large = Code::OutputTooLarge.number();
    let forged = [
        ((0, 65, 0), "65 bytes for an output of 64"),
        ((0, u32::MAX, 0), "4294967295 bytes for an output of 64"),
        ((failed, 0, 1 << 40), "a message of 1099511627776 bytes"),
        ((too_large, 3, 0), "3 bytes for an output of 64"),
        ((0xdead_beef, 0, 0), "unknown code 3735928559"),
    ];
    for ((status, output_len, detail), words) in forged {
        let client = platform.client("scribbling.c");
        let mut input = Vec::new();
        // The first use of the first record has this turn.
        for word in [1, 0, status, output_len] {
            input.extend_from_slice(&u32::to_le_bytes(word));
        }
        input.extend_from_slice(&u64::to_le_bytes(detail));
        let mut ends = end_of_calls(&client, &[("forge", &input)], CallOptions::default());
        assert_fails(ends.remove(0), Code::Protocol, &["libscribbling/forge was lost", words]);
        assert_echoes(&client);
    }
}

#[test]
fn futures_end_by_deadline_and_with_overwritten_results() {
    let platform = platform();
    let client = platform.client("scribbling.c");
    let mut output = [0u8; 64];
    let zeros = order(ZEROS, How::Once, RESULTS);
    let late = client.submit_with(scribble(&client), &zeros, &mut output, within(Duration::from_millis(300)));
    assert_fails_whole(block_on(late.unwrap()).0, Code::DeadlineExceeded);
    assert_echoes(&client);
    for region in [RESULTS, INBOX] {
        let garbage = order(GARBAGE, How::Once, region);
        let call = client.submit("scribble", &garbage, &mut output).unwrap();
        assert_fails(block_on(call).0, Code::Protocol, &["it wrote"]);
        assert_echoes(&client);
    }
}

#[test]
fn a_full_ring_keeps_no_call_beyond_its_deadline() {
    let platform = platform();
    let client = platform.client_with(&Allocation::new(package("scribbling.c")).slots(2));
    let order = order(ZEROS, How::Once, RESULTS);
    let mut outputs = [[0u8; 64]; 3];
    let [first, second, third] = &mut outputs;
    let (ended, ends) = channel();
    std::thread::scope(|scope| {
        let client = &client;
        let order = &order;
        scope.spawn(move || {
            // Longer than the third may wait, also on a machine that stands still for some seconds.
            let deadline = within(Duration::from_secs(8));
            let first = client.submit_with(scribble(client), order, first, deadline).unwrap();
            let second = client.submit("echo", b"hello", second).unwrap();
            let echo = client.function("echo").unwrap();
            let third = client.submit_with(echo, b"hello", third, within(Duration::from_millis(200)));
            ended.send(third.map(drop)).unwrap();
            assert_fails_whole(first.wait(), Code::DeadlineExceeded);
            drop(second);
        });
        let end = ends.recv_timeout(PATIENCE).unwrap_or_else(|_| abort("the submission does not end"));
        assert_fails(
            end,
            Code::DeadlineExceeded,
            &["libscribbling/echo was not sent before its deadline", "2 slots"],
        );
    });
}

#[test]
fn a_remote_worker_that_overwrites_its_requests_ends() {
    let platform = platform();
    for encrypted in [false, true] {
        let allocation = Allocation::new(package("scribbling.c")).fabric(FabricChoice::Tcp { encrypted });
        let client = platform.client_with(&allocation);
        let deadline = within(Duration::from_millis(300));
        let late = order(GARBAGE, How::Always, INBOX);
        let mut ends = end_of_calls(&client, &[("scribble", &late)], deadline);
        assert_fails_whole(ends.remove(0), Code::DeadlineExceeded);
        assert_echoes(&client);
        let returning = order(GARBAGE, How::ThenReturn, INBOX);
        let mut output = [0u8; 64];
        let scribbling = client.submit("scribble", &returning, &mut output).unwrap();
        let lost: Vec<&[u8]> = vec![b"hello"; 3];
        let calls: Vec<_> = lost.iter().map(|input| ("echo", *input)).collect();
        for end in end_of_calls(&client, &calls, CallOptions::default()) {
            if let Err(error) = end {
                assert_fails(Err::<(), _>(error), Code::Protocol, &["wrote over its worker's requests"]);
            }
        }
        let _ = scribbling.wait();
        wait_until("calls work again", || client.submit("echo", &[1u8], &mut [0u8]).unwrap().wait().is_ok());
    }
}
