//! The process that reads strangers' programs for devices. Sublet starts it: see `sublet_devices::builder`.

use std::process::ExitCode;

fn main() -> ExitCode {
    sublet_devices::builder::serve()
}
