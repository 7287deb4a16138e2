//! An emulated machine with Debian's kernel, for tests that need what this machine lacks.
//!
//! [`scripts/vm.sh`](../../scripts/vm.sh) boots it in QEMU, which emulates the processor: times mean nothing by
//! themselves. The emulated machine runs one [part](parts) after the other, and leaves a log and a status for each in
//! the folder that it shares with this machine. So the results of the parts that ended are known even if the machine
//! stops early.

pub mod outcome;
pub mod parts;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::options::ChoreOptions;
use crate::step::{self, Show, Step, StepOutcome};
use crate::{cargo, root};
use outcome::{PartEnd, VmPartOutcome};
use parts::VmPart;

/// Default limit of the emulated machine's running time, in seconds.
const LIMIT_S: u64 = 3600;
const SCRIPT: &str = "scripts/vm.sh";
/// The parent of the folders that emulated machines share.
const SHARES: &str = "target/xtask";
/// Prefix of the line in which the script says that it cannot run.
const SKIPPED: &str = "skipped: ";
/// Lines of a failed part's log that are shown.
const SHOWN_LINES: usize = 40;

/// The work of one chore in an emulated machine.
pub struct EmulatedChore {
    /// The chore's name, and its shared folder's.
    pub name: &'static str,
    /// Heading of the table of the parts.
    pub title: &'static str,
    /// Debian's packages that the emulated machine uses.
    pub packages: &'static [&'static str],
    /// The parts in their order of execution: short ones come first.
    pub parts: &'static [VmPart],
    /// The first lines of its script.
    pub begin: &'static str,
    /// Puts the files that the parts need into the shared folder.
    pub furnish: fn(&Path) -> io::Result<()>,
    /// Further results, as text for people and as a JSON field with a comma before it.
    pub more: fn(&Path) -> (String, String),
}

impl EmulatedChore {
    /// Builds the programs, boots the emulated machine, and prints its results.
    pub fn chore(&self, mut options: ChoreOptions) -> io::Result<ExitCode> {
        let parts = parts::chosen(self.parts, options.take("only").as_deref())?;
        let limit_s = match options.take("limit") {
            Some(text) => {
                text.parse().map_err(|_| io::Error::other(format!("{text:?} is no number of seconds")))?
            }
            None => LIMIT_S,
        };
        options.end()?;
        let mut step = Step::start(self.name, Show::Everything)?;
        let outcome = self.run(&mut step, &parts, limit_s)?;
        let is_failed = matches!(outcome, StepOutcome::Failed);
        step.finish(outcome)?;
        Ok(if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn run(&self, step: &mut Step, parts: &[VmPart], limit_s: u64) -> io::Result<StepOutcome> {
        let (prepared, lines) = step.run_and_keep(self.prepare())?;
        if !prepared {
            let reason = lines.iter().find_map(|line| line.strip_prefix(SKIPPED));
            return Ok(reason.map_or(StepOutcome::Failed, |reason| StepOutcome::Skipped(reason.to_owned())));
        }
        let share = self.make_share(parts)?;
        let is_done = step.run(boot(&share, limit_s))?;
        let outcomes: Vec<_> = parts.iter().map(|part| VmPartOutcome::read(part, &share)).collect();
        show_failed(&outcomes, &share);
        let (text, fields) = (self.more)(&share);
        println!("\n{}{text}", outcome::table(self.title, &outcomes));
        let json = format!("{{\"parts\": {}{fields}}}\n", outcome::json(&outcomes));
        std::fs::write(share.join("result.json"), json)?;
        println!("the same as JSON, and the guest's logs: {SHARES}/{}/result.json\n", self.name);
        let to_run = outcomes.iter().filter(|outcome| outcome.was_to_run());
        to_run.for_each(|outcome| step.count(outcome.is_good()));
        Ok(StepOutcome::from(is_done && outcomes.iter().all(VmPartOutcome::is_good)))
    }

    /// Makes the script install and fetch missing tools.
    fn prepare(&self) -> Command {
        let mut command = Command::new(root().join(SCRIPT));
        command.arg("prepare").args(self.packages).current_dir(root());
        command
    }

    /// Creates the shared folder, with the programs and the script of the parts.
    fn make_share(&self, parts: &[VmPart]) -> io::Result<PathBuf> {
        let share = root().join(SHARES).join(self.name);
        if share.exists() {
            std::fs::remove_dir_all(&share)?;
        }
        std::fs::create_dir_all(&share)?;
        (self.furnish)(&share)?;
        std::fs::write(share.join("guest.sh"), parts::machine_script(self.begin, parts))?;
        Ok(share)
    }
}

/// Makes the script boot the machine. The script ends with this process, however it ends: the emulated machine must not
/// outlive this process.
fn boot(share: &Path, limit_s: u64) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(root().join(SCRIPT)).arg("boot").arg(share);
    command.env("LIMIT_S", limit_s.to_string()).current_dir(root());
    command
}

/// Builds one program of a package (as `--test NAME`), and says where it is.
pub fn build(package: &str, target: [&str; 2]) -> io::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--release", "-p", package, "--message-format=json-render-diagnostics"]);
    let output = command.args(target).stderr(Stdio::inherit()).output()?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages.lines().rev().find_map(|line| {
        let name = format!("\"name\":\"{}\"", target[1]);
        line.contains(&name).then(|| step::text_field(line, "executable")).flatten()
    });
    match executable {
        Some(path) if output.status.success() => Ok(PathBuf::from(path)),
        _ => Err(io::Error::other(format!("{} could not be built", target[1]))),
    }
}

/// Prints the last lines in the logs of the parts that failed.
fn show_failed(outcomes: &[VmPartOutcome], share: &Path) {
    for VmPartOutcome { name, .. } in outcomes.iter().filter(|outcome| outcome.ended == PartEnd::Failed) {
        let log = read(share, &format!("{name}.log"));
        let lines: Vec<_> = log.lines().collect();
        println!("\nthe end of {}/{name}.log:", share.display());
        for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
            println!("    {line}");
        }
    }
}

/// Reads a file that the emulated machine may have left; empty if there is none.
pub fn read(share: &Path, name: &str) -> String {
    let bytes = std::fs::read(share.join(name)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_is_found_in_cargos_messages() {
        let line = r#"{"target":{"name":"ofi"},"executable":"/a/b/ofi-1","fresh":true}"#;
        assert_eq!(step::text_field(line, "executable").as_deref(), Some("/a/b/ofi-1"));
        assert_eq!(step::text_field(r#"{"executable":null}"#, "executable"), None);
    }
}
