//! Mounts a folder by FUSE, unmounts it, and finds out what is mounted at a path.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fuser::{Filesystem, MountOption, Session};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{major, minor};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sublet_proto::{Code, Error};

const DEVICE: &str = "/dev/fuse";
/// Name under which folders of leased memory are mounted, before the number of the process.
const SOURCE: &str = "sublet-memory:";
/// Programs that mount and unmount for users without rights.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Number of KiB that the kernel reads ahead.
const READ_AHEAD_KIB: u32 = 1024;

/// Rules for the use of a mounted folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountTerms {
    /// Whether users other than the one who mounts may enter the folder.
    pub(crate) allows_others: bool,
}

/// Path of a folder at which memory is mounted.
#[derive(Debug)]
pub(crate) struct FolderMount {
    path: PathBuf,
}

impl FolderMount {
    /// Checks that a folder can be mounted at this path. Unmounts one whose process was killed.
    pub(crate) fn prepare(folder: &Path) -> Result<FolderMount, Error> {
        check_device()?;
        let path = resolve(folder)?;
        if let Some(process) = serving_process(&path)? {
            if !is_dead(&path) {
                let shown = path.display();
                let message = format!(
                    "process {process} has mounted memory at {shown}: use that, or end it by `sublet memory unmount {shown}`"
                );
                return Err(Error::new(Code::AlreadyRunning, message));
            }
            tracing::warn!(folder = %path.display(), process, "unmounts memory whose process was killed");
            remove_mount(&path, UnmountFlags::DETACH)?;
        } else if is_dead(&path) {
            let shown = path.display();
            let message = format!(
                "{shown} is mounted by another program that was killed: unmount it by `fusermount3 -u {shown}`"
            );
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let failed =
            |error| Error::of_system(format_args!("cannot read the folder {}", path.display()), &error);
        if fs::read_dir(&path).map_err(failed)?.next().is_some() {
            let message = format!("the folder {} is not empty: its files would be hidden", path.display());
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(FolderMount { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Mounts a file system.
    pub(crate) fn mount<F: Filesystem>(
        &self,
        file_system: F,
        terms: MountTerms,
    ) -> Result<Session<F>, Error> {
        let mut options = vec![
            MountOption::FSName(own_source()),
            MountOption::Subtype("sublet".to_owned()),
            // The kernel checks permissions by the attributes of the files.
            MountOption::DefaultPermissions,
            MountOption::NoAtime,
        ];
        if terms.allows_others {
            options.push(MountOption::AllowOther);
        }
        Session::new(file_system, &self.path, &options).map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                    " (users other than root need the program fusermount3, of the package fuse3)"
                }
                _ => "",
            };
            let message = format!("cannot mount memory at {}: {error}{hint}", self.path.display());
            Error::new(Code::System, message)
        })
    }

    /// Makes the kernel read more ahead, where the rights of this process suffice.
    pub(crate) fn read_ahead(&self) {
        let device = fs::metadata(&self.path).map(|metadata| metadata.dev());
        let set = device.and_then(|device| {
            let setting = format!("/sys/class/bdi/{}:{}/read_ahead_kb", major(device), minor(device));
            fs::write(setting, READ_AHEAD_KIB.to_string())
        });
        if let Err(error) = set {
            tracing::debug!(%error, "the kernel reads the folder's files ahead by its own default");
        }
    }

    /// Unmounts the folder. Files that programs have open are cut off.
    pub(crate) fn unmount(&self) -> Result<(), Error> {
        // If it is mounted nowhere, another process has unmounted it.
        let Some(path) = self.path_now()? else { return Ok(()) };
        match remove_mount(&path, UnmountFlags::empty()) {
            Err(error) if error.code == Code::AlreadyRunning => {
                tracing::warn!(folder = %path.display(), "programs have files open in the folder: cuts them off");
                remove_mount(&path, UnmountFlags::DETACH)
            }
            removed => removed,
        }
    }

    /// Path at which the folder is mounted now: another one if a folder above it was renamed.
    fn path_now(&self) -> Result<Option<PathBuf>, Error> {
        let (table, source) = (mount_table()?, own_source());
        if source_of(&table, &self.path) == Some(source.as_str()) {
            return Ok(Some(self.path.clone()));
        }
        // A process that was killed may have had the same number.
        Ok(paths_of(&table, &source).find(|path| !is_dead(path)))
    }
}

/// Unmounts a folder of leased memory, and waits until its process has given the memory back. Returns the process, if it
/// was running.
pub(crate) fn unmount_folder(folder: &Path) -> Result<Option<u32>, Error> {
    let path = resolve(folder)?;
    let Some(process) = serving_process(&path)? else {
        let message = format!("no leased memory is mounted at {}", path.display());
        return Err(Error::new(Code::InvalidArgument, message));
    };
    if is_dead(&path) {
        return remove_mount(&path, UnmountFlags::DETACH).map(|()| None);
    }
    // Opened before the end of the process, whose number may then be another's.
    let number = i32::try_from(process).ok().and_then(Pid::from_raw);
    let opened = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
    remove_mount(&path, UnmountFlags::empty())?;
    let Some(opened) = opened else { return Ok(Some(process)) };
    retry_on_intr(|| poll(&mut [PollFd::new(&opened, PollFlags::IN)], None)).map_err(|error| {
        Error::of_system(format_args!("cannot wait for process {process}"), &error.into())
    })?;
    Ok(Some(process))
}

fn check_device() -> Result<(), Error> {
    let opened = fs::OpenOptions::new().read(true).write(true).open(DEVICE);
    opened.map(drop).map_err(|error| {
        let message = match error.kind() {
            io::ErrorKind::NotFound => {
                format!("this machine has no {DEVICE}, which mounting needs (load the kernel module fuse)")
            }
            _ => format!("cannot open {DEVICE}, which mounting needs: {error}"),
        };
        Error::new(Code::System, message)
    })
}

/// The path without symbolic links, also of a folder whose process was killed.
fn resolve(folder: &Path) -> Result<PathBuf, Error> {
    let failed = |error| Error::of_system(format_args!("cannot use the folder {}", folder.display()), &error);
    match fs::canonicalize(folder) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {
            let absolute = std::path::absolute(folder).map_err(failed)?;
            match (absolute.parent(), absolute.file_name()) {
                (Some(parent), Some(name)) => {
                    fs::canonicalize(parent).map(|parent| parent.join(name)).map_err(failed)
                }
                _ => Err(failed(error)),
            }
        }
        resolved => resolved.map_err(failed),
    }
}

/// Whether the process is gone that served what is mounted at the path.
fn is_dead(path: &Path) -> bool {
    // The kernel remembers attributes of the folder, but asks for the sizes each time.
    rustix::fs::statvfs(path).is_err_and(|error| error == Errno::NOTCONN)
}

/// The process that has mounted leased memory at the path, if there is one.
fn serving_process(path: &Path) -> Result<Option<u32>, Error> {
    let table = mount_table()?;
    Ok(source_of(&table, path).and_then(|source| source.strip_prefix(SOURCE)?.parse().ok()))
}

fn own_source() -> String {
    format!("{SOURCE}{}", std::process::id())
}

fn mount_table() -> Result<String, Error> {
    let table = fs::read("/proc/self/mountinfo")
        .map_err(|error| Error::of_system("cannot read the table of mounts", &error))?;
    Ok(escaped(&table))
}

/// The table of mounts as text. Bytes of paths that are not ASCII become octal numbers, as the kernel writes spaces.
fn escaped(table: &[u8]) -> String {
    let mut text = String::with_capacity(table.len());
    for byte in table {
        if byte.is_ascii() {
            text.push(char::from(*byte));
        } else {
            text += &format!("\\{byte:03o}");
        }
    }
    text
}

/// The source of the uppermost mount at a path, by the kernel's table of mounts.
fn source_of<'table>(table: &'table str, path: &Path) -> Option<&'table str> {
    table
        .lines()
        .rev()
        .filter_map(mount_of)
        .find_map(|(at, source)| (unescaped(at) == path).then_some(source))
}

/// The paths at which a source is mounted, the newest first.
fn paths_of(table: &str, source: &str) -> impl Iterator<Item = PathBuf> {
    let mounts = table.lines().rev().filter_map(mount_of);
    mounts.filter(move |(_, mounted)| *mounted == source).map(|(at, _)| unescaped(at))
}

/// Path and source of a line of the table.
fn mount_of(line: &str) -> Option<(&str, &str)> {
    let (mount, rest) = line.split_once(" - ")?;
    Some((mount.split(' ').nth(4)?, rest.split(' ').nth(1)?))
}

/// A path of the table of mounts, in which spaces and the like are octal numbers.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let number = behind.get(..3).and_then(|digits| str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// Unmounts a path, by itself or by the program that has the right.
fn remove_mount(path: &Path, flags: UnmountFlags) -> Result<(), Error> {
    let busy = || {
        let message = format!("cannot unmount {}: programs have files open in it", path.display());
        Error::new(Code::AlreadyRunning, message)
    };
    match unmount(path, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy()),
        Err(Errno::PERM) => remove_mount_by_helper(path, flags),
        Err(error) => Err(Error::of_system(format_args!("cannot unmount {}", path.display()), &error.into())),
    }
}

fn remove_mount_by_helper(path: &Path, flags: UnmountFlags) -> Result<(), Error> {
    let is_lazy = flags.contains(UnmountFlags::DETACH);
    for helper in HELPERS {
        let mut command = Command::new(helper);
        command.arg("-u").args(is_lazy.then_some("-z")).arg("--").arg(path).stdin(Stdio::null());
        match command.output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                let code = if reason.contains("busy") { Code::AlreadyRunning } else { Code::System };
                return Err(Error::new(code, format!("cannot unmount {}: {reason}", path.display())));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::of_system(format_args!("cannot execute {helper}"), &error)),
        }
    }
    let message = format!("cannot unmount {}: the program fusermount3 is not on PATH", path.display());
    Err(Error::new(Code::System, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:35 / /tmp/a\\040b rw,nosuid,nodev - fuse sublet-memory:12 rw,user_id=0
41 22 0:36 / /mnt rw - tmpfs tmpfs rw
42 41 0:37 / /mnt rw,nosuid - fuse sublet-memory:34 rw
";

    #[test]
    fn finds_the_uppermost_mount_of_a_path() {
        assert_eq!(source_of(TABLE, Path::new("/mnt")), Some("sublet-memory:34"));
        assert_eq!(source_of(TABLE, Path::new("/tmp/a b")), Some("sublet-memory:12"));
        assert_eq!(source_of(TABLE, Path::new("/")), Some("/dev/vda"));
        assert_eq!(source_of(TABLE, Path::new("/tmp")), None);
    }

    #[test]
    fn finds_a_mount_by_its_source() {
        let found = |source| paths_of(TABLE, source).collect::<Vec<_>>();
        assert_eq!(found("sublet-memory:12"), [Path::new("/tmp/a b")]);
        assert!(found("sublet-memory:1").is_empty());
    }

    #[test]
    fn reads_a_table_with_paths_that_are_not_text() {
        let table = escaped(b"40 22 0:35 / /tmp/\xff\xc3\xa9 rw - fuse sublet-memory:12 rw\n");
        let path = PathBuf::from(std::ffi::OsString::from_vec(b"/tmp/\xff\xc3\xa9".to_vec()));
        assert_eq!(source_of(&table, &path), Some("sublet-memory:12"));
    }

    #[test]
    fn refuses_a_folder_with_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "text").unwrap();
        if check_device().is_ok() {
            let error = FolderMount::prepare(folder.path()).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains("not empty"), "{error}");
        }
    }
}
