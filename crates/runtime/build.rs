//! Builds the C++ guard (`guard/guard.cpp`) into a shared object that the worker carries in itself.

use std::path::PathBuf;

fn main() {
    // Functions of packages call the functions of `sublet_xpu.h` by their names.
    for symbols in [
        "sublet_x*",
        "sublet_*_cap",
        "sublet_cap_*",
        "sublet_get_xpupid",
        "sublet_executor_*",
        "sublet_chain_*",
    ] {
        println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbols}");
    }
    println!("cargo::rerun-if-changed=guard/guard.cpp");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("guard.so");
    // That of the target: workers of another architecture carry a guard of theirs.
    let compiler = cc::Build::new().cpp(true).no_default_flags(true).get_compiler();
    let status = compiler
        .to_command()
        .args(["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-s", "guard/guard.cpp", "-o"])
        .arg(&out)
        .status();
    match status {
        Ok(status) if status.success() => {}
        outcome => panic!(
            "the C++ compiler `{}` did not build guard/guard.cpp: {outcome:?}",
            compiler.path().display()
        ),
    }
}
