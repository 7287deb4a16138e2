//! The process that reads strangers' programs for devices: with the name of a kind it builds the package of its sandbox for
//! an agent, see `sublet_devices::prepare`; otherwise it is a part of that, see `sublet_devices::builder`.

use std::process::ExitCode;

use sublet_devices::{Kind, builder, prepare};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [kind] if kind == "opencl" => prepare::serve(Kind::OpenCl),
        [kind] if kind == "cuda" => prepare::serve(Kind::Cuda),
        _ => builder::serve(),
    }
}
