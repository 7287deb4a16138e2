//! A real NATS server with JetStream for tests: on a free port, with a folder of its own, gone when it is dropped.
//!
//! It can be killed and started again, and stopped and resumed. Tests of other packages take this file by its path.

use std::fmt::Write as _;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;

/// How long a server may take to start before the test gives up.
const START_PATIENCE: Duration = Duration::from_secs(180);

/// Settings of the server that differ from the usual ones.
#[derive(Clone, Debug, Default)]
pub struct NatsSettings {
    /// How many bytes the server stores; `None`: as much as the disk has.
    pub storage_bytes: Option<u64>,
    /// More lines for its file of settings.
    pub lines: String,
}

/// A server that runs until it is dropped.
pub struct NatsServer {
    child: Child,
    folder: TempDir,
    port: u16,
}

impl NatsServer {
    /// Starts a server as usual.
    pub fn start() -> NatsServer {
        NatsServer::start_with(&NatsSettings::default())
    }

    /// Starts a server with these settings.
    pub fn start_with(settings: &NatsSettings) -> NatsServer {
        let folder = tempfile::tempdir().expect("a folder for the server can be made");
        let port = free_port();
        std::fs::write(folder.path().join("nats.conf"), configuration(settings, folder.path(), port))
            .expect("the server's settings can be written");
        let child = spawn(folder.path(), port);
        NatsServer { child, folder, port }
    }

    /// Address of the server.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the server as a crash does. Its stored data stays.
    pub fn kill(&mut self) {
        self.child.kill().expect("the server can be killed");
        self.child.wait().expect("the server can be waited for");
    }

    /// Stops it in order.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        self.child.wait().expect("the server can be waited for");
    }

    /// Starts it again after it was killed or stopped.
    pub fn restart(&mut self) {
        self.child = spawn(self.folder.path(), self.port);
    }

    /// Stops it: it keeps its connections and answers nothing.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        // It may answer until then.
        let stopped = waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED);
        stopped.expect("the server is a child of this process");
    }

    /// Resumes the stopped server.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.child);
        kill_process(process, signal).expect("the server takes signals");
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(settings: &NatsSettings, folder: &Path, port: u16) -> String {
    let mut text =
        format!("listen: \"127.0.0.1:{port}\"\njetstream {{\n  store_dir: \"{}\"\n", folder.display());
    if let Some(bytes) = settings.storage_bytes {
        writeln!(text, "  max_file_store: {bytes}").expect("text can be written to a string");
    }
    text + "}\n" + &settings.lines
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
    listener.local_addr().expect("a listener has an address").port()
}

/// Starts the server and waits until it greets.
fn spawn(folder: &Path, port: u16) -> Child {
    let log = std::fs::File::create(folder.join("log")).expect("the server's log can be made");
    // Debian puts it where an ordinary user does not look.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/usr/local/sbin";
    let mut child = Command::new("nats-server")
        .env("PATH", path)
        .arg("-c")
        .arg(folder.join("nats.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("nats-server is installed: scripts/setup.sh test");
    let started = Instant::now();
    while !greets(port) {
        let ended = child.try_wait().expect("the server can be asked for its end");
        assert!(
            ended.is_none() && started.elapsed() < START_PATIENCE,
            "nats-server does not start: {ended:?}\n{}",
            std::fs::read_to_string(folder.join("log")).unwrap_or_default()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

fn greets(port: u16) -> bool {
    let mut greeting = [0; 4];
    let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    connection
        .is_ok_and(|mut connection| connection.read_exact(&mut greeting).is_ok() && &greeting == b"INFO")
}
