//! A client that is there to be killed: `holding-client MANAGER PACKAGE` takes a lease, submits calls that never
//! return, says so when the first of them executes, and waits.

// A cast that may lose something says why it does not. Tests cast numbers that they have chosen.
#![cfg_attr(
    not(test),
    warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)
)]

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use sublet::{Allocation, Error, Invocation, Invoker, Policy};

/// Calls in flight: one executes, the others wait in the inbox.
const CALLS: usize = 3;
/// Words of memory that is really there.
const BUFFER_WORDS: usize = 4 << 20;
/// Value that `spin` writes into the first word of its input.
const BEGUN: u32 = 1;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, manager, package] = arguments.as_slice() else {
        eprintln!("usage: holding-client MANAGER PACKAGE");
        return ExitCode::from(2);
    };
    match hold(manager, package) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holding-client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hold(manager: &str, package: &str) -> Result<(), Error> {
    let mut invoker = Invoker::connect_to(manager)?;
    let mut buffer = invoker.buffer::<u32>(BUFFER_WORDS)?;
    buffer.fill(BEGUN + 1);
    invoker.allocate(&Allocation::new(package).policy(Policy::AlwaysHot))?;
    let mut outputs = [[0u8; 8]; CALLS];
    let calls: Result<Vec<Invocation<'_>>, Error> =
        outputs.iter_mut().map(|output| invoker.submit("spin", &buffer, output)).collect();
    let mut calls = calls?;
    while buffer.atomic(0).load(Ordering::Acquire) != BEGUN {
        std::hint::spin_loop();
    }
    println!("{} calls", calls.iter_mut().map(Invocation::is_ready).filter(|ready| !ready).count());
    // The reader of standard output may have exited already.
    let _ = std::io::stdout().flush();
    loop {
        std::thread::park();
    }
}
