//! The agent's state folder: private, and of one agent at a time.
//!
//! The lock is the kernel's (`flock`), so it is gone with its process however that ends. Two agents with one folder
//! would each report the other's leases as those of a dead one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sublet_proto::{Code, Error};
use tracing::warn;

/// A state folder that is this agent's until it is dropped.
#[derive(Debug)]
pub(crate) struct AgentStateFolder {
    /// Absolute and in UTF-8, as workers need it.
    pub(crate) path: PathBuf,
    _lock: File,
}

impl AgentStateFolder {
    /// Makes the folder if it is not there, and locks it.
    pub(crate) fn open(folder: &Path) -> Result<AgentStateFolder, Error> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let path = made
            .and_then(|()| fs::canonicalize(folder))
            .map_err(|error| system("making the folder", folder, &error))?;
        utf8(&path)?;
        let lock = path.join("agent.lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock)
            .map_err(|error| system("opening", &lock, &error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(AgentStateFolder { path, _lock: file }),
            Err(Errno::WOULDBLOCK) => {
                let message = format!("another agent already uses the state folder {}", path.display());
                Err(Error::new(Code::AlreadyRunning, message))
            }
            Err(errno) => Err(system("locking", &lock, &errno.into())),
        }
    }

    /// When this agent has started, in milliseconds of Unix time, and in any case later than all that had the folder
    /// before it, whatever has become of the clock. Kept for those after it, if the disk takes it.
    pub(crate) fn started_ms(&self, now: SystemTime) -> u64 {
        let file = self.path.join("agent.started");
        let before_ms = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let now_ms = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(now_ms.as_millis()).unwrap_or(u64::MAX);
        let started_ms = before_ms.map_or(now_ms, |before| now_ms.max(before.saturating_add(1)));
        let part = self.path.join("agent.started.part");
        if let Err(error) =
            fs::write(&part, format!("{started_ms}\n")).and_then(|()| fs::rename(&part, &file))
        {
            warn!(%error, file = %file.display(), "the time of the start could not be kept");
        }
        started_ms
    }
}

pub(crate) fn utf8(path: &Path) -> Result<&str, Error> {
    path.to_str()
        .ok_or_else(|| Error::new(Code::InvalidArgument, format!("the path {} is not UTF-8", path.display())))
}

/// Creates the error of a failed operation on a path.
pub(crate) fn system(operation: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::new(Code::System, format!("{operation} {} failed: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_folder_is_of_one_agent_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = AgentStateFolder::open(&folder.path().join("a/b")).unwrap();
        assert!(first.path.ends_with("a/b"));
        assert_eq!(AgentStateFolder::open(&first.path).unwrap_err().code, Code::AlreadyRunning);
        let path = first.path.clone();
        drop(first);
        AgentStateFolder::open(&path).unwrap();
    }

    #[test]
    fn each_start_is_later_despite_a_clock_set_back() {
        let folder = tempfile::tempdir().unwrap();
        let state = AgentStateFolder::open(folder.path()).unwrap();
        let at = |ms| UNIX_EPOCH + std::time::Duration::from_millis(ms);
        assert_eq!(state.started_ms(at(5_000)), 5_000);
        assert_eq!(state.started_ms(at(7_000)), 7_000);
        assert_eq!(state.started_ms(at(1_000)), 7_001);
        fs::write(folder.path().join("agent.started"), "nonsense").unwrap();
        assert_eq!(state.started_ms(at(9_000)), 9_000);
    }
}
