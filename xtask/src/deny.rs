//! `cargo xtask deny`: the rules of deny.toml over the dependencies of both workspaces.
//!
//! Licences, bans and sources need no network. Advisories need their database: where it can neither be fetched nor
//! is there from an earlier time, that check is skipped, and says so.

use std::io;
use std::process::{Command, ExitCode};

use crate::cargo;
use crate::options::Options;
use crate::step::{Outcome, Show, Step};

/// Longest wait for the advisory database, in seconds.
const FETCH_SECONDS: u32 = 60;

/// Both checks, with all of their output.
pub fn chore(options: Options) -> io::Result<ExitCode> {
    options.end()?;
    let mut failed = 0;
    for (name, check) in [("deny", rules as fn(&mut Step) -> io::Result<Outcome>), ("advisories", advisories)]
    {
        let mut step = Step::start(name, Show::Everything)?;
        let outcome = check(&mut step)?;
        failed += step.finish(outcome)?.failed;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Licences, bans and sources.
pub fn rules(step: &mut Step) -> io::Result<Outcome> {
    let mut passed = true;
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let mut command = cargo();
        command.args(["deny", "--manifest-path", manifest, "--config", "deny.toml"]);
        command.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
        passed &= step.run(command)?;
    }
    Ok(Outcome::from(passed))
}

/// Known vulnerabilities, if the database can be had.
pub fn advisories(step: &mut Step) -> io::Result<Outcome> {
    let fetched = step.run(fetch())?;
    if !fetched {
        let why = step.last_line()?;
        return Ok(Outcome::Skipped(format!("the advisory database cannot be fetched: {why}")));
    }
    let mut command = cargo();
    command.args(["deny", "--offline", "check", "advisories"]);
    Ok(Outcome::from(step.run(command)?))
}

fn fetch() -> Command {
    let cargo = cargo();
    let mut command = Command::new("timeout");
    command.arg(FETCH_SECONDS.to_string()).arg(cargo.get_program()).args(["deny", "fetch", "db"]);
    command.current_dir(crate::root());
    command
}
