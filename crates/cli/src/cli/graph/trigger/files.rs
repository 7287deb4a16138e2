//! Files of a folder as events: what is there, and what comes.
//!
//! A file stays where it is until its run has ended, so that whoever is killed meanwhile, and is started again, sees to it again. One
//! that is written anew during its run is run again.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use sublet_proto::{Code, Error};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::events::{Event, What, thread};

/// Where files go.
const DONE: &str = "done";
const FAILED: &str = "failed";
/// Room for what the kernel tells at a time.
const BUFFER_BYTES: usize = 16 << 10;

/// The names of files that are being seen to.
type UnderWay = Arc<Mutex<HashSet<OsString>>>;

/// A file that is being seen to.
pub(super) struct Taken {
    folder: PathBuf,
    name: OsString,
    under_way: UnderWay,
    /// As it was when it was read.
    read: Mutex<Option<Stamp>>,
}

/// Tells what a file holds from what it held before.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    len_bytes: u64,
    modified_s: i64,
    modified_ns: i64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            inode: metadata.ino(),
            len_bytes: metadata.len(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
        }
    }
}

/// Files of a folder, from now on.
pub(super) fn watch(folder: &Path) -> Result<Receiver<Result<Event, Error>>, Error> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Error::new(Code::InvalidArgument, format!("cannot {what} {}: {error}", folder.display()))
    };
    // Before it is looked what is there, so that nothing is missed.
    let told = init(CreateFlags::CLOEXEC).map_err(|error| failed("watch", &error))?;
    let flags = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
    add_watch(&told, folder, flags).map_err(|error| failed("watch", &error))?;
    for place in [DONE, FAILED] {
        std::fs::create_dir_all(folder.join(place)).map_err(|error| failed("make folders in", &error))?;
    }
    let (tell, events) = channel(1);
    let watcher = Watcher { folder: folder.to_owned(), under_way: UnderWay::default(), tell };
    thread("sublet files", move || {
        if let Err(error) = watcher.run(&told) {
            // Nobody wants events any more.
            let _ = watcher.tell.blocking_send(Err(error));
        }
    })?;
    Ok(events)
}

struct Watcher {
    folder: PathBuf,
    under_way: UnderWay,
    tell: Sender<Result<Event, Error>>,
}

impl Watcher {
    /// Until nobody wants events.
    fn run(&self, told: &OwnedFd) -> Result<(), Error> {
        let lost = |error: std::io::Error| {
            Error::new(
                Code::System,
                format!("folder {} cannot be watched any more: {error}", self.folder.display()),
            )
        };
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(told, &mut buffer);
        let mut is_complete = false;
        loop {
            if !is_complete && !self.take_all().map_err(lost)? {
                return Ok(());
            }
            let event = match reader.next() {
                Ok(event) => event,
                Err(rustix::io::Errno::INTR) => {
                    is_complete = true;
                    continue;
                }
                Err(error) => return Err(lost(error.into())),
            };
            if event.events().contains(ReadFlags::IGNORED) {
                return Err(lost(std::io::ErrorKind::NotFound.into()));
            }
            // What the kernel could not note is looked for.
            is_complete = !event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            if let Some(name) = name
                && !self.take(name)
            {
                return Ok(());
            }
        }
    }

    /// All that are there. False: nobody wants events any more.
    fn take_all(&self) -> std::io::Result<bool> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            names.push(entry?.file_name());
        }
        names.sort();
        Ok(names.iter().all(|name| self.take(name)))
    }

    fn take(&self, name: &OsStr) -> bool {
        let is_hidden = name.as_bytes().starts_with(b".");
        {
            let mut under_way = lock(&self.under_way);
            // A folder is none, and what has been put away is not there.
            if is_hidden || !self.folder.join(name).is_file() || !under_way.insert(name.to_owned()) {
                return true;
            }
        }
        let (folder, under_way) = (self.folder.clone(), self.under_way.clone());
        let taken = Taken { folder, name: name.to_owned(), under_way, read: Mutex::default() };
        let event = Event { name: name.to_string_lossy().into_owned(), what: What::File(taken) };
        self.tell.blocking_send(Ok(event)).is_ok()
    }
}

impl Taken {
    /// What is there, up to so many bytes.
    pub(super) fn read(&self, limit: u64) -> Result<Vec<u8>, Error> {
        let path = self.folder.join(&self.name);
        let read = || {
            let file = File::open(&path)?;
            *lock(&self.read) = Some(Stamp::of(&file.metadata()?));
            let mut bytes = Vec::new();
            file.take(limit).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|error: std::io::Error| {
            Error::new(Code::System, format!("reading {}: {error}", path.display()))
        })
    }

    /// Its run has ended. False: it holds something else by now, and is where it was.
    pub(super) fn put_away(&self, is_well: bool) -> Result<bool, Error> {
        let from = self.folder.join(&self.name);
        let to = self.folder.join(if is_well { DONE } else { FAILED }).join(&self.name);
        // Until it is known: what comes under this name from then on is another.
        let mut under_way = lock(&self.under_way);
        let put = || -> std::io::Result<bool> {
            std::fs::rename(&from, &to)?;
            let is_same = *lock(&self.read) == Some(Stamp::of(&std::fs::metadata(&to)?));
            if !is_same {
                std::fs::rename(&to, &from)?;
            }
            Ok(is_same)
        };
        let put = match put() {
            // Somebody else has put it away.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            put => put,
        };
        if !matches!(put, Ok(false)) {
            under_way.remove(&self.name);
        }
        put.map_err(|error| {
            Error::new(Code::System, format!("cannot move {} to {}: {error}", from.display(), to.display()))
        })
    }
}

/// What a lock here guards is whole between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
