//! Implements the part that all worker programs share: an agent starts one with its control socket as standard input,
//! and it runs a worker process on that.

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use sublet_proto::Error;

use super::engine::{Engine, EngineLoad};
use super::preparation::status;
use super::process;
use super::spawned::Execute;

/// The whole of a worker program. `execute` executes programs of the package in place of functions.
pub fn main<E: Engine>(load: impl FnOnce(&EngineLoad<'_>) -> Result<E, Error>, execute: Execute) -> ExitCode {
    ExitCode::from(run(load, execute))
}

/// Runs a worker program like `main`, for programs that end in their own way. Returns the exit status.
pub fn run<E: Engine>(load: impl FnOnce(&EngineLoad<'_>) -> Result<E, Error>, execute: Execute) -> u8 {
    // The sandbox starts the program under another name; this name identifies it in the machine's list of processes.
    let _ = rustix::thread::set_name(c"sublet-worker");
    // A bug of ours must not leave a client waiting for a thread that is gone.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        hook(panic);
        std::process::abort();
    }));
    let control = match take_standard_input() {
        Ok(control) => control,
        Err(error) => {
            eprintln!("sublet-worker is started by an agent, with a socket as its standard input: {error}");
            return 2;
        }
    };
    status(process::run(control, load, execute))
}

/// Takes the control socket out of the way of functions that read standard input.
fn take_standard_input() -> std::io::Result<OwnedFd> {
    let stdin = rustix::stdio::stdin();
    rustix::net::sockopt::socket_type(stdin)?;
    let control = rustix::io::fcntl_dupfd_cloexec(stdin, 3)?;
    let null = std::fs::File::open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(control)
}
