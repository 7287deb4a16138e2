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

These commands work on the embedded store while its manager is stopped; leases and calls continue meanwhile. A manager
that finds records lost does not start: restore a backup, or let `repair` continue without them. A backup contains the
key that signs tickets.";

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

/// Option for the state folder.
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

/// Read every record and package, and list damage and loss
#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    state: State,
}

/// Restore what the store's journal has, and continue without what is lost
#[derive(Debug, Args)]
struct Repair {
    /// Create a new key for tickets if it is lost; current leases can then not be renewed
    #[arg(long)]
    new_signing_key: bool,

    #[command(flatten)]
    state: State,
}

/// Write a consistent copy of the store to a new file
#[derive(Debug, Args)]
struct Backup {
    /// Path of the new file
    file: PathBuf,

    #[command(flatten)]
    state: State,
}

/// Replace the store by a backup
#[derive(Debug, Args)]
struct Restore {
    /// Path of the backup
    file: PathBuf,

    /// Replace an existing store, which is kept in a folder beside the new one
    #[arg(long)]
    overwrite: bool,

    #[command(flatten)]
    state: State,
}

/// Report of `check` and `repair`.
#[derive(Debug, Serialize)]
struct CheckReport {
    state: PathBuf,
    whole: bool,
    lost: Vec<String>,
    restored: Vec<String>,
    notes: Vec<String>,
    records: BTreeMap<String, u64>,
    /// Folder with the files as they were before the repair.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<PathBuf>,
}

/// Report of `backup` and `restore`.
#[derive(Debug, Serialize)]
struct CopyReport {
    state: PathBuf,
    file: PathBuf,
    /// Folder with the replaced store.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<PathBuf>,
}

impl CheckReport {
    fn of(state: &Path, report: Report, kept: Option<PathBuf>) -> CheckReport {
        let Report { restored, lost, notes, records, .. } = report;
        CheckReport { state: state.to_owned(), whole: lost.is_empty(), lost, restored, notes, records, kept }
    }
}

/// Checks, repairs, backs up or restores.
pub(crate) fn run(arguments: &Arguments, output: &Output) -> Result<(), Error> {
    match &arguments.action {
        Action::Check(check) => {
            let state = check.state.path();
            let examined = CheckReport::of(&state, upkeep::check(&state)?, None);
            output.show(&examined, |examined| text(examined, "can be restored from the journal"))?;
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
            let examined = CheckReport::of(&state, report, Some(kept));
            output.show(&examined, |examined| text(examined, "restored from the journal"))
        }
        Action::Backup(backup) => {
            let state = backup.state.path();
            upkeep::backup(&state, &backup.file)?;
            let copied = CopyReport { state, file: backup.file.clone(), kept: None };
            output.show(&copied, |copied| format!("the store is copied to {}\n", copied.file.display()))
        }
        Action::Restore(restore) => {
            let state = restore.state.path();
            let overwrite = if restore.overwrite { Overwrite::Yes } else { Overwrite::No };
            let kept = upkeep::restore(&state, &restore.file, overwrite)?;
            let copied = CopyReport { state, file: restore.file.clone(), kept };
            output.show(&copied, |copied| {
                let kept = copied.kept.as_ref().map(|kept| format!("; the old one is in {}", kept.display()));
                format!("the store is restored from {}{}\n", copied.file.display(), kept.unwrap_or_default())
            })
        }
    }
}

fn text(examined: &CheckReport, put_back: &str) -> String {
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
        text += &format!("the original files are in {}\n", kept.display());
    }
    if examined.whole {
        text += "nothing is lost\n";
    }
    text
}
