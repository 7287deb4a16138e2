//! `cargo xtask verbs-vm`: the fabric over real verbs without a card, in an emulated machine.
//!
//! Debian's kernel has a network card in software (rdma_rxe). The results that count are that the suite passes over it,
//! and the latency beside that of perftest's `ib_write_lat` and of a plain `fi_writedata` ping-pong in the same
//! machine.

mod latency;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::options::ChoreOptions;
use crate::vm::parts::{PartKind, VmPart};
use crate::vm::{EmulatedChore, build};
use latency::Latency;

const GUEST: EmulatedChore = EmulatedChore {
    name: "verbs-vm",
    title: "over verbs",
    packages: &["rdma-core", "ibverbs-providers", "libfabric1", "perftest"],
    parts: PARTS,
    begin: "source ./verbs.sh\nexport SUBLET_CONFORMANCE_OFI=verbs SUBLET_CONFORMANCE_OFI_TOWARD=10.0.0.1",
    furnish,
    more,
};

/// A module of the conformance suite, over verbs only.
const fn module(name: &'static str, arguments: &'static str, limit_s: u64) -> VmPart {
    VmPart::new(name, PartKind::Tests { program: "conformance", arguments, limit_s })
}

const PARTS: &[VmPart] = &[
    module("operations", "operations::", 1200),
    VmPart::new("latency", PartKind::Measurement { command: "bash latency.sh 3", limit_s: 900 }),
    VmPart::new(
        "instructions",
        PartKind::Measurement { command: "./latency --count verbs 10.0.0.1 64", limit_s: 600 },
    ),
    module("threads", "threads::", 1200),
    module("passive", "passive::", 1200),
    VmPart::new("ofi", PartKind::Tests { program: "ofi", arguments: "", limit_s: 1200 }),
    module("transfers", "transfers::", 1200),
    VmPart {
        unless_named: Some(
            "more than 4 GiB take longer in emulation than all else together; --only large tries it",
        ),
        ..module("large", "large::", 3000)
    },
    VmPart::new(
        "ends",
        PartKind::LeftOut(
            "its tests break TCP, TLS and simulated streams; part ofi ends connections of verbs",
        ),
    ),
    VmPart::new(
        "refusals",
        PartKind::LeftOut(
            "its tests send wrong frames of TCP; part ofi shows wrong and expired keys to verbs",
        ),
    ),
];

/// Runs the tests.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    GUEST.chore(options)
}

fn furnish(share: &Path) -> io::Result<()> {
    for (target, name) in [
        (["--test", "conformance"], "conformance"),
        (["--test", "ofi"], "ofi"),
        (["--example", "ofi-latency"], "latency"),
    ] {
        std::fs::copy(build("sublet-fabric", target)?, share.join(name))?;
    }
    Ok(())
}

fn more(share: &Path) -> (String, String) {
    let latency = Latency::read(share);
    let text = if latency == Latency::default() { String::new() } else { format!("\n{}", latency.table()) };
    (text, format!(", \"latency\": {}", latency.json()))
}
