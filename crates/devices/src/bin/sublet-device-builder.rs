//! The process that reads untrusted programs for devices. With the name of a kind and the index of a build it builds
//! that build of the package in its sandbox for an agent, see `sublet_devices::prepare`. With a kind and `device` it
//! describes the device, see `sublet_devices::describe`. Otherwise it compiles one job, see `sublet_devices::builder`.

use std::process::ExitCode;

use sublet_devices::{DriverKind, builder, describe, prepare};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let kind =
        |name: &str| [DriverKind::OpenCl, DriverKind::Cuda].into_iter().find(|kind| kind.to_string() == name);
    match words.as_slice() {
        [name, what] if what == "device" => kind(name).map_or(ExitCode::from(2), describe::serve),
        [name, build] => match (kind(name), build.parse()) {
            (Some(kind), Ok(build)) => prepare::serve(kind, build),
            _ => ExitCode::from(2),
        },
        _ => builder::server::serve(),
    }
}
