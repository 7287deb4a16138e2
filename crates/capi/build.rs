//! Gives the shared library the name by which programs find it, whatever its file is called in the build folder.

/// Changes when the C interface breaks.
const INTERFACE: u32 = 0;

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsublet.so.{INTERFACE}");
    println!("cargo::rerun-if-changed=build.rs");
}
