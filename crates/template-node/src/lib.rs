//! Makes a Node.js process a template: a warm process that is forked into sandboxes, and may be a worker there.
//!
//! The spawner starts Node.js, which loads this library and executes its [`SOURCE`]. Node.js was not made to be forked.
//! These conditions make it possible:
//! - V8 has no threads of its own (`--single-threaded`).
//! - The few other threads of Node.js wait, and a copy does not need them.
//! - All memory is copied, even the memory that V8 excludes from forks.
//! - The event loop is begun again.
//! - A copy ends without releasing objects that it does not have.

#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod component;
mod ending;
mod loops;
mod memory;
mod operation;
mod values;
mod waiting;
mod worker;
mod xpu;

use std::cell::RefCell;

use napi_sys::{napi_callback_info, napi_env, napi_value};
use sublet_sandbox::template::{self, Runtime, TemplateProgram, Threads, WaitingCopy};

use values::{arguments, boolean, define, number, text, throw};

/// The program of the template, in JavaScript: Node.js executes it.
const SOURCE: &str = include_str!("template.js");

/// The Node.js process that has loaded this library.
struct NodeRuntime;

impl Runtime for NodeRuntime {
    const THREADS: Threads = Threads::Waiting;

    fn before_fork(&mut self) {
        // A failure shows in the copy only, which then ends.
        let _ = memory::copy_all();
    }

    fn after_fork(&mut self) {}
}

thread_local! {
    /// This copy, from its fork until it is the program: of Node.js's main thread.
    static COPY: RefCell<Option<WaitingCopy>> = const { RefCell::new(None) };
}

/// `serve()`: waits to be forked. Returns in each copy, before its program is known. See [`template::serve`].
///
/// # Safety
/// Node.js calls it, on its main thread.
unsafe extern "C" fn serve(env: napi_env, _: napi_callback_info) -> napi_value {
    match template::serve(&mut NodeRuntime) {
        Ok(copy) => {
            COPY.set(Some(copy));
            std::ptr::null_mut()
        }
        // SAFETY: as this function's.
        Err(error) => unsafe { throw(env, &error.to_string()) },
    }
}

/// `program()`: in a copy, waits until it is to become its program, and returns the program, as JSON.
///
/// # Safety
/// Node.js calls it, on its main thread.
unsafe extern "C" fn program(env: napi_env, _: napi_callback_info) -> napi_value {
    let Some(copy) = COPY.take() else {
        // SAFETY: as this function's.
        return unsafe { throw(env, "this is no copy that waits") };
    };
    let program = copy.become_program();
    // SAFETY: this is the main thread of a process that was forked, whose event loop has not run since.
    let begun = unsafe { loops::of(env).and_then(|own| loops::begin_again(own)) };
    match begun {
        // SAFETY: as this function's.
        Ok(()) => unsafe { text(env, &described(&program)) },
        // SAFETY: as this function's.
        Err(error) => unsafe { throw(env, &error.to_string()) },
    }
}

/// `exit(status)`: ends the process without any cleanup.
///
/// # Safety
/// Node.js calls it, on its main thread.
unsafe extern "C" fn exit(env: napi_env, info: napi_callback_info) -> napi_value {
    // SAFETY: as this function's.
    let status = unsafe {
        let [status] = arguments(env, info);
        number(env, status)
    };
    // SAFETY: ends the process, whatever its state. The C library's own end would wait for threads that are not here.
    unsafe { libc::_exit(status) }
}

/// `atEnd(function)`: registers a function that is called whenever no work is left. See [`ending`].
///
/// # Safety
/// Node.js calls it, on its main thread.
unsafe extern "C" fn at_end(env: napi_env, info: napi_callback_info) -> napi_value {
    // SAFETY: as this function's.
    let called = unsafe {
        let [function] = arguments(env, info);
        loops::of(env).and_then(|own| ending::call_at_end(env, own, function))
    };
    match called {
        Ok(()) => std::ptr::null_mut(),
        // SAFETY: as this function's.
        Err(error) => unsafe { throw(env, &error.to_string()) },
    }
}

/// `isAlive()`: whether work is left, for the function of `atEnd`.
///
/// # Safety
/// Node.js calls it, on its main thread.
unsafe extern "C" fn is_alive(env: napi_env, _: napi_callback_info) -> napi_value {
    // SAFETY: as this function's.
    let is_alive = unsafe { loops::of(env).is_ok_and(|own| ending::is_alive(own)) };
    // SAFETY: as this function's.
    unsafe { boolean(env, is_alive) }
}

fn described(program: &TemplateProgram) -> String {
    let lossy = |words: &[std::ffi::OsString]| -> Vec<String> {
        words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    };
    let path = program.path.to_string_lossy();
    serde_json::json!({ "path": path, "args": lossy(&program.args), "env": lossy(&program.env) }).to_string()
}

/// Entry point of the library: Node.js calls it when it loads the library.
///
/// # Safety
/// Node.js calls it, on its main thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn napi_register_module_v1(env: napi_env, exports: napi_value) -> napi_value {
    // SAFETY: as this function's.
    unsafe {
        define(env, exports, c"serve", serve);
        define(env, exports, c"program", program);
        define(env, exports, c"exit", exit);
        define(env, exports, c"atEnd", at_end);
        define(env, exports, c"isAlive", is_alive);
        define(env, exports, c"next", worker::next);
        define(env, exports, c"status", worker::status);
        define(env, exports, c"described", worker::described);
        define(env, exports, c"input", worker::input);
        define(env, exports, c"output", worker::output);
        define(env, exports, c"failed", worker::failed);
        define(env, exports, c"xpu", waiting::answer_xpu);
        define(env, exports, c"xpuWait", waiting::wait::<xpu::WaitingOperation>);
        define(env, exports, c"component", waiting::answer_component);
        define(env, exports, c"componentWait", waiting::wait::<component::ComponentOperation>);
        for (name, source) in [
            (c"SOURCE", SOURCE),
            (c"WORKER", worker::SOURCE),
            (c"XPU", xpu::SOURCE),
            (c"COMPONENT", component::SOURCE),
        ] {
            napi_sys::napi_set_named_property(env, exports, name.as_ptr(), text(env, source));
        }
    }
    exports
}
