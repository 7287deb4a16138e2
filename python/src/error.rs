//! Errors, as Python raises them: the package's `_errors.of` knows the class of each code.

use pyo3::prelude::*;
use sublet::{Code, Error};

/// The exception of an error.
#[cold]
pub fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let made = py.import("sublet._errors").and_then(|module| {
        module.getattr("of")?.call1((error.code.to_string(), error.code.number(), error.message.as_str()))
    });
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// Makes the exception for an invalid argument.
#[cold]
pub fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raised(py, &Error::new(Code::InvalidArgument, message.into()))
}
