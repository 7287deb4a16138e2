//! A machine of another architecture, emulated: what `scripts/second-pu.sh` boots, and an agent in it.
//!
//! The machine is on a host of the test's own network: a connection to the agent's port of that host reaches the
//! machine, and the machine's own connections come from that host. Its file system is discarded with it, and it ends
//! with this process, however that ends.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::functions::foreign_program;
use crate::network::Host;
use crate::program::inside;
use crate::root;

/// The architecture, as packages name it.
pub const ARCHITECTURE: &str = "aarch64";
/// Compiler of C for the emulated machine.
pub const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// Port of the machine's agent, on its host and in the machine itself.
pub const AGENT_PORT: u16 = 7441;

const SCRIPT: &str = "scripts/second-pu.sh";
/// Folder in which the chore leaves the programs for the machine.
const PROGRAMS: &str = "target/second-pu/programs";
/// Library for programs in C, built by the chore of the second processing unit.
const LIBRARY: &str = "target/second-pu/build/aarch64-unknown-linux-gnu/release/libsublet_c.a";
/// Folder in which the machine finds the files that it is given.
const FILES: &str = "/sublet";
/// How long a boot or a command may take where every instruction is emulated, and others want the processor, too.
const PATIENCE: Duration = Duration::from_secs(240);
const READY: &str = "second-pu: ready";
const ENDED: &str = "second-pu: ended with ";
/// Lines of its agent's log that a failed test shows.
const SHOWN_LINES: usize = 60;

/// A program of `tests/functions` for it, in C.
///
/// # Panics
/// If it cannot be compiled.
pub fn program(source: &str) -> PathBuf {
    foreign_program(COMPILER, source, &root().join(LIBRARY))
}

/// A running machine.
pub struct EmulatedMachine {
    process: Child,
    commands: ChildStdin,
    said: Receiver<String>,
    /// How its agent is started.
    agent: String,
    /// Folder of the machine's second disk.
    _folder: TempDir,
}

impl EmulatedMachine {
    /// Boots one on a host, with these files beside Sublet's programs, each by its name. Its agent has more on its command line.
    ///
    /// # Panics
    /// If it does not boot.
    pub fn boot(host: &Host, files: &[(&str, Vec<u8>)], agent: &[&str]) -> EmulatedMachine {
        let (folder, disk) = pack(files);
        let mut boot = Command::new(root().join(SCRIPT));
        boot.arg("boot").arg(&disk).arg(AGENT_PORT.to_string());
        let mut process = inside(&host.entry(), &boot)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter of util-linux can be executed");
        let stdout = process.stdout.take().expect("its standard output is a pipe");
        let commands = process.stdin.take().expect("its standard input is a pipe");
        let (say, said) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
            // The receiver is closed when the machine is dropped.
            lines
                .map_while(|line| say.send(String::from_utf8_lossy(&line).trim_end().to_owned()).ok())
                .count()
        });
        let agent = format!(
            "SUBLET_LOG=info {FILES}/sublet agent --json --state /var/lib/sublet {}",
            agent.join(" ")
        );
        let machine = EmulatedMachine { process, commands, said, agent, _folder: folder };
        machine.listen(|line| line == READY);
        machine
    }

    /// Returns what a shell command on the machine prints. A process that it left in the background keeps running.
    ///
    /// # Panics
    /// If it fails, or takes very long.
    #[track_caller]
    pub fn run(&mut self, command: &str) -> String {
        assert!(!command.contains('\n'), "a command is one line: {command}");
        writeln!(self.commands, "{command}").expect("the machine reads");
        let mut lines = self.listen(|line| line.starts_with(ENDED));
        let ended = lines.pop().unwrap_or_default();
        let text = lines.join("\n");
        assert_eq!(ended, format!("{ENDED}0"), "{command}: {text}");
        text
    }

    /// Starts its agent, and waits until it serves.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn start_agent(&mut self) {
        let agent = self.agent.clone();
        self.run(&format!("{agent} >agent.said 2>>agent.log & echo $! >agent.pid"));
        self.run("until [ -s agent.said ]; do kill -0 $(cat agent.pid) || { cat agent.log; false; break; }; sleep 0.1; done");
    }

    /// Kills its agent, as a crash does.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn kill_agent(&mut self) {
        self.run("kill -KILL $(cat agent.pid) && { wait $(cat agent.pid) || true; }");
    }

    /// The lines up to one that is waited for.
    #[track_caller]
    fn listen(&self, is_last: impl Fn(&str) -> bool) -> Vec<String> {
        let (until, mut lines) = (Instant::now() + PATIENCE, Vec::new());
        loop {
            match self.said.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("nothing more was said after {lines:#?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the machine has ended after {lines:#?}"),
            }
            if lines.last().is_some_and(|line| is_last(line)) {
                return lines;
            }
        }
    }

    /// The end of its agent's log, for a test that has failed.
    pub fn log(&mut self) -> String {
        self.run(&format!("tail -n {SHOWN_LINES} agent.log"))
    }
}

impl Drop for EmulatedMachine {
    fn drop(&mut self) {
        // If it has ended already, that is as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An archive of the programs and these files, which is the machine's second disk, in a folder of its own.
fn pack(files: &[(&str, Vec<u8>)]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder for temporary files is there");
    let (disk, own) = (folder.path().join("files.tar"), folder.path().join("files"));
    fs::create_dir(&own).expect("the folder can be written to");
    for (name, bytes) in files {
        fs::write(own.join(name), bytes).expect("the folder can be written to");
    }
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(&disk).arg("-C").arg(root().join(PROGRAMS)).arg(".").arg("-C").arg(&own).arg(".");
    let output = tar.output().expect("tar can be executed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (folder, disk)
}
