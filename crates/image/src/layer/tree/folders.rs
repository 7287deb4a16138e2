//! The folders of a layer: opened under rules of the kernel that no path can break, and created where they are missing.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use super::{Attributes, FOLDER_MODE, Tree, failed};
use crate::error::{EntryProblem, ImageError};
use crate::layer::path::FolderEntry;

/// Rules for opening: never above the layer's folder, through no kind of link, onto no other file system.
const RULES: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
const AS_FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
/// Attribute by which overlayfs, with `userxattr`, recognizes a folder that is not merged with those below.
const OPAQUE: &str = "user.overlay.opaque";

impl Tree<'_> {
    /// Creates a folder; an existing one keeps its files.
    pub(crate) fn folder(&mut self, place: &FolderEntry, attributes: Attributes) -> Result<(), ImageError> {
        let found = self.kind_of(place)?;
        if found != Some(FileType::Directory) {
            self.make(place, "making the folder", |folder, name| fs::mkdirat(folder, name, Mode::RWXU))?;
            let owned = self.owner.own(self.entered(), OsStr::from_bytes(&place.name));
            owned.map_err(|errno| failed("giving away", &place.path(), errno))?;
        }
        // If this layer has hidden a folder of this name before, the old folder's files stay hidden.
        if found == Some(FileType::CharacterDevice) {
            self.make_opaque(&place.path())?;
        }
        self.remember_folder(place.path(), attributes)
    }

    /// Hides the files that lower layers have in a folder.
    pub(crate) fn make_opaque(&mut self, folder: &[u8]) -> Result<(), ImageError> {
        self.enter(folder)?;
        let set = self
            .open_to_change(folder)
            .and_then(|opened| fs::fsetxattr(opened, OPAQUE, b"y", XattrFlags::empty()));
        set.map_err(|errno| failed("setting the attribute user.overlay.opaque of", folder, errno))
    }

    /// Kind of the file that has the name in its folder now.
    pub(super) fn kind_of(&mut self, place: &FolderEntry) -> Result<Option<FileType>, ImageError> {
        self.enter(&place.folder)?;
        match fs::statat(self.entered(), OsStr::from_bytes(&place.name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("looking at", &place.path(), errno)),
        }
    }

    /// The folder that was entered last.
    pub(super) fn entered(&self) -> BorrowedFd<'_> {
        self.last.as_ref().map_or(self.root, |(_, folder)| folder.as_fd())
    }

    /// Opens a folder, and creates its missing parts.
    pub(super) fn enter(&mut self, path: &[u8]) -> Result<(), ImageError> {
        if self.last.as_ref().is_some_and(|(last, _)| last == path) {
            return Ok(());
        }
        self.last = None;
        let opened = match self.open_folder(path) {
            Err(Errno::NOENT) => {
                self.make_folders(path)?;
                self.last = None;
                self.open_folder(path)
            }
            opened => opened,
        };
        let folder = opened.map_err(|errno| match errno {
            Errno::LOOP => ImageError::entry(path, EntryProblem::ThroughLink),
            Errno::NOTDIR => ImageError::entry(path, EntryProblem::ThroughFile),
            errno => failed("opening", path, errno),
        })?;
        self.last = Some((path.to_owned(), folder));
        Ok(())
    }

    /// Creates each missing folder of a path, because archives need not name them.
    fn make_folders(&mut self, path: &[u8]) -> Result<(), ImageError> {
        let mut folder = Vec::new();
        for name in path.split(|&byte| byte == b'/') {
            let place = FolderEntry { folder: folder.clone(), name: name.to_owned() };
            folder = place.path();
            if self.kind_of(&place)?.is_none() {
                self.folder(&place, Attributes { mode: FOLDER_MODE, modified_s: 0 })?;
            }
        }
        Ok(())
    }

    /// Opens a folder only to look up names in it.
    pub(super) fn open_folder(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::PATH)
    }

    /// Opens a folder to change its attributes.
    pub(super) fn open_to_change(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::RDONLY)
    }

    fn open(&self, path: &[u8], access: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(path) };
        fs::openat2(self.root, path, access | AS_FOLDER, Mode::empty(), RULES)
    }
}
