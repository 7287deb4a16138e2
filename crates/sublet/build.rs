//! Builds the functions of `sublet bench` into a shared object that the command carries in itself.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=functions/bench.c");
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bench.so");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-std=c11", "-O2", "-fPIC", "-shared", "-s", "functions/bench.c", "-o"])
        .arg(&out)
        .status();
    match status {
        Ok(status) if status.success() => {}
        outcome => panic!("the C compiler `{compiler}` did not build functions/bench.c: {outcome:?}"),
    }
}
