//! Tells a worker from the processes that are forked from it, which use none of its objects.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sublet_proto::{Code, Error};

/// Set in a process that was forked from a worker. Written by its only thread.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Makes each forked child of this worker set [`FORKED`].
pub(crate) fn watch_forks(py: Python<'_>) -> PyResult<()> {
    let how = PyDict::new(py);
    how.set_item("after_in_child", wrap_pyfunction!(forked, py)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&how)).map(drop)
}

#[pyfunction]
fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process was forked from a worker.
pub(super) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Fails in a process that was forked from a worker.
pub(super) fn check_not_forked() -> Result<(), Error> {
    if is_forked() {
        let message = "this process was forked of a worker, and was not started by an agent: its FIFOs are its parent's";
        return Err(Error::new(Code::InvalidArgument, message));
    }
    Ok(())
}
