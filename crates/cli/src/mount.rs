//! A folder of leased memory that grows: programs that write temporary files, as databases that sort more than they have
//! memory for, spill into the memory of other nodes.
//!
//! Three modules decide without I/O: [`files`] about names, [`extents`] about the blocks that hold a file's bytes, and
//! [`blocks`] about free blocks. The module [`contents`] carries their plans out on a [`storage`] of chunks. Each chunk is
//! a lease of its own, so that the end of a node loses the bytes of its chunks and no others. The module [`file_system`]
//! answers the kernel, and [`keeper`] extends the leases.
//!
//! Invariants:
//! - A byte is read as it was written, or as an error. Bytes that a gone node had are never 0 or those of another file.
//! - The folder's files do not outlive its process.

pub(crate) mod blocks;
mod contents;
mod extents;
mod file_system;
mod files;
mod keeper;
pub(crate) mod point;
pub(crate) mod storage;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::Session;
use rustix::process::{getegid, geteuid};
use sublet_proto::{Code, Error};
use sublet_runtime::{Access, Invoker, MemoryPlan};
use tokio::sync::oneshot;

use contents::Contents;
use file_system::{MemoryFileSystem, SharedContents, lock};
use files::NodeAttributes;
use keeper::Keeper;
use point::{FolderMount, MountTerms};
use storage::{LeasedStorage, StorageReport};

/// Properties of a folder to mount.
#[derive(Clone, Debug)]
pub(crate) struct MountOptions {
    /// Path of an empty folder.
    pub(crate) folder: PathBuf,
    /// Largest size of all files together, in bytes: a multiple of the chunk's.
    pub(crate) limit_bytes: u64,
    /// Size of a lease, in bytes: a multiple of [`blocks::BLOCK_BYTES`].
    pub(crate) chunk_bytes: u64,
    /// Duration of a lease, which is extended after a third of it.
    pub(crate) lease: Duration,
    /// Nodes, pool and fabric of the leases.
    pub(crate) plan: MemoryPlan,
    /// Folder of a disk, for files in place of memory that cannot be leased.
    pub(crate) fallback: Option<PathBuf>,
    /// Whether other users may enter the folder.
    pub(crate) allows_others: bool,
    /// Whether the kernel returns from writes before the bytes have arrived.
    pub(crate) writes_back: bool,
}

/// A mounted folder, until [`MountedMemory::end`].
pub(crate) struct MountedMemory {
    contents: SharedContents<LeasedStorage>,
    point: FolderMount,
}

impl MountedMemory {
    /// Mounts a folder. The receiver completes when the folder was unmounted by another process.
    pub(crate) fn start(
        access: Access,
        options: MountOptions,
    ) -> Result<(MountedMemory, oneshot::Receiver<()>), Error> {
        let MountOptions { folder, limit_bytes, chunk_bytes, lease, plan, .. } = options;
        debug_assert!(limit_bytes >= chunk_bytes, "{limit_bytes} bytes of chunks of {chunk_bytes}");
        let point = FolderMount::prepare(&folder)?;
        if let Some(fallback) = &options.fallback {
            check_fallback(fallback, point.path())?;
        }
        let invoker = Invoker::connect_with(access)?;
        let keeper = Keeper::start(lease)?;
        let storage = LeasedStorage::new(invoker, plan.timeout(lease), chunk_bytes, options.fallback, keeper);
        let contents = Contents::new(own_attributes(), storage, chunk_bytes, limit_bytes);
        let contents = Arc::new(Mutex::new(contents));
        let file_system = MemoryFileSystem::new(contents.clone(), options.writes_back);
        let session = point.mount(file_system, MountTerms { allows_others: options.allows_others })?;
        let (gone, ended) = oneshot::channel();
        let started =
            std::thread::Builder::new().name("folder".to_owned()).spawn(move || serve(session, gone));
        if let Err(error) = started {
            point.unmount()?;
            return Err(Error::of_system("cannot start the thread of the folder", &error));
        }
        point.read_ahead();
        Ok((MountedMemory { contents, point }, ended))
    }

    /// Path of the folder.
    pub(crate) fn path(&self) -> &Path {
        self.point.path()
    }

    /// Unmounts the folder and gives its memory back. Programs that still have files open get errors.
    pub(crate) fn end(self) -> Result<StorageReport, Error> {
        let unmounted = self.point.unmount();
        let report = lock(&self.contents).storage.end();
        unmounted.and(report)
    }
}

/// Checks that files can be made in the folder in place of memory, which is not the mounted one.
fn check_fallback(fallback: &Path, mounted: &Path) -> Result<(), Error> {
    let shown = fallback.display();
    let failed =
        |error| Error::of_system(format_args!("cannot make files in the --fallback folder {shown}"), &error);
    let path = fallback.canonicalize().map_err(failed)?;
    if path.starts_with(mounted) {
        let message =
            format!("the --fallback folder {shown} is inside of the mounted folder {}", mounted.display());
        return Err(Error::new(Code::InvalidArgument, message));
    }
    tempfile::tempfile_in(&path).map(drop).map_err(failed)
}

/// Answers the kernel until the folder is unmounted.
fn serve(mut session: Session<MemoryFileSystem<LeasedStorage>>, gone: oneshot::Sender<()>) {
    if let Err(error) = session.run() {
        tracing::warn!(%error, "cannot receive the kernel's requests for the folder");
    }
    // Dropping the session would unmount the path again, where another folder may be mounted by now.
    std::mem::forget(session);
    // The receiver is gone if this process unmounts the folder itself.
    let _ = gone.send(());
}

/// Attributes of the folder: its user's alone, unless that user changes them.
fn own_attributes() -> NodeAttributes {
    let now = SystemTime::now();
    NodeAttributes {
        mode: 0o700,
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        accessed: now,
        modified: now,
        changed: now,
    }
}
