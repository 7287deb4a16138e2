//! Makes a Python interpreter a template: a warm process that is forked into sandboxes, and may be a worker
//! there.
//!
//! The spawner starts the interpreter, which loads this library as the module `sublet_template` and executes its
//! [`SOURCE`]. A copy that is to execute functions calls [`worker`]. It is for every Python from 3.11 on.
//!
//! It is loaded before the C library, too (`LD_PRELOAD`), for copies that swap what they allocate.

#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod call_memory;
mod component;
mod kept_replies;
mod objects;
mod output_space;
mod shared;
mod worker;
mod xpu;

use std::cell::RefCell;
use std::ffi::OsString;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use sublet_proto::v1::ColdImports;
use sublet_runtime::worker::loading;
use sublet_sandbox::template::{self, Runtime, StandbyImports, TemplateProgram, Threads, WaitingCopy};

sublet_runtime::interpose_malloc!();

/// The program of the template, in Python: the interpreter executes it.
const SOURCE: &str = include_str!("template.py");

/// The interpreter that has loaded this.
struct LoadedInterpreter;

impl Runtime for LoadedInterpreter {
    const THREADS: Threads = Threads::One;

    fn before_fork(&mut self) {
        // SAFETY: this thread holds the interpreter's lock throughout `serve`, and forks next.
        unsafe { pyo3::ffi::PyOS_BeforeFork() }
    }

    fn after_fork(&mut self) {
        // SAFETY: this thread has just forked, after `before_fork`.
        unsafe { pyo3::ffi::PyOS_AfterFork_Parent() }
    }
}

/// The program's path, its arguments, and its environment as NAME=VALUE.
type Words = (OsString, Vec<OsString>, Vec<OsString>);

thread_local! {
    /// This copy, from its fork until it is the program: of its only thread.
    static COPY: RefCell<Option<WaitingCopy>> = const { RefCell::new(None) };
}

/// Waits to be forked, and returns in each copy: see [`template::serve`].
#[pyfunction]
fn serve() -> PyResult<()> {
    let copy = template::serve(&mut LoadedInterpreter)?;
    // SAFETY: this process was forked after `before_fork` by the thread that runs here, which holds the lock.
    unsafe { pyo3::ffi::PyOS_AfterFork_Child() };
    COPY.set(Some(copy));
    Ok(())
}

/// Returns the reason why this process cannot be forked now, if there is one: see [`template::obstacle`].
#[pyfunction]
fn obstacle() -> Option<String> {
    template::obstacle::<LoadedInterpreter>()
}

/// Tells the spawner why this process never becomes a template: see [`template::refuse`].
#[pyfunction]
fn refuse(module: String, reason: String, import_ms: u32) -> PyResult<()> {
    Ok(template::refuse(ColdImports { module, reason, import_ms })?)
}

/// Modules to import, and the environment as NAME=VALUE.
type StandbyWords = (Vec<OsString>, Vec<OsString>);

/// In a copy: returns the modules to import if it is put on standby, and the environment for that. Returns nothing if its
/// program is known: see [`WaitingCopy::await_imports`].
#[pyfunction]
fn imports() -> PyResult<Option<StandbyWords>> {
    COPY.with_borrow_mut(|copy| {
        let copy = copy.as_mut().ok_or_else(is_no_copy)?;
        Ok(copy.await_imports().map(|StandbyImports { modules, env }| (modules, env)))
    })
}

/// In a copy that has imported its modules: waits until its program is known. Threads of the modules run meanwhile.
#[pyfunction]
fn stand_by(py: Python<'_>) -> PyResult<()> {
    COPY.with_borrow(|copy| {
        let copy = copy.as_ref().ok_or_else(is_no_copy)?;
        copy.tell_waiting()?;
        let orders = copy.orders();
        py.detach(move || template::await_readable(orders))?;
        Ok(())
    })
}

/// In an interpreter that is on standby in a container of its image, and has imported its modules: waits for the program, and
/// returns it once it is to be started. Threads of the modules run meanwhile.
#[pyfunction]
fn contained_program(py: Python<'_>) -> PyResult<Words> {
    py.detach(template::await_contained_program)?;
    let TemplateProgram { path, args, env } = template::contained_program()?;
    Ok((path.into_os_string(), args, env))
}

fn is_no_copy() -> PyErr {
    PyRuntimeError::new_err("this is no copy that waits")
}

/// In a copy: waits until it is to be the program.
#[pyfunction]
fn program() -> PyResult<Words> {
    let copy = COPY.take().ok_or_else(is_no_copy)?;
    let TemplateProgram { path, args, env } = copy.become_program();
    Ok((path.into_os_string(), args, env))
}

/// Tells the client what a worker that loads its package does now.
#[pyfunction]
fn step(step: &str) {
    loading::step(step);
}

/// The module, as the interpreter knows it.
#[pymodule]
fn sublet_template(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("SOURCE", SOURCE)?;
    module.add_function(wrap_pyfunction!(serve, module)?)?;
    module.add_function(wrap_pyfunction!(obstacle, module)?)?;
    module.add_function(wrap_pyfunction!(refuse, module)?)?;
    module.add_function(wrap_pyfunction!(worker::work, module)?)?;
    module.add_function(wrap_pyfunction!(step, module)?)?;
    module.add_function(wrap_pyfunction!(output_space::output_space, module)?)?;
    module.add_function(wrap_pyfunction!(component::instance, module)?)?;
    module.add_function(wrap_pyfunction!(component::open_channel, module)?)?;
    module.add_function(wrap_pyfunction!(component::send, module)?)?;
    module.add_function(wrap_pyfunction!(component::receive, module)?)?;
    xpu::add(module)?;
    module.add_function(wrap_pyfunction!(imports, module)?)?;
    module.add_function(wrap_pyfunction!(stand_by, module)?)?;
    module.add_function(wrap_pyfunction!(contained_program, module)?)?;
    module.add_function(wrap_pyfunction!(program, module)?)
}
