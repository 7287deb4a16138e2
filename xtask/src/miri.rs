//! `cargo xtask miri`: interprets unit tests under Miri, which reports undefined behaviour that no other run shows.
//!
//! Miri supports no memory files, sockets, processes or foreign code. So it runs the modules that decide and encode,
//! and the views of shared memory; other chores test the parts around them. It needs a nightly compiler with the
//! components `miri` and `rust-src`.

use std::io;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{cargo, root};

/// A package, and the modules whose tests Miri can run: no modules mean all. The packages with unsafe code come first.
const PARTS: &[(&str, &[&str])] = &[
    (
        "sublet-fabric",
        &[
            "shared::",
            "ring::",
            "waiters::",
            "tcp::frame::",
            "tcp::inbox::",
            "ofi::message::",
            "ofi::operations::",
            "ofi::flow::",
        ],
    ),
    ("sublet-xpu", &["executor::named_buffers::", "fifo::tests::", "wire::", "capability::"]),
    (
        "sublet-runtime",
        &[
            "memory::cache::",
            "memory::plan::",
            "frames::",
            "wire::",
            "lease::records::",
            "run::budget::",
            "run::progress::",
            "run::series::",
            "run::uses::",
            "run::sizes::",
            "swap::follow::",
            "swap::streams::",
            "worker::mailbox::",
            "worker::swapping::extents::",
            "worker::swapping::mapped::",
        ],
    ),
    ("sublet-function", &[]),
    ("sublet-manager", &["core::"]),
    ("sublet-proto", &[]),
];

/// Cases of each property test: Miri is some hundred times slower than a processor.
const CASES: &str = "3";

/// Runs the check, and shows all of its output.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    let mut step = Step::start("miri", Show::Everything)?;
    let outcome = check(&mut step)?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(step: &mut Step) -> io::Result<StepOutcome> {
    if !has_miri() {
        let why = "no nightly compiler with Miri: rustup component add --toolchain nightly miri rust-src";
        return Ok(StepOutcome::Skipped(why.into()));
    }
    let mut all_passed = true;
    for (package, modules) in PARTS {
        all_passed &= step.run(interpret(package, modules))?;
    }
    Ok(StepOutcome::from(all_passed && step.has_counted()))
}

fn has_miri() -> bool {
    let version = Command::new("cargo").args(["+nightly", "miri", "--version"]).output();
    version.is_ok_and(|output| output.status.success())
}

fn interpret(package: &str, modules: &[&str]) -> Command {
    let mut command = nightly();
    // Property tests read their seeds from the system, and look for cases that failed before in files.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", CASES);
    command.args(["miri", "test", "--package", package, "--lib", "--no-fail-fast"]);
    command.args(["--target-dir", "target/miri", "--"]).args(modules);
    command
}

/// Cargo of the nightly toolchain: not the one that runs this, whose variables name another.
pub fn nightly() -> Command {
    let mut command = Command::new("cargo");
    for name in cargo().get_envs().filter(|(_, value)| value.is_none()).map(|(name, _)| name) {
        command.env_remove(name);
    }
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN", "RUSTC_WORKSPACE_WRAPPER"] {
        command.env_remove(name);
    }
    command.arg("+nightly").current_dir(root()).env("CARGO_TERM_COLOR", "never");
    command
}
