//! Builds the C++ guard (`guard/guard.cpp`) into a shared object that the worker carries in itself.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    // Functions call what `sublet_xpu.h` declares by its names.
    for symbols in ["sublet_x*", "sublet_*_cap", "sublet_cap_*", "sublet_get_xpupid"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbols}");
    }
    println!("cargo::rerun-if-changed=guard/guard.cpp");
    println!("cargo::rerun-if-env-changed=CXX");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("guard.so");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let status = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "guard/guard.cpp", "-o"])
        .arg(&out)
        .status();
    match status {
        Ok(status) if status.success() => {}
        outcome => panic!("the C++ compiler `{compiler}` did not build guard/guard.cpp: {outcome:?}"),
    }
}
