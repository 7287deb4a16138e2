//! A `sublet up` of a test's own: real processes, in a folder that goes with it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use sublet::{Allocation, Code, Invoker};
use tempfile::TempDir;

use crate::assert_fails;
use crate::functions::package;
use crate::process::{self, is_alive, wait_until};

/// A running `sublet up`, killed when it is dropped, and its workers with it.
pub struct PlatformProcess {
    process: Child,
    state: PathBuf,
    /// JSON line that the platform printed when it was up.
    pub said: Value,
    _folder: Option<TempDir>,
}

impl PlatformProcess {
    /// Lends all cores of this machine.
    pub fn start() -> PlatformProcess {
        PlatformProcess::start_with(|_| {})
    }

    /// Does what [`PlatformProcess::start`] does, with a changed command.
    pub fn start_with(change: impl FnOnce(&mut Command)) -> PlatformProcess {
        let folder = tempfile::tempdir().expect("a folder for temporary files is there");
        let state = folder.path().join("state");
        PlatformProcess::launch(&state, Some(folder), change)
    }

    /// Does what [`PlatformProcess::start`] does, by a command that executes the one that it is given.
    pub fn start_by(wrap: impl FnOnce(&Command) -> Command) -> PlatformProcess {
        PlatformProcess::start_with(|up| {
            let wrapped = wrap(up);
            *up = wrapped;
            up.stdin(Stdio::null()).stdout(Stdio::piped());
        })
    }

    /// Does what [`PlatformProcess::start`] does, in a folder that may have been used before and stays.
    pub fn start_in(state: &Path) -> PlatformProcess {
        PlatformProcess::launch(state, None, |_| {})
    }

    fn launch(state: &Path, folder: Option<TempDir>, change: impl FnOnce(&mut Command)) -> PlatformProcess {
        let mut command = sublet();
        command.args(["up", "--json", "--state"]).arg(state).stdin(Stdio::null()).stdout(Stdio::piped());
        change(&mut command);
        let mut process = command.spawn().expect("sublet can be executed");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("its standard output is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a pipe can be read");
        let said = serde_json::from_str(&line).unwrap_or_else(|_| panic!("sublet up said {line:?}"));
        PlatformProcess { process, state: state.to_owned(), said, _folder: folder }
    }

    /// Path of the platform's state folder.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Id of the platform's process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The manager's address.
    pub fn address(&self) -> String {
        format!("unix:{}", self.state.join("manager.sock").display())
    }

    /// Address of the platform's agent for other machines.
    ///
    /// # Panics
    /// If it is not.
    pub fn agent_address(&self) -> SocketAddrV4 {
        let nodes = self.json(&["ps", "--nodes"]);
        let address = nodes["nodes"][0]["network"]["address"].as_str();
        address.and_then(|address| address.parse().ok()).expect("the agent is on a network")
    }

    /// How many cores it lends.
    pub fn cores(&self) -> u32 {
        self.said["node"]["cores"].as_u64().and_then(|cores| cores.try_into().ok()).unwrap_or_default()
    }

    /// The processes of its workers.
    pub fn workers(&self) -> Vec<u32> {
        process::workers(self.pid())
    }

    /// The process of its only worker.
    ///
    /// # Panics
    /// If it has none or several.
    #[track_caller]
    pub fn worker(&self) -> u32 {
        let workers = self.workers();
        assert_eq!(workers.len(), 1, "workers: {workers:?}");
        workers[0]
    }

    /// A client without a lease.
    pub fn invoker(&self) -> Invoker {
        Invoker::connect_to(&self.address()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// A client with a core for the functions of a source.
    pub fn client(&self, source: &'static str) -> Invoker {
        self.client_with(&Allocation::new(package(source)))
    }

    /// A client with a lease.
    pub fn client_with(&self, allocation: &Allocation) -> Invoker {
        let mut invoker = self.invoker();
        invoker.allocate(allocation).unwrap_or_else(|error| panic!("{error}"));
        invoker
    }

    /// A new client can take a lease, call and give the lease back.
    #[track_caller]
    pub fn assert_serves(&self) {
        let mut client = self.client("calls.c");
        assert_echoes(&client);
        client.deallocate().unwrap_or_else(|error| panic!("{error}"));
    }

    /// The command, on its way to this manager.
    pub fn command(&self) -> Command {
        let mut command = sublet();
        command.env("SUBLET_STATE", &self.state).env("SUBLET_MANAGER", self.address());
        command
    }

    /// Runs the command.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Output {
        self.command().args(arguments).stdin(Stdio::null()).output().expect("sublet can be executed")
    }

    /// Runs the command with an input.
    pub fn pipe<A: AsRef<OsStr>>(&self, arguments: &[A], input: &[u8]) -> Output {
        let mut command = self.command();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("sublet can be executed");
        let mut stdin = process.stdin.take().expect("its standard input is a pipe");
        // A command that has failed does not read on; how it ended is the caller's to look at.
        let _ = stdin.write_all(input);
        drop(stdin);
        process.wait_with_output().expect("it ends")
    }

    /// Runs the command with `--json` and returns the JSON that it prints.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("--json prints JSON")
    }

    /// Checks that the command fails with a code, as its exit status and in JSON. Returns the message.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn assert_refuses(&self, arguments: &[&str], code: Code) -> String {
        let output = self.run(&[arguments, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), i32::try_from(code.number()).ok(), "{arguments:?}: {said}");
        let error: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("no JSON: {said}"));
        assert_eq!(error["error"]["code"], code.name(), "{said}");
        error["error"]["message"].as_str().unwrap_or_default().to_owned()
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits until its process has ended.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("sublet up ends", || {
            status = self.process.try_wait().expect("it is a child of this process");
            status.is_some()
        });
        status.unwrap_or_default()
    }
}

impl Drop for PlatformProcess {
    fn drop(&mut self) {
        let workers = self.workers();
        // If it has ended already, that is as well.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if !std::thread::panicking() {
            wait_until("workers die with their agent", || {
                !workers.iter().any(|&worker| crate::process::is_alive(worker))
            });
        }
    }
}

/// Sends a process a signal.
///
/// # Panics
/// If it is not there.
#[track_caller]
pub fn kill(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process has a number above 0");
    kill_process(pid, signal).unwrap_or_else(|error| panic!("process {pid:?}: {error}"));
}

/// A client's lease gives back inputs of no, few and many bytes.
#[track_caller]
pub fn assert_echoes_of_every_size(client: &mut Invoker) {
    for len in [0, 1, 4097, 1 << 20] {
        let mut input = client.buffer::<u8>(len).expect("there is memory for an input");
        let bytes: Vec<u8> = (0..len).map(|at| ((at * 31) >> 3).to_le_bytes()[0]).collect();
        input.copy_from_slice(&bytes);
        let mut output = client.buffer::<u8>(len + 1).expect("there is memory for an output");
        let done = client.submit("echo", &input, &mut output).and_then(sublet::Invocation::wait);
        let done = done.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((done.output_bytes, output.part(..len).to_vec()), (len, bytes));
    }
}

/// A client's lease answers a good call. Every package of the tests has an `echo`.
#[track_caller]
pub fn assert_echoes(client: &Invoker) {
    let mut output = [0u8; 5];
    let done = client.submit("echo", b"hello", &mut output).and_then(sublet::Invocation::wait);
    let done = done.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((done.output_bytes, &output), (5, b"hello"));
}

/// Returns the id of the process that executes a lease's calls, as its function `process` says.
#[track_caller]
pub fn executing_process(client: &Invoker) -> u32 {
    let mut pid = [0u32];
    let done = client.submit("process", &[0u8; 0], &mut pid).and_then(sublet::Invocation::wait);
    done.map(|_| pid[0]).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks that a worker that takes more memory than its sandbox has is killed alone: its caller gets an error that says
/// so and another worker for its next call, and a neighbour's worker keeps running. The package is that of `faults.c`,
/// with 64 MiB.
#[track_caller]
pub fn assert_memory_bomb_ends_alone(platform: &PlatformProcess, bomb: &Allocation) {
    let neighbour = platform.client("calls.c");
    let its_worker = executing_process(&neighbour);
    let client = platform.client_with(bomb);
    let devoured =
        client.submit("devour_shared", &[0u8; 0], &mut [0u8; 8]).and_then(sublet::Invocation::wait);
    let named = ["devour_shared", "was killed out of memory", "the lease's memory is 64 MiB"];
    assert_fails(devoured, Code::WorkerDied, &named);
    assert_echoes(&client);
    assert_eq!(executing_process(&neighbour), its_worker, "the neighbour's worker has changed");
    assert!(is_alive(platform.pid()), "the agent has ended");
}

/// Checks that 200 calls of `add_index`, all submitted before the first wait, succeed, each with its own result.
#[track_caller]
pub fn assert_more_calls_than_slots(client: &Invoker) {
    let inputs: Vec<[u32; 3]> = (0..200).map(|n| [n, n + 1, n + 2]).collect();
    let mut outputs = vec![[0u32; 3]; inputs.len()];
    let calls: Vec<_> = inputs
        .iter()
        .zip(&mut outputs)
        .map(|(input, output)| client.submit("add_index", input, output).expect("calls wait for a free slot"))
        .collect();
    for call in calls {
        assert_eq!(call.wait().unwrap_or_else(|error| panic!("{error}")).output_bytes, 12);
    }
    for (input, output) in inputs.iter().zip(&outputs) {
        assert_eq!(*output, [input[0], input[1] + 1, input[2] + 2]);
    }
}

/// The command, free of the caller's own settings.
pub fn sublet() -> Command {
    let program = programs().join("sublet");
    let worker = programs().join("sublet-worker");
    let others =
        ["sublet-spawner", "sublet-worker-wasm", "sublet-worker-kernels"].map(|name| programs().join(name));
    for file in others.iter().chain([&program, &worker]) {
        assert!(
            file.is_file(),
            "{} is missing: run `cargo build --release --workspace` first",
            file.display()
        );
    }
    let mut command = Command::new(program);
    // Without Python, which most tests do not need and which takes time to start.
    command.env_remove("SUBLET_MANAGER").env_remove("SUBLET_STATE").env("SUBLET_PYTHON", "none");
    command.env("SUBLET_WORKER", worker);
    command
}

/// The same command by the programs of another folder.
pub fn by_programs(command: &Command, folder: &Path) -> Command {
    let mut other = Command::new(folder.join("sublet"));
    other.args(command.get_args());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => other.env(variable, value),
            None => other.env_remove(variable),
        };
    }
    other.env("SUBLET_WORKER", folder.join("sublet-worker"));
    other
}

/// The folder in which cargo puts programs: tests stand in a folder of it.
pub fn programs() -> PathBuf {
    let own = std::env::current_exe().expect("a process knows its program");
    let folder = own.parent().filter(|folder| folder.ends_with("deps")).and_then(Path::parent);
    folder.or(own.parent()).expect("a program stands in a folder").to_owned()
}
