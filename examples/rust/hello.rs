//! Leases a core, calls two functions on it, and gives it back. The same program is in c/, cpp/, python/,
//! fortran/ and go/; the functions are in functions/. With `sublet up` running:
//!
//! ```sh
//! cargo run --release -p sublet-examples --bin hello -- ./libhello.so
//! ```

use std::process::ExitCode;

use sublet::{Allocation, Error, Invoker};

const OUTPUT_BYTES: usize = 64;

fn run(package: &str) -> Result<(), Error> {
    // A lease of one core. It takes some milliseconds; calls take less than one thousandth of that.
    let mut invoker = Invoker::connect()?;
    invoker.allocate(&Allocation::new(package))?;

    // Memory that the worker shares: it reads input and writes output in place. Values are copied in and out.
    let mut input = invoker.buffer::<u8>(OUTPUT_BYTES)?;
    let mut greeting = invoker.buffer::<u8>(OUTPUT_BYTES)?;
    let mut loud = invoker.buffer::<u8>(OUTPUT_BYTES)?;
    input.copy_from(0, b"world");

    let size = invoker.submit("greet", &input.part(..5), &mut greeting)?.wait()?.output_bytes;
    println!("{}", String::from_utf8_lossy(&greeting.part(..size).to_vec()));

    // The output of one call is the input of the next.
    let size = invoker.submit("shout", &greeting.part(..size), &mut loud)?.wait()?.output_bytes;
    println!("{}", String::from_utf8_lossy(&loud.part(..size).to_vec()));

    // A call that fails says why.
    if let Err(error) = invoker.submit("greet", &input.part(..0), &mut greeting)?.wait() {
        println!("{}: {error}", error.code);
    }

    let usage = invoker.deallocate()?;
    println!("{} calls, {} of them failed", usage.calls, usage.failed_calls);
    Ok(())
}

fn main() -> ExitCode {
    let package = std::env::args().nth(1).unwrap_or_else(|| "./libhello.so".into());
    match run(&package) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", error.code);
            ExitCode::from(error.code.exit_status())
        }
    }
}
