//! Exports functions in Rust for Sublet to call, as native code or as WebAssembly.
//!
//! A function is an ordinary one. [`export!`] gives it the C interface of `sublet_function.h`:
//!
//! ```
//! fn twice(input: &[f64]) -> Vec<f64> {
//!     input.iter().map(|x| 2.0 * x).collect()
//! }
//!
//! fn greet(name: &str) -> Result<String, &'static str> {
//!     if name.is_empty() { Err("the name is empty") } else { Ok(format!("Hello, {name}!")) }
//! }
//!
//! sublet_function::export!(twice, greet);
//! ```
//!
//! The crate of the functions is a `cdylib`. `cargo build --release` makes a shared object of it, and with `--target
//! wasm32-unknown-unknown` a WebAssembly module, from the same source.
//!
//! # Forms
//!
//! - `fn(&[T]) -> R` gets a copy of the input, as values of a [plain](PlainValue) type. Its result, a [`ReturnValue`], is the
//!   output.
//! - `fn(&str) -> R` is the same for text.
//! - `fn(&[T], &mut [U]) -> C` gets a copy of the input, and a slice of the output's size, which is copied out afterwards. `C` is
//!   a [`Count`] of the values that the function has written.
//! - `fn(&mut FunctionCall<'_>) -> C` reads [`FunctionCall::input`] and writes [`FunctionCall::output`] in place. `C` is a
//!   [`Count`] of bytes.
//!
//! # Errors
//!
//! A function fails by returning `Err`, with any error that can be displayed. The caller gets `function_failed` with the
//! text, of which Sublet keeps 256 bytes. A panic is an error of the call as well, with the text `panicked: ...`, and the
//! worker continues. It never unwinds into C. If the crate of the functions is compiled with `panic = "abort"`, a panic ends the
//! worker process instead (`worker_died`), except in WebAssembly. A reply that is larger than the output is
//! `output_too_large`.
//!
//! # Memory that the client may write
//!
//! Input and output lie in memory that the client has mapped. Clients promise not to touch it during the call, but nothing
//! stops one that does. Rust's references promise more than that: the bytes behind `&[u8]` do not change. Therefore safe
//! code never gets a reference to this memory. The forms with slices copy, once in each direction. For large data,
//! [`InputView`] and [`OutputView`] copy single values, or piece by piece through a small buffer that stays in the processor's cache,
//! which costs next to nothing. [`InputView::as_ptr`] and [`OutputView::as_mut_ptr`] are for functions that use the memory in place and
//! take responsibility for it.

#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

mod call;
mod components;
mod error;
mod form;
mod memory;
mod reply;

pub use call::{FunctionCall, FunctionContext, run};
pub use components::MemoryChannel;
pub use error::FunctionError;
pub use form::Callable;
pub use memory::{InputView, OutputView, PlainValue};
pub use reply::{Count, ReturnValue};

/// Exports functions under their names, or under other names: `export!(twice, half = maths::divide)`.
///
/// Each function has one of the [forms](crate#forms). The functions stay usable in Rust, for instance by tests. The macro
/// stands outside of functions, and once for a name: the linker refuses two symbols of one name.
#[macro_export]
macro_rules! export {
    ($($symbol:ident $(= $function:path)?),+ $(,)?) => {
        $($crate::export!(@symbol $symbol, $($function,)? $symbol);)+
    };
    (@symbol $symbol:ident, $function:path $(, $rest:ident)?) => {
        const _: () = {
            // Refers to the function here, where the symbol below does not hide it.
            unsafe fn __sublet_function(
                input: *const u8,
                size: u32,
                output: *mut u8,
                context: *mut $crate::FunctionContext,
            ) -> u32 {
                // SAFETY: the worker, which alone calls the symbol, passes these as the interface says.
                unsafe { $crate::run(&$function, input, size, output, context) }
            }
            const _: () = {
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $symbol(
                    input: *const u8,
                    size: u32,
                    output: *mut u8,
                    context: *mut $crate::FunctionContext,
                ) -> u32 {
                    // SAFETY: as above.
                    unsafe { __sublet_function(input, size, output, context) }
                }
            };
        };
    };
}
