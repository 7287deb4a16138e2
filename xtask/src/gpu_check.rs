//! `cargo xtask gpu-check`: runs the suite of all devices on a GPU by CUDA, and measures a launch.
//!
//! The code for CUDA is compiled, and its decisions are tested, on every machine. This chore tests the behaviour that
//! needs a GPU. On a machine without one it prints the driver's reason, and does not fail.

use std::io;
use std::process::{Command, ExitCode};

use crate::cargo;
use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};

/// Beginnings of the lines in which a test reports a GPU, and that there is none.
const HAS: &str = "gpu: ";
const HAS_NOT: &str = "no gpu: ";

/// Looks for a GPU, and runs the suite on it.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    let mut step = Step::start("gpu-check", Show::Everything)?;
    let outcome = check(&mut step)?;
    let is_failed = matches!(outcome, StepOutcome::Failed);
    step.finish(outcome)?;
    Ok(if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn check(step: &mut Step) -> io::Result<StepOutcome> {
    let (asked, lines) = step.run_and_keep(tests(&["--nocapture", "--exact", "what_gpu_is_there"]))?;
    match answer(&lines) {
        _ if !asked => Ok(StepOutcome::Failed),
        GpuAnswer::Gpu(name) => {
            println!("gpu-check: {name}");
            Ok(StepOutcome::from(step.run(tests(&["--test-threads=1", "--skip", "what_gpu_is_there"]))?))
        }
        GpuAnswer::None(reason) => Ok(StepOutcome::Skipped(format!("there is no GPU: {reason}"))),
        GpuAnswer::Nothing => Ok(StepOutcome::Failed),
    }
}

fn tests(words: &[&str]) -> Command {
    let mut command = cargo();
    command
        .args(["test", "--release", "-p", "sublet-devices", "--test", "cuda", "--", "--ignored"])
        .args(words);
    command
}

#[derive(Debug, PartialEq)]
enum GpuAnswer {
    Gpu(String),
    None(String),
    Nothing,
}

fn answer(lines: &[String]) -> GpuAnswer {
    for line in lines {
        if let Some(reason) = line.strip_prefix(HAS_NOT) {
            return GpuAnswer::None(reason.to_owned());
        }
        if let Some(name) = line.strip_prefix(HAS) {
            return GpuAnswer::Gpu(name.to_owned());
        }
    }
    GpuAnswer::Nothing
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_test_says_of_gpus_is_understood() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(answer(&lines("running\nno gpu: no driver\nok")), GpuAnswer::None("no driver".into()));
        assert_eq!(answer(&lines("running\ngpu: one\nok")), GpuAnswer::Gpu("one".into()));
        assert_eq!(answer(&lines("running")), GpuAnswer::Nothing);
    }
}
