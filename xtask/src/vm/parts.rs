//! The parts of a run in an emulated machine: those that are executed and those that are left out.

use std::fmt::Write;
use std::io;

/// One line of the result.
#[derive(Clone, Copy)]
pub struct VmPart {
    pub name: &'static str,
    pub kind: PartKind,
    /// The reason why the part runs only if it is named; `None` if it runs by default.
    pub unless_named: Option<&'static str>,
}

/// The work of a part.
#[derive(Clone, Copy)]
pub enum PartKind {
    /// Tests: the program, and the arguments that choose among them.
    Tests { program: &'static str, arguments: &'static str, limit_s: u64 },
    /// A measuring command.
    Measurement { command: &'static str, limit_s: u64 },
    /// No work: the part is left out for this reason.
    LeftOut(&'static str),
}

impl VmPart {
    /// Creates a part that runs by default.
    pub const fn new(name: &'static str, kind: PartKind) -> VmPart {
        VmPart { name, kind, unless_named: None }
    }
}

/// Returns all parts, where those that run only by name are left out, or the parts that `only` names, separated by
/// commas.
pub fn chosen(parts: &[VmPart], only: Option<&str>) -> io::Result<Vec<VmPart>> {
    let Some(only) = only else {
        let unless_named = |part: &VmPart| match part.unless_named {
            Some(reason) => VmPart { kind: PartKind::LeftOut(reason), ..*part },
            None => *part,
        };
        return Ok(parts.iter().map(unless_named).collect());
    };
    let unknown = |name: &str| {
        let names: Vec<_> = parts.iter().map(|part| part.name).collect();
        io::Error::other(format!("there is no part {name:?}, only {}", names.join(", ")))
    };
    let named = |name| parts.iter().find(|part| part.name == name).copied();
    only.split(',').map(|name| named(name).ok_or_else(|| unknown(name))).collect()
}

/// Writes the script of the emulated machine: see `part` in `scripts/vm/enter.sh`.
pub fn machine_script(begin: &str, parts: &[VmPart]) -> String {
    let mut script = format!("{begin}\n");
    for VmPart { name, kind, .. } in parts {
        // Writing to a string cannot fail.
        let _ = match kind {
            PartKind::Tests { program, arguments, limit_s } => writeln!(
                script,
                "part {name} {limit_s} ./{program} {arguments} --test-threads 1 --show-output"
            ),
            PartKind::Measurement { command, limit_s } => writeln!(script, "part {name} {limit_s} {command}"),
            PartKind::LeftOut(_) => Ok(()),
        };
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTS: [VmPart; 3] = [
        VmPart::new("one", PartKind::Tests { program: "tests", arguments: "one::", limit_s: 7 }),
        VmPart {
            unless_named: Some("it takes long"),
            ..VmPart::new("large", PartKind::Measurement { command: "measure", limit_s: 8 })
        },
        VmPart::new("none", PartKind::LeftOut("there is nothing")),
    ];

    #[test]
    fn parts_are_chosen_by_name_and_unknown_ones_are_refused() {
        let all = chosen(&PARTS, None).unwrap();
        assert!(all.len() == PARTS.len() && !machine_script("begin", &all).contains("part large"));
        let script = machine_script("begin", &chosen(&PARTS, Some("large,none")).unwrap());
        assert_eq!(script, "begin\npart large 8 measure\n");
        assert!(machine_script("", &all).contains("part one 7 ./tests one:: --test-threads 1"));
        assert!(chosen(&PARTS, Some("one,else")).err().unwrap().to_string().contains("\"else\""));
    }
}
