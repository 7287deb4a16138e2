//! The state folder: made private, locked for one process, and the socket in it.
//!
//! The lock is the kernel's (`flock`), so it ends with its process in any case. The socket that a killed process leaves
//! is removed by the next one.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::geteuid;
use sublet_fabric::socket_path::SocketPath;
use sublet_proto::{Code, Error};
use tokio::net::UnixListener;

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// More than any process identifier has digits.
const MAX_PID_DIGITS: u64 = 20;

/// A state folder that is this process's until it is dropped.
#[derive(Debug)]
pub(crate) struct ManagerStateFolder {
    path: PathBuf,
    _lock: File,
}

impl ManagerStateFolder {
    /// Makes the folder if it does not exist, and locks it.
    pub(crate) fn open(path: &Path) -> Result<ManagerStateFolder, Error> {
        let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
        made.map_err(|error| failure(path, "make", &error))?;
        let metadata = fs::metadata(path).map_err(|error| failure(path, "read", &error))?;
        check_owner(path, metadata.uid())?;
        fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))
            .map_err(|error| failure(path, "change the mode of", &error))?;
        Ok(ManagerStateFolder { path: path.to_owned(), _lock: lock(path)? })
    }

    /// Returns the path of a file of the folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn check_owner(path: &Path, owner: u32) -> Result<(), Error> {
    let user = geteuid().as_raw();
    if owner == user {
        return Ok(());
    }
    Err(Error::new(
        Code::PermissionDenied,
        format!("the state folder {} belongs to user {owner}, not to {user}", path.display()),
    ))
}

fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join("lock");
    let open =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(FILE_MODE).open(&path);
    let mut file = open.map_err(|error| failure(&path, "open", &error))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(already_running(folder, &mut file)),
        Err(error) => return Err(failure(&path, "lock", &error.into())),
    }
    write_pid(&mut file).map_err(|error| failure(&path, "write", &error))?;
    Ok(file)
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    write!(file, "{}", std::process::id())
}

fn already_running(folder: &Path, lock: &mut File) -> Error {
    let mut pid = String::new();
    let read = lock.take(MAX_PID_DIGITS).read_to_string(&mut pid);
    let holder = match (read, pid.trim()) {
        (Ok(_), pid) if !pid.is_empty() => format!("process {pid}"),
        _ => "another process".to_owned(),
    };
    Error::new(Code::AlreadyRunning, format!("{holder} already uses the state folder {}", folder.display()))
}

/// Listens on a Unix socket that only this user can open, after removing the socket of a killed process.
pub(crate) fn listen(socket: &Path) -> Result<UnixListener, Error> {
    remove_stale(socket)?;
    let reached = SocketPath::of(socket).map_err(|error| failure(socket, "listen on", &error))?;
    let listener =
        UnixListener::bind(reached.as_path()).map_err(|error| failure(socket, "listen on", &error))?;
    fs::set_permissions(socket, Permissions::from_mode(FILE_MODE))
        .map_err(|error| failure(socket, "change the mode of", &error))?;
    Ok(listener)
}

fn remove_stale(socket: &Path) -> Result<(), Error> {
    let metadata = match fs::symlink_metadata(socket) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failure(socket, "read", &error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(Error::new(
            Code::InvalidArgument,
            format!("{} is in the way: it is no socket", socket.display()),
        ));
    }
    if SocketPath::of(socket).and_then(|reached| UnixStream::connect(reached.as_path())).is_ok() {
        return Err(Error::new(
            Code::AlreadyRunning,
            format!("another process already listens on {}", socket.display()),
        ));
    }
    fs::remove_file(socket).map_err(|error| failure(socket, "remove", &error))
}

fn failure(path: &Path, doing: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::new(Code::StoreFull, format!("cannot {doing} {}: its disk is full", path.display()))
        }
        _ => Error::new(Code::System, format!("cannot {doing} {}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_private_and_belongs_to_one() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("a/state");
        let folder = ManagerStateFolder::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, FOLDER_MODE);
        let error = ManagerStateFolder::open(&path).unwrap_err();
        assert_eq!(error.code, Code::AlreadyRunning);
        assert!(error.message.contains(&std::process::id().to_string()), "{error}");
        assert!(error.message.contains(&path.display().to_string()), "{error}");
        drop(folder);
        ManagerStateFolder::open(&path).unwrap();
    }

    #[tokio::test]
    async fn a_stale_socket_is_cleared_away_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("manager.sock");
        drop(listen(&socket).unwrap());
        let _live = listen(&socket).unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, FILE_MODE);
        assert_eq!(listen(&socket).unwrap_err().code, Code::AlreadyRunning);
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("manager.sock");
        fs::write(&file, b"precious").unwrap();
        assert_eq!(listen(&file).unwrap_err().code, Code::InvalidArgument);
        assert_eq!(fs::read(&file).unwrap(), b"precious");
        let long = folder.path().join("a".repeat(100)).join("manager.sock");
        fs::create_dir(long.parent().unwrap()).unwrap();
        drop(listen(&long).unwrap());
        assert!(long.exists(), "a socket's path may be longer than its address holds");
    }
}
