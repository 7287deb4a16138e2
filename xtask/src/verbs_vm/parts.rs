//! What the guest does, part by part, and what it leaves out.

use std::fmt::Write;
use std::io;

/// One line of the result.
#[derive(Clone, Copy)]
pub struct Part {
    pub name: &'static str,
    pub kind: Kind,
}

/// What there is to do for it.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Tests: the program, and which of them.
    Tests { program: &'static str, arguments: &'static str, limit_s: u64 },
    /// A command that measures.
    Measurement { command: &'static str, limit_s: u64 },
    /// Nothing, and why.
    LeftOut(&'static str),
}

/// A module of the conformance suite, over verbs alone.
const fn module(name: &'static str, arguments: &'static str, limit_s: u64) -> Part {
    Part { name, kind: Kind::Tests { program: "conformance", arguments, limit_s } }
}

/// Done only if it is named.
const LARGE: &str = "large";
const TOO_LARGE: Kind =
    Kind::LeftOut("more than 4 GiB take longer in emulation than all else together; --only large tries it");

/// What is short comes first.
const PARTS: &[Part] = &[
    module("operations", "operations::", 1200),
    Part { name: "latency", kind: Kind::Measurement { command: "bash latency.sh 3", limit_s: 900 } },
    Part {
        name: "instructions",
        kind: Kind::Measurement { command: "./latency --count verbs 10.0.0.1 64", limit_s: 600 },
    },
    module("threads", "threads::", 1200),
    module("passive", "passive::", 1200),
    Part { name: "ofi", kind: Kind::Tests { program: "ofi", arguments: "", limit_s: 1200 } },
    module("transfers", "transfers::", 1200),
    module(LARGE, "large::", 3000),
    Part {
        name: "ends",
        kind: Kind::LeftOut(
            "its tests break TCP, TLS and simulated streams; part ofi ends connections of verbs",
        ),
    },
    Part {
        name: "refusals",
        kind: Kind::LeftOut(
            "its tests send wrong frames of TCP; part ofi shows wrong and expired keys to verbs",
        ),
    },
];

/// All parts, or those that are named, separated by commas.
pub fn chosen(only: Option<&str>) -> io::Result<Vec<Part>> {
    let Some(only) = only else {
        let all = PARTS
            .iter()
            .map(|part| if part.name == LARGE { Part { kind: TOO_LARGE, ..*part } } else { *part });
        return Ok(all.collect());
    };
    let unknown = |name: &str| {
        let names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        io::Error::other(format!("there is no part {name:?}, only {}", names.join(", ")))
    };
    let named = |name| PARTS.iter().find(|part| part.name == name).copied();
    only.split(',').map(|name| named(name).ok_or_else(|| unknown(name))).collect()
}

/// The guest's script: see `part` in `scripts/verbs-vm/enter.sh`.
pub fn guest(parts: &[Part]) -> String {
    let mut script =
        "export SUBLET_CONFORMANCE_OFI=verbs SUBLET_CONFORMANCE_OFI_TOWARD=10.0.0.1\n".to_owned();
    for Part { name, kind } in parts {
        // Writing to a string cannot fail.
        let _ = match kind {
            Kind::Tests { program, arguments, limit_s } => writeln!(
                script,
                "part {name} {limit_s} ./{program} {arguments} --test-threads 1 --show-output"
            ),
            Kind::Measurement { command, limit_s } => writeln!(script, "part {name} {limit_s} {command}"),
            Kind::LeftOut(_) => Ok(()),
        };
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_name_and_unknown_ones_are_refused() {
        let all = chosen(None).unwrap();
        assert!(all.len() == PARTS.len() && !guest(&all).contains("part large"));
        assert!(guest(&chosen(Some("large")).unwrap()).contains("part large"));
        let two = chosen(Some("ofi,ends")).unwrap();
        assert_eq!(two.iter().map(|part| part.name).collect::<Vec<_>>(), ["ofi", "ends"]);
        assert!(chosen(Some("ofi,else")).err().unwrap().to_string().contains("\"else\""));
        let script = guest(&two);
        assert!(script.contains("part ofi 1200 ./ofi") && !script.contains("part ends"), "{script}");
    }
}
