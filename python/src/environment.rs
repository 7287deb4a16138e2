//! Environments of Python, which the client resolves and gives to the managers.

use std::path::PathBuf;

use pyo3::prelude::*;
use sublet::{EnvironmentPlan, Error, PackageInfo, Requirements};

use crate::error::raised;
use crate::invoker::PyInvoker;

/// Digest of an environment, and the address by which packages name it.
type EnvironmentAddress = (String, String);

/// Function of the caller that is called with each step of the making of an environment.
struct StepCallback {
    function: Option<Py<PyAny>>,
    /// The exception of that function, which ends the calls of it.
    raised: Option<PyErr>,
}

impl StepCallback {
    fn tell(&mut self, step: &str) {
        let Some(function) = self.function.as_ref().filter(|_| self.raised.is_none()) else { return };
        self.raised = Python::attach(|py| function.call1(py, (step,)).err());
    }
}

/// Makes an environment of a list of requirements or of a file, unless the managers have it.
#[pyfunction]
#[pyo3(signature = (invoker, requirements, file, *, name, python, architecture, index, find_links, refresh, interpreter, step))]
#[expect(clippy::too_many_arguments, reason = "they have names where they are said")]
pub fn make_environment(
    py: Python<'_>,
    invoker: &PyInvoker,
    requirements: Option<Vec<String>>,
    file: Option<PathBuf>,
    name: Option<String>,
    python: Option<String>,
    architecture: Option<String>,
    index: Option<String>,
    find_links: Vec<String>,
    refresh: bool,
    interpreter: PathBuf,
    step: Option<Py<PyAny>>,
) -> PyResult<EnvironmentAddress> {
    let requirements =
        file.map_or_else(|| Requirements::List(requirements.unwrap_or_default()), Requirements::File);
    let plan =
        EnvironmentPlan { requirements, name, python, architecture, index, find_links, refresh, interpreter };
    let mut steps = StepCallback { function: step, raised: None };
    let made = py.detach(|| invoker.read().manager().make_environment(&plan, &mut |step| steps.tell(step)));
    match steps.raised {
        Some(error) => Err(error),
        None => found(py, made),
    }
}

/// Finds an environment by its name or digest.
#[pyfunction]
pub fn find_environment(py: Python<'_>, invoker: &PyInvoker, address: &str) -> PyResult<EnvironmentAddress> {
    found(py, py.detach(|| invoker.read().manager().find_environment(address)))
}

fn found(py: Python<'_>, info: Result<PackageInfo, Error>) -> PyResult<EnvironmentAddress> {
    let info = info.map_err(|error| raised(py, &error))?;
    let address = info.pinned_address();
    Ok((info.digest, address))
}
