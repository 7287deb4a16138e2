//! The forms of a function: how its arguments come from a call, and its result goes there.

use crate::{Count, FunctionCall, FunctionError, PlainValue, ReturnValue};

/// A function of one of the [forms](crate#forms). `Form` distinguishes the forms for the compiler, which infers it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no form that Sublet calls",
    note = "the forms are `fn(&[T]) -> R`, `fn(&str) -> R`, `fn(&[T], &mut [U]) -> C` and `fn(&mut FunctionCall<'_>) -> C`, where T and U are `PlainValue`, R is a `ReturnValue` and C a `Count`",
    note = "a result does not refer to the input: return an owned value"
)]
pub trait Callable<Form> {
    /// Executes a call, and returns the size of the output in bytes.
    ///
    /// # Errors
    /// The function's own error, or that of an input that has not the form's type.
    fn execute(&self, call: &mut FunctionCall<'_>) -> Result<usize, FunctionError>;
}

impl<F, T, R> Callable<fn(&[T]) -> R> for F
where
    F: Fn(&[T]) -> R,
    T: PlainValue,
    R: ReturnValue,
{
    fn execute(&self, call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
        let input = call.input().to_vec::<T>()?;
        self(&input).write(call.output())
    }
}

impl<F, R> Callable<fn(&str) -> R> for F
where
    F: Fn(&str) -> R,
    R: ReturnValue,
{
    fn execute(&self, call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
        let input = call.input().to_vec::<u8>()?;
        let text = str::from_utf8(&input).map_err(|error| {
            FunctionError::new(format_args!("the input is not UTF-8 from byte {} on", error.valid_up_to()))
        })?;
        self(text).write(call.output())
    }
}

impl<F, T, U, C> Callable<fn(&[T], &mut [U]) -> C> for F
where
    F: Fn(&[T], &mut [U]) -> C,
    T: PlainValue,
    U: PlainValue,
    C: Count,
{
    fn execute(&self, call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
        let input = call.input().to_vec::<T>()?;
        let mut output = vec![U::default(); call.output().capacity::<U>()];
        let count = self(&input, &mut output).count()?;
        if let Some(written) = output.get(..count) {
            call.output().copy_from(0, written);
        }
        Ok(count.saturating_mul(size_of::<U>()))
    }
}

impl<F, C> Callable<fn(&mut FunctionCall<'_>) -> C> for F
where
    F: Fn(&mut FunctionCall<'_>) -> C,
    C: Count,
{
    fn execute(&self, call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
        self(call).count()
    }
}
