//! A function in Rust, for every processor:
//!
//!     rustc --edition 2024 --target wasm32-unknown-unknown --crate-type cdylib -O -C panic=abort reverse.rs
//!     sublet deploy reverse.wasm
//!     printf 'drei Äpfel' | sublet call reverse/reverse --input - --output -

/// The context of a call: `struct sublet_context` of `sublet_function.h`.
#[repr(C)]
pub struct Context {
    size_bytes: u32,
    capacity: u32,
}

#[link(wasm_import_module = "sublet")]
unsafe extern "C" {
    #[link_name = "fail"]
    fn sublet_fail(message: *const std::ffi::c_char);
}

/// Turns text around, letter by letter.
///
/// # Safety
/// Sublet calls it with `size` bytes of input, as many bytes of output as the context's capacity, and the call's
/// context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reverse(input: *const u8, size: u32, output: *mut u8, context: *const Context) -> u32 {
    // SAFETY: the caller promises it.
    let (input, output) = unsafe {
        let capacity = (*context).capacity as usize;
        (std::slice::from_raw_parts(input, size as usize), std::slice::from_raw_parts_mut(output, capacity))
    };
    let reversed = str::from_utf8(input).map(|text| text.chars().rev().collect::<String>());
    match reversed {
        Ok(text) if text.len() <= output.len() => {
            output[..text.len()].copy_from_slice(text.as_bytes());
            text.len() as u32
        }
        Ok(_) => fail(c"the text does not fit the output"),
        Err(_) => fail(c"the input is not UTF-8"),
    }
}

fn fail(message: &std::ffi::CStr) -> u32 {
    // SAFETY: a text that ends with 0.
    unsafe { sublet_fail(message.as_ptr()) };
    0
}
