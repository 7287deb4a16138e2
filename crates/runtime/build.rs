//! Builds the C++ guard (`guard/guard.cpp`) into a shared object that the worker carries in itself. Workers with musl have
//! none: the guard is compiled and linked for glibc.

use std::path::PathBuf;

use cc::{Build, Tool};

/// Environment variable that names the C++ compiler of the guard, where the target's usual one uses another C++ library
/// than GCC's.
const GUARD_COMPILER: &str = "SUBLET_GUARD_CXX";
/// Environment variable that says, if it is set, that zig links: its linker cannot export single symbols.
const ZIG_LINKS: &str = "SUBLET_ZIG_LINKS";

fn main() {
    export_functions();
    build_guard();
}

/// Exports the functions of `sublet_xpu.h` from workers: functions of packages call them by their names.
fn export_functions() {
    println!("cargo::rerun-if-env-changed={ZIG_LINKS}");
    if std::env::var_os(ZIG_LINKS).is_some() {
        // With them all other symbols with C names, of which a worker has few.
        println!("cargo::rustc-link-arg-bins=-rdynamic");
        return;
    }
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
}

fn build_guard() {
    println!("cargo::rerun-if-changed=guard/guard.cpp");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("guard.so");
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "musl") {
        std::fs::write(out, "").expect("a file can be written to OUT_DIR");
        return;
    }
    let compiler = guard_compiler();
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

/// Returns the compiler of the target: a worker of another architecture carries a guard of that architecture.
fn guard_compiler() -> Tool {
    println!("cargo::rerun-if-env-changed={GUARD_COMPILER}");
    let mut build = Build::new();
    build.cpp(true).no_default_flags(true);
    if let Some(compiler) = std::env::var_os(GUARD_COMPILER) {
        build.compiler(PathBuf::from(compiler));
    }
    build.get_compiler()
}
