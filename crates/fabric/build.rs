//! Compiles the shim between Sublet and libfabric where libfabric's headers are. Without them all else is built, and
//! the ofi provider says why it is not. So it is for musl: libfabric is a library for glibc, which a process with musl
//! cannot load.

use std::path::Path;

const SOURCES: [&str; 3] = ["find.c", "link.c", "transfer.c"];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(libfabric)");
    println!("cargo::rerun-if-changed=ofi-shim");
    println!("cargo::rerun-if-changed=/usr/include/rdma/fabric.h");
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "musl") {
        return;
    }
    let folder = Path::new("ofi-shim");
    let probe = folder.join("probe.c");
    let quiet = || {
        let mut build = cc::Build::new();
        build.std("gnu11").warnings(true).extra_warnings(true).cargo_warnings(false);
        build
    };
    if let Err(error) = quiet().cargo_metadata(false).file(probe).try_compile("sublet_ofi_probe") {
        println!(
            "cargo::warning=built without the ofi provider: libfabric's headers (Debian: libfabric-dev, Fedora: \
             libfabric-devel) cannot be compiled against: {}",
            error.to_string().lines().next().unwrap_or_default()
        );
        return;
    }
    let sources = SOURCES.map(|name| folder.join(name));
    quiet().cargo_warnings(true).files(sources).compile("sublet_ofi_shim");
    println!("cargo::rustc-cfg=libfabric");
}
