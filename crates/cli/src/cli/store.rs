//! `sublet store`: check, repair, backup and restore of a manager's embedded store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_manager::store::Report;
use sublet_manager::upkeep::{self, Overwrite, SigningKey};
use sublet_proto::{Code, Error};
use sublet_runtime::access::default_state;

use super::output::Output;

const EXAMPLES: &str = "\
Examples:
  sublet store check --state /var/lib/sublet/manager
  sublet store backup /backup/store-1.sqlite --state /var/lib/sublet/manager
  sublet store restore /backup/store-1.sqlite --state /var/lib/sublet/manager --overwrite
  sublet store repair --state /var/lib/sublet/manager

For the embedded store, while its manager is stopped: leases and calls go on meanwhile. A manager that finds records lost
does not start: restore a backup, or let `repair` go on without them. A backup holds the key that signs tickets.";

/// Check, repair, back up and restore a stopped manager's store
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Check(Check),
    Repair(Repair),
    Backup(Backup),
    Restore(Restore),
}

/// The state folder.
#[derive(Debug, Args)]
struct State {
    /// State folder of the manager [default: $SUBLET_STATE, $XDG_RUNTIME_DIR/sublet or ~/.local/state/sublet]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
}

impl State {
    fn path(&self) -> PathBuf {
        let state = self.state.clone().filter(|path| !path.as_os_str().is_empty());
        state.unwrap_or_else(default_state)
    }
}

/// Read every record and package, and say what is damaged or lost
#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    state: State,
}

/// Put back what the store's journal has, and go on without what is lost
#[derive(Debug, Args)]
struct Repair {
    /// Make a new key for tickets if it is lost, too: leases that run can then not be renewed
    #[arg(long)]
    new_signing_key: bool,

    #[command(flatten)]
    state: State,
}

/// Write a consistent copy of the store to a new file
#[derive(Debug, Args)]
struct Backup {
    /// The new file
    file: PathBuf,

    #[command(flatten)]
    state: State,
}

/// Put a backup in the place of the store
#[derive(Debug, Args)]
struct Restore {
    /// The backup
    file: PathBuf,

    /// Replace the store that is there; it is kept in a folder beside
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    state: State,
}

/// The result of `check` and `repair`.
#[derive(Debug, Serialize)]
struct Examined {
    state: PathBuf,
    whole: bool,
    lost: Vec<String>,
    restored: Vec<String>,
    notes: Vec<String>,
    records: BTreeMap<String, u64>,
    /// Where the files are as they were before the repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<PathBuf>,
}

/// The result of `backup` and `restore`.
#[derive(Debug, Serialize)]
struct Copied {
    state: PathBuf,
    file: PathBuf,
    /// Where the store is that was replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<PathBuf>,
}

impl Examined {
    fn of(state: &Path, report: Report, kept: Option<PathBuf>) -> Examined {
        let Report { restored, lost, notes, records, .. } = report;
        Examined { state: state.to_owned(), whole: lost.is_empty(), lost, restored, notes, records, kept }
    }
}

/// Checks, repairs, backs up or restores.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    match &arguments.action {
        Action::Check(check) => {
            let state = check.state.path();
            let examined = Examined::of(&state, upkeep::check(&state)?, None);
            output.show(&examined, |examined| text(examined, "would be put back from the journal"))?;
            match examined.lost.len() {
                0 => Ok(()),
                lost => {
                    let message = format!("the store in {} is damaged: {lost} findings", state.display());
                    Err(Error::new(Code::System, message))
                }
            }
        }
        Action::Repair(repair) => {
            let state = repair.state.path();
            let key = if repair.new_signing_key { SigningKey::Replace } else { SigningKey::Keep };
            let (report, kept) = upkeep::repair(&state, key)?;
            let examined = Examined::of(&state, report, Some(kept));
            output.show(&examined, |examined| text(examined, "put back from the journal"))
        }
        Action::Backup(backup) => {
            let state = backup.state.path();
            upkeep::backup(&state, &backup.file)?;
            let copied = Copied { state, file: backup.file.clone(), kept: None };
            output.show(&copied, |copied| format!("the store is copied to {}\n", copied.file.display()))
        }
        Action::Restore(restore) => {
            let state = restore.state.path();
            let overwrite = if restore.overwrite { Overwrite::Yes } else { Overwrite::No };
            let kept = upkeep::restore(&state, &restore.file, overwrite)?;
            let copied = Copied { state, file: restore.file.clone(), kept };
            output.show(&copied, |copied| {
                let kept = copied.kept.as_ref().map(|kept| format!("; the old one is in {}", kept.display()));
                format!("the store is that of {}{}\n", copied.file.display(), kept.unwrap_or_default())
            })
        }
    }
}

fn text(examined: &Examined, put_back: &str) -> String {
    let records: u64 = examined.records.values().sum();
    let mut text = format!("{records} records\n");
    for lost in &examined.lost {
        text += &format!("lost: {lost}\n");
    }
    for restored in &examined.restored {
        text += &format!("{put_back}: {restored}\n");
    }
    for note in &examined.notes {
        text += &format!("note: {note}\n");
    }
    if let Some(kept) = &examined.kept {
        text += &format!("the files as they were are in {}\n", kept.display());
    }
    if examined.whole {
        text += "nothing is lost\n";
    }
    text
}
