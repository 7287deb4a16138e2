//! The wheels: one for every Python since 3.11, by its stable interface, and one for the free-threaded Python 3.14.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use super::{Dist, target};
use crate::step::Step;

/// Most bytes of a wheel.
const MOST_BYTES: u64 = 20_000_000;
/// Programs and libraries in a wheel: the command, those that agents start, and the Python module.
const PROGRAMS: usize = 8;
/// Tags of the wheel of the stable interface.
const STABLE: &str = "cp311-abi3";
/// Tags of the wheel of the free-threaded interpreter. Such interpreters before 3.15 have no stable interface.
const FREE_THREADED: &str = "cp314-cp314t";
/// That interpreter's version for PyO3, which needs no interpreter to build for it.
const FREE_THREADED_VERSION: &str = "3.14t";
/// The libraries that an interpreter loads.
const MODULES: &[&str] = &["lib_native.so", "libsublet_template_python.so"];

/// Builds the libraries that the free-threaded interpreter loads, and puts them aside: the next build replaces them.
pub fn build_free_threaded(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    // This build is the first one, and the next ones reuse what it makes of libfabric's headers.
    target::provide_headers()?;
    let folder = dist.emptied("free-threaded")?;
    let mut build = dist.target.build();
    build.env("PYO3_CROSS_PYTHON_VERSION", FREE_THREADED_VERSION);
    if !step.run(build)? {
        return Ok(false);
    }
    for module in MODULES {
        fs::copy(dist.target.built().join(module), folder.join(module))?;
    }
    Ok(true)
}

/// Makes the wheels, and checks size and symbols.
pub fn make(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    make_one(dist, step, STABLE, None)
}

/// Makes the wheel of the free-threaded interpreter.
pub fn make_free_threaded(dist: &Dist, step: &mut Step) -> io::Result<bool> {
    make_one(dist, step, FREE_THREADED, Some(&dist.work("free-threaded")))
}

/// Makes a wheel whose libraries for the interpreter are those in a folder, or those that were built last.
fn make_one(dist: &Dist, step: &mut Step, tags: &str, modules: Option<&Path>) -> io::Result<bool> {
    // This interpreter has the module that compresses best.
    let mut wheel = dist.script("target/tools/dist/bin/python");
    wheel.arg("scripts/wheel.py").arg(&dist.out).args(["--tag", tags, "--platform", dist.target.platform]);
    let materials = dist.work("materials");
    for name in ["LICENSE-THIRD-PARTY", "sublet.cdx.json"] {
        wheel.arg("--add").arg(materials.join(name));
    }
    if let Some(folder) = modules {
        wheel.arg("--modules").arg(folder);
    }
    if !step.run(wheel)? {
        return Ok(false);
    }
    let path = dist.out.join(format!("sublet-{}-{tags}-{}.whl", dist.version, dist.target.platform));
    check(dist, step, &path)
}

fn check(dist: &Dist, step: &mut Step, wheel: &Path) -> io::Result<bool> {
    let folder = dist.emptied("wheel")?;
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder);
    let mut passed = step.run(unpack)?;
    passed &= dist.check_symbols(step, &folder, PROGRAMS)?;
    passed &= dist.check_size(step, wheel, MOST_BYTES)?;
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crate::root;

    #[test]
    fn archive_of_the_wheel_is_read_as_it_was_written() {
        let tests =
            Command::new("python3").arg("scripts/dist/test_wheel.py").current_dir(root()).output().unwrap();
        let report = String::from_utf8_lossy(&tests.stderr);
        assert!(tests.status.success() && report.contains("OK"), "{report}");
    }
}
