//! Unpacked packages on disk: whether their files are still those of the package, as its digest says.
//!
//! A package's digest is that of its canonical encoding, which [`read_back`] makes again from the unpacked files: no
//! second record of what they should be has to be kept, or could be damaged. Files that were found good are remembered
//! by what the file system says of them ([`Stamps`]), so a worker that starts costs one `stat` for each file and folder.
//! A file that changes on its disk without a write, so that the file system does not know of it, is found when the
//! agent's next run hashes the package.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use prost::Message;
use sublet_proto::package::{
    BUILT_FOLDER, CheckedPackage, INFO_FILE, MANIFEST_FILE, MAX_FILES, MAX_PACKAGE_BYTES,
    digest as digest_of, encode, validate,
};
use sublet_proto::v1::{Package, PackageFile, PackageInfo};
use sublet_proto::{Code, Error};

/// Most files and folders in an unpacked package: each file may have a folder of its own.
const MAX_ENTRIES: usize = 2 * MAX_FILES + 64;

/// File system metadata of a file or folder. A write, a replacement and a change of mode each change the stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    mode: u32,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// The stamp of a file or folder; `None` if there is none that can be read.
    pub(crate) fn of(path: &Path) -> Option<FileStamp> {
        fs::symlink_metadata(path).ok().map(|metadata| FileStamp::from(&metadata))
    }

    fn from(metadata: &Metadata) -> FileStamp {
        FileStamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            mode: metadata.mode(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The stamps of all files and folders of an unpacked package, but for what is built of its kernels.
#[derive(Debug)]
pub(super) struct Stamps(Vec<(PathBuf, FileStamp)>);

impl Stamps {
    /// The stamps of a folder as it is now.
    pub(super) fn of(folder: &Path) -> io::Result<Stamps> {
        let mut stamps = Vec::new();
        visit(folder, &mut |path, metadata| {
            stamps.push((path.to_owned(), FileStamp::from(metadata)));
            Ok(())
        })?;
        Ok(Stamps(stamps))
    }

    /// Whether nothing of the folder has changed since.
    pub(super) fn still_hold(&self) -> bool {
        self.0.iter().all(|(path, stamp)| FileStamp::of(path) == Some(*stamp))
    }
}

/// Why an unpacked package cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage(pub(super) String);

/// The information of the package of a digest, if the folder has all of its files and nothing else. The stamps are as old
/// as the beginning of this: a file that changes meanwhile does not match them.
pub(super) fn verify(digest: &str, folder: &Path) -> Result<(PackageInfo, Stamps), Damage> {
    let unreadable = |error: io::Error| Damage(error.to_string());
    let stamps = Stamps::of(folder).map_err(unreadable)?;
    let package = read_back(folder).map_err(unreadable)?;
    let checked = check(digest, &encode(&package))
        .map_err(|_| Damage("its files are not those of its digest".to_owned()))?;
    let info = checked.info();
    // The file that workers read is not part of the package: it follows from the package's files.
    let kept = fs::read(folder.join(INFO_FILE)).map_err(unreadable)?;
    if kept != info.encode_to_vec() {
        return Err(Damage(format!("{INFO_FILE} is not that of its files")));
    }
    Ok((info, stamps))
}

/// Decodes and validates a package that has to have this digest.
pub(super) fn check(digest: &str, encoded: &[u8]) -> Result<CheckedPackage, Error> {
    let actual = digest_of(encoded);
    if actual != digest {
        let message = format!("the manager sent package {actual} instead of {digest}");
        return Err(Error::new(Code::InvalidPackage, message));
    }
    validate(encoded)
}

/// The package whose files a folder has.
fn read_back(folder: &Path) -> io::Result<Package> {
    let mut package = Package::default();
    let mut left_bytes = MAX_PACKAGE_BYTES;
    visit(folder, &mut |path, metadata| {
        if metadata.is_dir() {
            return Ok(());
        }
        let relative = path.strip_prefix(folder).map_err(io::Error::other)?;
        let too_large = || io::Error::other(format!("it has more than {MAX_PACKAGE_BYTES} bytes"));
        left_bytes = left_bytes.checked_sub(metadata.len()).ok_or_else(too_large)?;
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", relative.display()));
        if !metadata.is_file() {
            return Err(named(io::Error::other("not a file")));
        }
        if relative == Path::new(INFO_FILE) {
            return Ok(());
        }
        let data = fs::read(path).map_err(named)?;
        if relative == Path::new(MANIFEST_FILE) {
            package.manifest = String::from_utf8(data).map_err(|_| named(io::Error::other("not text")))?;
            return Ok(());
        }
        let name = relative.to_str().ok_or_else(|| named(io::Error::other("its name is not text")))?;
        let executable = metadata.permissions().mode() & 0o100 != 0;
        package.files.push(PackageFile { path: name.to_owned(), data, executable });
        Ok(())
    })?;
    Ok(package)
}

/// Shows a folder and all that is in it, but for what is built of kernels.
fn visit(folder: &Path, show: &mut impl FnMut(&Path, &Metadata) -> io::Result<()>) -> io::Result<()> {
    let (mut waiting, mut left) = (vec![folder.to_owned()], MAX_ENTRIES);
    while let Some(path) = waiting.pop() {
        let crowded = || io::Error::other(format!("it has more than {MAX_ENTRIES} files and folders"));
        left = left.checked_sub(1).ok_or_else(crowded)?;
        let metadata = fs::symlink_metadata(&path)?;
        show(&path, &metadata)?;
        if !metadata.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&path)? {
            let path = entry?.path();
            if path != folder.join(BUILT_FOLDER) {
                waiting.push(path);
            }
        }
    }
    Ok(())
}
