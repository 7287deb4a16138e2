//! The version before, for tests of upgrades: its programs, and the state that it has left in `tests/upgrade`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use sublet::Access;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::functions::{package, program_of};
use crate::platform::{self, sublet};
use crate::root;

/// Variable with the folder of the version before, which `cargo xtask upgrade` has built: its programs in `checked`, its
/// sources in `source`.
const FOLDER: &str = "SUBLET_TEST_BEFORE";

/// Folder of the programs of the version before.
///
/// # Panics
/// If they have not been built.
pub fn programs() -> PathBuf {
    let programs = folder().join("checked");
    assert!(programs.join("sublet").is_file(), "{} has no sublet", programs.display());
    programs
}

fn folder() -> PathBuf {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from);
    folder.unwrap_or_else(|| panic!("{FOLDER} is not set: run these tests by `cargo xtask upgrade`"))
}

/// The state that a killed manager and a killed agent of the version before have left, in a folder of the test's own.
pub fn state() -> TempDir {
    let archive = root().join("tests/upgrade/state.tar.gz");
    let folder = tempfile::tempdir().expect("temporary folder");
    let done = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder.path()).status();
    assert!(done.expect("tar can be executed").success());
    folder
}

/// A client in C that calls until it is ended.
pub struct CallingClient {
    process: Child,
    stdout: BufReader<ChildStdout>,
    /// Identifier of the client's lease.
    pub lease: String,
    /// Name of the node of the client's lease.
    pub node: String,
}

/// Version of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientVersion {
    /// The version before.
    Before,
    /// The version of this build.
    Now,
}

impl CallingClient {
    /// Starts a client, and waits for the result of its first call.
    #[track_caller]
    pub fn start(version: ClientVersion, cluster: &Cluster, token: &str, fabric: &str) -> CallingClient {
        let (name, programs, source) = match version {
            ClientVersion::Before => ("before", programs(), folder().join("source")),
            ClientVersion::Now => ("now", platform::programs(), root().to_owned()),
        };
        let program = program_of(name, "calling.c", &programs, &source.join("crates/capi/include"));
        let mut process = Command::new(program)
            .args([package("calls.c").as_str(), fabric])
            .env("SUBLET_MANAGER", cluster.addresses())
            .env("SUBLET_CA", cluster.ca_file())
            .env("SUBLET_TOKEN", token)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("the client does not start: {error}"));
        let mut stdout = BufReader::new(process.stdout.take().expect("its standard output is a pipe"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a pipe can be read");
        let (lease, node) = line.trim_end().split_once(' ').unwrap_or_else(|| panic!("it said {line:?}"));
        CallingClient { lease: lease.to_owned(), node: node.to_owned(), process, stdout }
    }

    /// Whether the client still calls.
    pub fn is_calling(&mut self) -> bool {
        self.process.try_wait().expect("it is a child of this process").is_none()
    }

    /// Ends the client, and returns the number of its calls, none of which has failed.
    #[track_caller]
    pub fn finish(mut self) -> u64 {
        drop(self.process.stdin.take());
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a pipe can be read");
        let status = self.process.wait().expect("it is a child of this process");
        assert!(status.success(), "a call on {} failed, or its lease did not end: {status}", self.node);
        line.trim_end().parse().unwrap_or_else(|_| panic!("it said {line:?}"))
    }
}

impl Drop for CallingClient {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The command of this build, as a user.
pub fn command_of(cluster: &Cluster, token: &str) -> Command {
    let mut command = sublet();
    command.env("SUBLET_MANAGER", cluster.addresses()).env("SUBLET_CA", cluster.ca_file());
    command.env("SUBLET_TOKEN", token);
    command
}

/// The way of this build's client to a manager's socket with a token from a file.
pub fn access_of(socket: &Path, token: &Path) -> Access {
    let token = fs::read_to_string(token).expect("the token can be read");
    let access = Access::parse(&format!("unix:{}", socket.display()));
    access.and_then(|access| access.with_token(token.trim())).unwrap_or_else(|error| panic!("{error}"))
}
