//! The agent's end of what this crate's programs do for it: they tell it by the socket that is their standard input.

use std::process::ExitCode;

use rustix::process::{Signal, getpid, kill_process};
use sublet_fabric::packet::PacketSocket;
use sublet_proto::{Code, Error};

/// The socket, by a descriptor of its own.
pub(crate) fn socket() -> Result<PacketSocket, Error> {
    let failed = |error| Error::new(Code::System, format!("taking the control socket: {error}"));
    rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map(PacketSocket::from).map_err(failed)
}

/// Ends the program when it has told what there is.
pub(crate) fn leave(told: Result<(), Error>) -> ExitCode {
    if let Err(error) = told {
        eprintln!("sublet-device-builder: {error}");
    }
    // Drivers have threads that may hang when they are told to end; nobody needs their end.
    let _ = kill_process(getpid(), Signal::KILL);
    ExitCode::FAILURE
}
