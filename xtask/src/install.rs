//! `cargo xtask install --prefix DIR`: the command, the worker, the C library, its headers, and what CMake and
//! pkg-config need to find them.
//!
//! The installed tree finds itself by its own place, so it may be moved or packed. `DESTDIR` is put before the
//! prefix, as packagers expect.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::options::Options;
use crate::step::{Outcome, Show, Step};
use crate::{cargo, root};

const DEFAULT_PREFIX: &str = "/usr/local";
const VERSION: &str = env!("CARGO_PKG_VERSION");

const EXECUTABLE: u32 = 0o755;
const READABLE: u32 = 0o644;

// From the repository's top, to below the prefix, with this mode.
const FILES: &[(&str, &str, u32)] = &[
    ("target/release/sublet", "bin/sublet", EXECUTABLE),
    ("target/release/sublet-worker", "bin/sublet-worker", EXECUTABLE),
    ("target/release/libsublet.so", "lib/libsublet.so", EXECUTABLE),
    ("target/release/libsublet.a", "lib/libsublet.a", READABLE),
    ("crates/capi/include/sublet.h", "include/sublet.h", READABLE),
    ("crates/capi/include/sublet_function.h", "include/sublet_function.h", READABLE),
    ("crates/capi/include/sublet.hpp", "include/sublet.hpp", READABLE),
];

// Texts in which `@VERSION@` is replaced.
const TEMPLATES: &[(&str, &str)] = &[
    (include_str!("../templates/sublet.pc.in"), "lib/pkgconfig/sublet.pc"),
    (include_str!("../templates/sublet-config.cmake.in"), "lib/cmake/sublet/sublet-config.cmake"),
    (
        include_str!("../templates/sublet-config-version.cmake.in"),
        "lib/cmake/sublet/sublet-config-version.cmake",
    ),
];

/// Builds, then copies.
pub fn chore(mut options: Options) -> io::Result<ExitCode> {
    let prefix = options.take("prefix").unwrap_or_else(|| DEFAULT_PREFIX.into());
    options.end()?;
    let mut step = Step::start("build", Show::Summary)?;
    let mut build = cargo();
    build.args(["build", "--release", "--workspace"]);
    let built = step.run(build)?;
    step.finish(Outcome::from(built))?;
    if !built {
        return Ok(ExitCode::FAILURE);
    }
    let destination = destination(Path::new(&prefix))?;
    for (from, to, mode) in FILES {
        put(&destination.join(to), &fs::read(root().join(from)).map_err(named(Path::new(from)))?, *mode)?;
    }
    for (template, to) in TEMPLATES {
        put(&destination.join(to), template.replace("@VERSION@", VERSION).as_bytes(), READABLE)?;
    }
    println!("installed Sublet {VERSION} under {}", destination.display());
    Ok(ExitCode::SUCCESS)
}

fn destination(prefix: &Path) -> io::Result<PathBuf> {
    // A relative prefix is meant from where the command was given, which is where cargo leaves it.
    let prefix = std::path::absolute(prefix)?;
    Ok(match std::env::var_os("DESTDIR") {
        Some(folder) => Path::new(&folder).join(prefix.strip_prefix("/").unwrap_or(&prefix)),
        None => prefix,
    })
}

/// Writes beside the target and renames, so that a running program's file is replaced and never overwritten.
fn put(target: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let folder = target.parent().expect("every target stands below the prefix");
    fs::create_dir_all(folder).map_err(named(folder))?;
    let mut new = target.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    fs::write(&new, bytes).map_err(named(&new))?;
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).map_err(named(&new))?;
    fs::rename(&new, target).map_err(named(target))?;
    println!("  {}", target.display());
    Ok(())
}

fn named(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}
