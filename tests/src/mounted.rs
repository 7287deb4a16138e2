//! A folder of leased memory of a test's own, by `sublet memory mount`.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::Value;
use sublet_means::{Means, skip};

use crate::platform::kill;

/// A mounted folder, gone when it is dropped.
pub struct MountedFolder {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    folder: PathBuf,
}

/// Whether this machine mounts folders. If not, the running test is skipped.
pub fn can_mount() -> bool {
    let is_there = Means::Fuse.is_here();
    if !is_there {
        skip(Means::Fuse, "this machine has no /dev/fuse, or this user may not mount by it");
    }
    is_there
}

impl MountedFolder {
    /// Mounts a folder, which is made if it is missing, by a command with the environment of a client.
    ///
    /// # Panics
    /// If it is not mounted.
    #[track_caller]
    pub fn start(mut command: Command, folder: &Path, arguments: &[&str]) -> MountedFolder {
        // It may be the folder of a process that was killed, which is neither there nor not.
        let _ = fs::create_dir(folder);
        command.args(["memory", "mount", "--json"]).arg(folder).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("sublet can be executed");
        let stdout = process.stdout.take().expect("its standard output is a pipe");
        let mut lines = BufReader::new(stdout).lines();
        let ready = lines.next().and_then(Result::ok).expect("the folder is mounted");
        let ready: Value = serde_json::from_str(&ready).unwrap_or_else(|_| panic!("it said {ready:?}"));
        assert_eq!(ready["pid"].as_u64(), Some(process.id().into()), "{ready}");
        MountedFolder { process, lines, folder: folder.to_owned() }
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Id of its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Kills its process, as a crash does.
    pub fn kill(&mut self) {
        // If it has ended already, that is as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Ends it by a signal. Returns its report.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn end(self) -> Value {
        kill(self.process.id(), Signal::TERM);
        self.report()
    }

    /// Returns the report of the folder once it has ended.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn report(mut self) -> Value {
        let report = self.lines.next().and_then(Result::ok).expect("it reports at its end");
        let status = self.process.wait().expect("it is a child of this process");
        assert!(status.success(), "{status}: {report}");
        serde_json::from_str(&report).unwrap_or_else(|_| panic!("it said {report:?}"))
    }
}

impl Drop for MountedFolder {
    fn drop(&mut self) {
        self.kill();
        // It is unmounted already, unless the test killed its process.
        let _ = unmount(&self.folder, UnmountFlags::DETACH);
    }
}
