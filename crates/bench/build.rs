//! Builds the functions of `sublet bench` as shared objects, and a server as a program. The command contains both.

use std::path::{Path, PathBuf};

use cc::Tool;

/// Shared objects of functions, and the program of a server.
const LIBRARIES: [&str; 4] = ["bench", "chain", "neighbours", "parts"];
const PROGRAM: &str = "http_chain";

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compiler = cc::Build::new().no_default_flags(true).get_compiler();
    for name in LIBRARIES {
        compile(&compiler, name, &["-fPIC", "-shared"], &out.join(format!("{name}.so")));
    }
    compile(&compiler, PROGRAM, &[], &out.join(PROGRAM));
}

fn compile(compiler: &Tool, name: &str, how: &[&str], to: &Path) {
    let source = format!("functions/{name}.c");
    println!("cargo::rerun-if-changed={source}");
    let mut command = compiler.to_command();
    command.args(["-std=c11", "-O2", "-s", "-I../capi/include"]).args(how).arg(&source).arg("-o").arg(to);
    match command.status() {
        Ok(status) if status.success() => {}
        outcome => {
            panic!("the C compiler `{}` did not build {source}: {outcome:?}", compiler.path().display())
        }
    }
}
