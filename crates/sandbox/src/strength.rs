//! Reports the strength of sandboxes on this machine: what protects them, and what is weaker here than it could
//! be.
//!
//! The spawner program says it, since it is what needs the rights: it makes ready all that sandboxes would need, and one
//! sandbox. Nothing is left of that.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::SandboxError;

/// Argument with which the spawner reports the strength of sandboxes instead of serving.
pub const LOOK: &str = "--look";

/// Strength of one of the walls around a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strength {
    /// The wall is whole.
    Full,
    /// Some of it is missing.
    Weaker,
    /// The wall is missing.
    Missing,
}

impl Strength {
    const ALL: [Strength; 3] = [Strength::Full, Strength::Weaker, Strength::Missing];

    /// Name of the strength, in one word.
    pub fn name(self) -> &'static str {
        match self {
            Strength::Full => "full",
            Strength::Weaker => "weaker",
            Strength::Missing => "missing",
        }
    }
}

/// Finding about one of the walls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the wall.
    pub wall: String,
    /// Strength of the wall.
    pub strength: Strength,
    /// Means by which the wall exists, or consequences of their lack.
    pub why: String,
}

impl Finding {
    pub(crate) fn new(wall: &str, strength: Strength, why: impl Into<String>) -> Finding {
        Finding { wall: wall.to_owned(), strength, why: why.into() }
    }

    /// Formats the finding as the spawner prints it: one line, without tabs in its parts.
    pub(crate) fn line(&self) -> String {
        format!("{}\t{}\t{}", self.wall, self.strength.name(), self.why.replace(['\t', '\n'], " "))
    }

    fn parse(line: &str) -> Option<Finding> {
        let mut parts = line.splitn(3, '\t');
        let (wall, strength, why) = (parts.next()?, parts.next()?, parts.next()?);
        let strength = Strength::ALL.into_iter().find(|known| known.name() == strength)?;
        Some(Finding::new(wall, strength, why))
    }
}

/// Finds how strong sandboxes of this process's user would be, made by this spawner program; the folder is an existing
/// one.
///
/// # Errors
/// If the program cannot be run. That it can make no sandboxes is a finding.
pub fn strengths(spawner: &Path, folder: &Path) -> Result<Vec<Finding>, SandboxError> {
    let failed = |source| SandboxError::system(format!("running {}", spawner.display()), source);
    let output = Command::new(spawner)
        .args([Path::new(LOOK), folder])
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(failed)?;
    let findings: Vec<_> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(Finding::parse).collect();
    if findings.is_empty() {
        return Err(failed(io::Error::other(format!("it ended with {}", output.status))));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_survives_its_way_as_a_line() {
        for strength in Strength::ALL {
            let finding = Finding::new("cores", strength, "a, b and\tc");
            let parsed = Finding::parse(&finding.line()).unwrap();
            assert_eq!((parsed.strength, parsed.why.as_str()), (strength, "a, b and c"));
        }
        assert_eq!(Finding::parse("cores\tstrange\twhy"), None);
    }
}
