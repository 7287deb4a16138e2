//! Writes through to the disk, shared by all that wait for one.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};

/// Files whose changes are to reach the disk before they are acknowledged. One of the threads that wait at the same
/// time writes through for all.
#[derive(Debug)]
pub struct SyncGroup {
    files: Vec<PathBuf>,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of requests so far, and number of those that have been served.
    asked: u64,
    served: u64,
    is_syncing: bool,
    /// Number of times that the files were written through.
    syncs: u64,
}

impl SyncGroup {
    /// The group of these files, by their paths: SQLite may replace them.
    pub(crate) fn new(files: Vec<PathBuf>) -> SyncGroup {
        SyncGroup { files, state: Mutex::default(), ended: Condvar::new() }
    }

    /// Returns when all earlier writes to the files are on the disk.
    ///
    /// # Errors
    /// `system`, with the file: the writes may not outlive the machine.
    pub fn sync(&self) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.asked += 1;
        let own = state.asked;
        loop {
            if state.served >= own {
                return Ok(());
            }
            if state.is_syncing {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let covered = state.asked;
            state.is_syncing = true;
            drop(state);
            let written = self.files.iter().try_for_each(|file| write_through(file));
            state = lock(&self.state);
            state.is_syncing = false;
            state.syncs += 1;
            if written.is_ok() {
                state.served = covered;
            }
            self.ended.notify_all();
            written?;
        }
    }

    /// Returns the number of times that the files were written through so far.
    pub fn syncs(&self) -> u64 {
        lock(&self.state).syncs
    }
}

fn write_through(file: &Path) -> Result<(), Error> {
    let written = File::open(file).and_then(|file| file.sync_data());
    written.map_err(|error| {
        Error::new(Code::System, format!("cannot write {} through to the disk: {error}", file.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_callers_share_a_sync_and_failures_are_returned() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, "x").unwrap();
        let group = SyncGroup::new(vec![file.clone()]);
        std::thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| group.sync().unwrap());
            }
        });
        assert!((1..=64).contains(&group.syncs()), "{}", group.syncs());
        std::fs::remove_file(&file).unwrap();
        assert!(group.sync().unwrap_err().message.contains(&file.display().to_string()));
    }
}
