//! The targets that packages are made for: their names in each world, and how cargo builds for them.
//!
//! All are built against the C library of 2018, which zig has, so that one file runs on every distribution since.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cargo, root};

/// Folder of the programs that `scripts/setup.sh dist` installs.
pub(super) const TOOLS: &str = "target/tools/dist/bin";
/// Version of the C library; the symbol versions that it has are in `symbols.rs`.
const GLIBC: &str = "2.28";
/// Profile of everything that is published; see Cargo.toml.
pub const PROFILE: &str = "dist";

/// The packages whose programs and libraries are published.
pub const PACKAGES: &[&str] = &[
    "sublet-capi",
    "sublet-cli",
    "sublet-devices",
    "sublet-python",
    "sublet-runtime",
    "sublet-sandbox",
    "sublet-template-node",
    "sublet-template-python",
    "sublet-wasm",
];

/// A processor and system that packages are made for.
pub struct Target {
    /// Name of the target for Rust.
    pub triple: &'static str,
    /// Platform tag of wheels.
    pub platform: &'static str,
    /// Name of the architecture for Debian.
    pub debian: &'static str,
    /// Name of the architecture for OCI images.
    pub image: &'static str,
    /// Name of the target, for Rust, whose programs are linked with all that they need.
    pub static_triple: &'static str,
    /// Number of the architecture in ELF files.
    pub machine: u16,
    /// GCC's C++ compiler, which builds the guard: see `crates/runtime/build.rs`.
    guard_compiler: &'static str,
}

/// All targets. The first is the default.
pub const TARGETS: &[Target] = &[
    Target {
        triple: "x86_64-unknown-linux-gnu",
        platform: "manylinux_2_28_x86_64",
        debian: "amd64",
        image: "amd64",
        static_triple: "x86_64-unknown-linux-musl",
        machine: 62,
        guard_compiler: "x86_64-linux-gnu-g++",
    },
    Target {
        triple: "aarch64-unknown-linux-gnu",
        platform: "manylinux_2_28_aarch64",
        debian: "arm64",
        image: "arm64",
        static_triple: "aarch64-unknown-linux-musl",
        machine: 183,
        guard_compiler: "aarch64-linux-gnu-g++",
    },
];

impl Target {
    /// Returns the folder of what cargo builds for this target.
    pub fn built(&self) -> PathBuf {
        root().join("target").join(self.triple).join(PROFILE)
    }

    /// Whether programs of this target run on this machine.
    pub fn is_native(&self) -> bool {
        self.triple.starts_with(std::env::consts::ARCH)
    }

    /// Returns cargo's command that builds all that is published.
    pub fn build(&self) -> Command {
        let mut build = cargo();
        build.args(["zigbuild", "--locked", "--profile", PROFILE, "--target"]);
        build.arg(format!("{}.{GLIBC}", self.triple));
        for package in PACKAGES {
            build.args(["--package", package]);
        }
        self.equip(&mut build);
        build
    }

    /// Returns cargo's command that builds the command alone, linked with all that it needs.
    pub fn build_static(&self) -> Command {
        let mut build = cargo();
        build.args(["zigbuild", "--locked", "--profile", PROFILE, "--package", "sublet-cli"]);
        build.args(["--target", self.static_triple]);
        self.equip(&mut build);
        build
    }

    /// Sets the environment in which cargo, or a program that starts it, builds for this target.
    pub fn equip(&self, command: &mut Command) {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(root().join(TOOLS)).chain(std::env::split_paths(&inherited));
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
        // zig does not look for headers in this machine's folders: libfabric's are the same for each architecture.
        let flags = format!("-I{}", include_folder().display());
        command.env(format!("CFLAGS_{}", self.triple.replace('-', "_")), flags);
        command.env("SUBLET_GUARD_CXX", self.guard_compiler).env("SUBLET_TARGET", self.triple);
        command.env("SUBLET_ZIG_LINKS", "1");
        command.env("SUBLET_PROFILE", PROFILE);
    }
}

/// Folder of the headers of this machine that builds for other systems use.
fn include_folder() -> PathBuf {
    root().join("target/tools/include")
}

/// Makes the headers of libfabric available to builds. Without them the `ofi` provider would be missing.
pub fn provide_headers() -> std::io::Result<()> {
    let headers = Path::new("/usr/include/rdma");
    if !headers.join("fabric.h").exists() {
        return Err(std::io::Error::other("there are no headers of libfabric: run scripts/setup.sh dist"));
    }
    std::fs::create_dir_all(include_folder())?;
    let link = include_folder().join("rdma");
    if !link.exists() {
        std::os::unix::fs::symlink(headers, link)?;
    }
    Ok(())
}
