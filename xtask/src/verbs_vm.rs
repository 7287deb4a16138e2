//! `cargo xtask verbs-vm`: the fabric over real verbs without a card, in an emulated machine.
//!
//! Debian's kernel has a network card in software (rdma_rxe). [`scripts/verbs-vm.sh`](../../scripts/verbs-vm.sh) boots it
//! in QEMU, which emulates the processor, so that times mean nothing by themselves: what counts is that the suite passes,
//! and the latency beside that of perftest's `ib_write_lat` and of a plain `fi_writedata` ping-pong in the same guest.
//!
//! The guest runs one part after the other and leaves a log and a status for each in the folder that it shares with
//! this machine, so that what was done by then is known even if the rest never is.

mod latency;
mod outcome;
mod parts;

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::options::Options;
use crate::step::{Outcome, Show, Step};
use crate::{cargo, root};
use latency::Latency;
use outcome::{Ended, PartOutcome};
use parts::Part;

/// How long the emulated machine may run, in seconds, if nobody says anything.
const LIMIT_S: u64 = 3600;
const SCRIPT: &str = "scripts/verbs-vm.sh";
/// Where the guest finds its programs and leaves what it found.
const SHARE: &str = "target/xtask/verbs-vm";
/// How the script says that it cannot.
const SKIPPED: &str = "skipped: ";
/// Lines of a failed part's log that are shown.
const SHOWN_LINES: usize = 40;

/// Builds, boots, prints what the guest found.
pub fn chore(mut options: Options) -> io::Result<ExitCode> {
    let parts = parts::chosen(options.take("only").as_deref())?;
    let limit_s = match options.take("limit") {
        Some(text) => {
            text.parse().map_err(|_| io::Error::other(format!("{text:?} is no number of seconds")))?
        }
        None => LIMIT_S,
    };
    options.end()?;
    let mut step = Step::start("verbs-vm", Show::Everything)?;
    let outcome = run(&mut step, &parts, limit_s)?;
    let is_failed = matches!(outcome, Outcome::Failed);
    step.finish(outcome)?;
    Ok(if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn run(step: &mut Step, parts: &[Part], limit_s: u64) -> io::Result<Outcome> {
    let (prepared, lines) = step.run_and_keep(prepare())?;
    if !prepared {
        let reason = lines.iter().find_map(|line| line.strip_prefix(SKIPPED));
        return Ok(reason.map_or(Outcome::Failed, |reason| Outcome::Skipped(reason.to_owned())));
    }
    let share = furnish(parts)?;
    let is_done = step.run(boot(&share, limit_s))?;
    let outcomes: Vec<_> = parts.iter().map(|part| PartOutcome::read(part, &share)).collect();
    let latency = Latency::read(&share);
    show_failed(&outcomes, &share);
    println!("\n{}", outcome::table(&outcomes));
    if latency != Latency::default() {
        println!("{}", latency.table());
    }
    let json = format!("{{\"parts\": {}, \"latency\": {}}}\n", outcome::json(&outcomes), latency.json());
    std::fs::write(share.join("result.json"), json)?;
    println!("the same as JSON, and the guest's logs: {SHARE}/result.json\n");
    outcomes.iter().filter(|outcome| outcome.was_to_run()).for_each(|outcome| step.count(outcome.is_good()));
    Ok(Outcome::from(is_done && outcomes.iter().all(PartOutcome::is_good)))
}

/// Has the script install and fetch what is missing.
fn prepare() -> Command {
    let mut command = Command::new(root().join(SCRIPT));
    command.arg("prepare").current_dir(root());
    command
}

/// Has the script boot. It ends with this process, however that ends: the emulated machine must not outlive it.
fn boot(share: &Path, limit_s: u64) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(root().join(SCRIPT)).arg("boot").arg(share);
    command.env("LIMIT_S", limit_s.to_string()).current_dir(root());
    command
}

/// Builds the programs, and puts them and what is to be done into a folder of their own.
fn furnish(parts: &[Part]) -> io::Result<PathBuf> {
    let share = root().join(SHARE);
    if share.exists() {
        std::fs::remove_dir_all(&share)?;
    }
    std::fs::create_dir_all(&share)?;
    for (arguments, name) in [
        (["--test", "conformance"], "conformance"),
        (["--test", "ofi"], "ofi"),
        (["--example", "ofi-latency"], "latency"),
    ] {
        std::fs::copy(build(arguments)?, share.join(name))?;
    }
    std::fs::write(share.join("guest.sh"), parts::guest(parts))?;
    Ok(share)
}

/// Builds one program of the fabric, and says where it is.
fn build(target: [&str; 2]) -> io::Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--release", "-p", "sublet-fabric", "--message-format=json-render-diagnostics"]);
    let output = command.args(target).stderr(Stdio::inherit()).output()?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages.lines().rev().find_map(|line| {
        let name = format!("\"name\":\"{}\"", target[1]);
        line.contains(&name).then(|| text_field(line, "executable")).flatten()
    });
    match executable {
        Some(path) if output.status.success() => Ok(PathBuf::from(path)),
        _ => Err(io::Error::other(format!("{} could not be built", target[1]))),
    }
}

/// What the parts that failed wrote last.
fn show_failed(outcomes: &[PartOutcome], share: &Path) {
    for PartOutcome { name, .. } in outcomes.iter().filter(|outcome| outcome.ended == Ended::Failed) {
        let log = read(share, &format!("{name}.log"));
        let lines: Vec<_> = log.lines().collect();
        println!("\nthe end of {SHARE}/{name}.log:");
        for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
            println!("    {line}");
        }
    }
}

/// A file that the guest may have left.
fn read(share: &Path, name: &str) -> String {
    let bytes = std::fs::read(share.join(name)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text field of a JSON object that has no escapes in it.
fn text_field(line: &str, name: &str) -> Option<String> {
    let rest = line.split(&format!("\"{name}\":\"")).nth(1)?;
    Some(rest.split('"').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_executable_is_found_in_cargos_messages() {
        let line = r#"{"target":{"name":"ofi"},"executable":"/a/b/ofi-1","fresh":true}"#;
        assert_eq!(text_field(line, "executable").as_deref(), Some("/a/b/ofi-1"));
        assert_eq!(text_field(r#"{"executable":null}"#, "executable"), None);
    }
}
