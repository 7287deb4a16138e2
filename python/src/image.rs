//! Images in which functions run, named by the caller.

use pyo3::prelude::*;
use sublet_proto::package::is_pinned;

use crate::error::raised;

/// Asks the registry of an image for its present digest, unless the name has one. Returns the name with the digest.
#[pyfunction]
pub fn pin_image(py: Python<'_>, name: &str) -> PyResult<String> {
    if is_pinned(name) {
        return Ok(name.to_owned());
    }
    let digest =
        py.detach(|| sublet_image::current_digest(name)).map_err(|error| raised(py, &error.into()))?;
    Ok(format!("{name}@{digest}"))
}
