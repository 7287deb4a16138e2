//! A program of a test's own: started with a log, killed, stopped, resumed, started again, and gone at the end.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;

use rustix::process::Signal;
use serde_json::Value;

use crate::platform::{by_programs, kill};
use crate::process::{PATIENCE, is_stopped, wait_until};

/// Lines of its log that a failed test shows.
const SHOWN_LINES: usize = 80;

type Make = Box<dyn Fn() -> Command + Send + Sync>;

/// A program that says a line of JSON when it serves. Killed when it is dropped.
pub struct ServerProgram {
    name: String,
    make: Make,
    /// Folder of its programs, if that is not the one of this build.
    programs: Option<PathBuf>,
    log: PathBuf,
    child: Child,
    stdout: Option<ChildStdout>,
}

impl ServerProgram {
    /// Starts the command that `make` makes, and waits until it serves. Its log goes to the file of its name in the
    /// folder.
    pub fn start(
        name: &str,
        folder: &Path,
        make: impl Fn() -> Command + Send + Sync + 'static,
    ) -> ServerProgram {
        let mut program = ServerProgram::begin(name, folder, make);
        program.wait_until_it_serves();
        program
    }

    /// Does what [`ServerProgram::start`] does, and does not wait.
    pub fn begin(
        name: &str,
        folder: &Path,
        make: impl Fn() -> Command + Send + Sync + 'static,
    ) -> ServerProgram {
        let log = folder.join(format!("{name}.log"));
        let (child, stdout) = spawn(make(), &log);
        ServerProgram { name: name.to_owned(), make: Box::new(make), programs: None, log, child, stdout }
    }

    /// Id of the program's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its line and gives it.
    ///
    /// # Panics
    /// If it ends without one, or says nothing for long.
    #[track_caller]
    pub fn wait_until_it_serves(&mut self) -> Value {
        let stdout = self.stdout.take().expect("it has not been waited for before");
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let read = BufReader::new(stdout).read_line(&mut line);
            // The receiver is closed if the test has given up.
            let _ = tell.send(read.map(|_| line));
        });
        let line = told.recv_timeout(PATIENCE).map(|line| line.expect("a pipe can be read"));
        let line = line.unwrap_or_else(|_| panic!("{} does not serve:\n{}", self.name, self.log_end()));
        serde_json::from_str(&line)
            .unwrap_or_else(|_| panic!("{} said {line:?}:\n{}", self.name, self.log_end()))
    }

    /// Kills it, as a crash does.
    pub fn kill(&mut self) {
        // If it has ended already, that is as well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops it in order.
    pub fn stop(&mut self) -> ExitStatus {
        kill(self.pid(), Signal::TERM);
        let mut status = None;
        wait_until("the program ends", || {
            status = self.child.try_wait().expect("it is a child of this process");
            status.is_some()
        });
        status.unwrap_or_default()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it is a child of this process").is_none()
    }

    /// Stops its clock, so to say: it keeps its connections and answers nothing.
    pub fn pause(&self) {
        kill(self.pid(), Signal::STOP);
        // It may answer until then.
        wait_until("it has stopped", || is_stopped(self.pid()));
    }

    /// Resumes the stopped program.
    pub fn resume(&self) {
        kill(self.pid(), Signal::CONT);
    }

    /// Starts it again after its end, and waits until it serves.
    #[track_caller]
    pub fn restart(&mut self) {
        self.restart_with(|_| {});
    }

    /// Starts it from now on by the programs of a folder.
    pub fn use_programs(&mut self, folder: &Path) {
        self.programs = Some(folder.to_owned());
    }

    /// Does what [`ServerProgram::restart`] does, with a changed command.
    #[track_caller]
    pub fn restart_with(&mut self, change: impl FnOnce(&mut Command)) {
        self.kill();
        let made = (self.make)();
        let mut command = match &self.programs {
            None => made,
            Some(programs) => by_programs(&made, programs),
        };
        change(&mut command);
        (self.child, self.stdout) = spawn(command, &self.log);
        self.wait_until_it_serves();
    }

    /// Log of all processes of this program, the restarted ones included.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn log_end(&self) -> String {
        let log = self.log();
        let skipped = log.lines().count().saturating_sub(SHOWN_LINES);
        log.lines().skip(skipped).map(|line| format!("  {}: {line}\n", self.name)).collect()
    }
}

impl Drop for ServerProgram {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.log_end());
        }
    }
}

/// The same program in other namespaces, as the entry says; its process is the one that is started.
pub fn inside(entry: &[String], program: &Command) -> Command {
    let mut command = Command::new("nsenter");
    command.args(entry).arg(program.get_program()).args(program.get_args());
    for (variable, value) in program.get_envs() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    command
}

fn spawn(mut command: Command, log: &Path) -> (Child, Option<ChildStdout>) {
    let log = append(log);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = child.stdout.take();
    (child, stdout)
}

fn append(path: &Path) -> File {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
