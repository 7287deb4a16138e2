//! `cargo xtask cgroup-vm`: tests sandboxes with control groups of version 2 in an emulated machine, whatever version
//! this machine has.
//!
//! The version of the control groups is fixed when a machine boots. Most machines have version 2; the machine that runs
//! the tests may have version 1. So the tests of the sandboxes run once more in an emulated machine that has version 2
//! only: as root, and as an ordinary user that owns a delegated group, as systemd delegates it.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::options::ChoreOptions;
use crate::vm::parts::{PartKind, VmPart};
use crate::vm::{EmulatedChore, build};

const GUEST: EmulatedChore = EmulatedChore {
    name: "cgroup-vm",
    title: "with cgroup v2",
    packages: &[],
    parts: PARTS,
    begin: "source ./cgroups.sh",
    furnish,
    more: |_| Default::default(),
};

/// The tests of the sandboxes, of which those for limits and ends run.
const PROGRAM: &str = "suites";

const fn tests(name: &'static str, program: &'static str, arguments: &'static str) -> VmPart {
    VmPart::new(name, PartKind::Tests { program, arguments, limit_s: 1800 })
}

const PARTS: &[VmPart] = &[
    tests("conformance", PROGRAM, "conformance::"),
    // The attacks that are skipped run outside of a sandbox, and would damage the emulated machine.
    tests("attacks", PROGRAM, "attacks:: --skip outside_of_a_sandbox"),
    tests("containers", PROGRAM, "containers::"),
    tests("user", "as-user.sh", "./suites conformance::"),
    tests("user-attacks", "as-user.sh", "./suites attacks:: --skip outside_of_a_sandbox"),
];

/// Runs the tests.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    GUEST.chore(options)
}

fn furnish(share: &Path) -> io::Result<()> {
    std::fs::copy(build("sublet-sandbox", ["--test", PROGRAM])?, share.join(PROGRAM))?;
    Ok(())
}
