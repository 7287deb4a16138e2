//! Paths of Unix sockets, of any length.
//!
//! A socket's address holds 107 bytes of a path, and temporary folders of batch systems and build tools are often longer.
//! Such a socket is named by its folder's descriptor in place of its folder's path.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// Bytes of a path that a socket's address holds beside the closing zero.
const MAX_BYTES: usize = 107;

/// A path by which a socket can be bound or connected to as long as this value lives.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// The folder that a path in `/proc/self/fd` leads through.
    _folder: Option<OwnedFd>,
}

impl SocketPath {
    /// The path itself if it fits, otherwise one through its folder, which exists.
    ///
    /// # Errors
    /// If the folder cannot be opened, or if the file's own name does not fit.
    pub fn of(path: &Path) -> io::Result<SocketPath> {
        if path.as_os_str().len() <= MAX_BYTES {
            return Ok(SocketPath { path: path.to_owned(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, folder, flags, Mode::empty())?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
        if path.as_os_str().len() > MAX_BYTES {
            let message =
                format!("the name of a socket has at most {MAX_BYTES} bytes with its folder's number");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(SocketPath { path, _folder: Some(folder) })
    }

    /// The path to bind or to connect to.
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn sockets_of_any_path_length_are_bound_and_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(90)).join("e".repeat(90));
        std::fs::create_dir_all(&deep).unwrap();
        for name in ["short", &"n".repeat(60)] {
            let path = deep.join(name);
            let listener = UnixListener::bind(SocketPath::of(&path).unwrap().as_path()).unwrap();
            assert!(path.exists());
            UnixStream::connect(SocketPath::of(&path).unwrap().as_path()).unwrap();
            listener.accept().unwrap();
        }
        assert!(SocketPath::of(&deep.join("n".repeat(120))).is_err());
        assert!(SocketPath::of(&deep.join("missing/socket")).is_err());
        let short = Path::new("/run/sublet.sock");
        assert_eq!(SocketPath::of(short).unwrap().as_path(), short);
    }
}
