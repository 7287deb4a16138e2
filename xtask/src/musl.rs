//! Builds what runs in images with musl: the worker program for native code, and the library that makes a Python a worker.
//!
//! Both are linked with musl dynamically, since they load other files. GCC links them with Debian's musl. Rust's standard
//! library would load libgcc_s to unwind, which few such images have; the unwinder that Rust has for static programs is
//! linked in its place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::Step;
use crate::{cargo, root};

/// GCC for musl.
const COMPILER: &str = "musl-gcc";
/// Folder of the builds. Static programs for the same target are built in another one, with other flags.
const FOLDER: &str = "target/musl";
/// The packages with the files.
const PACKAGES: [&str; 2] = ["sublet-runtime", "sublet-template-python"];

/// A file for images with musl.
pub struct MuslFile {
    /// Name under which cargo builds it.
    built: &'static str,
    /// Name beside the file for glibc.
    pub name: &'static str,
}

/// The files for images with musl.
pub const FILES: [MuslFile; 2] = [
    MuslFile { built: "sublet-worker", name: "sublet-worker-musl" },
    MuslFile { built: "libsublet_template_python.so", name: "libsublet_template_python_musl.so" },
];

/// Builds the files with a profile and puts them into a folder, which has the programs for glibc. On a machine that cannot
/// build them it removes those of an earlier build and says why. Returns whether all builds succeeded.
pub fn build(step: &mut Step, profile: &str, folder: &Path) -> io::Result<bool> {
    if let Some(lack) = lack()? {
        for file in &FILES {
            remove(&folder.join(file.name))?;
        }
        step.line(&format!("nothing is built for images with musl: {lack}"))?;
        return Ok(true);
    }
    if !step.run(command(profile)?)? {
        return Ok(false);
    }
    let built = root().join(FOLDER).join(triple()).join(profile);
    fs::create_dir_all(folder)?;
    for file in &FILES {
        // A worker may execute the old file.
        let unfinished = folder.join(format!("{}.new", file.name));
        fs::copy(built.join(file.built), &unfinished)?;
        fs::rename(&unfinished, folder.join(file.name))?;
    }
    Ok(true)
}

/// Says what this machine lacks to build the files, if it lacks something.
pub fn lack() -> io::Result<Option<String>> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if !std::env::split_paths(&path).any(|folder| folder.join(COMPILER).is_file()) {
        return Ok(Some(format!("there is no {COMPILER} (Debian: musl-tools)")));
    }
    if !unwinder()?.is_file() {
        return Ok(Some(format!("Rust lacks the target (rustup target add {})", triple())));
    }
    Ok(None)
}

/// Returns cargo's command that builds the files.
fn command(profile: &str) -> io::Result<Command> {
    let (triple, folder) = (triple(), root().join(FOLDER));
    // The linker finds this file by the name of the library that it replaces.
    let libraries = folder.join("libraries");
    fs::create_dir_all(&libraries)?;
    fs::copy(unwinder()?, libraries.join("libgcc_s.a"))?;
    let mut build = cargo();
    build.args(["build", "--profile", profile, "--target", &triple, "--target-dir"]).arg(folder);
    build.args(["--lib", "--bin", "sublet-worker"]);
    for package in PACKAGES {
        build.args(["--package", package]);
    }
    let flags = format!("-Ctarget-feature=-crt-static\x1f-Lnative={}", libraries.display());
    let variable = triple.replace('-', "_");
    build.env("CARGO_ENCODED_RUSTFLAGS", flags).env(format!("CC_{variable}"), COMPILER);
    build.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), COMPILER);
    Ok(build)
}

/// Rust's unwinder for static programs with musl.
fn unwinder() -> io::Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()).output()?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(sysroot.join("lib/rustlib").join(triple()).join("lib/self-contained/libunwind.a"))
}

fn triple() -> String {
    format!("{}-unknown-linux-musl", std::env::consts::ARCH)
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
