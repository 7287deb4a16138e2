//! Functions of every form, and functions that fail in every way: what the tests of the platform call.

use std::collections::HashMap;
use std::time::Duration;

use sublet_function::{FunctionCall, FunctionError};

fn twice(input: &[f64]) -> Vec<f64> {
    input.iter().map(|x| 2.0 * x).collect()
}

fn sums(pairs: &[[i32; 2]], output: &mut [i32]) -> usize {
    for (sum, [a, b]) in output.iter_mut().zip(pairs) {
        *sum = a + b;
    }
    pairs.len()
}

/// The words of a text, each with its count, in the order of the alphabet.
fn words(text: &str) -> String {
    let mut counts = HashMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word).or_insert(0) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_unstable();
    counts.iter().map(|(word, count)| format!("{word} {count}\n")).collect()
}

/// Writes the running sum of its input, a piece at a time.
fn running_sum(call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
    const PIECE: usize = 512;
    let input = call.input();
    let count = input.count::<f64>()?;
    if count > call.output().capacity::<f64>() {
        return Err(FunctionError::new("the output is too small for the sums"));
    }
    let (mut piece, mut sum) = ([0.0; PIECE], 0.0);
    for start in (0..count).step_by(PIECE) {
        let piece = &mut piece[..PIECE.min(count - start)];
        input.copy_to(start, piece);
        for value in piece.iter_mut() {
            sum += *value;
            *value = sum;
        }
        call.output().copy_from(start, piece);
    }
    Ok(input.len_bytes())
}

/// Fails with its input.
fn refuse(why: &str) -> Result<(), String> {
    Err(why.to_owned())
}

/// Panics if the second number is 0.
fn divide(numbers: &[i32]) -> [i32; 1] {
    [numbers[0] / numbers[1]]
}

/// Ends the process.
fn quit(_: &[u8]) {
    std::process::abort()
}

/// Calls `divide` by its name.
fn delegate(call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
    let numbers = call.input().to_vec::<u8>()?;
    let mut quotient = [0; 4];
    let written = call.call("divide", &numbers, &mut quotient)?;
    call.output().copy_from(0, &quotient[..written]);
    Ok(written)
}

/// Writes 1, 2, ... up to its input into the memory component "numbers", and hands on how many there are.
fn fill(call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
    let count: u64 = call.input().get(0);
    let numbers = call.open("numbers")?;
    let values: Vec<u64> = (1..=count).collect();
    let (first, rest) = values.split_at(values.len() / 2);
    // Longer than needed at first, so that there is something to cut off.
    call.grow(numbers, 8 * count + 8)?;
    call.write(numbers, 0, first)?;
    call.write_async(numbers, 8 * first.len() as u64, rest)?;
    call.resize(numbers, 8 * count)?;
    call.sync(numbers)?;
    call.output().set(0, count);
    Ok(8)
}

/// Adds up the numbers that are this instance's part, and puts the sum into its element of "sums".
fn share(call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
    let (instance, instances) = call.instance();
    let (numbers, sums) = (call.open("numbers")?, call.open("sums")?);
    let size = call.size(numbers)?;
    call.prefetch(numbers, 0, size)?;
    let mut values = vec![0u64; size as usize / 8];
    call.read(numbers, 0, &mut values)?;
    call.release(numbers)?;
    let sum: u64 = values.iter().skip(instance as usize).step_by(instances as usize).sum();
    call.write(sums, 8 * u64::from(instance), &[sum])?;
    call.output().set(0, sum);
    Ok(8)
}

/// Adds up "sums".
fn total(call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
    let sums = call.open("sums")?;
    let mut values = vec![0u64; call.size(sums)? as usize / 8];
    call.read(sums, 0, &mut values)?;
    call.output().set(0, values.iter().sum::<u64>());
    Ok(8)
}

/// Tries to open a memory component, to send and to receive, and returns the numbers of the three errors.
fn outside(call: &mut FunctionCall<'_>) -> Result<usize, FunctionError> {
    let moment = Duration::from_millis(1);
    let refused = [
        call.open("numbers").map(drop),
        call.send("other", 0, b"abc", moment),
        call.receive("other", &mut [0; 8], moment).map(drop),
    ];
    let numbers = refused.map(|refused| refused.map_or_else(|error| error.number(), |()| 0));
    call.output().copy_from(0, &numbers);
    Ok(size_of_val(&numbers))
}

sublet_function::export!(fill, share, total, outside);
sublet_function::export!(twice, sums, words, running_sum, refuse, divide, quit, delegate, double = twice);
