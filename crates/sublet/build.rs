//! Builds the functions of `sublet bench` into shared objects that the command carries in itself.

use std::path::PathBuf;
use std::process::Command;

const SOURCES: [&str; 2] = ["bench", "neighbours"];

fn main() {
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    for name in SOURCES {
        let source = format!("functions/{name}.c");
        println!("cargo::rerun-if-changed={source}");
        let status = Command::new(&compiler)
            .args(["-std=c11", "-O2", "-fPIC", "-shared", "-s", "-I../capi/include", &source, "-o"])
            .arg(out.join(format!("{name}.so")))
            .status();
        match status {
            Ok(status) if status.success() => {}
            outcome => panic!("the C compiler `{compiler}` did not build {source}: {outcome:?}"),
        }
    }
}
