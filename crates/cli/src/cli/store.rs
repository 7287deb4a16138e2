//! `sublet store`: check, repair, backup and restore of a manager's store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use sublet_manager::store::{AuditReport, NatsOptions};
use sublet_manager::upkeep::{self, Overwrite, SigningKey};
use sublet_proto::{Code, Error};
use sublet_runtime::access::{Access, default_address, default_state, manager_address, socket_path};
use sublet_runtime::manager::ManagerClient;

use super::output::CommandOutput;

const EXAMPLES: &str = "\
Examples:
  sublet store check --state /var/lib/sublet/manager
  sublet store backup /var/backups/sublet/1.sqlite --state /var/lib/sublet/manager
  sublet store restore /var/backups/sublet/1.sqlite --state /var/lib/sublet/manager --overwrite
  sublet store repair --state /var/lib/sublet/manager
  sublet store check --store-url nats://nats1.example.org:4222

A backup of the embedded store can be made while its manager runs, by the manager's user; everything else of
that store needs its manager stopped: leases and calls continue meanwhile. A manager that finds records lost does not
start: restore a backup, or let `repair` continue without them. A backup holds the key that signs tickets. A store on
NATS (--store-url) is checked while its managers run, and repaired while they are stopped; its servers back it up and
restore it: `nats stream backup`.";

/// Check, repair, back up and restore a manager's store
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

/// A store on NATS, in the place of the embedded one.
#[derive(Debug, Args)]
struct NatsArguments {
    /// Servers of a store on NATS, as nats://[user:password@]host[:port], several separated by commas
    #[arg(long, value_name = "URL", conflicts_with = "state")]
    store_url: Option<String>,

    /// Name of the store on these servers
    #[arg(long, value_name = "NAME", default_value = "sublet", requires = "store_url")]
    store_name: String,

    /// Authorities to trust for tls://, in PEM [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "store_url")]
    store_ca: Option<PathBuf>,
}

impl NatsArguments {
    fn options(&self) -> Option<NatsOptions> {
        let url = self.store_url.clone()?;
        Some(NatsOptions { url, name: self.store_name.clone(), replicas: 1, ca_file: self.store_ca.clone() })
    }
}

/// Read every record and package, and say what is damaged or lost
#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    servers: NatsArguments,

    #[command(flatten)]
    state: State,
}

/// Put back what the store has a second copy of, and continue without what is lost
#[derive(Debug, Args)]
struct Repair {
    /// Make a new key for tickets if it is lost, too: leases that run can then not be renewed
    #[arg(long, conflicts_with = "store_url")]
    new_signing_key: bool,

    #[command(flatten)]
    servers: NatsArguments,

    #[command(flatten)]
    state: State,
}

/// Write a consistent copy of the store to a new file, also while its manager runs
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
    /// The state folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<PathBuf>,
    /// The name of the store on NATS.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
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
    fn of(report: AuditReport) -> CheckReport {
        let AuditReport { restored, lost, notes, records, .. } = report;
        let (state, store, kept) = Default::default();
        CheckReport { state, store, whole: lost.is_empty(), lost, restored, notes, records, kept }
    }
}

/// Checks, repairs, backs up or restores.
pub(crate) fn run(arguments: &Arguments, output: &CommandOutput) -> Result<(), Error> {
    match &arguments.action {
        Action::Check(check) => {
            let (examined, of) = examine(check)?;
            output.show(&examined, |examined| text(examined, "would be put back from its copy"))?;
            match examined.lost.len() {
                0 => Ok(()),
                1 => Err(Error::new(Code::StoreDamaged, format!("the store {of} is damaged: 1 finding"))),
                lost => {
                    Err(Error::new(Code::StoreDamaged, format!("the store {of} is damaged: {lost} findings")))
                }
            }
        }
        Action::Repair(repair) => {
            if let Some(servers) = repair.servers.options() {
                let report = upkeep::repair_nats(&servers)?;
                let examined = CheckReport { store: Some(servers.name), ..CheckReport::of(report) };
                return output.show(&examined, |examined| text(examined, "put back from its copy"));
            }
            let state = repair.state.path();
            let key = if repair.new_signing_key { SigningKey::Replace } else { SigningKey::Keep };
            let (report, kept) = upkeep::repair(&state, key)?;
            let examined = CheckReport { state: Some(state), kept: Some(kept), ..CheckReport::of(report) };
            output.show(&examined, |examined| text(examined, "put back from its copy"))
        }
        Action::Backup(backup) => {
            let state = backup.state.path();
            back_up(&state, &backup.file)?;
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

/// Checks a store, and returns the report and the words that name the store.
fn examine(check: &Check) -> Result<(CheckReport, String), Error> {
    let Some(servers) = check.servers.options() else {
        let state = check.state.path();
        let (report, of) = (upkeep::check(&state)?, format!("in {}", state.display()));
        return Ok((CheckReport { state: Some(state), ..CheckReport::of(report) }, of));
    };
    let report = upkeep::check_nats(&servers)?;
    let of = format!("{} on NATS", servers.name);
    Ok((CheckReport { store: Some(servers.name), ..CheckReport::of(report) }, of))
}

/// Copies the store of a manager that does not run, or has a running one do so.
fn back_up(state: &Path, file: &Path) -> Result<(), Error> {
    let (state, file) = (absolute(state)?, absolute(file)?);
    match upkeep::backup(&state, &file) {
        Err(error) if error.code == Code::AlreadyRunning => {}
        ended => return ended,
    }
    let usual = manager_address(&state);
    // It may listen elsewhere, as the environment says.
    let address = if socket_path(&usual)?.exists() { usual } else { default_address() };
    let manager = ManagerClient::connect_with(Access::parse(&address)?)?;
    manager.back_up_store(&file.display().to_string()).map(drop)
}

/// Makes a path absolute: a running manager has another working folder, and the address of a socket is absolute.
fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path)
        .map_err(|error| Error::new(Code::InvalidArgument, format!("{} is no path: {error}", path.display())))
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
