//! The folder of one spawner in a hierarchy of control groups, and the folders that dead spawners have left.
//!
//! A living spawner holds a lock on its folder. The lock is the kernel's, so it ends with the spawner, and it means the same
//! to a spawner in another PID namespace, as of another container that shares the hierarchy: there the number of a process says
//! nothing. Numbers in names only keep names apart.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Prefix of the name of a spawner's group; numbers follow.
pub(crate) const PREFIX: &str = "sublet-";

/// Names that are tried: spawners of several PID namespaces may have the same number.
const NAMES: u32 = 1024;

/// See the [module](self). The folder is removed when it is dropped.
pub(super) struct SpawnerGroup {
    pub(super) folder: PathBuf,
    _lock: File,
}

impl SpawnerGroup {
    /// A new folder in a group; none without the right to make groups.
    pub(super) fn take(parent: &Path) -> Option<SpawnerGroup> {
        let number = std::process::id();
        for attempt in 0..NAMES {
            let folder = parent.join(format!("{PREFIX}{number}-{attempt}"));
            match fs::create_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.ok()?,
            }
            // Another spawner may take it for one that was left, until it is locked.
            if let Some(lock) = lock(&folder).filter(|lock| is_at(lock, &folder)) {
                return Some(SpawnerGroup { folder, _lock: lock });
            }
        }
        None
    }

    /// The group in which it was taken.
    pub(super) fn parent(&self) -> Option<&Path> {
        self.folder.parent()
    }
}

impl Drop for SpawnerGroup {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// Removes what dead spawners have left in a group.
pub(super) fn remove_left(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(numbers) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let is_name = numbers.starts_with(|first: char| first.is_ascii_digit())
            && numbers.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        // The lock is held until the group is removed, so that no other spawner claims the group meanwhile.
        if is_name && let Some(_lock) = lock(&entry.path()) {
            remove(&entry.path());
        }
    }
}

/// Locks a group, if no living spawner has its lock.
fn lock(folder: &Path) -> Option<File> {
    let opened = File::open(folder).ok()?;
    flock(&opened, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(opened)
}

/// Whether an open folder is still the one of this name.
fn is_at(opened: &File, folder: &Path) -> bool {
    let number = |found: io::Result<fs::Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
    let opened = number(opened.metadata());
    opened.is_some() && opened == number(fs::metadata(folder))
}

/// Removes a group and those in it. A group that still has processes stays.
fn remove(group: &Path) {
    let folders = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    folders.filter(|path| path.is_dir()).for_each(|path| drop(fs::remove_dir(path)));
    // The next spawner tries again.
    let _ = fs::remove_dir(group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_groups_of_dead_spawner_whose_number_is_reused() {
        let parent = tempfile::tempdir().unwrap();
        let left = parent.path().join(format!("{PREFIX}{}-0", std::process::id()));
        fs::create_dir_all(left.join("7")).unwrap();
        remove_left(parent.path());
        assert!(!left.exists());
    }

    #[test]
    fn keeps_groups_of_living_spawner_of_another_process_namespace() {
        let parent = tempfile::tempdir().unwrap();
        let foreign = parent.path().join(format!("{PREFIX}4294967295-0"));
        fs::create_dir(&foreign).unwrap();
        let living = lock(&foreign).unwrap();
        remove_left(parent.path());
        assert!(foreign.exists());
        drop(living);
        remove_left(parent.path());
        assert!(!foreign.exists());
    }

    #[test]
    fn spawners_with_the_same_number_have_folders_of_their_own() {
        let parent = tempfile::tempdir().unwrap();
        let [one, other] = [0, 1].map(|_| SpawnerGroup::take(parent.path()).unwrap());
        assert_ne!(one.folder, other.folder);
        remove_left(parent.path());
        assert!(one.folder.exists() && other.folder.exists());
        drop(one);
        assert!(other.folder.exists());
        drop(other);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn groups_of_other_programs_stay() {
        let parent = tempfile::tempdir().unwrap();
        let others = ["sublet-agent.service", "sublet-", "sublet--1", "system.slice"];
        others.iter().for_each(|name| fs::create_dir(parent.path().join(name)).unwrap());
        remove_left(parent.path());
        assert!(others.iter().all(|name| parent.path().join(name).exists()));
    }
}
