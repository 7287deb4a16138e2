//! `cargo xtask deny`: the rules of deny.toml over the dependencies of both workspaces.
//!
//! Licences, bans and sources need no network. Advisories need their database: where it cannot be fetched, a pinned copy takes
//! its place (`scripts/advisories.sh` renews it). The check is never skipped.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::options::ChoreOptions;
use crate::step::{Show, Step, StepOutcome};
use crate::{cargo, root};

/// Longest wait for the advisory database, in seconds.
const FETCH_SECONDS: u32 = 60;

/// The manifests of the two workspaces.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];
/// The pinned copy of the database: its advisories, their licences, and which commit it is.
const PINNED: &str = "xtask/advisories.tar.gz";
/// The name by which cargo-deny knows the database's default address.
const DATABASE: &str = "advisory-db-3157b0e258782691";
/// The database is read from a commit.
const COMMIT: &[&str] = &[
    "-c",
    "user.name=sublet",
    "-c",
    "user.email=sublet@localhost",
    "commit",
    "--quiet",
    "--message",
    "pinned",
];

/// Runs the check of the rules and that of the advisories, and shows all of their output.
pub fn chore(options: ChoreOptions) -> io::Result<ExitCode> {
    options.end()?;
    let mut failed = 0;
    for (name, check) in
        [("deny", rules as fn(&mut Step) -> io::Result<StepOutcome>), ("advisories", advisories)]
    {
        let mut step = Step::start(name, Show::Everything)?;
        let outcome = check(&mut step)?;
        failed += step.finish(outcome)?.failed;
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks licences, bans and sources.
pub fn rules(step: &mut Step) -> io::Result<StepOutcome> {
    let mut passed = true;
    for manifest in MANIFESTS {
        let mut command = cargo();
        command.args(["deny", "--manifest-path", manifest, "--config", "deny.toml"]);
        command.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
        passed &= step.run(command)?;
    }
    Ok(StepOutcome::from(passed))
}

/// Checks known vulnerabilities: with the current database if it can be fetched, otherwise with the pinned copy.
pub fn advisories(step: &mut Step) -> io::Result<StepOutcome> {
    let config = match step.run(fetch())? {
        true => root().join("deny.toml"),
        false => match unpack_pinned(step)? {
            Some(config) => config,
            None => return Ok(StepOutcome::Failed),
        },
    };
    let mut passed = true;
    for manifest in MANIFESTS {
        let mut command = cargo();
        command.args(["deny", "--offline", "--manifest-path", manifest, "--config"]).arg(&config);
        command.args(["check", "--hide-inclusion-graph", "advisories"]);
        passed &= step.run(command)?;
    }
    Ok(StepOutcome::from(passed))
}

/// Unpacks the pinned copy as a database of cargo-deny, and writes a configuration that names it. Returns `None` on
/// failure.
fn unpack_pinned(step: &mut Step) -> io::Result<Option<PathBuf>> {
    let folder = root().join("target/advisories");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let database = folder.join(DATABASE);
    fs::create_dir_all(&database)?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xzf").arg(root().join(PINNED)).arg("-C").arg(&database);
    let mut commands = vec![unpack];
    for arguments in [&["init", "--quiet"][..], &["add", "--all"], COMMIT] {
        let mut git = Command::new("git");
        git.arg("-C").arg(&database).args(arguments);
        commands.push(git);
    }
    // cargo-deny reads from this file's time how old a database is.
    let mut stamp = Command::new("touch");
    stamp.arg(database.join(".git/FETCH_HEAD"));
    commands.push(stamp);
    let mut says = Command::new("sed");
    says.arg("s/^/the advisory database cannot be fetched; checking by the pinned copy, /")
        .arg(database.join("PINNED"));
    commands.push(says);
    for command in commands {
        if !step.run(command)? {
            return Ok(None);
        }
    }
    let rules = fs::read_to_string(root().join("deny.toml"))?;
    let place = format!("[advisories]\ndb-path = {folder:?}");
    let config = folder.join("deny.toml");
    fs::write(&config, rules.replace("[advisories]", &place))?;
    Ok(Some(config))
}

fn fetch() -> Command {
    let cargo = cargo();
    let mut command = Command::new("timeout");
    command.arg(FETCH_SECONDS.to_string()).arg(cargo.get_program()).args(["deny", "fetch", "db"]);
    command.current_dir(root());
    command
}
