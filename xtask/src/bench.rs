//! `cargo xtask bench`: runs every `sublet bench` command that SPECIFICATION.md names beside a promise.
//!
//! The commands are read from the document, so the promise and what measures it cannot drift apart. The figures are
//! judged by the reader: a limit that fails the run would measure the neighbours of this machine.

use std::collections::BTreeSet;
use std::io;
use std::process::{Command, ExitCode};

use crate::options::Options;
use crate::step::{Outcome, Show, Step};
use crate::{cargo, root};

/// Builds, then runs the commands one after the other.
pub fn chore(options: Options) -> io::Result<ExitCode> {
    options.end()?;
    let mut step = Step::start("bench", Show::Everything)?;
    let outcome = measure(&mut step)?;
    let tally = step.finish(outcome)?;
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(step: &mut Step) -> io::Result<Outcome> {
    let mut build = cargo();
    build.args(["build", "--release", "--workspace"]);
    if !step.run(build)? {
        return Ok(Outcome::Failed);
    }
    let promises = std::fs::read_to_string(root().join("SPECIFICATION.md"))?;
    let mut all_passed = true;
    for arguments in commands(&promises) {
        let mut command = Command::new(root().join("scripts/with-sublet.sh"));
        command.current_dir(root()).arg("sublet").args(arguments.split_whitespace());
        let passed = step.run(command)?;
        step.count(passed);
        all_passed &= passed;
    }
    Ok(Outcome::from(all_passed))
}

/// What follows `sublet` in each code span that starts with `sublet bench`, each once.
fn commands(markdown: &str) -> BTreeSet<&str> {
    let code_spans = markdown.split('`').skip(1).step_by(2);
    let commands = code_spans.filter_map(|code| code.strip_prefix("sublet "));
    commands.filter(|command| command.starts_with("bench ")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_of_the_document_is_run_once() {
        let markdown =
            "| a | `sublet bench latency --sweep` |\n| b | `make test`, `sublet bench latency --sweep` |";
        assert_eq!(commands(markdown), BTreeSet::from(["bench latency --sweep"]));
    }
}
