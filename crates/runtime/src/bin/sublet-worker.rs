//! The worker program of packages of native code.

use std::process::ExitCode;

use sublet_runtime::worker::library::Library;
use sublet_runtime::worker::program;

fn main() -> ExitCode {
    program::main(Library::load)
}
