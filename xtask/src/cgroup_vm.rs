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

/// The tests of the sandboxes for limits and ends.
const PROGRAMS: [&str; 3] = ["conformance", "attacks", "containers"];

const fn tests(name: &'static str, program: &'static str, arguments: &'static str, limit_s: u64) -> VmPart {
    VmPart::new(name, PartKind::Tests { program, arguments, limit_s })
}

const PARTS: &[VmPart] = &[
    tests("conformance", "conformance", "", 1800),
    // The attacks that are skipped run outside of a sandbox, and would damage the emulated machine.
    tests("attacks", "attacks", "--skip outside_of_a_sandbox", 1800),
    tests("containers", "containers", "", 1800),
    tests("user", "as-user.sh", "./conformance", 1800),
    tests("user-attacks", "as-user.sh", "./attacks --skip outside_of_a_sandbox", 1800),
];

/// Runs the tests.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    GUEST.chore(options)
}

fn furnish(share: &Path) -> io::Result<()> {
    for name in PROGRAMS {
        std::fs::copy(build("sublet-sandbox", ["--test", name])?, share.join(name))?;
    }
    Ok(())
}
