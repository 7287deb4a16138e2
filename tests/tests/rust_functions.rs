//! Functions in Rust as clients see them: one source has the same results and errors as native code and as WebAssembly.

#![allow(clippy::unwrap_used)]

use sublet::{Access, Allocation, Application, Code, Error, Invoker, RunOptions};
use sublet_tests::assert_fails;
use sublet_tests::functions::{RustTarget, rust_library};
use sublet_tests::graph::{sum_to, sums, total};
use sublet_tests::platform::PlatformProcess;

const BOTH: [RustTarget; 2] = [RustTarget::Native, RustTarget::Wasm];

fn client(platform: &PlatformProcess, package: &str, example: &str, target: RustTarget) -> Invoker {
    let library = rust_library(package, example, target);
    platform.client_with(&Allocation::new(library.to_str().unwrap()).memory_bytes(64 << 20))
}

fn forms(platform: &PlatformProcess, target: RustTarget) -> Invoker {
    client(platform, "sublet-function", "forms", target)
}

/// Calls a function with text and returns its output, of at most 64 bytes.
fn text(client: &Invoker, function: &str, input: &[u8]) -> Result<String, Error> {
    let mut output = [0u8; 64];
    let done = client.submit(function, input, &mut output)?.wait()?;
    Ok(String::from_utf8(output[..done.output_bytes].to_vec()).unwrap())
}

fn quotient(client: &Invoker, function: &str, numbers: &[i32]) -> Result<i32, Error> {
    let mut output = [0i32; 1];
    client.submit(function, numbers, &mut output)?.wait()?;
    Ok(output[0])
}

#[test]
fn one_source_answers_alike_natively_and_as_a_module() {
    let platform = PlatformProcess::start();
    for target in BOTH {
        let client = forms(&platform, target);
        let mut doubled = [0.0f64; 3];
        for function in ["twice", "double"] {
            let done = client.submit(function, &[1.0f64, -2.5], &mut doubled).unwrap().wait().unwrap();
            assert_eq!((done.output_bytes, doubled), (16, [2.0, -5.0, 0.0]), "{target:?}");
        }
        let mut sums = [7i32; 3];
        let done = client.submit("sums", &[1i32, 2, 3, 4], &mut sums).unwrap().wait().unwrap();
        assert_eq!((done.output_bytes, sums), (8, [3, 7, 7]), "{target:?}");
        assert_eq!(text(&client, "words", "zwei eins zwei".as_bytes()).unwrap(), "eins 1\nzwei 2\n");
        let input: Vec<f64> = (0..5000).map(f64::from).collect();
        let mut input_buffer = client.buffer::<f64>(input.len()).unwrap();
        let mut sums = client.buffer::<f64>(input.len()).unwrap();
        input_buffer.copy_from_slice(&input);
        client.submit("running_sum", &input_buffer, &mut sums).unwrap().wait().unwrap();
        let expected = input.iter().scan(0.0, |sum, value| {
            *sum += value;
            Some(*sum)
        });
        assert!(sums.iter().eq(expected), "{target:?}");
    }
}

#[test]
fn errors_and_panics_carry_messages_and_end_only_their_call() {
    let platform = PlatformProcess::start();
    for target in BOTH {
        let client = forms(&platform, target);
        let worker = platform.worker();
        let fails = |result: Result<String, Error>, code, named: &[&str]| {
            assert_fails(result, code, named);
        };
        fails(
            text(&client, "refuse", b"not today"),
            Code::FunctionFailed,
            &["forms/refuse failed: not today"],
        );
        fails(text(&client, "refuse", &[b'x'; 300]), Code::FunctionFailed, &[&"x".repeat(256)]);
        fails(
            text(&client, "refuse", &[0xff]),
            Code::FunctionFailed,
            &["the input is not UTF-8 from byte 0 on"],
        );
        fails(text(&client, "twice", &[0; 7]), Code::FunctionFailed, &["7 bytes", "multiple of 8 (f64)"]);
        fails(
            text(&client, "words", "a b c d e f g h i j k l m n o p q".as_bytes()),
            Code::OutputTooLarge,
            &["68", "64"],
        );
        fails(text(&client, "sums", &[0; 256]), Code::OutputTooLarge, &["128", "64"]);
        fails(text(&client, "thrice", b""), Code::UnknownFunction, &["thrice", "double"]);
        assert_fails(
            quotient(&client, "divide", &[1, 0]),
            Code::FunctionFailed,
            &["forms/divide failed: panicked: attempt to divide by zero"],
        );
        assert_fails(
            quotient(&client, "divide", &[1]),
            Code::FunctionFailed,
            &["panicked: index out of bounds: the len is 1 but the index is 1"],
        );
        assert_eq!(quotient(&client, "divide", &[7, 2]).unwrap(), 3);
        assert_eq!(platform.worker(), worker, "{target:?}: no call has ended the process");
        drop(client);
        sublet_tests::process::wait_until("the worker is gone", || platform.workers().is_empty());
    }
}

#[test]
fn nested_calls_return_results_and_errors() {
    let platform = PlatformProcess::start();
    let native = forms(&platform, RustTarget::Native);
    assert_eq!(quotient(&native, "delegate", &[12, 4]).unwrap(), 3);
    assert_fails(
        quotient(&native, "delegate", &[12, 0]),
        Code::FunctionFailed,
        &["delegate failed: divide: panicked: attempt to divide by zero"],
    );
    let module = forms(&platform, RustTarget::Wasm);
    assert_fails(
        quotient(&module, "delegate", &[12, 4]),
        Code::FunctionFailed,
        &["a function in WebAssembly can neither call other functions by name"],
    );
}

#[test]
fn functions_of_a_graph_share_memory() {
    let platform = PlatformProcess::start();
    let library = rust_library("sublet-function", "forms", RustTarget::Native);
    let deployed = platform.run(&["deploy", library.to_str().unwrap()]);
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    let document = String::from_utf8(sums()).unwrap().replace("libcomponents", "libforms");
    let access = Access::parse(&platform.address()).unwrap();
    let application = Application::deploy(access, document.as_bytes(), RunOptions::default()).unwrap();
    for count in [1u64, 511, 100_000] {
        let outcome = application.run(&count.to_le_bytes()).unwrap();
        assert_eq!(total(&outcome), sum_to(count));
    }
    let client = forms(&platform, RustTarget::Native);
    let mut numbers = [0u32; 3];
    client.submit("outside", &[0u8; 0], &mut numbers).unwrap().wait().unwrap();
    assert_eq!(numbers, [Code::InvalidArgument.number(); 3], "outside of a run");
}

#[test]
fn abort_ends_the_worker_process_or_only_the_module() {
    let platform = PlatformProcess::start();
    let native = forms(&platform, RustTarget::Native);
    assert_fails(text(&native, "quit", b""), Code::WorkerDied, &["SIGABRT"]);
    assert_eq!(quotient(&native, "divide", &[7, 2]).unwrap(), 3, "another worker executes the next call");
    let module = forms(&platform, RustTarget::Wasm);
    assert_fails(text(&module, "quit", b""), Code::FunctionFailed, &["trap"]);
    assert_eq!(quotient(&module, "divide", &[7, 2]).unwrap(), 3);
}

#[test]
fn the_example_turns_text_around() {
    let platform = PlatformProcess::start();
    for target in BOTH {
        let client = client(&platform, "sublet-example-functions", "reverse", target);
        assert_eq!(text(&client, "reverse", "drei Äpfel".as_bytes()).unwrap(), "lefpÄ ierd");
        assert_fails(text(&client, "reverse", &[0xff]), Code::FunctionFailed, &["UTF-8"]);
    }
}
