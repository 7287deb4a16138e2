//! The Python package: its wheel, and its tests as a user of the wheel has it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::suites::{self, Job};
use crate::{PROFILE, install, root};

/// The Python packages that the tests use beside the wheel.
const MODULES: &[&str] = &[
    "pytest==9.2.0",
    "hypothesis==6.170.17",
    "numpy==2.2.6; python_version < '3.14'",
    "numpy==2.5.5; python_version >= '3.14'",
    "pandas==2.3.3",
    "pillow==12.0.0",
    "pyarrow==26.0.1",
    "polars==2.1.0",
    "duckdb==1.5.5",
    "duckdb-extensions==1.5.5",
    "duckdb-extension-tpcds==1.5.5",
    "onnx==1.23.2",
    "onnxruntime==1.32.0",
    "mpi4py==4.1.2",
    "joblib==1.6.0",
    "dask[array]==2026.8.0",
    "parsl==2026.10.26",
    "tqdm==4.70.1",
    "rich==15.0.0",
    "psutil==7.2.2",
    "uv==0.13.9",
];
/// The tests that hand memory between Python and the module.
const MEMORY_TESTS: &[&str] = &[
    "test_arrays.py",
    "test_calls.py",
    "test_exceptions.py",
    "test_keeping.py",
    "test_lifetimes.py",
    "test_maps.py",
    "test_memory.py",
    "test_xpu.py",
];
/// The tests that start programs as users do, with platforms of their own. They take about half of the time, and run beside
/// the others.
const PROGRAM_TESTS: &[&str] = &[
    "test_docs.py",
    "test_environments.py",
    "test_examples.py",
    "test_help.py",
    "test_images.py",
    "test_languages.py",
    "test_use_cases.py",
];
/// Runs the tests.
const PYTEST: &str = MODULES[0];
/// Number of the longest tests that the log names.
const SHOWN_DURATIONS: u32 = 30;
/// The interpreter of the tests, unless another one is named.
const PYTHON: &str = "python3";

/// `cargo xtask wheel [--out FOLDER]`: builds, then has `scripts/wheel.py` make the wheel.
pub fn chore(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let out = options.take("out").map_or_else(wheels, PathBuf::from);
    options.end()?;
    if !install::build()? {
        return Ok(ExitCode::FAILURE);
    }
    let mut step = Step::start("wheel", Show::Summary)?;
    let made = step.run(wheel(&out))?;
    let tally = step.finish(StepOutcome::from(made))?;
    println!("the wheel is in {}", out.display());
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo xtask python [--python PROGRAM] [--testsuite FOLDER]`: tests the wheel with an interpreter, and its executor by that
/// interpreter's own cases. FOLDER holds the package `test` of an interpreter that comes without it.
pub fn with_interpreter(mut options: ChoreOptions) -> io::Result<ExitCode> {
    let interpreter = options.take("python").unwrap_or_else(|| PYTHON.to_owned());
    let testsuite = options.take("testsuite");
    options.end()?;
    if !install::build()? {
        return Ok(ExitCode::FAILURE);
    }
    let mut step = Step::start("python", Show::Summary)?;
    let trial = Trial { interpreter: &interpreter, profile: "release", name: "python" };
    let mut has_passed = matches!(check_with(&mut step, trial)?, StepOutcome::Passed);
    let mut cases = Command::new(environment("python").join("bin/python"));
    cases.arg(root().join("python/tests/cpython_executor.py"));
    if let Some(folder) = testsuite {
        cases.args(["--testsuite", &folder]);
    }
    has_passed &= step.run(cases)?;
    let tally = step.finish(StepOutcome::from(has_passed))?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo xtask packages`: has functions import and use the most used packages of PyPI, which take 1 GB to install.
pub fn packages(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    if !install::build()? {
        return Ok(ExitCode::FAILURE);
    }
    let tests = root().join("python/tests");
    let list = tests.join("packages.txt");
    let mut step = Step::start("packages", Show::Summary)?;
    let modules = [OsStr::new(PYTEST), OsStr::new("-r"), list.as_os_str()];
    let trial = Trial { interpreter: PYTHON, profile: "release", name: "packages" };
    let outcome = try_wheel(&mut step, trial, &modules, &tests.join("packages.py"))?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests the wheel of what is built.
pub fn check(step: &mut Step) -> io::Result<StepOutcome> {
    check_with(step, Trial { interpreter: PYTHON, profile: PROFILE, name: "python" })
}

fn check_with(step: &mut Step, trial: Trial<'_>) -> io::Result<StepOutcome> {
    let modules: Vec<_> = MODULES.iter().map(OsStr::new).collect();
    let is_installed = install_wheel(step, trial, &modules)?;
    Ok(StepOutcome::from(is_installed && suites::run_jobs(step, halves(trial), 2)?))
}

/// The tests in two processes, each of which has a platform for all of its tests.
fn halves(trial: Trial<'_>) -> Vec<Job> {
    let folder = root().join("python/tests");
    let programs: Vec<_> = PROGRAM_TESTS.iter().map(|name| folder.join(name)).collect();
    let mut others = pytest(trial, &[folder]);
    for path in &programs {
        others.arg("--ignore").arg(path);
    }
    let job = |name: &str, command| Job { name: name.to_owned(), command };
    vec![job("python programs", pytest(trial, &programs)), job("python", others)]
}

/// The conditions of a wheel's trial.
#[derive(Clone, Copy)]
struct Trial<'a> {
    /// Program of the interpreter that the virtual environment is of.
    interpreter: &'a str,
    /// Profile of the build that the wheel is made of.
    profile: &'a str,
    /// Name of the virtual environment.
    name: &'a str,
}

/// Makes the wheel of what is built, installs it with these modules into a virtual environment, and runs tests there.
fn try_wheel(step: &mut Step, trial: Trial<'_>, modules: &[&OsStr], tests: &Path) -> io::Result<StepOutcome> {
    let is_installed = install_wheel(step, trial, modules)?;
    Ok(StepOutcome::from(is_installed && step.run(pytest(trial, &[tests.to_path_buf()]))?))
}

/// Makes the wheel of what is built, and installs it with these modules into a virtual environment.
fn install_wheel(step: &mut Step, trial: Trial<'_>, modules: &[&OsStr]) -> io::Result<bool> {
    let environment = environment(trial.name);
    if wheels().exists() {
        std::fs::remove_dir_all(wheels())?;
    }
    let mut wheel = wheel(&wheels());
    wheel.env("SUBLET_PROFILE", trial.profile);
    if !step.run(wheel)? {
        return Ok(false);
    }
    let made = std::fs::read_dir(wheels())?.filter_map(Result::ok).map(|entry| entry.path());
    let Some(made) = made.max() else { return Ok(false) };
    let mut create = Command::new(trial.interpreter);
    create.args(["-m", "venv", "--clear"]).arg(&environment);
    let mut install = Command::new(environment.join("bin/pip"));
    install.args(["install", "--quiet", "--no-input", "--disable-pip-version-check"]).arg(made).args(modules);
    Ok(step.run(create)? && step.run(install)?)
}

/// Runs tests by the interpreter of a virtual environment, away from the sources: what is tested is what was installed.
fn pytest(trial: Trial<'_>, tests: &[PathBuf]) -> Command {
    let environment = environment(trial.name);
    let mut test = Command::new(environment.join("bin/python"));
    test.args(["-m", "pytest", "-q", "-rfEs", "--import-mode=importlib", "-p", "no:cacheprovider"]);
    test.arg(format!("--durations={SHOWN_DURATIONS}"));
    test.args(tests).current_dir(&environment).env("SUBLET_PROFILE", trial.profile);
    test
}

/// Runs the tests that hand memory between Python and the module, with another build of the module, in an interpreter
/// that loads a library before all others: the runtime of a sanitizer.
pub fn check_sanitized(step: &mut Step, module: &Path, runtime: &Path) -> io::Result<bool> {
    let trial = Trial { interpreter: PYTHON, profile: "release", name: "sanitized" };
    let modules: Vec<_> = MODULES.iter().map(OsStr::new).collect();
    if !install_wheel(step, trial, &modules)? {
        return Ok(false);
    }
    let mut folder = Command::new(environment(trial.name).join("bin/python"));
    folder.args(["-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]);
    let folder = String::from_utf8_lossy(&folder.output()?.stdout).trim().to_owned();
    std::fs::copy(module, Path::new(&folder).join("sublet/_native.abi3.so"))?;
    let tests: Vec<_> = MEMORY_TESTS.iter().map(|name| root().join("python/tests").join(name)).collect();
    let mut command = pytest(trial, &tests);
    // The interpreter itself keeps what it allocates until its end.
    command.env("LD_PRELOAD", runtime).env("ASAN_OPTIONS", "detect_leaks=0");
    step.run(command)
}

/// Installs the wheel of the release build and NumPy into the virtual environment of this name.
pub fn install_with_numpy(step: &mut Step, name: &str) -> io::Result<bool> {
    let trial = Trial { interpreter: PYTHON, profile: "release", name };
    let modules: Vec<_> =
        MODULES.iter().filter(|module| module.starts_with("numpy==")).map(OsStr::new).collect();
    install_wheel(step, trial, &modules)
}

/// Returns the folder of the virtual environment of this name.
pub fn environment(name: &str) -> PathBuf {
    root().join("target/xtask").join(name)
}

fn wheels() -> PathBuf {
    root().join("target/wheels")
}

fn wheel(out: &Path) -> Command {
    let mut command = Command::new(PYTHON);
    command.arg(root().join("scripts/wheel.py")).arg(out);
    command
}
