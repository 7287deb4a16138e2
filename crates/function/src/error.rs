//! Defines the error of a function.

use std::fmt;

/// Number of the error code `function_failed`.
const FUNCTION_FAILED: u32 = 40;

/// Error of a call, with its message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionError {
    number: u32,
    pub(crate) message: String,
}

impl FunctionError {
    /// An error with this message.
    pub fn new(message: impl fmt::Display) -> FunctionError {
        FunctionError { number: FUNCTION_FAILED, message: message.to_string() }
    }

    /// The error of an operation that failed with this code.
    pub(crate) fn of_code(number: u32, message: String) -> FunctionError {
        FunctionError { number, message }
    }

    /// Number of Sublet's error code: that of a failed operation, or `function_failed`. The caller of a function that returns
    /// the error gets `function_failed` in either case.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl fmt::Display for FunctionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FunctionError {}
