//! The folder of one layer while it is filled: every operation is relative to its descriptor, and none follows a link.

mod folders;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::error::{DocumentPart, EntryProblem, ImageError};
use crate::limits::MAX_FOLDER_PATHS_BYTES;

use super::path::FolderEntry;

/// Permissions of all users and the sticky bit; never set-user-ID or set-group-ID.
const KEPT_MODE: u32 = 0o1777;
const OWNER_READS: u32 = 0o400;
const OWNER_ENTERS: u32 = 0o500;
const FOLDER_MODE: u32 = 0o755;
const BUFFER_BYTES: usize = 128 << 10;

/// Attributes that are kept of an entry beside its name and content.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    /// In seconds of Unix time.
    pub(crate) modified_s: i64,
}

impl Attributes {
    fn times(&self) -> Timestamps {
        let time = Timespec { tv_sec: self.modified_s, tv_nsec: 0 };
        Timestamps { last_access: time, last_modification: time }
    }

    fn mode(&self, owner: u32) -> Mode {
        Mode::from_raw_mode((self.mode & KEPT_MODE) | owner)
    }
}

/// Owner of all files of all layers: user and group 1000 if this process is root and can change owners, otherwise this
/// process's own user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileOwner(Option<(Uid, Gid)>);

impl FileOwner {
    const ID: u32 = 1000;

    /// Determines the owner by giving the folder away, if that is possible.
    fn of_files_in(folder: BorrowedFd<'_>) -> Result<FileOwner, Errno> {
        if !rustix::process::geteuid().is_root() {
            return Ok(FileOwner(None));
        }
        let other = FileOwner(Some((Uid::from_raw(FileOwner::ID), Gid::from_raw(FileOwner::ID))));
        match other.own_open(folder) {
            // The root of a user namespace has only the users that the namespace has.
            Err(Errno::INVAL | Errno::PERM) => Ok(FileOwner(None)),
            owned => owned.map(|()| other),
        }
    }

    fn own(self, folder: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
        let Some((user, group)) = self.0 else { return Ok(()) };
        fs::chownat(folder, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
    }

    fn own_open(self, file: impl AsFd) -> Result<(), Errno> {
        let Some((user, group)) = self.0 else { return Ok(()) };
        fs::fchown(file, Some(user), Some(group))
    }
}

/// A layer's folder, and the state of unpacking into it.
pub(crate) struct Tree<'a> {
    root: BorrowedFd<'a>,
    owner: FileOwner,
    /// Attributes of folders, which are set at the end: a folder without write permission cannot be filled, and filling
    /// a folder changes its time.
    folders: BTreeMap<Vec<u8>, Attributes>,
    folder_paths_bytes: usize,
    /// The folder of the last entry, kept open for the next.
    last: Option<(Vec<u8>, OwnedFd)>,
    files_left: u64,
    files_limit: u64,
    skipped: u64,
    buffer: Vec<u8>,
}

impl<'a> Tree<'a> {
    /// Creates the tree of an empty folder, for at most `files` files.
    pub(crate) fn new(root: BorrowedFd<'a>, files: u64) -> Result<Tree<'a>, ImageError> {
        let owner = FileOwner::of_files_in(root).map_err(|errno| failed("giving away", b".", errno))?;
        let mut tree = Tree {
            root,
            owner,
            folders: BTreeMap::new(),
            folder_paths_bytes: 0,
            last: None,
            files_left: files,
            files_limit: files,
            skipped: 0,
            buffer: vec![0; BUFFER_BYTES],
        };
        tree.root(Attributes { mode: FOLDER_MODE, modified_s: 0 })?;
        Ok(tree)
    }

    /// Number of files, folders, links and whiteouts that were made.
    pub(crate) fn made(&self) -> u64 {
        debug_assert!(
            self.files_left <= self.files_limit,
            "{} of {} files are left",
            self.files_left,
            self.files_limit
        );
        self.files_limit - self.files_left
    }

    /// Number of device nodes, FIFOs and sockets that were not made.
    pub(crate) fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Sets the attributes of the layer's own folder.
    pub(crate) fn root(&mut self, attributes: Attributes) -> Result<(), ImageError> {
        self.remember_folder(Vec::new(), attributes)
    }

    /// Creates a file with its content.
    pub(crate) fn file(
        &mut self,
        place: &FolderEntry,
        content: &mut dyn Read,
        bytes: u64,
        attributes: Attributes,
    ) -> Result<(), ImageError> {
        const FLAGS: OFlags = OFlags::WRONLY
            .union(OFlags::CREATE)
            .union(OFlags::EXCL)
            .union(OFlags::NOFOLLOW)
            .union(OFlags::CLOEXEC);
        let make =
            |folder: BorrowedFd<'_>, name: &OsStr| fs::openat(folder, name, FLAGS, Mode::RUSR | Mode::WUSR);
        let mut file = File::from(self.make(place, "making", make)?);
        self.copy(place, content, bytes, &mut file)?;
        let finished = self
            .owner
            .own_open(&file)
            .and_then(|()| fs::fchmod(&file, attributes.mode(OWNER_READS)))
            .and_then(|()| fs::futimens(&file, &attributes.times()));
        finished.map_err(|errno| failed("finishing", &place.path(), errno))
    }

    fn copy(
        &mut self,
        place: &FolderEntry,
        content: &mut dyn Read,
        bytes: u64,
        file: &mut File,
    ) -> Result<(), ImageError> {
        let mut left = bytes;
        while left > 0 {
            let read = content.read(&mut self.buffer).map_err(damaged)?;
            if read == 0 {
                return Err(damaged(io::ErrorKind::UnexpectedEof.into()));
            }
            file.write_all(&self.buffer[..read]).map_err(|error| failed("writing", &place.path(), error))?;
            left = left.saturating_sub(read as u64);
        }
        Ok(())
    }

    /// Creates a symbolic link with any target.
    pub(crate) fn symbolic_link(
        &mut self,
        place: &FolderEntry,
        target: &[u8],
        attributes: Attributes,
    ) -> Result<(), ImageError> {
        let owner = self.owner;
        let make = |folder: BorrowedFd<'_>, name: &OsStr| {
            fs::symlinkat(OsStr::from_bytes(target), folder, name)?;
            owner.own(folder, name)?;
            fs::utimensat(folder, name, &attributes.times(), AtFlags::SYMLINK_NOFOLLOW)
        };
        self.make(place, "making", make)
    }

    /// Creates a second name of a file or symbolic link that the layer has already.
    pub(crate) fn hard_link(&mut self, place: &FolderEntry, target: &FolderEntry) -> Result<(), ImageError> {
        if place == target {
            return Err(ImageError::entry(&place.path(), EntryProblem::MissingTarget));
        }
        let from = self.open_folder(&target.folder).map_err(|problem| match problem {
            Errno::LOOP => ImageError::entry(&place.path(), EntryProblem::ThroughLink),
            Errno::NOENT | Errno::NOTDIR => ImageError::entry(&place.path(), EntryProblem::MissingTarget),
            errno => failed("opening", &target.folder, errno),
        })?;
        let target = OsStr::from_bytes(&target.name);
        let is_folder = fs::statat(&from, target, AtFlags::SYMLINK_NOFOLLOW)
            .map(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
        match is_folder {
            Ok(false) => {}
            Ok(true) | Err(Errno::NOENT) => {
                return Err(ImageError::entry(&place.path(), EntryProblem::MissingTarget));
            }
            Err(errno) => return Err(failed("looking at", target.as_bytes(), errno)),
        }
        let make =
            |folder: BorrowedFd<'_>, name: &OsStr| fs::linkat(&from, target, folder, name, AtFlags::empty());
        self.make(place, "linking", make)
    }

    /// Creates a whiteout of overlayfs, which hides a file of lower layers. Files of this layer itself stay visible.
    pub(crate) fn whiteout(&mut self, place: &FolderEntry) -> Result<(), ImageError> {
        match self.kind_of(place)? {
            // A file of this layer hides those of lower layers anyway. A folder would be merged with theirs.
            Some(FileType::Directory) => return self.make_opaque(&place.path()),
            Some(_) => return Ok(()),
            None => {}
        }
        let owner = self.owner;
        let make = |folder: BorrowedFd<'_>, name: &OsStr| {
            fs::mknodat(folder, name, FileType::CharacterDevice, Mode::empty(), 0)?;
            owner.own(folder, name)
        };
        self.make(place, "making the whiteout", make)
    }

    /// Counts an entry that is not made.
    pub(crate) fn skip(&mut self) -> Result<(), ImageError> {
        self.skipped += 1;
        Ok(())
    }

    /// Gives all folders their attributes, those within others first.
    pub(crate) fn finish(&mut self) -> Result<(), ImageError> {
        self.last = None;
        for (path, attributes) in std::mem::take(&mut self.folders).into_iter().rev() {
            let folder = match self.open_to_change(&path) {
                // The folder was empty, and another entry was put in its place.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                opened => opened.map_err(|errno| failed("opening", &path, errno))?,
            };
            let finished = fs::fchmod(&folder, attributes.mode(OWNER_ENTERS))
                .and_then(|()| fs::futimens(&folder, &attributes.times()));
            finished.map_err(|errno| failed("finishing", &path, errno))?;
        }
        Ok(())
    }

    /// Creates a file in its folder, in place of one of the same name.
    fn make<T>(
        &mut self,
        place: &FolderEntry,
        operation: &'static str,
        make: impl Fn(BorrowedFd<'_>, &OsStr) -> Result<T, Errno>,
    ) -> Result<T, ImageError> {
        self.count()?;
        self.enter(&place.folder)?;
        let name = OsStr::from_bytes(&place.name);
        match make(self.entered(), name) {
            Err(Errno::EXIST) => self.replace(place)?,
            made => return made.map_err(|errno| failed(operation, &place.path(), errno)),
        }
        make(self.entered(), name).map_err(|errno| failed(operation, &place.path(), errno))
    }

    /// Removes a file, a link or an empty folder of this name.
    fn replace(&mut self, place: &FolderEntry) -> Result<(), ImageError> {
        let name = OsStr::from_bytes(&place.name);
        let removed = match fs::unlinkat(self.entered(), name, AtFlags::empty()) {
            Err(Errno::ISDIR) => fs::unlinkat(self.entered(), name, AtFlags::REMOVEDIR),
            removed => removed,
        };
        match removed {
            Err(Errno::NOTEMPTY) => Err(ImageError::entry(&place.path(), EntryProblem::ReplacesFolder)),
            removed => removed.map_err(|errno| failed("replacing", &place.path(), errno)),
        }
    }

    /// Counts one more file.
    fn count(&mut self) -> Result<(), ImageError> {
        let limit = self.files_limit;
        let left = self.files_left.checked_sub(1);
        self.files_left =
            left.ok_or(ImageError::TooLarge { part: DocumentPart::Layer, limit, unit: "files" })?;
        Ok(())
    }

    fn remember_folder(&mut self, path: Vec<u8>, attributes: Attributes) -> Result<(), ImageError> {
        let bytes = path.len();
        if self.folders.insert(path, attributes).is_none() {
            self.folder_paths_bytes += bytes;
        }
        if self.folder_paths_bytes > MAX_FOLDER_PATHS_BYTES {
            let (limit, unit) = (MAX_FOLDER_PATHS_BYTES as u64, "bytes of paths of folders");
            return Err(ImageError::TooLarge { part: DocumentPart::Layer, limit, unit });
        }
        Ok(())
    }
}

fn failed(operation: &'static str, path: &[u8], error: impl Into<io::Error>) -> ImageError {
    ImageError::system(operation, OsStr::from_bytes(path), error)
}

/// The error for an archive that cannot be read.
pub(super) fn damaged(source: io::Error) -> ImageError {
    ImageError::Damaged { part: DocumentPart::Layer, source }
}
