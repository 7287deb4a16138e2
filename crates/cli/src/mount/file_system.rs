//! Answers the kernel's requests for a mounted folder, by FUSE.
//!
//! Only this process changes the folder's files, so the kernel keeps names, attributes and pages of files as long as it
//! likes. A page that the kernel has is read without a request, also when the node of its bytes is gone.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fuser::consts::{FOPEN_KEEP_CACHE, FUSE_PARALLEL_DIROPS, FUSE_WRITE_CACHE, FUSE_WRITEBACK_CACHE};
use fuser::{
    FileAttr, FileType, Filesystem, KernelConfig, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
};
use rustix::fs::{FallocateFlags, RenameFlags};
use rustix::io::Errno;

use super::blocks::BLOCK_BYTES;
use super::contents::{Contents, Storage};
use super::extents::FileData;
use super::files::{FileNode, Folder, MAX_NAME_BYTES, MAX_NODES, NodeAttributes, NodeContent, ROOT};

/// Time for which the kernel keeps names and attributes.
const TTL: Duration = Duration::from_secs(3600);
/// Most bytes of one request.
const MAX_REQUEST_BYTES: u32 = 1 << 20;
/// Most requests that no program waits for, as those that read ahead.
const MAX_BACKGROUND: u16 = 64;
/// Unit in which the kernel counts the size of a file, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Positions of a listing before the first name: of the folder itself and of its parent.
const DOTS: u64 = 2;

/// Files of a mounted folder, which the session's thread and the one that ends the session share.
pub(crate) type SharedContents<S> = Arc<Mutex<Contents<S>>>;

/// The side of a mounted folder that the kernel talks to; see the [module](self).
pub(crate) struct MemoryFileSystem<S> {
    contents: SharedContents<S>,
    /// Whether the kernel returns from a write before the bytes have arrived here.
    writes_back: bool,
    /// Memory for the bytes of a read.
    buffer: Vec<u8>,
}

/// Locks the files. A panic of the other thread leaves them as they are.
pub(crate) fn lock<S>(contents: &SharedContents<S>) -> MutexGuard<'_, Contents<S>> {
    contents.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Storage> MemoryFileSystem<S> {
    pub(crate) fn new(contents: SharedContents<S>, writes_back: bool) -> MemoryFileSystem<S> {
        MemoryFileSystem { contents, writes_back, buffer: Vec::new() }
    }

    /// Creates a node for a program.
    fn create_node(
        &self,
        request: &Request<'_>,
        (parent, name): (u64, &OsStr),
        (mode, umask): (u32, u32),
        content: NodeContent,
    ) -> Result<FileAttr, Errno> {
        let now = SystemTime::now();
        let attributes = NodeAttributes {
            mode: permissions(mode & !umask),
            uid: request.uid(),
            gid: request.gid(),
            accessed: now,
            modified: now,
            changed: now,
        };
        let mut contents = lock(&self.contents);
        let number = contents.files.create(parent, name, content, attributes)?;
        Ok(attributes_of(number, contents.files.node(number)?))
    }

    fn attributes(&self, number: u64) -> Result<FileAttr, Errno> {
        let contents = lock(&self.contents);
        Ok(attributes_of(number, contents.files.node(number)?))
    }

    fn set_attributes(&self, number: u64, change: &AttributeChange) -> Result<FileAttr, Errno> {
        let now = SystemTime::now();
        let mut contents = lock(&self.contents);
        if let Some(len_bytes) = change.len_bytes {
            contents.set_len(number, len_bytes, now)?;
        }
        let attributes = &mut contents.files.node_mut(number)?.attributes;
        attributes.mode = change.mode.map_or(attributes.mode, permissions);
        attributes.uid = change.uid.unwrap_or(attributes.uid);
        attributes.gid = change.gid.unwrap_or(attributes.gid);
        attributes.accessed = change.accessed.unwrap_or(attributes.accessed);
        attributes.modified = change.modified.unwrap_or(attributes.modified);
        attributes.changed = change.changed.unwrap_or(now);
        Ok(attributes_of(number, contents.files.node(number)?))
    }

    fn write_bytes(&self, number: u64, offset: i64, bytes: &[u8], is_late: bool) -> Result<u32, Errno> {
        let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let (mut contents, now) = (lock(&self.contents), SystemTime::now());
        if is_late {
            contents.write_late(number, offset, bytes, now)?;
        } else {
            contents.write(number, offset, bytes, now)?;
        }
        u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)
    }

    fn allocate(&self, number: u64, offset: i64, len_bytes: i64, mode: i32) -> Result<(), Errno> {
        let (Ok(offset), Ok(len_bytes)) = (u64::try_from(offset), u64::try_from(len_bytes)) else {
            return Err(Errno::INVAL);
        };
        let now = SystemTime::now();
        let mut contents = lock(&self.contents);
        let flags = FallocateFlags::from_bits(mode.cast_unsigned()).ok_or(Errno::OPNOTSUPP)?;
        let punches = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if flags == punches {
            contents.punch(number, offset, len_bytes, now)
        } else if flags.is_empty() || flags == FallocateFlags::KEEP_SIZE {
            contents.reserve(number, (offset, len_bytes), !flags.is_empty(), now)
        } else {
            Err(Errno::OPNOTSUPP)
        }
    }

    fn rename_node(&self, from: (u64, &OsStr), to: (u64, &OsStr), flags: u32) -> Result<(), Errno> {
        let may_replace = match flags {
            0 => true,
            flags if flags == RenameFlags::NOREPLACE.bits() => false,
            _ => return Err(Errno::INVAL),
        };
        let mut contents = lock(&self.contents);
        let replaced = contents.files.rename(from, to, may_replace, SystemTime::now())?;
        contents.free(replaced);
        Ok(())
    }

    fn unlink_node(&self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        let mut contents = lock(&self.contents);
        let removed = contents.files.unlink(parent, name, SystemTime::now())?;
        contents.free(removed);
        Ok(())
    }

    fn list(&self, number: u64, offset: i64, reply: &mut ReplyDirectory) -> Result<(), Errno> {
        let after = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let contents = lock(&self.contents);
        let folder = contents.files.folder(number)?;
        let dots = [(1, number, "."), (2, contents.files.parent(number)?, "..")];
        for (position, node, name) in dots.into_iter().filter(|(position, ..)| *position > after) {
            if reply.add(node, position.cast_signed(), FileType::Directory, name) {
                return Ok(());
            }
        }
        for listed in folder.list(after.saturating_sub(DOTS)) {
            let kind = kind_of(contents.files.node(listed.node)?);
            if reply.add(listed.node, (listed.position + DOTS).cast_signed(), kind, listed.name) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Attributes that a program sets.
#[derive(Debug, Default)]
struct AttributeChange {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    len_bytes: Option<u64>,
    accessed: Option<SystemTime>,
    modified: Option<SystemTime>,
    changed: Option<SystemTime>,
}

fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).unwrap_or(0)
}

fn time_of(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

fn kind_of(node: &FileNode) -> FileType {
    match node.content {
        NodeContent::File(_) => FileType::RegularFile,
        NodeContent::Folder(_) => FileType::Directory,
        NodeContent::Link(_) => FileType::Symlink,
    }
}

fn attributes_of(number: u64, node: &FileNode) -> FileAttr {
    let (size, blocks) = match &node.content {
        NodeContent::File(data) => (data.len_bytes(), data.blocks() * (BLOCK_BYTES / SECTOR_BYTES)),
        NodeContent::Folder(_) => (0, 0),
        NodeContent::Link(target) => (target.len() as u64, 0),
    };
    let NodeAttributes { mode, uid, gid, accessed, modified, changed } = node.attributes;
    FileAttr {
        ino: number,
        size,
        blocks,
        atime: accessed,
        mtime: modified,
        ctime: changed,
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind_of(node),
        perm: mode,
        nlink: node.links(),
        uid,
        gid,
        rdev: 0,
        blksize: u32::try_from(BLOCK_BYTES).unwrap_or(u32::MAX),
        flags: 0,
    }
}

/// Answers a request that has no result.
fn answer(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error.raw_os_error()),
    }
}

fn answer_entry(entry: Result<FileAttr, Errno>, reply: ReplyEntry) {
    match entry {
        Ok(attributes) => reply.entry(&TTL, &attributes, 0),
        Err(error) => reply.error(error.raw_os_error()),
    }
}

fn answer_attributes(attributes: Result<FileAttr, Errno>, reply: ReplyAttr) {
    match attributes {
        Ok(attributes) => reply.attr(&TTL, &attributes),
        Err(error) => reply.error(error.raw_os_error()),
    }
}

impl<S: Storage> Filesystem for MemoryFileSystem<S> {
    fn init(&mut self, _: &Request<'_>, config: &mut KernelConfig) -> Result<(), i32> {
        // An older kernel has smaller limits, which are an error's value, or lacks an ability, and works without it.
        let _ = config.set_max_write(MAX_REQUEST_BYTES);
        if let Err(most) = config.set_max_readahead(MAX_REQUEST_BYTES) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.add_capabilities(FUSE_PARALLEL_DIROPS);
        if self.writes_back && config.add_capabilities(FUSE_WRITEBACK_CACHE).is_err() {
            tracing::warn!("this kernel's FUSE has no write-back cache: each write waits for its bytes");
        }
        Ok(())
    }

    fn lookup(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        let found = lock(&self.contents).files.look_up(parent, name);
        answer_entry(found.and_then(|number| self.attributes(number)), reply);
    }

    fn forget(&mut self, _: &Request<'_>, number: u64, times: u64) {
        if number == ROOT {
            return;
        }
        let mut contents = lock(&self.contents);
        let removed = contents.files.forget(number, times);
        contents.free(removed);
    }

    fn getattr(&mut self, _: &Request<'_>, number: u64, _: Option<u64>, reply: ReplyAttr) {
        answer_attributes(self.attributes(number), reply);
    }

    fn setattr(
        &mut self,
        _: &Request<'_>,
        number: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        _: Option<u64>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<u32>,
        reply: ReplyAttr,
    ) {
        let change = AttributeChange {
            mode,
            uid,
            gid,
            len_bytes: size,
            accessed: accessed.map(time_of),
            modified: modified.map(time_of),
            changed,
        };
        answer_attributes(self.set_attributes(number, &change), reply);
    }

    fn readlink(&mut self, _: &Request<'_>, number: u64, reply: ReplyData) {
        let contents = lock(&self.contents);
        match contents.files.node(number).map(|node| &node.content) {
            Ok(NodeContent::Link(target)) => reply.data(target.as_bytes()),
            Ok(_) => reply.error(Errno::INVAL.raw_os_error()),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn mknod(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let created = match rustix::fs::FileType::from_raw_mode(mode) {
            rustix::fs::FileType::RegularFile => self.create_node(
                request,
                (parent, name),
                (mode, umask),
                NodeContent::File(FileData::default()),
            ),
            _ => Err(Errno::PERM),
        };
        answer_entry(created, reply);
    }

    fn mkdir(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let content = NodeContent::Folder(Folder::default());
        answer_entry(self.create_node(request, (parent, name), (mode, umask), content), reply);
    }

    fn unlink(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        answer(self.unlink_node(parent, name), reply);
    }

    fn rmdir(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEmpty) {
        answer(lock(&self.contents).files.remove_folder(parent, name, SystemTime::now()), reply);
    }

    fn symlink(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let content = NodeContent::Link(OsString::from(target));
        answer_entry(self.create_node(request, (parent, name), (0o777, 0), content), reply);
    }

    fn rename(
        &mut self,
        _: &Request<'_>,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: u32,
        reply: ReplyEmpty,
    ) {
        answer(self.rename_node((parent, name), (new_parent, new_name), flags), reply);
    }

    fn open(&mut self, _: &Request<'_>, _: u64, _: i32, reply: ReplyOpen) {
        reply.opened(0, FOPEN_KEEP_CACHE);
    }

    fn create(
        &mut self,
        request: &Request<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let content = NodeContent::File(FileData::default());
        match self.create_node(request, (parent, name), (mode, umask), content) {
            Ok(attributes) => reply.created(&TTL, &attributes, 0, 0, FOPEN_KEEP_CACHE),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        number: u64,
        _: u64,
        offset: i64,
        size: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyData,
    ) {
        let (Ok(offset), Ok(size)) = (u64::try_from(offset), usize::try_from(size)) else {
            return reply.error(Errno::INVAL.raw_os_error());
        };
        if self.buffer.len() < size {
            self.buffer.resize(size, 0);
        }
        let read = lock(&self.contents).read(number, offset, &mut self.buffer[..size]);
        match read {
            Ok(len) => reply.data(&self.buffer[..len]),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        number: u64,
        _: u64,
        offset: i64,
        bytes: &[u8],
        flags: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyWrite,
    ) {
        // The kernel writes a page of its cache after the program's own write has returned.
        match self.write_bytes(number, offset, bytes, flags & FUSE_WRITE_CACHE != 0) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn fsync(&mut self, _: &Request<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        // The kernel has sent all writes before. Nothing here outlives the mount, so there is nothing to make durable.
        reply.ok();
    }

    fn fsyncdir(&mut self, _: &Request<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn flush(&mut self, _: &Request<'_>, _: u64, _: u64, _: u64, reply: ReplyEmpty) {
        // The kernel then closes files without asking.
        reply.error(Errno::NOSYS.raw_os_error());
    }

    fn readdir(&mut self, _: &Request<'_>, number: u64, _: u64, offset: i64, mut reply: ReplyDirectory) {
        match self.list(number, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.raw_os_error()),
        }
    }

    fn statfs(&mut self, _: &Request<'_>, _: u64, reply: ReplyStatfs) {
        let contents = lock(&self.contents);
        let (usage, nodes) = (contents.usage(), contents.files.len() as u64);
        let block_bytes = u32::try_from(BLOCK_BYTES).unwrap_or(u32::MAX);
        let name_bytes = u32::try_from(MAX_NAME_BYTES).unwrap_or(u32::MAX);
        let (most, free) = (MAX_NODES as u64, (MAX_NODES as u64).saturating_sub(nodes));
        reply.statfs(usage.blocks, usage.free, usage.free, most, free, block_bytes, name_bytes, block_bytes);
    }

    fn fallocate(
        &mut self,
        _: &Request<'_>,
        number: u64,
        _: u64,
        offset: i64,
        len_bytes: i64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(self.allocate(number, offset, len_bytes, mode), reply);
    }
}
