//! Stores the output of functions: a file for each lease in the state folder, which only the node's operator can
//! read.
//!
//! Nothing that a function prints enters the agent's own log, where it could pass for a message of the agent's. The sandbox's
//! first process writes the file and bounds its size and rate; the agent opens it, and removes the oldest ones. A lease whose
//! functions print nothing leaves no file.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

use crate::machine::state::system;

/// The folder of the logs in an agent's state folder.
pub const LOGS: &str = "logs";
/// Logs of ended leases that are kept. Each has at most 1 MiB.
const MAX_LOGS: usize = 128;
/// Longest lease id that is a file's name.
const MAX_ID_BYTES: usize = 64;

/// The logs of one agent.
#[derive(Debug)]
pub(crate) struct Logs {
    folder: PathBuf,
    /// Ended leases whose logs are kept, the oldest first.
    ended: Mutex<VecDeque<String>>,
}

/// The log of a lease whose worker process runs.
#[derive(Debug)]
pub(crate) struct Log {
    logs: Arc<Logs>,
    lease: String,
    /// Says how long it is, whatever has become of its name.
    file: File,
}

impl Logs {
    /// Makes the folder, and finds what agents before have left.
    pub(crate) fn open(state: &Path) -> Result<Logs, Error> {
        let folder = state.join(LOGS);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|error| system("making the folder", &folder, &error))?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&folder).map_err(|error| system("reading", &folder, &error))?.flatten() {
            let changed = entry.metadata().and_then(|metadata| metadata.modified());
            let path = entry.path();
            if let (Ok(changed), Some(lease)) = (changed, path.file_stem().and_then(|name| name.to_str())) {
                found.push((changed, lease.to_owned()));
            }
        }
        found.sort();
        let ended = found.into_iter().map(|(_, lease)| lease).collect();
        Ok(Logs { folder, ended: Mutex::new(ended) })
    }

    /// The log of a lease, whose next worker process begins.
    pub(crate) fn begin(self: &Arc<Logs>, lease: &str) -> Result<Log, Error> {
        let path = path(&self.folder, lease)?;
        lock(&self.ended).retain(|ended| ended != lease);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(|error| system("opening", &path, &error))?;
        Ok(Log { logs: self.clone(), lease: lease.to_owned(), file })
    }

    fn end(&self, lease: &str) {
        let mut ended = lock(&self.ended);
        ended.push_back(lease.to_owned());
        while ended.len() > MAX_LOGS {
            let Some(oldest) = ended.pop_front() else { return };
            self.remove(&oldest);
        }
    }

    fn remove(&self, lease: &str) {
        // One that cannot be removed is the next agent's.
        let _ = path(&self.folder, lease).map(fs::remove_file);
    }
}

impl Log {
    /// For the process that writes it.
    pub(crate) fn file(&self) -> Result<OwnedFd, Error> {
        let file = self.file.try_clone();
        file.map(OwnedFd::from).map_err(|error| system("opening", &self.logs.folder, &error))
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        match self.file.metadata() {
            Ok(metadata) if metadata.len() == 0 => self.logs.remove(&self.lease),
            _ => self.logs.end(&self.lease),
        }
    }
}

/// Reads the output of a lease's functions that the agent with this state folder has kept.
///
/// # Errors
/// [`Code::InvalidArgument`] if there is no such log, [`Code::System`] if it cannot be read.
pub fn read_log(state: &Path, lease: &str) -> Result<Vec<u8>, Error> {
    let path = path(&state.join(LOGS), lease)?;
    fs::read(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let message = format!(
                "no log of lease {lease} in {}: its functions printed nothing, or it is another node's",
                path.parent().unwrap_or(&path).display()
            );
            Error::new(Code::InvalidArgument, message)
        }
        _ => system("reading", &path, &error),
    })
}

fn path(folder: &Path, lease: &str) -> Result<PathBuf, Error> {
    let is_id =
        (1..=MAX_ID_BYTES).contains(&lease.len()) && lease.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_id {
        return Ok(folder.join(format!("{lease}.log")));
    }
    let message = format!("{lease:.80?} is not a lease's id: `sublet ps` shows them");
    Err(Error::new(Code::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn count(folder: &Path) -> usize {
        fs::read_dir(folder.join(LOGS)).unwrap().count()
    }

    #[test]
    fn keeps_the_newest_logs_and_none_that_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let logs = Arc::new(Logs::open(folder.path()).unwrap());
        drop(logs.begin("silent").unwrap());
        assert_eq!(count(folder.path()), 0);
        let mut running = logs.begin("running").unwrap();
        running.file.write_all(b"first\n").unwrap();
        for number in 0..MAX_LOGS + 3 {
            let mut log = logs.begin(&format!("lease{number}")).unwrap();
            log.file.write_all(b"said\n").unwrap();
        }
        assert_eq!(count(folder.path()), MAX_LOGS + 1);
        assert_eq!(read_log(folder.path(), "running").unwrap(), b"first\n");
        assert_eq!(read_log(folder.path(), "lease2").unwrap_err().code, Code::InvalidArgument);
        assert_eq!(read_log(folder.path(), "lease3").unwrap(), b"said\n");
        drop(running);
        // The next agent continues the list of this one.
        let logs = Arc::new(Logs::open(folder.path()).unwrap());
        logs.begin("after").unwrap().file.write_all(b"x").unwrap();
        assert_eq!(count(folder.path()), MAX_LOGS);
    }

    #[test]
    fn a_lease_id_is_never_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let logs = Arc::new(Logs::open(folder.path()).unwrap());
        for id in ["", "../agent", "a/b", "a.b", &"a".repeat(65)] {
            assert_eq!(logs.begin(id).unwrap_err().code, Code::InvalidArgument, "{id}");
        }
    }
}
