//! Tests calls as a worker makes them, with a context of the tests' own.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use super::*;

/// A context behind which the test finds what the function has reported.
#[repr(C)]
struct Recorder {
    context: FunctionContext,
    message: Option<String>,
    /// The names by which the function has called others.
    called: Vec<String>,
}

unsafe extern "C" fn record_failure(context: *mut FunctionContext, message: *const c_char) {
    // SAFETY: the context is the front of a recorder, and the message a string that ends with 0.
    unsafe {
        let recorder = context.cast::<Recorder>();
        let message = CStr::from_ptr(message).to_str().expect("messages are UTF-8").to_owned();
        (*recorder).message.get_or_insert(message);
    }
}

unsafe extern "C" fn second_of_three(_: *mut FunctionContext) -> u32 {
    1
}

unsafe extern "C" fn three(_: *mut FunctionContext) -> u32 {
    3
}

unsafe extern "C" fn reason(_: *mut FunctionContext) -> *const c_char {
    c"inner: no such luck".as_ptr()
}

/// Echoes for the name `echo`, and fails for every other one.
unsafe extern "C" fn call_other(
    context: *mut FunctionContext,
    name: *const c_char,
    input: *const u8,
    size: u32,
    output: *mut u8,
    capacity: u32,
    written: *mut u32,
) -> u32 {
    // SAFETY: the context is the front of a recorder; the other arguments are those of `sublet_call`.
    unsafe {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let succeeds = name == "echo" && size <= capacity;
        (*context.cast::<Recorder>()).called.push(name);
        if !succeeds {
            return 40;
        }
        std::ptr::copy(input, output, size as usize);
        written.write(size);
    }
    0
}

/// Refuses every operation of these arguments.
macro_rules! refuse {
    ($($argument:ty),*) => {{
        unsafe extern "C" fn refuse(_: *mut FunctionContext, $(_: $argument),*) -> u32 {
            52
        }
        refuse
    }};
}

static COMPONENTS: SharedTable = SharedTable(Components {
    instance: second_of_three,
    instances: three,
    why: reason,
    open: refuse!(*const c_char, *mut u32),
    size: refuse!(u32, *mut u64),
    read: refuse!(u32, u64, *mut u8, u64),
    write: refuse!(u32, u64, *const u8, u64),
    grow: refuse!(u32, u64),
    lending: [std::ptr::null(); 2],
    prefetch: refuse!(u32, u64, u64),
    sync: refuse!(u32),
    send: refuse!(*const c_char, u32, *const u8, u64, u64),
    receive: refuse!(*const c_char, *mut u8, u64, u64, *mut u64, *mut u32),
    write_async: refuse!(u32, u64, *const u8, u64),
    resize: refuse!(u32, u64),
    release: refuse!(u32),
    call: call_other,
});

struct SharedTable(Components);

// SAFETY: nothing writes it.
unsafe impl Sync for SharedTable {}

/// The outcome of a call: its output, or its message; or the size of an output that does not fit.
#[derive(Debug, PartialEq)]
enum Outcome {
    Output(Vec<u8>),
    Failed(String),
    TooLarge(u32),
}

fn call<Form>(function: impl Callable<Form>, input: &[u8], capacity: u32) -> Outcome {
    let mut output = vec![0xee; capacity as usize];
    let (outcome, _) = call_with(&function, input, &mut output);
    outcome
}

fn call_with<Form>(
    function: &impl Callable<Form>,
    input: &[u8],
    output: &mut [u8],
) -> (Outcome, Vec<String>) {
    let context = FunctionContext {
        size_bytes: size_of::<Recorder>() as u32,
        capacity: output.len() as u32,
        fail: record_failure,
        components: NonNull::from(&COMPONENTS.0),
    };
    let mut recorder = Recorder { context, message: None, called: Vec::new() };
    let at = (&raw mut recorder).cast::<FunctionContext>();
    // SAFETY: input and output have these sizes, and the context is this thread's own.
    let written = unsafe { run(function, input.as_ptr(), input.len() as u32, output.as_mut_ptr(), at) };
    let outcome = match recorder.message {
        Some(message) => {
            assert_eq!(written, 0, "a failed call has no output");
            Outcome::Failed(message)
        }
        None => match output.get(..written as usize) {
            Some(output) => Outcome::Output(output.to_vec()),
            None => Outcome::TooLarge(written),
        },
    };
    (outcome, recorder.called)
}

fn bytes<const N: usize>(values: [f64; N]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn failed(message: &str) -> Outcome {
    Outcome::Failed(message.to_owned())
}

fn twice(input: &[f64]) -> Vec<f64> {
    input.iter().map(|x| 2.0 * x).collect()
}

fn shout(text: &str) -> String {
    text.to_uppercase()
}

fn sums(input: &[[i32; 2]], output: &mut [i32]) -> Result<usize, &'static str> {
    if input.len() > output.len() {
        return Err("the output is too small for the sums");
    }
    for (sum, [a, b]) in output.iter_mut().zip(input) {
        *sum = a + b;
    }
    Ok(input.len())
}

fn reversed(call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
    let input = call.input();
    let count = input.count::<u32>()?;
    for index in 0..count {
        call.output().set(count - 1 - index, input.get::<u32>(index));
    }
    Ok(input.len_bytes())
}

#[test]
fn passes_values_and_text_in_and_out() {
    assert_eq!(call(twice, &bytes([1.0, -2.5]), 16), Outcome::Output(bytes([2.0, -5.0])));
    assert_eq!(call(twice, &[], 0), Outcome::Output(Vec::new()));
    assert_eq!(call(shout, "drei Äpfel".as_bytes(), 64), Outcome::Output("DREI ÄPFEL".into()));
    let pairs: Vec<u8> = [1_i32, 2, 3, 4].iter().flat_map(|value| value.to_ne_bytes()).collect();
    let expected: Vec<u8> = [3_i32, 7].iter().flat_map(|value| value.to_ne_bytes()).collect();
    assert_eq!(call(sums, &pairs, 11), Outcome::Output(expected));
    assert_eq!(call(reversed, &[1, 0, 0, 0, 2, 0, 0, 0], 8), Outcome::Output(vec![2, 0, 0, 0, 1, 0, 0, 0]));
    assert_eq!(call(|_: &[u8]| [7_u16; 2], &[], 4), Outcome::Output([7_u16.to_ne_bytes(); 2].concat()));
    assert_eq!(call(|_: &[u8]| (), &[1], 4), Outcome::Output(Vec::new()));
}

#[test]
fn copies_input_that_is_not_aligned() {
    let shifted = [&[0][..], &bytes([1.5, 2.5])].concat();
    assert_eq!(call(twice, &shifted[1..], 16), Outcome::Output(bytes([3.0, 5.0])));
    let last = |call: &mut FunctionCall<'_>| {
        let mut values = [0.0; 1];
        call.input().copy_to::<f64>(1, &mut values);
        call.output().copy_from(0, &values);
        8
    };
    assert_eq!(call(last, &shifted[1..], 8), Outcome::Output(bytes([2.5])));
}

#[test]
fn rejects_input_of_another_type() {
    assert_eq!(call(twice, &[0; 7], 64), failed("the input has 7 bytes, which is not a multiple of 8 (f64)"));
    assert_eq!(
        call(reversed, &[0; 5], 64),
        failed("the input has 5 bytes, which is not a multiple of 4 (u32)")
    );
    assert_eq!(call(shout, b"ab\xff", 64), failed("the input is not UTF-8 from byte 2 on"));
}

#[test]
fn reports_size_of_output_that_does_not_fit() {
    let mut output = [0xee; 15];
    let (outcome, _) = call_with(&twice, &bytes([1.0, 2.0]), &mut output);
    assert_eq!(outcome, Outcome::TooLarge(16));
    assert_eq!(output, [0xee; 15], "nothing was written");
    assert_eq!(call(|_: &[u8], output: &mut [u16]| output.len() + 1, &[], 5), Outcome::TooLarge(6));
    let endless = |_: &mut FunctionCall<'_>| usize::MAX;
    assert_eq!(
        call(endless, &[], 8),
        failed("18446744073709551615 bytes of output are too many: at most 4 GiB - 1")
    );
}

#[test]
fn passes_errors_with_their_messages() {
    let refuse = |_: &[u8]| -> Result<(), std::num::ParseIntError> { "x".parse::<u8>().map(|_| ()) };
    assert_eq!(call(refuse, &[], 8), failed("invalid digit found in string"));
    assert_eq!(call(sums, &[0; 16], 4), failed("the output is too small for the sums"));
    assert_eq!(call(|_: &str| -> Result<(), &str> { Err("a\0b") }, &[], 0), failed("a\u{fffd}b"));
    let long = |_: &str| -> Result<(), String> { Err(format!("x{}", "ä".repeat(200))) };
    assert_eq!(call(long, &[], 0), failed(&format!("x{}", "ä".repeat(127))));
}

#[test]
fn panic_is_an_error_of_the_call() {
    let divide = |values: &[i32]| [values[0] / values[1]];
    let (one, zero) = (1_i32.to_ne_bytes(), 0_i32.to_ne_bytes());
    assert_eq!(call(divide, &[one, zero].concat(), 4), failed("panicked: attempt to divide by zero"));
    assert_eq!(call(divide, &[one, one].concat(), 4), Outcome::Output(one.to_vec()));
    let unusual = |_: &[u8]| -> () { std::panic::panic_any(Bomb) };
    assert_eq!(call(unusual, &[], 4), failed("panicked"));
    let beyond = |call: &mut FunctionCall<'_>| usize::from(call.input().get::<u16>(3));
    assert_eq!(
        call(beyond, &[0; 7], 4),
        failed("panicked: values 3..4 of 2 bytes lie beyond the 7 bytes of the call")
    );
    let far = |call: &mut FunctionCall<'_>| usize::from(call.input().get::<u16>(usize::MAX));
    assert!(matches!(call(far, &[0; 7], 4), Outcome::Failed(_)));
    let outside = |call: &mut FunctionCall<'_>| {
        call.output().copy_from(1, &[0_u32; 2]);
        0
    };
    assert!(matches!(call(outside, &[], 11), Outcome::Failed(_)));
}

/// A panic's payload whose drop panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn calls_other_functions_by_name() {
    let outer = |call: &mut FunctionCall<'_>| -> Result<usize, FunctionError> {
        let mut inner = [0; 4];
        let written = call.call("echo", b"abc", &mut inner)?;
        call.output().copy_from(0, &inner[..written]);
        call.call("nothing", &[], &mut [])
    };
    let (outcome, called) = call_with(&outer, &[], &mut [0; 4]);
    assert_eq!(outcome, failed("inner: no such luck"));
    assert_eq!(called, ["echo", "nothing"]);
    let invalid = |call: &mut FunctionCall<'_>| call.call("a\0b", &[], &mut []);
    assert_eq!(call(invalid, &[], 0), failed("\"a\\0b\" is not a valid name: it contains a zero byte"));
    let sends = |call: &mut FunctionCall<'_>| -> Result<usize, FunctionError> {
        let refused = call.open("numbers").unwrap_err();
        assert_eq!(refused.number(), 52);
        call.send("other", 0, b"abc", Duration::MAX).map(|()| 0)
    };
    assert_eq!(call(sends, &[], 0), failed("inner: no such luck"));
    let numbered = |call: &mut FunctionCall<'_>| {
        let (instance, instances) = call.instance();
        call.output().copy_from(0, &[instance, instances]);
        8
    };
    assert_eq!(call(numbered, &[], 8), Outcome::Output(vec![1, 0, 0, 0, 3, 0, 0, 0]));
}
