//! Files of a folder as events: those that exist, and those that appear later.
//!
//! A file stays in the folder until its run has ended, so that a trigger that is killed and restarted runs it again. A
//! file that is rewritten during its run is run again.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
use sublet_fabric::sync::lock;
use sublet_proto::{Code, Error};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::event::{EventInput, TriggerEvent, thread};
use super::pending_file::{DONE, FAILED, PendingFile, UnderWay};

/// Size of the buffer for inotify events.
const BUFFER_BYTES: usize = 16 << 10;

/// Watches a folder and returns a stream of its files.
pub(super) fn watch(folder: &Path) -> Result<Receiver<Result<TriggerEvent, Error>>, Error> {
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Error::new(Code::InvalidArgument, format!("cannot {what} {}: {error}", folder.display()))
    };
    // Watch before listing the folder, so that no file is missed.
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
            // A send fails only after the receiver was dropped.
            let _ = watcher.tell.blocking_send(Err(error));
        }
    })?;
    Ok(events)
}

struct Watcher {
    folder: PathBuf,
    under_way: UnderWay,
    tell: Sender<Result<TriggerEvent, Error>>,
}

impl Watcher {
    /// Sends events until the receiver is dropped.
    fn run(&self, told: &OwnedFd) -> Result<(), Error> {
        let lost = |error: std::io::Error| {
            Error::of_system(
                format_args!("folder {} cannot be watched any more", self.folder.display()),
                &error,
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
            // After a queue overflow, the folder is listed again.
            is_complete = !event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            if let Some(name) = name
                && !self.take(name)
            {
                return Ok(());
            }
        }
    }

    /// Sends an event for every file in the folder. Returns false if the receiver was dropped.
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
            // Folders are no events, and a file that was put away no longer exists here.
            if is_hidden || !self.folder.join(name).is_file() || !under_way.insert(name.to_owned()) {
                return true;
            }
        }
        let (folder, under_way) = (self.folder.clone(), self.under_way.clone());
        let taken = PendingFile { folder, name: name.to_owned(), under_way, read: Mutex::default() };
        let event = TriggerEvent { name: name.to_string_lossy().into_owned(), what: EventInput::File(taken) };
        self.tell.blocking_send(Ok(event)).is_ok()
    }
}
