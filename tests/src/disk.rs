//! A small disk of a test's own, which can be filled and emptied: memory, in a mount namespace of its own.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sublet_means::{Means, skip};

/// Shell command that keeps the disk mounted until its standard input ends.
const HOLD: &str = r#"mount -t tmpfs -o "size=$2" tmpfs "$1" && echo mounted && cat"#;
const FILLER: &str = "filler";

/// A disk, gone when it is dropped.
pub struct SmallDisk {
    holder: Child,
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk of `bytes` bytes, seen in a folder by programs that are started by its [`SmallDisk::entry`].
    /// Returns `None`, and says so on standard output, where this user may not mount anything.
    pub fn mount(folder: &Path, bytes: u64) -> Option<SmallDisk> {
        let mut holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", HOLD, "hold"])
            .args([folder.as_os_str(), bytes.to_string().as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare of util-linux can be executed");
        let mut said = String::new();
        let stdout = holder.stdout.take().expect("its standard output is a pipe");
        BufReader::new(stdout).read_line(&mut said).expect("a pipe can be read");
        let disk = SmallDisk { holder, folder: folder.to_owned() };
        if said.trim() == "mounted" {
            return Some(disk);
        }
        skip(Means::Namespaces, "this user may not mount a disk");
        None
    }

    /// How a program is started that sees it: see [`crate::program::inside`].
    pub fn entry(&self) -> Vec<String> {
        vec![format!("--mount=/proc/{}/ns/mnt", self.holder.id())]
    }

    /// The folder, as this process sees it.
    pub fn path(&self) -> PathBuf {
        let inside = self.folder.strip_prefix("/").unwrap_or(&self.folder);
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(inside)
    }

    /// Leaves no byte free.
    pub fn fill(&self) {
        let mut filler = File::create(self.path().join(FILLER)).expect("a file can be made");
        for size in [1 << 20, 4 << 10, 1] {
            while filler.write_all(&vec![0; size]).is_ok() {}
        }
    }

    /// Undoes [`SmallDisk::fill`].
    pub fn empty(&self) {
        fs::remove_file(self.path().join(FILLER)).expect("the filler is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // If it has ended already, that is as well.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
