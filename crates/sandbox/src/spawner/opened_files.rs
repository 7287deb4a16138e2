//! Closed files: files that only their owner may read, as under a strict umask, shown to sandboxes, which run as other users.
//!
//! Two kinds of files are opened. One kind are single files that are named as programs: Sublet's own, interpreters, and
//! the files that these load. The other is the folder of a Python environment that the operator has named.
//! [`check_environment`] refuses every other folder: opening one shows all of its files to every function on the node.
//!
//! A closed environment is shown through an overlay that has other modes: the overlay keeps modes in memory and reads contents from
//! the files themselves (`metacopy`). Nothing changes on the disk. Files that are installed there later are shown after the next
//! start of the spawner. A closed single file is copied into memory.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::mount::{MountFlags, mount};

/// Options of the file system of copies and modes: how much memory they may take, in bytes.
const SIZE: &CStr = c"size=256m,mode=700";
/// Permissions of other users, which sandboxes need: to read, and to execute or enter what the owner may.
const READ: u32 = 0o004;
const EXECUTE: u32 = 0o001;
/// List of users, for their home directories.
const USERS: &str = "/etc/passwd";
/// Folders whose every entry is somebody's home directory, also of users that [`USERS`] does not have.
const HOMES: [&str; 2] = ["/home", "/Users"];
/// Entries that only home directories have.
const HOME_ENTRIES: [&str; 4] = [".ssh", ".gnupg", ".profile", ".bash_history"];

/// See the [module](self).
pub(super) struct OpenedFiles {
    /// Root of the file system of copies and modes, which is not at any path. None where sandboxes run as the spawner's
    /// user, which owns the files.
    folder: Option<File>,
    /// Number of files and folders opened so far.
    made: u64,
    /// Paths of what was opened.
    known: BTreeMap<FileIdentity, PathBuf>,
}

/// Tells files and their versions apart.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FileIdentity {
    device: u64,
    inode: u64,
    modified_s: i64,
    modified_ns: i64,
    len_bytes: u64,
}

impl OpenedFiles {
    /// Mounts the file system over a folder if sandboxes run as other users. The caller mounts another one over the same folder next.
    pub(super) fn open(folder: &Path, are_others: bool) -> io::Result<OpenedFiles> {
        let mut own = None;
        if are_others {
            mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(SIZE))?;
            own = Some(File::open(folder)?);
        }
        Ok(OpenedFiles { folder: own, made: 0, known: BTreeMap::new() })
    }

    /// The path from which sandboxes are shown a file or folder of the host: the same path, unless something there is closed.
    ///
    /// # Errors
    /// If a closed folder is not a Python environment, or cannot be opened. The error names the path.
    pub(super) fn path_of(&mut self, path: &Path) -> io::Result<PathBuf> {
        let Some(folder) = &self.folder else { return Ok(path.to_owned()) };
        let Some(closed) = find_closed(path).map_err(|error| named(path, &error))? else {
            return Ok(path.to_owned());
        };
        let metadata = fs::metadata(path).map_err(|error| named(path, &error))?;
        let identity = FileIdentity::of(&metadata);
        if let Some(known) = self.known.get(&identity) {
            return Ok(known.clone());
        }
        self.made += 1;
        let place = PathBuf::from(format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), self.made));
        let opened = if metadata.is_dir() {
            check_environment(path, &closed)?;
            mount_opened(path, &place)
        } else {
            copy_opened(path, &place, &metadata)
        };
        let opened = opened.map_err(|error| named(&closed, &error))?;
        self.known.insert(identity, opened.clone());
        Ok(opened)
    }
}

impl FileIdentity {
    fn of(metadata: &Metadata) -> FileIdentity {
        FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            len_bytes: metadata.len(),
        }
    }
}

/// The same error with the path in front.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("opening {} to sandboxes: {error}", path.display()))
}

/// Permissions that other users lack of those that the owner has.
fn missing(metadata: &Metadata) -> u32 {
    let owner = metadata.mode() >> 6;
    let needed = if metadata.is_dir() { READ | EXECUTE } else { owner & (READ | EXECUTE) };
    needed & !metadata.mode()
}

/// The first closed file at a path or beneath it. Does not follow links beneath it, so it ends.
fn find_closed(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut found = vec![(path.to_owned(), fs::metadata(path)?)];
    while let Some((path, metadata)) = found.pop() {
        if missing(&metadata) != 0 {
            return Ok(Some(path));
        }
        if metadata.is_dir() {
            found.extend(entries(&path)?);
        }
    }
    Ok(None)
}

/// The files and folders in a folder, without links and devices.
fn entries(folder: &Path) -> io::Result<Vec<(PathBuf, Metadata)>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() || metadata.is_file() {
            entries.push((entry.path(), metadata));
        }
    }
    Ok(entries)
}

/// Refuses to open a folder that is not the folder of a Python environment, or that is a home directory or above one.
fn check_environment(folder: &Path, closed: &Path) -> io::Result<()> {
    let reason = if !is_environment(folder) {
        "is not the folder of a Python environment"
    } else if is_home(folder, &fs::read(USERS).unwrap_or_default()) {
        "is a home directory, or has one in it"
    } else {
        return Ok(());
    };
    let (folder, closed) = (folder.display(), closed.display());
    let message = format!(
        "{closed} is readable only by its owner, functions run as other users, and {folder} {reason}: \
         make it readable (chmod -R go+rX {folder}), or name an interpreter in a virtual environment"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
}

/// Whether a folder is a virtual environment (`pyvenv.cfg`), or has Python's standard library.
fn is_environment(folder: &Path) -> bool {
    if folder.join("pyvenv.cfg").is_file() {
        return true;
    }
    let libraries = ["lib", "lib64"].iter().filter_map(|name| fs::read_dir(folder.join(name)).ok());
    libraries.flatten().flatten().any(|entry| {
        entry.file_name().as_bytes().starts_with(b"python") && entry.path().join("os.py").is_file()
    })
}

/// Whether a folder is a home directory or has one in it, by a list of users and by what is in the folder.
fn is_home(folder: &Path, users: &[u8]) -> bool {
    let home_of = |line: &[u8]| {
        line.split(|&byte| byte == b':').nth(5).map(|home| PathBuf::from(OsStr::from_bytes(home)))
    };
    let mut homes = users.split(|&byte| byte == b'\n').filter_map(home_of).filter(|home| home.is_absolute());
    let is_listed = homes.any(|home| {
        home.starts_with(folder) || home.canonicalize().is_ok_and(|home| home.starts_with(folder))
    });
    is_listed
        || HOMES
            .iter()
            .any(|homes| Path::new(homes).starts_with(folder) || folder.parent() == Some(Path::new(homes)))
        || HOME_ENTRIES.iter().any(|entry| fs::symlink_metadata(folder.join(entry)).is_ok())
}

/// Copies a closed file into memory, with permissions for other users.
fn copy_opened(path: &Path, place: &Path, metadata: &Metadata) -> io::Result<PathBuf> {
    fs::copy(path, place)?;
    open_one(place, metadata)?;
    Ok(place.to_owned())
}

/// Mounts a folder with permissions for other users on all of its files.
fn mount_opened(path: &Path, place: &Path) -> io::Result<PathBuf> {
    let make = |name: &str| {
        let folder = place.join(name);
        DirBuilder::new().recursive(true).mode(0o755).create(&folder).map(|()| folder)
    };
    let [upper, work, merged] = [make("upper")?, make("work")?, make("merged")?];
    // Overlayfs keeps such attributes for `metacopy`. Where this process may not set them overlayfs would copy whole files.
    rustix::fs::setxattr(&upper, "trusted.sublet", b"", XattrFlags::empty())?;
    let mut options = b"metacopy=on,lowerdir=".to_vec();
    options.extend(escaped(path));
    for (name, folder) in [(",upperdir=", &upper), (",workdir=", &work)] {
        options.extend(name.bytes());
        options.extend(escaped(folder));
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("overlay", &merged, "overlay", flags, Some(CString::new(options)?.as_c_str()))?;
    open_all(&merged)?;
    Ok(merged)
}

/// A path in the syntax of overlayfs's options.
fn escaped(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes().iter();
    bytes.flat_map(|&byte| b",:\\".contains(&byte).then_some(b'\\').into_iter().chain([byte])).collect()
}

/// Adds permissions to a folder and all files beneath it, as [`find_closed`] looks for them.
fn open_all(folder: &Path) -> io::Result<()> {
    let mut found = vec![(folder.to_owned(), fs::metadata(folder)?)];
    while let Some((path, metadata)) = found.pop() {
        open_one(&path, &metadata)?;
        if metadata.is_dir() {
            found.extend(entries(&path)?);
        }
    }
    Ok(())
}

fn open_one(path: &Path, metadata: &Metadata) -> io::Result<()> {
    match missing(metadata) {
        0 => Ok(()),
        missing => fs::set_permissions(path, Permissions::from_mode((metadata.mode() | missing) & 0o777)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_closed_files_at_any_depth() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let deep = root.join("lib/python3.11/site-packages/google/cloud/storage");
        fs::create_dir_all(&deep).unwrap();
        let open = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        deep.ancestors().take_while(|path| path.starts_with(root)).for_each(open);
        assert_eq!(find_closed(root).unwrap(), None);
        let file = deep.join("module.py");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find_closed(root).unwrap(), Some(file.clone()));
        open_all(root).unwrap();
        assert_eq!(find_closed(root).unwrap(), None);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o604);
    }

    #[test]
    fn opens_no_sockets_and_follows_no_links() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = folder.path();
        fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
        let closed = outside.path().join("closed");
        fs::write(&closed, "").unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(outside.path(), root.join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        fs::set_permissions(root.join("socket"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find_closed(root).unwrap(), None);
        open_all(root).unwrap();
        for untouched in [&closed, &root.join("socket")] {
            assert_eq!(fs::metadata(untouched).unwrap().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn opens_folders_of_environments_only() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let environment = root.join("user/venv");
        fs::create_dir_all(&environment).unwrap();
        let refused = |folder: &Path| check_environment(folder, folder).unwrap_err().to_string();
        assert!(refused(&environment).contains("not the folder of a Python environment"));
        fs::write(environment.join("pyvenv.cfg"), "").unwrap();
        check_environment(&environment, &environment).unwrap();
        // Above an environment nothing is opened.
        assert!(refused(&root.join("user")).contains("not the folder of a Python environment"));
        assert!(refused(Path::new("/")).contains("chmod"));
        // A Python that is installed into a home directory.
        fs::create_dir_all(root.join("user/lib/python3.11")).unwrap();
        fs::write(root.join("user/lib/python3.11/os.py"), "").unwrap();
        check_environment(&root.join("user"), &root).unwrap();
        fs::create_dir(root.join("user/.ssh")).unwrap();
        assert!(refused(&root.join("user")).contains("home directory"));
    }

    #[test]
    fn home_directories_and_folders_above_them_are_homes() {
        let users = b"root:x:0:0::/root:/bin/sh\nann:x:1:1::/srv/people/ann:/bin/sh\nbin:x:2:2::/bin:\n";
        let of_a_directory = ["/home", "of-a-directory"].join("/");
        for folder in
            ["/", "/root", "/srv", "/srv/people", "/srv/people/ann", "/home", of_a_directory.as_str()]
        {
            assert!(is_home(Path::new(folder), users), "{folder}");
            let environment = Path::new(folder).join("venv");
            let is_above = ["/", "/srv", "/srv/people", "/home"].contains(&folder);
            assert!(is_above || !is_home(&environment, users), "{folder}");
        }
        assert!(!is_home(Path::new("/opt/python"), users));
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink(root.join("real"), root.join("ann")).unwrap();
        let linked = format!("ann:x:1:1::{}:/bin/sh\n", root.join("ann").display());
        assert!(is_home(&root.join("real"), linked.as_bytes()), "the home directory is a link to it");
        // A relative path would be looked up in the spawner's own folder.
        let own = std::env::current_dir().unwrap();
        assert!(!is_home(&own, b"ann:x:1:1::.:/bin/sh\n"));
    }
}
