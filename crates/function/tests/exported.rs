//! Exports functions in a crate that forbids unsafe code, under their names and under others.

#![forbid(unsafe_code)]
#![deny(warnings)]

mod maths {
    pub fn half(input: &[f64]) -> Vec<f64> {
        input.iter().map(|x| x / 2.0).collect()
    }
}

// A name that the macro might use itself.
fn run(input: &[f64]) -> Vec<f64> {
    maths::half(input)
}

sublet_function::export!(run, halve = maths::half);

#[test]
fn exported_functions_are_callable_in_rust() {
    assert_eq!(run(&[3.0]), maths::half(&[3.0]));
}
