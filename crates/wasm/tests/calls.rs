//! Functions of WebAssembly, called as workers call them: they have the same results as native code, and no state of a
//! call remains for the next one.

#![allow(clippy::unwrap_used)]

use sublet_proto::Code;

use crate::support::encode::{Module, SHORT, code};
use crate::support::{LEASE_BYTES, Libraries, MIB, PAGE_BYTES, assert_fails, compile, load};

#[test]
fn functions_behave_the_same_with_and_without_c_library() {
    for libraries in [Libraries::None, Libraries::C] {
        let module = load(&compile("portable.c", libraries), "").unwrap();
        let mut thread = module.thread();
        for size in [0, 1, 4095, 65_536, 1 << 20] {
            let input: Vec<u8> = (0..size).map(|i: usize| (i * 7) as u8).collect();
            assert_eq!(thread.call("echo", &input, size + 5).unwrap(), input, "{libraries:?} {size}");
        }
        assert_eq!(thread.words("add_index", &[5, 5, 5], 3).unwrap(), [5, 6, 7]);
        assert_eq!(thread.words("room", &[], 9).unwrap(), [36]);
        assert_eq!(thread.call("aligned", &[1; 3], 1).unwrap(), [1]);
        assert_fails(thread.call("refuse", b"not today\0", 8), Code::FunctionFailed, &["not today"]);
        assert_fails(thread.call("refuse", b"", 8), Code::FunctionFailed, &[]);
        let long = [b'x'; 1000];
        let (_, message) = thread.call("refuse", &long, 8).unwrap_err();
        assert_eq!(message, "x".repeat(256));
        assert_eq!(thread.call("echo", b"still there", 64).unwrap(), b"still there");
    }
}

#[test]
fn oversized_output_is_reported_and_not_written() {
    let module = load(&compile("portable.c", Libraries::None), "").unwrap();
    let index = ["add_index", "aligned", "boast"].len() as u16 - 1;
    let (mut output, mut caller) =
        ([1u8; 8], sublet_runtime::worker::engine::Engine::caller(&module.engine, 0).unwrap());
    use sublet_runtime::worker::engine::{CallInput, CallOutput, FunctionCaller};
    assert_eq!(caller.call(index, CallInput::of(&[]), CallOutput::of(&mut output)).unwrap(), 9);
    assert_eq!(output, [1; 8]);
    assert_eq!(caller.call(99, CallInput::of(&[]), CallOutput::of(&mut output)), Err(Code::UnknownFunction));
}

#[test]
fn nothing_of_a_call_is_there_for_the_next() {
    let module = load(&compile("modules.c", Libraries::None), "").unwrap();
    let mut thread = module.thread();
    for _ in 0..20 {
        assert_eq!(thread.words("traces", &[17], 3).unwrap(), [7, 0, 0]);
    }
}

#[test]
fn module_allocator_does_not_reuse_the_memory_of_a_call() {
    let module = load(&compile("allocating.c", Libraries::C), "").unwrap();
    let mut thread = module.thread();
    let input: Vec<u8> = (0..200_000).map(|i| (i % 251) as u8).collect();
    assert_eq!(thread.call("fill_and_echo", &input, input.len()).unwrap(), input);
    assert_eq!(thread.call("square_root_of", b"2", 64).unwrap(), b"1.414");
}

#[test]
fn package_may_limit_memory_below_the_lease() {
    let module = compile("modules.c", Libraries::None);
    let pages = |manifest: &str| {
        let module = load(&module, manifest).unwrap();
        module.thread().words("devour", &[1], 1).unwrap()[0]
    };
    assert_eq!(u64::from(pages("")), LEASE_BYTES / PAGE_BYTES);
    assert_eq!(pages("[wasm]\nmemory_bytes = 10_000_000"), 152);
    assert_eq!(u64::from(pages("[wasm]\nmemory_bytes = 10_000_000_000")), LEASE_BYTES / PAGE_BYTES);
}

#[test]
fn a_call_whose_bytes_do_not_fit_says_so() {
    let bytes = compile("portable.c", Libraries::None);
    let module = load(&bytes, "[wasm]\nmemory_bytes = 2_000_000").unwrap();
    let mut thread = module.thread();
    let input = vec![1; MIB as usize];
    assert_fails(thread.call("echo", &input, MIB as usize), Code::MemoryExceeded, &["2097", "1966080"]);
    assert_eq!(thread.call("echo", &input[..1000], 1000).unwrap(), input[..1000]);
    // The module states the maximum of its memory.
    let fixed = Module::with_memory(1, Some(1)).function(Some("f"), SHORT, code::SIZE);
    let module = load(&fixed.encode(), "").unwrap();
    assert_fails(module.call("f", b"", 0), Code::MemoryExceeded, &["65536"]);
}

#[test]
fn fuel_ends_a_call_at_the_same_place_each_time() {
    let module = load(&compile("modules.c", Libraries::None), "[wasm]\nfuel = 100_000").unwrap();
    let mut thread = module.thread();
    assert_fails(thread.call("spin", &[], 4), Code::DeadlineExceeded, &["fuel", "100000"]);
    assert_eq!(thread.words("divide", &[7], 1).unwrap(), [1]);
}
