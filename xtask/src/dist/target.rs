//! The targets that packages are made for: their names in each world, and how cargo builds for them.
//!
//! All are built against the C library of 2018, which zig has, so that one file runs on every distribution since.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cargo, root};

/// Folder of the programs that `scripts/setup.sh dist` installs.
pub(super) const TOOLS: &str = "target/tools/dist/bin";
/// Version of the C library; the symbol versions that it has are in `symbols.rs`.
const GLIBC: &str = "2.28";
/// Profile of everything that is published; see Cargo.toml.
pub const PROFILE: &str = "dist";
/// Profile of the published programs without unwinding; see Cargo.toml.
const ABORT_PROFILE: &str = "dist-abort";

/// The packages whose programs and libraries are published, beside those of [`ABORT_PACKAGES`].
pub const PACKAGES: &[&str] = &[
    "sublet-capi",
    "sublet-cli",
    "sublet-python",
    "sublet-runtime",
    "sublet-sandbox",
    "sublet-template-node",
    "sublet-template-python",
];
/// The packages whose programs are published without unwinding.
pub const ABORT_PACKAGES: &[&str] = &["sublet-devices", "sublet-wasm"];
/// The programs of [`ABORT_PACKAGES`].
const ABORT_PROGRAMS: &[&str] = &["sublet-worker-kernels", "sublet-worker-wasm"];

/// Parts of SQLite that the bindings turn on and no store uses.
const SQLITE_FLAGS: &str =
    "-USQLITE_ENABLE_FTS3 -USQLITE_ENABLE_FTS3_PARENTHESIS -USQLITE_ENABLE_FTS5 -USQLITE_ENABLE_RTREE";

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

    /// Returns cargo's command that builds all that is published, but the programs without unwinding.
    pub fn build(&self) -> Command {
        self.build_for_glibc(PROFILE, PACKAGES)
    }

    /// Returns cargo's command that builds the programs without unwinding.
    pub fn build_without_unwinding(&self) -> Command {
        self.build_for_glibc(ABORT_PROFILE, ABORT_PACKAGES)
    }

    fn build_for_glibc(&self, profile: &str, packages: &[&str]) -> Command {
        let mut build = cargo();
        build.args(["zigbuild", "--locked", "--profile", profile, "--target"]);
        build.arg(format!("{}.{GLIBC}", self.triple));
        for package in packages {
            build.args(["--package", package]);
        }
        self.equip(&mut build);
        build
    }

    /// Puts the programs without unwinding into the folder of the others.
    pub fn gather(&self) -> io::Result<()> {
        let from = root().join("target").join(self.triple).join(ABORT_PROFILE);
        for name in ABORT_PROGRAMS {
            let to = self.built().join(name);
            // An earlier build may have the same file under another name.
            if to.exists() {
                fs::remove_file(&to)?;
            }
            fs::copy(from.join(name), to)?;
        }
        Ok(())
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
        command.env("SUBLET_ZIG_LINKS", "1").env("LIBSQLITE3_FLAGS", SQLITE_FLAGS);
        command.env("SUBLET_PROFILE", PROFILE);
    }
}

/// Folder of the headers of this machine that builds for other systems use.
fn include_folder() -> PathBuf {
    root().join("target/tools/include")
}

/// Makes the headers of libfabric available to builds. Without them the `ofi` provider would be missing.
pub fn provide_headers() -> io::Result<()> {
    let headers = Path::new("/usr/include/rdma");
    if !headers.join("fabric.h").exists() {
        return Err(io::Error::other("there are no headers of libfabric: run scripts/setup.sh dist"));
    }
    fs::create_dir_all(include_folder())?;
    let link = include_folder().join("rdma");
    if !link.exists() {
        std::os::unix::fs::symlink(headers, link)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &str) -> String {
        fs::read_to_string(root().join(path)).unwrap()
    }

    #[test]
    fn programs_without_unwinding_are_those_of_their_packages() {
        let mut programs = Vec::new();
        for package in ABORT_PACKAGES {
            assert!(!PACKAGES.contains(package), "{package} is built with both profiles");
            let folder = package.strip_prefix("sublet-").unwrap();
            let manifest = read(&format!("crates/{folder}/Cargo.toml"));
            let (_, rest) = manifest.split_once("[[bin]]\nname = \"").unwrap();
            programs.push(rest.split_once('"').unwrap().0.to_owned());
            assert!(!rest.contains("[[bin]]"), "{package} has several programs");
        }
        assert_eq!(programs, ABORT_PROGRAMS);
        assert!(read("Cargo.toml").contains(&format!("[profile.{ABORT_PROFILE}]\ninherits = \"{PROFILE}\"")));
    }

    #[test]
    fn wheel_and_installation_have_every_program_without_unwinding() {
        let (wheel, install) = (read("scripts/wheel.py"), read("scripts/install.sh"));
        for name in ABORT_PROGRAMS {
            assert!(wheel.contains(&format!("\"{name}\"")), "the wheel lacks {name}");
            let short = name.strip_prefix("sublet-").unwrap();
            assert!(install.contains(&format!(" {short} ")), "an installation lacks {name}");
        }
    }
}
