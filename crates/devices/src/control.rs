//! The agent's side of this crate's programs: they report to it by the socket that is their standard input.

use std::process::ExitCode;

use rustix::process::{Signal, getpid, kill_process};
use sublet_fabric::packet::PacketSocket;
use sublet_proto::{Code, Error};

/// Duplicates the socket to a descriptor of its own.
pub(crate) fn socket() -> Result<PacketSocket, Error> {
    let failed = |error| Error::new(Code::System, format!("taking the control socket: {error}"));
    rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map(PacketSocket::from).map_err(failed)
}

/// Ends the program after it has reported its result.
pub(crate) fn leave(told: Result<(), Error>) -> ExitCode {
    if let Err(error) = told {
        eprintln!("sublet-worker-kernels: {error}");
    }
    // Drivers have threads that may hang at a regular exit, and no work remains for them.
    let _ = kill_process(getpid(), Signal::KILL);
    ExitCode::FAILURE
}
