//! Device programs on disk, found by a digest of their sources.
//!
//! A file's name is the digest of the sources, the options, the device and its driver's version. It is written under
//! another name and renamed when it is complete, so that a reader finds the whole file or none. Its content is checked
//! against its own digest and its name; an invalid file is removed and made again. The folder belongs to one user, and
//! only that user has access: programs loaded from it run as that user.
//!
//! The folder's size is bounded. [`KeepAlive`] chooses the files to remove, and learns of other processes' files at its
//! next eviction.

pub(crate) mod record;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use sublet_fabric::sync::lock;

use crate::DeviceError;
use crate::keep_alive::{EntryCost, KeepAlive};
use crate::spec::Digest;
use record::{HEADER_BYTES, Header};

/// Ending of a program's file name, behind the digest.
const ENDING: &str = ".program";
/// Prefix of a file's name while it is written. Such a file remains if its writer dies.
const UNFINISHED: &str = ".unfinished-";
/// Age from which an unfinished file has no living writer.
const UNFINISHED_AGE: Duration = Duration::from_secs(3600);
/// Most files that are read: this store does not write more.
const MAX_FILES: usize = 65536;
/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// A folder of programs.
#[derive(Debug)]
pub struct ProgramStore {
    folder: PathBuf,
    kept: Mutex<KeepAlive<Digest>>,
}

impl ProgramStore {
    /// Opens or makes the folder, and bounds its size. Refuses a folder that other users can write to, or that belongs
    /// to another user.
    pub fn open(folder: &Path, capacity_bytes: u64) -> Result<ProgramStore, DeviceError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| DeviceError::store(folder, error))?;
        let found = fs::symlink_metadata(folder).map_err(|error| DeviceError::store(folder, error))?;
        let user = rustix::process::geteuid().as_raw();
        if !found.is_dir() || found.uid() != user || found.mode() & 0o022 != 0 {
            let reason = format!("it is not a folder of user {user} alone");
            return Err(DeviceError::store(folder, std::io::Error::other(reason)));
        }
        let store =
            ProgramStore { folder: folder.to_owned(), kept: Mutex::new(KeepAlive::new(capacity_bytes)) };
        store.learn(&mut store.lock());
        Ok(store)
    }

    /// Returns the program of this digest and the time to make it, in microseconds.
    pub(crate) fn get(&self, digest: &Digest) -> Option<(Vec<u8>, u64)> {
        let path = self.path(digest);
        let bytes = read(&path)?;
        match record::decode(bytes, digest) {
            Some((header, payload)) => {
                self.lock().touch(digest);
                Some((payload, header.load_us))
            }
            None => {
                // Damaged, or not written by this store: the caller makes it again.
                let _ = fs::remove_file(&path);
                self.lock().remove(digest);
                None
            }
        }
    }

    /// Stores a program that took `load_us` to make. A failure only costs the time to make it again.
    pub(crate) fn put(&self, digest: &Digest, load_us: u64, payload: &[u8]) -> Result<(), DeviceError> {
        let bytes = record::encode(digest, load_us, payload);
        self.write(digest, &bytes).map_err(|error| DeviceError::store(&self.folder, error))?;
        let mut kept = self.lock();
        self.learn(&mut kept);
        let gone = kept.insert(*digest, EntryCost { load_us, size_bytes: bytes.len() as u64 });
        self.drop_files(&gone);
        Ok(())
    }

    /// Path of a digest's file.
    fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + ENDING)
    }

    fn write(&self, digest: &Digest, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(&self.folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_data()?;
        file.persist(self.path(digest)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Takes note of files that other processes have written or removed, the least recently used first, and removes
    /// unfinished files of dead writers.
    fn learn(&self, kept: &mut KeepAlive<Digest>) {
        let mut files = self.files();
        files.sort_by_key(|(_, _, modified)| *modified);
        let mut there = std::collections::HashSet::new();
        for (digest, size_bytes, _) in files {
            there.insert(digest);
            if kept.contains(&digest) {
                continue;
            }
            let load_us = header(&self.path(&digest)).map_or(0, |header| header.load_us);
            let gone = kept.insert(digest, EntryCost { load_us, size_bytes });
            self.drop_files(&gone);
        }
        let lost: Vec<Digest> = kept.keys().filter(|digest| !there.contains(*digest)).copied().collect();
        for digest in &lost {
            kept.remove(digest);
        }
    }

    fn files(&self) -> Vec<(Digest, u64, SystemTime)> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let mut files = Vec::new();
        for entry in entries.take(MAX_FILES).flatten() {
            let (Ok(found), name) = (entry.metadata(), entry.file_name()) else { continue };
            let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let Some(name) = name.to_str() else { continue };
            if let Some(digest) = name.strip_suffix(ENDING).and_then(digest_of) {
                files.push((digest, found.len(), modified));
            } else if name.starts_with(UNFINISHED) && modified.elapsed().is_ok_and(|age| age > UNFINISHED_AGE)
            {
                let _ = fs::remove_file(entry.path());
            }
        }
        files
    }

    fn drop_files(&self, gone: &[Digest]) {
        gone.iter().for_each(|digest| drop(fs::remove_file(self.path(digest))));
    }

    fn lock(&self) -> MutexGuard<'_, KeepAlive<Digest>> {
        // The policy is consistent after each of its methods, even if a thread panicked in between.
        lock(&self.kept)
    }
}

/// Reads a regular file, not through a link, up to a size limit.
pub(crate) fn read(path: &Path) -> Option<Vec<u8>> {
    let file = open(path)?;
    // For the next process: the file used last stays longest.
    let _ = file.set_modified(SystemTime::now());
    let found = file.metadata().ok().filter(|found| found.is_file() && found.len() <= MAX_FILE_BYTES)?;
    let mut bytes = Vec::with_capacity(usize::try_from(found.len()).ok()?);
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn header(path: &Path) -> Option<Header> {
    let mut bytes = [0; HEADER_BYTES];
    open(path)?.read_exact(&mut bytes).ok()?;
    Header::decode(&bytes)
}

fn open(path: &Path) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}

fn digest_of(hex: &str) -> Option<Digest> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests;
