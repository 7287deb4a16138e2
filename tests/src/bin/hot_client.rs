//! A client that counts what hot calls cost it: `hot-client MANAGER PACKAGE CALLS` prints how often memory was
//! allocated or freed by the thread that made that many calls, and how often while it did so on purpose.
//!
//! Before and after the calls it asks for the group of process 5943783, which does not exist: a tracer of its system
//! calls finds the calls between the two.
#![allow(unsafe_code)]
// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::{Pid, getpgid};
use sublet::{Allocation, Buffer, CallOptions, Error, Invoker, Policy};
use sublet_tests::process::stay_on_lowest_core;

/// No process has this number.
const MARKER: i32 = 5_943_783;
/// Calls before it counts, which touch everything once.
const WARM_UP: u32 = 1000;

/// The system's allocator, and how often this thread has asked it for anything.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn counted() {
    COUNT.set(COUNT.get() + 1);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is handed on to the system's allocator, whose duties these are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted();
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        counted();
        // SAFETY: as above; the block came from there.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        counted();
        // SAFETY: as above.
        unsafe { System.realloc(block, layout, size) }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    let (Some(manager), Some(package), Some(calls)) =
        (arguments.get(1), arguments.get(2), arguments.get(3).and_then(|calls| calls.parse().ok()))
    else {
        eprintln!("usage: hot-client MANAGER PACKAGE CALLS");
        return ExitCode::from(2);
    };
    match count(manager, package, calls) {
        Ok([hot, deliberate]) => {
            println!("{hot} {deliberate}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hot-client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn count(manager: &str, package: &str, calls: u32) -> Result<[u64; 2], Error> {
    let mut invoker = Invoker::connect_to(manager)?;
    stay_on_lowest_core();
    invoker.allocate(&Allocation::new(package).policy(Policy::AlwaysHot).spin(Duration::MAX))?;
    let mut input = invoker.buffer::<u8>(64)?;
    let mut output = invoker.buffer::<u8>(64)?;
    call(&invoker, &mut input, &mut output, WARM_UP)?;
    let before = COUNT.get();
    mark();
    call(&invoker, &mut input, &mut output, calls)?;
    mark();
    let after = COUNT.get();
    drop(std::hint::black_box(Box::new(1)));
    let deliberate = COUNT.get() - after;
    invoker.deallocate()?;
    Ok([after - before, deliberate])
}

/// Makes calls by name and by handle, in place and copied into the inbox, one at a time and two at a time.
fn call(invoker: &Invoker, input: &mut Buffer<u8>, output: &mut Buffer<u8>, calls: u32) -> Result<(), Error> {
    let echo = invoker.function("echo")?;
    let (mut first, mut second) = output.part_mut(..).split_at(32);
    for number in 0..calls / 4 {
        let (bytes, mut returned) = (number.to_le_bytes(), [0; 4]);
        input.copy_from(0, &bytes);
        let half = input.part(..32);
        invoker.submit("echo", &half, &mut first)?.wait()?;
        first.as_part().copy_to(0, &mut returned);
        assert_eq!(returned, bytes);
        let in_place = invoker.submit_with(echo, &half, &mut first, CallOptions::default())?;
        let copied = invoker.submit_with(echo, &bytes, &mut second, CallOptions::default())?;
        in_place.wait()?;
        copied.wait()?;
        second.as_part().copy_to(0, &mut returned);
        assert_eq!(returned, bytes);
        invoker.submit("echo", &input.part(..0), &mut first)?.wait()?;
    }
    Ok(())
}

fn mark() {
    // That it fails is the point.
    let _ = getpgid(Pid::from_raw(MARKER));
}
