//! Values that a function returns, and what becomes of them.

use std::fmt::Display;

use crate::{FunctionError, OutputView, PlainValue};

/// A value that is the output of a call: text, bytes, numbers; nothing; or a `Result` with one of these.
pub trait ReturnValue {
    /// Writes the value, and returns its size in bytes. Writes nothing if the output is smaller.
    ///
    /// # Errors
    /// The function's own error.
    fn write(self, output: &mut OutputView<'_>) -> Result<usize, FunctionError>;
}

/// Number of values or bytes that a function has written; or a `Result` with it.
pub trait Count {
    /// Returns the number.
    ///
    /// # Errors
    /// The function's own error.
    fn count(self) -> Result<usize, FunctionError>;
}

impl ReturnValue for () {
    fn write(self, _: &mut OutputView<'_>) -> Result<usize, FunctionError> {
        Ok(0)
    }
}

impl<T: PlainValue> ReturnValue for &[T] {
    fn write(self, output: &mut OutputView<'_>) -> Result<usize, FunctionError> {
        if size_of_val(self) <= output.capacity_bytes() {
            output.copy_from(0, self);
        }
        Ok(size_of_val(self))
    }
}

impl<T: PlainValue> ReturnValue for Vec<T> {
    fn write(self, output: &mut OutputView<'_>) -> Result<usize, FunctionError> {
        self.as_slice().write(output)
    }
}

impl<T: PlainValue> ReturnValue for Box<[T]> {
    fn write(self, output: &mut OutputView<'_>) -> Result<usize, FunctionError> {
        self.as_ref().write(output)
    }
}

impl<T: PlainValue, const N: usize> ReturnValue for [T; N] {
    fn write(self, output: &mut OutputView<'_>) -> Result<usize, FunctionError> {
        self.as_slice().write(output)
    }
}

impl ReturnValue for &str {
    fn write(self, output: &mut OutputView<'_>) -> Result<usize, FunctionError> {
        self.as_bytes().write(output)
    }
}

impl ReturnValue for String {
    fn write(self, output: &mut OutputView<'_>) -> Result<usize, FunctionError> {
        self.as_bytes().write(output)
    }
}

impl<R: ReturnValue, E: Display> ReturnValue for Result<R, E> {
    fn write(self, output: &mut OutputView<'_>) -> Result<usize, FunctionError> {
        self.map_err(FunctionError::new)?.write(output)
    }
}

impl Count for usize {
    fn count(self) -> Result<usize, FunctionError> {
        Ok(self)
    }
}

impl<E: Display> Count for Result<usize, E> {
    fn count(self) -> Result<usize, FunctionError> {
        self.map_err(FunctionError::new)
    }
}
