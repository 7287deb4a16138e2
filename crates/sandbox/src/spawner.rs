//! The spawner: a process with a single thread that makes all sandboxes of one agent, and ends with it.
//!
//! It answers one request after the other. Without requests it only prepares the first processes of the next sandboxes,
//! which wait in their namespaces and control groups for their plans, and processes on standby. Its only connection is its
//! standard input; when the other end is closed the spawner ends, and with it everything that it has started.
//!
//! If the machine lacks control groups or users of their own for sandboxes, the spawner does without, as `strengths`
//! reports. Every sandbox always has no capabilities and few system calls, and, but for weak isolation, namespaces and
//! a root of its own.

mod birth;
pub(crate) mod cgroups;
mod first_process;
mod heat;
mod link;
mod look;
mod means;
mod mounted_folders;
mod opened_files;
mod root;
mod sandbox;
mod standby;
mod standby_policy;
mod table;
mod template;
mod templates;
mod users;
mod view;
mod weak;
mod workshop;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::stdio::stdin;
use sublet_proto::v1::sandbox_request::Body;
use sublet_proto::v1::{SandboxReply, SandboxRequest};

use crate::{DevicePlace, SandboxError, Walls, system, wire};
use table::SandboxTable;
use workshop::Workshop;

/// Argument with which the spawner makes sandboxes of weak isolation.
pub const WEAK: &str = "--weak";

/// Arguments before the place of a file, and before that of a folder, of devices.
pub const PLACE_OF_FILE: &str = "--device-file";
/// See [`PLACE_OF_FILE`].
pub const PLACE_OF_FOLDER: &str = "--device-folder";

/// Tells whether all sandboxes with namespaces see this path of the host, if it exists, as it is.
pub fn is_shown_to_all(path: &Path) -> bool {
    root::LIBRARIES.iter().any(|shown| path.starts_with(Path::new("/").join(shown)))
}

/// Separates the places of devices from the paths of the host that sandboxes are shown.
pub fn shown_and_places(words: &[OsString]) -> (Vec<PathBuf>, Vec<DevicePlace>) {
    let (mut shown, mut places) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let place: fn(PathBuf) -> DevicePlace = match word.to_str() {
            Some(PLACE_OF_FILE) => DevicePlace::File,
            Some(PLACE_OF_FOLDER) => DevicePlace::Folder,
            _ => {
                shown.push(PathBuf::from(word));
                continue;
            }
        };
        places.extend(words.next().map(|path| place(PathBuf::from(path))));
    }
    (shown, places)
}

/// Prints how strong sandboxes are here, a wall in each line. The folder is as for [`run`].
pub fn look(folder: &Path) {
    for finding in look::findings(folder) {
        println!("{}", finding.line());
    }
}

/// Returns the status to end with, if this process is in the sandbox that [`look`] has made.
pub fn trial() -> Option<i32> {
    std::env::args_os().nth(1).is_some_and(|word| word == look::INSIDE).then(look::inside)
}

/// Serves until the other end of standard input is closed. The folder is an existing one, over which the root that
/// all have in common is mounted in a namespace of this process's own; sandboxes are shown these paths of the host, too, and
/// these places are made for what belongs to devices.
/// With weak walls nothing is mounted.
pub fn run(folder: &Path, shown: (&[PathBuf], &[DevicePlace]), walls: Walls) {
    // The first three only: nothing in this process owns others yet.
    let closed = system::keep_only(&mut [0, 1, 2]);
    let opened = closed.map_err(|error| SandboxError::system("closing descriptors", error));
    let mut served = opened.and_then(|()| Workshop::open(folder, shown, walls)).map(SandboxTable::new);
    if let Ok(table) = &served {
        look::warn_of_missing_shares(table.workshop.means.cgroups.describe());
    }
    loop {
        if let Ok(table) = &mut served {
            table.workshop.rest();
        }
        let (request, fds) = match wire::receive::<SandboxRequest>(stdin()) {
            Ok(None) | Err(_) => return,
            Ok(Some(received)) => received,
        };
        let standby = match (&mut served, &request.body) {
            (Ok(table), Some(Body::Standby(terms))) => table.workshop.templates.keep_standby(terms.clone()),
            _ => Vec::new(),
        };
        let (answers, fds) = match &mut served {
            Ok(table) => table.serve(request, fds),
            Err(error) => (table::refuse(&request, error), Vec::new()),
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let reply = SandboxReply { answers, served: true, standby };
        if wire::send(stdin(), &reply, &fds).is_err() {
            return;
        }
    }
}
