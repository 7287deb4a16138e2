//! The program of packages of kernels, of every kind of devices: an agent starts it in a sandbox. With the name of a kind it
//! is a worker, see `sublet_devices::worker`. With a kind and the index of a build it builds that build of a package, see
//! `sublet_devices::prepare`. With a kind and `device` it describes the device, see `sublet_devices::describe`. Otherwise
//! it compiles one job of an untrusted program, see `sublet_devices::builder`.

use std::process::ExitCode;

use sublet_devices::{DriverKind, builder, describe, prepare, worker};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let kind =
        |name: &str| [DriverKind::OpenCl, DriverKind::Cuda].into_iter().find(|kind| kind.to_string() == name);
    match words.as_slice() {
        [name] => kind(name).map_or(ExitCode::from(2), worker::serve),
        [name, what] if what == "device" => kind(name).map_or(ExitCode::from(2), describe::serve),
        [name, build] => match (kind(name), build.parse()) {
            (Some(kind), Ok(build)) => prepare::serve(kind, build),
            _ => ExitCode::from(2),
        },
        _ => builder::server::serve(),
    }
}
