//! The files in which images came: in a folder or in an archive.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{self, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::archive::{Archive, Opened};
use crate::error::ImageError;
use crate::limits::ImageLimits;

/// Files by their names.
pub(super) enum ImageFiles {
    Folder(File),
    Archive(Archive),
}

impl ImageFiles {
    /// Opens the files of a folder or of a tar.
    pub(super) fn open(path: &Path, scratch: &Path, limits: &ImageLimits) -> Result<ImageFiles, ImageError> {
        let failed = |error: io::Error| ImageError::system("opening", path, error);
        // Non-blocking, so that a FIFO does not make this wait for a writer.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?);
        let kind = file.metadata().map_err(failed)?.file_type();
        match () {
            () if kind.is_dir() => Ok(ImageFiles::Folder(file)),
            () if kind.is_file() => Archive::open(file, scratch, limits).map(ImageFiles::Archive),
            () => Err(ImageError::NoImages { path: path.to_owned() }),
        }
    }

    /// Opens a file and returns its content and length; `None` if there is none of that name.
    pub(super) fn open_file<'a>(&'a self, name: &str) -> Result<Option<Opened<'a>>, ImageError> {
        match self {
            ImageFiles::Archive(archive) => Ok(archive.open_member(name.as_bytes())),
            ImageFiles::Folder(folder) => {
                let file = beneath(folder, name)?;
                Ok(file.map(|(file, bytes)| (Box::new(file) as Box<dyn Read>, bytes)))
            }
        }
    }
}

/// Opens a regular file of a folder. Links are followed within the folder only.
fn beneath(folder: &File, name: &str) -> Result<Option<(File, u64)>, ImageError> {
    let failed = |errno| ImageError::system("opening", name, errno);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = match fs::openat2(folder, name, flags, Mode::empty(), rules) {
        // A target of a link outside of the folder does not belong to the folder's files.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV | Errno::LOOP) => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let found = fs::fstat(&file).map_err(failed)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    Ok(is_file.then(|| (File::from(file), u64::try_from(found.st_size).unwrap_or(0))))
}
