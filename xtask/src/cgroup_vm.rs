//! `cargo xtask cgroup-vm`: sandboxes with control groups of version 2, in an emulated machine whatever this one has.
//!
//! Which version a machine has is decided when it boots. Most have the second now; where the tests run at home it may be the
//! first. So the sandboxes' own tests run once more in a guest that has the second and nothing else: as root, and as an
//! ordinary user to whom a group was handed, as systemd does it.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::options::Options;
use crate::vm::parts::{Kind, Part};
use crate::vm::{Guest, build};

const GUEST: Guest = Guest {
    name: "cgroup-vm",
    title: "with cgroup v2",
    packages: &[],
    parts: PARTS,
    begin: "source ./cgroups.sh",
    furnish,
    more: |_| Default::default(),
};

/// The sandboxes' tests that have to do with limits and ends.
const PROGRAMS: [&str; 3] = ["conformance", "attacks", "containers"];

const fn tests(name: &'static str, program: &'static str, arguments: &'static str, limit_s: u64) -> Part {
    Part::new(name, Kind::Tests { program, arguments, limit_s })
}

const PARTS: &[Part] = &[
    tests("conformance", "conformance", "", 1800),
    // What the attacks can do outside of a sandbox would be done to the guest.
    tests("attacks", "attacks", "--skip outside_of_a_sandbox", 1800),
    tests("containers", "containers", "", 1800),
    tests("user", "as-user.sh", "./conformance", 1800),
    tests("user-attacks", "as-user.sh", "./attacks --skip outside_of_a_sandbox", 1800),
];

/// Runs it.
pub fn chore(options: Options) -> io::Result<ExitCode> {
    GUEST.chore(options)
}

fn furnish(share: &Path) -> io::Result<()> {
    for name in PROGRAMS {
        std::fs::copy(build("sublet-sandbox", ["--test", name])?, share.join(name))?;
    }
    Ok(())
}
