//! Attacks by untrusted modules: each test executes a real attack, and afterwards the engine serves the next call.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use sublet_proto::Code;
use sublet_runtime::worker::engine::{CallInput, CallOutput, Engine, FunctionCaller};

use crate::support::encode::{ALLOCATOR, HEADER, LONG, Module, NOTHING, SHORT, code, section};
use crate::support::{
    LEASE_BYTES, Libraries, LoadedModule, PAGE_BYTES, Thread, assert_fails, assert_refused, compile, load,
    load_function,
};

/// Deadline that is short to wait for, and long enough for every function that ends.
const DEADLINE: &str = "[wasm]\ndeadline_ms = 200";

fn hostile() -> LoadedModule {
    load(&compile("modules.c", Libraries::None), DEADLINE).unwrap()
}

#[track_caller]
fn assert_serves(thread: &mut Thread<'_>) {
    assert_eq!(thread.words("divide", &[7], 1).unwrap(), [1]);
}

/// Asserts that a call fails with this code and these words, and that the next call succeeds.
#[track_caller]
fn assert_ends(function: &str, input: &[u32], code: Code, words: &[&str]) {
    let module = hostile();
    let mut thread = module.thread();
    assert_fails(thread.words(function, input, 16), code, words);
    assert_serves(&mut thread);
}

/// A module with a memory and a function `f` of this code.
fn with_function(code: &[u8]) -> Module {
    Module::with_memory(1, None).function(Some("f"), SHORT, code)
}

#[test]
fn an_endless_loop_ends_at_its_deadline() {
    assert_ends("spin", &[], Code::DeadlineExceeded, &["200 ms"]);
}

#[test]
fn a_start_function_that_never_ends_ends_at_the_deadline() {
    let endless = with_function(code::SIZE).function(None, NOTHING, code::LOOP);
    let module = load(&endless.clone().start(1).encode(), DEADLINE).unwrap();
    assert_fails(module.call("f", b"", 0), Code::DeadlineExceeded, &["200 ms"]);
    let initialize = with_function(code::SIZE).function(Some("_initialize"), NOTHING, code::LOOP);
    let module = load(&initialize.encode(), DEADLINE).unwrap();
    assert_fails(module.call("f", b"", 0), Code::DeadlineExceeded, &["200 ms"]);
    assert!(load(&endless.encode(), DEADLINE).unwrap().call("f", b"", 0).is_ok());
}

#[test]
fn endless_or_lying_allocator_is_an_error_of_the_call() {
    let module = |code: &[u8]| {
        let module = with_function(code::SIZE).function(Some("malloc"), ALLOCATOR, code);
        load(&module.encode(), DEADLINE).unwrap()
    };
    assert_fails(module(code::LOOP_AND_ZERO).call("f", b"", 0), Code::DeadlineExceeded, &["200 ms"]);
    assert_fails(module(code::ZERO).call("f", b"", 0), Code::MemoryExceeded, &["65536"]);
    // The last byte of all 4 GiB; the last one of its own memory.
    for lie in [&[0x41, 0x7f][..], &[0x41, 0xff, 0xff, 3]] {
        assert_fails(module(lie).call("f", b"in", 64), Code::MemoryExceeded, &["65536"]);
    }
    // A module may overwrite its own memory.
    assert_eq!(module(&[0x41, 1]).call("f", b"in", 64).unwrap().len(), 2);
}

#[test]
fn memory_ends_at_the_limit() {
    let module = hostile();
    let mut thread = module.thread();
    for step in [1, 16, 100] {
        let pages = thread.words("devour", &[step], 1).unwrap()[0];
        let most = LEASE_BYTES / PAGE_BYTES;
        assert!(u64::from(pages) <= most && u64::from(pages + step) > most, "{pages} pages of {most}");
    }
    assert_eq!(thread.words("traces", &[16], 3).unwrap(), [7, 0, 0]);
    assert_serves(&mut thread);
}

#[test]
fn rejects_huge_initial_memory_and_tables() {
    let huge = Module::with_memory(65_536, None).function(Some("f"), SHORT, code::SIZE);
    assert_refused(load(&huge.encode(), ""), &["m.wasm", "memory", "4294967296"]);
    for elements in [10_000_000, u32::MAX] {
        assert_refused(load(&with_function(code::SIZE).table(elements).encode(), ""), &["m.wasm", "table"]);
    }
    let mut many = with_function(code::SIZE);
    for _ in 0..50 {
        many = many.table(1000);
    }
    assert_refused(load(&many.encode(), ""), &["m.wasm", "table"]);
}

#[test]
fn a_table_cannot_grow_beyond_its_limit() {
    let module = load(&with_function(code::GROW_TABLE).table(1).encode(), DEADLINE).unwrap();
    // The result of a failed growth, plus one.
    assert_eq!(module.call("f", b"", 0).unwrap(), b"");
}

#[test]
fn endless_recursion_is_an_error_of_the_call() {
    assert_ends("recurse", &[], Code::FunctionFailed, &["trap"]);
    assert_ends("fall_down", &[], Code::FunctionFailed, &["stack"]);
}

#[test]
fn trap_is_an_error_of_the_call_with_its_reason() {
    assert_ends("trap", &[], Code::FunctionFailed, &["unreachable"]);
    assert_ends("divide", &[0], Code::FunctionFailed, &["divide by zero"]);
    assert_ends("leap", &[5], Code::FunctionFailed, &["table"]);
    assert_ends("leave", &[3], Code::FunctionFailed, &["exited with status 3"]);
    assert_ends("leave", &[0], Code::FunctionFailed, &["exited with status 0"]);
}

#[test]
fn what_lies_outside_of_its_memory_is_out_of_reach() {
    assert_ends("read_outside", &[], Code::FunctionFailed, &["out of bounds"]);
    for function in ["fail_from_nowhere", "random_to_nowhere", "print_nowhere"] {
        assert_ends(function, &[], Code::FunctionFailed, &["outside of its memory"]);
    }
}

#[test]
fn what_is_written_beyond_an_output_stays_in_the_instance() {
    let module = hostile();
    let mut caller = module.engine.caller(0).unwrap();
    let overflow = module.names.iter().position(|name| name == "overflow").unwrap() as u16;
    let mut output = [1u8; 4096];
    assert_eq!(caller.call(overflow, CallInput::of(b""), CallOutput::of(&mut output[..8])), Ok(0));
    caller.rest();
    assert_eq!(output, [1; 4096]);
    assert_serves(&mut module.thread());
}

#[test]
fn there_are_no_files_no_sockets_and_no_environment() {
    const BADF: u32 = 8;
    let seen = hostile().thread().words("look_around", &[], 16).unwrap();
    assert_eq!(seen, [BADF, BADF, BADF, BADF, 0, 0, 1, 1]);
}

#[test]
fn what_it_prints_goes_to_the_log() {
    let module = hostile();
    let mut thread = module.thread();
    assert_eq!(thread.call("print", b"a line in the log\n", 4).unwrap(), 18u32.to_le_bytes());
    assert_serves(&mut thread);
}

#[test]
fn imports_that_there_are_not_are_refused() {
    let importing = |module: &str, name: &str| {
        let module = Module::with_memory(1, None).import(module, name, LONG);
        load(&module.function(Some("f"), SHORT, code::SIZE).encode(), "")
    };
    assert_refused(importing("env", "system"), &["env.system", "not offered"]);
    assert_refused(importing("e\nv", &"x".repeat(1000)), &["e\\nv.xxx"]);
    // A missing function of an offered module is refused when the module is loaded, before the first call.
    assert_refused(importing("wasi_snapshot_preview1", "fork"), &["fork"]);
    assert_refused(importing("sublet", "lease"), &["lease"]);
    // An import with another type than the function's is refused.
    assert_refused(importing("sublet", "fail"), &["fail"]);
    assert!(importing("wasi_snapshot_preview1", "fd_read").is_ok());
}

#[test]
fn a_module_without_memory_or_functions_is_refused() {
    let bare = Module::default().function(Some("f"), SHORT, code::SIZE);
    assert_refused(load(&bare.encode(), ""), &["exports no memory"]);
    let error = load_function(&bare.encode(), "f").err().unwrap();
    assert!(error.message.contains("exports no memory"), "{error}");
    let none = Module::with_memory(1, None).function(Some("f"), NOTHING, &[]);
    assert_refused(load(&none.encode(), ""), &["exports no function of the type"]);
    for symbol in ["f", "g", "memory", ""] {
        assert_eq!(load_function(&none.encode(), symbol).err().unwrap().code, Code::MissingSymbol);
    }
}

#[test]
fn a_module_of_very_many_functions_is_served() {
    let mut many = with_function(code::SIZE);
    for _ in 0..100_000 {
        many = many.function(None, LONG, code::SIZE);
    }
    assert_eq!(load(&many.encode(), "").unwrap().call("f", b"four", 4).unwrap().len(), 4);
}

#[test]
fn garbage_is_refused_wherever_it_begins() {
    let whole = compile("modules.c", Libraries::None);
    for end in (0..whole.len()).step_by(13) {
        // The module stays valid only if the cut removes nothing but the sections of tools at its end.
        if let Ok(module) = load_function(&whole[..end], "divide") {
            assert_eq!(module.thread().words("divide", &[7], 1).unwrap(), [1]);
        }
    }
    assert_refused(load(&whole[..whole.len() / 2], ""), &["truncated"]);
    let text = [HEADER, b"#!/bin/sh"].concat();
    assert_refused(load(&text, ""), &["m.wasm"]);
    assert_refused(load(&[HEADER, &section(1, &[0xff; 5])].concat(), ""), &["damaged"]);
    let component = b"\0asm\x0d\0\x01\0";
    assert_refused(load(component, ""), &["components"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A module with any changed bytes is refused, or its calls end.
    #[test]
    fn a_damaged_module_is_refused_or_its_calls_end(at in any::<prop::sample::Index>(), with in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let mut bytes = with_function(code::GROW_TABLE).table(1).encode();
        let at = at.index(bytes.len());
        bytes[at] = with;
        if with % 4 == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(module) = load(&bytes, "[wasm]\ndeadline_ms = 5") && let Some(name) = module.names.first() {
            let _ = module.call(name, b"input", 16);
        }
        let _ = load_function(&bytes, "f");
    }
}
